"""The limits that decide an audit's lights: written down in every report, and settable by a TOML file.

How much work an audit may take.

What a check finds, and how findings become lights: judged together, so that many tests do not cry wolf.
"""

import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from feddig.attacks.statistics import Estimate, Rate, chance_of_mean, chance_of_rate
from feddig.errors import SettingError, nearest
from feddig.settings import setting


@dataclass(frozen=True)
class Limits:
    """From where on something is amber or red.

    Where chance is known, a check is amber as soon as a figure is beyond chance, and red if besides the low end of its
    interval lies above the limit.
    """

    interval_level: float = setting(0.95, "level of intervals and of the canaries' bound", above=0, below=1)
    family_level: float = setting(
        0.99, "how sure it must be that nothing is called beyond chance by accident", above=0, below=1
    )
    record_epsilon_amber: float = setting(1.0, "record epsilon above this is amber", least=0)
    record_epsilon_red: float = setting(10.0, "record epsilon above this is red", least=0)
    seeded_is_red: bool = setting(True, "noise from a seed is red: whoever knows the seed takes it off")
    canary_epsilon_amber: float = setting(1.0, "epsilon proved by canaries above this is amber", least=0)
    canary_epsilon_red: float = setting(
        3.0,
        "epsilon proved by canaries above this is red where none is claimed; above a claim it always is",
        least=0,
    )
    membership_auc_red: float = setting(0.6, "area under a membership curve", least=0.5, most=1)
    true_positives_1_red: float = setting(0.05, "members found at 1 % false positives", least=0, most=1)
    true_positives_01_red: float = setting(0.01, "members found at 0.1 % false positives", least=0, most=1)
    linked_red: float = setting(0.05, "records linked to their digest", least=0, most=1)
    unmixed_digests_red: float = setting(0.01, "digests unmixed whole", least=0, most=1)
    unmixed_members_red: float = setting(0.05, "single members found by unmixing", least=0, most=1)
    inversion_red: float = setting(
        0.75, "digests whose recovered image is liker to a member than to strangers", least=0.5, most=1
    )
    label_records_red: float = setting(0.9, "records whose class the labels give away", least=0, most=1)


def read_limits(path: Path | None) -> Limits:
    """Read limits from a TOML file; those that it leaves out keep their defaults."""
    if path is None:
        return Limits()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"--thresholds: {path} cannot be read as TOML ({error})") from None
    known = {each.name: each for each in fields(Limits)}
    for key, value in table.items():
        if key not in known:
            raise SettingError(f"{path}: {key}: no such limit; {nearest(key, known)}")
        _check(path, key, value, known[key].metadata, is_flag=isinstance(known[key].default, bool))
    return replace(Limits(), **table)


def _check(path: Path, key: str, value: object, limits: Mapping[str, Any], *, is_flag: bool) -> None:
    if is_flag:
        if not isinstance(value, bool):
            raise SettingError(f"{path}: {key}: must be true or false, not {value!r}")
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingError(f"{path}: {key}: must be a number, not {value!r}")
    # written so that NaN, which compares false with everything, is refused
    if not (limits["least"] <= value <= limits["most"] and limits["above"] < value < limits["below"]):
        raise SettingError(f"{path}: {key}: {value} is out of range; it means: {limits['means']}")


@dataclass(frozen=True)
class Effort:
    """Sizes that an audit is capped at; what was really used stands in its report."""

    digests: int = 400
    """Digests with known members that are attacked."""
    pool: int = 10_000
    """Candidates for unmixing, members among them."""
    records: int = 2000
    """Members, and non-members, whose membership in the file is asked for."""
    canaries: int = 1000
    public: int = 10_000
    """Public images that attackers learn from."""
    inverted: int = 100
    """Digests that are turned into images."""
    training_steps: int = 1000
    """Of the pseudo-inverse; a denoiser gets as many."""
    changes: int = 300
    """Of an optimised image."""
    unmixing_work: int = 25_600
    """Digests times SpD squared, at most, because the search takes about that long."""
    largest_unmixed: int = 64
    """SpD up to which it is made at all."""

    def quick(self) -> "Effort":
        """Give sizes for two minutes on two cores."""
        return Effort(
            digests=min(self.digests, 150),
            pool=min(self.pool, 3000),
            records=min(self.records, 500),
            canaries=min(self.canaries, 500),
            public=min(self.public, 3000),
            inverted=min(self.inverted, 32),
            training_steps=min(self.training_steps, 250),
            changes=min(self.changes, 120),
            unmixing_work=min(self.unmixing_work, 2400),
            largest_unmixed=min(self.largest_unmixed, 16),
        )


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
