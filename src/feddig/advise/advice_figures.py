"""Pictures of advice: accuracy against attack success, and against the epsilon that a record is really promised."""

import math
from collections.abc import Mapping, Sequence
from io import BytesIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator

from feddig.advise.choose import Choice, Row, Wanted
from feddig.files import FORMAT_VERSION
from feddig.report.figures import COLOURS

MARKERS = {"random": "o", "within-class": "s"}
FARTHER = 8.0
"""How many times beyond the largest finite epsilon the infinite ones are drawn."""


def draw_by_linking(rows: Sequence[Row], choice: Choice, wanted: Wanted) -> bytes:
    """Draw accuracy over the share of records that were linked, with its interval."""
    figure, axes = _frame(rows, choice, wanted, {id(row): row.linked.share for row in rows})
    for row in rows:
        axes.hlines(
            row.accuracy,
            row.linked.low,
            row.linked.high,
            color=_colours(rows)[row.setting.mechanism],
            alpha=0.4,
        )
    axes.axvline(wanted.max_link_rate, color="#888888", linestyle="--", linewidth=1)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("records linked to their digest (share, 95 % interval; dashed: the limit)")
    return _png(figure)


def draw_by_epsilon(rows: Sequence[Row], choice: Choice, wanted: Wanted) -> bytes:
    """Draw accuracy over a record's epsilon, on a logarithmic axis that ends in the infinite."""
    finite = sorted({row.record_epsilon for row in rows if math.isfinite(row.record_epsilon)})
    limit = wanted.max_record_epsilon
    known = [*finite, limit] if 0 < limit < math.inf else finite
    end = max(known, default=1.0) * FARTHER
    across = {id(row): min(row.record_epsilon, end) * _aside(row, rows) for row in rows}
    figure, axes = _frame(rows, choice, wanted, across)
    axes.set_xscale("log")
    if 0 < limit < math.inf:
        axes.axvline(limit, color="#888888", linestyle="--", linewidth=1)
    # spelled by hand: powers of ten would need mathematical fonts
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks([*finite, end], [*(f"{value:g}" for value in finite), "infinite"])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(min(known, default=1.0) / 2, end * 2)
    axes.set_xlabel("what a record is really promised: epsilon (logarithmic; dashed: the limit)")
    return _png(figure)


def _frame(
    rows: Sequence[Row], choice: Choice, wanted: Wanted, across: Mapping[int, float]
) -> tuple[Figure, Axes]:
    """Draw the points, each with its SpD beside it, and ring the chosen one."""
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.subplots()
    colours = _colours(rows)
    for row in rows:
        place, setting = (across[id(row)], row.accuracy), row.setting
        axes.plot(*place, MARKERS[setting.mixing], color=colours[setting.mechanism], markersize=6, alpha=0.85)
        axes.annotate(
            str(setting.samples_per_digest),
            place,
            (4, 3),
            textcoords="offset points",
            fontsize=7,
            color="#444444",
        )
        if row is choice.row:
            axes.plot(*place, "o", markersize=15, markerfacecolor="none", markeredgecolor="black")
    if wanted.min_accuracy is not None:
        axes.axhline(wanted.min_accuracy, color="#888888", linestyle="--", linewidth=1)
    axes.set_ylabel("test accuracy of a short run (%)")
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _explain(axes, rows, choice)
    return figure, axes


def _explain(axes: Axes, rows: Sequence[Row], choice: Choice) -> None:
    handles = [
        Line2D([], [], marker="o", linestyle="", color=colour, label=name)
        for name, colour in _colours(rows).items()
    ]
    for mixing in dict.fromkeys(row.setting.mixing for row in rows):
        handles.append(
            Line2D(
                [],
                [],
                marker=MARKERS[mixing],
                linestyle="",
                markerfacecolor="none",
                color="#444444",
                label=mixing,
            )
        )
    ring = "recommended" if choice.is_met else "closest to the limits"
    handles.append(
        Line2D(
            [], [], marker="o", linestyle="", markersize=11, markerfacecolor="none", color="black", label=ring
        )
    )
    axes.figure.legend(handles=handles, loc="outside right upper", frameon=False, title="number: SpD")


def _aside(row: Row, rows: Sequence[Row]) -> float:
    """Set mechanisms that share their epsilons side by side: to the left, so that none seems to be over a limit."""
    finite = math.isfinite(row.record_epsilon)
    names = list(
        dict.fromkeys(each.setting.mechanism for each in rows if math.isfinite(each.record_epsilon) is finite)
    )
    return float(0.88 ** (len(names) - 1 - names.index(row.setting.mechanism)))


def _colours(rows: Sequence[Row]) -> dict[str, str]:
    names = dict.fromkeys(row.setting.mechanism for row in rows)
    return {name: COLOURS[place % len(COLOURS)] for place, name in enumerate(names)}


def _png(figure: Figure) -> bytes:
    stream = BytesIO()
    # no date or version inside: the same advice draws the same bytes
    figure.savefig(
        stream, format="png", dpi=100, metadata={"Software": f"feddig, format_version {FORMAT_VERSION}"}
    )
    return stream.getvalue()
