"""Which runs a figure may be drawn from, and which accuracy of theirs."""

from collections.abc import Iterable, Sequence

from feddig.errors import FedDigError, nearest
from feddig.report.grouping import NUMBERLESS, SEEDS, differing, flatten
from feddig.report.measures import MEASURES
from feddig.report.runs import Run

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
