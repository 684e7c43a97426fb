"""Drawing bars side by side, with their spread over seeds."""

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddig.report.paper.cells import Bar, Chart
from feddig.report.paper.look import (
    SMALL,
    Look,
    accuracy_label,
    bare,
    explain,
    is_frozen,
    looks_of,
    spell_seeds,
)
from feddig.report.paper.selecting import SPELLED

ROOM = 0.8
"""Of the way to the next place: how much the bars of one take."""
MOST_NUMBERED = 24
"""Up to so many bars carry their number."""
LEAST_WIDTH = 0.28
"""Inches of a bar, so that its number fits over it."""
LETTER = 0.09
"""Inches of a letter under the bars, about."""


def draw_chart(chart: Chart, title: str) -> Figure:
    """Draw one panel: a group of bars for each place, a colour and hatch for each name."""
    longest = max(len(line) for place in chart.places for line in place.splitlines())
    place = max(len(chart.bars) * LEAST_WIDTH / ROOM, longest * LETTER + 0.15)
    width = max(4.8, 1.4 + len(chart.places) * place)
    figure = Figure(figsize=(min(width, 14.0), 3.8), layout="constrained")
    axes = figure.subplots()
    looks = looks_of([*chart.bars, *chart.lines])
    draw_bars(axes, chart, looks)
    axes.set_xlabel(title)
    finish(figure, axes, chart)
    return figure


def draw_bars(axes: Axes, chart: Chart, looks: Mapping[str, Look]) -> None:
    """Draw a chart's bars and lines into a panel."""
    width = ROOM / len(chart.bars)
    numbered = len(chart.places) * len(chart.bars) <= MOST_NUMBERED
    uneven = len(set(chart.counts)) > 1
    for number, (name, found) in enumerate(chart.bars.items()):
        places = [chart.places.index(place) for place in found]
        left = (number - (len(chart.bars) - 1) / 2) * width
        drawn = axes.bar(
            [place + left for place in places],
            [bar.mean for bar in found.values()],
            width,
            color=looks[name].colour,
            hatch=looks[name].hatch,
            edgecolor="white",
            linewidth=0.5,
            label=name,
        )
        for rectangle, bar in zip(drawn, found.values(), strict=True):
            middle = rectangle.get_x() + rectangle.get_width() / 2
            _mark(axes, middle, bar, numbered=numbered, uneven=uneven)
    for name, bar in chart.lines.items():
        axes.axhline(
            bar.mean, color=looks[name].colour, linestyle=looks[name].dash, linewidth=1.4, label=name
        )
        if bar.spread is not None:
            axes.axhspan(
                bar.mean - bar.spread,
                bar.mean + bar.spread,
                color=looks[name].colour,
                alpha=0.12,
                linewidth=0,
            )
    axes.set_xticks(range(len(chart.places)), chart.places)
    # from nothing to everything: a cut axis makes small differences look large
    axes.set_ylim(0, 100)
    bare(axes)


def finish(figure: Figure, axes: Axes, chart: Chart) -> None:
    """Name the accuracy axis, and add the legend and what a reader must know."""
    axes.set_ylabel(f"{accuracy_label(chart.runs)}\n{SPELLED[chart.measure]}")
    drawn = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    names = sorted([*chart.bars, *chart.lines], key=is_frozen)
    figure.legend(
        [drawn[name] for name in names],
        names,
        loc="outside upper center",
        ncols=min(len(names), 5),
        frameon=False,
    )
    also = f"The runs differ also in {', '.join(chart.also)}" if chart.also else ""
    lines = "Level lines: not touched by these settings" if chart.lines else ""
    explain(figure, spell_seeds(chart.counts), lines, also)


def _mark(axes: Axes, middle: float, bar: Bar, *, numbered: bool, uneven: bool) -> None:
    """Draw a bar's spread, and over it its number; the number of seeds too where that is not the same for all."""
    if bar.spread is not None:
        axes.errorbar(middle, bar.mean, bar.spread, color="black", linewidth=1, capsize=3)
    if numbered:
        text = f"{bar.mean:.1f}" + (f"\nn={bar.seeds}" if uneven else "")
        top = bar.mean + (bar.spread or 0.0)
        axes.annotate(
            text, (middle, top), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=SMALL - 1
        )  # fmt: skip
