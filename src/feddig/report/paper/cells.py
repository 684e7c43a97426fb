"""Runs sorted into bars: what stands side by side, what is averaged, and what no bar depends on."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from feddig.errors import FedDigError
from feddig.report.paper.look import is_frozen
from feddig.report.paper.selecting import also_differing, check_alike, check_once, check_runs, choose_measure
from feddig.report.runs import Run


@dataclass(frozen=True)
class Bar:
    """A mean over seeds; one seed has no spread."""

    mean: float
    spread: float | None
    seeds: int


@dataclass(frozen=True)
class Axis:
    """What a bar chart lays out from left to right."""

    keys: tuple[str, ...]
    """The settings by which its places differ."""
    sort: Callable[[Run], Any]
    label: Callable[[Run], str]
    title: str
    of_digests: bool = False
    """Whether only digests depend on these settings, so that a run that sends none is the same everywhere."""


@dataclass(frozen=True)
class Chart:
    """All bars of a figure."""

    runs: Sequence[Run]
    places: Sequence[str]
    """From left to right."""
    bars: Mapping[str, Mapping[str, Bar]]
    """By name, then by place; a place that a name was not run at is not there."""
    lines: Mapping[str, Bar]
    """Of what does not depend on the place."""
    measure: str
    also: Sequence[str]
    """Other settings that differ."""
    counts: Sequence[int]
    """Over how many seeds each bar and line is a mean."""


def sort_into_chart(
    runs: Sequence[Run], kind: str, axis: Axis, measure: str | None, *, fewest: int = 2
) -> Chart:
    """Sort runs into places and names, and average each cell over its seeds."""
    check_runs(runs, kind)
    chosen = choose_measure(runs, measure)
    still = [run for run in runs if axis.of_digests and not sends_digests(run)]
    moving = [run for run in runs if not axis.of_digests or sends_digests(run)]
    if not moving:
        raise FedDigError(f"{kind} need results of an algorithm with digests; these have {_names(runs)}")
    for run in moving:
        for key in axis.keys:
            if run.setting(key) is None:
                raise FedDigError(f"{run.path}: its experiment.toml has no {key}, by which {kind} are sorted")
    places = list(dict.fromkeys(axis.label(run) for run in sorted(moving, key=axis.sort)))
    if len(places) < fewest:
        raise FedDigError(
            f"{kind} need results that differ in {' or '.join(axis.keys)}; these all have {places[0]}"
        )
    several = len({run.scenario for run in runs}) > 1
    bars = {
        name: {
            place: _average(cell, axis.keys, chosen)
            for place in places
            if (cell := [run for run in moving if (_name(run, several), axis.label(run)) == (name, place)])
        }
        for name in _ordered(moving, several)
    }
    lines = {
        name: _average([run for run in still if _name(run, several) == name], axis.keys, chosen, once=False)
        for name in _ordered(still, several)
    }
    also = also_differing(runs, (*axis.keys, "absence.scenario"))
    counts = [bar.seeds for found in (*bars.values(), lines) for bar in found.values()]
    return Chart(runs, places, bars, lines, chosen, also, counts)


def sends_digests(run: Run) -> bool:
    """Say whether any silo sent a digest."""
    told = run.summary.get("bytes")
    sizes = told.get("digest") if isinstance(told, Mapping) else None
    return isinstance(sizes, list) and any(sizes)


def _names(runs: Sequence[Run]) -> str:
    return ", ".join(dict.fromkeys(run.algorithm for run in runs))


def _name(run: Run, several: bool) -> str:
    return f"{run.algorithm}, {run.scenario}" if several else run.algorithm


def _ordered(runs: Sequence[Run], several: bool) -> list[str]:
    """List names with FedDig's first and the control's last, as everywhere."""
    names = dict.fromkeys(_name(run, several) for run in runs)
    return sorted(names, key=lambda name: (is_frozen(name), not name.startswith("feddig"), name))


def _average(runs: Sequence[Run], apart: Sequence[str], measure: str, *, once: bool = True) -> Bar:
    check_alike(runs, apart)
    if once:
        check_once(runs)
    else:
        runs = _one_a_seed(runs)
    values = [value for run in runs if (value := run.measures.get(measure)) is not None]
    if len(values) < len(runs):
        raise FedDigError(
            f"{runs[0].path}: not all seeds have an accuracy {measure!r}; choose another measure"
        )
    return Bar(fmean(values), stdev(values) if len(values) > 1 else None, len(values))


def _one_a_seed(runs: Sequence[Run]) -> list[Run]:
    """Take one run a seed of those that were only repeated beside the others, with the same outcome."""
    kept: dict[int, Run] = {}
    for run in runs:
        first = kept.setdefault(run.seed, run)
        if first.accuracies != run.accuracies:
            raise FedDigError(
                f"{first.path} and {run.path}: the same run, seed {run.seed}, with other accuracies; leave one out"
            )
    return list(kept.values())
