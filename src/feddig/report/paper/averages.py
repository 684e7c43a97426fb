"""Choose, check and average the runs of a figure, and name them by the settings in which they differ."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from feddig.errors import FedDigError, nearest
from feddig.report.measures import MEASURES, mean_and_deviation
from feddig.report.paper.style import is_frozen
from feddig.report.read_run import SEEDS, WITHOUT_EFFECT, Run, differing_keys, flatten

ABBREVIATIONS = {"samples_per_digest": "SpD"}
PAPER_MEASURE = "mean_251_259"
"""The measure of the paper's bars: the mean of these rounds, just after the last silo has left."""
MEASURE_NAMES = {
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
    "frozen_own_mean_10": "mean just before the first leave",
}


def name_runs(runs: Sequence[Run], default: str) -> list[tuple[Run, str]]:
    """Name each run by the settings in which they differ, by its seed if only seeds differ, or by `default`."""
    different = [
        key for key in differing_keys([flatten(run.settings) for run in runs]) if key not in WITHOUT_EFFECT
    ]
    keys = [key for key in different if key not in SEEDS] or [key for key in different if key == "seed"]
    return [(run, "\n".join(_name_setting(run, key) for key in keys) or default) for run in runs]


def _name_setting(run: Run, key: str) -> str:
    name = key.split(".")[-1]
    return f"{ABBREVIATIONS.get(name, name)} {run.setting(key)}"


def check_runs(runs: Sequence[Run], kind: str) -> None:
    """Refuse runs that cannot share a figure: none, unfinished ones, and ones measured on different images."""
    if not runs:
        raise FedDigError(f"{kind} are drawn from results; give the folders of runs or comparisons")
    for run in runs:
        if not run.finished:
            raise FedDigError(
                f"{run.path}: the run is not finished; finish it with feddig run --resume, or leave it out"
            )
        if not run.settings or not run.rows:
            raise FedDigError(f"{run.path}: cannot be drawn: {' '.join(run.notes)}")
    measured = {run.measured_on: run for run in runs}
    if len(measured) > 1:
        paths = " and ".join(f"{run.path} on {images} images" for images, run in sorted(measured.items()))
        raise FedDigError(
            f"{paths}: accuracies on different images cannot share a figure; draw them separately"
        )


def check_same_settings(runs: Sequence[Run], allowed: Iterable[str] = ()) -> None:
    """Refuse to average runs that differ in more than their seed and the allowed keys."""
    may_differ = {*SEEDS, *WITHOUT_EFFECT, *allowed}
    settings = [flatten(run.settings) for run in runs]
    for run, other in zip(runs[1:], settings[1:], strict=True):
        more = [key for key in differing_keys([settings[0], other]) if key not in may_differ]
        if more:
            raise FedDigError(
                f"{runs[0].path} and {run.path}: differ in {more[0]}, so they are not averaged; leave one out"
            )


def check_unique_seeds(runs: Sequence[Run]) -> None:
    """Refuse to count a seed twice."""
    seen: dict[int, Run] = {}
    for run in runs:
        if run.seed in seen:
            raise FedDigError(
                f"{seen[run.seed].path} and {run.path}: the same run twice, seed {run.seed}; leave one out"
            )
        seen[run.seed] = run


@dataclass(frozen=True)
class Bar:
    """A mean over seeds; with one seed there is no deviation."""

    mean: float
    deviation: float | None
    seeds: int


@dataclass(frozen=True)
class Axis:
    """What a bar chart shows from left to right."""

    keys: tuple[str, ...]
    """The settings in which its positions differ."""
    sort_key: Callable[[Run], Any]
    label: Callable[[Run], str]
    title: str
    only_digests: bool = False
    """Whether only digests depend on these settings; a run without digests is then the same at every position."""


@dataclass(frozen=True)
class Chart:
    """All bars of a figure."""

    runs: Sequence[Run]
    positions: Sequence[str]
    """From left to right."""
    bars: Mapping[str, Mapping[str, Bar]]
    """By name, then by position; positions without runs of that name are left out."""
    lines: Mapping[str, Bar]
    """The values that do not depend on the position."""
    measure: str
    also_differing: Sequence[str]
    """Other settings that differ."""
    seed_counts: Sequence[int]
    """The number of seeds of each bar and line."""


