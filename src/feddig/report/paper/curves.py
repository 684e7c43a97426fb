"""Accuracy over rounds, a panel a scenario: the paper's comparison with its baselines."""

from collections.abc import Sequence
from itertools import pairwise
from math import nan

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddig.report.grouping import Curve, Group, group_runs, mean_and_spread
from feddig.report.paper.averages import check_alike, check_once, check_runs
from feddig.report.paper.style import (
    GREY,
    Look,
    accuracy_label,
    bare,
    explain,
    is_frozen,
    looks_of,
    spell_seeds,
)
from feddig.report.read_run import Run

ORDER = ("none", "temporary", "forever", "sequential", "groups")
"""The paper's; other scenarios follow."""
MOST_ACROSS = 3
MOST_EVENTS = 12
"""Changes of who is there that are marked one by one; more would hide the curves."""


def scenario_curves(runs: Sequence[Run]) -> Figure:
    """Accuracy over rounds, a panel a scenario, a curve an algorithm with its spread over seeds."""
    check_runs(runs, "scenario curves")
    groups = sorted(group_runs(runs), key=_place)
    looks = looks_of(curve.name for group in groups for curve in group.curves)
    across = min(len(groups), MOST_ACROSS)
    down = -(-len(groups) // across)
    figure = Figure(
        figsize=(1.2 + 3.4 * across if across > 1 else 6.4, 0.9 + 2.9 * down), layout="constrained"
    )
    panels = figure.subplots(down, across, sharey=True, squeeze=False).flatten().tolist()
    for axes, group in zip(panels, groups, strict=False):
        _draw_panel(axes, group, looks)
    for axes in panels[len(groups) :]:
        axes.set_visible(False)
    for row in range(down):
        figure.axes[row * across].set_ylabel(accuracy_label(runs))
    handles = {line.get_label(): line for axes in figure.axes for line in axes.get_lines() if _named(line)}
    order = sorted(handles, key=lambda name: (is_frozen(str(name)), list(handles).index(name)))
    figure.legend(
        [handles[name] for name in order], [str(name) for name in order],
        loc="outside upper center", ncols=min(len(order), 4), frameon=False,
    )  # fmt: skip
    counts = [len(curve.runs) for group in groups for curve in group.curves]
    explain(figure, spell_seeds(counts), _spell_events(groups))
    return figure


def _place(group: Group) -> tuple[int, str]:
    scenario = group.main.runs[0].scenario
    return (ORDER.index(scenario) if scenario in ORDER else len(ORDER), group.title)


def _draw_panel(axes: Axes, group: Group, looks: dict[str, Look]) -> None:
    for round in _events(group.main.runs[0]):
        axes.axvline(round, color=GREY, linewidth=0.6, alpha=0.6, zorder=0)
    for curve in group.curves:
        check_alike(curve.runs)
        check_once(curve.runs)
        _draw_curve(axes, curve, looks[curve.name])
    axes.set_title(group.title, fontsize=10)
    axes.set_xlabel("round")
    bare(axes)


def _draw_curve(axes: Axes, curve: Curve, look: Look) -> None:
    found = [mean_and_spread(values) or (nan, None) for values in curve.by_round]
    means = [mean for mean, _ in found]
    axes.plot(means, color=look.colour, linestyle=look.dash, linewidth=1.6, label=curve.name)
    if len(curve.runs) > 1:
        spreads = [spread or 0.0 for _, spread in found]
        low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
        high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
        axes.fill_between(range(len(means)), low, high, color=look.colour, alpha=0.15, linewidth=0)


def _named(line: object) -> bool:
    return not str(line.get_label()).startswith("_")  # type: ignore[attr-defined]


def _events(run: Run) -> list[int]:
    """List the rounds in which who is there changes, if they are few enough to be marked."""
    if run.absence is None:
        return []
    columns = pairwise(run.absence.present.T.tolist())
    rounds = [round for round, (before, after) in enumerate(columns, start=1) if before != after]
    return rounds if len(rounds) <= MOST_EVENTS else []


def _spell_events(groups: Sequence[Group]) -> str:
    if not any(_events(group.main.runs[0]) for group in groups):
        return ""
    whose = " in the first seed" if any(_has_several_tables(group) for group in groups) else ""
    return f"Upright lines: rounds in which a silo leaves or comes{whose}"


def _has_several_tables(group: Group) -> bool:
    runs = [run for curve in group.curves for run in curve.runs]
    return len({run.absence.present.tobytes() if run.absence else b"" for run in runs}) > 1
