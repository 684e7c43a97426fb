"""Exact draws from symmetric distributions over the integers, from random words and whole numbers alone.

The weight of x is exp(-e(|x|)), where e is a rational multiple of |x| or of its square. No floating-point number
takes part in a draw. How a draw is made, and why its law is exactly the weights:

1. The sizes |x| are cut into cells of `width` sizes, a power of two. A cell is chosen with the weight of its
   smallest size, by comparing a uniform U in [0, 1) with the cells' cumulative weights F. Both have endless
   binary digits. The table holds the first digits of F, rounded down and certain; first digits of U that differ
   from these lie on a certain side of F, and where they agree, more digits of both are made until they differ. The
   table ends where 1 - F is less than its last digit, and beyond it first digits agree as well: no tail is cut.
2. A place in the cell is chosen uniformly, and kept with probability exp(-rise), where rise is e there less e at the
   cell's smallest size. So each size is proposed and kept in proportion to its weight.
3. A sign is tossed; minus zero is rejected, or zero would count twice.

Rejected proposals are replaced by later ones, so what is kept is a sequence of independent draws. Cells are there
to keep the table short, and its search fast, at any scale.
"""

from abc import ABC, abstractmethod
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from feddig.privacy.bernoulli import bernoulli_exp, bernoulli_exp_once
from feddig.privacy.thresholds import resolve, thresholds
from feddig.privacy.words import WORD, Source, Words

AT_ONCE = 2**16
"""Numbers drawn at once: as many as a processor's cache holds."""
FINENESS = 64
"""Least number of cells in one scale: more make the table longer, fewer reject more."""


@dataclass(frozen=True)
class IntegerNoise(ABC):
    """A symmetric distribution over the integers, and how it is drawn from."""

    name: ClassVar[str]

    @property
    @abstractmethod
    def spread(self) -> Fraction:
        """The scale, or a whole number near it; it only chooses the width of the cells."""

    @property
    @abstractmethod
    def over(self) -> int:
        """The denominator of every exponent."""

    @abstractmethod
    def rise(self, start: Any, offset: Any) -> Any:
        """Give the numerator by which the exponent rises from size `start` to `start + offset`, ints or arrays."""

    @property
    @abstractmethod
    def variance_of_draws(self) -> float:
        """The variance of a draw: what a receiver may know about the noise."""

    @property
    @abstractmethod
    def facts(self) -> dict[str, str]:
        """The exact parameter, as text that `Fraction` reads."""

    def draw(self, count: int, source: Source, threads: int = 1) -> np.ndarray:
        """Draw independent integers (int64); threads change the time that it takes and nothing else."""
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
        # so 64 bits hold whatever is computed with arrays, and coins get quotients up to 1
        assert self.rise((len(table) - 1) * self.width, self.width - 1) <= self.over < 2**63
        return table

    def _fill(self, block: np.ndarray, words: Words) -> None:
        filled = 0
        while filled < len(block):
            kept = self._propose(len(block) - filled, words)
            block[filled : filled + len(kept)] = kept
            filled += len(kept)

    def _propose(self, count: int, words: Words) -> np.ndarray:
        """Make so many proposals and give those that are kept."""
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
