"""Read replies over Flower's grid so that none takes more memory or time than it may.

Flower cuts a message into pieces: chunks of its arrays, and small ones that say how they belong together. By itself it
pulls a reply into memory whole, however large it is, waits up to two hours for pieces that were announced but not sent,
and raises an exception if the reply cannot be put together. Here only the announcements are asked for as Flower does
it. Then the pieces that are there are pulled one by one, and each is refused by the length in the head of its HTTP
response before its body is read. An array may name the same chunk many times, so that a reply of few bytes could
ask for any amount of memory: that is checked before the array is put together.
"""

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from flwr.app import Array, Message, RecordDict
from flwr.serverapp import Grid

from feddig.federation.flower_1_41 import names
from feddig.federation.flower_1_41.names import (
    CANNOT_ANSWER,
    OTHER_CONTRACT,
    SERVER_APP,
    check_flower,
    http_client,
    unfit,
)

CHUNK = int(names.CHUNK_SIZE.get())
"""Bytes of an array that Flower sends in one piece."""
NOTE = 1 << 16
"""Bytes that any other piece may have, and that an array's piece may have around its chunk."""
LARGEST_PIECE = CHUNK + NOTE
OTHER_PIECES = 16
"""How many pieces of a reply may be no chunks; six are needed."""
LONGEST_REASON = 300
NO_OBJECT = "0" * 64
"""A name that no piece has."""

Limits = Mapping[str, int | None]
"""By message, how many bytes the arrays of its reply may have; None: only whether a reply came is asked for."""

log = logging.getLogger("feddig")


class RefusedError(Exception):
    """A reply is larger than it may be, or cannot be put together."""


@dataclass(frozen=True)
class Answer:
    """What came for a message: its content, or why there is none; neither if only its arrival was asked for."""

    name: str
    """Of the message that it answers."""
    content: RecordDict | None = None
    fault: str = ""
    expired: bool = False
    """Whether the SuperLink has deleted the message."""
    cannot_answer: bool = False
    """Whether the silo itself says that it cannot answer."""
    other_contract: bool = False
    """Whether that is because it holds another contract than the moderator."""


