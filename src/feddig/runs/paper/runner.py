"""Run the cells of a table one after the other; each finished one is kept at once."""

import logging
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from feddig.core.absence import PAPER_ROUNDS, Absence, read_absence
from feddig.errors import DivergenceError, FedDigError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import choose_device, describe_device
from feddig.files import attended, content_hash, locked
from feddig.report.html_parts import PAGE, say_page
from feddig.runs.paper.cells import COSTS, Cell, Line, PaperTable, keep, read_lines, seconds_by_kind
from feddig.runs.progress import Progress
from feddig.runs.result import Result
from feddig.runs.results_folder import ResultsFolder
from feddig.runs.run import resume, run

log = logging.getLogger("feddig")

RUNNING = ".running"
"""The file by which processes that run cells see each other."""
TEN = 10
"""Rounds over which a silo's validation accuracy is averaged."""


class OutOfTimeError(FedDigError):
    """A run that was interrupted because its time is over; it goes on when it is started again."""


@dataclass(frozen=True)
class Runner:
    """Runs cells one after the other and keeps each at once."""

    table: PaperTable
    results: Path
    work: Path
    """For the results folders of the runs, which may be deleted once their cells are finished."""
    device: str = "auto"
    data_dir: Path | None = None
    until: float | None = None
    """When to stop, by time.monotonic()."""
    progress: Callable[[], Progress] | None = None

    def run(self, say: Callable[[str], None]) -> list[str]:
        """Run the cells that are not finished; return what failed. `say` is told what happens.

        Several processes may do so at once: each takes cells that no other one is running.
        """
        device = describe_device(choose_device(self.device))
        failures: list[str] = []
        with attended(self.work / RUNNING) as alone:
            for cell in self.table.cells:
                with locked(self._folder(cell).with_suffix(".lock"), wait=False) as mine:
                    if not mine:
                        say(f"left out: {cell.name}: another process is running it")
                        continue
                    lines = read_lines(self.results)
                    if cell.key in self.table.finished(lines):
                        continue
                    try:
                        self._check_time(cell, seconds_by_kind(lines).get((cell.cost_kind, device)))
                        before = alone()
                        line = self._run(cell)
                    except OutOfTimeError as error:
                        say(f"stopped: {cell.name}: {error}")
                        break
                    except DivergenceError as error:
                        line = {"settings": cell.settings, "device": device, "failure": str(error)}
                    except FedDigError as error:
                        failures.append(f"{cell.name}: {error}")
                        log.warning("%s", failures[-1])
                        continue
                    if before is None or before != alone():  # beside others a round takes longer
                        line = {name: value for name, value in line.items() if name != "seconds_per_round"}
                    if self.table.kind == COSTS and not {"seconds_per_round", "failure"} & line.keys():
                        failures.append(
                            f"{cell.name}: its rounds did not run alone in this call, so they were not timed; remove "
                            f"{self._folder(cell)} and run the cell again"
                        )
                        continue
                    self._keep(line)
                say(f"finished: {cell.name}: {_result(line)}")
                page = self._folder(cell) / PAGE
                if page.is_file():
                    say(say_page(page))
        return failures

    def _check_time(self, cell: Cell, seconds: float | None) -> None:
        if self.until is None:
            return
        left = self.until - time.monotonic()
        whole = (seconds or 0.0) * cell.experiment.training.rounds
        if left <= 0 or whole > left:
            cost = "it is not timed" if seconds is None else f"it takes about {whole:.0f} s"
            raise OutOfTimeError(f"{cost}, and {max(left, 0):.0f} s are left")

    def time(self, say: Callable[[str], None]) -> None:
        """Train the first rounds of one cell of each kind, and keep how long a round takes."""
        device = choose_device(self.device)
        with attended(self.work / RUNNING) as alone:
            for cell in self.table.cells:
                if (cell.cost_kind, describe_device(device)) in seconds_by_kind(read_lines(self.results)):
                    continue
                if alone() is None:
                    raise FedDigError(
                        "other processes run cells here, so a round takes longer; time it without them"
                    )
                # on a GPU the first round compiles and records
                rounds = 2 if device.type == "cuda" else 1
                self._train(cell, rounds)
                folder = ResultsFolder(self._folder(cell))
                seconds = round(folder.metrics()[rounds - 1]["seconds"], 4)
                line = {
                    "settings": cell.settings,
                    "device": describe_device(device),
                    "versions": {"torch": torch.__version__},
                    "seconds_per_round": seconds,
                }
                self._keep(line)
                say(f"timed: {cell.name}: {seconds:.2f} s a round")

    def _keep(self, line: Line) -> None:
        # several processes may run cells of one table, for example with a seed each
        with locked(self.work / ".lock"):
            keep(self.results, self.table.name, line)

    def _folder(self, cell: Cell) -> Path:
        experiment = cell.experiment
        place = f"seed-{experiment.seed}-{content_hash(cell.key.encode())[:8]}"
        # a run beside others has all numbers but the seconds, so a table of costs has runs of its own
        work = self.work / COSTS if self.table.kind == COSTS else self.work
        return work / experiment.algorithm.name / experiment.absence.scenario / place

    def _train(self, cell: Cell, until: int | None = None) -> Result:
        folder = self._folder(cell)
        shown = self.progress() if self.progress else None
        watched = None if self.until is None else _Deadline(self.until, shown)
        experiment = cell.experiment.located(self.data_dir)
        if ResultsFolder(folder).started:
            return resume(folder, device=self.device, progress=watched or shown, until=until)
        return run(experiment, folder, device=self.device, progress=watched or shown, until=until)

    def _run(self, cell: Cell) -> Line:
        folder = ResultsFolder(self._folder(cell))
        done = len(folder.metrics()) if folder.started else 0
        summary = self._train(cell)
        rows = folder.metrics()
        # earlier rounds may have run beside other cells
        timed = [row["seconds"] for row in rows[done:]]
        curve = [row["test_accuracy"] for row in rows]
        absence = read_absence(folder.path / "availability.csv")
        measures = {
            **{
                name: summary["accuracy"][name]
                for name in ("absence_mean", "frozen_own", "frozen_own_mean_10")
            },
            "mean_251_259": _mean_in_proportion(curve, 251, 259),
            "mean_250_299": _mean_in_proportion(curve, 250, 299),
        }
        return {
            "settings": cell.settings,
            **{name: summary[name] for name in ("data", "precision", "device", "versions", "bytes")},
            "bases": folder.experiment().algorithm.bases,
            **({"seconds_per_round": round(fmean(timed), 4)} if timed else {}),
            "digest_bytes": _digest_bytes(folder, absence.silos),
            "measures": {name: value and round(value, 3) for name, value in measures.items()},
            "silos": _silos(absence, [row["validation_accuracy"] for row in rows]),
            "accuracy": [round(value, 2) for value in curve],
        }


