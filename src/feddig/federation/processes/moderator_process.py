"""Run the moderator: start Flower's SuperLink and the run on it, again whenever one of them ends too early.

The moderator's folder holds the state after each round, and a new run continues from there.
"""

import logging
import socket
import subprocess
import sys
import time
from threading import Event

from feddig.errors import FedDigError
from feddig.federation.contract import Contract, read_contract
from feddig.federation.flower_1_41 import names
from feddig.federation.flower_1_41.control import (
    Control,
    NoAnswerError,
    connect,
    own_address,
    start_run,
    write_app,
    write_flower_config,
)
from feddig.federation.flower_1_41.names import SERVER_APP, SUPERLINK, check_flower
from feddig.federation.folders import FederationFolder, ModeratorFolder, SiloFolder
from feddig.federation.processes.network import reaches
from feddig.federation.processes.processes import (
    end,
    party_environment,
    party_lock,
    start,
    started_by_us,
    stop,
)
from feddig.federation.status import APP, Show, read_status

START_SECONDS, STOP_SECONDS, GONE_SECONDS = 60.0, 3.0, 3.0
POLL_SECONDS = 0.2
"""Shorter than a round, so that the console shows each of them."""
MOST_FAILURES = 5
"""How often in a row the app may end without having finished a round."""
LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")

log = logging.getLogger("feddig")


def run_moderator(folder: ModeratorFolder, stopping: Event, show: Show = lambda status: None) -> bool:
    """Run the moderator until the federation has ended (True) or the event is set (False); show each new status."""
    contract = check_folder(folder)
    check_flower(SUPERLINK, SERVER_APP)
    with party_lock(folder.path):
        write_app(folder.app)
        failures = Failures(folder)
        # a silo that was away at the end gets the model now
        resend = is_finished(folder, contract) and bool(lacking(folder, contract))
        while not stopping.is_set() and (resend or not is_finished(folder, contract)):
            resend = False
            contract = check_folder(folder)  # a later version may have been accepted since
            write_flower_config(folder, contract)
            link = _start_superlink(folder, contract)
            try:
                _await_superlink(link, folder, contract)
                with connect(folder, contract) as control:
                    control.register(folder, contract)
                    control.stop_runs()
                    _run_until_done(folder, contract, link, control, stopping, failures, show)
            except NoAnswerError as error:
                stopping.wait(failures.add(str(error)))
            finally:
                end(started_by_us(folder.path, APP), STOP_SECONDS)
                stop(link, folder.path, STOP_SECONDS)
        if (last := read_status(folder.status)) is not None:
            show(last)
        return is_finished(folder, contract)


def check_folder(folder: ModeratorFolder) -> Contract:
    """Check that this is the moderator's folder and that it is complete, before anything is started."""
    inner = FederationFolder(folder.path).moderator.path
    if inner.is_dir():
        raise FedDigError(f"{folder.path}: is the whole federation's folder; give {inner}")
    if SiloFolder(folder.path).silo_file.is_file():
        raise FedDigError(f"{folder.path}: is a silo's folder; run `feddig federation silo` there")
    contract = read_contract(folder.contract)
    keys = [folder.public_key(contract.members[silo].name) for silo in contract.active]
    for path in (folder.ca, folder.certificate, folder.key, *keys):
        if not path.is_file():
            raise FedDigError(f"{path}: is missing; copy it again from the folder that `init` wrote")
    return contract


def is_finished(folder: ModeratorFolder, contract: Contract) -> bool:
    """Return whether all rounds of this contract are done, and the final model was sent; a later one may have more."""
    status = read_status(folder.status)
    rounds = contract.experiment.training.rounds
    return status is not None and status.finished and status.rounds_done >= rounds


def lacking(folder: ModeratorFolder, contract: Contract) -> set[int]:
    """Return the silos that lack the final model, as far as the last status says."""
    status = read_status(folder.status)
    return set() if status is None else set(contract.active) - status.received


