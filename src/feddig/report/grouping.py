"""Group runs into charts and curves, and describe each group in a few sentences and key figures."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from feddig.core.absence import Absence
from feddig.report.measures import MeanAndDeviation, format_mean, mean_and_deviation
from feddig.report.read_run import SEEDS, WITHOUT_EFFECT, Run, differing_keys, flatten
from feddig.report.run_files import seconds_in

IN_TITLES = ("algorithm.name", "absence.scenario", "absence.file", "data.name")
"""Settings that the names of curves and charts already show."""
MAX_EVENTS = 6
"""Up to this many departures are listed one by one; more are counted."""


@dataclass(frozen=True)
class Curve:
    """An algorithm in a scenario, over its seeds."""

    name: str
    runs: Sequence[Run]

    @property
    def algorithm(self) -> str:
        """The algorithm's name, without the settings that distinguish this curve from others."""
        return self.runs[0].algorithm

    @property
    def seeds(self) -> list[int]:
        """The seeds it is averaged over."""
        return [run.seed for run in self.runs]

    def values(self, measure: str) -> dict[int, float]:
        """Return a measure by seed, for the seeds that reached it."""
        found = {run.seed: run.measures.get(measure) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None}

    @property
    def before_the_leave(self) -> dict[int, float]:
        """The accuracy before the first leave, by seed; runs of older versions have only the last round's."""
        return {**self.values("frozen_own"), **self.values("frozen_own_mean_10")}

    @property
    def moderator_seconds(self) -> list[float]:
        """What the moderator itself spent on recall models, aggregation and joint or expert updates, by run."""
        parts = ("seconds_recall", "seconds_joint")
        return [
            math.fsum(seconds_in(row, part) for row in run.rows for part in parts)
            for run in self.runs
            if any(part in row for row in run.rows for part in parts)
        ]

    @cached_property
    def by_round(self) -> list[list[float]]:
        """The accuracies of each round, of all seeds that have it."""
        rounds = max((len(run.accuracies) for run in self.runs), default=0)
        columns = ([run.accuracies[r] for run in self.runs if r < len(run.accuracies)] for r in range(rounds))
        return [[value for value in column if value is not None] for column in columns]


