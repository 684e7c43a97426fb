"""What discrete-laplace and discrete-gaussian share: sums of clipped integer records with integer noise.

A release is made in this order, and its promise rests on it: labels are randomised one by one; samples are grouped by
nothing but randomised labels; each group's clipped integers are summed and noised. Given the randomised labels, a
record moves one sum by its own part, which the public clip bounds, so the costs of labels and features add up. Only
integers leave; the receiver divides.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from fractions import Fraction
from typing import ClassVar

import numpy as np

from feddig.errors import SettingError, nearest
from feddig.privacy.accounting import ONCE, Promise
from feddig.privacy.clipping import (
    AS_THEY_ARE,
    Clip,
    clip_for,
    count_labels,
    keep_fraction,
    likely_labels,
    randomise_labels,
    received_features,
    release_sums,
    sent_sums,
    soft_labels,
)
from feddig.privacy.integer_noise import IntegerNoise
from feddig.privacy.mechanisms.base import (
    UPDATES,
    Fact,
    Facts,
    FactTypes,
    Mechanism,
    Randomness,
    Samples,
    number,
    say_mixing,
    say_randomness,
)
from feddig.settings import DigestSettings, PrivacySettings

ADJACENCIES = ("same-label", "replace-one")
LARGEST_SUM = 2**48
ROUNDING = 1e-9
"""The share by which an epsilon that is computed back from the noise may exceed the one that was asked for."""
ENCODER = "The encoder is public and has learnt from none of the silo's data."


class IntegerSums(Mechanism, ABC):
    """Clip records on an integer grid, sum them by group, add integer noise of a public scale."""

    uses = frozenset(
        {
            "epsilon",
            "adjacency",
            "unit",
            "group_limit",
            "clip_norm",
            "clip_bound",
            "label_epsilon",
            "budget_epsilon",
            "budget_delta",
        }
    )
    epsilon_is = "record"
    fact_types: ClassVar[FactTypes] = {
        "adjacency": str,
        "delta": (int, float),
        "label_epsilon": (int, float),
        "label_keep": str,
        "clip_norm": str,
        "clip_bound": (int, float),
        "clip_steps": int,
        "step": (int, float),
        "sensitivity": (int, float),
        "sensitivity_norm": str,
        "noise_deviation": (int, float),
    }  # fmt: skip
    norm: ClassVar[str]
    """The norm in which the noise counts how far a record moves a sum: L1 or L2."""

    @abstractmethod
    def noise_for(self, privacy: PrivacySettings, clip: Clip, elements: int, records: int) -> IntegerNoise:
        """Return the noise that keeps the settings' epsilon and delta for this many records that change together.

        A ValueError says that it cannot be drawn.
        """

    @abstractmethod
    def noise_of(self, facts: Mapping[str, Fact]) -> IntegerNoise:
        """Return the noise that a digest's facts tell."""

    @abstractmethod
    def epsilon(self, ratio: float, delta: float) -> float:
        """Return the epsilon that is proved for noise of this sensitivity / scale."""

    def check(self, privacy: PrivacySettings, digest: DigestSettings) -> None:
        """Refuse unequal weights, a missing clip, and an adjacency that does not fit the label noise."""
        if len(set(digest.weights)) > 1:
            raise SettingError(
                f"digest.weights: {privacy.mechanism} sends sums of integers, which weigh all samples equally; "
                "leave it out"
            )
        if privacy.clip_bound is None:
            raise SettingError(
                f"privacy.clip_bound: {privacy.mechanism} needs a public bound on a sample's features; set 350.0 with "
                'digest.encoder = "even", whose codes all have that length, or try others with `feddig advise`'
            )
        if not (math.isfinite(privacy.epsilon) and privacy.epsilon > 0):
            raise SettingError(f"privacy.epsilon: must be a finite number above 0, not {privacy.epsilon}")
        if privacy.unit == "record" and privacy.group_limit != 1:
            raise SettingError(
                'privacy.group_limit: is for groups; leave it out, or set privacy.unit = "group"'
            )
        if privacy.adjacency not in ADJACENCIES:
            known = nearest(privacy.adjacency, ADJACENCIES)
            raise SettingError(f"privacy.adjacency: {privacy.adjacency!r} is not known; {known}")
        if privacy.adjacency == "same-label" and privacy.label_epsilon is not None:
            raise SettingError(
                "privacy.label_epsilon: under same-label adjacency labels are public and get no noise; leave it "
                "out, or set privacy.adjacency to replace-one"
            )
        if privacy.adjacency == "replace-one" and privacy.label_epsilon is None:
            raise SettingError(
                "privacy.label_epsilon: replace-one adjacency needs noise on the labels; set one, for example 1, or "
                "set privacy.adjacency to same-label"
            )

    def facts(
        self, privacy: PrivacySettings, digest: DigestSettings, elements: int, classes: int | None
    ) -> Facts:
        """Return clip, noise and costs; lengths are in units of a received feature."""
        assert privacy.clip_bound is not None
        clip, mixed = clip_for(privacy.clip_norm, privacy.clip_bound), digest.samples_per_digest
        records = privacy.group_limit if privacy.unit == "group" else 1
        if not 1 <= mixed * clip.bound <= LARGEST_SUM:
            raise SettingError(f"digest.samples_per_digest: {mixed} records do not fit one sum")
        try:
            noise = self.noise_for(privacy, clip, elements, records)
        except ValueError as error:
            raise SettingError(
                f"privacy.epsilon: {privacy.epsilon:g} with {privacy.mechanism} takes noise that cannot be drawn "
                f"({error}); choose one nearer to 1"
            ) from None
        moved = clip.l1_sensitivity(elements) if self.norm == "L1" else clip.l2_sensitivity(elements)
        part = float(clip.step) / mixed
        return {
            **noise.facts,
            "adjacency": privacy.adjacency,
            # older digests do not have it
            **({"group_limit": records} if privacy.unit == "group" else {}),
            **_label_facts(privacy, classes, records),
            "clip_norm": clip.norm,
            "clip_bound": float(clip.bound * clip.step),
            "clip_steps": clip.bound,
            "step": float(clip.step),
            "signed": 0,
            "elements": elements,
            "delta": privacy.delta,
            "label_epsilon": privacy.label_epsilon or 0.0,
            # all images of a group may be in one sum
            "sensitivity": records * moved * part,
            "sensitivity_norm": self.norm,
            "noise_deviation": math.sqrt(noise.variance_of_draws) * float(clip.step) / mixed,
        }

    def randomise_labels(
        self, labels: np.ndarray, classes: int, facts: Mapping[str, Fact], randomness: Randomness
    ) -> np.ndarray:
        """Randomise each label by itself, where labels are not public."""
        return randomise_labels(labels, classes, _keep(facts), randomness.words("labels"))

    def release(
        self, samples: Samples, facts: Mapping[str, Fact], randomness: Randomness
    ) -> tuple[np.ndarray, np.ndarray]:
        """Sum and noise, divide as a receiver does, and estimate soft labels."""
        shape = math.prod(samples.features.shape[1:]), samples.groups.shape[1]
        agreed = int(number(facts, "elements")), int(number(facts, "samples_per_digest"))
        if shape != agreed:
            raise ValueError(
                f"records of {shape[0]} elements in groups of {shape[1]}: the noise is for {agreed[0]} and {agreed[1]}"
            )
        sums = release_sums(
            samples.features,
            samples.groups,
            self.clip(facts),
            self.noise_of(facts),
            randomness.words("noise"),
            randomness.threads,
        )
        counts = count_labels(samples.labels, samples.groups, samples.classes)
        # groups formed by randomised label are biased towards it: counts do not estimate true labels then, Bayes does
        estimate = likely_labels if facts["mixing"] == "within-class" else soft_labels
        return self.received(sums, facts), estimate(counts, _keep(facts))

    def stored(self, features: np.ndarray, facts: Mapping[str, Fact]) -> np.ndarray:
        """Return the integers behind the features; what is no integer stays, so that readers and audits see it."""
        sums = sent_sums(features, *_units(facts))
        return features if sums is None else sums

    def received(self, stored: np.ndarray, facts: Mapping[str, Fact]) -> np.ndarray:
        """Divide integers into mixed features."""
        if stored.dtype not in (np.int32, np.int64):
            return stored
        # a header may say anything; an infinite result is refused afterwards
        with np.errstate(all="ignore"):
            return received_features(stored, *_units(facts))

    def noise_deviation(self, facts: Mapping[str, Fact], largest: float | None = None) -> float | None:
        """Return what the facts tell."""
        told = facts.get("noise_deviation")
        return float(told) if isinstance(told, int | float) and 0 < told < math.inf else None

    def clip(self, facts: Mapping[str, Fact]) -> Clip:
        """Return the clip that the facts tell."""
        steps, step = int(number(facts, "clip_steps")), Fraction(number(facts, "step"))
        return Clip(str(facts["clip_norm"]), steps, step)

    def promise(self, facts: Mapping[str, Fact], elements: int) -> Promise:
        """Return the record epsilon and delta, on their assumptions."""
        step, mixed = _units(facts)
        delta, labels = number(facts, "delta"), number(facts, "label_epsilon")
        sensitivity, scale = number(facts, "sensitivity"), self.noise_of(facts).size * step / mixed
        asked, proved = number(facts, "epsilon"), self.epsilon(sensitivity / scale, delta)
        features = asked if proved <= asked * (1 + ROUNDING) else proved
        keep = float(_keep(facts)) if labels and "label_keep" in facts else None
        return Promise(
            mechanism=str(facts["mechanism"]),
            adjacency=str(facts["adjacency"]),
            epsilon=features + labels,
            delta=delta,
            epsilon_if_bound_public=features + labels,
            sensitivity=sensitivity,
            norm=self.norm,
            noise_scale=scale,
            unit="feature",
            label_epsilon=labels,
            keep_probability=keep,
            rho=self.rho(sensitivity, scale),
            protects=_unit(facts),
            random=str(facts["random"]),
            sentence=_sentence(facts, features, labels),
            assumptions=(
                _say_neighbours(facts),
                _say_labels(facts, features, keep),
                say_mixing(facts, randomised=labels > 0),
                _say_clip(facts),
                ENCODER,
                f"Epsilon and delta follow from published proofs: {self.citation}.",
                say_randomness(facts),
                ONCE,
                UPDATES,
            ),
        )


