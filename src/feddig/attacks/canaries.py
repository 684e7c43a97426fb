"""Canaries: planted records, each one of two by a fair coin. The attacker guesses the coins, or those it is surest of.

As in the definition of differential privacy, the attacker knows everything about a digest but the coins. A digest may
contain many canaries. Each raises elements that no other canary of the digest raises, so its noise is its own and its
guess depends on no other coin. The two records of a pair are as far apart as the clip allows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from feddig.attacks.candidates import Noise
from feddig.attacks.statistics import LEVEL, SuccessRate, canary_epsilon

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
