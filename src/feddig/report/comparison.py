"""Write the files of a comparison: table.csv, table.md and one picture for each scenario."""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from feddig.files import write_atomically
from feddig.report.measures import MEASURES, MeanAndDeviation, format_mean, mean_and_deviation
from feddig.report.pictures import draw_curves
from feddig.report.read_run import read_rounds

SHOWN = {"final": "final", "frozen_own_mean_10": "before 1st leave", "absence_mean": "absence mean"}
"""The measures that fit a terminal, with their titles; table.csv has them all."""
CAPTION = "Test accuracy in percent, mean ± standard deviation over seeds"


@dataclass(frozen=True)
class TableRow:
    """One algorithm in one scenario, over its seeds."""

    algorithm: str
    scenario: str
    seeds: int
    failed: int
    values: Mapping[str, MeanAndDeviation | None]
    """By measure; None where a seed did not reach it."""


def write_comparison(
    out: Path, summaries: Sequence[tuple[str, str, Mapping[str, Any] | None]], runs: Sequence[Path]
) -> tuple[list[TableRow], list[Path]]:
    """Write tables and pictures of finished runs into `out`; return the table's rows and the pictures' paths."""
    rows = tabulate(summaries)
    write_atomically(out / "table.csv", to_csv(rows))
    write_atomically(out / "table.md", to_markdown(rows))
    finished = [read_rounds(path) for path in runs]
    pictures = []
    for scenario in dict.fromkeys(run.scenario for run in finished):
        path = out / f"curves-{scenario}.png"
        write_atomically(path, draw_curves([run for run in finished if run.scenario == scenario], scenario))
        pictures.append(path)
    return rows, pictures


def tabulate(summaries: Sequence[tuple[str, str, Mapping[str, Any] | None]]) -> list[TableRow]:
    """Average runs over seeds; each is given as its algorithm, scenario and summary (None if the run failed)."""
    rows = []
    for key in dict.fromkeys((algorithm, scenario) for algorithm, scenario, _ in summaries):
        found = [summary for algorithm, scenario, summary in summaries if (algorithm, scenario) == key]
        finished = [summary for summary in found if summary is not None]
        values = {
            name: mean_and_deviation(each["accuracy"].get(name) for each in finished) for name in MEASURES
        }
        values["seconds_per_round"] = mean_and_deviation(each["seconds_per_round"] for each in finished)
        rows.append(TableRow(*key, len(finished), len(found) - len(finished), values))
    return rows


def to_csv(rows: Sequence[TableRow]) -> str:
    """Return every measure as CSV, with mean and deviation in columns of their own."""
    text = io.StringIO()
    text.write("# feddig table, format_version 1\n")
    writer = csv.writer(text, lineterminator="\n")
    names = [*MEASURES, "seconds_per_round"]
    columns = [column for name in names for column in (f"{name}_mean", f"{name}_sd")]
    writer.writerow(["algorithm", "scenario", "seeds", "failed", *columns])
    for row in rows:
        cells = [cell for name in names for cell in (row.values[name] or (None, None))]
        texts = ["" if cell is None else f"{cell:.4f}" for cell in cells]
        writer.writerow([row.algorithm, row.scenario, row.seeds, row.failed, *texts])
    return text.getvalue()


def to_markdown(rows: Sequence[TableRow]) -> str:
    """Return the shown measures as a Markdown table."""
    heads = _heads()
    lines = [heads, ["---"] * len(heads), *(_cells(row) for row in rows)]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return f"{table}\n{CAPTION}.\n<!-- format_version 1 -->\n"


def to_rich(rows: Sequence[TableRow], title: str) -> Table:
    """Return the same table for a terminal."""
    table = Table(title=title, caption=CAPTION)
    for place, head in enumerate(_heads()):
        table.add_column(head, justify="left" if place < 2 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _heads() -> list[str]:
    return ["algorithm", "scenario", "seeds", *SHOWN.values(), "s per round"]


def _cells(row: TableRow) -> list[str]:
    seeds = str(row.seeds) + (f" ({row.failed} failed)" if row.failed else "")
    values = [row.values[name] for name in SHOWN]
    numbers = ["-" if value is None else format_mean(value) for value in values]
    seconds = row.values["seconds_per_round"]
    return [row.algorithm, row.scenario, seeds, *numbers, "-" if seconds is None else format_mean(seconds, 2)]
