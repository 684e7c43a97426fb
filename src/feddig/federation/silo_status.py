"""What a silo knows about its federation: read from its own folder, without its data and without the moderator."""

from pathlib import Path
from typing import Any

from feddig.digest.digest_file import read_digest
from feddig.federation.answers import count_answers
from feddig.federation.contract import read_contract
from feddig.federation.folders import SiloFolder
from feddig.federation.processes.processes import running
from feddig.federation.result import is_finished
from feddig.federation.silo_data import SiloFile, read_silo_file
from feddig.files import content_hash
from feddig.privacy.ledger import Ledger
from feddig.runs.release import ledger_of

NODE = "feddig.federation.flower_1_41.node"


def read_silo_status(folder: SiloFolder) -> dict[str, Any]:
    """Return what a silo's folder says; `last_answered_round` counts from 0."""
    contract, file = read_contract(folder.contract), read_silo_file(folder.silo_file)
    digest = read_digest(folder.digest) if folder.digest.exists() else None
    ledger = Ledger(_ledger(folder, file))
    last, trained = count_answers(folder.answers, contract)
    # the last entry says what all of them cost together, and spells infinity as JSON can hold it
    spent = next((entry.record for entry in reversed(ledger.entries())), None)
    return {
        "federation": contract.name,
        "silo": file.silo,
        "name": file.name,
        "contract": contract.hash,
        "version": contract.version,
        "removed": contract.members[file.silo].removed is not None,
        "moderator": contract.address,
        "promise": contract.experiment.say_promise(),
        "running": bool(running(folder.path, NODE)),
        "digest": None if digest is None else digest.hash,
        "digest_bytes": None if digest is None else digest.size,
        "rounds": contract.experiment.training.rounds,
        "last_answered_round": last,
        "rounds_trained": trained,
        "finished": is_finished(folder, contract),
        "model": str(folder.model) if folder.model.exists() else None,
        "ledger": str(ledger.path) if spent else None,
        "spent_epsilon": spent["composed_epsilon"] if spent else None,
        "spent_delta": spent["composed_delta"] if spent else None,
    }


def _ledger(folder: SiloFolder, file: SiloFile) -> Path:
    if file.rehearsal:
        return folder.ledger
    # found by the data's place: to find it by the content, all data would have to be read
    return ledger_of(file.data, file.ledger, content_hash(str(file.data.resolve()).encode()))


def describe_silo(status: dict[str, Any]) -> list[str]:
    """Describe a silo's status in lines; rounds count from 1."""
    digest, last = status["digest"], status["last_answered_round"]
    answered = "none" if last is None else f"round {last + 1}"
    node = "its node does not run; start it with `feddig federation silo`"
    if status["running"]:
        node = "its node runs"
    elif status["finished"]:
        node = "the federation has ended"
    if status["removed"]:
        node = "it is removed, and not asked for anything any more"
    return [
        f"{status['federation']}: silo {status['silo']}, {status['name']}; {node}",
        status["promise"],
        f"contract: {status['contract']}, version {status['version']}, moderator at {status['moderator']}",
        f"digest: {digest[:12]}, {status['digest_bytes']:,} bytes" if digest else "digest: not made yet",
        f"last answered: {answered} of {status['rounds']} rounds",
        f"trained in {status['rounds_trained']} rounds; model: {status['model'] or 'not sent yet'}",
        _describe_ledger(status),
    ]


def _describe_ledger(status: dict[str, Any]) -> str:
    if status["ledger"] is None:
        return "ledger: no release is noted yet"
    spent = f"epsilon {status['spent_epsilon']} and delta {status['spent_delta']}"
    return f"ledger: {status['ledger']}, a record was charged {spent} so far"
