"""Flower's SuperLink behind a gate: from other machines only the door for silos is open.

A SuperLink serves three interfaces on one port. The silos' (/v1/fleet) asks for a registered key. Those by which runs
are started and keys are registered (/v1/control) and by which apps talk (/v1/runtime) ask for nothing, so whoever
reaches the port could run any program on the moderator's machine. Here they answer on this machine only.
"""

import ipaddress
import logging

from flwr.superlink import extensions
from flwr.superlink.cli.flower_superlink import flower_superlink
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

FLEET = "/v1/fleet/"

log = logging.getLogger("uvicorn.error")


class Gate:
    """Lets requests from other machines through to the silos' interface only."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        path, sender = str(scope.get("path", "")), scope.get("client")
        if scope["type"] == "lifespan" or path.startswith(FLEET) or _is_here(sender):
            await self._app(scope, receive, send)
            return
        log.warning("refused: %s asked for %s, which answers on this machine only", sender, path[:100])
        if scope["type"] == "http":
            await PlainTextResponse("not from here", status_code=403)(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})


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
    flower_superlink()


if __name__ == "__main__":
    main()
