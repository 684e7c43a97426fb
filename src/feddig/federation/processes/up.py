"""A whole federation on this machine: the moderator and the silos, each a process of its own, watched by this one."""

import logging
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from feddig.errors import FedDigError
from feddig.federation.contract import read_contract
from feddig.federation.folders import FederationFolder
from feddig.federation.processes.lock import hold
from feddig.federation.processes.moderator_process import check_folder, is_finished
from feddig.federation.processes.processes import end, start, started_by_us, surroundings
from feddig.federation.processes.supervisor import check_folder as check_silo_folder
from feddig.federation.status import Status, read_status

MODERATOR = "moderator"
POLL_SECONDS, STOP_SECONDS = 0.5, 25.0

log = logging.getLogger("feddig")

Show = Callable[[Status], None]


@dataclass
class Party:
    """The moderator or a silo, as a process of its own."""

    name: str
    command: str
    folder: Path
    log_file: Path
    process: subprocess.Popen[bytes]


def up(
    whole: FederationFolder,
    stopping: Event,
    *,
    only: str | None = None,
    rounds_limit: int | None = None,
    show: Show = lambda status: None,
) -> bool:
    """Run a federation, or one party of it, until all rounds are done (True) or until told to stop (False)."""
    names = chosen(whole, only)
    if is_finished(whole.moderator):
        return True
    with hold(whole.path):
        parties: list[Party] = []
        try:
            for name in names:
                parties.append(_start(whole, name))
            return _watch(whole, parties, stopping, rounds_limit, show)
        finally:
            _stop(parties)


def chosen(whole: FederationFolder, only: str | None) -> list[str]:
    """Name the parties that are to run, and check that their folders are whole."""
    contract = read_contract(whole.contract)
    silos = [member.name for member in contract.members]
    if only is not None and only != MODERATOR:
        contract.number(only)
    names = [MODERATOR, *silos] if only is None else [only]
    for name in names:
        if name == MODERATOR:
            check_folder(whole.moderator)
        else:
            check_silo_folder(whole.silo(name))
    return names


def _start(whole: FederationFolder, name: str) -> Party:
    if name == MODERATOR:
        command, folder, logs = "moderator", whole.moderator.path, whole.moderator.logs
    else:
        silo = whole.silo(name)
        command, folder, logs = "silo", silo.path, silo.logs
    log_file = logs / f"{command}.log"
    return Party(name, command, folder, log_file, _launch(command, folder, log_file))


def _launch(command: str, folder: Path, log_file: Path) -> subprocess.Popen[bytes]:
    whole = [sys.executable, "-m", "feddig", "federation", command, str(folder), "--log-level", "info"]
    return start(whole, log_file, surroundings(folder, folder / "flwr"))


def _watch(
    whole: FederationFolder,
    parties: list[Party],
    stopping: Event,
    rounds_limit: int | None,
    show: Show,
) -> bool:
    """Watch the parties and tell how it goes, until nothing is left to do."""
    last: Status | None = None
    while True:
        status = read_status(whole.moderator.status)
        if status is not None and status != last:
            show(status)
            last = status
        for party in list(parties):
            if party.process.poll() is not None:
                _attend(party, parties)
        if not parties or not any(party.name == MODERATOR for party in parties):
            if is_finished(whole.moderator):
                return True
            if not parties:
                return False
        if rounds_limit is not None and status is not None and status.rounds_done >= rounds_limit:
            return status.finished
        if stopping.wait(POLL_SECONDS):
            return False


def _attend(party: Party, parties: list[Party]) -> None:
    """See to a party whose process has ended: done, given up, or killed and to be started again."""
    code = party.process.returncode
    if code == 0:
        parties.remove(party)
    elif code > 0:
        parties.remove(party)
        reason = _last_words(party.log_file)
        if party.name == MODERATOR or not parties:
            raise FedDigError(f"{party.name}: {reason}")
        log.error("%s gave up, the others go on: %s", party.name, reason)
    else:
        log.warning("%s was killed (signal %d); starting it again", party.name, -code)
        party.process = _launch(party.command, party.folder, party.log_file)


def _last_words(log_file: Path) -> str:
    said = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    return next(
        (line.removeprefix("feddig: error: ") for line in reversed(said) if line.strip()), "no reason given"
    )


def _stop(parties: list[Party]) -> None:
    """Stop the parties together, politely first, and leave nothing of them behind."""
    for party in parties:
        if party.process.poll() is None:
            party.process.terminate()
    until = time.monotonic() + STOP_SECONDS
    for party in parties:
        try:
            party.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            party.process.kill()
            party.process.wait()
        end(started_by_us(party.folder))
