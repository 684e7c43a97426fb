"""Serving a live page over HTTP: two addresses to be read, and nothing of the folder by its path."""

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
from feddig.report.html_parts import LIVE_FRAME
from feddig.report.live import LivePage

log = logging.getLogger("feddig")

LOOPBACK = ("localhost", "127.0.0.1", "::1")
METHODS = ("GET", "HEAD")
HEADERS = {
    "Content-Security-Policy": f"{LIVE_FRAME.policy}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class LiveServer(ThreadingHTTPServer):
    """Listens on one address of this machine."""

    daemon_threads = True
    # elsewhere it would let two programs listen on the same port
    allow_reuse_address = os.name == "posix"

    def __init__(self, page: LivePage, host: str, port: int) -> None:
        self.page = page
        self.is_private = is_loopback(host)
        self.names: Collection[str] = (
            LOOPBACK if self.is_private else (host.lower(), socket.gethostname().lower())
        )
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            self.address_family = found[0]
            super().__init__(found[4][:2], _Answer)  # type: ignore[arg-type]
        except OSError as error:
            raise FedDigError(_refusal(error, host, port)) from None

    def server_bind(self) -> None:
        """Take the port; unlike the library, without asking the network what this machine is called."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]  # type: ignore[assignment]

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        host = str(self.server_address[0])
        if ipaddress.ip_address(host).is_unspecified:
            host = socket.gethostname()
        return f"http://{f'[{host}]' if ':' in host else host}:{self.server_port}/"

    def knows(self, host: str | None) -> bool:
        """Tell whether a request names this server, and not a stranger's name that was made to lead here.

        By such a name a page from elsewhere could read this one. An address in figures is nobody's name.
        """
        name = _without_port(host or "").lower()
        return name in self.names or (not self.is_private and _is_figures(name))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pass over a browser that went away in the middle of an answer."""
        log.debug("%s went away", client_address, exc_info=True)


class _Answer(BaseHTTPRequestHandler):
    """Answers one request."""

    server: LiveServer
    timeout = 20

    def parse_request(self) -> bool:
        """Turn away, before anything is looked at, whoever wants something else than to read."""
        if not super().parse_request():
            return False
        if self.command not in METHODS:
            self._refuse(
                HTTPStatus.METHOD_NOT_ALLOWED, "this page can only be read", {"Allow": ", ".join(METHODS)}
            )
            return False
        if not self.server.knows(self.headers.get("Host")):
            names = " or ".join(self.server.names)
            self._refuse(
                HTTPStatus.FORBIDDEN,
                f"not a name of this server; ask for {names}, or see feddig watch --host",
            )
            return False
        return True

    def do_GET(self) -> None:
        """Give the page, or how it stands."""
        try:
            self._give(self.path.partition("?")[0])
        except ConnectionError:
            raise
        except Exception as error:  # the folder may hold anything, and the next question may go well
            log.warning("the page could not be made: %s", first_line(error), exc_info=True)
            self._refuse(
                HTTPStatus.INTERNAL_SERVER_ERROR, f"the page could not be made ({first_line(error)})"
            )

    def do_HEAD(self) -> None:
        """Give the same without its body."""
        self.do_GET()

    def _give(self, path: str) -> None:
        if path == "/":
            page, version = self.server.page.page()
            self._send(HTTPStatus.OK, page, "text/html", {"ETag": f'"{version}"'})
        elif path == "/state":
            self._send(HTTPStatus.OK, self.server.page.state(), "application/json")
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is only one page here: /")

    def _refuse(self, status: HTTPStatus, why: str, headers: dict[str, str] | None = None) -> None:
        self._send(status, f"{why}\n".encode(), "text/plain", headers)

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
        """Say who answers, and not which Python."""
        return "feddig"

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer what is no request with our own headers, and without repeating any of it."""
        self._refuse(HTTPStatus(code), HTTPStatus(code).phrase)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Write nothing for each request: there is one a second."""


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    return _is_figures(host) and ipaddress.ip_address(host).is_loopback


def _is_figures(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


def _refusal(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port}: another program listens there already; choose another with --port"
    if error.errno == errno.EACCES:
        return f"port {port}: this user may not listen there; choose one above 1023 with --port"
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host}: is not an address of this machine ({error.strerror})"
    return f"--host {host} --port {port}: {error.strerror or error}"
