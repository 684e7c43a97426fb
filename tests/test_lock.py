"""Real processes that request the same party's lock: one holds it at a time, and only left-over processes are ended."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.errors import FedDigError
from feddig.federation.processes import processes
from feddig.federation.processes.processes import (
    PARTY_VARIABLE,
    age,
    end,
    identity,
    is_alive,
    is_paused,
    party_environment,
    party_lock,
    running,
    start,
    started_by_us,
    still_runs,
)
from folders import wait_until

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]

SLEEPER = [sys.executable, "-c", "import time; time.sleep(600)"]

# takes a party's lock, starts a child, waits for a signal, and then stops the child, as a supervisor does
WORKER = """
import sys, time
from pathlib import Path
from feddig.federation.processes.processes import party_lock
from feddig.federation.processes.processes import start, stop, party_environment
from feddig.federation.processes.processes import stop_on_signals

party, name = Path(sys.argv[1]), sys.argv[2]
with stop_on_signals() as stopping, party_lock(party):
    command = [sys.executable, "-c", "import time; time.sleep(600)", f"child-of-{name}"]
    child = start(command, party / "log", party_environment(party, party))
    (party / f"{name}.holds").touch()
    stopping.wait()
    stop(child, party, 3)
"""

# starts a worker as `federation up` starts a supervisor, and waits
STARTER = """
import sys, time
from pathlib import Path
from feddig.federation.processes.processes import start, party_environment

party = Path(sys.argv[1])
start([sys.executable, "-c", sys.argv[2], str(party), "worker"], party / "log", party_environment(party, party))
time.sleep(600)
"""


@pytest.fixture
def party(tmp_path: Path) -> Iterator[Path]:
    """Return a party's folder, and end all its processes afterwards."""
    folder = tmp_path / "party"
    folder.mkdir()
    yield folder
    end(running(folder))


def work(party: Path, name: str) -> subprocess.Popen[bytes]:
    return start(
        [sys.executable, "-c", WORKER, str(party), name], party / "log", party_environment(party, party)
    )


def holds(party: Path, name: str) -> Callable[[], bool]:
    return (party / f"{name}.holds").exists


