"""Run a silo: keep Flower's SuperNode running, start it again after a crash, and end its apps that hang.

A SuperNode that was killed is refused for up to a minute, because the SuperLink takes the old one for alive. The
SuperLink gives the same answer to a key that it does not know, so only time tells the two cases apart.
"""

import logging
import os
import sys
import time
from pathlib import Path
from threading import Event

from feddig.errors import FedDigError
from feddig.federation.certificates import read_fingerprint, read_key_fingerprint
from feddig.federation.contract import Contract, read_contract
from feddig.federation.flower_1_41.local_app import write_programs
from feddig.federation.flower_1_41.names import LOCAL_APP, SUPERNODE, check_flower
from feddig.federation.folders import SiloFolder
from feddig.federation.processes.lock import party_lock
from feddig.federation.processes.network import reaches
from feddig.federation.processes.processes import (
    age,
    end,
    free_port,
    party_environment,
    quoted,
    start,
    started_by_us,
    stop,
)
from feddig.federation.silo_data import read_silo_file

APP = "feddig.federation.flower_1_41.local_app"
REFUSED = b"[code: 2004]"
CONNECTED = b"SuperNode ID:"
UNTRUSTED = b"CERTIFICATE_VERIFY_FAILED"
"""What Flower's node writes to its log."""

REFUSED_SECONDS = 120.0
"""How long a refusal may mean that the SuperLink has not yet noticed the end of the previous node."""
RETRY_SECONDS, LONGEST_PAUSE, STEADY_SECONDS = 5.0, 60.0, 120.0
STOP_SECONDS = 10.0
LOOK_SECONDS = 5.0

log = logging.getLogger("feddig")


def check_folder(folder: SiloFolder) -> Contract:
    """Check that a silo's folder is complete and its files belong together, before anything is started."""
    contract, file = read_contract(folder.contract), read_silo_file(folder.silo_file)
    if file.silo >= len(contract.members) or contract.members[file.silo].name != file.name:
        raise FedDigError(
            f"{folder.silo_file}: silo {file.silo} is not {file.name!r} in {folder.contract.name}; "
            "copy both files again from the same federation"
        )
    for path in (folder.public_key, folder.ca):
        if not path.is_file():
            raise FedDigError(f"{path}: is missing; copy it again from the folder that `init` wrote")
    if not folder.key.is_file():
        raise FedDigError(
            f"{folder.key}: is missing; put the key there that `feddig federation key` made, or that you were given"
        )
    if read_fingerprint(folder.public_key) != contract.members[file.silo].fingerprint:
        raise FedDigError(
            f"{folder.public_key}: is not the key that {folder.contract.name} names for {file.name}; "
            "send it to the moderator, or copy the folder again"
        )
    if read_key_fingerprint(folder.key) != contract.members[file.silo].fingerprint:
        raise FedDigError(
            f"{folder.key}: does not belong to {folder.public_key.name}; put the key there that was made with it"
        )
    return contract


def supervise(folder: SiloFolder, stopping: Event) -> None:
    """Keep the SuperNode running until the event is set, or until it is clear that the moderator refuses it."""
    contract = check_folder(folder)
    check_flower(SUPERNODE, LOCAL_APP)
    with party_lock(folder.path):
        refused_since, pause = None, RETRY_SECONDS
        while not stopping.is_set():
            _await_moderator(contract, folder, stopping)
            if stopping.is_set():
                return
            began, mark = time.monotonic(), _size(_log_file(folder))
            code = _run_node(folder, contract, stopping)
            if stopping.is_set():
                return
            said = _read_from(_log_file(folder), mark)
            if UNTRUSTED in said:
                continue  # the next try to reach the moderator names the fault
            if REFUSED in said:
                refused_since = refused_since or began
                if time.monotonic() - refused_since > REFUSED_SECONDS:
                    raise FedDigError(
                        f"{contract.address}: the moderator refuses this silo's key, or it is in use elsewhere; "
                        f"ask for {folder.public_key} to be registered, and run this on one machine only"
                    )
                log.info("refused, as a node is for a minute after it was killed; trying again")
                stopping.wait(RETRY_SECONDS)
                continue
            if CONNECTED in said:
                refused_since = None
            pause = RETRY_SECONDS if time.monotonic() - began > STEADY_SECONDS else pause
            log.warning("the node ended (%s); starting it again in %g s", _describe(code), pause)
            stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


class Watchdog:
    """Ends apps that still run when nobody waits for their answers any more.

    Flower starts an app for every message and never ends one. An app that hangs may not react to signals of its own, so
    it is ended from outside.
    """

    def __init__(self, party: Path, longest: float) -> None:
        self._party, self._longest = party, longest
        self._looked = time.monotonic()

    def look(self) -> None:
        """Check the age of each app, unless that was done a moment ago."""
        # reading all processes takes time that the silo's training needs
        if time.monotonic() - self._looked < min(LOOK_SECONDS, self._longest):
            return
        self._looked = time.monotonic()
        for process in started_by_us(self._party, APP):
            if age(process) > self._longest:
                log.warning(
                    "an app has not answered in %g s, twice the longest deadline: process %d is ended; if it was just "
                    "slow, agree on longer deadlines",
                    self._longest,
                    process,
                )
                end([process])


def _await_moderator(contract: Contract, folder: SiloFolder, stopping: Event) -> None:
    """Wait until the moderator answers: it may start later, or be offline for a while."""
    warned = False
    while not stopping.is_set() and not reaches(contract.address, folder.ca):
        if not warned:
            log.warning("%s does not answer; waiting for the moderator", contract.address)
            warned = True
        stopping.wait(RETRY_SECONDS)


def _run_node(folder: SiloFolder, contract: Contract, stopping: Event) -> int:
    """Run the SuperNode until it ends or the event is set, then end everything that it started."""
    environment = party_environment(folder.path, folder.flower_home)
    write_programs(folder.programs)
    environment["PATH"] = f"{folder.programs.resolve()}{os.pathsep}{environment['PATH']}"
    process = start(_command(folder, contract), _log_file(folder), environment)
    log.info("node started, process %d", process.pid)
    watchdog = Watchdog(folder.path, contract.longest_answer)
    try:
        while not stopping.wait(0.2) and process.poll() is None:
            watchdog.look()
    finally:
        stop(process, folder.path, STOP_SECONDS)
    return process.returncode


def _command(folder: SiloFolder, contract: Contract) -> list[str]:
    return [
        sys.executable, "-P", "-m", "feddig.federation.flower_1_41.supernode",
        "--root-certificates", str(folder.ca.resolve()),
        "--superlink", contract.address,
        "--auth-supernode-private-key", str(folder.key.resolve()),
        "--node-config", f"folder={quoted(folder.path)}",
        # for its own processes only; a new port each time, because several silos may share a machine
        "--host", "127.0.0.1",
        "--port", str(free_port()),
    ]  # fmt: skip


def _log_file(folder: SiloFolder) -> Path:
    return folder.logs / "supernode.log"


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _read_from(path: Path, mark: int) -> bytes:
    with path.open("rb") as stream:
        stream.seek(mark)
        return stream.read()


def _describe(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
