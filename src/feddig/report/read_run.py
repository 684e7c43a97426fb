"""Reading a results folder, for pictures and tables.

Reading results folders for the report page: what is missing or damaged is noted, and the rest is shown.
"""

import csv
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from feddig.core.absence import Absence
from feddig.errors import FedDigError, FileFormatError
from feddig.files import check_version
from feddig.report.measures import accuracy_measures
from feddig.report.run_files import (
    Classes,
    finite,
    read_audits,
    read_classes,
    read_object,
    read_presence,
    read_rows,
    read_settings,
    silos_in,
)


@dataclass(frozen=True)
class Result:
    """One run as its folder tells it."""

    path: Path
    algorithm: str
    scenario: str
    seed: int
    present: list[list[bool]]
    """Silo x round."""
    rows: list[dict[str, Any]]
    """A round each."""

    @property
    def accuracies(self) -> list[float]:
        """Accuracy by round, in percent; not a number where nobody could measure it."""
        return [_accuracy(row) for row in self.rows]

    @property
    def accuracy_of(self) -> str:
        """What it was measured on: test images, or in a federation without any the silos' validation images."""
        return str(self.rows[-1].get("accuracy_of", "test")) if self.rows else "test"


def _accuracy(row: dict[str, Any]) -> float:
    value = row["accuracy"] if "accuracy_of" in row else row["test_accuracy"]
    # a federation without test images has no accuracy in a round in which nobody is there
    return math.nan if value is None and row.get("accuracy_of") == "validation" else float(value)


def read_result(path: Path) -> Result:
    """Read a run's folder; a damaged one is an error that names the file."""
    file = path / "experiment.toml"
    try:
        experiment = tomllib.loads(file.read_text(encoding="utf-8"))
        check_version(file, experiment.get("format_version"))
        algorithm, scenario = experiment["algorithm"]["name"], experiment["absence"]["scenario"]
        seed = experiment["seed"]
        file = path / "availability.csv"
        heading, _, *table = file.read_text(encoding="utf-8").splitlines()
        check_version(file, heading.rpartition(" ")[2])
        present = [[cell == "1" for cell in row[1:]] for row in csv.reader(table)]
        file = path / "metrics.jsonl"
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        for row in rows:
            check_version(file, row["format_version"])
            _accuracy(row)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"{file}: cannot be read ({error!r}); give a folder that feddig wrote"
        ) from None
    return Result(path, algorithm, scenario, seed, present, rows)


SIGNS = ("experiment.toml", "metrics.jsonl", "summary.json")
"""A folder with one of these is a run's."""
DEEPEST = 6
"""How far below a folder runs are looked for; a comparison's lie three below."""
MOST_ROUNDS = 1_000_000
"""A number of rounds beyond this is damage."""


