"""Which runs belong in one chart, which are seeds of the same thing, and what to call them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from typing import Any

from feddig.report.runs import Run

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
