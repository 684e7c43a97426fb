"""The gate before Flower's SuperLink: from other machines only the door for silos is open, and not to everything.

A SuperLink serves three interfaces on one port. The silos' (/v1/fleet) asks for a registered key. Those by which runs
are started and keys are registered (/v1/control) and by which apps talk (/v1/runtime) ask for nothing, so whoever
reaches the port could run any program on the moderator's machine. Here they answer on this machine only.

Whatever comes through the silos' door is read into memory before it is asked whose it is. So it must say how long it
is, and be no longer than a piece of a reply, or than an announcement of one.
"""

import ipaddress
import logging

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from feddig.federation.flower_1_41.intake import LARGEST_PIECE, NOTE

FLEET = "/v1/fleet/"
PUSHED = "/v1/fleet/push-object"
"""Where a silo's node sends the pieces of a reply."""

log = logging.getLogger("uvicorn.error")


class Gate:
    """Lets requests from other machines through to the silos' interface only, and to that only what is not too long."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        path = str(scope.get("path", ""))
        status, reason = 0, ""
        if scope["type"] != "lifespan" and path.startswith(FLEET):
            status, reason = _is_too_long(scope, LARGEST_PIECE + NOTE if path == PUSHED else NOTE)
        elif scope["type"] != "lifespan" and not _is_here(scope.get("client")):
            status, reason = 403, "it answers on this machine only"
        if status:
            await refuse(status, reason, scope, receive, send)
        else:
            await self._app(scope, receive, send)


async def refuse(status: int, reason: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request with an HTTP status and why, and log it."""
    log.warning("refused: %s asked for %s: %s", scope.get("client"), str(scope.get("path", ""))[:100], reason)
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
