"""Keep the page of `feddig watch` up to date: read runs again when their files change, and describe their state."""

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from feddig.files import content_hash
from feddig.report.html_parts import LIVE_PAGE
from feddig.report.page import build_page
from feddig.report.read_run import Run, find_runs, page_order, read_run

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

MIN_CACHE_SECONDS = 0.5
"""An answer is reused for at least this long, however many requests come."""
CACHE_FACTOR = 9.0
"""It is also reused for this many times as long as it took to make: the runs need the processor more."""
PAUSE_SECONDS = 10.0
"""A comparison reads data between two runs; only after this long without a process is it called stopped."""
WAITING, LIVE, STOPPED, ENDED, UNKNOWN = "waiting", "live", "stopped", "ended", "unknown"
IGNORED_FILES = ("log.txt", "checkpoint", "curves.png", "report.html")
"""Files that change in a run's folder without changing its page."""
CLASS_FILES = ("classes.json", "partition.csv", "digests")
"""Files that classes are counted from. Reading them takes seconds in a large run, and they hardly ever change."""

FileStamps = tuple[tuple[str, int, int, int], ...]
"""Name, time of the last change in nanoseconds, size and inode of each file in a run's folder."""


@dataclass(frozen=True)
class FederationStatus:
    """What a federation's moderator reports about itself."""

    silo_names: Sequence[str] = ()
    message: str = ""


class LivePage:
    """The page about a folder; it is made again when it is requested and something has changed."""

    def __init__(self, folder: Path, read_status: Callable[[], FederationStatus] = FederationStatus) -> None:
        self._runs, self._read_status = LiveRuns(folder), read_status
        self._lock = threading.Lock()
        self._snapshot, self._state = Snapshot((), (), "", None), State("", "")
        self._page, self._page_version = b"", ""
        self._valid_until = 0.0

    def page(self) -> tuple[bytes, str]:
        """Return the page and its version."""
        with self._lock:
            self._update()
            if self._page_version != self._snapshot.version:
                started = time.monotonic()
                runs = self._snapshot.runs
                self._page = (build_page(runs, LIVE_PAGE) if runs else _waiting_page()).encode()
                self._page_version = self._snapshot.version
                self._reuse_after(time.monotonic() - started)
            return self._page, self._page_version

    def state(self) -> bytes:
        """Return as JSON the state of the runs, the version of their page, and the age of the last change."""
        with self._lock:
            self._update()
            state = {
                "version": self._snapshot.version,
                "state": self._state.name,
                "message": self._state.message,
                "age": self._snapshot.age,
            }
        return json.dumps(state).encode()

    def _update(self) -> None:
        started = time.monotonic()
        if started < self._valid_until:
            return
        status = self._read_status()
        self._snapshot = self._runs.read(status.silo_names)
        self._state = describe_state(self._snapshot, status.message)
        self._reuse_after(time.monotonic() - started)

    def _reuse_after(self, seconds: float) -> None:
        self._valid_until = time.monotonic() + max(MIN_CACHE_SECONDS, CACHE_FACTOR * seconds)


def _waiting_page() -> str:
    main = (
        '<section class="scenario" data-key="waiting"><h1>Waiting for a run</h1><p class="lede">No run has begun '
        "in this folder yet. Its rounds appear here as they finish; there is no need to reload.</p></section>"
    )
    return LIVE_PAGE.render("Waiting for a run", "no run yet", main, {"groups": [], "runs": []})


@dataclass(frozen=True)
class Snapshot:
    """All runs of a folder at one moment."""

    runs: Sequence[Run]
    active: Sequence[bool | None]
    """For each run whether a process is working on it; None where that is not known."""
    version: str
    """Differs whenever a page about the runs would."""
    changed: float | None
    """When a file was last written, in seconds since 1970."""

    @property
    def age(self) -> float | None:
        """Seconds since then; never negative, because clocks of file servers may be ahead."""
        return None if self.changed is None else max(0.0, time.time() - self.changed)