@dataclass(frozen=True)
class Group:
    """The curves that share a chart: one scenario on one data set."""

    title: str
    curves: Sequence[Curve]

    @property
    def main(self) -> Curve:
        """The curve that the sentences describe: that of FedDig+ or FedDig, if there is one."""
        return self.curves[0]

    @property
    def finished(self) -> bool:
        """Whether all its runs are finished."""
        return all(run.finished for curve in self.curves for run in curve.runs)

    def find(self, *algorithms: str) -> Curve | None:
        """Return the curve of the first of these algorithms that has one."""
        for name in algorithms:
            for curve in self.curves:
                if curve.algorithm == name:
                    return curve
        return None


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Sort runs into charts and curves; runs that differ in more than their seed are not averaged."""
    has_several = len({run.setting("data.name") for run in runs}) > 1
    groups = []
    for scenario, data in dict.fromkeys((run.scenario, run.setting("data.name")) for run in runs):
        members = [run for run in runs if (run.scenario, run.setting("data.name")) == (scenario, data)]
        names = _curve_names(members)
        curves = [
            Curve(name, [run for run, other in zip(members, names, strict=True) if other == name])
            for name in dict.fromkeys(names)
        ]
        curves.sort(key=lambda curve: (_rank(curve.algorithm), _natural(curve.name)))
        groups.append(Group(f"{scenario}, {data}" if has_several else scenario, curves))
    return groups


def all_runs(groups: Sequence[Group]) -> list[Run]:
    """Return the runs of all groups, in the order of the page."""
    return [run for group in groups for curve in group.curves for run in curve.runs]


def _rank(algorithm: str) -> int:
    """Return where a curve comes: FedDig+ first, then FedDig, others, and last the frozen control."""
    order = ("feddig-plus", "feddig", "", "frozen")
    return next(
        order.index(start) for start in ("feddig-plus", "feddig", "frozen", "") if algorithm.startswith(start)
    )


def _follows_from_mechanism(
    key: str, keys: Sequence[str], own: Mapping[str, Any], others: Sequence[Mapping[str, Any]]
) -> bool:
    """Return whether a setting of the noise is the same in all runs with this mechanism, which has been named."""
    mechanism = "privacy.mechanism"
    if mechanism not in keys or key == mechanism or not key.startswith("privacy."):
        return False
    return all(each.get(key) == own.get(key) for each in others if each.get(mechanism) == own.get(mechanism))


def _natural(name: str) -> list[tuple[float, str]]:
    """Return a key that sorts numbers within names by their value: epsilon 4.0 before epsilon 32.0."""
    parts = re.split(r"(\d+(?:\.\d+)?)", name)
    return [(float(part), "") if place % 2 else (-1.0, part) for place, part in enumerate(parts)]


def _curve_names(runs: Sequence[Run]) -> list[str]:
    """Name runs by their algorithm and the settings in which they differ from other runs of it."""
    settings = [flatten(run.settings) for run in runs]
    names = []
    for run, own in zip(runs, settings, strict=True):
        same_algorithm = [
            each
            for other, each in zip(runs, settings, strict=True)
            if other.algorithm == run.algorithm and each
        ]
        keys = [
            key for key in differing_keys(same_algorithm) if key not in (*SEEDS, *IN_TITLES, *WITHOUT_EFFECT)
        ]
        keys = [key for key in keys if not _follows_from_mechanism(key, keys, own, same_algorithm)]
        short = [key.split(".")[-1] for key in keys]
        suffix = "".join(
            f", {name if short.count(name) == 1 else key} {_format_setting(own.get(key))}"
            for key, name in zip(keys, short, strict=True)
        )
        names.append(run.algorithm + suffix)
    return names


def _format_setting(value: Any) -> str:
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class KeyFigure:
    """One number shown in large type, with what it is and what it means."""

    title: str
    value: str
    meaning: str


@dataclass(frozen=True)
class Headline:
    """The title, sentences and key figures of a group."""

    title: str
    sentences: Sequence[str]
    figures: Sequence[KeyFigure]


@dataclass(frozen=True)
class _Baseline:
    """What the main curve is compared with."""

    name: str
    meaning: str
    finals: dict[int, float]
    """Final accuracy by seed."""

    def lead(self, curve: Curve) -> MeanAndDeviation | None:
        """Return how far a curve ended above this baseline, over the seeds that both have."""
        own = curve.values("final")
        return mean_and_deviation([own[seed] - self.finals[seed] for seed in own.keys() & self.finals.keys()])


def write_headline(group: Group) -> Headline:
    """Describe what happened in a scenario to its main curve."""
    curve, run = group.main, group.main.runs[0]
    final = mean_and_deviation(curve.values("final").values())
    sentences = _describe_departures(run)
    if final is None:
        return Headline("No round is finished yet", sentences, [])
    if len({_availability(each) for each in curve.runs}) > 1:
        sentences[0] = f"In seed {run.seed} {sentences[0][:1].lower()}{sentences[0][1:]}"
    accuracy = f"{format_mean(final)}\u00a0%"
    seeds = "" if len(curve.runs) == 1 else f" (mean of {len(curve.runs)} seeds)"
    baselines = _baselines(group)
    comparisons = [text for each in baselines if (text := _compare(curve, each))]
    sentences.append(
        f"{curve.name} {'ended at' if group.finished else 'is so far at'} {accuracy}{seeds}"
        f"{': ' if comparisons else ''}{_enumerate(comparisons)}."
    )
    figures = [
        KeyFigure(
            "at the end" if group.finished else "so far",
            accuracy,
            f"{curve.name}, {run.measured_on} accuracy{seeds}",
        )
    ]
    for each in baselines:
        lead = each.lead(curve)
        value = "not comparable" if lead is None else f"{format_mean(lead, signed=True)} points"
        figures.append(KeyFigure(f"against {each.name}", value, each.meaning))
    away = mean_and_deviation(curve.values("absence_mean").values())
    if away is not None:
        figures.append(
            KeyFigure("while silos were away", f"{format_mean(away)}\u00a0%", "mean over those rounds")
        )
    return Headline(_title(final, curve), sentences, figures)


def _availability(run: Run) -> bytes:
    """Return who was present when, to see whether seeds differ in it."""
    return b"" if run.absence is None else run.absence.present.tobytes()


def _title(final: MeanAndDeviation, curve: Curve) -> str:
    """Return the accuracy with what happened to the silos, and that of its own model before the first leave."""
    before = mean_and_deviation(curve.before_the_leave.values())
    own = "" if before is None else f", {before[0]:.1f}\u00a0% before the first leave"
    return f"{final[0]:.1f}\u00a0% {_situation(curve.runs)}{own}"


def _situation(runs: Sequence[Run]) -> str:
    run = runs[0]
    if not run.finished:
        return f"after {len(run.rows)} of {run.planned_rounds} rounds"
    away_counts = {each.absence is not None and int(each.absence.away[:, -1].sum()) for each in runs}
    if run.absence is None or len(away_counts) > 1:
        return "at the end"
    silos, away = run.absence.silos, int(run.absence.away[:, -1].sum())
    if run.absence.first_leave() is None and not away:
        never = len(run.absence.never_there())
        return f"with {never} of {silos} silos never there" if never else "with no silo away"
    if away == 0:
        return "after all silos that left had returned"
    if away == silos:
        return f"after {'every silo' if silos > 1 else 'the only silo'} had left"
    return f"with {away} of {silos} silos away"


def _describe_departures(run: Run) -> list[str]:
    """Say which silos left when."""
    if run.absence is None or not run.silos:
        return ["Which silos were present is not known."]
    if not run.rows:
        return [f"{run.silos} silo{'s' if run.silos > 1 else ''}, {run.planned_rounds} rounds."]
    # of an unfinished run, only the rounds that are done
    absence = run.absence if run.finished else run.absence.until(len(run.rows))
    untrained = _describe_untrained(run, absence)
    if absence.first_leave() is None:
        everybody = f"All {absence.silos} silos" if absence.silos > 1 else "The only silo"
        return [
            *untrained,
            f"{'The others' if untrained else everybody} stayed{'' if run.finished else ' so far'}.",
        ]
    leaves = absence.away[:, 1:] & absence.present[:, :-1]
    rounds = np.flatnonzero(leaves.any(axis=0)) + 1
    if len(rounds) <= MAX_EVENTS:
        events = [
            f"{_name_silos(run, np.flatnonzero(leaves[:, round - 1]).tolist())} left at round {round}"
            for round in rounds.tolist()
        ]
        sentence = f"{', '.join(events)}."
    else:
        left = int(leaves.any(axis=1).sum())
        sentence = f"{left} of {absence.silos} silos left at some time, the first at round {rounds[0]}."
    sentences = [_begin(sentence)]
    returned = int((leaves.any(axis=1) & absence.present[:, -1]).sum())
    if returned:
        when = "at the end" if run.finished else "by now"
        sentences.append(f"{returned} of them {'was' if returned == 1 else 'were'} back {when}.")
    return sentences + untrained


def _describe_untrained(run: Run, absence: Absence) -> list[str]:
    """Say which silos only sent a digest, or were never there; while a run goes on, these may still join."""
    only_digests = np.flatnonzero(absence.joined.any(axis=1) & ~absence.present.any(axis=1)).tolist()
    never = absence.never_there() if run.finished else []
    sentences = []
    if only_digests:
        sentences.append(f"{_name_silos(run, only_digests)} sent a digest and never trained.")
    if never:
        sentences.append(
            f"{_name_silos(run, never)} {'was' if len(never) == 1 else 'were'} absent in all rounds."
        )
    return [_begin(sentence) for sentence in sentences]


def _begin(sentence: str) -> str:
    """Capitalise the word silo; a silo's own name stays as its owner writes it."""
    return f"S{sentence[1:]}" if sentence.startswith("silo ") else sentence


