"""Write the advice of a sweep: advice.json, advice.md with a table and caveats, and two pictures."""

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

from feddig.advise.choose import Choice, RateInterval, SettingResult, UserLimits, explain_choice
from feddig.files import FORMAT_VERSION, write_atomically
from feddig.privacy.mechanisms import MECHANISMS
from feddig.report.curve_styles import choose_styles

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
CAPTION = "linked and unmixed: share, 95 % interval, number of trials; accuracy: on test images, in percent"
MARKERS = {"random": "o", "within-class": "s"}
FARTHER = 8.0
"""Infinite epsilons are drawn at this multiple of the largest finite one."""


def write_advice(
    out: Path,
    results: Sequence[SettingResult],
    failures: Mapping[str, str],
    facts: Mapping[str, Any],
    choice: Choice,
    limits: UserLimits,
    settings: str,
) -> dict[str, Any]:
    """Write all files about a sweep into its folder; return the content of advice.json.

    `settings` is the chosen setting as TOML to paste.
    """
    sentences, caveats = explain_choice(choice, limits, len(results)), _caveats(facts, results)
    values = limits.by_option()
    advice = {
        "format_version": FORMAT_VERSION,
        "limits": {name: value if math.isfinite(value) else "inf" for name, value in values.items()},
        "met": choice.is_met,
        "recommendation": choice.result.as_json() if choice.is_met else None,
        "closest": None if choice.is_met else choice.result.as_json(),
        "misses": list(choice.misses),
        "hardest_limit": choice.hardest,
        "settings_that_meet": dict(choice.met_by),
        "settings": settings,
        "sentences": sentences,
        "caveats": caveats,
        "sweep": dict(facts),
        "rows": [{**result.as_json(), "misses": list(limits.excess(result))} for result in results],
        "failed": dict(failures),
    }
    write_atomically(out / "accuracy-by-linking.png", _draw_by_linking(results, choice, limits))
    write_atomically(out / "accuracy-by-epsilon.png", _draw_by_epsilon(results, choice, limits))
    page = _as_markdown(results, failures, choice, limits, [*sentences, *caveats], settings)
    write_atomically(out / "advice.md", page)
    write_atomically(out / "advice.json", json.dumps(advice, indent=2, allow_nan=False) + "\n")
    return advice


def _caveats(facts: Mapping[str, Any], results: Sequence[SettingResult]) -> list[str]:
    """Say what the figures do not mean."""
    fewest, most = (edge(result.digests_linked for result in results) for edge in (min, max))
    # twice the standard error of a difference of two shares, at its largest
    alike = 200 * math.sqrt(0.5 / facts["test_images"])
    attacks = (
        f"Where a rate is low, these attacks failed, on {fewest} to {most} digests of silo {facts['silo']}. That is no "
        "proof: another attack may succeed, and silos with fewer digests are easier to link."
    )
    learning = (
        f"Accuracy is that of a short run ({facts['algorithm']}, {facts['rounds']} rounds of {facts['joint_steps']} "
        f"joint steps, seed {facts['seed']}) on {facts['test_images']:,} test images; differences below about "
        f"{alike:.1f} points may be chance. Choosing by it uses the test set: measure the chosen setting again, on "
        "images that were not used here."
    )
    epsilon = (
        "Record epsilon covers one release of the digest, with noise from the system's entropy (here it came from a "
        "seed), and not the updates of the model."
    )
    return [attacks, learning, epsilon]


def _as_markdown(
    results: Sequence[SettingResult],
    failures: Mapping[str, str],
    choice: Choice,
    limits: UserLimits,
    sentences: Sequence[str],
    settings: str,
) -> str:
    lines = [HEADS, ["---"] * len(HEADS), *(_cells(result, choice, limits) for result in results)]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    failed = "".join(f"- failed: {name}: {why}\n" for name, why in failures.items())
    said = "".join(f"- {sentence}\n" for sentence in sentences)
    return f"# Advice\n\n{table}\n{CAPTION}\n\n{said}{failed}\n```toml\n{settings}\n```\n\n<!-- format_version 1 -->\n"


def terminal_table(results: Sequence[SettingResult], choice: Choice, limits: UserLimits) -> Table:
    """Build the table for a terminal; the chosen setting is bold."""
    table = Table(caption=CAPTION)
    for head in HEADS:
        is_text = head in ("mixing", "mechanism", "meets")
        table.add_column(head, justify="left" if is_text else "right", no_wrap=True)
    for result in results:
        table.add_row(*_cells(result, choice, limits), style="bold" if result is choice.result else None)
    return table


def _cells(result: SettingResult, choice: Choice, limits: UserLimits) -> list[str]:
    setting, missed = result.setting, limits.excess(result)
    noise = "" if setting.epsilon is None else f" {setting.epsilon:g}"
    short = (limit.rsplit("-", 1)[-1].replace("rate", "linked") for limit in missed)
    meets = "no: " + ", ".join(short) if missed else "yes"
    if result is choice.result:
        meets += " (best)" if choice.is_met else " (closest)"
    return [
        str(setting.samples_per_digest),
        setting.mixing,
        setting.mechanism + noise,
        "inf" if math.isinf(result.record_epsilon) else f"{result.record_epsilon:g}",
        _format_rate(result.linked),
        f"{100 * result.linked.chance:.1f} %",
        "not run" if result.unmixed is None else _format_rate(result.unmixed),
        f"{result.accuracy:.1f}",
        meets,
    ]


