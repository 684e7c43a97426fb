"""Prepare records for a digest in integers: clip and sum their features, and randomise their labels.

Features: a record is rounded to a public grid first and then clipped, in integers: what rounding adds to a norm is cut
off again, so the bound holds exactly. Step and bound come from settings, never from data. Each record goes into one sum
at most, and sums get integer noise. In a silo's memory a digest is what receivers have, in float32; beyond 2^24 steps
its last digits are lost after the noise.

Labels: randomised response (Warner, 1965), and estimates of soft labels from the result. A label is kept with
probability e^epsilon / (e^epsilon + K - 1), K classes, and else becomes one of the others, each with the same
probability. This hides labels under replace-one adjacency.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from feddig.errors import DataError, SettingError, nearest
from feddig.privacy.integer_noise import IntegerNoise
from feddig.privacy.samplers import Source, exp_bounds, uniform_below

NORMS = ("l1", "l2", "box")
LEVELS = 16
"""Bits of the bound in steps: far finer than any useful noise."""


@dataclass(frozen=True)
class Clip:
    """The bound on a record, whose values are not negative: a ball of the norm, or a box with sides of the bound."""

    norm: str
    bound: int
    """In steps."""
    step: Fraction
    """The grid's step in units of a feature."""

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise SettingError(f"privacy.clip_norm: {self.norm!r} is not known; {nearest(self.norm, NORMS)}")
        if self.bound < 1 or self.step <= 0:
            raise SettingError(
                f"privacy.clip_bound: must be above 0, not {self.bound} steps of {float(self.step):g}"
            )

    def l1_sensitivity(self, elements: int) -> int:
        """Bound the L1 distance of two records, in steps: how far replacing one moves the sum it is in."""
        if self.norm == "l1":
            return 2 * self.bound
        if self.norm == "box":
            return elements * self.bound
        # Cauchy and Schwarz; a distance on the grid is a whole number, so its floor still bounds it
        return math.isqrt(elements * self.squared_l2_sensitivity(elements))

    def squared_l2_sensitivity(self, elements: int) -> int:
        """Bound the squared L2 distance of two records, in steps squared."""
        if self.norm == "box":
            return elements * self.bound**2
        # two vectors without negative entries are at most a right angle apart
        return 2 * self.bound**2

    def l2_sensitivity(self, elements: int) -> float:
        """Bound the L2 distance of two records, in steps."""
        return math.sqrt(self.squared_l2_sensitivity(elements))


def clip_for(norm: str, bound: float) -> Clip:
    """Return the clip for a bound in units of a feature; steps are a power of two, so that scaling rounds nothing."""
    if not (math.isfinite(bound) and bound > 0):
        raise SettingError(f"privacy.clip_bound: must be a finite number above 0, not {bound}")
    step = Fraction(2) ** (math.frexp(bound)[1] - LEVELS)
    return Clip(norm, int(Fraction(bound) / step), step)


def quantise(records: np.ndarray, clip: Clip) -> np.ndarray:
    """Round records [n, elements] to the grid (int64); values far beyond the bound become a public largest value."""
    if not np.isfinite(records).all():
        raise DataError("features: hold values that are not finite numbers; check the encoder and its images")
    largest = _largest(records.shape[1])
    if clip.bound > largest:
        raise SettingError(
            f"privacy.clip_bound: {clip.bound} steps are too many for records of {records.shape[1]} elements; "
            f"at most {largest}"
        )
    scaled = np.divide(records, float(clip.step), dtype=np.float64)
    rounded: np.ndarray = np.rint(np.clip(scaled, -largest, largest)).astype(np.int64)
    return rounded


def clip_records(records: np.ndarray, clip: Clip) -> np.ndarray:
    """Clip records [n, elements] of integers; values below zero become zero, records within the clip stay."""
    if clip.norm == "box":
        boxed: np.ndarray = np.clip(records, 0, clip.bound)
        return boxed
    clipped: np.ndarray = np.maximum(records, 0)
    norms = clipped.sum(1) if clip.norm == "l1" else _root_above((clipped**2).sum(1))
    beyond = np.flatnonzero(norms > clip.bound)
    # rounding down never makes a record longer
    clipped[beyond] = clipped[beyond] * clip.bound // norms[beyond, None]
    return clipped


def _largest(elements: int) -> int:
    """Return the largest entry whose square, times the number of elements, fits 63 bits."""
    return 1 << (62 - elements.bit_length()) // 2


def _root_above(squares: np.ndarray) -> np.ndarray:
    """Return the smallest integers whose squares reach these: floating point guesses, integers decide."""
    roots: np.ndarray = np.sqrt(squares).astype(np.int64)
    roots -= roots**2 > squares
    roots += roots**2 < squares
    return roots


AT_ONCE = 2**18
"""Elements summed at once: as many as fit in a processor's cache."""


def sum_records(features: np.ndarray, groups: np.ndarray, clip: Clip) -> np.ndarray:
    """Return the sums of each group's clipped integer records: [digests, elements] of int64, not yet private."""
    records = features.reshape(len(features), -1)
    sums = np.empty((len(groups), records.shape[1]), dtype=np.int64)
    digests = max(1, AT_ONCE // max(1, groups.shape[1] * records.shape[1]))
    for start in range(0, len(groups), digests):
        members = groups[start : start + digests]
        clipped = clip_records(quantise(records[members.ravel()], clip), clip)
        sums[start : start + digests] = clipped.reshape(*members.shape, -1).sum(1)
    return sums


def release_sums(
    features: np.ndarray,
    groups: np.ndarray,
    clip: Clip,
    noise: IntegerNoise,
    source: Source,
    threads: int = 1,
) -> np.ndarray:
    """Return the noised sums of the groups [digests, SpD] of features [samples, ...]: what may leave the silo."""
    if len(np.unique(groups)) != groups.size:
        raise ValueError("a sample is in more than one group: the promise holds for one use of each")
    sums = sum_records(features, groups, clip)
    sums += noise.draw(sums.size, source, threads).reshape(sums.shape)
    return sums.reshape(len(groups), *features.shape[1:])


def received_features(sums: np.ndarray, step: float, samples_per_digest: int) -> np.ndarray:
    """Return the mean of each digest's records, in units of a feature."""
    return (sums * (step / samples_per_digest)).astype(np.float32)


def sent_sums(features: np.ndarray, step: float, samples_per_digest: int) -> np.ndarray | None:
    """Return the integers that a receiver turns into exactly these mixed features, or None if there are none.

    They are int32 where they fit, which takes as many bytes as the features do, else int64.
    """
    sums = np.empty(features.shape, dtype=np.int64)
    rows = max(1, AT_ONCE // max(1, math.prod(features.shape[1:])))
    for start in range(0, len(features), rows):
        own = features[start : start + rows]
        with np.errstate(all="ignore"):
            steps = own.astype(np.float64) / (step / samples_per_digest)
        if not (np.abs(steps) < 2**62).all():
            return None
        sums[start : start + rows] = np.rint(steps)
        if not np.array_equal(received_features(sums[start : start + rows], step, samples_per_digest), own):
            return None
    small = not sums.size or int(np.abs(sums).max()) < 2**31
    return sums.astype(np.int32) if small else sums


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
