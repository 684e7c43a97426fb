"""What a check finds, and how findings become lights: judged together, so that many tests do not cry wolf."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from feddig.attacks.intervals import Estimate, Rate
from feddig.attacks.significance import chance_of_mean, chance_of_rate
from feddig.audit.limits import Limits

GREEN, AMBER, RED, NOT_RUN = "green", "amber", "red", "not run"
LIGHTS = (NOT_RUN, GREEN, AMBER, RED)
"""From harmless to harmful."""
MEANING = (
    "A pass means that these attacks failed, never that the digests are private: another attack may not fail."
)


@dataclass(frozen=True)
class Figure:
    """One number with what it is held against."""

    name: str
    value: float
    interval: tuple[float, float] | None = None
    chance: float | None = None
    """What it would be without any leak: by guessing, or for strangers of the same class."""
    p_value: float | None = None
    """How likely chance does as well; None where that is no question."""
    red_above: float | None = None
    hits: int | None = None
    trials: int | None = None

    def is_beyond(self, threshold: float) -> bool:
        """Tell whether chance is ruled out."""
        return self.p_value is not None and self.p_value < threshold

    def light(self, threshold: float) -> str:
        """Give the colour: of the low end of the interval, once chance is ruled out."""
        if not self.is_beyond(threshold):
            return GREEN
        assert self.interval is not None
        return RED if self.red_above is not None and self.interval[0] > self.red_above else AMBER


@dataclass(frozen=True)
class Finding:
    """What one check found, before it is judged."""

    name: str
    title: str
    sentence: str
    """In plain words, for somebody who signs."""
    figures: Sequence[Figure] = ()
    least: str = GREEN
    """The colour that it has at least, whatever the figures say."""
    details: Mapping[str, Any] = field(default_factory=dict)
    limits: Sequence[str] = ()
    """The names of the limits that decided."""


def figure_of_rate(name: str, rate: Rate, limits: Limits, red_above: float | None = None) -> Figure:
    """Write a share down with its exact interval and its binomial tail."""
    return Figure(
        name,
        rate.share,
        rate.interval(limits.interval_level),
        rate.chance,
        chance_of_rate(rate),
        red_above,
        rate.hits,
        rate.trials,
    )


def figure_of_mean(
    name: str, estimate: Estimate, limits: Limits, red_above: float | None = None, *, tested: bool = True
) -> Figure:
    """Write a mean down with its interval; tested only where its chance level has no error of its own."""
    return Figure(
        name,
        estimate.value,
        estimate.interval(limits.interval_level),
        estimate.chance,
        chance_of_mean(estimate) if tested else None,
        red_above,
    )


def worst(lights: Sequence[str]) -> str:
    """Give the most harmful of several colours."""
    return max(lights, key=LIGHTS.index, default=NOT_RUN)


def judge(findings: Sequence[Finding], limits: Limits) -> list[dict[str, Any]]:
    """Give every finding its light: Bonferroni's threshold over all one-sided tests of the audit."""
    threshold = family_threshold(findings, limits)
    return [_judged(number, finding, threshold, limits) for number, finding in enumerate(findings, 1)]


def family_threshold(findings: Sequence[Finding], limits: Limits) -> float:
    """Give the p-value below which a single test counts as beyond chance."""
    return (1 - limits.family_level) / max(1, count_tests(findings))


def count_tests(findings: Sequence[Finding]) -> int:
    """Count the one-sided tests."""
    return sum(figure.p_value is not None for finding in findings for figure in finding.figures)


def _judged(number: int, finding: Finding, threshold: float, limits: Limits) -> dict[str, Any]:
    beyond = [figure.name for figure in finding.figures if figure.is_beyond(threshold)]
    light = finding.least
    if light != NOT_RUN:
        light = worst([light, *(figure.light(threshold) for figure in finding.figures)])
    return {
        "number": number,
        "name": finding.name,
        "title": finding.title,
        "light": light,
        "sentence": finding.sentence,
        "beyond_chance": beyond,
        "figures": [_as_json(figure) for figure in finding.figures],
        "limits": {name: getattr(limits, name) for name in finding.limits},
        "details": finite(dict(finding.details)),
    }


def _as_json(figure: Figure) -> dict[str, Any]:
    spelled: dict[str, Any] = finite(dict(vars(figure)))
    return spelled


def finite(value: Any) -> Any:
    """Spell what JSON has no number for as words, in depth; numbers keep ten digits, which is more than they mean."""
    if isinstance(value, float):
        if math.isfinite(value):
            return float(f"{value:.10g}")
        return "inf" if value > 0 else "-inf" if value < 0 else "nan"
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
