"""Flower's SuperLink behind a gate: from other machines only the door for silos is open, and not to everything.

A SuperLink serves three interfaces on one port. The silos' (/v1/fleet) asks for a registered key. Those by which runs
are started and keys are registered (/v1/control) and by which apps talk (/v1/runtime) ask for nothing, so whoever
reaches the port could run any program on the moderator's machine. Here they answer on this machine only.

Whatever comes through the silos' door is read into memory before it is asked whose it is. So it must say how long it
is, and be no longer than a piece of a reply, or than an announcement of one.
"""

import ipaddress
import logging
import os
from typing import Any

from flwr.common.constant import FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API
from flwr.superlink import extensions
from flwr.superlink import main as interfaces
from flwr.superlink.cli.flower_superlink import flower_superlink
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from feddig.flower.pieces import LARGEST_PIECE, NOTE

FLEET = "/v1/fleet/"
PIECES = "/v1/fleet/push-object"

log = logging.getLogger("uvicorn.error")


class Gate:
    """Lets requests from other machines through to the silos' interface only, and to that only what is not too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        path, sender = str(scope.get("path", "")), scope.get("client")
        status, reason = 0, ""
        if scope["type"] != "lifespan" and path.startswith(FLEET):
            status, reason = _is_too_long(scope, LARGEST_PIECE + NOTE if path == PIECES else NOTE)
        elif scope["type"] != "lifespan" and not _is_here(sender):
            status, reason = 403, "it answers on this machine only"
        if not status:
            await self._app(scope, receive, send)
            return
        log.warning("refused: %s asked for %s: %s", sender, path[:100], reason)
        if scope["type"] == "http":
            await PlainTextResponse(reason, status_code=status)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


def _is_too_long(scope: Scope, largest: int) -> tuple[int, str]:
    """Give the HTTP status with which a request of more bytes is refused, and why; 0 where it is not."""
    headers = dict(scope.get("headers", ()))
    length = headers.get(b"content-length", b"0")
    if b"transfer-encoding" in headers or not length.isdigit():
        return 411, "it does not say how long it is"
    if int(length) > largest:
        return 413, f"it has {int(length):,} bytes, more than {largest:,}"
    return 0, ""


def _is_here(sender: object) -> bool:
    try:
        return isinstance(sender, tuple) and ipaddress.ip_address(sender[0]).is_loopback
    except ValueError:
        return False


def main() -> None:
    """Run the SuperLink with the gate as its outermost layer."""
    inner = extensions.get_middleware

    def layers() -> tuple[Middleware, ...]:
        return (Middleware(Gate), *inner())

    extensions.get_middleware = layers
    for other_door in (FLWR_INTERNAL_GRPC_CONTROL_API, FLWR_INTERNAL_GRPC_FLEET_API):
        os.environ.pop(other_door, None)
    check_gate(interfaces)
    flower_superlink()


def check_gate(flowers: Any) -> None:
    """Refuse to open the doors if Flower would not put the gate before them."""
    if [layer.cls for layer in flowers._get_middleware()][:1] != [Gate]:
        raise SystemExit(
            "feddig: error: this release of Flower takes no gate before its SuperLink; install flwr>=1.41,<1.42"
        )


if __name__ == "__main__":
    main()
