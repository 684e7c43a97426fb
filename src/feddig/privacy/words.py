"""Uniform random 64-bit words, the only randomness that exact noise is made of.

Noise that a promise rests on takes the system's entropy. A seed is for experiments: whoever knows it can
take the noise off again.
"""

import os
from collections.abc import Callable
from typing import Protocol

import numpy as np

from feddig.seeds import Name, derive

Words = Callable[[int], np.ndarray]
"""Gives so many independent words, uniform over [0, 2^64)."""

WORD = 64


class Source(Protocol):
    """Where words come from."""

    @property
    def name(self) -> str:
        """Say which it is, in the words of the setting privacy.random."""

    def streams(self, count: int) -> list[Words]:
        """Open so many streams, independent of each other and of all that were opened before."""


class SystemSource:
    """The operating system's entropy; nobody can draw the same words again."""

    name = "system"

    def streams(self, count: int) -> list[Words]:
        """Give the system's words once for each stream: it has no order to keep."""
        return [system_words] * count


class SeededSource:
    """Words that anybody who knows the seed can draw again; for experiments only."""

    name = "seeded"

    def __init__(self, seed: int, *names: Name):
        self._root = np.random.SeedSequence(derive(seed, *names))

    def streams(self, count: int) -> list[Words]:
        """Open the next streams of this seed, in an order that no number of threads changes."""
        return [seeded_words(child) for child in self._root.spawn(count)]


def system_words(count: int) -> np.ndarray:
    """Draw words from the system's entropy."""
    return np.frombuffer(os.urandom(8 * count), dtype=np.uint64)


def seeded_words(seed: np.random.SeedSequence) -> Words:
    """Open a stream of words from a seed."""
    generator = np.random.default_rng(seed)
    return lambda count: generator.integers(2**WORD - 1, size=count, dtype=np.uint64, endpoint=True)


def uniform_below(bound: int, count: int, words: Words) -> np.ndarray:
    """Draw integers that are uniform over [0, bound), without bias: words past the last whole multiple are redrawn."""
    if not 0 < bound < 2**63:
        raise ValueError(f"integers are drawn below 1 to 2^63 - 1, not below {bound}")
    largest = np.uint64(2**WORD - 1 - 2**WORD % bound)
    drawn = words(count)
    while len(again := np.flatnonzero(drawn > largest)):
        # the system's words lie in memory that cannot be written
        drawn = drawn.copy()
        drawn[again] = words(len(again))
    below: np.ndarray = drawn % np.uint64(bound)
    return below