@dataclass(frozen=True)
class Run:
    """One run as its folder tells it, finished or not."""

    path: Path
    settings: Mapping[str, Any]
    """Of experiment.toml; empty if there is none."""
    absence: Absence | None
    rows: Sequence[Mapping[str, Any]]
    """A round each, from round 0 on without a gap."""
    summary: Mapping[str, Any]
    """Empty while the run is going on."""
    classes: Classes
    audits: Sequence[Mapping[str, Any]]
    notes: Sequence[str]
    """What is missing or damaged, a sentence each."""

    @property
    def algorithm(self) -> str:
        """Its algorithm's name."""
        return self._named("algorithm", self.setting("algorithm.name"))

    @property
    def scenario(self) -> str:
        """Its scenario's name."""
        return self._named("scenario", self.setting("absence.scenario"))

    def _named(self, key: str, found: Any) -> str:
        return str(found or self.summary.get(key) or f"unknown {key}")

    @property
    def seed(self) -> int:
        """Its seed; 0 if nothing tells it."""
        seed = self.settings.get("seed", self.summary.get("seed", 0))
        return seed if isinstance(seed, int) else 0

    @property
    def finished(self) -> bool:
        """Whether the run is complete: its summary is written last."""
        return bool(self.summary)

    @property
    def planned(self) -> int:
        """How many rounds the run is to have; as many as there are, if nothing tells it."""
        rounds = self.setting("training.rounds")
        if isinstance(rounds, int) and 0 < rounds < MOST_ROUNDS:
            return max(rounds, len(self.rows))
        return max(self.absence.rounds if self.absence is not None else 0, len(self.rows))

    def setting(self, key: str) -> Any:
        """Give a setting by its name, as data.silos; None if it is not there."""
        value: Any = self.settings
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    @cached_property
    def accuracies(self) -> list[float | None]:
        """Accuracy by round, in percent; None where nobody could measure it."""
        return [finite(row.get("accuracy", row.get("test_accuracy"))) for row in self.rows]

    @property
    def measured_on(self) -> str:
        """What accuracy was measured on: test images, or in a federation without any the silos' own."""
        return "validation" if self.rows and self.rows[-1].get("accuracy_of") == "validation" else "test"

    @cached_property
    def measures(self) -> Mapping[str, float | None]:
        """The accuracies of summary.json; of an unfinished run, as far as it got."""
        told = self.summary.get("accuracy")
        if isinstance(told, Mapping):
            return {str(name): finite(value) for name, value in told.items()}
        curve = [math.nan if value is None else value for value in self.accuracies]
        if not curve or self.absence is None:
            return {}
        done = Absence(self.absence.present[:, : len(curve)])
        if done.rounds < len(curve):
            return {}
        return {name: finite(value) for name, value in accuracy_measures(curve, done).items()}

    @property
    def silos(self) -> int:
        """How many silos there are, as far as that is known."""
        if self.absence is not None:
            return self.absence.silos
        return len(self.validation[-1]) if self.validation else 0

    @cached_property
    def silo_names(self) -> list[str]:
        """What the silos are called: their numbers, unless the run names them."""
        told = self.summary.get("silo_names", self.classes.silos)
        if isinstance(told, list | tuple) and len(told) == self.silos:
            return [str(name) for name in told]
        return [f"silo {number}" for number in range(self.silos)]

    @cached_property
    def validation(self) -> list[list[float | None]]:
        """Validation accuracy, round x silo; rounds without any are empty."""
        found = (row.get("validation_accuracy") for row in self.rows)
        return [[finite(value) for value in each] if isinstance(each, list) else [] for each in found]

    @cached_property
    def recalled(self) -> np.ndarray:
        """Boolean, silo x round: a recall model stood in."""
        table = np.zeros((self.silos, len(self.rows)), dtype=bool)
        for round, row in enumerate(self.rows):
            table[silos_in(row, "recalled", self.silos), round] = True
        return table

    @cached_property
    def trained(self) -> np.ndarray:
        """Boolean, silo x round: the silo was there."""
        table = np.zeros((self.silos, len(self.rows)), dtype=bool)
        for round, row in enumerate(self.rows):
            table[silos_in(row, "present", self.silos), round] = True
        return table


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read all runs in and below these folders; a folder with none is an error."""
    runs: dict[Path, Run] = {}
    for folder in folders:
        if not folder.is_dir():
            raise FedDigError(f"{folder}: no such folder; give one that feddig run or feddig compare wrote")
        found = list(find_runs(folder))
        if not found:
            raise FedDigError(
                f"{folder}: holds no results, here or below; give a folder that feddig run or feddig compare wrote"
            )
        for path in found:
            runs.setdefault(path.resolve(), read_run(path))
    return sorted(runs.values(), key=page_order)


def page_order(run: Run) -> tuple[str, str, int, str]:
    """Put runs into the order in which a page tells them."""
    return run.scenario, run.algorithm, run.seed, str(run.path)


def is_run(folder: Path) -> bool:
    """Say whether a folder is a run's."""
    return any((folder / name).is_file() for name in SIGNS)


def find_runs(folder: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """Find the folders of runs: this one, or those below it."""
    if is_run(folder):
        yield folder
    elif depth:
        for below in sorted(folder.iterdir()):
            if below.is_dir() and not below.is_symlink():
                yield from find_runs(below, depth - 1)


def read_run(path: Path, classes: Classes | None = None, *, growing: bool = False) -> Run:
    """Read a run's folder; nothing in it is required.

    Classes, which are slow to read, may be given. While a run is growing, nothing is said of what it will write yet.
    """
    notes: list[str] = []
    pending: list[str] = []
    settings = read_settings(path / "experiment.toml", notes)
    rows = read_rows(path / "metrics.jsonl", notes, pending)
    summary = read_object(path / "summary.json")
    if isinstance(summary, str):
        if (path / "summary.json").exists():
            notes.append(summary)
        else:
            pending.append(f"summary.json is not there: the run is not finished ({len(rows)} rounds so far).")
        summary = {}
    absence = read_presence(path / "availability.csv", rows, notes if rows else pending)
    if classes is None:
        data = settings.get("data")
        classes = read_classes(path, str(data.get("name", "")) if isinstance(data, Mapping) else "")
    audits = read_audits(path, notes)
    told = notes if growing and not summary else [*notes, *pending]
    return Run(path, settings, absence, rows, summary, classes, audits, tuple(told))
