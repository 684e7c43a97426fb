"""List the figures by name: each is a function from runs to a Figure, and its docstring is its help."""

import inspect
from collections.abc import Callable, Sequence

from matplotlib.figure import Figure

from feddig.errors import FedDigError, nearest
from feddig.report.paper.accuracy import (
    dataset_bars,
    mixing_bars,
    perturbation_bars,
    samples_per_digest_bars,
    scenario_curves,
    silo_count_bars,
    skew_bars,
)
from feddig.report.paper.digests import (
    class_guidance,
    digest_guidance,
    element_noise,
    mixing_variance,
    sample_guidance,
)
from feddig.report.pictures import EncodedImages
from feddig.report.read_run import Run

FUNCTIONS = (
    scenario_curves, skew_bars, silo_count_bars, samples_per_digest_bars, mixing_bars, perturbation_bars,
    dataset_bars, class_guidance, digest_guidance, sample_guidance, element_noise, mixing_variance,
)  # fmt: skip
FIGURES: dict[str, Callable[..., Figure]] = {each.__name__.replace("_", "-"): each for each in FUNCTIONS}


def draw_figure(
    kind: str,
    runs: Sequence[Run],
    measure: str | None = None,
    samples: Callable[[Run, int], EncodedImages] | None = None,
) -> Figure:
    """Draw a figure by its name; `measure` is the accuracy that bars show, `samples` returns images of a run's data."""
    function = _find(kind)
    parameters = inspect.signature(function).parameters
    if measure is not None and "measure" not in parameters:
        raise FedDigError(f"--measure: {kind} shows no measure that could be chosen; leave it out")
    given = {"measure": measure, "samples": samples}
    return function(
        runs, **{name: value for name, value in given.items() if name in parameters and value is not None}
    )


def needs_results(kind: str) -> bool:
    """Return whether a figure is drawn from results."""
    return inspect.signature(_find(kind)).parameters["runs"].default is inspect.Parameter.empty


def _find(kind: str) -> Callable[..., Figure]:
    if kind not in FIGURES:
        raise FedDigError(f"{kind!r} is no kind of figure; {nearest(kind, FIGURES)}")
    return FIGURES[kind]


def describe_figures() -> list[tuple[str, str]]:
    """Return the name of each figure with what it shows."""
    return [(name, (inspect.getdoc(function) or "").splitlines()[0]) for name, function in FIGURES.items()]
