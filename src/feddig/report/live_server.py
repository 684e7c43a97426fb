"""Serve a live page over HTTP: only the page and its state, read-only, and no file of the folder by its path."""

import errno
import ipaddress
import logging
import os
import socket
import socketserver
from collections.abc import Collection
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from feddig.errors import FedDigError, first_line
from feddig.report.html_parts import LIVE_PAGE
from feddig.report.live import LivePage

log = logging.getLogger("feddig")

LOOPBACK = ("localhost", "127.0.0.1", "::1")
METHODS = ("GET", "HEAD")
HEADERS = {
    "Content-Security-Policy": f"{LIVE_PAGE.policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class LiveServer(ThreadingHTTPServer):
    """Serves a live page on one address of this machine."""

    daemon_threads = True
    # on Windows, reuse would let two programs listen on the same port
    allow_reuse_address = os.name == "posix"

    def __init__(self, page: LivePage, host: str, port: int) -> None:
        self.page = page
        self.is_private = is_loopback(host)
        self.host_names: Collection[str] = (
            LOOPBACK if self.is_private else (host.lower(), socket.gethostname().lower())
        )
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.address_family = found[0]
            super().__init__(found[4][:2], _RequestHandler)  # type: ignore[arg-type]
        except OSError as error:
            raise FedDigError(_describe_bind_error(error, host, port)) from None

    def server_bind(self) -> None:
        """Bind the port; unlike the library's method, without a DNS lookup of this machine's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]  # type: ignore[assignment]

    @property
    def address(self) -> str:
        """The URL of the page."""
        host = str(self.server_address[0])
        if ipaddress.ip_address(host).is_unspecified:
            host = socket.gethostname()
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def accepts_host(self, host: str | None) -> bool:
        """Return whether a request's Host header names this server, which prevents DNS rebinding.

        An IP address cannot be rebound, so any is accepted where the server is not private.
        """
        name = _without_port(host or "").lower()
        return name in self.host_names or (not self.is_private and _is_ip_address(name))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a browser that closed its connection early, without a traceback on the terminal."""
        log.debug("%s closed the connection", client_address, exc_info=True)


class _RequestHandler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = 20

    def parse_request(self) -> bool:
        """Refuse requests with another method or another host name."""
        if not super().parse_request():
            return False
        if self.command not in METHODS:
            allowed = {"Allow": ", ".join(METHODS)}
            self._refuse(HTTPStatus.METHOD_NOT_ALLOWED, "this page can only be read", allowed)
            return False
        if not self.server.accepts_host(self.headers.get("Host")):
            names = " or ".join(self.server.host_names)
            reason = f"not a name of this server; use {names}, or see feddig watch --host"
            self._refuse(HTTPStatus.FORBIDDEN, reason)
            return False
        return True

    def do_GET(self) -> None:
        """Send the page or its state."""
        try:
            self._send_resource(self.path.partition("?")[0])
        except ConnectionError:
            raise
        except Exception as error:  # a damaged folder must not end the server; the next request may succeed
            reason = f"the page could not be made ({first_line(error)})"
            log.warning("%s", reason, exc_info=True)
            self._refuse(HTTPStatus.INTERNAL_SERVER_ERROR, reason)

    def do_HEAD(self) -> None:
        """Send the same headers without a body."""
        self.do_GET()

    def _send_resource(self, path: str) -> None:
        if path == "/":
            page, version = self.server.page.page()
            self._send(HTTPStatus.OK, page, "text/html", {"ETag": f'"{version}"'})
        elif path == "/state":
            self._send(HTTPStatus.OK, self.server.page.state(), "application/json")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is only one page here: /")

    def _refuse(self, status: HTTPStatus, reason: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, f"{reason}\n".encode(), "text/plain", headers)

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str, headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in {**HEADERS, **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Return the Server header, without Python's version."""
        return "feddig"

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer a malformed request with our own headers, without repeating any part of it."""
        self._refuse(HTTPStatus(code), HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Log nothing: there is a request every second."""


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    return _is_ip_address(host) and ipaddress.ip_address(host).is_loopback


def _is_ip_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _describe_bind_error(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port}: another program listens there already; choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port}: this user may not listen there; choose one above 1023 with --port"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: is not an address of this machine ({error.strerror})"
    return f"--host {host} --port {port}: {error.strerror or error}"
