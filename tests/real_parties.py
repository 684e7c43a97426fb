"""Start a small federation as real processes, watch and disturb it, and end all its processes."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pytest
from safetensors.torch import load_file

from feddig import run
from feddig.cli import main
from feddig.digest.digest_file import read_digest
from feddig.experiment.toml import read_experiment
from feddig.federation.folders import FederationFolder, SiloFolder
from feddig.federation.processes.processes import end, free_port, running, stop_programs
from feddig.federation.status import Status, read_status
from feddig.files import write_atomically
from folders import rows

SILOS = 2
APP, NODE, LINK = (
    "flwr-serverapp",
    "feddig.federation.flower_1_41.node",
    "feddig.federation.flower_1_41.superlink",
)
STOP_SECONDS = 40.0
EXPERIMENT = """
[data]
name = "fashion-mini"
limit = 300
[absence]
scenario = "none"
[algorithm]
name = "feddig"
[model]
classifier = "small"
[training]
rounds = 600
batch = 32
lr = 0.003
threads = 1
"""
LIAR = Path(__file__).parents[1] / "benchmarks" / "lying_silo"


def stop(started: Sequence[subprocess.Popen[bytes]], parties: Iterable[Path]) -> None:
    """Tell processes to end, kill those that do not, and end everything else that runs for these parties."""
    stop_programs(started, STOP_SECONDS)
    for party in parties:
        end(running(party))


def send(processes: Iterable[int], number: int) -> None:
    """Send a signal to processes, some of which may have ended."""
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


def kill(party: Path, program: str) -> None:
    """Kill a party's program with SIGKILL."""
    found = running(party, program)
    assert found, f"no {program} runs for {party}"
    send(found, signal.SIGKILL)


class RealFederation:
    """The folders of a federation with two silos, and `feddig federation up` on them."""

    def __init__(
        self, path: Path, *settings: str, training_deadline: float = 60.0, host: str = "127.0.0.1"
    ) -> None:
        self.folder = FederationFolder(path)
        self.process: subprocess.Popen[bytes] | None = None
        file = path.with_suffix(".toml")
        file.write_text(EXPERIMENT, encoding="utf-8")
        deadlines = (
            "--training-deadline",
            training_deadline,
            "--digest-deadline",
            max(30, training_deadline),
        )
        command = [
            "federation", "init", path, "--silos", SILOS, "--experiment", file, "--rehearse", "fashion-mini",
            "--host", host, "--port", free_port(), *deadlines,
            "--min-silos", 1,
            *(part for setting in settings for part in ("--set", setting)),
        ]  # fmt: skip
        with pytest.raises(SystemExit) as ended:
            main([str(part) for part in command])
        assert not ended.value.code

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def parties(self) -> list[Path]:
        return [self.folder.moderator.path, *(self.silo(silo).path for silo in range(SILOS))]

    def silo(self, number: int) -> SiloFolder:
        return self.folder.silo(f"silo-{number}")

    def start(self) -> None:
        """Start moderator and silos, or continue."""
        command = [sys.executable, "-m", "feddig", "federation", "up", str(self.folder.path)]
        paths = os.pathsep.join(filter(None, [str(LIAR), os.environ.get("PYTHONPATH")]))
        with (self.folder.path / "up.log").open("ab") as said:
            self.process = subprocess.Popen(
                command, stdout=said, stderr=subprocess.STDOUT, env={**os.environ, "PYTHONPATH": paths}
            )

    def stop(self) -> None:
        """End all processes."""
        for party in self.parties:
            send(running(party), signal.SIGCONT)  # a paused process could not end
        assert self.process is not None
        stop([self.process], self.parties)

    def wait(self, seconds: float = 240.0) -> int:
        """Wait until `up` ends, and return its exit code."""
        assert self.process is not None
        return self.process.wait(seconds)

    def wait_for(self, holds: Callable[[], Any], seconds: float = 200.0, pause: float = 0.2) -> Any:
        """Wait until something is true, and return it."""
        last = time.monotonic() + seconds
        while time.monotonic() < last:
            if found := holds():
                return found
            if self.process is not None and self.process.poll() is not None:
                raise AssertionError(f"`up` has ended; the log ends with:\n{self.log()[-3000:]}")
            time.sleep(pause)
        raise AssertionError(f"not in {seconds:g} s; the log ends with:\n{self.log()[-3000:]}")

    def wait_for_line(self, line: str, start: int = 0) -> int:
        """Wait for a line after this place of the moderator's log; return the round that it names, as rows count."""
        return int(self.wait_for(lambda: re.search(line, self.log()[start:]))[1]) - 1

    def wait_for_state(self, state: str, rounds: int) -> None:
        """Wait until the moderator is in this state, with at least this many rounds done."""

        def holds() -> bool:
            status = read_status(self.folder.moderator.status)
            return status is not None and status.content["state"] == state and status.rounds_done >= rounds

        self.wait_for(holds, pause=0.05)

    def wait_for_everybody(self) -> None:
        """Wait for a round that both silos answered."""
        before = len(self.rows())
        self.wait_for(lambda: any(row["present"] == [0, 1] for row in self.rows()[before:]), seconds=300)

    def log(self) -> str:
        file = self.folder.moderator.run / "log.txt"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows of the rounds so far; the last line may be half written."""
        try:
            return rows(self.folder.moderator.run)
        except (OSError, ValueError):
            return []

    def status(self) -> Status:
        status = read_status(self.folder.moderator.status)
        assert status is not None
        return status

    def present(self, silo: int) -> list[int]:
        """Return the rounds that a silo answered."""
        return [row["round"] for row in self.rows() if silo in row["present"]]

    def recalled(self, silo: int) -> list[int]:
        """Return the rounds in which a silo was recalled."""
        return [row["round"] for row in self.rows() if silo in row["recalled"]]

    def lie(self, silo: int, lie: str) -> None:
        """Let a silo's node lie from its next answer on, until `be_honest` is called."""
        write_atomically(self.silo(silo).path / "lie", lie)

    def be_honest(self, silo: int) -> None:
        (self.silo(silo).path / "lie").unlink(missing_ok=True)

    def restart_node(self, silo: int) -> None:
        """End a silo's node, and wait for the next one that its supervisor starts."""
        first = set(running(self.silo(silo).path, NODE))
        send(first, signal.SIGTERM)
        self.wait_for(lambda: set(running(self.silo(silo).path, NODE)) - first)

    def check_nothing_was_lost(self) -> None:
        found = self.rows()
        assert [row["round"] for row in found] == list(range(len(found)))
        for silo in range(SILOS):
            held = read_digest(self.folder.moderator.run / "digests" / f"silo-{silo}.safetensors")
            assert held.hash == read_digest(self.silo(silo).digest).hash

    def compare_with_one_process(self, there: Path) -> float:
        """Run the experiment in this process with the silos that were present; return the largest difference."""
        experiment = read_experiment(self.folder.moderator.run / "experiment.toml")
        data = replace(experiment.data, name="fashion-mini", limit=300)
        happened = str(self.folder.moderator.run / "availability.csv")
        absence = replace(experiment.absence, scenario="file", file=happened)
        run(replace(experiment, data=data, absence=absence), there, device="cpu")
        differences = []
        for file in ("model.safetensors", "guidance.safetensors"):
            here, other = load_file(self.folder.moderator.run / file), load_file(there / file)
            assert here.keys() == other.keys()
            differences += [float((tensor - other[name]).abs().max()) for name, tensor in here.items()]
        return max(differences)
