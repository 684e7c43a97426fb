"""Discrete Laplace and discrete Gaussian noise over the integers, drawn exactly.

Both are defined as in Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy" (2020), over all
integers and around zero. The weight of x is exp(-e(|x|)), where e is a rational multiple of |x| or of its square. No
floating-point number takes part in a draw. A draw is made as follows, and its distribution is exactly the weights:

1. The sizes |x| are divided into cells of `width` sizes, a power of two. A cell is chosen with the weight of its
   smallest size, by comparing a uniform U in [0, 1) with the cells' cumulative weights F. Both have infinitely many
   binary digits. The table holds the first digits of F, rounded down and certain. Where the first digits of U differ
   from them, U lies on a certain side of F; where they agree, more digits of both are computed until they differ. The
   table ends where 1 - F is less than its last digit; beyond it first digits agree as well, so no tail is cut off.
2. A place in the cell is chosen uniformly, and kept with probability exp(-rise), where rise is e there minus e at the
   cell's smallest size. So each size is proposed and kept in proportion to its weight.
3. A sign is drawn; minus zero is rejected, because zero would count twice otherwise.

Rejected proposals are replaced by later ones, so what is kept is a sequence of independent draws. Cells keep the table
short, and its search fast, at any scale.
"""

import math
from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from feddig.privacy.samplers import (
    WORD,
    Source,
    Words,
    bernoulli_exp,
    bernoulli_exp_once,
    resolve,
    thresholds,
)

AT_ONCE = 2**16
"""Numbers drawn at once: as many as fit in a processor's cache."""
FINENESS = 64
"""Smallest number of cells in one scale: more make the table longer, fewer reject more."""


@dataclass(frozen=True)
class IntegerNoise(ABC):
    """A symmetric distribution over the integers, with exact draws."""

    @property
    @abstractmethod
    def spread(self) -> Fraction:
        """The scale, or a whole number near it; it only chooses the width of the cells."""

    @property
    @abstractmethod
    def size(self) -> float:
        """Laplace's b or Gauss's sigma."""

    @property
    @abstractmethod
    def over(self) -> int:
        """The denominator of every exponent."""

    @abstractmethod
    def rise(self, start: Any, offset: Any) -> Any:
        """Return the numerator by which the exponent rises from size `start` to `start + offset`, ints or arrays."""

    @property
    @abstractmethod
    def variance_of_draws(self) -> float:
        """The variance of a draw: what a receiver may know about the noise."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, str]:
        """The exact parameter, as text that `Fraction` reads."""

    def draw(self, count: int, source: Source, threads: int = 1) -> np.ndarray:
        """Draw independent integers (int64); threads change the time and nothing else."""
        noise = np.empty(count, dtype=np.int64)
        blocks = [noise[start : start + AT_ONCE] for start in range(0, count, AT_ONCE)]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(self._fill, blocks, source.streams(len(blocks))))
        return noise

    @cached_property
    def width(self) -> int:
        """How many sizes share a cell: a power of two."""
        return 1 << max(0, int(self.spread / FINENESS).bit_length() - 1)

    @cached_property
    def bits(self) -> int:
        """How many bits of a word choose the cell; the others give the sign and the place in it."""
        return WORD - self.width.bit_length()

    @cached_property
    def steps(self) -> tuple[Fraction, Fraction]:
        """The exponent from the first cell to the second, and by how much that grows from cell to cell."""
        first, second = (Fraction(self.rise(0, cells * self.width), self.over) for cells in (1, 2))
        return first, second - 2 * first

    @cached_property
    def table(self) -> np.ndarray:
        """Floors of the cells' cumulative weights."""
        table = thresholds(*self.steps, self.bits)
        # so all array computations fit 64 bits, and coins get quotients up to 1
        assert self.rise((len(table) - 1) * self.width, self.width - 1) <= self.over < 2**63
        return table

    def _fill(self, block: np.ndarray, words: Words) -> None:
        filled = 0
        while filled < len(block):
            kept = self._propose(len(block) - filled, words)
            block[filled : filled + len(kept)] = kept
            filled += len(kept)

    def _propose(self, count: int, words: Words) -> np.ndarray:
        """Make proposals and return those that are kept."""
        drawn = words(count)
        negative = (drawn & np.uint64(1)).astype(bool)
        offset = (drawn >> np.uint64(1) & np.uint64(self.width - 1)).astype(np.int64)
        cell = self._cells(drawn >> np.uint64(WORD - self.bits), words)
        size = cell * self.width + offset
        kept = ~negative | (size > 0)
        if self.width > 1:
            kept &= self._stays(cell, offset, words)
        proposals: np.ndarray = np.where(negative, -size, size)[kept]
        return proposals

    def _cells(self, prefixes: np.ndarray, words: Words) -> np.ndarray:
        """Find the cell of each uniform number from its first bits."""
        cells = np.searchsorted(self.table, prefixes).astype(np.int64)
        for index in np.flatnonzero(self.table[cells] == prefixes):
            cells[index] = resolve(*self.steps, int(prefixes[index]), self.bits, words)
        return cells

    def _stays(self, cell: np.ndarray, offset: np.ndarray, words: Words) -> np.ndarray:
        """Decide with probability exp(-rise) which places in their cells are kept."""
        last = len(self.table) - 1
        stays = bernoulli_exp(self.rise(np.minimum(cell, last) * self.width, offset), self.over, words)
        for index in np.flatnonzero(cell > last):
            rise = self.rise(int(cell[index]) * self.width, int(offset[index]))
            stays[index] = bernoulli_exp_once(rise, self.over, words)
        return stays


