"""Choose among the settings that were tried: which meet the user's limits, and which of those is the best.

This module works on plain numbers, without data or networks. That an attack failed proves nothing, and the sentences
about a choice say so.
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
    """The mechanism's epsilon: the paper's, or a record's; None without noise."""

    def __str__(self) -> str:
        noise = "" if self.epsilon is None else f" {self.epsilon:g}"
        return f"SpD {self.samples_per_digest}, {self.mixing}, {self.mechanism}{noise}"


@dataclass(frozen=True)
class RateInterval:
    """An attack's success rate with its interval and chance, as in the file of a setting."""

    share: float
    low: float
    high: float
    chance: float
    trials: int


@dataclass(frozen=True)
class SettingResult:
    """What trying a setting found."""

    setting: Setting
    record_epsilon: float
    """The epsilon that is proved for a record; infinite if none is."""
    record_delta: float
    linked: RateInterval
    """Records linked to their digest."""
    digests_linked: int
    """The number of digests that they were linked to."""
    unmixed: RateInterval | None
    """Digests whose members were all found; None if the search was not run."""
    accuracy: float
    """Test accuracy of a short run, in percent."""

    def as_json(self) -> dict[str, Any]:
        """Return the result for a JSON file, where infinity is a word."""
        return {
            **asdict(self),
            "record_epsilon": self.record_epsilon if math.isfinite(self.record_epsilon) else "inf",
        }


def result_from_json(table: Mapping[str, Any]) -> SettingResult:
    """Read a result back from JSON."""
    unmixed = table["unmixed"]
    return SettingResult(
        setting=Setting(**table["setting"]),
        record_epsilon=float(table["record_epsilon"]),
        record_delta=float(table["record_delta"]),
        linked=RateInterval(**table["linked"]),
        digests_linked=int(table["digests_linked"]),
        unmixed=None if unmixed is None else RateInterval(**unmixed),
        accuracy=float(table["accuracy"]),
    )


@dataclass(frozen=True)
class UserLimits:
    """The limits that the user gave."""

    max_link_rate: float
    max_record_epsilon: float
    min_accuracy: float | None = None

    def excess(self, result: SettingResult) -> dict[str, float]:
        """Return for each missed limit by how much it is missed, as a share of the limit."""
        over = {
            # the high end, so that few trials do not make a setting look better
            LINKED: _over(result.linked.high, self.max_link_rate),
            EPSILON: _over(result.record_epsilon, self.max_record_epsilon),
        }
        if self.min_accuracy is not None:
            over[ACCURACY] = _over(self.min_accuracy, result.accuracy)
        return {limit: value for limit, value in over.items() if value > 0}

    def by_option(self) -> dict[str, float]:
        """Return the limits by the names of their options."""
        limits = {LINKED: self.max_link_rate, EPSILON: self.max_record_epsilon}
        return limits if self.min_accuracy is None else limits | {ACCURACY: self.min_accuracy}


def _over(value: float, limit: float) -> float:
    """Return the share by which a value is above a limit; infinity if the limit is zero."""
    if value <= limit:
        return 0.0
    return value / limit - 1 if limit > 0 else math.inf


@dataclass(frozen=True)
class Choice:
    """The best setting that meets all limits, or the one that is closest to them."""

    result: SettingResult
    misses: Sequence[str]
    """The limits that it misses; empty for a recommendation."""
    met_by: Mapping[str, int]
    """For each limit, how many settings meet it."""
    hardest: str | None
    """The limit that the fewest settings meet, if no setting meets them all."""
    beyond_by_chance: int = 0
    """The number of settings where chance alone links more than is allowed."""

    @property
    def is_met(self) -> bool:
        """Whether this is a recommendation."""
        return not self.misses


def choose_setting(results: Sequence[SettingResult], limits: UserLimits) -> Choice:
    """Choose the most accurate setting that meets all limits, or else the closest; of equals, the more private."""
    excesses = [limits.excess(result) for result in results]
    met_by = {limit: sum(limit not in each for each in excesses) for limit in limits.by_option()}
    by_chance = sum(result.linked.chance > limits.max_link_rate for result in results)
    meeting = [result for result, excess in zip(results, excesses, strict=True) if not excess]
    if meeting:
        return Choice(min(meeting, key=_rank), (), met_by, None, by_chance)

    def distance(at: int) -> tuple[float, ...]:
        return len(excesses[at]), sum(excesses[at].values()), *_rank(results[at])

    closest = min(range(len(results)), key=distance)
    misses = tuple(excesses[closest])
    # of limits that equally few settings meet, name one that the closest misses
    hardest = min(met_by, key=lambda limit: (met_by[limit], limit not in misses))
    return Choice(results[closest], misses, met_by, hardest, by_chance)


def _rank(result: SettingResult) -> tuple[float, ...]:
    return -result.accuracy, result.record_epsilon, result.linked.high, result.setting.samples_per_digest


def explain_choice(choice: Choice, limits: UserLimits, tried: int) -> list[str]:
    """Say which setting is recommended, or that none is and which limit prevents it."""
    setting, figures, values = choice.result.setting, _figures(choice.result), limits.by_option()
    if choice.is_met:
        said = [f"Recommended: {setting}. {figures}"]
    else:
        hardest = choice.hardest
        assert hardest is not None
        meeting = choice.met_by[hardest]
        said = [
            f"None of the {tried} settings meets all limits.",
            f"The hardest limit is {hardest} {values[hardest]:g}: {meeting} of {tried} settings meet it.",
        ]
        if meeting:
            said.append("Each limit is met by some setting, but no setting meets them all.")
        missed = " and ".join(f"{limit} {values[limit]:g}" for limit in choice.misses)
        said.append(f"The closest is {setting}, which misses {missed}. {figures}")
    if choice.beyond_by_chance:
        said.append(
            f"In {choice.beyond_by_chance} of {tried} settings guessing by labels alone links more than "
            f"{limits.max_link_rate:.1%}: there are too few digests, or too few with the same labels, for that limit."
        )
    return said


def _figures(result: SettingResult) -> str:
    delta = f" (delta {result.record_delta:g})" if result.record_delta else ""
    epsilon = "infinite" if math.isinf(result.record_epsilon) else f"{result.record_epsilon:g}{delta}"
    linked = result.linked
    leaks = ": some leak" if linked.low > linked.chance else ""
    return (
        f"Record epsilon {epsilon}; {linked.share:.1%} of records linked to their digest "
        f"({linked.low:.1%} to {linked.high:.1%}, chance {linked.chance:.1%}{leaks}); "
        f"accuracy {result.accuracy:.1f} %."
    )
