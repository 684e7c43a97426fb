"""Drawing bars side by side, with their spread over seeds.

Accuracy on several data sets, a panel each.

Accuracy against one setting at a time: how uneven, how many silos, how digests are mixed and perturbed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddig.report.paper.averages import SPELLED, Axis, Bar, Chart, sort_into_chart
from feddig.report.paper.style import (
    SMALL,
    Look,
    accuracy_label,
    bare,
    explain,
    is_frozen,
    looks_of,
    spell_seeds,
)
from feddig.report.read_run import Run

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


SET = "data.name"
ORDER = ("fashion-mini", "fashion-mnist", "emnist-byclass", "cifar10", "cifar100")
"""From grey to colour and from few classes to many, as the paper has them; others follow."""


def dataset_bars(runs: Sequence[Run], *, measure: str | None = None) -> Figure:
    """Accuracy on each data set (data.name), a panel each, a bar an algorithm."""
    axis = Axis((SET,), _place, _name, "data set")
    chart = sort_into_chart(runs, "data set bars", axis, measure)
    figure = Figure(figsize=(1.0 + 2.4 * len(chart.places), 3.6), layout="constrained")
    panels = figure.subplots(1, len(chart.places), sharey=True, squeeze=False)[0]
    looks = looks_of(chart.bars)
    for axes, place in zip(panels, chart.places, strict=True):
        draw_bars(axes, _only(chart, place), looks)
        axes.set_xticks([])
        axes.set_xlabel(place)
    # the first panel names every algorithm, also one that was not run on its data set
    finish(figure, panels[0], chart)
    return figure


def _only(chart: Chart, place: str) -> Chart:
    """Cut a chart down to one place; names that were not run there keep their room."""
    bars = {name: {place: found[place]} if place in found else {} for name, found in chart.bars.items()}
    return replace(chart, places=[place], bars=bars)


def _name(run: Run) -> str:
    return str(run.setting(SET))


def _place(run: Run) -> tuple[int, str]:
    name = _name(run)
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)


def skew_bars(runs: Sequence[Run], *, measure: str | None = None) -> Figure:
    """Accuracy by the data's skew mu (data.skew): smaller is more uneven."""
    axis = _axis_of("data.skew", "skew of the data, Dirichlet parameter µ (smaller: more uneven)")
    return draw_chart(sort_into_chart(runs, "skew bars", axis, measure), axis.title)


def silo_count_bars(runs: Sequence[Run], *, measure: str | None = None) -> Figure:
    """Accuracy by the number of silos (data.silos); bars of several scenarios stand side by side."""
    axis = _axis_of("data.silos", "number of silos")
    return draw_chart(sort_into_chart(runs, "silo count bars", axis, measure), axis.title)


def samples_per_digest_bars(runs: Sequence[Run], *, measure: str | None = None) -> Figure:
    """Accuracy by how many samples are mixed into a digest, SpD (digest.samples_per_digest)."""
    axis = _axis_of("digest.samples_per_digest", "samples mixed into one digest, SpD", of_digests=True)
    return draw_chart(sort_into_chart(runs, "samples per digest bars", axis, measure), axis.title)


def mixing_bars(runs: Sequence[Run], *, measure: str | None = None) -> Figure:
    """Accuracy by what is mixed: any samples, or those of one class (digest.mixing)."""
    axis = _axis_of("digest.mixing", "samples that are mixed", of_digests=True)
    return draw_chart(sort_into_chart(runs, "mixing bars", axis, measure), axis.title)


def perturbation_bars(runs: Sequence[Run], *, measure: str | None = None) -> Figure:
    """Accuracy by what hides a sample: mixing alone, noise alone, both (SpD, privacy.mechanism, privacy.epsilon)."""
    axis = Axis(
        ("digest.samples_per_digest", "privacy.mechanism", "privacy.epsilon"),
        _hiding_order,
        _hiding,
        "what hides a sample in its digest",
        of_digests=True,
    )
    return draw_chart(sort_into_chart(runs, "perturbation bars", axis, measure), axis.title)


def _axis_of(key: str, title: str, *, of_digests: bool = False) -> Axis:
    """Lay the values of one setting out in their order."""
    return Axis((key,), _value(key), lambda run: str(run.setting(key)), title, of_digests)


def _value(key: str) -> Callable[[Run], Any]:
    def value(run: Run) -> Any:
        found = run.setting(key)
        # words and numbers do not compare
        return (not isinstance(found, int | float), found if isinstance(found, int | float) else str(found))

    return value


def _hiding(run: Run) -> str:
    mixed, mechanism = run.setting("digest.samples_per_digest"), run.setting("privacy.mechanism")
    noise = "" if mechanism == "none" else f"{mechanism}\nε {run.setting('privacy.epsilon'):g}"
    mixing = "" if mixed == 1 else f"mixing, SpD {mixed}"
    return "\n".join(part for part in (mixing, noise) if part) or "nothing"


def _hiding_order(run: Run) -> tuple[bool, bool, str, float, int]:
    """Put nothing first, then noise alone, then mixing alone, then both, as the paper does."""
    mixed, mechanism = run.setting("digest.samples_per_digest"), run.setting("privacy.mechanism")
    return (mixed != 1, mechanism != "none", str(mechanism), -run.setting("privacy.epsilon"), mixed)
