"""Run a whole federation on this machine: moderator and silos as processes of their own, watched and displayed."""

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from feddig.errors import FedDigError
from feddig.federation.contract import Contract, read_contract
from feddig.federation.folders import FederationFolder
from feddig.federation.processes import moderator_process
from feddig.federation.processes.moderator_process import is_finished, lacking
from feddig.federation.processes.processes import (
    end,
    party_environment,
    party_lock,
    start,
    started_by_us,
    stop_programs,
)
from feddig.federation.processes.supervisor import NODE_LOG
from feddig.federation.silo_data import check_folder
from feddig.federation.status import Show, Status, read_status, show_lines, show_new_faults

MODERATOR = "moderator"
POLL_SECONDS, STOP_SECONDS = 0.2, 25.0
AT_ONCE, LOADING_SECONDS = os.cpu_count() or 1, 10.0
"""How many silos load their programs at the same time, and for how long one holds up the next.

All at once they would leave the moderator no core, and everybody waits for the moderator.
"""

log = logging.getLogger("feddig")


@dataclass
class Party:
    """The moderator or a silo, as a process of its own."""

    name: str
    command: str
    folder: Path
    log_file: Path
    process: subprocess.Popen[bytes]
    began: float
    said: int
    """The size of its node's log when it began."""

    def is_loading(self) -> bool:
        """Return whether this is a silo whose node has not said anything yet."""
        waits = time.monotonic() < self.began + LOADING_SECONDS and self.process.poll() is None
        return self.command == "silo" and waits and _node_log_size(self.log_file.parent) == self.said


def up(
    whole: FederationFolder,
    stopping: Event,
    *,
    only: str | None = None,
    rounds_limit: int | None = None,
    show: Show = lambda status: None,
) -> bool:
    """Run a federation, or one party of it, until it has ended (True) or until the event is set (False)."""
    contract = read_contract(whole.contract)
    if not whole.moderator.path.is_dir():
        raise FedDigError(
            f"{whole.path}: does not hold the folders of all parties; give the one that `feddig federation init` wrote"
        )
    names = _chosen(whole, contract, only)
    if is_finished(whole.moderator, contract) and not lacking(whole.moderator, contract):
        return True
    with party_lock(whole.path):
        parties: list[Party] = []
        try:
            return _watch(whole, contract, names, parties, stopping, rounds_limit, show)
        finally:
            stop_programs([party.process for party in parties], STOP_SECONDS)
            for party in parties:
                end(started_by_us(party.folder))


def _chosen(whole: FederationFolder, contract: Contract, only: str | None) -> list[str]:
    """Return the names of the parties to run, and check that their folders are complete."""
    silos = [contract.members[silo].name for silo in contract.active]
    if only is not None and only != MODERATOR:
        contract.number(only)
    names = [MODERATOR, *silos] if only is None else [only]
    for name in names:
        if name == MODERATOR:
            moderator_process.check_folder(whole.moderator)
        else:
            check_folder(whole.silo(name))
    return names


def _start(whole: FederationFolder, name: str) -> Party:
    if name == MODERATOR:
        command, folder, logs = "moderator", whole.moderator.path, whole.moderator.logs
    else:
        silo = whole.silo(name)
        command, folder, logs = "silo", silo.path, silo.logs
    log_file, said = logs / f"{command}.log", _node_log_size(logs)
    return Party(name, command, folder, log_file, _launch(command, folder, log_file), time.monotonic(), said)


def _node_log_size(logs: Path) -> int:
    file = logs / NODE_LOG
    return file.stat().st_size if file.exists() else 0


def _launch(command: str, folder: Path, log_file: Path) -> subprocess.Popen[bytes]:
    whole = [sys.executable, "-m", "feddig", "federation", command, str(folder), "--log-level", "info"]
    return start(whole, log_file, party_environment(folder, folder / "flwr"))


def _watch(
    whole: FederationFolder,
    contract: Contract,
    waiting: list[str],
    parties: list[Party],
    stopping: Event,
    rounds_limit: int | None,
    show: Show,
) -> bool:
    """Start the parties that wait, watch them and show each new status, until nothing is left to do."""
    last: Status | None = None
    gave_up: set[str] = set()
    while True:
        while waiting and sum(party.is_loading() for party in parties) < AT_ONCE:
            parties.append(_start(whole, waiting.pop(0)))
        status = read_status(whole.moderator.status)
        if status is not None and status != last:
            show(status)
            last = status
        for party in list(parties):
            if party.process.poll() is not None:
                _handle_end(party, parties, gave_up)
        if status is not None and status.lacks_only(gave_up):
            # nobody is left who could take the model
            stop_programs([party.process for party in parties if party.name == MODERATOR], STOP_SECONDS)
        if not parties or not any(party.name == MODERATOR for party in parties):
            if is_finished(whole.moderator, contract):
                return True
            if not parties:
                return False
        if (
            rounds_limit is not None
            and status is not None
            and rounds_limit <= status.rounds_done < status.rounds
        ):
            return False
        if stopping.wait(POLL_SECONDS):
            return False


def _handle_end(party: Party, parties: list[Party], gave_up: set[str]) -> None:
    """Remove a party whose process is done or has given up; start it again if it was killed."""
    code = party.process.returncode
    if code == 0:
        parties.remove(party)
    elif code > 0:
        parties.remove(party)
        reason = _last_line(party.log_file)
        if party.name == MODERATOR or not parties:
            raise FedDigError(f"{party.name}: {reason}")
        gave_up.add(party.name)
        log.error("%s gave up, the others continue: %s", party.name, reason)
    else:
        log.warning("%s was killed (signal %d); starting it again", party.name, -code)
        party.process = _launch(party.command, party.folder, party.log_file)


def _last_line(log_file: Path) -> str:
    said = log_file.read_text(encoding="utf-8", errors="replace").splitlines()
    return next(
        (line.removeprefix("feddig: error: ") for line in reversed(said) if line.strip()), "no reason given"
    )


@contextmanager
def choose_display(console: Console, *, quiet: bool) -> Iterator[Show]:
    """Give a function that shows a status: as a bar in a terminal, as a line elsewhere."""
    if quiet:
        yield lambda status: None
    elif console.is_terminal:
        with _bar(console) as show:
            yield show
    else:
        yield show_lines(_lines_on(console))


def _lines_on(console: Console) -> Callable[[str], None]:
    return lambda line: console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _bar(console: Console) -> Iterator[Show]:
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24), MofNCompleteColumn(),
        TextColumn("{task.fields[state]}  {task.fields[accuracy]}  {task.fields[attendance]}"),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=None, state="", accuracy="", attendance="")
        show_faults = show_new_faults(_lines_on(bar.console))

        def show(status: Status) -> None:
            bar.update(
                task,
                description=status.content["federation"],
                completed=status.rounds_done,
                total=status.rounds,
                state=status.waits or status.content["state"],
                accuracy=status.accuracy,
                attendance=status.attendance,
            )
            show_faults(status)

        yield show
