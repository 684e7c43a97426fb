"""Run Flower's SuperLink behind a filter of requests, with a log that says who was refused and why.

A SuperLink serves three interfaces on one port. The silos' (/v1/fleet) asks for a registered key. Those by which runs
are started and keys are registered (/v1/control) and by which apps talk (/v1/runtime) ask for nothing: anybody who
reaches the port could run any program on the moderator's machine. The filter lets only this machine use them.

Flower reads a request into memory before it checks the sender's key. So a request to the silos' interface must state
its length, and a request that is longer than a part of a reply is refused.
"""

import ipaddress
import logging
import os
import re
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from threading import Thread

from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from feddig.federation.flower_1_41 import names
from feddig.federation.flower_1_41.names import FLEET_PATH, PUSH_OBJECT_PATH, SUPERLINK, start_checked, unfit
from feddig.federation.flower_1_41.replies import LARGEST_PIECE, NOTE

log = logging.getLogger("uvicorn.error")

LAST_LINES_SECONDS = 1.0
"""How long the last lines are waited for at the end; programs that Flower started may run on."""


class RequestFilter:
    """Refuse requests from other machines except to the silos' interface, and requests that are too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        path = str(scope.get("path", ""))
        status, reason = 0, ""
        if scope["type"] != "lifespan" and path.startswith(FLEET_PATH):
            status, reason = _check_length(scope, LARGEST_PIECE + NOTE if path == PUSH_OBJECT_PATH else NOTE)
        elif scope["type"] != "lifespan" and not _is_local(scope.get("client")):
            status, reason = 403, "only this machine may use it"
        if not status:
            await self._app(scope, receive, send)
            return
        log.warning("refused: %s asked for %s: %s", scope.get("client"), path[:100], reason)
        if scope["type"] == "http":
            await PlainTextResponse(reason, status_code=status)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


def _check_length(scope: Scope, largest: int) -> tuple[int, str]:
    """Return the HTTP status and the reason of a refusal, or 0 and nothing."""
    headers = dict(scope.get("headers", ()))
    length = headers.get(b"content-length", b"0")
    if b"transfer-encoding" in headers or not length.isdigit():
        return 411, "it does not state its length"
    if int(length) > largest:
        return 413, f"it has {int(length):,} bytes, more than {largest:,}"
    return 0, ""


def _is_local(sender: object) -> bool:
    try:
        return isinstance(sender, tuple) and ipaddress.ip_address(sender[0]).is_loopback
    except ValueError:
        return False


class LoggedTLS(ssl.SSLObject):
    """Log why a TLS handshake failed; neither Flower nor its server logs that, at any level."""

    def do_handshake(self) -> None:
        """Do the next step of the handshake."""
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):  # it continues when more bytes have come
            raise
        except ssl.SSLError as error:
            if self.server_side:
                log.warning("refused: a connection failed the TLS handshake: %s", error)
            raise


COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) *: *")
"""How Flower begins a line of its log."""


def tidy(line: str, now: datetime) -> str:
    """Return a line of a log without colour codes; one of Flower's gets the time in front."""
    plain = COLOUR.sub("", line)
    level = LEVEL.match(plain)
    if level is None:
        return plain
    return f"{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03} {level[1]} {plain[level.end() :]}"


@contextmanager
def tidy_output() -> Iterator[None]:
    """Pass on, line by line and tidied, what this process and the programs that Flower starts from it print."""
    stdout, stderr = os.dup(1), os.dup(2)
    source, sink = os.pipe()
    for stream in (1, 2):
        os.dup2(sink, stream)
    os.close(sink)

    def pass_on() -> None:
        with os.fdopen(source, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                with suppress(OSError):  # a full disk costs lines, and must not stop the SuperLink
                    os.write(stdout, tidy(line, datetime.now()).encode())

    thread = Thread(target=pass_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        thread.join(LAST_LINES_SECONDS)


def main() -> None:
    """Run the SuperLink with the filter before all its interfaces."""
    start_checked(_run, SUPERLINK)


def _run() -> None:
    put_filter_first()
    # these would open further ports, without the filter
    for variable in (names.GRPC_CONTROL, names.GRPC_FLEET):
        os.environ.pop(variable.get(), None)
    ssl.SSLContext.sslobject_class = LoggedTLS
    with tidy_output():
        names.RUN_SUPERLINK.get()()


def put_filter_first() -> None:
    """Have Flower put our filter before everything else, and refuse to go on if it would not."""
    inner = names.EXTRA_MIDDLEWARE.get()
    names.EXTRA_MIDDLEWARE.replace(lambda: (Middleware(RequestFilter), *inner()))
    if [layer.cls for layer in names.MIDDLEWARE.get()()][:1] != [RequestFilter]:
        raise unfit("its SuperLink takes no filter of requests")


if __name__ == "__main__":
    main()
