"""Canaries: each digest contains one of two planted records, and the attacker guesses which one.

A fair coin chooses the record. As in the definition of differential privacy, the attacker knows everything about the
digest but the coin. The two records of a pair differ as much as records can.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feddig.attacks.candidates import Noise
from feddig.attacks.statistics import LEVEL, SuccessRate, canary_epsilon
from feddig.digest.digest import Digest


@dataclass(frozen=True)
class CanaryResult:
    """How many coins were guessed, and the epsilon that this proves."""

    right: SuccessRate
    """Chance is what the claimed epsilon allows."""
    epsilon: float
    """A lower bound at the given level, for delta 0."""


def draw_pairs(count: int, elements: int, height: float, draw: torch.Generator) -> Tensor:
    """Draw pairs of records [count, 2, elements]: a random half of the elements at a height, or the other half."""
    halves = torch.rand(count, elements, generator=draw).argsort(1) < elements // 2
    return torch.stack([halves, ~halves], dim=1) * height


def guess_coins(digest: Digest, expected: Tensor, noise: Noise) -> Tensor:
    """Return for each digest the more likely of two mixtures [digests, 2, elements] before the noise."""
    misfits = noise.misfit(digest.features.flatten(1)[:, None] - expected)
    return misfits.argmin(1)


def evaluate_guesses(guesses: Tensor, coins: Tensor, chance: float, level: float = LEVEL) -> CanaryResult:
    """Count the right guesses and derive the epsilon that they prove."""
    right = SuccessRate(int((guesses == coins).sum()), len(coins), chance)
    return CanaryResult(right, canary_epsilon(right.hits, right.trials, level))
