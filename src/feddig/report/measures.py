"""A run in figures: what a curve of accuracies and an availability table amount to. Needs no torch."""

import itertools
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from feddig.core.absence import Absence

MEASURES = (
    "final", "best", "absence_mean", "absence_auc", "mean_251_259", "mean_250_299", "after_9", "after_50",
    "after_200", "frozen_own",
)  # fmt: skip
"""The keys of `accuracy` in summary.json, in order."""


def accuracy_measures(accuracies: Sequence[float], absence: "Absence") -> Mapping[str, float | None]:
    """Compute every measure from the test accuracy of rounds 0, 1, 2 ...; None where it is not reached."""
    phase = absence.absence_rounds()
    away = [accuracies[round] for round in phase]
    first, last = absence.first_leave(), absence.last_leave()

    def mean_of(start: int, end: int) -> float | None:
        return fmean(accuracies[start : end + 1]) if len(accuracies) > end else None

    def after(rounds: int) -> float | None:
        return accuracies[last + rounds] if last is not None and last + rounds < len(accuracies) else None

    return {
        "final": accuracies[-1],
        "best": max(accuracies),
        "absence_mean": fmean(away) if away else None,
        "absence_auc": _area(phase, away),
        "mean_251_259": mean_of(251, 259),
        "mean_250_299": mean_of(250, 299),
        "after_9": after(9),
        "after_50": after(50),
        "after_200": after(200),
        "frozen_own": accuracies[first - 1] if first else None,
    }


def _area(rounds: Sequence[int], values: Sequence[float]) -> float | None:
    """Give the area under the curve by trapezoids, per round, so that it is a percentage again."""
    if not values:
        return None
    points = itertools.pairwise(zip(rounds, values, strict=True))
    # between two absences lies no absence: no trapezoid spans a gap
    areas = [(left + right) / 2 for (before, left), (after, right) in points if after == before + 1]
    return fmean(areas or values)
