"""Runs that may be going on: read again only where their folders changed, so that looking often costs little."""

import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from feddig.files import content_hash
from feddig.report.classes import Classes
from feddig.report.runs import Run, find_runs, page_order, read_run

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
