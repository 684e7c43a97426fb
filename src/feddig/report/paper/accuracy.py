"""Draw accuracy: curves over rounds for each scenario, and bars for each value of a setting."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import nan
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddig.report.curve_styles import CurveStyle, choose_styles
from feddig.report.grouping import Curve, Group, group_runs
from feddig.report.measures import mean_and_deviation
from feddig.report.paper.averages import (
    MEASURE_NAMES,
    Axis,
    Bar,
    Chart,
    average_runs,
    check_runs,
    check_same_settings,
    check_unique_seeds,
)
from feddig.report.paper.style import (
    GREY,
    SMALL,
    accuracy_label,
    add_explanation,
    describe_seeds,
    is_frozen,
    simplify_axes,
)
from feddig.report.read_run import Run

SCENARIOS = ("none", "temporary", "forever", "sequential", "groups")
"""In the paper's order; other scenarios follow."""
DATA_SETS = ("fashion-mini", "fashion-mnist", "emnist-byclass", "cifar10", "cifar100")
"""In the paper's order, from grey to colour and from few classes to many; others follow."""
MAX_PANELS_IN_ROW = 3
MAX_EVENTS = 12
"""Up to this many changes of who is present are marked; more would hide the curves."""
BARS_WIDTH = 0.8
"""Width of all bars at one position; the distance between positions is 1."""
MAX_NUMBERED = 24
"""Up to this many bars have their number above them."""
MIN_BAR_INCHES = 0.28
"""Width of a bar that leaves room for its number."""
LETTER_INCHES = 0.09
"""Width of a letter below the bars, about."""


def scenario_curves(runs: Sequence[Run]) -> Figure:
    """Accuracy over rounds: one panel per scenario, one curve per algorithm with its spread over seeds."""
    check_runs(runs, "scenario curves")
    groups = sorted(group_runs(runs), key=_scenario_order)
    styles = choose_styles(curve.name for group in groups for curve in group.curves)
    across = min(len(groups), MAX_PANELS_IN_ROW)
    down = -(-len(groups) // across)
    width = 1.2 + 3.4 * across if across > 1 else 6.4
    figure = Figure(figsize=(width, 0.9 + 2.9 * down), layout="constrained")
    panels = figure.subplots(down, across, sharey=True, squeeze=False).flatten().tolist()
    for axes, group in zip(panels, groups, strict=False):
        _draw_panel(axes, group, styles)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    for row in range(down):
        figure.axes[row * across].set_ylabel(accuracy_label(runs))
    labelled = {str(line.get_label()): line for axes in figure.axes for line in axes.get_lines()}
    # matplotlib gives lines without a label one that starts with an underscore
    names = sorted((name for name in labelled if not name.startswith("_")), key=is_frozen)
    figure.legend(
        [labelled[name] for name in names], names,
        loc="outside upper center", ncols=min(len(names), 4), frameon=False,
    )  # fmt: skip
    counts = [len(curve.runs) for group in groups for curve in group.curves]
    add_explanation(figure, describe_seeds(counts), _describe_events(groups))
    return figure


def _scenario_order(group: Group) -> tuple[int, str]:
    return _order(group.main.runs[0].scenario, SCENARIOS)[0], group.title


def _order(name: str, known: Sequence[str]) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)


def _draw_panel(axes: Axes, group: Group, styles: Mapping[str, CurveStyle]) -> None:
    for round in _events(group.main.runs[0]):
        axes.axvline(round, color=GREY, linewidth=0.6, alpha=0.6, zorder=0)
    for curve in group.curves:
        check_same_settings(curve.runs)
        check_unique_seeds(curve.runs)
        _draw_curve(axes, curve, styles[curve.name])
    axes.set_title(group.title, fontsize=10)
    axes.set_xlabel("round")
    simplify_axes(axes)


def _draw_curve(axes: Axes, curve: Curve, style: CurveStyle) -> None:
    points = [mean_and_deviation(values) or (nan, None) for values in curve.by_round]
    means = [mean for mean, _ in points]
    axes.plot(means, color=style.colour, linestyle=style.dash, linewidth=1.6, label=curve.name)
    if len(curve.runs) > 1:
        low = [mean - (deviation or 0.0) for mean, deviation in points]
        high = [mean + (deviation or 0.0) for mean, deviation in points]
        axes.fill_between(range(len(means)), low, high, color=style.colour, alpha=0.15, linewidth=0)


