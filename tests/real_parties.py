"""Parties of a federation as real processes: ended so that nothing of them is left behind."""

import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from feddig.federation.processes.processes import end, running, stop_programs

STOP_SECONDS = 40.0


def stop(started: Sequence[subprocess.Popen[bytes]], parties: Iterable[Path]) -> None:
    """Tell these processes to end, kill those that do not, and end whatever still runs for these parties' folders."""
    stop_programs(started, STOP_SECONDS)
    for party in parties:
        end(running(party))