def _label_facts(privacy: PrivacySettings, classes: int | None, records: int) -> Facts:
    """Return how likely a label stays as it is, where that is known; the labels of a group share its epsilon."""
    if privacy.label_epsilon is None:
        return {"label_keep": str(AS_THEY_ARE)}
    if classes is None:
        return {}
    return {"label_keep": str(keep_fraction(privacy.label_epsilon / records, classes))}


def _keep(facts: Mapping[str, Fact]) -> Fraction:
    return Fraction(str(facts["label_keep"]))


def _units(facts: Mapping[str, Fact]) -> tuple[float, int]:
    """Return the step of the integers and how many samples each is the sum of."""
    return float(str(facts["step"])), int(str(facts["samples_per_digest"]))


def _sentence(facts: Mapping[str, Fact], features: float, labels: float) -> str:
    parts = "labels are public" if not labels else f"{features:g} for features and {labels:g} for labels"
    seeded = "" if facts["random"] == "system" else "; nothing is promised against anyone who knows the seed"
    return (
        f"{_unit(facts)} epsilon is {features + labels:g} and delta {number(facts, 'delta'):g} under "
        f"{facts['adjacency']} adjacency ({parts}); it covers this one release of the digest and not the updates of "
        f"the model{seeded}"
    )


def _unit(facts: Mapping[str, Fact]) -> str:
    return "group" if "group_limit" in facts else "record"


