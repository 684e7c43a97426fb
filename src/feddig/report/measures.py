"""Compute the numbers that summarise runs: accuracy measures of one run, and means over seeds."""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np

from feddig.core.absence import PAPER_ROUNDS, Absence

MEASURES = (
    "final", "best", "absence_mean", "absence_auc", "mean_251_259", "mean_250_299", "after_9", "after_50",
    "after_200", "frozen_own",
    "frozen_own_mean_10",
)  # fmt: skip
"""The keys of `accuracy` in summary.json, in order."""

CLASS_DIGITS = 3
"""Of a class's accuracy in metrics.jsonl: finer than one image of ten thousand."""

MeanAndDeviation = tuple[float, float | None]
"""A mean and the sample standard deviation; None where there is only one value."""


def accuracy_measures(
    accuracies: Sequence[float], absence: Absence, rounds: int | None = None
) -> Mapping[str, float | None]:
    """Compute every measure from the accuracy of rounds 0, 1, 2 ...; None where it is not reached.

    `rounds` is how many the scenario is drawn for, if not those of the table.
    """
    absence_rounds = absence.absence_rounds()
    while_away = [accuracies[round] for round in absence_rounds]
    first, last = absence.first_leave(), absence.last_leave()
    # ten rounds of a run of the paper's length; in a short run they would reach back to its weak beginning
    ten = max(1, round(10 * (rounds or absence.rounds) / PAPER_ROUNDS))

    def mean_of(start: int, end: int) -> float | None:
        return fmean(accuracies[start : end + 1]) if len(accuracies) > end else None

    def after(rounds: int) -> float | None:
        return accuracies[last + rounds] if last is not None and last + rounds < len(accuracies) else None

    return {
        "final": accuracies[-1],
        "best": max(accuracies),
        "absence_mean": fmean(while_away) if while_away else None,
        "absence_auc": _area(absence_rounds, while_away),
        "mean_251_259": mean_of(251, 259),
        "mean_250_299": mean_of(250, 299),
        "after_9": after(9),
        "after_50": after(50),
        "after_200": after(200),
        "frozen_own": accuracies[first - 1] if first else None,
        "frozen_own_mean_10": fmean(accuracies[max(0, first - ten) : first]) if first else None,
    }


def _area(rounds: Sequence[int], values: Sequence[float]) -> float | None:
    """Return the area under the curve by trapezoids, divided by the rounds, so that it is a percentage again."""
    if not values:
        return None
    points = itertools.pairwise(zip(rounds, values, strict=True))
    # no trapezoid spans the rounds between two absences
    areas = [(left + right) / 2 for (before, left), (after, right) in points if after == before + 1]
    return fmean(areas or values)


def mean_and_deviation(values: Iterable[float | None]) -> MeanAndDeviation | None:
    """Return the mean and sample standard deviation; None if there are no values or one of them is None."""
    numbers = []
    for value in values:
        if value is None:
            return None
        numbers.append(value)
    if not numbers:
        return None
    return fmean(numbers), stdev(numbers) if len(numbers) > 1 else None


def format_mean(value: MeanAndDeviation, digits: int = 1, *, signed: bool = False) -> str:
    """Format a mean with its deviation, as 68.5 ± 0.7."""
    mean, deviation = value
    # a true minus sign is as wide as a plus
    number = f"{mean:{'+' if signed else ''}.{digits}f}".replace("-", "−")
    return number + ("" if deviation is None else f" ± {deviation:.{digits}f}")


def class_measures(confusion: np.ndarray) -> dict[str, Any]:
    """Compute measures of classification in percent from counts: a row is a true class, a column a predicted one.

    A measure that would divide by zero is None: the precision of a class that is never predicted, the recall of one
    without images. Means are over the classes that have the measure, as in scikit-learn. `intervals` are 95 %
    intervals of the means, which follow from the number of images.
    """
    right, counts, predicted = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    recall, f1 = _percent(right, counts), _percent(2 * right, counts + predicted)
    accuracy = 100.0 * int(right.sum()) / int(counts.sum())
    intervals = {
        "accuracy": wilson_interval(accuracy, int(counts.sum())),
        "balanced_accuracy": _interval_of_mean(recall, counts.tolist()),
        "macro_f1": _interval_of_macro_f1(confusion),
    }
    return {
        "accuracy": accuracy,
        "balanced_accuracy": fmean(value for value in recall if value is not None),
        "macro_f1": fmean(value for value in f1 if value is not None),
        "count": counts.tolist(),
        "precision": _percent(right, predicted),
        "recall": recall,
        "f1": f1,
        "intervals": {
            name: ends and [round(end, CLASS_DIGITS) for end in ends] for name, ends in intervals.items()
        },
    }


