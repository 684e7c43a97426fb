"""A silo's app that trains as it should and then sends a wrong reply, or dies while it replies.

chaos.py and the tests start it in place of the silo's own app.

python lying_silo.py LIE [what Flower gives to the app]
"""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.app.message import array
from flwr.supernode.runtime import run_clientapp

from feddig.core.messages import Reply
from feddig.federation import client_app
from feddig.federation.flower_1_41 import local_app
from feddig.federation.silo import DeployedSilo
from feddig.federation.wire import pack_arrays, pack_bytes, read_bytes

HUGE = 600_000_000
"""Bytes of a reply that would fill the moderator's memory."""


def fail(reply: Reply) -> Reply:
    """Raise in the app."""
    raise RuntimeError("the silo's app fails, as it was told to")


LIES: dict[str, Callable[[Reply], Reply]] = {
    "nan": lambda reply: replace(reply, update=torch.full_like(reply.update, torch.nan)),
    "too short": lambda reply: replace(reply, update=reply.update[:-1]),
    "too large": lambda reply: replace(reply, update=torch.full_like(reply.update, 3e38)),
    "no steps": lambda reply: replace(reply, steps=0),
    "another round": lambda reply: replace(reply, round=reply.round + 1),
    "another silo": lambda reply: replace(reply, silo=reply.silo + 1),
    "exception": fail,
}


def add_zeros(content: RecordDict) -> None:
    """Reply with an array whose pieces are all the same small one, which is sent once."""
    array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE = 1 << 16
    content["model"] = pack_arrays({"update": torch.zeros(HUGE // 4)})


def break_header(content: RecordDict) -> None:
    """Reply with an array whose header is nonsense."""
    said = b"{[]: 1}"
    file = b"\x93NUMPY\x01\x00" + len(said).to_bytes(2, "little") + said
    content["model"] = ArrayRecord({"update": Array("float32", (1,), "numpy.ndarray", file)})


UPDATES: dict[str, Callable[[RecordDict], None]] = {
    "broken header": break_header,
    "huge update": lambda content: content.update(model=pack_arrays({"update": torch.rand(HUGE // 4)})),
    "huge zeros": add_zeros,
}


def damage(content: RecordDict) -> RecordDict:
    """Change one bit of a digest's file."""
    file = bytearray(read_bytes(content, "digest", "file", HUGE))
    file[-2] ^= 1
    return RecordDict({"digest": pack_bytes("file", bytes(file))})


DIGESTS: dict[str, Callable[[RecordDict], RecordDict]] = {
    "huge digest": lambda content: RecordDict({"digest": pack_bytes("file", os.urandom(HUGE))}),
    "damaged digest": damage,
}
DYING = "dies while it replies"


def die_while_replying() -> None:
    """Kill this process when it has handed over the first piece of its reply."""
    flowers: Any = run_clientapp
    hand_over = flowers.push_objects

    def begin_to_hand_over(
        pieces: dict[str, Any], push: Callable[[str, bytes], None], *, object_ids_to_push: set[str]
    ) -> None:
        def push_one_and_die(name: str, piece: bytes) -> None:
            push(name, piece)
            print(f"killed with 1 of {len(object_ids_to_push)} pieces handed over", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        # one at a time, because a second one could be the last
        hand_over(pieces, push_one_and_die, object_ids_to_push=object_ids_to_push, max_concurrent_pushes=1)

    flowers.push_objects = begin_to_hand_over


def main() -> None:
    """Run the silo's app with a wrong reply after training, or to the request for its digest."""
    app: Any = client_app
    lie = sys.argv.pop(1)
    honest = app.pack_reply

    def pack_reply(reply: Reply) -> RecordDict:
        if lie == DYING:
            die_while_replying()
        content = honest(LIES[lie](reply) if lie in LIES else reply)
        UPDATES.get(lie, lambda content: None)(content)
        return content

    silos: Any = DeployedSilo
    give = silos.give_digest
    if lie in DIGESTS:
        silos.give_digest = lambda silo: DIGESTS[lie](give(silo))
    elif lie in LIES or lie in UPDATES or lie == DYING:
        app.pack_reply = pack_reply
    else:
        sys.exit(f"lying_silo.py: {lie!r} is no lie")
    local_app.main()


if __name__ == "__main__":
    main()