def average_runs(runs: Sequence[Run], kind: str, axis: Axis, measure: str | None) -> Chart:
    """Sort runs by position and name, and average each bar over its seeds."""
    check_runs(runs, kind)
    measure = _choose_measure(runs, measure)
    fixed = [run for run in runs if axis.only_digests and not _sends_digests(run)]
    varying = [run for run in runs if not axis.only_digests or _sends_digests(run)]
    if not varying:
        names = ", ".join(dict.fromkeys(run.algorithm for run in runs))
        raise FedDigError(f"{kind} need results of an algorithm with digests; these have {names}")
    for run in varying:
        for key in axis.keys:
            if run.setting(key) is None:
                raise FedDigError(f"{run.path}: its experiment.toml has no {key}, by which {kind} are sorted")
    positions = list(dict.fromkeys(axis.label(run) for run in sorted(varying, key=axis.sort_key)))
    if len(positions) < 2:
        raise FedDigError(
            f"{kind} need results that differ in {' or '.join(axis.keys)}; these all have {positions[0]}"
        )
    several = len({run.scenario for run in runs}) > 1
    bars = {
        name: {
            position: _average(members, axis.keys, measure)
            for position in positions
            if (members := [run for run in named if axis.label(run) == position])
        }
        for name, named in _by_name(varying, several).items()
    }
    lines = {
        name: _average(_drop_repeats(named, axis.keys), axis.keys, measure)
        for name, named in _by_name(fixed, several).items()
    }
    seed_counts = [bar.seeds for found in (*bars.values(), lines) for bar in found.values()]
    return Chart(runs, positions, bars, lines, measure, _also_differing(runs, axis.keys), seed_counts)


def _choose_measure(runs: Sequence[Run], wanted: str | None) -> str:
    """Return the wanted measure; if none is wanted, the paper's, or the final accuracy where a run is too short."""
    if wanted is None:
        return PAPER_MEASURE if all(run.measures.get(PAPER_MEASURE) is not None for run in runs) else "final"
    if wanted not in MEASURES:
        raise FedDigError(f"--measure: {wanted!r} is not known; {nearest(wanted, MEASURES)}")
    for run in runs:
        if run.measures.get(wanted) is None:
            raise FedDigError(f"--measure: {run.path} has no {wanted}; choose another, or leave the run out")
    return wanted


def _sends_digests(run: Run) -> bool:
    stored = run.summary.get("bytes")
    sizes = stored.get("digest") if isinstance(stored, Mapping) else None
    return isinstance(sizes, list) and any(sizes)


def _by_name(runs: Sequence[Run], several_scenarios: bool) -> dict[str, list[Run]]:
    """Return runs by the name of their bars, FedDig's first and frozen controls last."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        name = f"{run.algorithm}, {run.scenario}" if several_scenarios else run.algorithm
        found.setdefault(name, []).append(run)
    names = sorted(found, key=lambda name: (is_frozen(name), not name.startswith("feddig"), name))
    return {name: found[name] for name in names}


def _average(runs: Sequence[Run], may_differ: Sequence[str], measure: str) -> Bar:
    check_same_settings(runs, may_differ)
    check_unique_seeds(runs)
    found = mean_and_deviation(run.measures.get(measure) for run in runs)
    if found is None:
        raise FedDigError(
            f"{runs[0].path}: not all seeds have an accuracy {measure!r}; choose another measure"
        )
    return Bar(*found, len(runs))


def _drop_repeats(runs: Sequence[Run], may_differ: Sequence[str]) -> list[Run]:
    """Keep one run for each seed of runs that were repeated at every position, with the same result."""
    check_same_settings(runs, may_differ)
    kept: dict[int, Run] = {}
    for run in runs:
        first = kept.setdefault(run.seed, run)
        if first.accuracies != run.accuracies:
            raise FedDigError(
                f"{first.path} and {run.path}: the same run, seed {run.seed}, with other accuracies; leave one out"
            )
    return list(kept.values())


def _also_differing(runs: Sequence[Run], known: Iterable[str]) -> list[str]:
    """Return the other settings in which runs of one algorithm differ, for the explanation under the figure."""
    ignored = {*SEEDS, *WITHOUT_EFFECT, *known, "absence.scenario"}
    found: dict[str, None] = {}
    for algorithm in dict.fromkeys(run.algorithm for run in runs):
        settings = [flatten(run.settings) for run in runs if run.algorithm == algorithm]
        found |= dict.fromkeys(key for key in differing_keys(settings) if key not in ignored)
    return list(found)
