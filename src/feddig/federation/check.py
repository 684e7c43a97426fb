"""Look at a party: check before it connects that it can take part, and say what a silo knows about its federation.

The check covers its files, its data, its disk, its clock, and the way to the moderator. A silo's status is read from
its own folder, without its data and without the moderator.
"""

import shutil
import socket
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from feddig.digest.digest_file import read_digest
from feddig.errors import FedDigError
from feddig.federation.certificates import read_certificate
from feddig.federation.client_app import is_finished, open_folder
from feddig.federation.contract import Contract, read_contract
from feddig.federation.folders import FederationFolder, ModeratorFolder, SiloFolder
from feddig.federation.processes.network import clock_difference, find_fault, reaches
from feddig.federation.processes.processes import running
from feddig.federation.silo import count_answers
from feddig.federation.silo_data import SiloFile, check_folder, read_silo_file
from feddig.files import content_hash
from feddig.privacy.ledger import Ledger
from feddig.runs.release import ledger_of

AHEAD, BEHIND = 5.0, 300.0
"""Seconds: with a clock that differs by more, Flower takes a silo's messages for old ones that are sent again."""
CLOCK_PAUSES = (2.0, 5.0)
"""Seconds before it is asked again: a moderator's process that was stopped says an old time in its first answer."""


def check_party(path: Path) -> Iterator[str]:
    """Check the party whose folder this is, or each of a federation's; yield a line for whatever is right."""
    whole = FederationFolder(path)
    if whole.moderator.path.is_dir():
        yield from check_party(whole.moderator.path)
        members = read_contract(whole.moderator.contract).members
        removed = [member.name for member in members if member.removed is not None]
        for silo in map(SiloFolder, sorted((whole.path / "silos").iterdir())):
            if not silo.key.is_file():
                yield f"{silo.name}: only the silo has its key, and checks its own folder"
            elif silo.name not in removed:
                yield from check_silo(silo)
    elif SiloFolder(path).silo_file.exists():
        silo = SiloFolder(path)
        yield from check_silo(silo)
        yield check_way(check_folder(silo), silo)
    else:
        yield from check_moderator(ModeratorFolder(path))


def check_silo(folder: SiloFolder) -> Iterator[str]:
    """Check a silo's files, load its data, and look at its disk."""
    contract = check_folder(folder)
    yield _say_contract(contract)
    silo = open_folder(str(folder.path), contract.hash)
    train, validation = len(silo.site.silo.samples), len(silo.validation)
    yield f"{silo.file.name}: {train:,} images to train on, {validation:,} for validation, of {silo.file.data.path}"
    digest = "its digest is made" if folder.digest.exists() else "no digest yet"
    yield f"{silo.file.name}: {digest}; {_check_disk(folder.path, contract)}"


def check_way(contract: Contract, folder: SiloFolder) -> str:
    """Check that the moderator answers, that it is the right one, and that its clock says the same."""
    if fault := find_fault(contract.address, folder.ca):
        raise FedDigError(
            f"{contract.address}: does not answer ({fault}); ask whether the moderator runs there, and whether a "
            "firewall is in the way"
        )
    return f"{contract.address} is the moderator, and answers; {check_clock(contract, folder)}"


def check_clock(contract: Contract, folder: SiloFolder) -> str:
    """Check that the clock here differs little from the moderator's."""
    for pause in (*CLOCK_PAUSES, 0.0):
        ahead = clock_difference(contract.address, folder.ca)
        if -BEHIND < ahead < AHEAD:
            break
        time.sleep(pause)
    else:
        said = f"{abs(ahead):.0f} s {'ahead of' if ahead > 0 else 'behind'}"
        raise FedDigError(
            f"the clock here is {said} the moderator's, which would refuse this silo; set both by NTP"
        )
    return "clocks agree"


def check_moderator(folder: ModeratorFolder) -> Iterator[str]:
    """Check the moderator's files, its test images, its certificate, its port and its disk."""
    # a silo's node, which needs the rest of this module, imports none of these
    from feddig.federation.flower_1_41.control import own_address
    from feddig.federation.moderator_setup import set_up_moderator
    from feddig.federation.processes import moderator_process

    contract = moderator_process.check_folder(folder)
    yield _say_contract(contract)
    setup = set_up_moderator(contract, folder.test_set)
    tested = "silos measure accuracy" if setup.test is None else f"{len(setup.test):,} test images"
    ends = read_certificate(folder.certificate).not_valid_after_utc
    if ends < datetime.now(UTC):
        raise FedDigError(f"{folder.certificate}: has expired; renew it with `feddig federation renew`")
    yield f"moderator: {tested}; its certificate is valid until {ends:%Y-%m-%d}; {_check_disk(folder.path, contract)}"
    port = int(contract.address.rpartition(":")[2])
    try:
        socket.create_server(("", port)).close()
        yield f"moderator: port {port} is free"
    except OSError as error:
        if not reaches(own_address(contract), folder.ca):
            raise FedDigError(f"port {port}: {error.strerror}; end the program that listens there") from None
        yield f"moderator: it runs, and answers on port {port}"


def _say_contract(contract: Contract) -> str:
    experiment = contract.experiment
    return (
        f"contract {contract.hash[:12]}, version {contract.version}: {contract.name}, {len(contract.active)} silos, "
        f"{experiment.training.rounds} rounds of {experiment.algorithm.name}"
    )


def _check_disk(path: Path, contract: Contract) -> str:
    """Check that there is room for a digest and as much again for models."""
    free, needed = shutil.disk_usage(path).free, 2 * contract.largest_digest
    if free < needed:
        raise FedDigError(
            f"{path}: {free / 1e6:,.0f} MB are free, and {needed / 1e6:,.0f} MB are needed; make room"
        )
    return f"{free / 1e9:,.0f} GB are free"


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
    if file.data.rehearsal:
        return folder.ledger
    # found by the data's place: to find it by the content, all data would have to be read
    return ledger_of(file.data.path, file.data.ledger, content_hash(str(file.data.path.resolve()).encode()))


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
