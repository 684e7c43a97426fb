"""The sentences without which a promise is worth nothing: what must be true for its numbers to hold.

What a digest promises a record: how far one record can move it, how much noise hides that, and at what cost.

Everything follows from the settings, the number of elements and the number of classes; no data is looked at. A
promise is worth no more than its assumptions, so each carries them as sentences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from feddig.privacy.clipping import LEAST_BOUND, clip_for
from feddig.privacy.gaussian import concentrated_epsilon, joined
from feddig.privacy.integer_gaussian import MOST_ELEMENTS, integer_epsilon, integer_sigma
from feddig.privacy.mechanism import laplace_scale, record_epsilon_if_public
from feddig.settings import DigestSettings, PrivacySettings

UPDATES = (
    "The model's updates in every round are not covered: they are sent besides the digest and reveal more."
)
ENCODER = "The encoder is public and has learnt from none of the silo's data."
ONCE = "The digest is released once: a second one with fresh noise costs as much again."
FRESH = "Every release draws noise of its own; sending the same bytes again costs nothing."
PLANNED = "No release was planned by what an earlier one of the same records showed."
NO_NOISE = "There is no noise, so nothing is promised, and no clip, so nothing bounds a record's part."
IN_TAU = "Sensitivity and noise scale are in units of tau, the silo's largest feature."
INFINITE = (
    "The record epsilon is infinite: the noise scale follows tau, which depends on the data; D_y is released "
    "exactly; and noise in floating point leaves traces in the last digits."
)
IF_PUBLIC = (
    "The epsilon if the bound were public takes tau for a public clip of each element, labels for known and the "
    "noise for exact."
)


def curve(concentrated: float) -> str:
    """Say how well the epsilon of Gaussian noise is founded."""
    return (
        "Epsilon and delta are proved for integer noise on all elements together, from the exact curve of Gaussian "
        "noise and Poisson's summation formula; who trusts published bounds alone (concentrated differential privacy) "
        f"takes epsilon {concentrated:.4g} at the same delta."
    )


def neighbours(privacy: PrivacySettings) -> str:
    """Say which two data sets must look alike."""
    other = "another of its class" if privacy.adjacency == "same-label" else "any other"
    return (
        "How many samples a silo has is public; what is hidden is whether one record is itself or "
        f"{other}, not whether a record is there."
    )


def labels(privacy: PrivacySettings, keep_probability: float | None) -> str:
    """Say what happens to labels."""
    if privacy.adjacency == "same-label":
        return "Labels are public: D_y is exact, and a record's class is not hidden at all."
    often = "" if keep_probability is None else f" with probability {keep_probability:.6g}"
    return (
        f"Each label stays as it is{often}, or else becomes one of the other classes at random; this costs "
        f"{privacy.label_epsilon:g}, which is added to the {privacy.epsilon:g} of the features."
    )


def mixed(digest: DigestSettings, heaviest: float, *, randomised: bool = False) -> str:
    """Say what mixing counts for; labels may be randomised before it."""
    chosen = "without a look at the data"
    if digest.mixing == "within-class":
        chosen = "by randomised label alone" if randomised else "by label alone"
    return (
        f"Each sample is in one digest only and its partners are chosen {chosen}; mixing counts for the largest "
        f"weight, {heaviest:.6g}, and for nothing more."
    )


def clipped(privacy: PrivacySettings) -> str:
    """Say how a sample's features are bounded."""
    how = {"l1": "to an L1 norm of", "l2": "to an L2 norm of", "box": "each to at most"}[privacy.clip_norm]
    return (
        f"Values below zero are cut to zero and a sample's features then clipped {how} {privacy.clip_bound:g}, a "
        "bound that is public and was computed from no silo's data."
    )


def drawn(privacy: PrivacySettings) -> str:
    """Say where the randomness comes from."""
    if privacy.random == "system":
        return "Mixing and noise are drawn from the system's entropy, which nobody can draw again."
    return (
        "Mixing and noise are drawn from a seed, as in a simulation: whoever knows it takes the noise off, and "
        "against them nothing is promised."
    )