def _say_neighbours(facts: Mapping[str, Fact]) -> str:
    """Say which two data sets must look the same."""
    other = "another of its class" if facts["adjacency"] == "same-label" else "any other"
    if "group_limit" in facts:
        return (
            f"A group's images are named as such in the data, and at most {facts['group_limit']} of them are in the "
            "digest. How many images each group has is public; what is hidden is whether they are themselves or each "
            f"is {other}."
        )
    return (
        "The number of a silo's samples is public, and so are their file names or places; what is hidden is whether "
        f"one record is itself or {other}, not whether a record is there."
    )


def _say_labels(facts: Mapping[str, Fact], features: float, keep: float | None) -> str:
    """Say what happens to labels."""
    if facts["adjacency"] == "same-label":
        return "Labels are public: D_y is exact, and a record's class is not hidden at all."
    often = "" if keep is None else f" with probability {keep:.6g}"
    return (
        f"Each label stays as it is{often}, or else becomes one of the other classes at random; this costs "
        f"{number(facts, 'label_epsilon'):g}, which is added to the {features:g} of the features."
    )


def _say_clip(facts: Mapping[str, Fact]) -> str:
    """Say how a sample's features are bounded."""
    how = {"l1": "to an L1 norm of", "l2": "to an L2 norm of", "box": "each to at most"}[
        str(facts["clip_norm"])
    ]
    return (
        f"Values below zero are set to zero and a sample's features then clipped {how} "
        f"{number(facts, 'clip_bound'):g}, a bound that is public and was computed from no silo's data."
    )
