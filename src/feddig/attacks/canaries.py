"""Canaries: one planted record in each digest, a fair coin which of two, and an attacker who guesses the coins.

The attacker is the one that differential privacy speaks of: all of a digest is known but the coin. Each pair is as
far apart as records can be, so nobody could guess better from digests that were made of other records.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feddig.attacks.candidates import Noise
from feddig.attacks.statistics import LEVEL, Rate, canary_epsilon
from feddig.digest.digest import Digest


@dataclass(frozen=True)
class Canaries:
    """How many coins were guessed, and the epsilon that this proves at least."""

    right: Rate
    """Chance is what the claimed epsilon allows."""
    epsilon: float
    """A lower bound at the level, for delta 0."""


def draw_pairs(count: int, elements: int, height: float, draw: torch.Generator) -> Tensor:
    """Draw pairs of records [count, 2, elements]: a random half of the elements at a height, or the other half."""
    halves = torch.rand(count, elements, generator=draw).argsort(1) < elements // 2
    return torch.stack([halves, ~halves], dim=1) * height


def guess_coins(digest: Digest, expected: Tensor, noise: Noise) -> Tensor:
    """Guess for each digest which of two mixtures [digests, 2, elements] it was before the noise: the likelier."""
    misfits = noise.misfit(digest.features.flatten(1)[:, None] - expected)
    return misfits.argmin(1)


def evaluate_coins(guesses: Tensor, coins: Tensor, chance: float, level: float = LEVEL) -> Canaries:
    """Count right guesses."""
    right = Rate(int((guesses == coins).sum()), len(coins), chance)
    return Canaries(right, canary_epsilon(right.hits, right.trials, level))
