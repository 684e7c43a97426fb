"""The lights of an audit, for people who see colours and for those who do not.

Pictures: accuracy curves with the absence drawn under them.
"""

import itertools
from collections.abc import Sequence
from html import escape
from io import BytesIO
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddig.files import FORMAT_VERSION, write_atomically
from feddig.report.read_run import Result, read_result

SHAPES = {"green": "●", "amber": "▲", "red": "■"}
"""Lights differ in shape too, for those who see no colours and for paper."""


def show_light(light: Any) -> str:
    """Mark a light by its colour, shape and name."""
    known = colour_of(light)
    return f'<span class="light {known}">{SHAPES.get(known, "○")} {escape(str(light))}</span>'


def colour_of(light: Any) -> str:
    """Give a light's colour in the style sheet; grey for what is none."""
    return light if light in SHAPES else "grey"


COLOURS = ("#3b6fb6", "#d1495b", "#2e933c", "#8d6a9f", "#e09f3e", "#4a4e69", "#00a6a6", "#9c6644")
"""Told apart by most colour-blind readers; line styles differ too."""
STYLES = ("-", "--", "-.", ":")
HERE, AWAY, NOT_YET = "#9fbf9f", "#e8c4c4", "#f2f2f2"


def draw_run(path: Path) -> None:
    """Draw a single run's curve into its folder."""
    result = read_result(path)
    picture = draw_curves([result], f"{result.algorithm}, {result.scenario}, seed {result.seed}")
    write_atomically(path / "curves.png", picture)


def draw_curves(results: Sequence[Result], title: str) -> bytes:
    """Draw test accuracy over rounds, a curve an algorithm (the mean over its seeds), and who is away."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    silos = len(results[0].present)
    curves, table = figure.subplots(2, 1, sharex=True, height_ratios=(4, 0.5 + 0.12 * min(silos, 12)))
    algorithms = list(dict.fromkeys(result.algorithm for result in results))
    for place, algorithm in enumerate(algorithms):
        runs = [result.accuracies for result in results if result.algorithm == algorithm]
        colour = COLOURS[place % len(COLOURS)]
        style = STYLES[place % len(STYLES)]
        means = [fmean(values) for values in zip(*runs, strict=True)]
        curves.plot(means, color=colour, linestyle=style, linewidth=2, label=f"{algorithm}  {means[-1]:.1f}")
        if len(runs) > 1:
            low, high = ([edge(values) for values in zip(*runs, strict=True)] for edge in (min, max))
            curves.fill_between(range(len(means)), low, high, color=colour, alpha=0.15, linewidth=0)
    curves.set_ylabel(f"{results[0].accuracy_of} accuracy (%)")
    curves.set_title(title)
    curves.grid(alpha=0.25)
    curves.legend(title="at the end", loc="best", frameon=False)
    for side in ("top", "right"):
        curves.spines[side].set_visible(False)
    _draw_absence(table, results[0].present, several=len({tuple(map(tuple, r.present)) for r in results}) > 1)
    stream = BytesIO()
    # no date or version inside: the same run draws the same bytes
    figure.savefig(
        stream, format="png", dpi=120, metadata={"Software": f"feddig, format_version {FORMAT_VERSION}"}
    )
    return stream.getvalue()


def _draw_absence(axes: Axes, present: list[list[bool]], *, several: bool) -> None:
    """Draw a bar a silo: here, away, not yet joined."""
    for silo, row in enumerate(present):
        joined = row.index(True) if True in row else len(row)
        for start, end, here in _stretches(row):
            colour = HERE if here else NOT_YET if start < joined else AWAY
            axes.broken_barh([(start - 0.5, end - start)], (silo - 0.4, 0.8), facecolors=colour)
    axes.set_ylim(len(present) - 0.5, -0.5)
    if len(present) <= 12:
        axes.set_yticks(range(len(present)))
    axes.set_ylabel("silo")
    axes.set_xlabel(
        "round      (green: here, red: away, grey: not joined yet)" + ("; first seed's" if several else "")
    )
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _stretches(row: list[bool]) -> list[tuple[int, int, bool]]:
    """Cut a silo's row into stretches of being here and being away."""
    edges = [0, *(place for place in range(1, len(row)) if row[place] != row[place - 1]), len(row)]
    return [(start, end, row[start]) for start, end in itertools.pairwise(edges)]
