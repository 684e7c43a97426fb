"""Attacks that test what a digest promises: on its labels, on its noise, and on planted records (canaries).

Labels: what soft labels reveal about a silo's classes and about each record's class.

The lattice: are released numbers whole multiples of a public step, and is the noise as strong as agreed? Noise in
floating point leaves traces in the last bits; whole numbers leave none. Everyone who has a digest can check the step;
only someone who knows the mixture before the noise can check the noise.

Canaries are planted records, each one of two by a fair coin. The attacker guesses the coins, or those it is surest of.
As in the definition of differential privacy, the attacker knows everything about a digest but the coins. A digest may
contain many canaries. Each raises elements that no other canary of the digest raises, so its noise is its own and its
guess depends on no other coin. The two records of a pair are as far apart as the clip allows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import factorial, prod

import torch
from torch import Tensor

from feddig.attacks.candidates import Noise, read_classes
from feddig.attacks.statistics import LEVEL, Estimate, SuccessRate, canary_epsilon, mean_estimate
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


@dataclass(frozen=True)
class Lattice:
    """How many released numbers are multiples of the step."""

    numbers: int
    off: int
    """Numbers that are no whole multiple of the step."""
    undecided: int
    """Numbers so large that their type cannot distinguish neighbouring multiples."""
    worst: float
    """The largest distance from a multiple, in steps; arbitrary numbers have 0.25 on average."""


def check_lattice(released: Tensor, step: float) -> Lattice:
    """Compare released numbers with the whole multiples of a public step, rounded to the numbers' own type.

    Up to 2^22 steps float32 has values between the multiples, so that a number can fail to be one.
    """
    numbers = released.flatten()
    steps = numbers.double() / step
    whole = steps.round()
    size = numbers.abs()
    spacing = (torch.nextafter(size, torch.full_like(size, torch.inf)) - size).double()
    blurred = spacing > step / 2
    return Lattice(
        numbers=numbers.numel(),
        off=int((((whole * step).to(numbers.dtype) != numbers) & ~blurred).sum()),
        undecided=int(blurred.sum()),
        worst=float((steps - whole).abs().max()),
    )


def evaluate_noise(released: Tensor, mixed: Tensor, contract_deviation: float) -> Estimate:
    """Return the variance of the noise between mixture and release, divided by the contract's."""
    noise = (released.double() - mixed.double()) / contract_deviation
    return mean_estimate(noise.square(), 1.0)


GUESSED = {"all": 1, "surest tenth": 10, "surest hundredth": 100}
"""One coin in how many is guessed. The best of the bounds counts, so each has a part of the error."""


@dataclass(frozen=True)
class CanaryResult:
    """How many coins were guessed, and the epsilon that this proves."""

    right: dict[str, SuccessRate]
    """By how many coins were guessed."""
    epsilon: float
    """A lower bound at the given level."""
    most: float
    """What it would be if all guesses were right: the largest epsilon that this test could have refuted."""


def draw_pairs(canaries: int, elements: int, width: int, draw: torch.Generator) -> Tensor:
    """Draw which elements the two records of each pair raise: [canaries, 2, width], no element twice."""
    return torch.randperm(elements, generator=draw)[: canaries * 2 * width].view(canaries, 2, width)


def score_coins(rest: Tensor, pairs: Tensor, parts: Tensor, noise: Noise) -> Tensor:
    """Return for each coin [digests, canaries] how much better its first record fits than its second.

    `rest` [digests, elements] is what is left of the digests without the records that are known, `parts` [canaries] is
    how much a canary raises its elements of a digest.
    """
    first, second = rest[:, pairs[:, 0]], rest[:, pairs[:, 1]]
    misfit = torch.abs if noise.heavy_tails else torch.square
    parts = parts[:, None]
    scores: Tensor = misfit(first) + misfit(second - parts) - misfit(first - parts) - misfit(second)
    return scores.sum(-1)


def evaluate_guesses(scores: Tensor, coins: Tensor, delta: float = 0.0, level: float = LEVEL) -> CanaryResult:
    """Guess all coins and those with the largest scores, and derive the epsilon that the right guesses prove."""
    order = scores.abs().argsort(descending=True, stable=True)
    is_right = ((scores < 0) == coins.bool())[order]
    counts = {name: len(order) // one_in for name, one_in in GUESSED.items() if len(order) >= one_in}
    right = {name: SuccessRate(int(is_right[:count].sum()), count, 0.5) for name, count in counts.items()}
    return CanaryResult(
        right,
        prove_epsilon([(each.hits, each.trials) for each in right.values()], len(order), delta, level),
        prove_epsilon([(count, count) for count in counts.values()], len(order), delta, level),
    )


def prove_epsilon(
    counts: Sequence[tuple[int, int]], canaries: int, delta: float = 0.0, level: float = LEVEL
) -> float:
    """Return the best bound of several numbers of (right, made) guesses, corrected for how many there may be."""
    level = 1 - (1 - level) / len(GUESSED)
    return max(canary_epsilon(*each, level, canaries=canaries, delta=delta) for each in counts)
