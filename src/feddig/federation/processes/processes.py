"""Start, find and end the processes of a federation's parties, and let one process at a time work for a party.

Flower's programs start further ones, some in sessions of their own, and not all of these end with their parents. So
each process of a party has two environment variables, which its children inherit: the party's folder, by which
processes that were left over are found, and the processes that it descends from. A process that stops ends its own
descendants only, and never those of the process that takes its place.

A process is named by its number and its start time, because numbers are reused.

A party's lock file names the process that holds the lock. A holder whose starter has ended is about to end too, as all
our processes end with their parents; a paused one cannot, so it is ended here. Every other holder is left alone.
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
from queue import SimpleQueue
from threading import Event, Thread
from typing import IO

from feddig.errors import FedDigError
from feddig.federation.processes import end_with_parent

PROC = Path("/proc")
STATE, BEGAN = 0, 19
"""Positions in /proc/NUMBER/stat, counted after the program's name."""
PARTY_VARIABLE = "FEDDIG_PARTY"
"""The environment variable that holds the folder of the party for which a process runs."""
ANCESTORS_VARIABLE = "FEDDIG_STARTED_BY"
"""The environment variable that names the processes from which a process descends, the oldest first."""
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""With these Flower reports nothing and downloads nothing."""
POLL_SECONDS, KILL_SECONDS = 0.1, 5.0


def identity(process: int) -> str:
    """Return the name of a process, number@start; empty if it has ended or cannot be seen."""
    facts = _facts(process)
    if facts is not None:
        return f"{process}@{facts[BEGAN]}" if facts[STATE] not in "ZX" else ""
    return "" if PROC.is_dir() else f"{process}@"


def number(name: str) -> int:
    """Return the number in the name of a process, or 0 if there is none."""
    digits = name.partition("@")[0]
    return int(digits) if digits.isdecimal() else 0


def still_runs(name: str) -> bool:
    """Return whether the process of this name runs."""
    process = number(name)
    return process > 0 and identity(process) == name and is_alive(process)


def is_alive(process: int) -> bool:
    """Return whether a process runs; one that has ended and waits for its parent does not."""
    if PROC.is_dir():
        return identity(process) != ""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_paused(process: int) -> bool:
    """Return whether a process is stopped by Ctrl-Z or SIGSTOP."""
    facts = _facts(process)
    return facts is not None and facts[STATE] in "Tt"


def age(process: int) -> float:
    """Return the seconds since a process began; 0 if that cannot be seen."""
    facts = _facts(process)
    if facts is None:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(facts[BEGAN]) / os.sysconf("SC_CLK_TCK")


def _facts(process: int) -> list[str] | None:
    try:
        # the program's name comes first, in brackets, and may itself hold brackets and spaces
        return (PROC / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


def find_program(name: str) -> str:
    """Find one of Flower's programs, first next to this Python."""
    own = Path(sys.executable).parent
    found = shutil.which(name, path=f"{own}{os.pathsep}{os.environ.get('PATH', '')}")
    if found is None:
        raise FedDigError(f"{name}: is not there; pip install 'feddig[flower]'")
    return found


