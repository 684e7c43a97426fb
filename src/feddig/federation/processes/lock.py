"""Let one process at a time work for a party, and end what an earlier one left over.

The lock file names the process that holds the lock. A holder whose starter has ended is about to end too, as all our
processes end with their parents; a paused one cannot, so it is ended here. Every other holder is left alone.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from feddig.errors import FedDigError
from feddig.federation.processes.processes import (
    POLL_SECONDS,
    ancestors,
    end,
    identity,
    is_orphan,
    is_paused,
    left_over,
    number,
    running,
    still_runs,
)

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
        _take(stream, party)
        stream.truncate(0)
        stream.write(f"{identity(os.getpid())}\n")
        stream.flush()
        end(left_over(party))
        yield


def _take(stream: IO[str], party: Path) -> None:
    """Wait for the lock; end a holder that cannot give it back, and give up on any other."""
    until, ended_orphan = time.monotonic() + LOCK_SECONDS, False
    while fcntl is not None:
        try:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _holder(stream)
            if not ended_orphan and _is_abandoned(holder, party):
                end([number(holder)], ORPHAN_SECONDS)
                ended_orphan = True
            elif time.monotonic() > until:
                raise FedDigError(f"{party}: {_describe(holder)}") from None
            time.sleep(POLL_SECONDS)


def _holder(stream: IO[str]) -> str:
    """Read which process holds the lock; empty while the next holder has not written its name."""
    stream.seek(0)
    name = stream.read().strip()
    return name if still_runs(name) else ""


def _is_abandoned(holder: str, party: Path) -> bool:
    """Return whether this is a process for this party whose starter has ended; not one that was started by hand."""
    process = number(holder)
    ours = process in running(party) and bool(ancestors(process))
    return ours and is_orphan(process) and still_runs(holder)


def _describe(holder: str) -> str:
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
