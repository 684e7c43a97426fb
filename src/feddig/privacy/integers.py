"""The sound mechanism: sums of clipped integer records with integer noise.

Each record goes into one sum at most, and its part in it is a function of the record alone and lies within the
public clip. The noise is exact, and nothing but sums and facts of the contract leaves: the receiver divides. In a
silo's memory a digest is as receivers have it, in float32; beyond 2^24 steps the last digits are lost after the noise.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from feddig.errors import SettingError, nearest
from feddig.privacy.clipping import Clip, clip_records, quantise
from feddig.privacy.discrete import DiscreteGaussian, DiscreteLaplace
from feddig.privacy.integer_noise import IntegerNoise
from feddig.privacy.labels import AS_THEY_ARE
from feddig.privacy.words import Source

ADJACENCIES = ("same-label", "replace-one")
AT_ONCE = 2**18
"""Elements summed at once: as many as a processor's cache holds."""
LARGEST_SUM = 2**48


@dataclass(frozen=True)
class Contract:
    """What all parties know about a release before there is any data."""

    clip: Clip
    noise: IntegerNoise
    elements: int
    """How many numbers a record has (ell): the noise was measured for these."""
    samples_per_digest: int
    adjacency: str
    label_keep: Fraction = AS_THEY_ARE

    def __post_init__(self) -> None:
        if self.adjacency not in ADJACENCIES:
            raise SettingError(
                f"privacy.adjacency: {self.adjacency!r} is not known; {nearest(self.adjacency, ADJACENCIES)}"
            )
        if self.adjacency == "replace-one" and self.label_keep == AS_THEY_ARE:
            raise SettingError("privacy.label_epsilon: replace-one needs noise on labels; set it")
        if self.adjacency == "same-label" and self.label_keep != AS_THEY_ARE:
            raise SettingError("privacy.label_epsilon: same-label takes labels as public; leave it out")
        if not 1 <= self.samples_per_digest * self.clip.bound <= LARGEST_SUM:
            raise SettingError(
                f"digest.samples_per_digest: {self.samples_per_digest} records do not fit one sum"
            )

    def facts(self) -> dict[str, str | int | float]:
        """Tell a receiver, and an auditor, what the release is; nothing of it is computed from data."""
        return {
            "mechanism": self.noise.name,
            **self.noise.facts,
            "adjacency": self.adjacency,
            "label_keep": str(self.label_keep),
            "clip_norm": self.clip.norm,
            "clip_bound": float(self.clip.bound * self.clip.step),
            "clip_steps": self.clip.bound,
            "step": float(self.clip.step),
            "signed": int(self.clip.signed),
            "elements": self.elements,
            "samples_per_digest": self.samples_per_digest,
        }


def laplace_noise_for(clip: Clip, elements: int, epsilon: float | Fraction) -> DiscreteLaplace:
    """Give the discrete Laplace noise that promises each record epsilon."""
    return DiscreteLaplace.for_epsilon(epsilon, clip.l1_sensitivity(elements))


def gaussian_noise_for(clip: Clip, elements: int, multiplier: float | Fraction) -> DiscreteGaussian:
    """Give the discrete Gaussian noise of so many sensitivities; an accountant says what that promises."""
    return DiscreteGaussian.for_multiplier(multiplier, clip.squared_l2_sensitivity(elements))


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
    features: np.ndarray, groups: np.ndarray, contract: Contract, source: Source, threads: int = 1
) -> np.ndarray:
    """Give the noised sums of the groups [digests, SpD] of features [samples, ...]: what may leave the silo."""
    if math.prod(features.shape[1:]) != contract.elements:
        raise ValueError(
            f"records of shape {features.shape[1:]} in a contract of {contract.elements} elements"
        )
    if groups.shape[1] != contract.samples_per_digest:
        raise ValueError(
            f"groups of {groups.shape[1]} samples in a contract of {contract.samples_per_digest}"
        )
    if len(np.unique(groups)) != groups.size:
        raise ValueError("a sample is in more than one group: the promise holds for one use of each")
    sums = sum_records(features, groups, contract.clip)
    sums += contract.noise.draw(sums.size, source, threads).reshape(sums.shape)
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


def noise_deviation(contract: Contract) -> float:
    """Give the standard deviation of the noise on a received feature: public, for training that knows it."""
    steps = math.sqrt(contract.noise.variance_of_draws)
    return steps * float(contract.clip.step) / contract.samples_per_digest