def _events(run: Run) -> list[int]:
    """Return the rounds in which a silo comes or leaves; none if they are too many to mark."""
    if run.absence is None:
        return []
    columns = pairwise(run.absence.present.T.tolist())
    rounds = [round for round, (before, after) in enumerate(columns, start=1) if before != after]
    return rounds if len(rounds) <= MAX_EVENTS else []


def _describe_events(groups: Sequence[Group]) -> str:
    if not any(_events(group.main.runs[0]) for group in groups):
        return ""
    seed = " in the first seed" if any(_has_several_tables(group) for group in groups) else ""
    return f"Vertical lines: rounds in which a silo leaves or comes{seed}"


def _has_several_tables(group: Group) -> bool:
    runs = [run for curve in group.curves for run in curve.runs]
    return len({run.absence.present.tobytes() if run.absence else b"" for run in runs}) > 1


def skew_bars(runs: Sequence[Run], *, measure: str | None = None) -> Figure:
    """Accuracy by the data's skew mu (data.skew): smaller is more uneven."""
    axis = _setting_axis("data.skew", "skew of the data, Dirichlet parameter µ (smaller: more uneven)")
    return _draw_chart(average_runs(runs, "skew bars", axis, measure), axis.title)


def silo_count_bars(runs: Sequence[Run], *, measure: str | None = None) -> Figure:
    """Accuracy by the number of silos (data.silos); several scenarios stand side by side."""
    axis = _setting_axis("data.silos", "number of silos")
    return _draw_chart(average_runs(runs, "silo count bars", axis, measure), axis.title)


def samples_per_digest_bars(runs: Sequence[Run], *, measure: str | None = None) -> Figure:
    """Accuracy by the number of samples mixed into a digest, SpD (digest.samples_per_digest)."""
    axis = _setting_axis("digest.samples_per_digest", "samples mixed into one digest, SpD", only_digests=True)
    return _draw_chart(average_runs(runs, "samples per digest bars", axis, measure), axis.title)


def mixing_bars(runs: Sequence[Run], *, measure: str | None = None) -> Figure:
    """Accuracy by what is mixed: any samples, or those of one class (digest.mixing)."""
    axis = _setting_axis("digest.mixing", "samples that are mixed", only_digests=True)
    return _draw_chart(average_runs(runs, "mixing bars", axis, measure), axis.title)


def perturbation_bars(runs: Sequence[Run], *, measure: str | None = None) -> Figure:
    """Accuracy by what hides a sample: mixing alone, noise alone, both (SpD, privacy.mechanism, privacy.epsilon)."""
    keys = ("digest.samples_per_digest", "privacy.mechanism", "privacy.epsilon")
    title = "what hides a sample in its digest"
    axis = Axis(keys, _perturbation_order, _perturbation, title, only_digests=True)
    return _draw_chart(average_runs(runs, "perturbation bars", axis, measure), title)


def _perturbation(run: Run) -> str:
    mixed, mechanism = run.setting("digest.samples_per_digest"), run.setting("privacy.mechanism")
    noise = "" if mechanism == "none" else f"{mechanism}\nε {run.setting('privacy.epsilon'):g}"
    mixing = "" if mixed == 1 else f"mixing, SpD {mixed}"
    return "\n".join(part for part in (mixing, noise) if part) or "nothing"


def _perturbation_order(run: Run) -> tuple[bool, bool, str, float, int]:
    """Sort as the paper does: nothing, noise alone, mixing alone, both."""
    mixed, mechanism = run.setting("digest.samples_per_digest"), run.setting("privacy.mechanism")
    return (mixed != 1, mechanism != "none", str(mechanism), -run.setting("privacy.epsilon"), mixed)


def dataset_bars(runs: Sequence[Run], *, measure: str | None = None) -> Figure:
    """Accuracy on each data set (data.name): one panel per data set, one bar per algorithm."""

    def name(run: Run) -> str:
        return str(run.setting("data.name"))

    axis = Axis(("data.name",), lambda run: _order(name(run), DATA_SETS), name, "data set")
    chart = average_runs(runs, "data set bars", axis, measure)
    figure = Figure(figsize=(1.0 + 2.4 * len(chart.positions), 3.6), layout="constrained")
    panels = figure.subplots(1, len(chart.positions), sharey=True, squeeze=False)[0]
    styles = choose_styles(chart.bars)
    for axes, position in zip(panels, chart.positions, strict=True):
        # algorithms that were not run on this data set leave a gap
        bars = {
            name: {position: found[position]} if position in found else {}
            for name, found in chart.bars.items()
        }
        _draw_bars(axes, replace(chart, positions=[position], bars=bars), styles)
        axes.set_xticks([])
        axes.set_xlabel(position)
    _finish(figure, panels[0], chart)
    return figure


