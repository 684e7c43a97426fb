"""Label leakage: what do soft labels say about the classes that a silo holds, and about each record's class?"""

from collections import Counter
from dataclasses import dataclass
from math import factorial, prod

import torch
from torch import Tensor

from feddig.attacks.candidates import mixed_classes
from feddig.attacks.statistics import Rate
from feddig.digest.digest import Digest

PUBLIC = (
    "same-label adjacency takes labels as public: it promises nothing about them, and this is what they say"
)
PROTECTED = (
    "replace-one adjacency counts labels as private: beyond chance, what they say must be within its epsilon"
)


@dataclass(frozen=True)
class ReadLabels:
    """What an attacker reads off the labels."""

    shares: Tensor
    """[classes], how much of the silo's data is of each class."""
    classes: list[tuple[int, ...]]
    """Of each digest, SpD of them."""
    guesses: Tensor
    """[digests], the class that somebody known to be in the digest most likely is of."""


@dataclass(frozen=True)
class LabelLeakage:
    """How much of it is true."""

    histogram_distance: float
    """Total variation distance between the shares read and the true ones: 0 is all of it, known exactly."""
    histogram_chance: float
    """The same for somebody who takes all classes for equally common."""
    records: Rate
    """Records whose class was guessed from the digest they are in; chance guesses the commonest class."""
    digests: Rate
    """Digests all of whose classes were read; chance draws classes by their true shares."""
    meaning: str


def read_labels(digest: Digest) -> ReadLabels:
    """Read the labels as anybody who holds the digest can."""
    return ReadLabels(digest.labels.mean(0), mixed_classes(digest), digest.labels.argmax(1))


def evaluate_labels(read: ReadLabels, member_labels: Tensor, adjacency: str) -> LabelLeakage:
    """Hold what was read against the members' labels [digests, SpD]."""
    truth = torch.bincount(member_labels.flatten(), minlength=len(read.shares)) / member_labels.numel()
    even = torch.full_like(truth, 1 / len(truth))
    true_classes = [tuple(sorted(row)) for row in member_labels.tolist()]
    right = sum(own == true for own, true in zip(read.classes, true_classes, strict=True))
    likely = [_probability(own, truth.tolist()) for own in true_classes]
    return LabelLeakage(
        histogram_distance=float((read.shares - truth).abs().sum() / 2),
        histogram_chance=float((even - truth).abs().sum() / 2),
        records=Rate(
            int((read.guesses[:, None] == member_labels).sum()), member_labels.numel(), float(truth.max())
        ),
        digests=Rate(right, len(true_classes), sum(likely) / len(likely)),
        meaning=PUBLIC if adjacency == "same-label" else PROTECTED,
    )


def _probability(classes: tuple[int, ...], shares: list[float]) -> float:
    """Give how likely it is to draw these classes, in any order."""
    counts = Counter(classes)
    orders = factorial(len(classes)) // prod(factorial(count) for count in counts.values())
    return orders * prod(shares[label] ** count for label, count in counts.items())
