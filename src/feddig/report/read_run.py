"""Find and read results folders, compare the settings of runs, and give the command that repeats them.

Nothing in a folder is required, and what is missing or damaged is noted.
"""

import json
import math
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from feddig.core.absence import Absence
from feddig.errors import FedDigError, FileFormatError
from feddig.report.measures import accuracy_measures
from feddig.report.run_files import (
    NO_CLASSES,
    Classes,
    finite,
    read_audits,
    read_availability,
    read_class_names,
    read_classes,
    read_json,
    read_rows,
    read_settings,
    silos_in,
)

RUN_FILES = ("experiment.toml", "metrics.jsonl", "summary.json")
"""A folder with one of these files is a run's folder."""
SEARCH_DEPTH = 6
"""Runs are searched this many folders below; those of a comparison are three below."""
MAX_ROUNDS = 1_000_000
"""A larger number of rounds is damage."""


@dataclass(frozen=True)
class Run:
    """One run, finished or not, as its folder describes it."""

    path: Path
    settings: Mapping[str, Any]
    """The content of experiment.toml; empty if there is none."""
    absence: Absence | None
    rows: Sequence[Mapping[str, Any]]
    """The rows of metrics.jsonl, from round 0 on without a gap."""
    summary: Mapping[str, Any]
    """Empty until the run is finished."""
    classes: Classes = NO_CLASSES
    audits: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    """Sentences that say what is missing or damaged."""

    @property
    def algorithm(self) -> str:
        """The name of the algorithm."""
        return str(self.setting("algorithm.name") or self.summary.get("algorithm") or "unknown algorithm")

    @property
    def scenario(self) -> str:
        """The name of the absence scenario."""
        return str(self.setting("absence.scenario") or self.summary.get("scenario") or "unknown scenario")

    @property
    def seed(self) -> int:
        """The seed; 0 if it is not known."""
        seed = self.settings.get("seed", self.summary.get("seed", 0))
        return seed if isinstance(seed, int) else 0

    @property
    def finished(self) -> bool:
        """Whether the run is complete: its summary is written last."""
        return bool(self.summary)

    @property
    def planned_rounds(self) -> int:
        """The number of rounds that the run will have; the rounds so far if that is not known."""
        rounds = self.setting("training.rounds")
        if isinstance(rounds, int) and 0 < rounds < MAX_ROUNDS:
            return max(rounds, len(self.rows))
        return max(self.absence.rounds if self.absence is not None else 0, len(self.rows))

    def setting(self, key: str) -> Any:
        """Return a setting by its name, such as data.silos; None if it is not there."""
        value: Any = self.settings
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    @cached_property
    def accuracies(self) -> list[float | None]:
        """Accuracy by round, in percent; None where it was not measured."""
        return [finite(row.get("accuracy", row.get("test_accuracy"))) for row in self.rows]

    @property
    def measured_on(self) -> str:
        """What accuracy was measured on: "test" images, or "validation" images in a federation without test images."""
        return "validation" if self.rows and self.rows[-1].get("accuracy_of") == "validation" else "test"

    @cached_property
    def measures(self) -> Mapping[str, float | None]:
        """The accuracies of summary.json; of an unfinished run, computed from the rounds so far."""
        stored = self.summary.get("accuracy")
        if isinstance(stored, Mapping):
            return {str(name): finite(value) for name, value in stored.items()}
        curve = [math.nan if value is None else value for value in self.accuracies]
        if not curve or self.absence is None or self.absence.rounds < len(curve):
            return {}
        drawn = self.setting("absence.rounds")
        rounds = drawn if isinstance(drawn, int) and 0 < drawn < MAX_ROUNDS else self.planned_rounds
        so_far = accuracy_measures(curve, self.absence.until(len(curve)), rounds or None)
        return {name: finite(value) for name, value in so_far.items()}

    @property
    def silos(self) -> int:
        """The number of silos, as far as it is known."""
        if self.absence is not None:
            return self.absence.silos
        return len(self.validation[-1]) if self.validation else 0

    @cached_property
    def silo_names(self) -> list[str]:
        """The names of the silos; "silo 0", "silo 1" and so on if the run has none."""
        names = self.summary.get("silo_names", self.classes.silo_names)
        if isinstance(names, list | tuple) and len(names) == self.silos:
            return [str(name) for name in names]
        return [f"silo {number}" for number in range(self.silos)]

    @cached_property
    def validation(self) -> list[list[float | None]]:
        """Validation accuracy, round x silo; a round without any is empty."""
        found = (row.get("validation_accuracy") for row in self.rows)
        return [[finite(value) for value in each] if isinstance(each, list) else [] for each in found]

    @cached_property
    def trained(self) -> np.ndarray:
        """Boolean, silo x round: the silo was present."""
        return self._table("present")

    @cached_property
    def recalled(self) -> np.ndarray:
        """Boolean, silo x round: a recall model replaced the silo."""
        return self._table("recalled")

    def _table(self, key: str) -> np.ndarray:
        table = np.zeros((self.silos, len(self.rows)), dtype=bool)
        for round, row in enumerate(self.rows):
            table[silos_in(row, key, self.silos), round] = True
        return table


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read all runs in and below these folders; a folder without any is an error."""
    runs: dict[Path, Run] = {}
    for folder in folders:
        if not folder.is_dir():
            wrong = "is a file" if folder.exists() else "no such folder"
            raise FedDigError(f"{folder}: {wrong}; give a folder that feddig run or feddig compare wrote")
        found = list(find_runs(folder))
        if not found:
            raise FedDigError(
                f"{folder}: holds no results, here or below; give a folder that feddig run or feddig compare wrote"
            )
        for path in found:
            runs.setdefault(path.resolve(), read_run(path))
    return sorted(runs.values(), key=page_order)


def page_order(run: Run) -> tuple[str, str, int, str]:
    """Return the key that sorts runs into the order of a page."""
    return run.scenario, run.algorithm, run.seed, str(run.path)


def find_runs(folder: Path, depth: int = SEARCH_DEPTH) -> Iterator[Path]:
    """Find the folders of runs: this one, or those below it."""
    if is_run(folder):
        yield folder
    elif depth:
        for below in sorted(folder.iterdir()):
            if below.is_dir() and not below.is_symlink():
                yield from find_runs(below, depth - 1)


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run's."""
    return any((folder / name).is_file() for name in RUN_FILES)