def test_only_left_over_processes_of_this_party_are_ended(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "mine-too"
    processes = []
    for party in (mine, other):
        party.mkdir()
        processes.append(
            subprocess.Popen(SLEEPER, env={**os.environ, PARTY_VARIABLE: str(party)}, start_new_session=True)
        )
    try:
        wait_until(lambda: running(mine) and running(other), 10)
        with party_lock(mine):
            assert processes[0].wait(10) == -signal.SIGKILL
            assert running(mine) == []
            assert running(other) == [processes[1].pid]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_only_one_process_is_at_work_for_a_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feddig.federation.processes.processes.LOCK_SECONDS", 0.3)
    with (
        party_lock(tmp_path),
        pytest.raises(FedDigError, match="another process is at work here"),
        party_lock(tmp_path),
    ):
        pass
    with party_lock(tmp_path):
        pass


def test_a_process_that_stops_does_not_end_its_successor(party: Path) -> None:
    first = work(party, "first")
    wait_until(holds(party, "first"), 20)
    child = running(party, "child-of-first")
    second = work(party, "second")
    time.sleep(1.5)  # by now it waits for the lock
    assert not holds(party, "second")()
    first.terminate()
    assert first.wait(20) == 0
    wait_until(holds(party, "second"), 20)
    assert second.poll() is None
    assert not any(map(is_alive, child)), "the child of the first process has ended"
    assert len(running(party, "child-of-second")) == 1
    second.terminate()
    assert second.wait(20) == 0
    assert running(party) == []


@pytest.mark.slow
def test_the_next_holder_does_not_end_the_processes_that_wait_for_the_lock(party: Path) -> None:
    first = work(party, "first")
    wait_until(holds(party, "first"), 20)
    waiting = {name: work(party, name) for name in ("second", "third")}
    time.sleep(1.5)
    first.terminate()
    first.wait(20)
    wait_until(lambda: any(holds(party, name)() for name in waiting), 20)
    time.sleep(0.5)
    assert [process.poll() for process in waiting.values()] == [None, None]
    for process in waiting.values():
        process.terminate()
        process.wait(30)


def test_only_our_own_descendants_are_listed_as_started_by_us(party: Path) -> None:
    worker = work(party, "worker")
    wait_until(lambda: running(party, "child-of-worker"), 20)
    mine = start(SLEEPER, party / "log", party_environment(party, party))
    other = subprocess.Popen(SLEEPER, env={**os.environ, PARTY_VARIABLE: str(party)})
    # one of them becomes its program after it has started; in between it belongs to no party
    wait_until(lambda: len(running(party)) == 4 and not running(party, "end_with_parent"), 20)
    assert set(started_by_us(party)) == set(running(party)) - {other.pid}
    other.kill()
    other.wait()
    end([mine.pid])
    assert mine.wait(10) == -signal.SIGKILL
    worker.terminate()
    assert worker.wait(20) == 0


@pytest.mark.parametrize("deaf", [False, True], ids=["ends when told", "must be killed"])
def test_a_paused_holder_whose_starter_was_killed_is_ended(
    party: Path, monkeypatch: pytest.MonkeyPatch, deaf: bool
) -> None:
    monkeypatch.setattr(processes, "ORPHAN_SECONDS", 2.0 if deaf else 15.0)
    script = WORKER.replace("stopping.wait()", "time.sleep(600)") if deaf else WORKER
    starter = subprocess.Popen([sys.executable, "-c", STARTER, str(party), script])
    wait_until(holds(party, "worker"), 20)
    (worker,) = (
        one for one in running(party) if b"stop_on_signals" in Path(f"/proc/{one}/cmdline").read_bytes()
    )
    os.kill(worker, signal.SIGSTOP)
    wait_until(lambda: is_paused(worker), 20)
    starter.kill()
    starter.wait()
    with party_lock(party):
        assert not is_alive(worker)
        assert running(party) == []


def test_a_paused_holder_that_was_started_by_hand_is_left_alone_and_named(
    party: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOCK_SECONDS", 0.5)
    environment = {name: value for name, value in os.environ.items() if name != PARTY_VARIABLE}
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(party), "worker"], env=environment)
    try:
        wait_until(holds(party, "worker"), 20)
        os.kill(worker.pid, signal.SIGSTOP)
        wait_until(lambda: is_paused(worker.pid), 20)
        with (
            pytest.raises(FedDigError, match=f"process {worker.pid} is at work here but paused") as caught,
            party_lock(party),
        ):
            pass
        assert f"kill -CONT {worker.pid}" in str(caught.value)
        assert worker.poll() is None
        assert running(party, "child-of-worker"), "its child has ended too"
        os.kill(worker.pid, signal.SIGCONT)
        with (
            pytest.raises(
                FedDigError, match=f"another process is at work here, process {worker.pid}; end it"
            ),
            party_lock(party),
        ):
            pass
    finally:
        os.kill(worker.pid, signal.SIGCONT)
        worker.terminate()
        worker.wait(20)


def test_a_reused_process_number_is_not_taken_for_the_holder(
    party: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOCK_SECONDS", 0.5)
    stranger = subprocess.Popen(SLEEPER)
    try:
        wait_until(lambda: identity(stranger.pid), 20)
        assert still_runs(identity(stranger.pid))
        assert not still_runs(f"{stranger.pid}@1")
        with party_lock(party):
            (party / "lock").write_text(f"{stranger.pid}@1\n", encoding="utf-8")
            with (
                pytest.raises(FedDigError, match="another process is at work here; end it"),
                party_lock(party),
            ):
                pass
        assert stranger.poll() is None
        assert 0 <= age(stranger.pid) < 60
    finally:
        stranger.kill()
        stranger.wait()
    assert identity(stranger.pid) == ""
    assert not still_runs("nonsense")
