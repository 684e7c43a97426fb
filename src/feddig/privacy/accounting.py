"""What releases promise a record, what they cost it together, and whether a budget covers that.

A promise is worth no more than its assumptions, so each promise carries them as sentences.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
