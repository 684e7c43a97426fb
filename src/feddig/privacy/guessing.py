"""The chance that a blind guess unmixes a digest: the paper's P_crt, by three counts.

A digest element is treated as the sum V of SpD whole numbers, and the guess names all of them. The counts differ in
the distribution of V:

- the paper's bound: V uniform over 1..I, and at least V ways to reach it;
- the ordered count: V uniform over 1..I, and C(SpD + V - 1, V) ways, the paper's kappa with m = 0;
- the uniform count: the numbers themselves uniform over 0..I-1, from which V follows.

All are given as log10, because the chance for a digest of hundreds of elements is below the smallest float.
"""

import math
from dataclasses import dataclass, replace

VALUES = 2**32
"""I: how many values an element may take, if it has 32 bits."""

_WITHOUT_BOUND = {
    1: "the paper's bound holds from SpD 3; at SpD 1 the digest is the sample itself and there is nothing to guess",
    2: "the paper's bound holds from SpD 3; at SpD 2 fewer than V unordered pairs add up to V",
}

_EULER = 0.577215664901532860606512
_ADDED_UP = 100
_ENOUGH = 64

BLIND = "P_crt is the chance of a blind guess: an attacker who has candidate images or knows features is not covered."
INDEPENDENT = "P_crt assumes that a digest's elements are independent, mixing weights equal and noise absent."
EQUAL = (
    "P_crt assumes that {values} values are equally likely: of an element's sum in the paper's bound and the ordered "
    "count, of each number in the uniform count."
)
EXACT = (
    "P_crt counts a guess only if every element of every sample is exact and in order; allowing any order of "
    "the samples adds at most log10(SpD!) to a digest's figure."
)


@dataclass(frozen=True)
class Guess:
    """The chance, as log10, that a blind guess is right: P_crt by each of the three counts."""

    paper: float | None
    """The paper's upper bound; None where it does not hold."""
    ordered: float
    uniform: float
    without_bound: str = ""
    """Why there is no bound."""
    values: int = VALUES
    """I: how many values an element may take."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What must be true for its numbers to hold."""
        return BLIND, EQUAL.format(values=f"{self.values:,}"), INDEPENDENT, EXACT


def guess_element(samples: int, values: int = VALUES) -> Guess:
    """Return P_crt(D^e) of one element that is the sum of `samples` (SpD) numbers out of `values` (I)."""
    if samples < 1 or values < 2:
        raise ValueError(f"{samples} samples of {values} values: there must be at least 1 and 2")
    missing = _WITHOUT_BOUND.get(samples, "")
    return Guess(
        None if missing else paper_bound(values),
        ordered_count(samples, values),
        uniform_count(samples, values),
        missing,
        values,
    )


def guess_digest(samples: int, elements: int, values: int = VALUES) -> Guess:
    """Return P_crt(D) of a digest: the product over its `elements` (ell)."""
    element = guess_element(samples, values)
    return replace(
        element,
        paper=None if element.paper is None else elements * element.paper,
        ordered=elements * element.ordered,
        uniform=elements * element.uniform,
    )


def paper_bound(values: int) -> float:
    """Return log10 of the paper's bound, (ln I + gamma + 1/2I) / I."""
    return math.log10(math.log(values) + _EULER + 1 / (2 * values)) - math.log10(values)


def ordered_count(samples: int, values: int) -> float:
    """Return log10 of the mean of 1 / C(SpD + V - 1, V) over V = 1..I."""
    if samples == 1:
        return 0.0
    if samples == 2:
        return math.log10(_harmonic_less_one(values + 1)) - math.log10(values)
    # the sum telescopes to 1/(SpD - 2) less a share (SpD - 1) / C(SpD + I - 1, SpD - 2) of it; stopping the
    # binomial after 64 factors makes it too small, but its share is then below a float's last digit
    ways = math.comb(samples + values - 1, min(samples - 2, values + 1, _ENOUGH))
    return math.log1p(-(samples - 1) / ways) / math.log(10) - math.log10(samples - 2) - math.log10(values)


def uniform_count(samples: int, values: int) -> float:
    """Return log10 of (SpD (I - 1) + 1) / I^SpD: the number of sums over the number of ways to choose the numbers."""
    return math.log10(samples * (values - 1) + 1) - samples * math.log10(values)


def _harmonic_less_one(count: int) -> float:
    """Return 1/2 + 1/3 + ... + 1/count."""
    if count <= _ADDED_UP:
        return math.fsum(1 / number for number in range(2, count + 1))
    small = 1 / count**2
    return math.log(count) + (_EULER - 1) + 1 / (2 * count) - small / 12 + small**2 / 120