def _interval_of_mean(shares: Sequence[float | None], images: Sequence[int]) -> tuple[float, float]:
    """Return the interval of a mean of independent shares in percent from Wilson's of each (MOVER; Zou, 2008)."""
    known = [
        (share, *wilson_interval(share, count))
        for share, count in zip(shares, images, strict=True)
        if share is not None
    ]
    below = math.hypot(*(share - low for share, low, _ in known)) / len(known)
    above = math.hypot(*(high - share for share, _, high in known)) / len(known)
    mean = fmean(share for share, _, _ in known)
    return mean - below, mean + above


def _interval_of_macro_f1(confusion: np.ndarray) -> tuple[float, float] | None:
    """Return the interval of macro F1 in percent by the delta method (Takahashi et al., 2022).

    None where that method knows no spread, as when no image is wrong.
    """
    images = confusion.sum()
    shares = confusion / images
    sizes = shares.sum(0) + shares.sum(1)
    used = sizes > 0
    shares, sizes = shares[np.ix_(used, used)], sizes[used]
    f1 = 2 * np.diag(shares) / sizes
    # how macro F1 changes with the share of images in each cell of the confusion
    slopes = (np.diag(2 / sizes) - (f1 / sizes)[:, None] - (f1 / sizes)[None, :]) / len(sizes)
    variance = float((shares * slopes**2).sum() - (shares * slopes).sum() ** 2) / images
    if variance < 1e-12:
        return None
    reach = NormalDist().inv_cdf(0.975) * math.sqrt(variance)
    return 100 * max(0.0, float(f1.mean()) - reach), 100 * min(1.0, float(f1.mean()) + reach)


def wilson_interval(percent: float, images: int, level: float = 0.95) -> tuple[float, float]:
    """Return Wilson's interval of an accuracy in percent that was measured on this number of images.

    It holds for this model on all images of the same kind; a model of another seed may lie outside it.
    """
    share, square = percent / 100, NormalDist().inv_cdf((1 + level) / 2) ** 2
    middle = share + square / (2 * images)
    reach = math.sqrt(square * share * (1 - share) / images + (square / (2 * images)) ** 2)
    low, high = ((middle + side * reach) / (1 + square / images) for side in (-1, 1))
    # exact at the ends, where a rounding error could lie outside
    return (0.0 if percent == 0 else 100 * low, 100.0 if percent == 100 else 100 * high)


def class_summary(
    rows: Sequence[Mapping[str, Any]], images: Sequence[int], first_leave: int | None
) -> dict[str, Any]:
    """Return what summary.json says of classes, from the rows of metrics.jsonl and the test images of each class.

    Rows of older releases, and of federations without test images, have no accuracy of classes; then it is None.
    """
    last = rows[-1]
    classes = last.get("class_accuracy")
    known = None if classes is None else [_interval(*pair) for pair in zip(classes, images, strict=True)]
    intervals = {"accuracy": _interval(last["test_accuracy"], sum(images)), **(last.get("intervals") or {})}
    return {
        **{name: last.get(name) for name in ("macro_f1", "balanced_accuracy", "auc")},
        "class_accuracy": {
            "final": classes,
            "frozen_own": rows[first_leave - 1].get("class_accuracy") if first_leave else None,
        },
        "intervals": {
            **{name: intervals.get(name) for name in ("accuracy", "balanced_accuracy", "macro_f1", "auc")},
            "class_accuracy": known,
        },
    }


SHOWN = (
    ("accuracy", "accuracy", 1, " %"),
    ("balanced_accuracy", "balanced accuracy", 1, " %"),
    ("macro_f1", "macro F1", 1, " %"),
    ("auc", "AUC", 3, ""),
)
"""The measures of a whole test set: key, title, digits, unit."""


def say_measures(values: Mapping[str, Any], intervals: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield title, value and 95 % interval of each measure that is known, as people read them."""
    for key, title, digits, unit in SHOWN:
        value, ends = values.get(key), intervals.get(key)
        if value is not None:
            interval = "" if ends is None else f"{ends[0]:.{digits}f} to {ends[1]:.{digits}f}"
            yield title, f"{value:.{digits}f}{unit}", interval


def _interval(percent: float | None, images: int) -> list[float] | None:
    if percent is None:
        return None
    return [round(end, CLASS_DIGITS) for end in wilson_interval(percent, images)]


def _percent(parts: np.ndarray, wholes: np.ndarray) -> list[float | None]:
    pairs = zip(parts.tolist(), wholes.tolist(), strict=True)
    return [100.0 * part / whole if whole else None for part, whole in pairs]
