"""Label leakage: what soft labels reveal about a silo's classes and about each record's class."""

from collections import Counter
from dataclasses import dataclass
from math import factorial, prod

import torch
from torch import Tensor

from feddig.attacks.candidates import read_classes
from feddig.attacks.statistics import SuccessRate
from feddig.digest.digest import Digest

PUBLIC = "same-label adjacency treats labels as public: it promises nothing about what they reveal"
PROTECTED = (
    "replace-one adjacency treats labels as private: anything beyond chance must stay within its epsilon"
)


@dataclass(frozen=True)
class ReadLabels:
    """What an attacker reads from the labels."""

    shares: Tensor
    """[classes], each class's share of the silo's data."""
    classes: list[tuple[int, ...]]
    """Of each digest, SpD of them."""
    guesses: Tensor
    """[digests], the most likely class of a record that is known to be in the digest."""


@dataclass(frozen=True)
class LabelLeakage:
    """How much of it is true."""

    histogram_distance: float
    """Total variation distance between the shares read and the true ones; 0 if they are read exactly."""
    histogram_chance: float
    """The same if all classes are taken to be equally common."""
    records: SuccessRate
    """Records whose class was guessed from their digest; chance guesses the most common class."""
    digests: SuccessRate
    """Digests all of whose classes were read; chance draws classes by their true shares."""
    meaning: str


def read_labels(digest: Digest) -> ReadLabels:
    """Read the labels, as everyone who has the digest can."""
    return ReadLabels(digest.labels.mean(0), read_classes(digest), digest.labels.argmax(1))


def evaluate_labels(read: ReadLabels, member_labels: Tensor, adjacency: str) -> LabelLeakage:
    """Compare what was read with the members' labels [digests, SpD]."""
    truth = torch.bincount(member_labels.flatten(), minlength=len(read.shares)) / member_labels.numel()
    even = torch.full_like(truth, 1 / len(truth))
    true_classes = [tuple(sorted(row)) for row in member_labels.tolist()]
    right = sum(own == true for own, true in zip(read.classes, true_classes, strict=True))
    likely = [_probability(own, truth.tolist()) for own in true_classes]
    return LabelLeakage(
        histogram_distance=float((read.shares - truth).abs().sum() / 2),
        histogram_chance=float((even - truth).abs().sum() / 2),
        records=SuccessRate(
            int((read.guesses[:, None] == member_labels).sum()), member_labels.numel(), float(truth.max())
        ),
        digests=SuccessRate(right, len(true_classes), sum(likely) / len(likely)),
        meaning=PUBLIC if adjacency == "same-label" else PROTECTED,
    )


def _probability(classes: tuple[int, ...], shares: list[float]) -> float:
    """Return the probability of drawing these classes in any order."""
    counts = Counter(classes)
    orders = factorial(len(classes)) // prod(factorial(count) for count in counts.values())
    return orders * prod(shares[label] ** count for label, count in counts.items())
