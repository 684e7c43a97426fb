"""Limits, attack budget and findings of an audit, and how findings become verdicts.

All findings are judged together, and thresholds are corrected for the number of tests.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from feddig.attacks.statistics import Estimate, SuccessRate, p_value_of_mean, p_value_of_rate
from feddig.errors import SettingError
from feddig.experiment.fields import read_fields
from feddig.files import read_toml
from feddig.settings import setting

GREEN, AMBER, RED, NOT_RUN, PUBLIC = "green", "amber", "red", "not run", "public"
VERDICTS = (PUBLIC, GREEN, NOT_RUN, AMBER, RED)
"""From harmless to harmful. `public` is for what the adjacency declares public; it decides nothing."""
MEANING = (
    "A pass means that these attacks failed, never that the digests are private: another attack may succeed."
)


@dataclass(frozen=True)
class Limits:
    """From where on a verdict is amber or red.

    Where chance is known, a check is amber as soon as a figure is beyond chance. It is red if the low end of the
    figure's interval is also more than the limit above chance, and above non-members of the same class.
    """

    interval_level: float = setting(0.95, "level of intervals", above=0, below=1)
    family_level: float = setting(
        0.99,
        "probability that no figure is called beyond chance by accident, and level of the canaries' bound",
        above=0,
        below=1,
    )
    record_epsilon_amber: float = setting(1.0, "record epsilon above this is amber", least=0)
    record_epsilon_red: float = setting(10.0, "record epsilon above this is red", least=0)
    record_delta_amber: float = setting(1e-5, "record delta above this is amber", least=0, below=1)
    record_delta_red: float = setting(
        1e-3, "record delta above this, or above 1 over the number of records, is red", least=0, below=1
    )
    seeded_is_red: bool = setting(True, "noise from a seed is red: anyone with the seed can remove it")
    canary_epsilon_amber: float = setting(1.0, "epsilon proved by canaries above this is amber", least=0)
    canary_epsilon_red: float = setting(
        3.0,
        "epsilon proved by canaries above this is red where none is claimed; above a claim it always is",
        least=0,
    )
    membership_auc_red: float = setting(0.1, "area under a membership curve above 0.5", least=0, most=0.5)
    true_positives_1_red: float = setting(
        0.04, "members found at 1 % false positives, above 1 %", least=0, most=1
    )
    true_positives_01_red: float = setting(
        0.01, "members found at 0.1 % false positives, above 0.1 %", least=0, most=1
    )
    linked_red: float = setting(0.05, "records linked to their digest, above chance", least=0, most=1)
    unmixed_digests_red: float = setting(
        0.01, "digests whose members were all found, above chance", least=0, most=1
    )
    unmixed_members_red: float = setting(
        0.05, "single members found by unmixing, above chance", least=0, most=1
    )
    inversion_red: float = setting(
        0.25,
        "digests whose recovered image is closer to a member than to non-members, above 0.5",
        least=0,
        most=0.5,
    )
    label_records_red: float = setting(
        0.5, "records whose class the labels reveal, above chance", least=0, most=1
    )


def read_limits(path: Path | None) -> Limits:
    """Read limits from a TOML file; the others keep their defaults."""
    if path is None:
        return Limits()
    table = read_toml(path, "no such file; give another in --thresholds")
    try:
        return Limits(**read_fields(Limits, table))
    except SettingError as error:
        raise SettingError(f"{path}: {error}") from None


@dataclass(frozen=True)
class AttackBudget:
    """The largest sizes of the attacks; the report states what was really used."""

    digests: int = 400
    """Digests with known members that are attacked."""
    pool: int = 10_000
    """Candidates for unmixing, including the members."""
    records: int = 2000
    """Members, and non-members, that are tested for membership in the file."""
    canaries: int = 250_000
    """Planted records; fewer are used if they can refute the claimed epsilon."""
    public: int = 10_000
    """Public images that attackers learn from."""
    inverted: int = 100
    """Digests that are turned into images."""
    training_steps: int = 1000
    """Of the decoder, and of each denoiser."""
    changes: int = 300
    """Steps of an image that is optimised."""
    unmixing_work: int = 25_600
    """Digests times SpD squared, to which the time of the search is about proportional."""
    largest_unmixed: int = 64
    """The largest SpD for which the search is run at all."""

    def quick(self) -> "AttackBudget":
        """Return sizes for two minutes on two cores."""
        return AttackBudget(
            digests=min(self.digests, 150),
            pool=min(self.pool, 3000),
            records=min(self.records, 500),
            canaries=self.canaries,
            public=min(self.public, 3000),
            inverted=min(self.inverted, 32),
            training_steps=min(self.training_steps, 250),
            changes=min(self.changes, 120),
            unmixing_work=min(self.unmixing_work, 2400),
            largest_unmixed=min(self.largest_unmixed, 16),
        )


@dataclass(frozen=True)
class Figure:
    """One number, and what it is compared with."""

    name: str
    value: float
    interval: tuple[float, float] | None = None
    chance: float | None = None
    """Its value without any leak: by guessing, or for non-members of the same class."""
    p_value: float | None = None
    """The probability that chance does as well; None if the figure is not tested."""
    red_above: float | None = None
    """How far above chance and baseline it is red."""
    hits: int | None = None
    trials: int | None = None
    baseline: float | None = None
    """The same figure measured for non-members of the same class, where chance is a calculation."""
    is_share: bool = False
    """Whether it is shown in percent."""

    def is_beyond(self, threshold: float) -> bool:
        """Return whether chance is ruled out."""
        return self.p_value is not None and self.p_value < threshold

    def verdict(self, threshold: float) -> str:
        """Return the verdict: once chance is ruled out, it depends on the low end of the interval."""
        if not self.is_beyond(threshold):
            return GREEN
        assert self.interval is not None
        assert self.chance is not None
        excess = self.interval[0] - max(self.chance, self.baseline or 0.0)
        return RED if self.red_above is not None and excess > self.red_above else AMBER


def figure_of_rate(name: str, rate: SuccessRate, limits: Limits, red_above: float | None = None) -> Figure:
    """Return the figure of a share, with its exact interval and binomial p-value."""
    return Figure(
        name,
        rate.share,
        rate.interval(limits.interval_level),
        rate.chance,
        p_value_of_rate(rate),
        red_above,
        rate.hits,
        rate.trials,
        is_share=True,
    )


def figure_of_mean(
    name: str, estimate: Estimate, limits: Limits, red_above: float | None = None, *, tested: bool = True
) -> Figure:
    """Return the figure of a mean with its interval; do not test it if its chance level is an estimate too."""
    return Figure(
        name,
        estimate.value,
        estimate.interval(limits.interval_level),
        estimate.chance,
        p_value_of_mean(estimate) if tested else None,
        red_above,
    )


@dataclass(frozen=True)
class Finding:
    """What one check found, before it is judged."""

    name: str
    title: str
    sentence: str
    """In plain words, for the person who signs."""
    figures: Sequence[Figure] = ()
    minimum: str = GREEN
    """The verdict cannot be milder than this, whatever the figures say."""
    details: Mapping[str, Any] = field(default_factory=dict)
    limits: Sequence[str] = ()
    """The names of the limits that decided."""
    is_declared: bool = False
    """Whether the adjacency declares public what this check finds: its verdict is then `public`."""


def judge(findings: Sequence[Finding], limits: Limits) -> list[dict[str, Any]]:
    """Return every finding with its verdict, by Bonferroni's threshold over all one-sided tests of the audit."""
    threshold = family_threshold(findings, limits)
    return [_judge(number, finding, threshold, limits) for number, finding in enumerate(findings, 1)]


