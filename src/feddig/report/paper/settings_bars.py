"""Accuracy against one setting at a time: how uneven, how many silos, how digests are mixed and perturbed."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.figure import Figure

from feddig.report.paper.bars import draw_chart
from feddig.report.paper.cells import Axis, sort_into_chart
from feddig.report.runs import Run


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
