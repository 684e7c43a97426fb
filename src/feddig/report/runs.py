"""Reading results folders for the report page: what is missing or damaged is noted, and the rest is shown."""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from feddig.absence import Absence, read_absence
from feddig.errors import FedDigError, FileFormatError
from feddig.files import check_version
from feddig.report.classes import Classes, read_classes
from feddig.summary import accuracy_measures

SIGNS = ("experiment.toml", "metrics.jsonl", "summary.json")
"""A folder with one of these is a run's."""
DEEPEST = 6
"""How far below a folder runs are looked for; a comparison's lie three below."""

MOST_SILOS = 1_000_000
"""A silo's number beyond this is damage."""
MOST_ROUNDS = 1_000_000
"""And so is a number of rounds."""


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
        return [_number(row.get("accuracy", row.get("test_accuracy"))) for row in self.rows]

    @property
    def measured_on(self) -> str:
        """What accuracy was measured on: test images, or in a federation without any the silos' own."""
        return "validation" if self.rows and self.rows[-1].get("accuracy_of") == "validation" else "test"

    @cached_property
    def measures(self) -> Mapping[str, float | None]:
        """The accuracies of summary.json; of an unfinished run, as far as it got."""
        told = self.summary.get("accuracy")
        if isinstance(told, Mapping):
            return {str(name): _number(value) for name, value in told.items()}
        curve = [math.nan if value is None else value for value in self.accuracies]
        if not curve or self.absence is None:
            return {}
        done = Absence(self.absence.present[:, : len(curve)])
        if done.rounds < len(curve):
            return {}
        return {name: _number(value) for name, value in accuracy_measures(curve, done).items()}

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
        return [[_number(value) for value in each] if isinstance(each, list) else [] for each in found]

    @cached_property
    def recalled(self) -> np.ndarray:
        """Boolean, silo x round: a recall model stood in."""
        table = np.zeros((self.silos, len(self.rows)), dtype=bool)
        for round, row in enumerate(self.rows):
            table[_silos_in(row, "recalled", self.silos), round] = True
        return table

    @cached_property
    def trained(self) -> np.ndarray:
        """Boolean, silo x round: the silo was there."""
        table = np.zeros((self.silos, len(self.rows)), dtype=bool)
        for round, row in enumerate(self.rows):
            table[_silos_in(row, "present", self.silos), round] = True
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


def find_runs(folder: Path, depth: int = DEEPEST) -> Iterator[Path]:
    """Find the folders of runs: this one, or those below it."""
    if any((folder / name).is_file() for name in SIGNS):
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
    settings = _read_settings(path / "experiment.toml", notes)
    rows = _read_rows(path / "metrics.jsonl", notes, pending)
    summary = _read_object(path / "summary.json")
    if isinstance(summary, str):
        if (path / "summary.json").exists():
            notes.append(summary)
        else:
            pending.append(f"summary.json is not there: the run is not finished ({len(rows)} rounds so far).")
        summary = {}
    absence = _read_presence(path / "availability.csv", rows, notes if rows else pending)
    if classes is None:
        classes = read_classes(path, str(_section(settings, "data").get("name", "")))
    audits = _read_audits(path, notes)
    told = notes if growing and not summary else [*notes, *pending]
    return Run(path, settings, absence, rows, summary, classes, audits, tuple(told))


def _read_settings(file: Path, notes: list[str]) -> Mapping[str, Any]:
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
        check_version(file, settings.get("format_version"))
    except FileNotFoundError:
        notes.append("experiment.toml is not there: settings, and how to repeat the run, are unknown.")
    except (OSError, ValueError, FileFormatError) as error:
        notes.append(_damage(file, error))
    else:
        return settings
    return {}


def _read_rows(file: Path, notes: list[str], pending: list[str]) -> list[Mapping[str, Any]]:
    """Read the rounds up to the first line that is damaged: while a run goes on, the last may be half written."""
    rows: list[Mapping[str, Any]] = []
    try:
        content = file.read_bytes()
    except OSError:
        pending.append("metrics.jsonl is not there: there are no curves.")
        return []
    lines = content.splitlines()
    for number, line in enumerate(lines):
        try:
            row = json.loads(line)
            check_version(file, row["format_version"])
            if row["round"] != number:
                raise ValueError(f"round {number} expected")
        except FileFormatError as error:
            notes.append(_damage(file, error))
            break
        except (ValueError, KeyError, TypeError):
            is_half_written = number == len(lines) - 1 and not content.endswith(b"\n")
            (pending if is_half_written else notes).append(
                f"metrics.jsonl: line {number + 1} is damaged; shown are the rounds before it."
            )
            break
        rows.append(row)
    if not lines:
        pending.append("metrics.jsonl is empty: no round is finished yet.")
    return rows


def _read_presence(file: Path, rows: Sequence[Mapping[str, Any]], notes: list[str]) -> Absence | None:
    try:
        absence = read_absence(file)
    except FileFormatError as error:
        notes.append(
            _damage(file, error)
            if file.exists()
            else "availability.csv is not there: who was there is taken from metrics.jsonl."
        )
        return _presence_in(rows)
    # a federation writes its table anew a moment after each round
    return absence if absence.rounds >= len(rows) else _presence_in(rows)


def _presence_in(rows: Sequence[Mapping[str, Any]]) -> Absence | None:
    """Gather from the rounds themselves who was there."""
    silos = max(
        (
            max([len(row.get("validation_accuracy") or ()), *(silo + 1 for silo in _numbers(row, "present"))])
            for row in rows
        ),
        default=0,
    )
    if not silos:
        return None
    present = np.zeros((silos, len(rows)), dtype=bool)
    for round, row in enumerate(rows):
        present[_silos_in(row, "present", silos), round] = True
    return Absence(present)


def _read_audits(path: Path, notes: list[str]) -> list[Mapping[str, Any]]:
    """Read audits of this run's digests: audit.json here, or one or two folders below."""
    audits = []
    for file in sorted({*path.glob("audit.json"), *path.glob("*/audit.json"), *path.glob("*/*/audit.json")}):
        audit = _read_object(file)
        if isinstance(audit, str) or not isinstance(audit.get("checks"), list):
            notes.append(audit if isinstance(audit, str) else f"{file.name}: holds no checks; make it again.")
        else:
            audits.append(audit)
    return audits


def _read_object(file: Path) -> Mapping[str, Any] | str:
    """Read a JSON object, or say why not."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        check_version(file, found["format_version"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, FileFormatError) as error:
        return _damage(file, error)
    return dict(found)


def _damage(file: Path, error: Exception) -> str:
    # the folder's own place is left out: a page is often sent to others
    said = str(error).replace(f"{file}: ", "").replace(str(file), file.name)
    return f"{file.name} cannot be used: {said}."


def _section(settings: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = settings.get(name)
    return found if isinstance(found, Mapping) else {}


def _silos_in(row: Mapping[str, Any], key: str, silos: int) -> list[int]:
    return [silo for silo in _numbers(row, key) if silo < silos]


def _numbers(row: Mapping[str, Any], key: str) -> list[int]:
    found = row.get(key)
    if not isinstance(found, list):
        return []
    return [each for each in found if isinstance(each, int) and 0 <= each < MOST_SILOS]


def _number(value: Any) -> float | None:
    """Take a finite number as it is, and anything else for unknown."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