def read_run(path: Path, classes: Classes | None = None, *, growing: bool = False) -> Run:
    """Read a run's folder.

    Classes, which are slow to read, may be given. With `growing`, files that an unfinished run has yet to write are
    not noted as missing.
    """
    notes: list[str] = []
    pending: list[str] = []
    settings = read_settings(path / "experiment.toml", notes)
    rows = read_rows(path / "metrics.jsonl", notes, pending)
    summary = read_json(path / "summary.json")
    if isinstance(summary, str):
        if (path / "summary.json").exists():
            notes.append(summary)
        else:
            pending.append(f"summary.json is missing: the run is not finished ({len(rows)} rounds so far).")
        summary = {}
    absence = read_availability(path / "availability.csv", rows, notes if rows else pending)
    if classes is None:
        data = settings.get("data")
        classes = read_classes(path, str(data.get("name", "")) if isinstance(data, Mapping) else "")
    audits = read_audits(path, notes)
    if summary or not growing:
        notes += pending
    return Run(path, settings, absence, rows, summary, classes, audits, notes)


def read_rounds(path: Path, *, growing: bool = False) -> Run:
    """Read settings, rounds, availability and names of a run; a missing or damaged file is an error that names it.

    Names may be missing: folders of older releases lack those of a federation. With `growing`, so may files that an
    unfinished run has yet to write.
    """
    notes: list[str] = []
    pending: list[str] = [] if growing else notes
    settings = read_settings(path / "experiment.toml", notes)
    rows = read_rows(path / "metrics.jsonl", notes, pending)
    absence = read_availability(path / "availability.csv", rows, notes if rows else pending)
    if notes:
        raise FileFormatError(f"{path}: {notes[0]} Give a folder that feddig wrote.")
    return Run(path, settings, absence, rows, summary={}, classes=read_class_names(path))


