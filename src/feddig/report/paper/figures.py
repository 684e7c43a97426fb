"""The figures that can be drawn, by name: each is a function from runs to a Figure, and its docstring is its help."""

import inspect
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from feddig.errors import FedDigError, nearest
from feddig.report.paper.accuracy import (
    dataset_bars,
    mixing_bars,
    perturbation_bars,
    samples_per_digest_bars,
    silo_count_bars,
    skew_bars,
)
from feddig.report.paper.curves import scenario_curves
from feddig.report.paper.digests import class_guidance, digest_guidance, sample_guidance
from feddig.report.paper.noise import element_noise, mixing_variance
from feddig.report.pictures import ShownSamples
from feddig.report.read_run import Run

DRAWN = (
    scenario_curves, skew_bars, silo_count_bars, samples_per_digest_bars, mixing_bars, perturbation_bars,
    dataset_bars, class_guidance, digest_guidance, sample_guidance, element_noise, mixing_variance,
)  # fmt: skip
KINDS: dict[str, Callable[..., Figure]] = {each.__name__.replace("_", "-"): each for each in DRAWN}


def draw(
    kind: str,
    runs: Sequence[Run],
    measure: str | None = None,
    samples: Callable[[Run, int], ShownSamples] | None = None,
) -> Figure:
    """Draw a figure by its name; `measure` is the accuracy that bars show, `samples` gives images of a run's data."""
    function = _find(kind)
    takes = inspect.signature(function).parameters
    if measure is not None and "measure" not in takes:
        raise FedDigError(f"--measure: {kind} shows no measure that could be chosen; leave it out")
    given = {"measure": measure, "samples": samples}
    return function(
        runs, **{name: value for name, value in given.items() if name in takes and value is not None}
    )


def takes_results(kind: str) -> bool:
    """Say whether a figure is drawn from results at all."""
    return inspect.signature(_find(kind)).parameters["runs"].default is inspect.Parameter.empty


def _find(kind: str) -> Callable[..., Figure]:
    if kind not in KINDS:
        raise FedDigError(f"{kind!r} is no kind of figure; {nearest(kind, KINDS)}")
    return KINDS[kind]


def described() -> list[tuple[str, str]]:
    """List the kinds with what each shows."""
    return [(name, (inspect.getdoc(function) or "").splitlines()[0]) for name, function in KINDS.items()]
