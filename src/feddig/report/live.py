"""How watched runs stand, in a line: going on, stopped, ended, or not yet begun.

Runs that may be going on: read again only where their folders changed, so that looking often costs little.

What `feddig watch` answers: the report page of a folder as it is now, and in a line how it stands.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from feddig.files import content_hash
from feddig.report.html_parts import LIVE_FRAME
from feddig.report.page import build_page
from feddig.report.read_run import Run, find_runs, page_order, read_run
from feddig.report.run_files import Classes

WAITING, LIVE, STOPPED, ENDED, UNKNOWN = "waiting", "live", "stopped", "ended", "unknown"
PAUSE_SECONDS = 10.0
"""A comparison reads its data between two runs: for so long nothing is concluded from nobody being at work."""


@dataclass(frozen=True)
class State:
    """How it stands, for a program and for people."""

    name: str
    says: str


def tell_state(
    runs: Sequence[Run], working: Sequence[bool | None], age: float | None, federation: str = ""
) -> State:
    """Say how runs stand: whether a process is at work on each, and how many seconds ago anything was written.

    While one is, what a federation's moderator says of itself is added.
    """
    if not runs:
        state = State(WAITING, "waiting: no run has begun here yet")
    elif len(runs) == 1:
        state = _tell_one(runs[0], working[0])
    else:
        state = _tell_many(runs, working, age or 0.0)
    return State(LIVE, f"{state.says}; {federation}") if federation and state.name == LIVE else state


def _tell_one(run: Run, working: bool | None) -> State:
    if run.finished:
        return State(ENDED, f"ended: all {len(run.rows)} rounds are done")
    if working is None:
        return State(UNKNOWN, _place(run))
    if working:
        return State(LIVE, f"live, {_place(run)}")
    return State(STOPPED, f"stopped at {_place(run)}: no process is at work on it now")


def _tell_many(runs: Sequence[Run], working: Sequence[bool | None], age: float) -> State:
    active = [run for run, is_active in zip(runs, working, strict=True) if is_active]
    finished = f"{sum(run.finished for run in runs)} of {len(runs)} runs finished"
    if len(active) == 1:
        (run,) = active
        name = f"{run.algorithm}, {run.scenario}, seed {run.seed}"
        return State(LIVE, f"live, {name}: {_place(run)}; {finished}")
    if active:
        return State(LIVE, f"live, {len(active)} runs are going on; {finished}")
    if None in working:
        return State(UNKNOWN, finished)
    if age < PAUSE_SECONDS:
        return State(WAITING, f"{finished}; the next may be about to begin")
    said = f"{finished}; no process is at work on any now"
    return State(ENDED if all(run.finished for run in runs) else STOPPED, said)


def _place(run: Run) -> str:
    return f"round {len(run.rows)} of {run.planned}"


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

UNTOLD = ("log.txt", "checkpoint", "curves.png", "report.html")
"""What changes in a run's folder without changing what a page says of it."""
SETTLED = ("classes.json", "partition.csv", "digests")
"""What classes are counted from. In a large run reading it takes seconds, and it hardly ever changes."""

Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, moment of the last change in nanoseconds, size and inode of the files of a run."""


@dataclass(frozen=True)
class Sight:
    """All runs of a folder as they were at one moment."""

    runs: Sequence[Run]
    working: Sequence[bool | None]
    """Of each run whether a process is at work on it; None where that cannot be told."""
    version: str
    """Differs whenever a page about the runs would."""
    changed: float | None
    """When a file was last written, in seconds since 1970."""

    @property
    def age(self) -> float | None:
        """How many seconds ago that was; the clocks of file servers may be ahead of ours."""
        return None if self.changed is None else max(0.0, time.time() - self.changed)


class LiveRuns:
    """The runs in and below a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: dict[Path, tuple[Stamp, Run]] = {}
        self._silo_names: Sequence[str] = ()

    def look(self, silo_names: Sequence[str] = ()) -> Sight:
        """See how the runs stand; names of silos that no file of a run tells may be given."""
        if silo_names != self._silo_names:
            self._read, self._silo_names = {}, silo_names
        stamps = {path: _stamp(path) for path in self._find()}
        self._read = {
            path: self._read[path] if self._is_read(path, stamp) else (stamp, self._read_again(path, stamp))
            for path, stamp in stamps.items()
        }
        runs = sorted((run for _, run in self._read.values()), key=page_order)
        version = content_hash(repr((sorted(stamps.items()), list(silo_names))).encode())[:16]
        changes = [changed for stamp in stamps.values() for _, changed, _, _ in stamp]
        return Sight(
            runs, [_is_worked_on(run) for run in runs], version, max(changes) / 1e9 if changes else None
        )

    def _find(self) -> list[Path]:
        # a folder that goes away while it is looked through is a moment's matter
        with suppress(OSError):
            return list(find_runs(self._folder))
        return []

    def _is_read(self, path: Path, stamp: Stamp) -> bool:
        return path in self._read and self._read[path][0] == stamp

    def _read_again(self, path: Path, stamp: Stamp) -> Run:
        classes: Classes | None = None
        if path in self._read:
            before, run = self._read[path]
            classes = run.classes if _settled(before) == _settled(stamp) else None
        return _named(read_run(path, classes, growing=True), self._silo_names)


