"""A silo's supervisor: keeps Flower's SuperNode running, through crashes and through the minute of its return.

A SuperNode that was killed is refused for up to a minute, because the SuperLink still takes the old one for alive.
The SuperLink gives the same answer to a key that it does not know, so only patience tells the two apart.
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
from feddig.federation.processes.lock import hold
from feddig.federation.processes.network import reaches
from feddig.federation.processes.processes import free_port, quoted, start, stop, surroundings
from feddig.federation.processes.watchdog import Watchdog
from feddig.federation.silo_data import read_silo_file

REFUSED = b"[code: 2004]"
CONNECTED = b"SuperNode ID:"
UNTRUSTED = b"CERTIFICATE_VERIFY_FAILED"

PATIENCE = 120.0
"""Seconds for which a refusal may mean that the SuperLink has not yet noticed the end of the node before."""
RETRY_SECONDS, LONGEST_PAUSE, STEADY_SECONDS = 5.0, 60.0, 120.0
STOP_SECONDS = 10.0

log = logging.getLogger("feddig")


def check_folder(folder: SiloFolder) -> Contract:
    """Check that a silo's folder is whole and belongs together, before anything is started."""
    contract, file = read_contract(folder.contract), read_silo_file(folder.silo_file)
    if file.silo >= len(contract.members) or contract.members[file.silo].name != file.name:
        raise FedDigError(
            f"{folder.silo_file}: silo {file.silo} is not {file.name!r} in {folder.contract.name}; "
            "copy both files again from the same federation"
        )
    for path in (folder.public_key, folder.ca):
        if not path.is_file():
            raise FedDigError(f"{path}: is missing; copy it again from whoever set the federation up")
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
    """Keep the SuperNode running until told to stop, or until it is clear that it is not wanted."""
    contract = check_folder(folder)
    check_flower(SUPERNODE, LOCAL_APP)
    with hold(folder.path):
        refused, pause = None, RETRY_SECONDS
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
                continue  # the next try to reach the moderator says in what way
            if REFUSED in said:
                refused = refused or began
                if time.monotonic() - refused > PATIENCE:
                    raise FedDigError(
                        f"{contract.address}: the moderator refuses this silo's key, or it is in use elsewhere; "
                        f"ask for {folder.public_key} to be registered, and run this on one machine only"
                    )
                log.info("refused, as a node is for a minute after it was killed; trying again")
                stopping.wait(RETRY_SECONDS)
                continue
            if CONNECTED in said:
                refused = None
            pause = RETRY_SECONDS if time.monotonic() - began > STEADY_SECONDS else pause
            log.warning("the node ended (%s); starting it again in %g s", _describe(code), pause)
            stopping.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)


def _await_moderator(contract: Contract, folder: SiloFolder, stopping: Event) -> None:
    """Wait until the moderator answers: it may start later, or be away for a while."""
    told = False
    while not stopping.is_set() and not reaches(contract.address, folder.ca):
        if not told:
            log.warning("%s does not answer; waiting for the moderator", contract.address)
            told = True
        stopping.wait(RETRY_SECONDS)


def _run_node(folder: SiloFolder, contract: Contract, stopping: Event) -> int:
    """Run the SuperNode until it ends, or until told to stop; leave nothing of it behind."""
    environment = surroundings(folder.path, folder.flower_home)
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
        # for its own processes only; another one each time, as several silos may share a machine
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
