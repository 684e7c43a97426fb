"""What keeps the SuperLink's memory small, however much passes through it.

Three things would let it grow. Each of Flower's connections to its database may keep 64 MB of it and map 256 MB more.
Requests leave behind objects that refer to each other, with the pieces they carried: Python frees those when it has
seen enough new objects, and does not ask how large they are. And what is freed the C library keeps for later, in each
thread apart.
"""

import ctypes
import gc
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LESS = {"cache_size": "-2000", "mmap_size": "0"}
"""What a connection to the database keeps: 2 MB, and nothing mapped."""
M_MMAP_THRESHOLD = -3
"""The number by which glibc knows the size from which memory is given back as soon as it is free."""
LARGE = 1 << 18
OFTEN = 1 << 20
"""Bytes that pass between two sweeps: less than a piece has."""


class Sweep:
    """Frees what requests leave behind, as often as so many bytes have passed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app, self._passed, self._is_first = app, OFTEN, True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and weigh what comes and goes."""

        async def weighed_receive() -> Message:
            return self._weighed(await receive())

        async def weighed_send(message: Message) -> None:
            await send(self._weighed(message))

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await self._app(scope, weighed_receive, weighed_send)
        if self._passed >= OFTEN:
            self._passed = 0
            gc.collect()
            if self._is_first:
                # all that stays is here by now, and no sweep needs to look at it again: that takes 0.1 s each time
                gc.freeze()
                self._is_first = False

    def _weighed(self, message: Message) -> Message:
        self._passed += len(message.get("body", b""))
        return message


def keep_little(database: Any) -> None:
    """Have Flower's connections to its database keep less of it in memory."""
    settings = dict(getattr(database, "SQLITE_PRAGMAS", ()))
    if missing := LESS.keys() - settings.keys():
        raise SystemExit(
            f"feddig: error: this release of Flower does not set {', '.join(sorted(missing))} of its database; "
            "install flwr>=1.41,<1.42"
        )
    database.SQLITE_PRAGMAS = tuple((settings | LESS).items())


def give_back_at_once() -> None:
    """Have the C library return large memory to the system when it is freed, if it is one that can be told so."""
    tell = getattr(ctypes.CDLL(None), "mallopt", None)
    if tell is not None:
        tell(M_MMAP_THRESHOLD, LARGE)
