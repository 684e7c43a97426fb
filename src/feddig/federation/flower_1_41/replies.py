"""The pieces that a reply comes in, and what is checked about them before they are put together.

Flower cuts a message into objects: chunks of its arrays, and small ones that say how they belong together. An array may
name the same chunk many times, so that a reply of few bytes can ask for any amount of memory.

Taking replies in over Flower's grid so that none takes more memory or time than it may.

Left to itself, Flower pulls a reply into memory whole, however large it is, waits up to two hours for what has been
announced but not sent, and ends with an exception if it cannot be put together. So here only the announcements are
asked for as Flower does it; then the pieces are pulled one by one, as far as they are there, each measured by
the length that its HTTP response tells before any of it is read.
"""

import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx
from flwr.app import Array, Message, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.superlink.grid import HttpGrid, InMemoryGrid

from feddig.errors import FedDigError

CHUNK = int(FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE)
"""Bytes of an array that Flower sends in one piece."""
NOTE = 1 << 16
"""Bytes of any other piece, and of all that surrounds an array's."""
LARGEST_PIECE = CHUNK + NOTE
FEW = 16
"""Pieces of a reply that are not chunks: six, and some room."""


class RefusedError(Exception):
    """A reply that is larger than it may be, or cannot be put together."""


class Pieces:
    """A reply that comes in piece by piece, of which the arrays may have so many bytes."""

    def __init__(self, head: str, names: Iterable[str], largest: int) -> None:
        self._head, self._largest, self._held = head, largest, dict[str, bytes]()
        self.missing = list(dict.fromkeys(names))
        """Names of the pieces that are not here yet."""
        # twice: the sender may cut into smaller ones than we do
        most = 2 * (largest // CHUNK + 1) + FEW
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
        """Take in a piece."""
        if len(piece) > self.room:
            raise RefusedError(f"it has more than {self._largest:,} bytes")
        if len(piece) > NOTE and not piece.startswith(b"ArrayChunk "):
            raise RefusedError(f"it has {len(piece):,} bytes in a piece that belongs to no array")
        self.missing.remove(name)
        self._held[name] = piece

    def assemble(self) -> RecordDict:
        """Put the reply together, if what comes out is not too large."""
        try:
            unfolded = sum(map(self._unfolded, self._held.values()))
            if unfolded > self._largest + NOTE:
                raise RefusedError(f"its arrays unfold to {unfolded:,} bytes, more than {self._largest:,}")
            message = inflate_object_from_contents(self._head, self._held)
        except RefusedError:
            raise
        except Exception as error:
            # whoever sends it chooses how it is broken; it must not end the moderator
            raise RefusedError(f"it cannot be put together ({type(error).__name__})") from None
        if not isinstance(message, Message) or not message.has_content():
            raise RefusedError("it has no content")
        return message.content

    def _unfolded(self, piece: bytes) -> int:
        """Tell how many bytes the array that a piece describes will have; 0 where it describes none."""
        kind, chunks, _ = get_object_head_values_from_object_content(piece)
        if kind != Array.__qualname__:
            return 0
        lengths = [len(self._held[chunk]) for chunk in chunks]
        named = json.loads(get_object_body(piece, Array))["arraychunk_ids"]
        return sum(lengths[place] for place in named)


log = logging.getLogger("feddig")

MEASURED = ("/v1/runtime/pull-messages", "/v1/runtime/pull-object")
LONGEST_REASON = 300
NOBODYS = "0" * 64
"""A name that no piece has."""

Limits = Mapping[str, int | None]
"""By message, how many bytes the arrays of its reply may have; None: that it came is all that is wanted of it."""


@dataclass(frozen=True)
class Answer:
    """What came for a message: its content, or why there is none, or neither where nothing was wanted of it."""

    name: str
    """Of the message that it answers."""
    content: RecordDict | None = None
    fault: str = ""
    expired: bool = False
    """Whether the SuperLink has thrown the message away."""


class Intake(Protocol):
    """A way for replies to come in."""

    def pull(self, limits: Limits, until: float) -> list[Answer]:
        """Take in what has come for these messages, and go on no longer than until that moment."""
        ...


def open_intake(grid: Grid) -> Intake:
    """Choose the way for this grid; one of Flower's whose replies we could not measure is refused."""
    if isinstance(grid, HttpGrid):
        return MeasuredIntake(grid)
    if isinstance(grid, Grid) and not isinstance(grid, InMemoryGrid):
        raise FedDigError(f"{_unfit()}: replies come through {type(grid).__name__}; {_REMEDY}")
    return PlainIntake(grid)


class PlainIntake:
    """Takes replies as the grid gives them: in a simulation they are in this machine's memory already."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def pull(self, limits: Limits, until: float) -> list[Answer]:
        """Take in what has come."""
        return [_answer(reply) for reply in self._grid.pull_messages(list(limits))] if limits else []


def _answer(reply: Any) -> Answer:
    name = reply.metadata.reply_to_message_id
    return _failed(name, reply.error) if reply.has_error() else Answer(name, reply.content)


def _failed(name: str, error: Any) -> Answer:
    reason = " ".join(str(error.reason).split())[:LONGEST_REASON]
    return Answer(name, fault=reason or "failed", expired=error.code == ErrorCode.MESSAGE_UNAVAILABLE)


@dataclass(frozen=True)
class _Announced:
    """A reply that the SuperLink has told of: its own name there, and what it is made of."""

    own_name: str
    made_of: Any


class MeasuredIntake:
    """Takes replies from a SuperLink piece by piece."""

    def __init__(self, grid: HttpGrid) -> None:
        self._grid = grid
        self._room = NOTE
        """How many bytes the next response may have."""
        self._client: Any = None
        self._announced: dict[str, _Announced] = {}
        self._arriving: dict[str, Pieces] = {}
        self._connect()

    def pull(self, limits: Limits, until: float) -> list[Answer]:
        """Take in what has come for these messages, piece by piece, while there is time."""
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
        """Have the SuperLink tell which replies there are; what it says is told once."""
        unknown = [name for name in limits if name not in self._announced]
        if not unknown:
            return
        self._room = NOTE * (len(unknown) + 1)
        try:
            told = self._client.PullMessages(PullAppMessagesRequest(message_ids=unknown))
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
        """Take in as much of a reply as is there; None while it is not whole."""
        if largest is None:
            return Answer(name, fault="it was not whole in time" if name in self._arriving else "")
        try:
            if name not in self._arriving:
                one = self._announced[name]
                names = [part.object_id for part in iterate_object_tree(one.made_of)]
                self._arriving[name] = Pieces(one.own_name, names, largest)
            pieces = self._arriving[name]
            while pieces.missing:
                if time.monotonic() >= until or not self._pull_next(pieces):
                    return None
            return Answer(name, pieces.assemble())
        except RefusedError as error:
            return Answer(name, fault=f"its reply is refused: {error}")

    def _pull_next(self, pieces: Pieces) -> bool:
        """Pull the next piece, if it is there."""
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

    def _request(self, name: str) -> PullObjectRequest:
        return PullObjectRequest(node=self._grid.node, run_id=self._grid.run.run_id, object_id=name)

    def _forget(self, name: str) -> None:
        """Let go of a reply, also on the SuperLink, where it would lie until the run ends."""
        self._arriving.pop(name, None)
        own_name = self._announced.pop(name).own_name
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=own_name
            )
        )

    def _connect(self) -> None:
        """Have all responses to this grid's requests measured, and see that they really are."""
        client = getattr(self._grid, "_runtime_client", None)
        if client is not None and client is self._client:
            return
        http = getattr(client, "_client", None)
        if not isinstance(http, httpx.Client):
            raise FedDigError(f"{_unfit()}: its grid has no HTTP client where it was; {_REMEDY}")
        hooks = http.event_hooks
        http.event_hooks = {**hooks, "response": [*hooks["response"], self._measure]}
        self._client, self._room = client, -1
        try:
            self._client.PullObject(self._request(NOBODYS))
        except RefusedError:
            return
        raise FedDigError(f"{_unfit()}: its responses are read before they can be measured; {_REMEDY}")

    def _measure(self, response: httpx.Response) -> None:
        """Refuse a response by what its head says, before its body is read."""
        if response.request.url.path not in MEASURED:
            return
        length = response.headers.get("content-length", "")
        if not length.isdecimal() or "content-encoding" in response.headers:
            raise RefusedError("it does not tell its length")
        if int(length) > self._room:
            raise RefusedError(f"{int(length):,} bytes come at once, more than {self._room:,}")


_REMEDY = "install a release of Flower that FedDig knows, flwr>=1.41,<1.42"


def _unfit() -> str:
    from importlib.metadata import version

    return f"flwr {version('flwr')} cannot be used"