def party_environment(party: Path, flower_home: Path) -> dict[str, str]:
    """Return the environment of a party's processes."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {
        **os.environ,
        **OFFLINE,
        PARTY_VARIABLE: str(party.resolve()),
        ANCESTORS_VARIABLE: f"{os.environ.get(ANCESTORS_VARIABLE, '')} {identity(os.getpid())}".strip(),
        "FLWR_HOME": str(flower_home.resolve()),
        # Flower's programs start each other by name
        "PATH": programs,
        "PYTHONUNBUFFERED": "1",
    }


def start(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a program that ends when this process ends, and append its output to a log file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, end_with_parent.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            # Ctrl-C in the terminal reaches only this process, which then stops the others in order
            start_new_session=True,
        )


def running(party: Path, program: str = "") -> list[int]:
    """List the processes of a party, without this one; only those with `program` in their command, if given."""
    found = []
    for process in PROC.glob("[0-9]*"):
        try:
            marked = _environment(int(process.name)).get(PARTY_VARIABLE) == str(party.resolve())
            if marked and program.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # it has ended, or belongs to another user
    return [process for process in found if process != os.getpid()]


def started_by_us(party: Path, program: str = "") -> list[int]:
    """List the processes of a party that descend from this one."""
    us = identity(os.getpid())
    return [process for process in running(party, program) if us in ancestors(process)]


def left_over(party: Path) -> list[int]:
    """List the processes of a party whose starters have ended."""
    return [process for process in running(party) if is_orphan(process)]


def is_orphan(process: int) -> bool:
    """Return whether the process that started this one has ended."""
    return not any(still_runs(starter) for starter in ancestors(process)[-1:])


def ancestors(process: int) -> list[str]:
    """Return the processes from which a process descends, the oldest first; none if it was started by hand."""
    try:
        return _environment(process).get(ANCESTORS_VARIABLE, "").split()
    except OSError:
        return []


def _environment(process: int) -> dict[str, str]:
    entries = (PROC / str(process) / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
    return {name: value for name, equals, value in (entry.partition("=") for entry in entries) if equals}


def end(processes: Iterable[int], grace_seconds: float = 0.0) -> None:
    """End processes: ask them first if they have time to react, then kill those that are left."""
    # by name, because a number may belong to another process by then
    left = [name for name in map(identity, processes) if name]
    ask, kill = (signal.SIGCONT, signal.SIGTERM), (signal.SIGKILL,)
    for signals in (ask, kill) if grace_seconds else (kill,):
        for name in left:
            for one in signals:
                _send(name, one)
        until = time.monotonic() + (grace_seconds if signals == ask else KILL_SECONDS)
        while left and time.monotonic() < until:
            left = [name for name in left if still_runs(name)]
            time.sleep(POLL_SECONDS if left else 0)


def _send(name: str, one: signal.Signals) -> None:
    try:
        if still_runs(name):
            os.kill(number(name), one)
    except ProcessLookupError:
        return


def stop(process: subprocess.Popen[bytes], party: Path, grace_seconds: float) -> None:
    """Stop a program that this process started, and everything that it started for the same party."""
    stop_programs([process], grace_seconds)
    end(started_by_us(party))


def stop_programs(programs: Sequence[subprocess.Popen[bytes]], grace_seconds: float) -> None:
    """Ask programs that this process started to end, all at once, and kill those that do not."""
    for program in programs:
        program.terminate()
    until = time.monotonic() + grace_seconds
    for program in programs:
        try:
            program.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


def free_port() -> int:
    """Find a port of this machine on which no program listens; for tests and benchmarks."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def quoted(path: Path) -> str:
    """Quote a path for Flower's KEY=VALUE options."""
    text = str(path.resolve())
    if "'" in text:
        raise FedDigError(f"{text}: Flower accepts no folder with an apostrophe in its name; rename it")
    return f"'{text}'"


@contextmanager
def stop_on_signals() -> Iterator[Event]:
    """Give an event that SIGINT and SIGTERM set."""
    stopping, signalled = Event(), SimpleQueue[bool]()

    def pass_on() -> None:
        if signalled.get():
            stopping.set()

    # a signal may interrupt code that holds the event's lock, so setting the event in the handler could hang forever;
    # the queue may be used there
    Thread(target=pass_on, daemon=True).start()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: signalled.put(True)) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signalled.put(False)


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_SECONDS = 20.0
"""How long an earlier holder may take to end by itself."""
ORPHAN_SECONDS = 15.0
"""How long a holder whose starter has ended may take, before it is killed."""


@contextmanager
def party_lock(party: Path) -> Iterator[None]:
    """Hold the party's lock, and end the processes that an earlier holder left over."""
    with (party / "lock").open("a+", encoding="utf-8") as stream:
        _take_lock(stream, party)
        stream.truncate(0)
        stream.write(f"{identity(os.getpid())}\n")
        stream.flush()
        end(left_over(party))
        yield


def _take_lock(stream: IO[str], party: Path) -> None:
    """Wait for the lock; end a holder that cannot give it back, and give up on any other."""
    until, ended_orphan = time.monotonic() + LOCK_SECONDS, False
    while fcntl is not None:
        try:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _lock_holder(stream)
            if not ended_orphan and _is_abandoned(holder, party):
                end([number(holder)], ORPHAN_SECONDS)
                ended_orphan = True
            elif time.monotonic() > until:
                raise FedDigError(f"{party}: {_describe_holder(holder)}") from None
            time.sleep(POLL_SECONDS)


def _lock_holder(stream: IO[str]) -> str:
    """Read which process holds the lock; empty while the next holder has not written its name."""
    stream.seek(0)
    name = stream.read().strip()
    return name if still_runs(name) else ""


def _is_abandoned(holder: str, party: Path) -> bool:
    """Return whether this is a process for this party whose starter has ended; not one that was started by hand."""
    process = number(holder)
    ours = process in running(party) and bool(ancestors(process))
    return ours and is_orphan(process) and still_runs(holder)


def _describe_holder(holder: str) -> str:
    """Say which process holds the lock, and what to do about it."""
    process = number(holder)
    if not process:
        return "another process is at work here; end it, or wait for it"
    if is_paused(process):
        return (
            f"process {process} is at work here but paused; let it continue with `kill -CONT {process}`, "
            f"or end it with `kill -9 {process}`"
        )
    return f"another process is at work here, process {process}; end it with `kill {process}`, or wait for it"