class _Deadline:
    """Passes progress on, and interrupts the run after the first round that ends too late."""

    def __init__(self, until: float, shown: Progress | None) -> None:
        self._until, self._shown, self._rounds = until, shown, 0

    def start(self, experiment: Experiment, done: int, rounds: int, events: Sequence[str]) -> None:
        """Pass it on."""
        self._rounds = rounds
        if self._shown:
            self._shown.start(experiment, done, rounds, events)

    def round(self, row: Mapping[str, Any]) -> None:
        """Pass it on; the round's checkpoint is written by now."""
        if self._shown:
            self._shown.round(row)
        if time.monotonic() > self._until and row["round"] + 1 < self._rounds:
            raise OutOfTimeError(f"the time is over after round {row['round'] + 1} of {self._rounds}")

    def stop(self) -> None:
        """Pass it on."""
        if self._shown:
            self._shown.stop()


def _result(line: Line) -> str:
    if "failure" in line:
        return str(line["failure"])
    seconds = line.get("seconds_per_round")
    return f"{line['accuracy'][-1]:.1f} % at the end" + (f", {seconds:.3f} s a round" if seconds else "")


def _mean_in_proportion(curve: Sequence[float], first: int, last: int) -> float | None:
    """Average these rounds of 300, in a run of another length the rounds at the same share of it."""
    chosen = [
        value for round, value in enumerate(curve) if first <= round * PAPER_ROUNDS / len(curve) <= last
    ]
    return fmean(chosen) if chosen else None


def _silos(absence: Absence, validation: Sequence[Sequence[float | None]]) -> dict[str, Any] | None:
    """Return each silo's validation accuracy before the first leave and in the last rounds of absence."""
    leave = absence.first_leave()
    if leave is None:
        return None

    def mean_of(rounds: Sequence[int]) -> list[float | None]:
        by_silo = zip(*(validation[round] for round in rounds), strict=True)
        return [None if None in values else round(fmean(values), 2) for values in by_silo]

    away = [silo for silo in range(absence.silos) if absence.away[silo, leave]]
    before = range(max(0, leave - TEN), leave)
    return {"leaves": away, "before": mean_of(before), "away": mean_of(absence.absence_rounds()[-TEN:])}


def _digest_bytes(folder: ResultsFolder, silos: int) -> dict[str, int] | None:
    """Return what all digests take as they are sent, with numbers of two bytes, and these compressed."""
    digests = [digest for silo in range(silos) if (digest := folder.kept_digest(silo)) is not None]
    if not digests:
        return None
    halves = [
        part.half().numpy().tobytes() for digest in digests for part in (digest.features, digest.labels)
    ]
    return {
        "digests": sum(map(len, digests)),
        "float32": sum(digest.size for digest in digests),
        "float16": sum(map(len, halves)),
        "float16_compressed": sum(len(zlib.compress(part)) for part in halves),
    }
