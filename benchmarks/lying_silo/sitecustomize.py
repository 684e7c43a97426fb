"""Make a silo's client process send a wrong reply after training, hang, or die while it replies.

Python imports this module at its start if this folder is on PYTHONPATH; chaos.py and the tests set that for the
parties that they start. It changes only the client process of a silo whose folder has a file `lie` with a lie's name.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

HUGE = 600_000_000
"""Bytes of a reply that would fill the moderator's memory."""


def lie_now() -> str:
    """Return the name in this party's file `lie`, or an empty text."""
    file = Path(os.environ.get("FEDDIG_PARTY", ""), "lie")
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def change_replies() -> None:
    """Replace the functions that pack replies by functions that may lie."""
    import torch
    from flwr.app import Array, ArrayRecord, RecordDict
    from flwr.app.message import array

    from feddig.federation import client_app
    from feddig.federation.flower_1_41 import names
    from feddig.federation.silo import DeployedSilo
    from feddig.federation.wire import pack_arrays, pack_bytes, read_bytes

    def fail(reply: Any) -> Any:
        raise RuntimeError("the file `lie` asks for this failure")

    def hang(reply: Any) -> Any:
        time.sleep(600)
        return reply

    replies: dict[str, Callable[[Any], Any]] = {
        "nan": lambda reply: replace(reply, update=torch.full_like(reply.update, torch.nan)),
        "too short": lambda reply: replace(reply, update=reply.update[:-1]),
        "too large": lambda reply: replace(reply, update=torch.full_like(reply.update, 3e38)),
        "no steps": lambda reply: replace(reply, steps=0),
        "another round": lambda reply: replace(reply, round=reply.round + 1),
        "another silo": lambda reply: replace(reply, silo=reply.silo + 1),
        "exception": fail,
        "hang": hang,
    }

    def add_zeros(content: RecordDict) -> None:
        """Reply with an array whose chunks are all the same small chunk, which is sent once."""
        array.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE = 1 << 16
        content["model"] = pack_arrays({"update": torch.zeros(HUGE // 4)})

    def break_header(content: RecordDict) -> None:
        """Reply with an array whose header is invalid."""
        header = b"{[]: 1}"
        file = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
        content["model"] = ArrayRecord({"update": Array("float32", (1,), "numpy.ndarray", file)})

    contents: dict[str, Callable[[RecordDict], None]] = {
        "broken header": break_header,
        "huge update": lambda content: content.update(model=pack_arrays({"update": torch.rand(HUGE // 4)})),
        "huge zeros": add_zeros,
    }

    def damage(content: RecordDict) -> RecordDict:
        """Change one bit of a digest's file."""
        file = bytearray(read_bytes(content, "digest", "file", HUGE))
        file[-2] ^= 1
        return RecordDict({"digest": pack_bytes("file", bytes(file))})

    digests: dict[str, Callable[[RecordDict], RecordDict]] = {
        "huge digest": lambda content: RecordDict({"digest": pack_bytes("file", os.urandom(HUGE))}),
        "damaged digest": damage,
    }
    app: Any = client_app
    silos: Any = DeployedSilo
    pack, give, hand_over = app.pack_reply, silos.give_digest, names.PUSH_PARTS.get()

    def pack_reply(reply: Any) -> RecordDict:
        lie = lie_now()
        content = pack(replies.get(lie, lambda reply: reply)(reply))
        contents.get(lie, lambda content: None)(content)
        return content

    # Flower checks the names of the parameters
    def begin_to_hand_over(objects: Any, push_object_fn: Any, *, object_ids_to_push: set[str]) -> None:
        def push_one_and_die(name: str, piece: bytes) -> None:
            push_object_fn(name, piece)
            print(f"killed with 1 of {len(object_ids_to_push)} pieces handed over", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

        # push one at a time, because the second could be the last
        dies = lie_now() == "dies while it replies" and len(object_ids_to_push) > 2
        given: dict[str, Any] = {"object_ids_to_push": object_ids_to_push}
        hand_over(
            objects,
            push_one_and_die if dies else push_object_fn,
            **given,
            **({"max_concurrent_pushes": 1} if dies else {}),
        )

    app.pack_reply = pack_reply
    silos.give_digest = lambda silo: digests.get(lie_now(), lambda content: content)(give(silo))
    names.PUSH_PARTS.replace(begin_to_hand_over)


if "feddig.federation.flower_1_41.node" in sys.orig_argv:
    change_replies()
