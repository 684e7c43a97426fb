"""A rehearsal federation as real processes on this machine, for the benchmarks that run one.

Every process is found by its party's folder and ended by its id, also when a benchmark fails or is stopped itself.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

from feddig.errors import FedDigError
from feddig.experiment.experiment import Experiment
from feddig.experiment.toml import experiment_from_table, read_experiment, write_experiment
from feddig.federation.contract import read_contract
from feddig.federation.folders import FederationFolder, SiloFolder
from feddig.federation.processes.processes import (
    end,
    free_port,
    party_environment,
    running,
    start,
    stop_programs,
)
from feddig.federation.status import Status, read_status
from feddig.files import write_atomically
from feddig.runs.results_folder import ResultsFolder

DATA, CLASSIFIER = "fashion-mini", "small"
APP, LINK, NODE = (
    "flwr-serverapp",
    "feddig.federation.flower_1_41.superlink",
    "feddig.federation.flower_1_41.node",
)
LIAR = Path(__file__).with_name("lying_silo")
MAY_LIE = {"PYTHONPATH": os.pathsep.join(filter(None, [str(LIAR), os.environ.get("PYTHONPATH")]))}
SUPERVISOR = "federation\0silo"
"""As /proc spells a supervisor's command."""
STOP_SECONDS = 40.0


def small_experiment(
    *, silos: int, rounds: int, limit: int, seed: int, epochs: int = 1, algorithm: str = "feddig"
) -> Experiment:
    """Give an algorithm on few images and a small classifier."""
    return experiment_from_table(
        {
            "seed": seed,
            "data": {"name": DATA, "limit": limit, "silos": silos, "min_samples": 16},
            "absence": {"scenario": "none"},
            "algorithm": {"name": algorithm},
            "model": {"classifier": CLASSIFIER},
            "training": {"rounds": rounds, "batch": 32, "lr": 0.01, "threads": 1, "local_epochs": epochs},
        }
    )


class RehearsedFederation:
    """A federation's folders, and `feddig federation up` on them."""

    def __init__(self, path: Path, experiment: Experiment) -> None:
        self.folder, self.experiment = FederationFolder(path), experiment
        self.process: subprocess.Popen[bytes] | None = None
        self.by_hand: dict[int, subprocess.Popen[bytes]] = {}
        """Supervisors of silos that were started one by one, and not by `up`."""

    @classmethod
    def make(cls, path: Path, experiment: Experiment, *, deadline: float) -> "RehearsedFederation":
        """Write the folders with `feddig federation init`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.with_suffix(".toml")
        write_atomically(file, write_experiment(experiment))
        command = [
            sys.executable, "-m", "feddig", "federation", "init", path, "--silos", experiment.data.silos,
            "--experiment", file, "--rehearse", experiment.data.name, "--port", free_port(),
            "--training-deadline", deadline, "--digest-deadline", deadline,
        ]  # fmt: skip
        subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
        return cls(path, experiment)

    def __enter__(self) -> "RehearsedFederation":
        # a polite end must clean up too
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @cached_property
    def silos(self) -> list[SiloFolder]:
        """The silos' folders, in order."""
        return self.folder.silos([member.name for member in read_contract(self.folder.contract).members])

    @property
    def results(self) -> ResultsFolder:
        """The moderator's results folder."""
        return ResultsFolder(self.folder.moderator.run)

    def up(self) -> None:
        """Start moderator and silos, or go on."""
        command = [sys.executable, "-m", "feddig", "federation", "up", str(self.folder.path)]
        self.process = start(command, self.folder.path / "up.log", {**os.environ, **MAY_LIE})

    def start_silo(self, silo: int) -> None:
        """Start one silo's supervisor, as its people would."""
        folder = self.silos[silo]
        command = [
            sys.executable,
            "-m",
            "feddig",
            "federation",
            "silo",
            str(folder.path),
            "--log-level",
            "info",
        ]
        environment = {**party_environment(folder.path, folder.flower_home), **MAY_LIE}
        self.by_hand[silo] = start(command, folder.logs / "silo.log", environment)

    def stop(self) -> None:
        """End all its processes: politely first, and then whatever is left."""
        parties = [self.folder.moderator.path, *(silo.path for silo in self.silos)]
        for party in parties:  # one that was stopped could not end
            send(running(party), signal.SIGCONT)
        stop_programs(
            [one for one in (self.process, *self.by_hand.values()) if one is not None], STOP_SECONDS
        )
        for party in parties:
            end(running(party))

    def status(self) -> Status | None:
        """Give how it stands; None before the moderator has said anything."""
        return read_status(self.folder.moderator.status)

    def rows(self) -> list[dict[str, Any]]:
        """Give the rows of the rounds so far; one that is half written is not yet there."""
        try:
            return self.results.metrics()
        except FedDigError:
            return []

    def log(self) -> str:
        """Give what the moderator said."""
        file = self.folder.moderator.run / "log.txt"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def in_one_process(self, availability: Path | None = None) -> Experiment:
        """Give the same experiment for one process, with who was really there where a table is given."""
        experiment = read_experiment(self.folder.moderator.run / "experiment.toml")
        data = replace(experiment.data, name=self.experiment.data.name, limit=self.experiment.data.limit)
        experiment = replace(experiment, data=data)
        if availability is None:
            return experiment
        absence = replace(experiment.absence, scenario="file", file=str(availability))
        return replace(experiment, absence=absence)


def send(processes: Iterable[int], number: int) -> None:
    """Send a signal to processes, some of which may have ended."""
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


def peak_memory(processes: Iterable[int]) -> int:
    """Return the largest peak memory (VmHWM) of these processes so far, in bytes; 0 if all have ended."""
    peaks = [0]
    for process in processes:
        try:
            lines = Path("/proc", str(process), "status").read_text().splitlines()
        except OSError:
            continue
        peaks += [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return max(peaks)


class LoadWatch:
    """Samples the machine's load: figures of time mean little without it."""

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._last = 0.0

    def sample(self) -> None:
        """Take a sample, at most every ten seconds."""
        if time.monotonic() - self._last >= 10:
            self._last = time.monotonic()
            self._samples.append(os.getloadavg()[0])

    def summary(self) -> dict[str, float | int | None]:
        """Give lowest, mean and highest load, and how many cores there are."""
        found = self._samples or [os.getloadavg()[0]]
        return {
            "cores": os.cpu_count(),
            "lowest": round(min(found), 1),
            "mean": round(sum(found) / len(found), 1),
            "highest": round(max(found), 1),
        }
