"""Which runs belong in one chart, which are seeds of the same thing, and what to call them.

The report in a few sentences: what happened to accuracy when whom left, and against what.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

import numpy as np

from feddig.core.absence import Absence
from feddig.report.read_run import Run

SEEDS = ("seed", "data.seed", "absence.seed", "digest.seed")
"""What may differ between runs that are averaged."""
NAMED = ("algorithm.name", "absence.scenario", "absence.file", "data.name")
"""What a curve or a chart is called by anyway."""
NUMBERLESS = ("format_version", "data.path", "training.threads", "logging.tensorboard", "logging.mlflow")
"""What changes no number that is compared here."""

_RANKS = {"feddig": 0, "frozen": 2}


@dataclass(frozen=True)
class Curve:
    """An algorithm in a scenario, over its seeds."""

    name: str
    runs: Sequence[Run]

    @property
    def algorithm(self) -> str:
        """The algorithm's name, without what tells this curve from others."""
        return self.runs[0].algorithm

    @property
    def seeds(self) -> list[int]:
        """The seeds it is averaged over."""
        return [run.seed for run in self.runs]

    def values(self, measure: str) -> dict[int, float]:
        """Give a measure by seed, where it was reached."""
        found = {run.seed: run.measures.get(measure) for run in self.runs}
        return {seed: value for seed, value in found.items() if value is not None}

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
        """The curve that the words are about: FedDig's, if there is one."""
        return self.curves[0]

    @property
    def finished(self) -> bool:
        """Whether all its runs are."""
        return all(run.finished for curve in self.curves for run in curve.runs)

    def find(self, *algorithms: str) -> Curve | None:
        """Give the first curve of one of these algorithms, the first named preferred."""
        for name in algorithms:
            for curve in self.curves:
                if curve.algorithm == name:
                    return curve
        return None


def group_runs(runs: Sequence[Run]) -> list[Group]:
    """Sort runs into charts and curves; runs that differ in more than their seed are not averaged."""
    several = len({run.setting("data.name") for run in runs}) > 1
    groups = []
    for place in dict.fromkeys((run.scenario, run.setting("data.name")) for run in runs):
        own = [run for run in runs if (run.scenario, run.setting("data.name")) == place]
        names = _name(own)
        curves = [
            Curve(name, [run for run, other in zip(own, names, strict=True) if other == name])
            for name in dict.fromkeys(names)
        ]
        curves.sort(key=lambda curve: (_rank(curve.algorithm), curve.name))
        groups.append(Group(f"{place[0]}, {place[1]}" if several else place[0], curves))
    return groups


def _rank(algorithm: str) -> int:
    """Put what the words are about first and the frozen control last."""
    return next((rank for name, rank in _RANKS.items() if algorithm.startswith(name)), 1)


def _name(runs: Sequence[Run]) -> list[str]:
    """Call runs by their algorithm and by what else sets them apart from others of it."""
    flat = [flatten(run.settings) for run in runs]
    names = []
    for run, settings in zip(runs, flat, strict=True):
        rivals = [
            other for each, other in zip(runs, flat, strict=True) if each.algorithm == run.algorithm and other
        ]
        keys = [key for key in differing(rivals) if key not in (*SEEDS, *NAMED, *NUMBERLESS)]
        apart = "".join(f", {key.split('.')[-1]} {_spoken(settings.get(key))}" for key in keys)
        names.append(run.algorithm + apart)
    return names


def differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """List the keys that not all tables have the same value of."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if any(table.get(key) != tables[0].get(key) for table in tables)]


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Spell nested settings as section.key."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _spoken(value: Any) -> str:
    return "unset" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def mean_and_spread(values: Iterable[float]) -> tuple[float, float | None] | None:
    """Give mean and sample standard deviation; of one value only the mean, of none nothing."""
    found = list(values)
    if not found:
        return None
    return fmean(found), stdev(found) if len(found) > 1 else None


MOST_EVENTS = 6
"""Leaves that are told one by one; more are told as a number."""


@dataclass(frozen=True)
class Tile:
    """One figure, large: what it is, how much, and what that means."""

    title: str
    value: str
    says: str


@dataclass(frozen=True)
class Headline:
    """A scenario's title, sentences and figures."""

    title: str
    sentences: Sequence[str]
    tiles: Sequence[Tile]


def tell(group: Group) -> Headline:
    """Say what happened in a scenario to the curve that matters most."""
    curve, run = group.main, group.main.runs[0]
    final = mean_and_spread(curve.values("final").values())
    if final is None:
        return Headline("No round is finished yet", [*_who_left(run)], [])
    sentences = _who_left(run)
    if len({_shape(each) for each in curve.runs}) > 1:
        sentences[0] = f"In seed {run.seed} {sentences[0][:1].lower()}{sentences[0][1:]}"
    seeds = "" if len(curve.runs) == 1 else f" (mean of {len(curve.runs)} seeds)"
    ended = "ended at" if group.finished else "is so far at"
    rivals = [_against(curve, *rival) for rival in _rivals(group)]
    sentences.append(f"{curve.name} {ended} {spell(final)}\u00a0%{seeds}{_join(rivals)}.")
    tiles = [
        Tile(
            "at the end" if group.finished else "so far",
            f"{spell(final)}\u00a0%",
            f"{curve.name}, {run.measured_on} accuracy{seeds}",
        )
    ]
    tiles += [_tile(curve, *rival) for rival in _rivals(group)]
    away = mean_and_spread(curve.values("absence_mean").values())
    if away is not None:
        tiles.append(Tile("while silos were away", f"{spell(away)}\u00a0%", "mean over those rounds"))
    return Headline(_title(final, curve.runs), sentences, tiles)