SEEDS = ("seed", "data.seed", "absence.seed", "digest.seed")
"""Runs that differ only in these are averaged."""
WITHOUT_EFFECT = ("format_version", "data.path", "training.threads", "logging.tensorboard", "logging.mlflow")
"""Settings that change no number of a report."""
PLUS_DEFAULTS = {"algorithm.prior_correction": (False, True), "moderator.votes": (0.0, 1.0)}
"""Settings whose default follows from the algorithm: for the others, and for FedDig+."""
GRID = ("algorithm.name", "absence.scenario", *SEEDS)
"""Settings that the options of feddig compare set."""


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one table with keys such as data.silos."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        section = table
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return table


def differing_keys(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose value is not the same in all tables."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if any(table.get(key) != tables[0].get(key) for table in tables)]


def repeat_run(run: Run) -> tuple[str, str]:
    """Return a run's settings as TOML and the command that repeats it."""
    return to_toml(run.settings), "feddig run experiment.toml --out again"


def repeat_runs(runs: Sequence[Run]) -> tuple[str, str] | None:
    """Return the settings that runs share and the command that repeats them all; None if one command cannot."""
    tables = [flatten(run.settings) for run in runs]
    if not all(tables):
        return None
    different = differing_keys(tables)
    # what follows from the algorithm needs no setting of its own
    implied = [key for key in different if key in PLUS_DEFAULTS and all(map(_has_default(key), runs))]
    tables = [{name: value for name, value in table.items() if name not in implied} for table in tables]
    different = [key for key in different if key not in implied]
    if any(key not in GRID for key in different) or "file" in {run.scenario for run in runs}:
        return None
    # a seed of its own can be left out only where it equals the top-level seed
    if any(table[key] != table["seed"] for key in different if key in SEEDS for table in tables):
        return None
    left_out = {*different, "seed", "algorithm.name", "absence.scenario"}
    shared = {key: value for key, value in tables[0].items() if key not in left_out}
    values = {
        "algorithms": [run.algorithm for run in runs],
        "scenarios": [run.scenario for run in runs],
        "seeds": [str(run.seed) for run in sorted(runs, key=lambda run: run.seed)],
    }
    options = " ".join(
        f"--{name} {shlex.quote(','.join(dict.fromkeys(each)))}" for name, each in values.items()
    )
    return to_toml(_nest(shared)), f"feddig compare experiment.toml {options} --out again"


def _has_default(key: str) -> Callable[[Run], bool]:
    """Return a test whether a run has the value of this setting that follows from its algorithm."""

    def test(run: Run) -> bool:
        is_plus = run.algorithm.split("+")[0] == "feddig-plus"
        return bool(run.setting(key) == PLUS_DEFAULTS[key][is_plus])

    return test


def shared_settings(runs: Sequence[Run]) -> str:
    """Return as TOML the settings that are the same in all runs."""
    tables = [flatten(run.settings) for run in runs]
    different = differing_keys(tables)
    return to_toml(_nest({key: value for key, value in tables[0].items() if key not in different}))


def to_toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """Write settings as TOML, values before sections."""
    lines = [
        f"{key} = {_toml_value(value)}\n" for key, value in table.items() if not isinstance(value, Mapping)
    ]
    text = "".join(lines)
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner = to_toml(value, f"{prefix}{key}.")
            has_values = any(not isinstance(each, Mapping) for each in value.values())
            text += f"\n[{prefix}{key}]\n{inner}" if has_values or not value else inner
    return text if prefix else text.lstrip("\n")


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, str):
        # JSON's escapes are also TOML's, except for one control character that JSON leaves as it is
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)
