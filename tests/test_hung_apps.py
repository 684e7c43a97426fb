"""Real processes in place of a silo's apps: one that hangs is ended, also when it reacts to no signal."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.federation.processes.processes import (
    PARTY_VARIABLE,
    end,
    is_paused,
    party_environment,
    running,
    start,
)
from feddig.federation.processes.supervisor import APP, Watchdog

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]

LONGEST = 2.0


def sleeper(name: str) -> list[str]:
    return [sys.executable, "-c", "import time; time.sleep(600)", name]


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    end(running(tmp_path))


def test_an_app_that_hangs_is_ended_and_nothing_else_is(
    party: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watchdog = Watchdog(party, LONGEST)
    environment = party_environment(party, party)
    hung, node = (
        start(sleeper(name), party / "log", environment)
        for name in (APP, "feddig.federation.flower_1_41.supernode")
    )
    others = subprocess.Popen(sleeper(APP), env={**os.environ, PARTY_VARIABLE: str(party)})
    # a paused process reacts to no signal but SIGKILL
    os.kill(hung.pid, signal.SIGSTOP)
    while not is_paused(hung.pid):
        time.sleep(0.05)
    watchdog.look()
    assert hung.poll() is None, "it may still answer"
    time.sleep(LONGEST + 0.5)
    young = start(sleeper(APP), party / "log", environment)
    watchdog.look()
    assert hung.wait(5) == -signal.SIGKILL
    assert f"process {hung.pid} is ended" in caplog.text
    assert [node.poll(), young.poll(), others.poll()] == [None, None, None]
    for process in (node, young, others):
        process.kill()
        process.wait()