DIGITS = 32
"""Binary digits, before and after the point, to which a scale or variance is rounded up."""


@dataclass(frozen=True)
class DiscreteLaplaceNoise(IntegerNoise):
    """P(x) proportional to exp(-|x| / scale): epsilon = L1 sensitivity / scale."""

    scale: Fraction

    def __post_init__(self) -> None:
        _check("scale", self.scale, 2**-6, 2**40)

    @classmethod
    def for_epsilon(cls, epsilon: float | Fraction, sensitivity: int) -> "DiscreteLaplaceNoise":
        """Return the noise that promises epsilon, or very slightly less, to integers of this L1 sensitivity."""
        return cls(rounded_up(sensitivity / _above_zero("epsilon", epsilon)))

    @property
    def spread(self) -> Fraction:
        """The scale itself."""
        return self.scale

    @property
    def size(self) -> float:
        """The scale."""
        return float(self.scale)

    @property
    def over(self) -> int:
        """With scale = p / q the exponent is |x| q / p."""
        return self.scale.numerator

    def rise(self, start: Any, offset: Any) -> Any:
        """The exponent rises by the same amount from everywhere."""
        return offset * self.scale.denominator

    @property
    def variance_of_draws(self) -> float:
        """2 r / (1 - r)^2 with r = exp(-1 / scale)."""
        return 1 / (2 * math.sinh(1 / (2 * self.scale)) ** 2)

    @property
    def facts(self) -> dict[str, str]:
        """The scale."""
        return {"noise_scale": str(self.scale)}


@dataclass(frozen=True)
class DiscreteGaussianNoise(IntegerNoise):
    """P(x) proportional to exp(-x^2 / (2 variance)); `variance` is sigma^2, slightly more than the draws' own."""

    variance: Fraction

    def __post_init__(self) -> None:
        _check("variance", self.variance, 2**-12, 2**60)

    @classmethod
    def for_multiplier(
        cls, multiplier: float | Fraction, squared_sensitivity: int | Fraction
    ) -> "DiscreteGaussianNoise":
        """Return the noise whose sigma is this multiple of the L2 sensitivity, or very slightly more."""
        return cls(rounded_up(squared_sensitivity * _above_zero("multiplier", multiplier) ** 2))

    @property
    def spread(self) -> Fraction:
        """Sigma, rounded down."""
        return Fraction(math.isqrt(int(self.variance)))

    @property
    def size(self) -> float:
        """Sigma."""
        return math.sqrt(self.variance)

    @property
    def over(self) -> int:
        """With variance = p / q the exponent is x^2 q / 2p."""
        return 2 * self.variance.numerator

    def rise(self, start: Any, offset: Any) -> Any:
        """The difference of two squares."""
        return offset * (2 * start + offset) * self.variance.denominator

    @property
    def variance_of_draws(self) -> float:
        """Sigma^2 or a little less."""
        # from sigma 4 on the two differ by less than a double can tell
        if self.variance >= 16:
            return float(self.variance)
        weights = {x: math.exp(-(x**2) / (2 * self.variance)) for x in range(-60, 61)}
        return sum(x**2 * weight for x, weight in weights.items()) / sum(weights.values())

    @property
    def facts(self) -> dict[str, str]:
        """Sigma^2."""
        return {"noise_variance": str(self.variance)}


def rounded_up(value: Fraction) -> Fraction:
    """Round up to few binary digits, or to a whole number: samplers can hold that, and no promise gets weaker."""
    one = 2 ** max(0, DIGITS - int(value).bit_length())
    return Fraction(math.ceil(value * one), one)


def _above_zero(name: str, value: float | Fraction) -> Fraction:
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} must be a finite number above 0, not {value}")
    return Fraction(value)


def _check(name: str, value: Fraction, least: float, most: int) -> None:
    """Refuse a parameter that the samplers' 64-bit arithmetic cannot hold."""
    if not isinstance(value, Fraction):
        raise TypeError(f"the noise's {name} must be a Fraction, not {value!r}")
    if not least <= value <= most:
        raise ValueError(
            f"the noise's {name} must lie between {least:g} and {float(most):g}, not at {float(value):g}"
        )
    if value.numerator >= 2**62 or value.denominator >= 2**62:
        raise ValueError(f"the noise's {name} {value} does not fit 64-bit arithmetic; round it up first")