class Failures:
    """Counts how often in a row the app ended without having finished a round, and gives up after some."""

    def __init__(self, folder: ModeratorFolder) -> None:
        self._folder, self._count = folder, 0
        self._rounds = self._done()

    def add(self, reason: str) -> float:
        """Count a failure; return the seconds to wait before the next try."""
        done = self._done()
        self._count = 1 if done > self._rounds else self._count + 1
        self._rounds = done
        if self._count >= MOST_FAILURES:
            raise FedDigError(
                f"the moderator's app ended {self._count} times without finishing a round ({reason}); "
                f"see {self._folder.logs}"
            )
        log.warning("the moderator's app ended (%s); a new run continues", reason)
        return float(2 ** (self._count - 1))

    def _done(self) -> int:
        status = read_status(self._folder.status)
        return 0 if status is None else status.rounds_done


def _start_superlink(folder: ModeratorFolder, contract: Contract) -> subprocess.Popen[bytes]:
    place, _, port = contract.address.rpartition(":")
    bind = "127.0.0.1" if place in LOOPBACK else "0.0.0.0"
    try:
        socket.create_server((bind, int(port))).close()
    except OSError as error:
        raise FedDigError(
            f"port {port}: {error.strerror}; end the program that listens there, or set the federation up with "
            "another --port"
        ) from None
    command = [
        sys.executable, "-m", "feddig.federation.flower_1_41.superlink",
        "--ssl-ca-certfile", str(folder.ca.resolve()),
        "--ssl-certfile", str(folder.certificate.resolve()),
        "--ssl-keyfile", str(folder.key.resolve()),
        "--enable-supernode-auth",
        "--host", bind,
        "--port", port,
        # digests and rounds are ours on disk; what is under way is asked again
        "--database", names.IN_MEMORY.get(),
        "--disable-runtime-dependency-installation",
    ]  # fmt: skip
    environment = party_environment(folder.path, folder.flower_home)
    link = start(command, folder.logs / "superlink.log", environment)
    log.info("SuperLink started on port %s, process %d", port, link.pid)
    return link


def _await_superlink(link: subprocess.Popen[bytes], folder: ModeratorFolder, contract: Contract) -> None:
    """Wait until the SuperLink answers."""
    until = time.monotonic() + START_SECONDS
    while not reaches(own_address(contract), folder.ca):
        if link.poll() is not None or time.monotonic() > until:
            raise FedDigError(f"the SuperLink does not start; see {folder.logs / 'superlink.log'}")
        time.sleep(0.2)


def _run_until_done(
    folder: ModeratorFolder,
    contract: Contract,
    link: subprocess.Popen[bytes],
    control: Control,
    stopping: Event,
    failures: Failures,
    show: Show,
) -> None:
    """Start runs on this SuperLink until the rounds are done, or the SuperLink has ended."""
    while not stopping.is_set():
        run = start_run(folder)
        log.info("run %d started", run)
        reason = _await_end(folder, link, control, run, stopping, show)
        if stopping.is_set() or is_finished(folder, contract):
            return
        if link.poll() is not None:
            log.warning("the SuperLink ended; starting it again")
            return
        stopping.wait(failures.add(reason))
        control.stop_runs()


def _await_end(
    folder: ModeratorFolder,
    link: subprocess.Popen[bytes],
    control: Control,
    run: int,
    stopping: Event,
    show: Show,
) -> str:
    """Wait for the end of a run, and say how it ended."""
    seen, waited = False, 0.0
    while not stopping.wait(POLL_SECONDS):
        if (now := read_status(folder.status)) is not None:
            show(now)
        if link.poll() is not None:
            return "the SuperLink ended"
        if started_by_us(folder.path, APP):
            seen, waited = True, 0.0
            continue
        # the SuperLink is asked only while no process can be seen: before it starts, after it ended, or without /proc
        waited += POLL_SECONDS
        status, details = control.run_status(run)
        if status.startswith("finished"):
            return f"{status} {details}".strip()
        if seen and waited >= GONE_SECONDS:
            return "its process is gone"
    return "it was stopped"
