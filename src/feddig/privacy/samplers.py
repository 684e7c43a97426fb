"""What exact noise is drawn with: uniform 64-bit words, coins of probability exp(-a/b), cumulative tables.

Noise that a promise rests on takes words from the system's entropy. A seed is for experiments: anyone who knows it can
remove the noise. A table belongs to a distribution over 0, 1, 2, ... with weights exp(-(first j + bend j (j - 1) / 2)),
`first` and `bend` rational: bend 0 is geometric, bend = 2 first is one half of a Gaussian. Tables are computed in whole
numbers of 2^-bits with a lower and an upper bound, so that no result depends on rounding.
"""

import os
from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import numpy as np

from feddig.seeds import Name, derive

Words = Callable[[int], np.ndarray]
"""Return this many independent words, uniform over [0, 2^64)."""

WORD = 64


class Source(Protocol):
    """Where words come from."""

    def streams(self, count: int) -> list[Words]:
        """Open streams that are independent of each other and of all that were opened before."""


class SystemSource:
    """The operating system's entropy; nobody can draw the same words again."""

    def streams(self, count: int) -> list[Words]:
        """Return the system's words for every stream: they have no order to keep."""
        return [system_words] * count


class SeededSource:
    """Words that anyone who knows the seed can draw again; for experiments only."""

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
    """Draw integers uniform over [0, bound), without bias: words past the last whole multiple are drawn again."""
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


def bernoulli_exp(numerators: np.ndarray, denominator: int, words: Words) -> np.ndarray:
    """Return true with probability exp(-numerator / denominator), for quotients in [0, 1].

    Each step k is followed by the next with probability quotient / k. The last step's number is odd with the wanted
    probability, because its tail is quotient^k / k! (von Neumann's method, as Canonne, Kamath and Steinke use it).
    """
    odd = np.ones(len(numerators), dtype=bool)
    going = np.arange(len(numerators))
    bounds, step = numerators.astype(np.uint64), 1
    while len(going):
        goes_on = uniform_below(denominator, len(going), words) < bounds
        if step > 1:
            goes_on &= uniform_below(step, len(going), words) == 0
        going, bounds, step = going[goes_on], bounds[goes_on], step + 1
        odd[going] ^= True
    return odd


def bernoulli_exp_once(numerator: int, denominator: int, words: Words) -> bool:
    """Return true with probability exp(-numerator / denominator), for any quotient: one factor 1/e at a time."""
    whole, rest = divmod(numerator, denominator)
    factors = [(1, 1)] * whole + [(rest, denominator)]
    return all(bernoulli_exp(np.array([above]), below, words)[0] for above, below in factors)


GUARD = 64
"""Bits computed beyond those that are asked for."""


def exp_bounds(exponent: Fraction, bits: int) -> tuple[int, int]:
    """Return two integers that enclose 2^bits exp(-exponent), for an exponent that is not negative."""
    one = 1 << bits
    if not exponent:
        return one, one
    halvings = int(exponent).bit_length()
    small = exponent / 2**halvings
    total, term, steps = one, one, 0
    while term:
        steps += 1
        term = term * small.numerator // (small.denominator * steps)
        total += -term if steps % 2 else term
    # each term is short by less than 2, and the rest after the first zero term is below 2
    slack = 2 * steps + 2
    lower, upper = max(total - slack, 0), min(total + slack, one)
    for _ in range(halvings):
        lower, upper = lower * lower >> bits, -(-upper * upper >> bits)
    return lower, upper


@lru_cache(maxsize=8)
def cumulative_bounds(first: Fraction, bend: Fraction, bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return lower and upper bounds of 2^bits F(0), 2^bits F(1), ..., until 1 - F is far below 2^-bits."""
    width = bits + GUARD
    one = 1 << width
    low, high = one, one
    fall_low, fall_high = exp_bounds(first, width)
    bend_low, bend_high = exp_bounds(bend, width)
    sums_low, sums_high = [one], [one]
    # the ratio of two neighbours never grows, so the rest is at most a geometric series
    while (rest := high * fall_high // (one - fall_high) + 1) >> (GUARD // 2):
        low, high = low * fall_low >> width, -(-high * fall_high >> width)
        fall_low, fall_high = fall_low * bend_low >> width, -(-fall_high * bend_high >> width)
        sums_low.append(sums_low[-1] + low)
        sums_high.append(sums_high[-1] + high)
    all_low, all_high = sums_low[-1], sums_high[-1] + rest
    return (
        tuple((part << bits) // all_high for part in sums_low),
        tuple(-(-(part << bits) // all_low) for part in sums_high),
    )


def thresholds(first: Fraction, bend: Fraction, bits: int) -> np.ndarray:
    """Return floor(2^bits F(j)) for j = 0, 1, ... up to the first that is 2^bits - 1; bits is at most 64."""
    largest, extra = 2**bits - 1, WORD
    while True:
        lows, highs = cumulative_bounds(first, bend, bits + extra)
        floors = [low >> extra for low in lows]
        count = bisect_left(floors, largest) + 1
        # F is below 1, even if its upper bound is not
        if all(
            floor == min(high >> extra, largest) for floor, high in zip(floors[:count], highs, strict=False)
        ):
            return np.array(floors[:count], dtype=np.uint64)
        extra *= 2


def resolve(first: Fraction, bend: Fraction, prefix: int, bits: int, words: Words) -> int:
    """Return the j with F(j - 1) <= U < F(j) for a uniform U whose first bits are known; draw more bits as needed."""
    while True:
        prefix, bits = prefix << WORD | int(words(1)[0]), bits + WORD
        lows, highs = cumulative_bounds(first, bend, bits + WORD)
        start, stop = prefix << WORD, (prefix + 1) << WORD
        found = bisect_left(lows, stop)
        if found < len(lows) and (not found or highs[found - 1] <= start):
            return found
