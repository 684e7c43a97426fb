"""Processes of a federation: started so that they do not outlive us, and found again if they do.

Flower's programs start further ones, some in sessions of their own, and not all of these end with their parents.
So everything that is started for a party bears that party's folder in its environment, which children inherit and
nobody else has: by it left-over processes are found, and only those of this party.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from feddig.errors import FedDigError
from feddig.flower import leash

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MARK = "FEDDIG_PARTY"
"""The environment variable that holds the folder of the party for which a process runs."""
PROC = Path("/proc")
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Nothing is reported to anybody, and nothing is downloaded."""
LOCK_SECONDS, POLL_SECONDS = 20.0, 0.1


def find_program(name: str) -> str:
    """Find one of Flower's programs, first where this Python has its own."""
    own = Path(sys.executable).parent
    found = shutil.which(name, path=f"{own}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise FedDigError(f"{name}: is not there; pip install 'feddig[flower]'")
    return found


def surroundings(party: Path, flower_home: Path) -> dict[str, str]:
    """Give the environment of a party's processes."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {
        **os.environ,
        **QUIET,
        MARK: str(party.resolve()),
        "FLWR_HOME": str(flower_home.resolve()),
        # Flower's programs start each other by name
        "PATH": programs,
        "PYTHONUNBUFFERED": "1",
    }


def start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a program that ends when this process ends, with what it says added to a log file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, leash.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            # Ctrl-C in the terminal is for us alone: we stop the others in good order
            start_new_session=True,
        )


def running(party: Path, program: str = "") -> list[int]:
    """List the processes that run for a party, other than this one; only those of one program, if it is named."""
    mark = f"{MARK}={party.resolve()}".encode()
    found = []
    for process in PROC.glob("[0-9]*"):
        try:
            if mark not in (process / "environ").read_bytes().split(b"\0"):
                continue
            if program.encode() in (process / "cmdline").read_bytes() and int(process.name) != os.getpid():
                found.append(int(process.name))
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    return found


def end(processes: Iterable[int], patience: float = 0.0) -> None:
    """End processes: politely while patience lasts, then for certain."""
    left = list(processes)
    for number in (signal.SIGTERM, signal.SIGKILL) if patience else (signal.SIGKILL,):
        for process in left:
            try:
                os.kill(process, number)
            except ProcessLookupError:
                continue
        until = time.monotonic() + (patience or 5.0)
        while left and time.monotonic() < until:
            left = [process for process in left if is_alive(process)]
            time.sleep(POLL_SECONDS if left else 0)


def is_alive(process: int) -> bool:
    """Tell whether a process runs; one that ended and was not yet noticed by its parent does not."""
    try:
        # after the name, which may hold anything, stands the state
        return (PROC / str(process) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        if PROC.is_dir():
            return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def stop(process: subprocess.Popen[bytes], party: Path, patience: float) -> None:
    """Stop a program that we started, and everything that was started for the same party."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    end(running(party))


@contextmanager
def hold(party: Path) -> Iterator[None]:
    """Be the only process at work for a party while this lasts, and end what an earlier one left behind."""
    with (party / "lock").open("a") as stream:
        until = time.monotonic() + LOCK_SECONDS
        while fcntl is not None:
            try:
                fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                # an earlier one whose parent was killed takes some seconds to end
                if time.monotonic() > until:
                    raise FedDigError(
                        f"{party}: another process is at work here; end it, or wait for it"
                    ) from None
                time.sleep(POLL_SECONDS)
        end(running(party))
        yield


def free_port() -> int:
    """Find a port on this machine that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def quoted(path: Path) -> str:
    """Quote a path for Flower's KEY=VALUE options."""
    text = str(path.resolve())
    if "'" in text:
        raise FedDigError(
            f"{text}: Flower cannot be told of a folder with an apostrophe in its name; rename it"
        )
    return f"'{text}'"