class Pieces:
    """The pieces of one reply, whose arrays may have `largest` bytes together."""

    def __init__(self, head: str, names_of_pieces: Iterable[str], largest: int) -> None:
        self._head, self._largest, self._held = head, largest, dict[str, bytes]()
        self.missing = list(dict.fromkeys(names_of_pieces))
        """Names of the pieces that are not here yet."""
        # twice, because the sender may cut into smaller chunks than we do
        most = 2 * (largest // CHUNK + 1) + OTHER_PIECES
        if len(self.missing) > most:
            raise RefusedError(
                f"it comes in {len(self.missing):,} pieces, and {largest:,} bytes take no more than {most:,}"
            )

    @property
    def room(self) -> int:
        """How many bytes the next piece may have."""
        held = sum(map(len, self._held.values()))
        return min(LARGEST_PIECE, self._largest + NOTE - held)

    def add(self, name: str, piece: bytes) -> None:
        """Add a piece."""
        if len(piece) > self.room:
            raise RefusedError(f"it has more than {self._largest:,} bytes")
        if len(piece) > NOTE and not piece.startswith(b"ArrayChunk "):
            raise RefusedError(f"it has {len(piece):,} bytes in a piece that belongs to no array")
        self.missing.remove(name)
        self._held[name] = piece

    def assemble(self) -> RecordDict:
        """Put the reply together, if the result is not too large."""
        try:
            unfolded = sum(map(self._array_size, self._held.values()))
            if unfolded > self._largest + NOTE:
                raise RefusedError(f"its arrays unfold to {unfolded:,} bytes, more than {self._largest:,}")
            message = names.ASSEMBLE.get()(self._head, self._held)
        except RefusedError:
            raise
        except Exception as error:
            # the sender chooses in what way it is broken, and no way may end the moderator
            raise RefusedError(f"it cannot be put together ({type(error).__name__})") from None
        if not isinstance(message, Message) or not message.has_content():
            raise RefusedError("it has no content")
        return message.content

    def _array_size(self, piece: bytes) -> int:
        """Return how many bytes the array has that a piece describes; 0 if it describes none."""
        kind, chunks, _ = names.OBJECT_HEAD.get()(piece)
        if kind != Array.__qualname__:
            return 0
        lengths = [len(self._held[chunk]) for chunk in chunks]
        places = json.loads(names.OBJECT_BODY.get()(piece, Array))["arraychunk_ids"]
        return sum(lengths[place] for place in places)


class ReplyReader(Protocol):
    """Reads replies to messages."""

    def pull(self, limits: Limits, until: float) -> list[Answer]:
        """Return what has come for these messages; read no longer than until that moment."""
        ...


def open_reader(grid: Grid) -> ReplyReader:
    """Return the reader for this grid; refuse a grid whose replies cannot be measured."""
    check_flower(SERVER_APP)
    if isinstance(grid, names.HTTP_GRID.get()):
        return MeasuringReader(grid)
    if isinstance(grid, Grid) and not isinstance(grid, names.IN_MEMORY_GRID.get()):
        raise unfit(f"replies come through {type(grid).__name__}")
    return PlainReader(grid)


class PlainReader:
    """Reads replies as the grid gives them: in a simulation they are in this machine's memory already."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def pull(self, limits: Limits, until: float) -> list[Answer]:
        """Return what has come."""
        return [_answer(reply) for reply in self._grid.pull_messages(list(limits))] if limits else []


def _answer(reply: Any) -> Answer:
    name = reply.metadata.reply_to_message_id
    return _failed(name, reply.error) if reply.has_error() else Answer(name, reply.content)


def _failed(name: str, error: Any) -> Answer:
    # the sender chooses the text, and it is shown in terminals
    shown = "".join(one if one.isprintable() else " " for one in str(error.reason))
    return Answer(
        name,
        fault=" ".join(shown.split())[:LONGEST_REASON] or "failed",
        expired=error.code == names.MESSAGE_UNAVAILABLE.get(),
        cannot_answer=error.code in (CANNOT_ANSWER, OTHER_CONTRACT),
        other_contract=error.code == OTHER_CONTRACT,
    )


@dataclass(frozen=True)
class _Announced:
    """A reply that the SuperLink has announced: its own name there, and the tree of its pieces."""

    own_name: str
    tree: Any


class MeasuringReader:
    """Reads replies from a SuperLink piece by piece."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid
        self._room = NOTE
        """How many bytes the next response may have."""
        self._client: Any = None
        self._announced: dict[str, _Announced] = {}
        self._arriving: dict[str, Pieces] = {}
        self._connect()

    def pull(self, limits: Limits, until: float) -> list[Answer]:
        """Return what has come for these messages, pulled piece by piece while there is time."""
        if not limits:
            return []
        self._connect()
        answers = list(self._ask_what_came(limits))
        for name in [name for name in self._announced if name in limits]:
            answer = self._take(name, limits[name], until)
            if answer is not None:
                self._forget(name)
                answers.append(answer)
        return answers

    def _ask_what_came(self, limits: Limits) -> Iterator[Answer]:
        """Ask the SuperLink which replies there are; it announces each of them once."""
        unknown = [name for name in limits if name not in self._announced]
        if not unknown:
            return
        self._room = NOTE * (len(unknown) + 1)
        try:
            told = self._client.PullMessages(names.PULL_MESSAGES.get()(message_ids=unknown))
        except RefusedError as error:
            log.warning("what came from %d silos is refused, it is not known whose: %s", len(unknown), error)
            return
        for message, tree in zip(told.messages_list, told.message_object_trees, strict=True):
            name = message.metadata.reply_to_message_id
            self._announced[name] = _Announced(message.metadata.message_id, tree)
            if message.HasField("error"):
                self._forget(name)
                yield _failed(name, message.error)

    def _take(self, name: str, largest: int | None, until: float) -> Answer | None:
        """Pull as much of a reply as is there; return None while it is not whole."""
        if largest is None:
            return Answer(name, fault="it was not whole in time" if name in self._arriving else "")
        try:
            if name not in self._arriving:
                one = self._announced[name]
                parts = [part.object_id for part in names.OBJECT_TREE.get()(one.tree)]
                self._arriving[name] = Pieces(one.own_name, parts, largest)
            pieces = self._arriving[name]
            while pieces.missing:
                if time.monotonic() >= until or not self._pull_next(pieces):
                    return None
            return Answer(name, pieces.assemble())
        except RefusedError as error:
            return Answer(name, fault=f"its reply is refused: {error}")

    def _pull_next(self, pieces: Pieces) -> bool:
        """Pull the next piece; return whether it was there."""
        name = pieces.missing[0]
        # a response has a few bytes more than its piece
        self._room = pieces.room + NOTE
        found = self._client.PullObject(self._request(name))
        if not found.object_found:
            raise RefusedError("it is not whole, and no more of it will come")
        if not found.object_available:
            return False
        pieces.add(name, found.object_content)
        return True

    def _request(self, name: str) -> Any:
        return names.PULL_OBJECT.get()(node=self._grid.node, run_id=self._grid.run.run_id, object_id=name)

    def _forget(self, name: str) -> None:
        """Drop a reply, also on the SuperLink, which would keep it until the run ends."""
        self._arriving.pop(name, None)
        own_name = self._announced.pop(name).own_name
        request = names.CONFIRM_RECEIVED.get()(
            node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=own_name
        )
        self._client.ConfirmMessageReceived(request)

    def _connect(self) -> None:
        """Have all responses to this grid's requests measured, and try that it works."""
        client, http = http_client(self._grid)
        if client is self._client:
            return
        hooks = http.event_hooks
        http.event_hooks = {**hooks, "response": [*hooks["response"], self._measure]}
        self._client, self._room = client, -1
        try:
            self._client.PullObject(self._request(NO_OBJECT))
        except RefusedError:
            return
        raise unfit("its responses are read before they can be measured")

    def _measure(self, response: httpx.Response) -> None:
        """Refuse a response by the length in its head, before its body is read."""
        if response.request.url.path not in (names.PULL_MESSAGES_PATH, names.PULL_OBJECT_PATH):
            return
        length = response.headers.get("content-length", "")
        if not length.isdecimal() or "content-encoding" in response.headers:
            raise RefusedError("it does not tell its length")
        if int(length) > self._room:
            raise RefusedError(f"{int(length):,} bytes come at once, more than {self._room:,}")
