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
        file = path / "availability.csv"
        with file.open(encoding="utf-8") as stream:
            table = list(csv.reader(line for line in stream if not line.startswith("#")))[1:]
        present = [[cell == "1" for cell in row[1:]] for row in table]
        file = path / "metrics.jsonl"
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, tomllib.TOMLDecodeError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{file}: cannot be read ({error}); give a folder that feddig wrote") from None
    return Result(
        path,
        experiment["algorithm"]["name"],
        experiment["absence"]["scenario"],
        experiment["seed"],
        present,
        rows,
    )