@dataclass(frozen=True)
class Promise:
    """What one release of a digest promises each record in it."""

    mechanism: str
    adjacency: str
    epsilon: float
    """The record's epsilon, labels included; infinite if nothing is promised."""
    delta: float
    epsilon_if_bound_public: float
    """What epsilon would be if the largest feature were a public bound: the same, where it is one."""
    sensitivity: float
    """How far one record can move a digest's features, in `norm`."""
    norm: str
    noise_scale: float
    """Laplace's b or Gauss's sigma, on each element of a digest."""
    unit: str
    """What sensitivity and noise scale are measured in."""
    assumptions: tuple[str, ...]
    label_epsilon: float = 0.0
    """The part of epsilon that the labels cost."""
    keep_probability: float | None = None
    """How likely a label stays as it is; None where labels get no noise, or their number is not known."""
    epsilon_concentrated: float = math.inf
    """What concentrated differential privacy alone proves at the same delta: more, but others have checked it."""
    random: str = ""
    """Where mixing and noise are drawn from: system or seeded; empty where that is not known."""


@dataclass(frozen=True)
class Composed:
    """What several releases of one record promise together."""

    epsilon: float
    delta: float
    assumptions: tuple[str, ...]


def promise(
    privacy: PrivacySettings, digest: DigestSettings, elements: int, classes: int | None = None
) -> Promise:
    """Say what a digest of `elements` (ell) numbers, made with these settings, promises a record."""
    if privacy.mechanism == "paper-laplace":
        return _paper(privacy, digest, elements)
    if privacy.mechanism == "none":
        return _nothing(privacy)
    return _sound(privacy, digest, elements, classes)


def compose(promises: Sequence[Promise], delta: float | None = None) -> Composed:
    """Say what several releases about the same record promise together: their sum, or less if all are Gaussian.

    With Gaussian noise epsilon may be had for another delta than the sum of theirs.
    """
    assumptions = (
        FRESH,
        *dict.fromkeys(sentence for each in promises for sentence in each.assumptions if sentence != ONCE),
    )
    added = math.fsum(each.epsilon for each in promises)
    total = math.fsum(each.delta for each in promises)
    if promises and all(each.mechanism == "discrete-gaussian" for each in promises):
        target = total if delta is None else delta
        tighter = _joint_epsilon(promises, target)
        if delta is not None or tighter < added:
            return Composed(tighter, target, (PLANNED, *assumptions))
    elif delta is not None:
        raise ValueError("delta can be chosen only where all noise is Gaussian")
    return Composed(added, total, assumptions)


def heaviest(digest: DigestSettings) -> float:
    """Give max_k w_k, the largest share of a sample in a digest."""
    return max(digest.weights, default=1 / digest.samples_per_digest)


def sensitivity(norm: str, clip_norm: str, bound: float, elements: int, *, signed: bool = False) -> float:
    """Give how far apart, in L1 or L2, two clipped features can be; multiplied by w_k, two digests.

    Features are not below zero unless `signed`.
    """
    if clip_norm == "box":
        return bound * (2 if signed else 1) * (elements if norm == "L1" else math.sqrt(elements))
    if elements == 1 or signed:
        # opposite points of a ball lie farthest apart; in L1 those of an L2 ball on its diagonals
        longest = math.sqrt(elements) if (norm, clip_norm) == ("L1", "l2") else 1.0
        return bound * (2 if signed else 1) * longest
    if norm == "L2":
        return math.sqrt(2) * bound
    if clip_norm == "l1":
        return 2 * bound
    # two features without a common element, each spread evenly over its half of them
    half = elements // 2
    return bound * (math.sqrt(half) + math.sqrt(elements - half))


def keep_probability(label_epsilon: float, classes: int) -> float:
    """Give e^epsilon / (e^epsilon + K - 1): how often randomised response leaves a label as it is."""
    return 1 / (1 + (classes - 1) * math.exp(-label_epsilon))


