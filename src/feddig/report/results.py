"""Reading a results folder, for pictures and tables."""

import csv
import json
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
        """Test accuracy by round, in percent."""
        return [row["test_accuracy"] for row in self.rows]


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
            float(row["test_accuracy"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileFormatError(
            f"{file}: cannot be read ({error!r}); give a folder that feddig wrote"
        ) from None
    return Result(path, algorithm, scenario, seed, present, rows)