def _name_silos(run: Run, silos: list[int]) -> str:
    if len(silos) > MAX_EVENTS:
        return f"{len(silos)} silos"
    return " and ".join(run.silo_names[silo] for silo in silos)


def _enumerate(parts: Sequence[str]) -> str:
    return " and ".join([*([", ".join(parts[:-1])] if parts[:-1] else []), *parts[-1:]])


def _baselines(group: Group) -> list[_Baseline]:
    """Return what the main curve is compared with: its own earlier self, its base algorithm, the frozen control."""
    curve = group.main
    base = curve.algorithm.split("+", 1)[1] if "+" in curve.algorithm else "fedavg"
    found = []
    if curve.before_the_leave:
        name, meaning = "its own model before the first leave", "the result of stopping there"
        found.append(_Baseline(name, meaning, curve.before_the_leave))
    plain = group.find(base, "fedavg")
    if plain is not None and plain is not curve:
        found.append(_Baseline(plain.name, "the same rounds without digests", plain.values("final")))
    frozen = group.find(f"frozen+{base}", "frozen")
    if frozen is not None and frozen is not curve:
        meaning = "its accuracy just before the first leave, after which it is not trained"
        found.append(_Baseline(frozen.name, meaning, frozen.before_the_leave or frozen.values("final")))
    return found


def _compare(curve: Curve, baseline: _Baseline) -> str:
    """Compare a curve with a baseline in words; nothing if the baseline has no final accuracy."""
    lead, final = baseline.lead(curve), mean_and_deviation(baseline.finals.values())
    if final is None:
        return ""
    accuracy = f"{format_mean(final)}\u00a0%"
    if lead is None:
        return f"{baseline.name} ended at {accuracy}, with other seeds"
    points = lead[0]
    if abs(points) < 0.05:
        return f"level with {baseline.name} ({accuracy})"
    return f"{abs(points):.1f} points {'above' if points > 0 else 'below'} {baseline.name} ({accuracy})"