class LiveRuns:
    """Reads the runs in and below a folder; a run is read again only if its files changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: dict[Path, tuple[FileStamps, Run]] = {}
        self._silo_names: Sequence[str] = ()

    def read(self, silo_names: Sequence[str] = ()) -> Snapshot:
        """Return the runs as they are now; silos whose names are in no file of a run may be named here."""
        if silo_names != self._silo_names:
            self._known, self._silo_names = {}, silo_names
        paths: list[Path] = []
        # a folder may be removed while it is searched
        with suppress(OSError):
            paths = list(find_runs(self._folder))
        self._known = {path: self._read_run(path, _file_stamps(path)) for path in paths}
        runs = sorted((run for _, run in self._known.values()), key=page_order)
        stamps = sorted((path, stamp) for path, (stamp, _) in self._known.items())
        version = content_hash(repr((stamps, list(silo_names))).encode())[:16]
        changes = [changed for _, stamp in stamps for _, changed, _, _ in stamp]
        return Snapshot(
            runs, [_is_active(run) for run in runs], version, max(changes) / 1e9 if changes else None
        )

    def _read_run(self, path: Path, stamps: FileStamps) -> tuple[FileStamps, Run]:
        classes = None
        if path in self._known:
            known_stamps, known_run = self._known[path]
            if known_stamps == stamps:
                return self._known[path]
            if _class_stamps(known_stamps) == _class_stamps(stamps):
                classes = known_run.classes
        run = read_run(path, classes, growing=True)
        if not run.classes.silo_names and len(self._silo_names) == run.silos:
            run = replace(run, classes=replace(run.classes, silo_names=tuple(self._silo_names)))
        return stamps, run


def _file_stamps(folder: Path) -> FileStamps:
    found = []
    with suppress(OSError):
        for entry in os.scandir(folder):
            # files that are being written have names with a dot
            if entry.name not in IGNORED_FILES and not entry.name.startswith("."):
                with suppress(OSError):
                    facts = entry.stat()
                    found.append((entry.name, facts.st_mtime_ns, facts.st_size, facts.st_ino))
    return tuple(sorted(found))


def _class_stamps(stamps: FileStamps) -> FileStamps:
    return tuple(stamp for stamp in stamps if stamp[0] in CLASS_FILES)


def _is_active(run: Run) -> bool | None:
    """Return whether a process holds the lock on the run's log, as a process that works on the run does."""
    if run.finished:
        return False
    if fcntl is None:
        return None
    try:
        with (run.path / "log.txt").open("rb") as stream:
            # released at once; a run that starts at this moment tries again
            fcntl.flock(stream.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        return False
    except OSError:
        return None
    return False


@dataclass(frozen=True)
class State:
    """The state of the watched runs: a name for the page's script and a message for people."""

    name: str
    message: str


def describe_state(snapshot: Snapshot, federation: str = "") -> State:
    """Describe the state of the runs; while one is active, add the message of a federation's moderator."""
    if not snapshot.runs:
        state = State(WAITING, "waiting: no run has begun here yet")
    elif len(snapshot.runs) == 1:
        state = _describe_one(snapshot.runs[0], snapshot.active[0])
    else:
        state = _describe_many(snapshot)
    return State(LIVE, f"{state.message}; {federation}") if federation and state.name == LIVE else state


def _describe_one(run: Run, active: bool | None) -> State:
    if run.finished:
        return State(ENDED, f"ended: all {len(run.rows)} rounds are done")
    if active is None:
        return State(UNKNOWN, _round_of(run))
    if active:
        return State(LIVE, f"live, {_round_of(run)}")
    return State(STOPPED, f"stopped at {_round_of(run)}: no process is working on it now")


def _describe_many(snapshot: Snapshot) -> State:
    runs = snapshot.runs
    active = [run for run, is_active in zip(runs, snapshot.active, strict=True) if is_active]
    finished = f"{sum(run.finished for run in runs)} of {len(runs)} runs finished"
    if len(active) == 1:
        (run,) = active
        name = f"{run.algorithm}, {run.scenario}, seed {run.seed}"
        return State(LIVE, f"live, {name}: {_round_of(run)}; {finished}")
    if active:
        return State(LIVE, f"live, {len(active)} runs are active; {finished}")
    if None in snapshot.active:
        return State(UNKNOWN, finished)
    if (snapshot.age or 0.0) < PAUSE_SECONDS:
        return State(WAITING, f"{finished}; the next may start soon")
    message = f"{finished}; no process is working on them now"
    return State(ENDED if all(run.finished for run in runs) else STOPPED, message)


def _round_of(run: Run) -> str:
    return f"round {len(run.rows)} of {run.planned_rounds}"