def _joint_epsilon(promises: Sequence[Promise], delta: float) -> float:
    """Give what releases with Gaussian noise cost together, labels included."""
    ratios = [each.sensitivity / each.noise_scale for each in promises]
    # grids may differ, and a ledger does not tell them: none has a coarser step than this
    least_sigma = LEAST_BOUND / max(ratios)
    features = integer_epsilon(delta, joined(ratios), least_sigma, MOST_ELEMENTS * len(promises))
    return features + math.fsum(each.label_epsilon for each in promises)


def _paper(privacy: PrivacySettings, digest: DigestSettings, elements: int) -> Promise:
    largest = heaviest(digest)
    return Promise(
        mechanism=privacy.mechanism,
        adjacency=privacy.adjacency,
        epsilon=math.inf,
        delta=0.0,
        epsilon_if_bound_public=record_epsilon_if_public(
            elements, privacy.scale_size, privacy.epsilon, largest
        ),
        sensitivity=elements * largest,
        norm="L1",
        noise_scale=laplace_scale(1.0, privacy.epsilon, privacy.scale_size),
        unit="tau",
        random=privacy.random,
        assumptions=(INFINITE, IN_TAU, IF_PUBLIC, mixed(digest, largest), drawn(privacy), UPDATES),
    )


def _nothing(privacy: PrivacySettings) -> Promise:
    return Promise(
        mechanism=privacy.mechanism,
        adjacency=privacy.adjacency,
        epsilon=math.inf,
        delta=0.0,
        epsilon_if_bound_public=math.inf,
        sensitivity=math.inf,
        norm="L1",
        noise_scale=0.0,
        unit="feature",
        random=privacy.random,
        assumptions=(NO_NOISE, UPDATES),
    )


def _sound(privacy: PrivacySettings, digest: DigestSettings, elements: int, classes: int | None) -> Promise:
    assert privacy.clip_bound is not None
    gaussian, largest = privacy.mechanism == "discrete-gaussian", heaviest(digest)
    norm, delta = ("L2", privacy.delta) if gaussian else ("L1", 0.0)
    moved = largest * sensitivity(norm, privacy.clip_norm, privacy.clip_bound, elements)
    label_epsilon = privacy.label_epsilon if privacy.adjacency == "replace-one" else None
    record = privacy.epsilon + (label_epsilon or 0.0)
    scale = moved * (_sigma(privacy, elements) if gaussian else 1 / privacy.epsilon)
    features = concentrated_epsilon(delta, moved / scale) if gaussian else privacy.epsilon
    concentrated = features + (label_epsilon or 0.0)
    kept = None if label_epsilon is None or classes is None else keep_probability(label_epsilon, classes)
    return Promise(
        mechanism=privacy.mechanism,
        adjacency=privacy.adjacency,
        epsilon=record,
        delta=delta,
        epsilon_if_bound_public=record,
        sensitivity=moved,
        norm=norm,
        noise_scale=scale,
        unit="feature",
        label_epsilon=label_epsilon or 0.0,
        keep_probability=kept,
        epsilon_concentrated=concentrated,
        random=privacy.random,
        assumptions=(
            neighbours(privacy),
            labels(privacy, kept),
            mixed(digest, largest, randomised=label_epsilon is not None),
            clipped(privacy),
            ENCODER,
            *((curve(concentrated),) if gaussian else ()),
            drawn(privacy),
            ONCE,
            UPDATES,
        ),
    )


def _sigma(privacy: PrivacySettings, elements: int) -> float:
    """Give Gauss's sigma in sensitivities: on the grid of integers that the clip lays."""
    assert privacy.clip_bound is not None
    clip = clip_for(privacy.clip_norm, privacy.clip_bound)
    moved = math.sqrt(clip.squared_l2_sensitivity(elements))
    return integer_sigma(privacy.epsilon, privacy.delta, moved, elements)