def _judge(number: int, finding: Finding, threshold: float, limits: Limits) -> dict[str, Any]:
    verdict = PUBLIC if finding.is_declared else finding.minimum
    if verdict not in (NOT_RUN, PUBLIC):
        verdict = worst_verdict([verdict, *(figure.verdict(threshold) for figure in finding.figures)])
    return {
        "number": number,
        "name": finding.name,
        "title": finding.title,
        "light": verdict,
        "sentence": finding.sentence,
        "beyond_chance": [figure.name for figure in finding.figures if figure.is_beyond(threshold)],
        "figures": [finite(vars(figure)) for figure in finding.figures],
        "limits": {name: getattr(limits, name) for name in finding.limits},
        "details": finite(finding.details),
    }


def worst_verdict(verdicts: Sequence[str]) -> str:
    """Return the most harmful of several verdicts."""
    return max(verdicts, key=VERDICTS.index, default=NOT_RUN)


def overall_verdict(verdicts: Sequence[str]) -> str:
    """Return the verdict of an audit: the worst one; what was not run is never green."""
    worst = worst_verdict(verdicts)
    return AMBER if worst == NOT_RUN else worst


def family_threshold(findings: Sequence[Finding], limits: Limits) -> float:
    """Return the p-value below which a single figure counts as beyond chance."""
    return (1 - limits.family_level) / max(1, count_tests(findings))


def count_tests(findings: Sequence[Finding]) -> int:
    """Count the one-sided tests."""
    return sum(figure.p_value is not None for finding in findings for figure in finding.figures)


def percent(share: float | None, digits: int = 1) -> str:
    """Return a share in percent, for a sentence."""
    return "unknown" if share is None else f"{100 * share:.{digits}f} %"


def finite(value: Any) -> Any:
    """Replace infinity and NaN, which JSON lacks, by words, in depth, and round numbers to ten digits."""
    if isinstance(value, float):
        if math.isfinite(value):
            return float(f"{value:.10g}")
        return "inf" if value > 0 else "-inf" if value < 0 else "nan"
    if isinstance(value, Mapping):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    return value