def _format_rate(rate: RateInterval) -> str:
    return f"{100 * rate.share:.1f} % ({100 * rate.low:.1f} to {100 * rate.high:.1f}, of {rate.trials:,})"


def _draw_by_linking(results: Sequence[SettingResult], choice: Choice, limits: UserLimits) -> bytes:
    """Draw accuracy over the share of records that were linked, with its interval."""
    figure, axes = _draw_points(results, choice, limits, [result.linked.share for result in results])
    colours = _colours(results)
    for result in results:
        axes.hlines(
            result.accuracy,
            result.linked.low,
            result.linked.high,
            color=colours[result.setting.mechanism],
            alpha=0.4,
        )
    axes.axvline(limits.max_link_rate, color="#888888", linestyle="--", linewidth=1)
    axes.set_xlim(-0.02, 1.02)
    axes.set_xlabel("records linked to their digest (share, 95 % interval; dashed: the limit)")
    return _png(figure)


def _draw_by_epsilon(results: Sequence[SettingResult], choice: Choice, limits: UserLimits) -> bytes:
    """Draw accuracy over a record's epsilon, on a logarithmic axis that ends at infinity."""
    finite = sorted({each.record_epsilon for each in results if math.isfinite(each.record_epsilon)})
    limit = limits.max_record_epsilon
    known = [*finite, limit] if 0 < limit < math.inf else finite
    end = max(known, default=1.0) * FARTHER
    across = [min(each.record_epsilon, end) * _offset(each, results) for each in results]
    figure, axes = _draw_points(results, choice, limits, across)
    axes.set_xscale("log")
    if 0 < limit < math.inf:
        axes.axvline(limit, color="#888888", linestyle="--", linewidth=1)
    # own labels, because powers of ten would need mathematical fonts
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks([*finite, end], [*(f"{value:g}" for value in finite), "infinite"])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(min(known, default=1.0) / 2, end * 2)
    axes.set_xlabel("epsilon that is proved for a record (logarithmic; dashed: the limit)")
    return _png(figure)


def _offset(result: SettingResult, results: Sequence[SettingResult]) -> float:
    """Return a factor that separates mechanisms of equal epsilon: to the left, so that none seems above a limit."""
    finite = math.isfinite(result.record_epsilon)
    names = list(
        dict.fromkeys(
            each.setting.mechanism for each in results if math.isfinite(each.record_epsilon) is finite
        )
    )
    return float(0.88 ** (len(names) - 1 - names.index(result.setting.mechanism)))


def _draw_points(
    results: Sequence[SettingResult], choice: Choice, limits: UserLimits, across: Sequence[float]
) -> tuple[Figure, Axes]:
    """Draw a point with its SpD for each setting, and a ring around the chosen one."""
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = figure.subplots()
    colours = _colours(results)
    for result, x in zip(results, across, strict=True):
        place, setting = (x, result.accuracy), result.setting
        axes.plot(*place, MARKERS[setting.mixing], color=colours[setting.mechanism], markersize=6, alpha=0.85)
        style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "color": "#444444"}
        axes.annotate(str(setting.samples_per_digest), place, (4, 3), **style)
        if result is choice.result:
            axes.plot(*place, "o", markersize=15, markerfacecolor="none", markeredgecolor="black")
    if limits.min_accuracy is not None:
        axes.axhline(limits.min_accuracy, color="#888888", linestyle="--", linewidth=1)
    axes.set_ylabel("test accuracy of a short run (%)")
    axes.grid(alpha=0.25)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    _draw_legend(axes, results, choice)
    return figure, axes


def _draw_legend(axes: Axes, results: Sequence[SettingResult], choice: Choice) -> None:
    def entry(label: str, color: str, marker: str = "o", **style: Any) -> Line2D:
        return Line2D([], [], marker=marker, linestyle="", color=color, label=label, **style)

    handles = [entry(name, colour) for name, colour in _colours(results).items()]
    for mixing in dict.fromkeys(result.setting.mixing for result in results):
        handles.append(entry(mixing, "#444444", MARKERS[mixing], markerfacecolor="none"))
    ring = "recommended" if choice.is_met else "closest to the limits"
    handles.append(entry(ring, "black", markersize=11, markerfacecolor="none"))
    axes.figure.legend(handles=handles, loc="outside right upper", frameon=False, title="number: SpD")


def _colours(results: Sequence[SettingResult]) -> dict[str, str]:
    tried = {result.setting.mechanism for result in results}
    # a mechanism has its colour whatever else was tried
    return {name: style.colour for name, style in choose_styles(MECHANISMS).items() if name in tried}


def _png(figure: Figure) -> bytes:
    stream = BytesIO()
    # without date and version, so that the same advice gives the same bytes
    figure.savefig(
        stream, format="png", dpi=100, metadata={"Software": f"feddig, format_version {FORMAT_VERSION}"}
    )
    return stream.getvalue()
