"""Being told to stop, in the worst moment and more than once."""

import signal
import subprocess
import sys

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.federation.processes.processes import stop_on_signals

# in a process of its own: it would hang for ever
SCRIPT = """
import signal
from feddig.federation.processes.processes import stop_on_signals

with stop_on_signals() as stopping:
    with stopping._cond:  # as a wait has it for a moment, and as a signal has that came just before
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert stopping.wait(20)
"""


def test_a_signal_is_heard_in_the_worst_moment() -> None:
    assert subprocess.run([sys.executable, "-c", SCRIPT], timeout=60).returncode == 0


def test_signals_mean_again_what_they_meant() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stopping:
        assert signal.getsignal(signal.SIGTERM) != before
        assert not stopping.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stopping.wait(20)
    assert signal.getsignal(signal.SIGTERM) == before
