"""Run Flower's SuperLink behind a filter of requests, and log connections that fail the TLS handshake.

A SuperLink serves three interfaces on one port. The silos' (/v1/fleet) asks for a registered key. Those by which runs
are started and keys are registered (/v1/control) and by which apps talk (/v1/runtime) ask for nothing: anybody who
reaches the port could run any program on the moderator's machine. The filter lets only this machine use them.

Flower reads a request into memory before it checks the sender's key. So a request to the silos' interface must state
its length, and a request that is longer than a part of a reply is refused.
"""

import ipaddress
import logging
import os
import ssl
from typing import Any

from flwr.common.constant import FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API
from flwr.superlink import extensions
from flwr.superlink import main as interfaces
from flwr.superlink.cli.flower_superlink import flower_superlink
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from feddig.federation.flower_1_41.replies import LARGEST_PIECE, NOTE

FLEET = "/v1/fleet/"
PUSH_OBJECT = "/v1/fleet/push-object"
"""Where a silo's node sends the parts of a reply."""

log = logging.getLogger("uvicorn.error")


class RequestFilter:
    """Refuse requests from other machines except to the silos' interface, and requests that are too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        path = str(scope.get("path", ""))
        status, reason = 0, ""
        if scope["type"] != "lifespan" and path.startswith(FLEET):
            status, reason = _check_length(scope, LARGEST_PIECE + NOTE if path == PUSH_OBJECT else NOTE)
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


def main() -> None:
    """Run the SuperLink with the filter before all its interfaces."""
    inner = extensions.get_middleware

    def layers() -> tuple[Middleware, ...]:
        return (Middleware(RequestFilter), *inner())

    extensions.get_middleware = layers
    # these would open further ports, without the filter
    for variable in (FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API):
        os.environ.pop(variable, None)
    check_filter(interfaces)
    ssl.SSLContext.sslobject_class = LoggedTLS
    flower_superlink()


def check_filter(flowers: Any) -> None:
    """Refuse to start if Flower would not put the filter before everything else."""
    if [layer.cls for layer in flowers._get_middleware()][:1] != [RequestFilter]:
        raise SystemExit(
            "feddig: error: this release of Flower takes no filter before its SuperLink; install flwr>=1.41,<1.42"
        )


if __name__ == "__main__":
    main()
