"""Accuracy on several data sets, a panel each."""

from collections.abc import Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from feddig.report.paper.bars import draw_bars, finish
from feddig.report.paper.cells import Axis, Chart, sort_into_chart
from feddig.report.paper.look import looks_of
from feddig.report.runs import Run

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