def _shape(run: Run) -> bytes:
    """Name who was there when, to see whether seeds differ in it."""
    return b"" if run.absence is None else run.absence.present.tobytes()


def _title(final: tuple[float, float | None], runs: Sequence[Run]) -> str:
    run, at = runs[0], f"{final[0]:.1f}\u00a0%"
    if not run.finished:
        return f"{at} after {len(run.rows)} of {run.planned} rounds"
    gone_in = {each.absence is not None and int(each.absence.away[:, -1].sum()) for each in runs}
    if run.absence is None or len(gone_in) > 1:
        return f"{at} at the end"
    here, silos = int(run.absence.present[:, -1].sum()), run.absence.silos
    gone = int(run.absence.away[:, -1].sum())
    if run.absence.first_leave() is None:
        return f"{at} with nobody away"
    if gone == 0:
        return f"{at} after all who left had returned"
    if here == 0 and gone == silos:
        return f"{at} after {'every silo' if silos > 1 else 'the only silo'} had left"
    return f"{at} with {gone} of {silos} silos gone"


def _who_left(run: Run) -> list[str]:
    """Say who left when."""
    if run.absence is None or not run.silos:
        return ["Who was there is not known."]
    if not run.rows:
        return [f"{run.silos} silo{'s' if run.silos > 1 else ''}, {run.planned} rounds."]
    # a plan is not told as if it had happened
    absence = run.absence if run.finished else Absence(run.absence.present[:, : len(run.rows)])
    if absence.first_leave() is None:
        everybody = f"All {absence.silos} silos" if absence.silos > 1 else "The only silo"
        return [f"{everybody} stayed{'' if run.finished else ' so far'}."]
    leaves = absence.away[:, 1:] & absence.present[:, :-1]
    rounds = np.flatnonzero(leaves.any(axis=0)) + 1
    if len(rounds) <= MOST_EVENTS:
        told = [
            f"{_silos(run, np.flatnonzero(leaves[:, round - 1]).tolist())} left at round {round}"
            for round in rounds.tolist()
        ]
        sentence = f"{', '.join(told)}."
    else:
        who = int(leaves.any(axis=1).sum())
        sentence = f"{who} of {absence.silos} silos left at some time, the first at round {rounds[0]}."
    returned = int((absence.away.any(axis=1) & absence.present[:, -1]).sum())
    when = "at the end" if run.finished else "by now"
    back = [f"{returned} of them {'was' if returned == 1 else 'were'} back {when}."] if returned else []
    return [sentence[:1].upper() + sentence[1:], *back]


def _silos(run: Run, silos: list[int]) -> str:
    if len(silos) > MOST_EVENTS:
        return f"{len(silos)} silos"
    return " and ".join(run.silo_names[silo] for silo in silos)


def _rivals(group: Group) -> list[tuple[str, str, dict[int, float]]]:
    """Give what the main curve is held against: name, what it is, its end by seed."""
    curve = group.main
    base = curve.algorithm.split("+", 1)[1] if "+" in curve.algorithm else "fedavg"
    found: list[tuple[str, str, dict[int, float]]] = []
    plain = group.find(base, "fedavg")
    if plain is not None and plain is not curve:
        found.append((plain.name, "the same rounds without digests", plain.values("final")))
    frozen = group.find(f"frozen+{base}", "frozen")
    if frozen is not None and frozen is not curve:
        found.append((frozen.name, "the model kept as it was before the first leave", frozen.values("final")))
    elif curve.values("frozen_own"):
        found.append(
            ("its own model before the first leave", "what stopping there kept", curve.values("frozen_own"))
        )
    return found


def lead(curve: Curve, ends: dict[int, float]) -> tuple[float, float | None] | None:
    """Give how far a curve ended above others, over the seeds that both have."""
    own = curve.values("final")
    return mean_and_spread([own[seed] - ends[seed] for seed in own.keys() & ends.keys()])


def _against(curve: Curve, name: str, means: str, ends: dict[int, float]) -> str:
    ahead, end = lead(curve, ends), mean_and_spread(ends.values())
    if end is None:
        return ""
    if ahead is None:
        return f"{name} ended at {spell(end)}\u00a0%, with other seeds"
    difference = ahead[0]
    where = "level with" if abs(difference) < 0.05 else f"{abs(difference):.1f} points {_side(difference)}"
    return f"{where} {name} ({spell(end)}\u00a0%)"


def _side(difference: float) -> str:
    return "above" if difference > 0 else "below"


def _tile(curve: Curve, name: str, means: str, ends: dict[int, float]) -> Tile:
    ahead = lead(curve, ends)
    value = "not comparable" if ahead is None else f"{spell(ahead, signed=True)} points"
    return Tile(f"against {name}", value, means)


def _join(parts: Sequence[str]) -> str:
    told = [part for part in parts if part]
    return f": {' and '.join(told)}" if told else ""


def spell(value: tuple[float, float | None], *, signed: bool = False) -> str:
    """Spell a mean with its deviation, if it has one."""
    mean, deviation = value
    # a true minus sign is as wide as a plus
    number = (f"{mean:+.1f}" if signed else f"{mean:.1f}").replace("-", "−")
    return number + ("" if deviation is None else f" ± {deviation:.1f}")
