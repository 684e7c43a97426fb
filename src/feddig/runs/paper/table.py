"""Ours beside the paper's numbers, as tables for a terminal and for documents."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feddig.report.measures import MeanAndDeviation, format_mean, mean_and_deviation
from feddig.runs.paper.cells import Cell, PaperTable
from feddig.runs.paper.results import Line

NOT_RUN, NONE, BETTER = "not run", "-", " (better)"
SHORT = {"algorithm.name": "algorithm", "absence.scenario": "scenario", "data.name": "data set"}
"""Titles of columns; those of other settings are their keys."""


@dataclass(frozen=True)
class PaperRow:
    """What a table says about one setting, over its seeds."""

    settings: tuple[str, ...]
    cell: Cell
    lines: Sequence[Line]
    """Of the seeds that are finished, in order."""

    @property
    def failure(self) -> str:
        """Why there is no number although a seed was run."""
        failures = [line["failure"] for line in self.lines if "failure" in line]
        return f"{len(failures)} of {len(self.lines)} seeds diverged" if failures else ""

    def measure(self, name: str) -> MeanAndDeviation | None:
        """Return an accuracy, averaged over the seeds; None if a seed lacks it."""
        return mean_and_deviation(line.get("measures", {}).get(name) for line in self.lines)


def tabulate(table: PaperTable, finished: Mapping[str, Line]) -> list[PaperRow]:
    """Collect the finished seeds of each setting, also those that the table's file does not ask for."""
    seeds = sorted({line["settings"]["seed"] for line in finished.values()})
    rows: dict[tuple[str, ...], PaperRow] = {}
    for cell in table.cells:
        settings = tuple(_spell(cell, key) for key in table.rows)
        keys = (cell.with_seed(seed).key for seed in seeds)
        rows.setdefault(
            settings, PaperRow(settings, cell, [finished[key] for key in keys if key in finished])
        )
    return list(rows.values())


def heads_and_cells(table: PaperTable, rows: Sequence[PaperRow]) -> tuple[list[str], list[list[str]]]:
    """Return a table's texts."""
    titles = [SHORT.get(key, key) for key in table.rows]
    if table.kind == "costs":
        return [*titles, *COSTS], [[*row.settings, *_costs(table, row)] for row in rows]
    more = [LEAVING] if table.kind == "silos" else []
    cells = [
        [*row.settings, *_accuracies(table, row), *([_leaving(row)] if more else []), _seeds(row)]
        for row in rows
    ]
    return [*titles, *ACCURACIES, *more, "seeds"], cells


def to_markdown(table: PaperTable, rows: Sequence[PaperRow]) -> str:
    """Return a table with what it was run on, as Markdown."""
    heads, cells = heads_and_cells(table, rows)
    lines = [heads, ["---"] * len(heads), *cells]
    text = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return f"{text}\n{describe_runs(rows)}\n"


def describe_runs(rows: Sequence[PaperRow]) -> str:
    """Say on what the finished cells were run."""
    lines = [line for row in rows for line in row.lines if "accuracy" in line]
    if not lines:
        return "No cell was run yet."
    facts = [
        f"{line['data']['name']} ({line['data']['train']:,} training images), {line['device']}, {line['precision']}, "
        f"torch {line['versions']['torch']}"
        for line in lines
    ]
    counted = [f"{fact}: {facts.count(fact)}" for fact in dict.fromkeys(facts)]
    return f"Finished cells: {'; '.join(counted)}."


ACCURACIES = (
    "the paper", "ours, rounds 251-259", "ours minus the paper's", "rounds 250-299", "while a silo is away",
    "stopped at the first leave",
)  # fmt: skip
LEAVING = "validation of the silo that leaves: before, at the end of its absence"
COSTS = (
    "update (MB), the paper", "ours", "all digests (MB), the paper", "ours", "as float16", "float16, compressed",
    "seconds per round, the paper", "ours",
)  # fmt: skip


def _spell(cell: Cell, key: str) -> str:
    section, _, name = key.partition(".")
    value = getattr(getattr(cell.experiment, section), name)
    if isinstance(value, tuple):
        return ", ".join(f"{part:g}" for part in value) or "equal"
    return str(value)


def _published(table: PaperTable, part: str, row: PaperRow) -> MeanAndDeviation | None:
    found = table.published.get(part, {}).get(row.cell.experiment.algorithm.name)
    return None if found is None else (found[0], found[1] if len(found) > 1 else None)


def _accuracies(table: PaperTable, row: PaperRow) -> list[str]:
    papers = _published(table, row.cell.experiment.absence.scenario, row)
    first = NONE if papers is None else format_mean(papers)
    if not row.lines or row.failure:
        return [first, row.failure or NOT_RUN, *[NONE] * 4]
    ours, stopped = row.measure("mean_251_259"), row.measure("frozen_own_mean_10")
    above = NONE if papers is None or ours is None else format_mean((ours[0] - papers[0], None), signed=True)
    others = [row.measure(name) for name in ("mean_250_299", "absence_mean")]
    spelled = [NONE if value is None else format_mean(value) for value in (ours, *others, stopped)]
    better = BETTER if ours is not None and stopped is not None and stopped[0] > ours[0] else ""
    return [first, spelled[0], above, *spelled[1:3], spelled[3] + better]


def _seeds(row: PaperRow) -> str:
    return " ".join(str(line["settings"]["seed"]) for line in row.lines) or NONE


def _leaving(row: PaperRow) -> str:
    """Return the validation accuracy of the silos that leave first, averaged over them and the seeds."""
    values: dict[str, list[float]] = {"before": [], "away": []}
    for line in row.lines:
        if line.get("silos"):
            for when, found in values.items():
                found += [line["silos"][when][silo] for silo in line["silos"]["leaves"]]
    before, away = (mean_and_deviation(found) for found in values.values())
    return NONE if before is None or away is None else f"{before[0]:.1f}, {away[0]:.1f}"


def _costs(table: PaperTable, row: PaperRow) -> list[str]:
    papers = [_published(table, part, row) for part in ("update_mb", "digest_mb", "seconds")]
    update, digests, seconds = (
        NONE if value is None else format_mean(value, digits)
        for value, digits in zip(papers, (2, 2, 1), strict=True)
    )
    if not row.lines or row.failure:
        return [update, row.failure or NOT_RUN, digests, *[NONE] * 3, seconds, NONE]
    line: Mapping[str, Any] = row.lines[0]  # sizes do not depend on the seed
    sizes = line["digest_bytes"]
    sent = [
        f"{sizes[name] / 1e6:.2f}" if sizes else NONE for name in ("float32", "float16", "float16_compressed")
    ]
    ours = mean_and_deviation(one["seconds_per_round"] for one in row.lines)
    assert ours is not None
    return [update, f"{line['bytes']['update'][0] / 1e6:.2f}", digests, *sent, seconds, format_mean(ours, 2)]
