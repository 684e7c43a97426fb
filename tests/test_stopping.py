"""Processes stop when they are told to, in any moment, and when the process that started them is killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.federation.processes.processes import PARTY_VARIABLE, end, is_alive, running, stop_on_signals

pytestmark = pytest.mark.flower

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


SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_what_is_started_ends_with_us_even_when_we_are_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path; from feddig.federation.processes.processes import start;"
        f"start({SLEEPER!r}, Path('log'), {{**os.environ, {PARTY_VARIABLE!r}: os.getcwd()}});"
        "time.sleep(600)"
    )
    us = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    try:
        while not running(tmp_path, "time.sleep"):
            assert us.poll() is None
            time.sleep(0.05)
        child = running(tmp_path, "time.sleep")[0]
    finally:
        us.kill()
        us.wait()
    last = time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < last, "it outlives the process that started it"
        time.sleep(0.05)
    end(running(tmp_path))
