"""Who a process is: its number and the moment it began, as a number alone is given again to somebody else.

Processes of a federation: started so that they do not outlive us, and found again if they do.

Flower's programs start further ones, some in sessions of their own, and not all of these end with their parents.
So everything that is started for a party bears that party's folder in its environment, which children inherit and
nobody else has: by it left-over processes are found, and only those of this party. It also bears the names of those
who started it, eldest first: whoever stops ends what descends from itself, and never its successor.

Being told to stop: Ctrl-C and a polite end become an event, so that everything is stopped in good order.
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

from feddig.errors import FedDigError
from feddig.federation.processes import end_with_parent

PROC = Path("/proc")
STATE, BEGAN = 0, 19
"""Where these stand in /proc/NUMBER/stat, counted after the name."""


def identity(process: int) -> str:
    """Name a process as no other one is ever named; one that has ended, or cannot be seen, has no name."""
    facts = _facts(process)
    if facts is not None:
        return f"{process}@{facts[BEGAN]}" if facts[STATE] not in "ZX" else ""
    return "" if PROC.is_dir() else f"{process}@"


def number(name: str) -> int:
    """Give the number in a process's name, or 0 where it holds none."""
    digits = name.partition("@")[0]
    return int(digits) if digits.isdecimal() else 0


def lives(name: str) -> bool:
    """Tell whether the process of this name still runs."""
    process = number(name)
    return process > 0 and identity(process) == name and is_alive(process)


def is_alive(process: int) -> bool:
    """Tell whether a process runs; one that ended and was not yet noticed by its parent does not."""
    if PROC.is_dir():
        return identity(process) != ""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_stopped(process: int) -> bool:
    """Tell whether a process was told to pause (Ctrl-Z, SIGSTOP) and not yet to go on."""
    facts = _facts(process)
    return facts is not None and facts[STATE] in "Tt"


def age(process: int) -> float:
    """Give the seconds since a process began; 0 where that cannot be seen."""
    facts = _facts(process)
    if facts is None:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(facts[BEGAN]) / os.sysconf("SC_CLK_TCK")


def _facts(process: int) -> list[str] | None:
    try:
        # the name before them may hold anything, brackets and spaces too
        return (PROC / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None


MARK = "FEDDIG_PARTY"
"""The environment variable that holds the folder of the party for which a process runs."""
LINEAGE = "FEDDIG_STARTED_BY"
"""The environment variable that names the processes which a process descends from, eldest first."""
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Nothing is reported to anybody, and nothing is downloaded."""
POLL_SECONDS, KILL_SECONDS = 0.1, 5.0


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
        LINEAGE: f"{os.environ.get(LINEAGE, '')} {identity(os.getpid())}".strip(),
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
            [sys.executable, end_with_parent.__file__, str(os.getpid()), *command],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=environment,
            # Ctrl-C in the terminal is for us alone: we stop the others in good order
            start_new_session=True,
        )


def running(party: Path, program: str = "") -> list[int]:
    """List the processes that run for a party, other than this one; only those of one program, if it is named."""
    found = []
    for process in PROC.glob("[0-9]*"):
        try:
            marked = _environment(int(process.name)).get(MARK) == str(party.resolve())
            if marked and program.encode() in (process / "cmdline").read_bytes():
                found.append(int(process.name))
        except OSError:
            continue  # it ended meanwhile, or is somebody else's
    return [process for process in found if process != os.getpid()]


def started_by_us(party: Path, program: str = "") -> list[int]:
    """List of those processes the ones that descend from this one, and not from another at work for the same party."""
    us = identity(os.getpid())
    return [process for process in running(party, program) if us in lineage(process)]


def left_over(party: Path) -> list[int]:
    """List the processes of a party that nobody is in charge of: whoever started them has ended."""
    return [process for process in running(party) if is_orphan(process)]


def is_orphan(process: int) -> bool:
    """Tell whether nobody who runs has started this process."""
    return not any(lives(starter) for starter in lineage(process)[-1:])


def lineage(process: int) -> list[str]:
    """Name the processes that a process descends from, eldest first; empty where nobody of ours started it."""
    try:
        return _environment(process).get(LINEAGE, "").split()
    except OSError:
        return []


def _environment(process: int) -> dict[str, str]:
    entries = (PROC / str(process) / "environ").read_bytes().decode(errors="surrogateescape").split("\0")
    return {name: value for name, equals, value in (entry.partition("=") for entry in entries) if equals}


def end(processes: Iterable[int], patience: float = 0.0) -> None:
    """End processes: politely while patience lasts, then for certain."""
    # by name: a number may meanwhile be somebody else's
    left = [name for name in map(identity, processes) if name]
    for signals in (
        ((signal.SIGCONT, signal.SIGTERM), (signal.SIGKILL,)) if patience else ((signal.SIGKILL,),)
    ):
        for name in left:
            for one in signals:
                _send(name, one)
        until = time.monotonic() + (patience if signal.SIGTERM in signals else KILL_SECONDS)
        while left and time.monotonic() < until:
            left = [name for name in left if lives(name)]
            time.sleep(POLL_SECONDS if left else 0)


def _send(name: str, one: signal.Signals) -> None:
    try:
        if lives(name):
            os.kill(number(name), one)
    except ProcessLookupError:
        return


def stop(process: subprocess.Popen[bytes], party: Path, patience: float) -> None:
    """Stop a program that we started, and everything that was started with it for the same party."""
    finish([process], patience)
    end(started_by_us(party))


def finish(programs: Sequence[subprocess.Popen[bytes]], patience: float) -> None:
    """Tell programs that we started to end, all at once, and kill those that do not."""
    for program in programs:
        program.terminate()
    for program in programs:
        try:
            program.wait(patience)
        except subprocess.TimeoutExpired:
            program.kill()
            program.wait()


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


@contextmanager
def told_to_stop() -> Iterator[Event]:
    """Give the event that SIGINT and SIGTERM set."""
    stopping, told = Event(), SimpleQueue[bool]()

    def pass_on() -> None:
        if told.get():
            stopping.set()

    # a signal may find the event's own lock taken, by a wait or by the signal before it: setting it there would hang
    # for ever, and only the queue may be used in such a moment
    Thread(target=pass_on, daemon=True).start()
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda *_: told.put(True)) for number in numbers}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        told.put(False)
