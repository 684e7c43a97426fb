"""The pieces that a reply comes in, and what is checked about them before they are put together.

Flower cuts a message into objects: chunks of its arrays, and small ones that say how they belong together. An array may
name the same chunk many times, so that a reply of few bytes can ask for any amount of memory.
"""

import json
from collections.abc import Iterable

from flwr.app import Array, Message, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

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
