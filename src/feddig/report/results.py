"""Reading a results folder, for pictures and tables."""

import csv
import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from feddig.errors import FileFormatError
from feddig.files import check_version


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