def _setting_axis(key: str, title: str, *, only_digests: bool = False) -> Axis:
    """Return the axis that shows the values of one setting in their order."""
    return Axis((key,), _setting_order(key), lambda run: str(run.setting(key)), title, only_digests)


def _setting_order(key: str) -> Callable[[Run], Any]:
    def order(run: Run) -> Any:
        value = run.setting(key)
        # text and numbers cannot be compared with each other
        return (not isinstance(value, int | float), value if isinstance(value, int | float) else str(value))

    return order


def _draw_chart(chart: Chart, title: str) -> Figure:
    """Draw one panel: a group of bars at each position, one colour and hatch for each name."""
    longest = max(len(line) for position in chart.positions for line in position.splitlines())
    position_inches = max(len(chart.bars) * MIN_BAR_INCHES / BARS_WIDTH, longest * LETTER_INCHES + 0.15)
    width = max(4.8, 1.4 + len(chart.positions) * position_inches)
    figure = Figure(figsize=(min(width, 14.0), 3.8), layout="constrained")
    axes = figure.subplots()
    _draw_bars(axes, chart, choose_styles([*chart.bars, *chart.lines]))
    axes.set_xlabel(title)
    _finish(figure, axes, chart)
    return figure


def _draw_bars(axes: Axes, chart: Chart, styles: Mapping[str, CurveStyle]) -> None:
    width = BARS_WIDTH / len(chart.bars)
    numbered = len(chart.positions) * len(chart.bars) <= MAX_NUMBERED
    uneven = len(set(chart.seed_counts)) > 1
    for number, (name, found) in enumerate(chart.bars.items()):
        offset = (number - (len(chart.bars) - 1) / 2) * width
        drawn = axes.bar(
            [chart.positions.index(position) + offset for position in found],
            [bar.mean for bar in found.values()],
            width,
            color=styles[name].colour,
            hatch=styles[name].hatch,
            edgecolor="white",
            linewidth=0.5,
            label=name,
        )
        for rectangle, bar in zip(drawn, found.values(), strict=True):
            middle = rectangle.get_x() + rectangle.get_width() / 2
            _mark(axes, middle, bar, numbered=numbered, uneven=uneven)
    for name, bar in chart.lines.items():
        colour = styles[name].colour
        axes.axhline(bar.mean, color=colour, linestyle=styles[name].dash, linewidth=1.4, label=name)
        if bar.deviation is not None:
            low, high = bar.mean - bar.deviation, bar.mean + bar.deviation
            axes.axhspan(low, high, color=colour, alpha=0.12, linewidth=0)
    axes.set_xticks(range(len(chart.positions)), chart.positions)
    # always 0 to 100: a shortened axis makes small differences look large
    axes.set_ylim(0, 100)
    simplify_axes(axes)


def _mark(axes: Axes, middle: float, bar: Bar, *, numbered: bool, uneven: bool) -> None:
    """Draw a bar's deviation and number, and its number of seeds where bars differ in that."""
    if bar.deviation is not None:
        axes.errorbar(middle, bar.mean, bar.deviation, color="black", linewidth=1, capsize=3)
    if numbered:
        text = f"{bar.mean:.1f}" + (f"\nn={bar.seeds}" if uneven else "")
        top = bar.mean + (bar.deviation or 0.0)
        axes.annotate(
            text, (middle, top), (0, 2), textcoords="offset points", ha="center", va="bottom", fontsize=SMALL - 1
        )  # fmt: skip


def _finish(figure: Figure, axes: Axes, chart: Chart) -> None:
    """Label the accuracy axis, and add the legend and the explanation."""
    axes.set_ylabel(f"{accuracy_label(chart.runs)}\n{MEASURE_NAMES[chart.measure]}")
    drawn = dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
    names = sorted([*chart.bars, *chart.lines], key=is_frozen)
    figure.legend(
        [drawn[name] for name in names],
        names,
        loc="outside upper center",
        ncols=min(len(names), 5),
        frameon=False,
    )
    also = f"The runs differ also in {', '.join(chart.also_differing)}" if chart.also_differing else ""
    lines = "Level lines: not affected by these settings" if chart.lines else ""
    add_explanation(figure, describe_seeds(chart.seed_counts), lines, also)
