"""What releases promise a record, what they cost it together, and whether a budget covers that; the paper's P_crt.

A promise is worth no more than its assumptions, so each promise carries them as sentences.

P_crt is the chance that a blind guess unmixes a digest. A digest element is treated as the sum V of SpD whole numbers,
and the guess names all of them. There are three counts, which differ in the distribution of V:

- the paper's bound: V uniform over 1..I, and at least V ways to reach it;
- the ordered count: V uniform over 1..I, and C(SpD + V - 1, V) ways, the paper's kappa with m = 0;
- the uniform count: the numbers themselves uniform over 0..I-1, from which V follows.

All are given as log10, because the chance for a digest of hundreds of elements is below the smallest float.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from feddig.errors import BudgetError

ONCE = "The digest is released once: a second one with fresh noise costs as much again."
FRESH = "Every release draws noise of its own; sending the same bytes again costs nothing."
PLANNED = "No release was planned by what an earlier one of the same records showed."
THIRDS = 200
"""Steps of a search, each of which leaves two thirds: more than a float has digits for."""
ROUNDING = 1e-12
"""The share by which a cost may exceed its budget: in floating point, three times 0.1 is more than 0.3."""


@dataclass(frozen=True)
class Promise:
    """What one release of a digest promises each record in it."""

    mechanism: str
    adjacency: str
    epsilon: float
    """The record's epsilon, labels included; infinite if nothing is promised."""
    delta: float
    epsilon_if_bound_public: float
    """What epsilon would be if the largest feature were a public bound: the same, where it is one."""
    sensitivity: float
    """How far one record can move a digest's features, in `norm`."""
    norm: str
    noise_scale: float
    """Laplace's b or Gauss's sigma, on each element of a digest."""
    unit: str
    """What sensitivity and noise scale are measured in."""
    assumptions: tuple[str, ...]
    label_epsilon: float = 0.0
    """The part of epsilon that the labels cost."""
    keep_probability: float | None = None
    """How likely a label stays as it is; None where labels get no noise, or the number of classes is not known."""
    rho: float | None = None
    """What the features cost in concentrated differential privacy; None where the mechanism has no such bound."""
    protects: str = "record"
    """What epsilon and delta are promised to: a record, or a group of records."""
    random: str = ""
    """Where mixing and noise are drawn from: system or seeded; empty where that is not known."""
    sentence: str = ""
    """The promise in one sentence."""


@dataclass(frozen=True)
class Composed:
    """What several releases of one record promise together."""

    epsilon: float
    delta: float
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class Budget:
    """The most that a record may be charged; None is no limit."""

    epsilon: float | None = None
    delta: float | None = None

    def within(self, other: "Budget") -> "Budget":
        """Return the smaller limits of both."""

        def smaller(left: float | None, right: float | None) -> float | None:
            return min((limit for limit in (left, right) if limit is not None), default=None)

        return Budget(smaller(self.epsilon, other.epsilon), smaller(self.delta, other.delta))

    def covers(self, cost: Composed) -> bool:
        """Check a cost; an infinite one is covered only where there is no limit at all."""
        limits = ((cost.epsilon, self.epsilon), (cost.delta, self.delta))
        if all(limit is None for _, limit in limits):
            return True
        within = all(limit is None or value <= limit * (1 + ROUNDING) for value, limit in limits)
        return within and math.isfinite(cost.epsilon)


def concentrated_epsilon(rho: float, delta: float) -> float:
    """Return the epsilon that rho-concentrated differential privacy keeps with this delta.

    It is the least of the bounds of Canonne, Kamath and Steinke, "The Discrete Gaussian for Differential Privacy"
    (2020), Proposition 12, of which there is one for each order above 1.
    """

    def bound(log_excess: float) -> float:
        excess = math.exp(log_excess)
        order = 1 + excess
        return order * rho + math.log1p(-1 / order) - (math.log(order) + math.log(delta)) / excess

    # it falls, then rises; every order gives a valid bound, so the search need not be exact
    low, high = -30.0, 700.0
    for _ in range(THIRDS):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (low, right) if bound(left) <= bound(right) else (left, high)
    return max(0.0, bound((low + high) / 2))


