"""The sound mechanism by its settings: the contract that they make, and what a silo releases under it.

A release is made in this order, and its promise rests on it: labels are randomised one by one, samples are grouped
without a look at anything but randomised labels, and each group's clipped integers are summed and noised. Given the
randomised labels, a record moves one sum by its own part; so what labels and features cost a record adds up.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from feddig.errors import SettingError
from feddig.privacy.checks import check_privacy
from feddig.privacy.clipping import (
    Clip,
    Contract,
    clip_for,
    gaussian_noise_for,
    laplace_noise_for,
    noise_deviation,
    received_features,
    release_sums,
)
from feddig.privacy.integer_gaussian import MOST_ELEMENTS, integer_sigma
from feddig.privacy.integer_noise import IntegerNoise
from feddig.privacy.labels import AS_THEY_ARE, count_labels, keep_fraction, likely_labels, soft_labels
from feddig.privacy.samplers import Source
from feddig.settings import DigestSettings, PrivacySettings

Fact = str | int | float


@dataclass(frozen=True)
class Release:
    """What a receiver has of a release: means of groups, with noise, and their soft labels."""

    features: np.ndarray
    labels: np.ndarray


def contract_for(privacy: PrivacySettings, digest: DigestSettings, elements: int, classes: int) -> Contract:
    """Make the contract of a discrete mechanism; no data is looked at."""
    check_privacy(privacy, digest)
    assert privacy.clip_bound is not None
    if privacy.mechanism == "discrete-gaussian" and elements > MOST_ELEMENTS:
        raise SettingError(
            f"digest.encoder: makes {elements:,} numbers of an image, and discrete-gaussian is proved for "
            f"{MOST_ELEMENTS:,} at most; choose another, or set privacy.mechanism to discrete-laplace"
        )
    clip = clip_for(privacy.clip_norm, privacy.clip_bound)
    keep = AS_THEY_ARE
    if privacy.adjacency == "replace-one":
        assert privacy.label_epsilon is not None
        keep = keep_fraction(privacy.label_epsilon, classes)
    return Contract(
        clip=clip,
        noise=_noise(privacy, clip, elements),
        elements=elements,
        samples_per_digest=digest.samples_per_digest,
        adjacency=privacy.adjacency,
        label_keep=keep,
    )


def release_groups(
    features: np.ndarray,
    labels: np.ndarray,
    groups: np.ndarray,
    contract: Contract,
    *,
    classes: int,
    mixing: str,
    source: Source,
    threads: int = 1,
) -> Release:
    """Release groups [digests, SpD] of features [samples, ...] and of labels that were randomised before."""
    sums = release_sums(features, groups, contract, source, threads)
    received = received_features(sums, float(contract.clip.step), contract.samples_per_digest)
    counts = count_labels(labels, groups, classes)
    # who is in a group by its randomised label is there by chance: counts no longer estimate true labels, Bayes does
    estimate = likely_labels if mixing == "within-class" else soft_labels
    return Release(received, estimate(counts, contract.label_keep))


def promised_facts(contract: Contract, privacy: PrivacySettings) -> dict[str, Fact]:
    """Tell what a release is and promises, in plain numbers and words; lengths in units of a received feature."""
    part = float(contract.clip.step) / contract.samples_per_digest
    gaussian = privacy.mechanism == "discrete-gaussian"
    moved = (
        math.sqrt(contract.clip.squared_l2_sensitivity(contract.elements))
        if gaussian
        else contract.clip.l1_sensitivity(contract.elements)
    )
    return {
        **contract.facts(),
        "epsilon": privacy.epsilon,
        "delta": privacy.delta if gaussian else 0.0,
        "label_epsilon": privacy.label_epsilon or 0.0,
        "sensitivity": moved * part,
        "sensitivity_norm": "L2" if gaussian else "L1",
        "noise_deviation": noise_deviation(contract),
    }


def known_deviation(facts: Mapping[str, object]) -> float | None:
    """Give the noise's standard deviation on each number of a digest, where its facts tell it."""
    told = facts.get("noise_deviation")
    return float(told) if isinstance(told, float | int) and 0 < told < math.inf else None


def _noise(privacy: PrivacySettings, clip: Clip, elements: int) -> IntegerNoise:
    if not (math.isfinite(privacy.epsilon) and privacy.epsilon > 0):
        raise SettingError(f"privacy.epsilon: must be a finite number above 0, not {privacy.epsilon}")
    try:
        if privacy.mechanism == "discrete-laplace":
            return laplace_noise_for(clip, elements, privacy.epsilon)
        moved = math.sqrt(clip.squared_l2_sensitivity(elements))
        sigma = integer_sigma(privacy.epsilon, privacy.delta, moved, elements)
        return gaussian_noise_for(clip, elements, sigma)
    except ValueError as error:
        raise SettingError(
            f"privacy.epsilon: {privacy.epsilon:g} with {privacy.mechanism} takes noise that cannot be drawn "
            f"({error}); choose one nearer to 1"
        ) from None
