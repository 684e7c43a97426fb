"""How many pieces of its reply a silo may have at the SuperLink at once: the others wait unread.

Flower reads a piece whole before it asks whose it is. But what a silo signs is the time, and it stands in the head of
the request: so here the key is known before any of the piece is read, and nobody can take another's turn.
"""

import asyncio
import binascii
import datetime
from base64 import b64decode
from collections.abc import Mapping

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.superlink.dependencies.linkstate import get_linkstate
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from feddig.federation.flower_1_41.gate import PUSHED, refuse

AT_ONCE = 4
"""Pieces of one silo; its node sends two at a time."""
PATIENCE = 30.0
"""Seconds for which the next bytes of a piece may fail to come, as from a machine that has gone."""


class Turns:
    """Lets a silo send a few pieces at a time, and nobody else any."""

    def __init__(self, app: ASGIApp, patience: float = PATIENCE) -> None:
        self._app, self._patience = app, patience
        self._turns: dict[bytes, asyncio.Semaphore] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a piece on when it is its sender's turn, and everything else at once."""
        if scope["type"] != "http" or scope["path"] != PUSHED:
            await self._app(scope, receive, send)
            return
        key = await run_in_threadpool(_registered_signer, Request(scope))
        if key is None:
            await refuse(401, "it is signed by no registered silo", scope, receive, send)
            return
        async with self._turns.setdefault(key, asyncio.Semaphore(AT_ONCE)):
            try:
                body = await _read(receive, self._patience)
            except TimeoutError:
                await refuse(408, f"nothing came for {self._patience:.0f} s", scope, receive, send)
                return
            if body is not None:
                await self._app(scope, _first(body, receive), send)


def signer(headers: Mapping[str, str]) -> bytes | None:
    """Give the key by which a request was signed just now; None where it was by none."""
    try:
        key = b64decode(headers[FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
        signature = b64decode(headers[FLEET_HTTP_SIGNATURE_HEADER], validate=True)
        time = headers[TIMESTAMP_HEADER]
        age = (now() - datetime.datetime.fromisoformat(time)).total_seconds()
        is_new = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        if is_new and verify_signature(bytes_to_public_key(key), time.encode("ascii"), signature):
            return key
    except (KeyError, ValueError, TypeError, binascii.Error):  # as Flower does, who asks again
        pass
    return None


def _registered_signer(request: Request) -> bytes | None:
    key = signer(request.headers)
    return key if key and get_linkstate(request).get_node_id_by_public_key(key) is not None else None


async def _read(receive: Receive, patience: float) -> bytes | None:
    """Give a request's whole body; None where the sender went away."""
    parts: list[bytes] = []
    while True:
        message = await asyncio.wait_for(receive(), patience)
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _first(body: bytes, receive: Receive) -> Receive:
    """Give the body to who asks first, and leave what comes then to the connection."""
    waiting = [body]

    async def receive_or_body() -> Message:
        return {"type": "http.request", "body": waiting.pop()} if waiting else await receive()

    return receive_or_body
