"""Finished cells, a line each in RESULTS/NAME.jsonl; and what the others cost."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddig.errors import FileFormatError, SettingError
from feddig.experiment.toml import experiment_from_table
from feddig.files import FORMAT_VERSION, check_version, write_atomically
from feddig.runs.paper.cells import Cell, PaperTable

Line = Mapping[str, Any]
"""A line of a result file."""


def read_lines(results: Path) -> list[Line]:
    """Read all result files of a folder, which may not exist yet."""
    lines = []
    for path in sorted(results.glob("*.jsonl")):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                line = json.loads(text)
                check_version(path, line["format_version"])
                line["key"] = Cell(experiment_from_table(line["settings"])).key
            except (ValueError, KeyError, TypeError, SettingError) as error:
                raise FileFormatError(
                    f"{path}, line {number}: not a finished cell ({error}); remove the line and run the cell again"
                ) from None
            lines.append(line)
    return lines


def finished_cells(lines: Sequence[Line]) -> dict[str, Line]:
    """Return the lines of finished cells by their keys; other lines only say how long a round takes."""
    return {line["key"]: line for line in lines if "accuracy" in line or "failure" in line}


def seconds_by_kind(lines: Sequence[Line]) -> dict[tuple[str, str], float]:
    """Return the seconds of a round by kind of cell and device; what was measured last counts."""
    return {
        (Cell(experiment_from_table(line["settings"])).cost_kind, line["device"]): line["seconds_per_round"]
        for line in lines
        if "seconds_per_round" in line
    }


def remaining_seconds(
    table: PaperTable, lines: Sequence[Line]
) -> tuple[list[Cell], dict[str, tuple[float, int]]]:
    """Return the cells that are not finished; and by device their seconds, as far as known, and how many are not."""
    done, known = finished_cells(lines), seconds_by_kind(lines)
    left = [cell for cell in table.cells if cell.key not in done]
    costs = {}
    for device in dict.fromkeys(device for _, device in known):
        each = [(known.get((cell.cost_kind, device)), cell.experiment.training.rounds) for cell in left]
        seconds = sum(one * rounds for one, rounds in each if one is not None)
        unknown = sum(one is None for one, _ in each)
        if unknown < len(left):
            costs[device] = (seconds, unknown)
    return left, costs


def keep(results: Path, table: str, line: Line) -> None:
    """Add a line to a table's result file."""
    path = results / f"{table}.jsonl"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    write_atomically(path, before + json.dumps({"format_version": FORMAT_VERSION, **line}) + "\n")
