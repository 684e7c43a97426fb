"""The cumulative probabilities of a fast-falling distribution, as integers that are certain to the last bit.

The distribution is over 0, 1, 2, ... with weights exp(-(first j + bend j (j - 1) / 2)), `first` and `bend`
rational: bend 0 is geometric, bend = 2 first is one half of a Gaussian. Everything is computed in whole numbers
of 2^-bits with a lower and an upper bound, so rounding is never trusted, only enclosed.
"""

from bisect import bisect_left
from fractions import Fraction
from functools import lru_cache

import numpy as np

from feddig.privacy.words import WORD, Words

GUARD = 64
"""Bits carried beyond those that are asked for."""


def exp_bounds(exponent: Fraction, bits: int) -> tuple[int, int]:
    """Give two integers that enclose 2^bits exp(-exponent), for an exponent that is not negative."""
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
    # each term is short by less than 2, and what follows the first that vanishes is below 2
    slack = 2 * steps + 2
    lower, upper = max(total - slack, 0), min(total + slack, one)
    for _ in range(halvings):
        lower, upper = lower * lower >> bits, -(-upper * upper >> bits)
    return lower, upper


@lru_cache(maxsize=8)
def cumulative_bounds(first: Fraction, bend: Fraction, bits: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Enclose 2^bits F(0), 2^bits F(1), ... from below and from above, until 1 - F is far below 2^-bits."""
    width = bits + GUARD
    one = 1 << width
    low, high = one, one
    fall_low, fall_high = exp_bounds(first, width)
    bend_low, bend_high = exp_bounds(bend, width)
    sums_low, sums_high = [one], [one]
    # the ratio of two neighbours never grows, so all that follows is at most a geometric series
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
    """Give floor(2^bits F(j)) for j = 0, 1, ... up to the first that is 2^bits - 1; bits at most 64."""
    largest, extra = 2**bits - 1, WORD
    while True:
        lows, highs = cumulative_bounds(first, bend, bits + extra)
        floors = [low >> extra for low in lows]
        count = bisect_left(floors, largest) + 1
        # F is below 1, however near the upper bound comes
        if all(
            floor == min(high >> extra, largest) for floor, high in zip(floors[:count], highs, strict=False)
        ):
            return np.array(floors[:count], dtype=np.uint64)
        extra *= 2


def resolve(first: Fraction, bend: Fraction, prefix: int, bits: int, words: Words) -> int:
    """Find the j with F(j - 1) <= U < F(j) for a uniform U whose first bits are known, drawing more as needed."""
    while True:
        prefix, bits = prefix << WORD | int(words(1)[0]), bits + WORD
        lows, highs = cumulative_bounds(first, bend, bits + WORD)
        start, stop = prefix << WORD, (prefix + 1) << WORD
        found = bisect_left(lows, stop)
        if found < len(lows) and (not found or highs[found - 1] <= start):
            return found
