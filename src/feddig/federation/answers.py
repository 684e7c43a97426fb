"""A silo's last answer, kept on its own disk: each round is answered once, also after a restart.

Every answer to another question reveals more about the silo's data. The same question, asked again after a crash or a
lost reply, gets the same answer again.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from feddig.core.messages import Request
from feddig.errors import FedDigError
from feddig.federation.contract import Contract
from feddig.files import content_hash, hash_tensors, locked, read_tensors, write_tensors

Arrays = Mapping[str, np.ndarray]
UPDATE, SCORE = "update", "score"
"""The kinds of answers."""


def answer_once(file: Path, request: Request, answer: Callable[[], Arrays]) -> Arrays:
    """Return the answer kept in this file if it is to the same request; else make the answer, and keep it.

    Refuse another request of the round that was answered last, and any request of an earlier round.
    """
    # two processes could answer two requests of one round at once
    with locked(file.with_suffix(".lock")):
        asked, count = _hash(request), 0
        if file.exists():
            kept, facts = read_tensors(file, "answer")
            if facts["request"] == asked:
                return kept
            answered, count = int(facts["round"]), int(facts.get("count", 0))
            if request.round <= answered:
                raise FedDigError(
                    f"{file}: silo {request.silo} has answered round {answered + 1} and does not answer another "
                    f"request of round {request.round + 1}; the moderator must continue its run, or all agree on "
                    "another contract"
                )
        made = answer()
        # before it is sent: a reply that is lost must be the one that is sent again
        facts = {"round": str(request.round), "request": asked, "count": str(count + 1)}
        write_tensors(file, "answer", made, facts)
        return made


def answer_file(folder: Path, contract: Contract, kind: str) -> Path:
    """Return the file of a silo's last answer of a kind; a contract that may continue the same run has the same."""
    return folder / f"{contract.lasting_hash[:16]}-{kind}.safetensors"


def count_answers(folder: Path, contract: Contract) -> tuple[int | None, int]:
    """Return the last round that was answered under this contract (None: none), and in how many a silo trained."""
    last, trained = None, 0
    for kind in (UPDATE, SCORE):
        file = answer_file(folder, contract, kind)
        if file.exists():
            facts = read_tensors(file, "answer")[1]
            last = max(int(facts["round"]), -1 if last is None else last)
            trained = int(facts.get("count", 0)) if kind == UPDATE else trained
    return last, trained


def _hash(request: Request) -> str:
    """Hash all that an answer depends on."""
    tensors = {"weights": request.weights, **{f"state.{name}": one for name, one in request.state.items()}}
    if request.class_counts is not None:
        tensors["class_counts"] = request.class_counts
    facts = f"{request.silo} {request.round} {request.wants_class_counts}"
    return content_hash(
        facts.encode(), hash_tensors({name: one.cpu().numpy() for name, one in tensors.items()}).encode()
    )