def compose(promises: Sequence[Promise], delta: float | None = None) -> Composed:
    """Return what several releases about the same record promise together.

    That is the sum of their costs, or less if all of them have concentrated differential privacy. Then epsilon can be
    had for another delta than the sum of theirs, too.
    """
    assumptions = (
        FRESH,
        *dict.fromkeys(sentence for each in promises for sentence in each.assumptions if sentence != ONCE),
    )
    added = math.fsum(each.epsilon for each in promises)
    total = math.fsum(each.delta for each in promises)
    if is_concentrated(promises):
        target = total if delta is None else delta
        labels = math.fsum(each.label_epsilon for each in promises)
        tighter = concentrated_epsilon(math.fsum(each.rho or 0.0 for each in promises), target) + labels
        # what one release was made for stands, though its noise was rounded up
        if delta is not None or (len(promises) > 1 and tighter < added):
            return Composed(tighter, target, (PLANNED, *assumptions))
    elif delta is not None:
        raise ValueError("delta can be chosen only where all noise is Gaussian")
    return Composed(added, total, assumptions)


def is_concentrated(promises: Sequence[Promise]) -> bool:
    """Tell whether all releases have concentrated differential privacy."""
    return bool(promises) and all(promise.rho is not None for promise in promises)


def charge(promises: Sequence[Promise], budget: Budget) -> Composed:
    """Return what these releases cost a record together, in a form that the budget covers, if there is one.

    Gaussian noise has an epsilon for every delta. The deltas are added up unless the budget does not cover that; then
    the budget's own delta is taken, with the epsilon that belongs to it.
    """
    if len({(promise.adjacency, promise.protects) for promise in promises}) > 1:
        # under replace-one a release that was made for same-label promises nothing, because it tells the labels; nor
        # does one that was made for records promise a group anything
        return Composed(math.inf, math.fsum(promise.delta for promise in promises), ())
    added = compose(promises)
    if is_concentrated(promises) and budget.delta and not budget.covers(added):
        exchanged = compose(promises, delta=budget.delta)
        return exchanged if budget.covers(exchanged) else added
    return added


def check_budget(place: str, spent: Sequence[Promise], coming: Promise, budget: Budget) -> Composed:
    """Return what a record is charged after one more release; refuse that release if the budget does not cover it."""
    after = charge([*spent, coming], budget)
    if budget.covers(after):
        return after
    before = charge(spent, budget)
    raise BudgetError(
        f"{place}: not released, because a record would then be charged {_say_cost(after)} in all and its budget is "
        f"{_say_limits(budget)}; {_say_cost(before)} is spent, {_say_rest(before, budget)} is left; "
        + _remedy(spent, coming)
    )


def _remedy(spent: Sequence[Promise], coming: Promise) -> str:
    if math.isinf(coming.epsilon):
        return (
            f"no budget covers {coming.mechanism}, whose record epsilon is infinite: choose another "
            "privacy.mechanism or leave privacy.budget_epsilon and privacy.budget_delta out"
        )
    if any(math.isinf(promise.epsilon) for promise in spent):
        return "an earlier release promised a record nothing, and no later one can change that"
    if any((promise.adjacency, promise.protects) != (coming.adjacency, coming.protects) for promise in spent):
        return (
            "earlier releases were made under another privacy.adjacency or privacy.unit, and together with them this "
            "one promises a record nothing: keep to one"
        )
    return (
        "send the digest that was released before, which costs nothing (`feddig ledger resend`), lower "
        "privacy.epsilon or privacy.delta, or raise privacy.budget_epsilon or privacy.budget_delta"
    )


def _say_cost(cost: Composed) -> str:
    return f"epsilon {_spell(cost.epsilon)} and delta {_spell(cost.delta)}"


def _say_limits(budget: Budget) -> str:
    named = (("epsilon", budget.epsilon), ("delta", budget.delta))
    return " and ".join(f"{name} {_spell(limit)}" for name, limit in named if limit is not None)


def _say_rest(spent: Composed, budget: Budget) -> str:
    named = (("epsilon", budget.epsilon, spent.epsilon), ("delta", budget.delta, spent.delta))
    return " and ".join(
        f"{name} {_spell(max(0.0, limit - used))}" for name, limit, used in named if limit is not None
    )


def _spell(value: float) -> str:
    return "infinite" if math.isinf(value) else f"{value:.6g}"


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
