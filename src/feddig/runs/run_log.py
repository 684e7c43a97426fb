"""log.txt of a run: what happened while it lasted, and the lock by which one process alone works on it."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feddig.errors import FedDigError
from feddig.files import FORMAT_VERSION

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("feddig")

LOCK_SECONDS = 0.05
LOOK_SECONDS = 0.3
"""Whoever watches a run holds its lock for an instant, to see whether it is taken: so much patience it always has."""


@contextmanager
def open_log(folder: Path, patience: float = 0.0) -> Iterator[None]:
    """Copy the log into a results folder's log.txt while a run lasts.

    Where another process is at work there, wait so many seconds for it to end.
    """
    handler = logging.FileHandler(folder / "log.txt", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level, propagate = log.level, log.propagate
    if not log.isEnabledFor(logging.INFO):
        # the file wants what the user's own handlers were not set up for
        log.setLevel(logging.INFO)
        log.propagate = False
    log.addHandler(handler)
    try:
        _lock(handler, folder, time.monotonic() + max(patience, LOOK_SECONDS))
        log.info("log, format_version %d", FORMAT_VERSION)
        yield
    except (FedDigError, KeyboardInterrupt) as error:
        # no louder: the caller tells the user, this tells whoever reads the file
        log.info("stopped: %s", str(error) or "interrupted")
        raise
    finally:
        log.removeHandler(handler)
        handler.close()
        log.setLevel(level)
        log.propagate = propagate


def _lock(handler: logging.FileHandler, folder: Path, until: float) -> None:
    """Hold the folder for this process alone; the system lets go of it however the process ends."""
    if fcntl is None or handler.stream is None:
        return  # Windows: the user must take care
    while True:
        try:
            fcntl.flock(handler.stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise FedDigError(
                    f"{folder}: another process is at work on this run; wait for it to end"
                ) from None
        time.sleep(LOCK_SECONDS)
