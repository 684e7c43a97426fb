"""Being the only process at work for a party, and clearing away what an earlier one left.

The lock file names its holder. A holder whose own starter has ended is on its way out, as everything of ours ends with
whoever started it; only if it was paused it cannot end, and is helped. Any other holder is left alone.
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
    end,
    identity,
    is_orphan,
    is_stopped,
    left_over,
    lineage,
    lives,
    number,
    running,
)

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_SECONDS = 20.0
"""How long an earlier holder may take to end by itself."""
ORPHAN_SECONDS = 15.0
"""How long one whose starter has ended may take, before it is killed."""


@contextmanager
def hold(party: Path) -> Iterator[None]:
    """Be the only process at work for a party while this lasts, and end what an earlier one left behind."""
    with (party / "lock").open("a+", encoding="utf-8") as stream:
        _take(stream, party)
        stream.truncate(0)
        stream.write(f"{identity(os.getpid())}\n")
        stream.flush()
        end(left_over(party))
        yield


def _take(stream: IO[str], party: Path) -> None:
    """Wait for the lock, and for nobody who will never give it up."""
    until, helped = time.monotonic() + LOCK_SECONDS, False
    while fcntl is not None:
        try:
            fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _holder(stream)
            if not helped and _is_abandoned(holder, party):
                end([number(holder)], ORPHAN_SECONDS)
                helped = True
            elif time.monotonic() > until:
                raise FedDigError(f"{party}: {_describe(holder)}") from None
            time.sleep(POLL_SECONDS)


def _holder(stream: IO[str]) -> str:
    """Read who holds the lock; empty while the next holder has not signed yet."""
    stream.seek(0)
    name = stream.read().strip()
    return name if lives(name) else ""


def _is_abandoned(holder: str, party: Path) -> bool:
    """Tell whether this is a process of ours, for this party, whose starter has ended; by hand started ones are not."""
    process = number(holder)
    return process in running(party) and bool(lineage(process)) and is_orphan(process) and lives(holder)


def _describe(holder: str) -> str:
    """Say who is in the way, and what to do about it."""
    process = number(holder)
    if not process:
        return "another process is at work here; end it, or wait for it"
    if is_stopped(process):
        return (
            f"process {process} is at work here but paused; let it go on with `kill -CONT {process}`, "
            f"or end it with `kill -9 {process}`"
        )
    return f"another process is at work here, process {process}; end it with `kill {process}`, or wait for it"
