"""Records on a public integer grid, held within a public bound, and how far one record can then move a sum.

A record is rounded to the grid first and clipped after that, in integers: what rounding adds to a norm is cut
off again, and the bound holds exactly. Step and bound come from the contract and never from data.

The sound mechanism: sums of clipped integer records with integer noise.

Each record goes into one sum at most, and its part in it is a function of the record alone and lies within the
public clip. The noise is exact, and nothing but sums and facts of the contract leaves: the receiver divides. In a
silo's memory a digest is as receivers have it, in float32; beyond 2^24 steps the last digits are lost after the noise.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from feddig.errors import DataError, SettingError, nearest
from feddig.privacy.integer_noise import IntegerNoise
from feddig.privacy.samplers import Source

NORMS = ("l1", "l2", "box")
LEVELS = 16
"""The bound is a whole number of this many bits: far finer than any noise worth having."""


@dataclass(frozen=True)
class Clip:
    """What a record is held to: a ball of the norm around zero, or a box with sides of the bound."""

    norm: str
    bound: int
    """In steps."""
    step: Fraction
    """The grid's step in units of a feature."""
    signed: bool = False
    """Whether a feature may lie below zero; if not, those that do are set to zero."""

    def __post_init__(self) -> None:
        if self.norm not in NORMS:
            raise SettingError(f"privacy.clip_norm: {self.norm!r} is no norm; {nearest(self.norm, NORMS)}")
        if self.bound < 1 or self.step <= 0:
            raise SettingError(
                f"privacy.clip_bound: must be above 0, not {self.bound} steps of {float(self.step):g}"
            )

    def l1_sensitivity(self, elements: int) -> int:
        """Bound the L1 distance of two records, in steps: how far replacing one moves the sum it is in."""
        if self.norm == "l1":
            return 2 * self.bound
        if self.norm == "box":
            return elements * self._side
        # Cauchy and Schwarz; a distance on the grid is a whole number, so its floor still bounds it
        return math.isqrt(elements * self.squared_l2_sensitivity(elements))

    def squared_l2_sensitivity(self, elements: int) -> int:
        """Bound the squared L2 distance of two records, in steps squared."""
        if self.norm == "box":
            return elements * self._side**2
        # vectors without negative entries are never more than a right angle apart
        return (4 if self.signed else 2) * self.bound**2

    def l2_sensitivity(self, elements: int) -> float:
        """Bound the L2 distance of two records, in steps."""
        return math.sqrt(self.squared_l2_sensitivity(elements))

    @property
    def _side(self) -> int:
        return 2 * self.bound if self.signed else self.bound


def clip_for(norm: str, bound: float, *, signed: bool = False) -> Clip:
    """Lay the grid for a bound in units of a feature: steps are a power of two, so that scaling rounds nothing."""
    if not (math.isfinite(bound) and bound > 0):
        raise SettingError(f"privacy.clip_bound: must be a finite number above 0, not {bound}")
    step = Fraction(2) ** (math.frexp(bound)[1] - LEVELS)
    return Clip(norm, int(Fraction(bound) / step), step, signed)


def quantise(records: np.ndarray, clip: Clip) -> np.ndarray:
    """Round records [n, elements] to the grid (int64), those far beyond the bound to a public largest value."""
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
    """Hold records [n, elements] of integers to the clip; those within it stay as they are."""
    if clip.norm == "box":
        boxed: np.ndarray = np.clip(records, -clip.bound if clip.signed else 0, clip.bound)
        return boxed
    clipped: np.ndarray = records.copy() if clip.signed else np.maximum(records, 0)
    norms = np.abs(clipped).sum(1) if clip.norm == "l1" else _root_above((clipped**2).sum(1))
    beyond = np.flatnonzero(norms > clip.bound)
    # sizes and not signed values are divided: rounding then goes towards zero and never lengthens
    sizes = np.abs(clipped[beyond]) * clip.bound // norms[beyond, None]
    clipped[beyond] = np.sign(clipped[beyond]) * sizes
    return clipped


def _largest(elements: int) -> int:
    """Give the largest entry of which so many squares add up within 63 bits."""
    return 1 << (62 - elements.bit_length()) // 2


def _root_above(squares: np.ndarray) -> np.ndarray:
    """Give the smallest integers whose squares reach these; floating point guesses, integers decide."""
    roots: np.ndarray = np.sqrt(squares).astype(np.int64)
    roots -= roots**2 > squares
    roots += roots**2 < squares
    return roots


AT_ONCE = 2**18
"""Elements summed at once: as many as a processor's cache holds."""


def sum_records(features: np.ndarray, groups: np.ndarray, clip: Clip) -> np.ndarray:
    """Add up each group's records, rounded to the grid and clipped: [digests, elements] of int64, not yet private."""
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
    """Turn received integers into mixed features: the mean of a digest's records, in units of a feature."""
    return (sums * (step / samples_per_digest)).astype(np.float32)


def sent_sums(features: np.ndarray, step: float, samples_per_digest: int) -> np.ndarray | None:
    """Give the integers that a receiver makes exactly these mixed features of; None if there are none.

    int32 where they fit, which is as many bytes as the features have, else int64.
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
