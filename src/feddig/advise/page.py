"""Pictures of advice: accuracy against attack success, and against the epsilon that a record is really promised.

The table of advice: a line for each setting, as Markdown and for a terminal, and what it does not mean.

The files of advice: advice.json, advice.md and two pictures.
"""

import json
import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, NullLocator
from rich.table import Table

from feddig.advise.choose import Choice, Rate, Row, Wanted, explain
from feddig.files import FORMAT_VERSION, write_atomically
from feddig.report.pictures import COLOURS

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


HEADS = (
    "SpD",
    "mixing",
    "mechanism",
    "record epsilon",
    "linked",
    "chance",
    "unmixed whole",
    "accuracy",
    "meets",
)
CAPTION = "linked and unmixed: share, 95 % interval, of how many; accuracy: test images, percent"


def caveats(facts: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """Say what the figures do not mean."""
    fewest, most = (edge(row.digests_linked for row in rows) for edge in (min, max))
    # twice the standard error of a difference of two shares, at its largest
    alike = 200 * math.sqrt(0.5 / facts["test_images"])
    attacks = (
        f"Where a rate is low, these attacks failed, on {fewest} to {most} digests of silo {facts['silo']}. That is no "
        "proof: another attack may not fail, and silos with fewer digests are easier to link."
    )
    learning = (
        f"Accuracy is of a short run ({facts['algorithm']}, {facts['rounds']} rounds of {facts['joint_steps']} joint "
        f"steps, seed {facts['seed']}) on {facts['test_images']:,} test images; differences below about {alike:.1f} "
        "points may be chance. Choosing by it uses the test set: measure the chosen setting anew, on images that were "
        "not used here."
    )
    epsilon = (
        "Record epsilon covers one release of the digest, with noise from the system's entropy (here it came from a "
        "seed), and not the updates of the model."
    )
    return [attacks, learning, epsilon]


def as_markdown(
    rows: Sequence[Row],
    failures: Mapping[str, str],
    choice: Choice,
    wanted: Wanted,
    sentences: Sequence[str],
) -> str:
    """Spell the table, what failed, and the sentences beneath."""
    lines = [HEADS, ["---"] * len(HEADS), *(cells(row, choice, wanted) for row in rows)]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    failed = "".join(f"- failed: {name}: {why}\n" for name, why in failures.items())
    said = "".join(f"- {sentence}\n" for sentence in sentences)
    return f"# Advice\n\n{table}\n{CAPTION}\n\n{said}{failed}\n<!-- format_version 1 -->\n"


def as_rich(rows: Sequence[Row], choice: Choice, wanted: Wanted) -> Table:
    """Build the same table for a terminal."""
    table = Table(caption=CAPTION)
    for head in HEADS:
        words = head in ("mixing", "mechanism", "meets")
        table.add_column(head, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row, choice, wanted), style="bold" if row is choice.row else None)
    return table


def cells(row: Row, choice: Choice, wanted: Wanted) -> list[str]:
    """Spell a row."""
    setting, missed = row.setting, wanted.excess(row)
    noise = "" if setting.epsilon is None else f" {setting.epsilon:g}"
    meets = "no: " + ", ".join(_short(limit) for limit in missed) if missed else "yes"
    if row is choice.row:
        meets += " (best)" if choice.is_met else " (closest)"
    return [
        str(setting.samples_per_digest),
        setting.mixing,
        setting.mechanism + noise,
        "inf" if math.isinf(row.record_epsilon) else f"{row.record_epsilon:g}",
        _spell(row.linked),
        f"{100 * row.linked.chance:.1f} %",
        "not run" if row.unmixed is None else _spell(row.unmixed),
        f"{row.accuracy:.1f}",
        meets,
    ]


def _spell(rate: Rate) -> str:
    return f"{100 * rate.share:.1f} % ({100 * rate.low:.1f} to {100 * rate.high:.1f}, of {rate.trials:,})"


def _short(limit: str) -> str:
    return limit.rsplit("-", 1)[-1].replace("rate", "linked")


PICTURES = {"accuracy-by-linking.png": draw_by_linking, "accuracy-by-epsilon.png": draw_by_epsilon}


def write_advice(
    out: Path,
    rows: Sequence[Row],
    failures: Mapping[str, str],
    facts: Mapping[str, Any],
    choice: Choice,
    wanted: Wanted,
) -> dict[str, Any]:
    """Write everything about a sweep into its folder; give what advice.json holds."""
    said, meant = explain(choice, wanted, len(rows)), caveats(facts, rows)
    advice = {
        "format_version": FORMAT_VERSION,
        "limits": {name: value if math.isfinite(value) else "inf" for name, value in wanted.values().items()},
        "met": choice.is_met,
        "recommendation": choice.row.as_json() if choice.is_met else None,
        "closest": None if choice.is_met else choice.row.as_json(),
        "misses": list(choice.misses),
        "hardest_limit": choice.hardest,
        "settings_that_meet": dict(choice.met_by),
        "sentences": said,
        "caveats": meant,
        "sweep": dict(facts),
        "rows": [{**row.as_json(), "misses": list(wanted.excess(row))} for row in rows],
        "failed": dict(failures),
    }
    for name, draw in PICTURES.items():
        write_atomically(out / name, draw(rows, choice, wanted))
    write_atomically(out / "advice.md", as_markdown(rows, failures, choice, wanted, [*said, *meant]))
    write_atomically(out / "advice.json", json.dumps(advice, indent=2, allow_nan=False) + "\n")
    return advice
