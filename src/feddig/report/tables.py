"""Tables of the page: a click on a head sorts them, and they can be copied.

The table of a comparison: means and standard deviations over seeds, as CSV, Markdown and for a terminal.
"""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import inf
from statistics import fmean, stdev
from typing import Any

from rich.table import Table

from feddig.report.measures import MEASURES


def sortable(heads: Sequence[str], rows: Iterable[str], name: str, texts: Sequence[int] = (0,)) -> str:
    """Lay out a table whose columns sort and which can be copied; `texts` are the columns of words."""
    head = "".join(
        f'<th scope="col"{"" if place in texts else " class=number"}>'
        f'<button type="button" class="sort">{escape(each)}</button></th>'
        for place, each in enumerate(heads)
    )
    copies = "".join(
        f'<button type="button" class="copy" data-copy="{kind}">{kind}</button>'
        for kind in ("CSV", "Markdown", "LaTeX")
    )
    return (
        f'<div class="table" data-table="{escape(name)}"><div class="tools">Copy as {copies}'
        f'<span role="status" class="said"></span></div><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(name)}"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
        "</div></div>"
    )


def text_cell(text: str) -> str:
    """Lay out words, which users may have chosen."""
    return f"<td>{escape(text)}</td>"


def number_cell(value: float | None, shown: str) -> str:
    """Lay out a number to sort by, and how it is shown; None where it is not known."""
    by = "" if value is None else "Infinity" if value == inf else value
    return f'<td class="number" data-value="{by}">{escape(shown)}</td>'


def percent_cell(value: float | None) -> str:
    """Lay out a percentage."""
    return number_cell(None if value is None else round(value, 4), "" if value is None else f"{value:.1f}")


SHOWN = ("final", "absence_mean", "best")
"""The measures that fit a terminal; table.csv has them all."""


@dataclass(frozen=True)
class Line:
    """One algorithm in one scenario, over its seeds."""

    algorithm: str
    scenario: str
    seeds: int
    failed: int
    values: Mapping[str, tuple[float, float | None] | None]
    """By measure: mean and sample standard deviation (None for a single seed); None where not reached."""


def tabulate(summaries: Sequence[tuple[str, str, Mapping[str, Any] | None]]) -> list[Line]:
    """Gather (algorithm, scenario, summary or None for a failed run) into lines."""
    lines = []
    for algorithm, scenario in dict.fromkeys((algorithm, scenario) for algorithm, scenario, _ in summaries):
        cells = [found for name, place, found in summaries if (name, place) == (algorithm, scenario)]
        there = [summary for summary in cells if summary is not None]
        values = {name: _spread([each["accuracy"][name] for each in there]) for name in MEASURES}
        values["seconds_per_round"] = _spread([each["seconds_per_round"] for each in there])
        lines.append(Line(algorithm, scenario, len(there), len(cells) - len(there), values))
    return lines


def _spread(values: Sequence[float | None]) -> tuple[float, float | None] | None:
    numbers = [value for value in values if value is not None]
    if not numbers or len(numbers) < len(values):
        return None
    return fmean(numbers), stdev(numbers) if len(numbers) > 1 else None


def as_csv(lines: Sequence[Line]) -> str:
    """Spell every measure, mean and deviation in columns of their own."""
    text = io.StringIO()
    text.write("# feddig table, format_version 1\n")
    writer = csv.writer(text, lineterminator="\n")
    names = [*MEASURES, "seconds_per_round"]
    columns = [column for name in names for column in (f"{name}_mean", f"{name}_sd")]
    writer.writerow(["algorithm", "scenario", "seeds", "failed", *columns])
    for line in lines:
        cells = [cell for name in names for cell in (line.values[name] or (None, None))]
        spelled = ["" if cell is None else f"{cell:.4f}" for cell in cells]
        writer.writerow([line.algorithm, line.scenario, line.seeds, line.failed, *spelled])
    return text.getvalue()


def as_markdown(lines: Sequence[Line]) -> str:
    """Spell the shown measures as a Markdown table."""
    heads = ["algorithm", "scenario", "seeds", *(_title(name) for name in SHOWN), "s a round"]
    rows = [heads, ["---"] * len(heads), *(_cells(line) for line in lines)]
    table = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    return (
        table
        + "\nTest accuracy in percent, mean ± standard deviation over seeds.\n<!-- format_version 1 -->\n"
    )


def as_rich(lines: Sequence[Line], title: str) -> Table:
    """Build the same table for a terminal."""
    table = Table(title=title, caption="test accuracy in percent, mean ± standard deviation over seeds")
    for name in ("algorithm", "scenario"):
        table.add_column(name, no_wrap=True)
    for name in ("seeds", *map(_title, SHOWN), "s a round"):
        table.add_column(name, justify="right", no_wrap=True)
    for line in lines:
        table.add_row(*_cells(line))
    return table


def _title(name: str) -> str:
    return name.replace("_", " ")


def _cells(line: Line) -> list[str]:
    seeds = str(line.seeds) + (f" ({line.failed} failed)" if line.failed else "")
    numbers = [_spell(line.values[name], 1) for name in SHOWN]
    return [line.algorithm, line.scenario, seeds, *numbers, _spell(line.values["seconds_per_round"], 2)]


def _spell(value: tuple[float, float | None] | None, digits: int) -> str:
    if value is None:
        return "-"
    mean, deviation = value
    return f"{mean:.{digits}f}" + ("" if deviation is None else f" ± {deviation:.{digits}f}")