def _stamp(folder: Path) -> Stamp:
    """Note of what lies in a folder when it was changed last."""
    found = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            # names with a dot are files that are just being written
            if entry.name not in UNTOLD and not entry.name.startswith("."):
                with suppress(OSError):
                    known = entry.stat()
                    found.append((entry.name, known.st_mtime_ns, known.st_size, known.st_ino))
    return tuple(sorted(found))


def _settled(stamp: Stamp) -> Stamp:
    return tuple(entry for entry in stamp if entry[0] in SETTLED)


def _named(run: Run, silo_names: Sequence[str]) -> Run:
    if run.classes.silos or len(silo_names) != run.silos:
        return run
    return replace(run, classes=replace(run.classes, silos=tuple(silo_names)))


def _is_worked_on(run: Run) -> bool | None:
    """Tell whether a process holds the run's log, as whoever is at work on a run does."""
    if run.finished:
        return False
    if fcntl is None:
        return None
    try:
        with (run.path / "log.txt").open("rb") as stream:
            # let go of at once; a run that starts in this very moment tries again
            fcntl.flock(stream.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


REST_SECONDS = 0.5
"""How long what was seen stands at least, however many ask."""
REST = 9.0
"""And so many times as long as the work took: the runs need the processor more."""


@dataclass(frozen=True)
class News:
    """What a federation's moderator says of itself."""

    silo_names: Sequence[str] = ()
    says: str = ""


class LivePage:
    """The page about a folder, made anew when somebody asks for it and something has changed."""

    def __init__(self, folder: Path, news: Callable[[], News] = News) -> None:
        self._runs, self._news = LiveRuns(folder), news
        self._lock = threading.Lock()
        self._sight, self._state = Sight((), (), "", None), State("", "")
        self._page, self._page_version = b"", ""
        self._good_until = 0.0

    def page(self) -> tuple[bytes, str]:
        """Give the page, and its version."""
        with self._lock:
            self._look()
            if self._page_version != self._sight.version:
                started = time.monotonic()
                runs = self._sight.runs
                self._page = (build_page(runs, LIVE_FRAME) if runs else _waiting_page()).encode()
                self._page_version = self._sight.version
                self._rest_after(time.monotonic() - started)
            return self._page, self._page_version

    def state(self) -> bytes:
        """Say in JSON how it stands, which version a page of it has, and how old the last news is."""
        with self._lock:
            self._look()
            told = {
                "version": self._sight.version,
                "state": self._state.name,
                "says": self._state.says,
                "age": self._sight.age,
            }
        return json.dumps(told).encode()

    def _look(self) -> None:
        started = time.monotonic()
        if started < self._good_until:
            return
        news = self._news()
        self._sight = self._runs.look(news.silo_names)
        self._state = tell_state(self._sight.runs, self._sight.working, self._sight.age, news.says)
        self._rest_after(time.monotonic() - started)

    def _rest_after(self, seconds: float) -> None:
        self._good_until = time.monotonic() + max(REST_SECONDS, REST * seconds)


def _waiting_page() -> str:
    main = (
        '<section class="scenario" data-key="waiting"><h1>Waiting for a run</h1><p class="lede">No run has begun '
        "in this folder yet. Its rounds appear here as they finish; nothing needs to be loaded again.</p></section>"
    )
    return LIVE_FRAME.around("Waiting for a run", "no run yet", main, {"groups": [], "runs": []})
