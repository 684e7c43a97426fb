"""What releases cost a record together, and whether a budget covers it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from feddig.errors import BudgetError
from feddig.privacy.accounting import Composed, Promise, compose

ROUNDING = 1e-12
"""The share by which a cost may exceed its budget: three times 0.1 is more than 0.3 to a computer."""


@dataclass(frozen=True)
class Budget:
    """The most that a record may be charged; None is no limit."""

    epsilon: float | None = None
    delta: float | None = None

    @property
    def is_set(self) -> bool:
        """Whether there is any limit."""
        return self.epsilon is not None or self.delta is not None

    def covers(self, cost: Composed) -> bool:
        """Check a cost; an infinite one is covered only where there is no limit at all."""
        if not self.is_set:
            return True
        limits = ((cost.epsilon, self.epsilon), (cost.delta, self.delta))
        within = all(limit is None or value <= limit * (1 + ROUNDING) for value, limit in limits)
        return within and math.isfinite(cost.epsilon)


def charge(promises: Sequence[Promise], budget: Budget) -> Composed:
    """Say what these releases cost a record together: what the budget covers, if they can be told so.

    Gaussian noise has an epsilon for every delta. Their deltas are added up unless the budget does not cover that; then
    the budget's own delta is taken, with the epsilon that belongs to it.
    """
    if len({promise.adjacency for promise in promises}) > 1:
        # under replace-one a release that was made for same-label promises nothing, for it tells the labels
        return Composed(math.inf, math.fsum(promise.delta for promise in promises), ())
    added = compose(promises)
    gaussian = all(promise.mechanism == "discrete-gaussian" for promise in promises)
    if promises and gaussian and budget.delta and not budget.covers(added):
        exchanged = compose(promises, delta=budget.delta)
        return exchanged if budget.covers(exchanged) else added
    return added


def check_budget(place: str, spent: Sequence[Promise], coming: Promise, budget: Budget) -> Composed:
    """Give what a record is charged after one more release; refuse that release if the budget does not cover it."""
    after = charge([*spent, coming], budget)
    if budget.covers(after):
        return after
    before = charge(spent, budget)
    raise BudgetError(
        f"{place}: not released, because a record would then be charged {_said(after)} in all and its budget is "
        f"{_limits(budget)}; {_said(before)} is spent, {_left(before, budget)} is left; "
        + _remedy(spent, coming)
    )


def _remedy(spent: Sequence[Promise], coming: Promise) -> str:
    if math.isinf(coming.epsilon):
        return (
            f"no budget covers {coming.mechanism}, whose record epsilon is infinite: choose another "
            "privacy.mechanism or leave privacy.budget_epsilon and privacy.budget_delta out"
        )
    if any(math.isinf(promise.epsilon) for promise in spent):
        return "an earlier release promised a record nothing, and no later one can mend that"
    if any(promise.adjacency != coming.adjacency for promise in spent):
        return (
            "earlier releases were made under another privacy.adjacency, and together with them this one promises a "
            "record nothing: keep to one adjacency"
        )
    return (
        "send the digest that was released before, which costs nothing (`feddig ledger resend`), lower "
        "privacy.epsilon or privacy.delta, or raise privacy.budget_epsilon or privacy.budget_delta"
    )


def _said(cost: Composed) -> str:
    return f"epsilon {_number(cost.epsilon)} and delta {_number(cost.delta)}"


def _limits(budget: Budget) -> str:
    named = (("epsilon", budget.epsilon), ("delta", budget.delta))
    return " and ".join(f"{name} {_number(limit)}" for name, limit in named if limit is not None)


def _left(spent: Composed, budget: Budget) -> str:
    named = (("epsilon", budget.epsilon, spent.epsilon), ("delta", budget.delta, spent.delta))
    return " and ".join(
        f"{name} {_number(max(0.0, limit - used))}" for name, limit, used in named if limit is not None
    )


def _number(value: float) -> str:
    return "infinite" if math.isinf(value) else f"{value:.6g}"
