"""What mixing does to noise: how much of its variance is left in a weighted mean."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from feddig.errors import FedDigError
from feddig.report.paper.look import bare, explain, looks_of
from feddig.report.runs import Run

MIXED = (2, 4, 8)
"""Samples in a digest, SpD."""
WEIGHTS = 21
"""Weights of the first sample that are tried, from 1 to 0."""
DRAWS = 20_000
SEED = 0


def mixing_variance(runs: Sequence[Run] = ()) -> Figure:
    """Variance of noise after mixing, by the weights: drawn samples beside theory. Takes no results."""
    if runs:
        raise FedDigError("mixing variance is drawn from samples of its own; give it no results")
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axes = figure.subplots()
    first = np.linspace(1, 0, WEIGHTS)
    fine = np.linspace(1, 0, 201)
    looks = looks_of([f"SpD {mixed}" for mixed in MIXED])
    for mixed, (name, look) in zip(MIXED, looks.items(), strict=True):
        axes.plot(
            fine,
            left_by_theory(weights_from(fine, mixed)),
            color=look.colour,
            linestyle=look.dash,
            label=name,
        )
        axes.plot(first, left_in_samples(weights_from(first, mixed)), "o", color=look.colour, markersize=4)
    # from one sample alone, on the left, to none of it
    axes.set_xlim(1.02, -0.02)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("weight of the first sample; the others share the rest equally")
    axes.set_ylabel("variance after mixing\n(of one sample's noise)")
    axes.legend(frameon=False)
    bare(axes)
    explain(figure, f"Lines: the sum of squared weights. Dots: {DRAWS:,} Laplace samples each, seed {SEED}")
    return figure


def weights_from(first: np.ndarray, mixed: int) -> np.ndarray:
    """Give mixing weights, a row for each weight of the first sample: (1, 0, ...) to (0, 1/(n-1), ...)."""
    rest = np.repeat((1 - first)[:, None] / (mixed - 1), mixed - 1, axis=1)
    return np.concatenate([first[:, None], rest], axis=1)


def left_by_theory(weights: np.ndarray) -> np.ndarray:
    """Give the variance of sum w_k n_k for independent n_k of variance 1: the sum of w_k squared."""
    variances: np.ndarray = (weights**2).sum(1)
    return variances


def left_in_samples(weights: np.ndarray) -> np.ndarray:
    """Measure the same on drawn noise: Laplace, as the paper's, with its scale chosen for variance 1."""
    stream = np.random.default_rng(SEED)
    noise = stream.laplace(scale=np.sqrt(0.5), size=(DRAWS, weights.shape[1]))
    variances: np.ndarray = (noise @ weights.T).var(axis=0, ddof=1)
    return variances
