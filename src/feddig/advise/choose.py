"""Choosing among settings that were tried: which of them meet a user's limits, and which is the best of those.

Everything here is plain numbers: no data, no networks. That an attack failed proves nothing, so what is said about a
choice says so too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

LINKED, EPSILON, ACCURACY = "--max-link-rate", "--max-record-epsilon", "--min-accuracy"


@dataclass(frozen=True)
class Setting:
    """One setting of the grid."""

    samples_per_digest: int
    mixing: str
    mechanism: str
    epsilon: float | None = None
    """What the mechanism is told: the paper's epsilon, or a record's; None without noise."""

    def __str__(self) -> str:
        noise = "" if self.epsilon is None else f" {self.epsilon:g}"
        return f"SpD {self.samples_per_digest}, {self.mixing}, {self.mechanism}{noise}"


@dataclass(frozen=True)
class Rate:
    """How often an attack was right, with its interval and what chance would give."""

    share: float
    low: float
    high: float
    chance: float
    trials: int


@dataclass(frozen=True)
class Row:
    """What trying a setting found."""

    setting: Setting
    record_epsilon: float
    """What a record is really promised, by accounting; infinite if nothing."""
    record_delta: float
    linked: Rate
    """Records linked to their digest."""
    digests_linked: int
    """Among how many digests."""
    unmixed: Rate | None
    """Digests unmixed whole; None where the search is not made."""
    accuracy: float
    """Test accuracy in percent, of a short run."""

    def as_json(self) -> dict[str, Any]:
        """Spell it for a file; infinity is a word."""
        return {
            **asdict(self),
            "record_epsilon": self.record_epsilon if math.isfinite(self.record_epsilon) else "inf",
        }


@dataclass(frozen=True)
class Wanted:
    """A user's limits."""

    max_link_rate: float
    max_record_epsilon: float
    min_accuracy: float | None = None

    def excess(self, row: Row) -> dict[str, float]:
        """Tell by how much, as a share of the limit, a row misses each limit that it misses."""
        over = {
            # the high end: few trials are no excuse
            LINKED: _over(row.linked.high, self.max_link_rate),
            EPSILON: _over(row.record_epsilon, self.max_record_epsilon),
        }
        if self.min_accuracy is not None:
            over[ACCURACY] = _over(self.min_accuracy, row.accuracy)
        return {limit: value for limit, value in over.items() if value > 0}

    def values(self) -> dict[str, float]:
        """Give the limits by their options' names."""
        limits = {LINKED: self.max_link_rate, EPSILON: self.max_record_epsilon}
        return limits if self.min_accuracy is None else limits | {ACCURACY: self.min_accuracy}


@dataclass(frozen=True)
class Choice:
    """The best row that meets all limits, or the one that is closest to them."""

    row: Row
    misses: Sequence[str]
    """The limits that it misses: empty if it is a recommendation."""
    met_by: Mapping[str, int]
    """For each limit, how many rows meet it."""
    hardest: str | None
    """The limit that the fewest rows meet, if no row meets them all."""
    beyond_by_chance: int = 0
    """In how many rows chance alone links more than is allowed."""

    @property
    def is_met(self) -> bool:
        """Whether this is a recommendation."""
        return not self.misses


def read_row(table: Mapping[str, Any]) -> Row:
    """Read a row back from JSON."""
    unmixed = table["unmixed"]
    return Row(
        setting=Setting(**table["setting"]),
        record_epsilon=float(table["record_epsilon"]),
        record_delta=float(table["record_delta"]),
        linked=Rate(**table["linked"]),
        digests_linked=int(table["digests_linked"]),
        unmixed=None if unmixed is None else Rate(**unmixed),
        accuracy=float(table["accuracy"]),
    )


def choose(rows: Sequence[Row], wanted: Wanted) -> Choice:
    """Choose the most accurate row that meets all limits, the more private one of equals; else the closest."""
    excesses = [wanted.excess(row) for row in rows]
    met_by = {limit: sum(limit not in each for each in excesses) for limit in wanted.values()}
    by_chance = sum(row.linked.chance > wanted.max_link_rate for row in rows)
    meeting = [row for row, excess in zip(rows, excesses, strict=True) if not excess]
    if meeting:
        return Choice(min(meeting, key=_rank), (), met_by, None, by_chance)
    place = min(range(len(rows)), key=lambda at: (*_distance(excesses[at]), _rank(rows[at])))
    misses = tuple(excesses[place])
    # of limits that equally few rows meet, one that stands in the way of the closest
    hardest = min(met_by, key=lambda limit: (met_by[limit], limit not in misses))
    return Choice(rows[place], misses, met_by, hardest, by_chance)


def explain(choice: Choice, wanted: Wanted, tried: int) -> list[str]:
    """Say in plain sentences what is recommended, or that nothing is and what is in the way."""
    row, limits = choice.row, wanted.values()
    if choice.is_met:
        return [f"Recommended: {row.setting}. {_figures(row)}", *_blame_chance(choice, wanted, tried)]
    hardest = choice.hardest
    assert hardest is not None
    said = [
        f"None of the {tried} settings meets all limits.",
        f"The hardest limit is {hardest} {limits[hardest]:g}: {choice.met_by[hardest]} of {tried} settings meet it.",
    ]
    if choice.met_by[hardest]:
        said.append("Each limit by itself is met by some setting, but all of them together by none.")
    missed = " and ".join(f"{limit} {limits[limit]:g}" for limit in choice.misses)
    said.append(f"The closest is {row.setting}, which misses {missed}. {_figures(row)}")
    return [*said, *_blame_chance(choice, wanted, tried)]


def _blame_chance(choice: Choice, wanted: Wanted, tried: int) -> list[str]:
    """Say where no noise would help: few digests, or labels that single few of them out."""
    if not choice.beyond_by_chance:
        return []
    few = "there are too few digests, or too few with the same labels, for that limit"
    guessed = f"a guess by labels alone links more than {wanted.max_link_rate:.1%}"
    return [f"In {choice.beyond_by_chance} of {tried} settings {guessed}: {few}."]


def _over(value: float, limit: float) -> float:
    """Give by which share a value is above a limit; infinite where the limit is zero."""
    if value <= limit:
        return 0.0
    return value / limit - 1 if limit > 0 else math.inf


def _rank(row: Row) -> tuple[float, ...]:
    return -row.accuracy, row.record_epsilon, row.linked.high, row.setting.samples_per_digest


def _distance(excess: Mapping[str, float]) -> tuple[int, float]:
    return len(excess), sum(excess.values())


def _figures(row: Row) -> str:
    delta = f" (delta {row.record_delta:g})" if row.record_delta else ""
    epsilon = "infinite" if math.isinf(row.record_epsilon) else f"{row.record_epsilon:g}{delta}"
    leaks = ": some leak" if row.linked.low > row.linked.chance else ""
    return (
        f"Record epsilon {epsilon}; {row.linked.share:.1%} of records linked to their digest "
        f"({row.linked.low:.1%} to {row.linked.high:.1%}, chance {row.linked.chance:.1%}{leaks}); "
        f"accuracy {row.accuracy:.1f} %."
    )
