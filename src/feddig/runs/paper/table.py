"""Ours beside the paper's numbers, as tables for a terminal and for documents."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from feddig.report.measures import MeanAndDeviation, format_mean, mean_and_deviation
from feddig.runs.paper.cells import Cell, Line, PaperTable

NOT_RUN, NONE, BETTER = "not run", "-", " (better)"
FEDDIG = "feddig"
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

    def by_seed(self) -> dict[int, float]:
        """Return the mean of rounds 251 to 259 by seed."""
        measures = {
            line["settings"]["seed"]: line.get("measures", {}).get("mean_251_259") for line in self.lines
        }
        return {seed: value for seed, value in measures.items() if value is not None}

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
    more: list[tuple[str, Callable[[PaperRow], str]]] = []
    if table.published:
        more.append((PLACES, partial(_places, table, rows)))
    if table.kind == "silos":
        more.append((LEAVING, _leaving))
    cells = [
        [*row.settings, *_accuracies(table, rows, row), *(spell(row) for _, spell in more), _seeds(row)]
        for row in rows
    ]
    return [*titles, *ACCURACIES, *(title for title, _ in more), "seeds"], cells


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
    "the paper", "ours, rounds 251-259", "FedDig above it", "rounds 250-299", "while a silo is away",
    "stopped at the first leave",
)  # fmt: skip
PLACES = "place: the paper's, ours"
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


def _beside(table: PaperTable, rows: Sequence[PaperRow], row: PaperRow) -> list[PaperRow]:
    """Return the rows that differ from this one in the method alone, and itself."""

    def others(row: PaperRow) -> list[str]:
        named = zip(table.rows, row.settings, strict=True)
        return [text for key, text in named if key not in ("algorithm.name", "model.classifier")]

    return [other for other in rows if others(other) == others(row)]


def _above(table: PaperTable, rows: Sequence[PaperRow], row: PaperRow) -> str:
    """Return how far FedDig is above this row, paired by seed."""
    if row.cell.experiment.algorithm.name == FEDDIG:
        return NONE
    beside = _beside(table, rows, row)
    digests = [other for other in beside if other.cell.experiment.algorithm.name == FEDDIG]
    values = row.by_seed()
    theirs = digests[0].by_seed() if digests else {}
    found = mean_and_deviation(theirs[seed] - values[seed] for seed in values if seed in theirs)
    return NONE if found is None else format_mean(found, signed=True)


def _places(table: PaperTable, rows: Sequence[PaperRow], row: PaperRow) -> str:
    """Return the row's place by the paper's numbers and by ours, among the methods for which the paper has one."""
    both = [
        (other, papers[0], ours[0] if ours else None)
        for other in _beside(table, rows, row)
        if (papers := _published(table, other.cell.experiment.absence.scenario, other))
        for ours in [other.measure("mean_251_259")]
    ]
    mine = next((entry for entry in both if entry[0] is row), None)
    if mine is None:
        return NONE
    papers_place = 1 + sum(papers > mine[1] for _, papers, _ in both)
    known = [ours for _, _, ours in both if ours is not None]
    if mine[2] is None or len(known) < len(both):
        return f"{papers_place}, {NONE}"
    return f"{papers_place}, {1 + sum(ours > mine[2] for ours in known)}"


def _accuracies(table: PaperTable, rows: Sequence[PaperRow], row: PaperRow) -> list[str]:
    papers = _published(table, row.cell.experiment.absence.scenario, row)
    first = NONE if papers is None else format_mean(papers)
    if not row.lines or row.failure:
        return [first, row.failure or NOT_RUN, *[NONE] * 4]
    ours, stopped = row.measure("mean_251_259"), row.measure("frozen_own_mean_10")
    others = [row.measure(name) for name in ("mean_250_299", "absence_mean")]
    spelled = [NONE if value is None else format_mean(value) for value in (ours, *others, stopped)]
    better = BETTER if ours is not None and stopped is not None and stopped[0] > ours[0] else ""
    return [first, spelled[0], _above(table, rows, row), *spelled[1:3], spelled[3] + better]


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
    ours = mean_and_deviation(one.get("seconds_per_round") for one in row.lines)
    timed = NONE if ours is None else format_mean(ours, 2)
    return [update, f"{line['bytes']['update'][0] / 1e6:.2f}", digests, *sent, seconds, timed]
