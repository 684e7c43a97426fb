"""What to call results that stand in one figure: by what sets them apart.

Which runs a figure may be drawn from, and which accuracy of theirs.

Runs sorted into bars: what stands side by side, what is averaged, and what no bar depends on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from feddig.errors import FedDigError, nearest
from feddig.report.grouping import NUMBERLESS, SEEDS, differing, flatten
from feddig.report.measures import MEASURES
from feddig.report.paper.style import is_frozen
from feddig.report.read_run import Run

SHORT = {"samples_per_digest": "SpD"}


def name_apart(runs: Sequence[Run], alone: str) -> list[tuple[Run, str]]:
    """Name each run by the settings in which they differ, by seeds only where nothing else does; one is `alone`."""
    apart = [key for key in differing([flatten(run.settings) for run in runs]) if key not in NUMBERLESS]
    keys = [key for key in apart if key not in SEEDS] or [key for key in apart if key == "seed"]
    return [(run, "\n".join(_spell(run, key) for key in keys) or alone) for run in runs]


def _spell(run: Run, key: str) -> str:
    name = key.split(".")[-1]
    return f"{SHORT.get(name, name)} {run.setting(key)}"


PAPERS = "mean_251_259"
"""What the paper's bars are: the mean of these rounds, just after the last silo has left."""
SPELLED = {
    "final": "after the last round",
    "best": "of the best round",
    "absence_mean": "mean while silos were away",
    "absence_auc": "area under the curve while silos were away",
    "mean_251_259": "mean of rounds 251 to 259",
    "mean_250_299": "mean of rounds 250 to 299",
    "after_9": "9 rounds after the last leave",
    "after_50": "50 rounds after the last leave",
    "after_200": "200 rounds after the last leave",
    "frozen_own": "just before the first leave",
}


def check_runs(runs: Sequence[Run], kind: str) -> None:
    """Refuse runs that cannot share a figure: none, unfinished ones, and ones whose accuracy is of different images."""
    if not runs:
        raise FedDigError(f"{kind} are drawn from results; give the folders of runs or comparisons")
    for run in runs:
        if not run.finished:
            raise FedDigError(
                f"{run.path}: the run is not finished; end it with feddig run --resume, or leave it out"
            )
        if not run.settings or not run.rows:
            raise FedDigError(f"{run.path}: cannot be drawn: {' '.join(run.notes)}")
    tested = {run.measured_on: run for run in runs}
    if len(tested) > 1:
        places = " and ".join(f"{run.path} on {images} images" for images, run in sorted(tested.items()))
        raise FedDigError(f"{places}: accuracies of different images cannot share a figure; draw them apart")


def choose_measure(runs: Sequence[Run], wanted: str | None) -> str:
    """Take the accuracy that was asked for; if none was, the paper's, or where a run is too short for it, the last."""
    if wanted is None:
        return PAPERS if all(run.measures.get(PAPERS) is not None for run in runs) else "final"
    if wanted not in MEASURES:
        raise FedDigError(f"--measure: {wanted!r} is not known; {nearest(wanted, MEASURES)}")
    for run in runs:
        if run.measures.get(wanted) is None:
            raise FedDigError(f"--measure: {run.path} has no {wanted}; choose another, or leave the run out")
    return wanted


def check_alike(runs: Sequence[Run], apart: Iterable[str] = ()) -> None:
    """Refuse to average runs that differ in more than their seed and the keys that are named."""
    allowed = {*SEEDS, *NUMBERLESS, *apart}
    settings = [flatten(run.settings) for run in runs]
    for run, other in zip(runs[1:], settings[1:], strict=True):
        more = [key for key in differing([settings[0], other]) if key not in allowed]
        if more:
            raise FedDigError(
                f"{runs[0].path} and {run.path}: differ in {more[0]}, so they are not averaged; leave one out"
            )


def check_once(runs: Sequence[Run]) -> None:
    """Refuse to count a seed twice."""
    seen: dict[int, Run] = {}
    for run in runs:
        if run.seed in seen:
            raise FedDigError(
                f"{seen[run.seed].path} and {run.path}: the same run twice, seed {run.seed}; leave one out"
            )
        seen[run.seed] = run


def also_differing(runs: Sequence[Run], apart: Iterable[str]) -> list[str]:
    """List what else sets the runs of one algorithm apart, which a reader of the figure should know."""
    known = {*SEEDS, *NUMBERLESS, *apart}
    found: dict[str, None] = {}
    for algorithm in dict.fromkeys(run.algorithm for run in runs):
        settings = [flatten(run.settings) for run in runs if run.algorithm == algorithm]
        found |= dict.fromkeys(key for key in differing(settings) if key not in known)
    return list(found)


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
