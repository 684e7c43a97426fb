"""Randomised response on labels (Warner, 1965), and estimates of soft labels from the result.

A label is kept with probability e^epsilon / (e^epsilon + K - 1), K classes, and else becomes one of the others, each
with the same probability. This hides labels under replace-one adjacency.
"""

from fractions import Fraction

import numpy as np

from feddig.errors import SettingError
from feddig.privacy.samplers import Source, exp_bounds, uniform_below

AS_THEY_ARE = Fraction(1)
"""The keep probability under same-label adjacency: labels are public there and cost nothing."""
PARTS = 2**32
"""The keep probability is a multiple of one over this."""
PRECISION = 128


def keep_fraction(epsilon: float | Fraction, classes: int) -> Fraction:
    """Return the probability, rounded down, with which a label is kept at this epsilon."""
    if classes < 2:
        raise SettingError(f"privacy.label_epsilon: needs two classes or more to choose from, not {classes}")
    if not 0 < epsilon < float("inf"):
        raise SettingError(
            f"privacy.label_epsilon: must be a finite number above 0 under replace-one, not {epsilon}"
        )
    one, upper = 1 << PRECISION, exp_bounds(Fraction(epsilon), PRECISION)[1]
    keep = Fraction(PARTS * one // (one + (classes - 1) * upper), PARTS)
    # below 1 / classes any other label would be likelier than the true one, which reveals it again
    if keep * classes < 1:
        raise SettingError(f"privacy.label_epsilon: {float(epsilon):g} is too small to tell from 0; raise it")
    return keep


def randomise_labels(labels: np.ndarray, classes: int, keep: Fraction, source: Source) -> np.ndarray:
    """Keep each label with the probability, else replace it by one of the others; each record draws for itself."""
    if keep == AS_THEY_ARE:
        return labels
    (words,) = source.streams(1)
    stays = uniform_below(keep.denominator, len(labels), words) < np.uint64(keep.numerator)
    steps = uniform_below(classes - 1, len(labels), words).astype(labels.dtype) + 1
    return np.where(stays, labels, (labels + steps) % classes)


def count_labels(labels: np.ndarray, groups: np.ndarray, classes: int) -> np.ndarray:
    """Count the labels in each group [digests, SpD] of samples: [digests, classes]."""
    rows = np.repeat(np.arange(len(groups)), groups.shape[1])
    counts = np.bincount(rows * classes + labels[groups].ravel(), minlength=len(groups) * classes)
    counted: np.ndarray = counts.reshape(len(groups), classes)
    return counted


def soft_labels(counts: np.ndarray, keep: Fraction) -> np.ndarray:
    """Return shares of the true labels from counts of randomised ones: unbiased, then projected to the simplex."""
    shares: np.ndarray = counts / counts.sum(1, keepdims=True)
    if keep == AS_THEY_ARE:
        return shares.astype(np.float32)
    other = (1 - keep) / (counts.shape[1] - 1)
    if keep == other:
        return np.full(counts.shape, 1 / counts.shape[1], dtype=np.float32)
    return project_to_simplex((shares - float(other)) / float(keep - other)).astype(np.float32)


def likely_labels(counts: np.ndarray, keep: Fraction) -> np.ndarray:
    """Return expected shares of the true labels where groups were formed by randomised label.

    By Bayes; the prior is the class shares of all groups together, estimated from their randomised labels.
    """
    if keep == AS_THEY_ARE:
        return soft_labels(counts, keep)
    classes = counts.shape[1]
    prior = soft_labels(counts.sum(0, keepdims=True), keep)[0].astype(np.float64)
    turned = np.full((classes, classes), float((1 - keep) / (classes - 1)))
    np.fill_diagonal(turned, float(keep))
    joint = prior * turned
    likely = joint / joint.sum(1, keepdims=True)
    shares: np.ndarray = counts / counts.sum(1, keepdims=True) @ likely
    return shares.astype(np.float32)


def project_to_simplex(rows: np.ndarray) -> np.ndarray:
    """Return the nearest rows of non-negative entries that sum to 1: one height is subtracted from all of a row."""
    falling = -np.sort(-rows, axis=1)
    heights = (np.cumsum(falling, axis=1) - 1) / np.arange(1, rows.shape[1] + 1)
    last = (falling > heights).sum(1, keepdims=True) - 1
    projected: np.ndarray = np.maximum(rows - np.take_along_axis(heights, last, axis=1), 0)
    return projected
