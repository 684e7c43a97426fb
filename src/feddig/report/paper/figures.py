"""List the figures by name: each is a function from runs to a Figure, and its docstring is its help."""

import inspect
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from feddig.errors import FedDigError, nearest

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from feddig.report.pictures import EncodedImages
    from feddig.report.read_run import Run

FIGURES = {
    **dict.fromkeys(
        (
            "scenario-curves", "skew-bars", "silo-count-bars", "samples-per-digest-bars", "mixing-bars",
            "perturbation-bars", "dataset-bars",
        ),
        "accuracy",
    ),
    **dict.fromkeys(
        ("class-guidance", "digest-guidance", "sample-guidance", "element-noise", "mixing-variance"),
        "digests",
    ),
}  # fmt: skip
"""The module that has the function of each figure; it is imported when the figure is drawn, as completion needs names
only."""


def draw_figure(
    kind: str,
    runs: "Sequence[Run]",
    measure: str | None = None,
    samples: "Callable[[Run, int], EncodedImages] | None" = None,
) -> "Figure":
    """Draw a figure by its name; `measure` is the accuracy that bars show, `samples` returns images of a run's data."""
    function = _find(kind)
    parameters = inspect.signature(function).parameters
    if measure is not None and "measure" not in parameters:
        raise FedDigError(f"--measure: {kind} shows no measure that could be chosen; leave it out")
    given: dict[str, Any] = {"measure": measure, "samples": samples}
    return function(
        runs, **{name: value for name, value in given.items() if name in parameters and value is not None}
    )


def needs_results(kind: str) -> bool:
    """Return whether a figure is drawn from results."""
    return inspect.signature(_find(kind)).parameters["runs"].default is inspect.Parameter.empty


def _find(kind: str) -> "Callable[..., Figure]":
    if kind not in FIGURES:
        raise FedDigError(f"{kind!r} is no kind of figure; {nearest(kind, FIGURES)}")
    function: Callable[..., Figure] = getattr(
        import_module(f"feddig.report.paper.{FIGURES[kind]}"), kind.replace("-", "_")
    )
    return function


def describe_figures() -> list[tuple[str, str]]:
    """Return the name of each figure with what it shows."""
    return [(kind, (inspect.getdoc(_find(kind)) or "").splitlines()[0]) for kind in FIGURES]
