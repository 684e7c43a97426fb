"""Processes stop on a signal at any moment, and when the process that started them is killed."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.federation.processes.processes import PARTY_VARIABLE, end, is_alive, running, stop_on_signals

pytestmark = pytest.mark.flower

# in a separate process, because a failure hangs for ever
SCRIPT = """
import signal
from feddig.federation.processes.processes import stop_on_signals

with stop_on_signals() as stopping:
    with stopping._cond:  # as wait() holds it for a moment, or another signal's handler
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
    assert stopping.wait(20)
"""


def test_a_signal_during_a_wait_stops_the_process() -> None:
    assert subprocess.run([sys.executable, "-c", SCRIPT], timeout=60).returncode == 0


def test_the_former_signal_handler_is_restored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with stop_on_signals() as stopping:
        assert signal.getsignal(signal.SIGTERM) != before
        assert not stopping.is_set()
        signal.raise_signal(signal.SIGTERM)
        assert stopping.wait(20)
    assert signal.getsignal(signal.SIGTERM) == before


SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc")
def test_a_started_process_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, sys, time; from pathlib import Path; from feddig.federation.processes.processes import start;"
        f"start({SLEEPER!r}, Path('log'), {{**os.environ, {PARTY_VARIABLE!r}: os.getcwd()}});"
        "time.sleep(600)"
    )
    starter = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path)
    try:
        while not running(tmp_path, "time.sleep"):
            assert starter.poll() is None
            time.sleep(0.05)
        child = running(tmp_path, "time.sleep")[0]
    finally:
        starter.kill()
        starter.wait()
    last = time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < last, "it outlives the process that started it"
        time.sleep(0.05)
    end(running(tmp_path))
