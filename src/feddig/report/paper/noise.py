"""What mixing does to noise: how much of its variance is left in a weighted mean.

The noise that mixing puts on each element of a sample's feature, measured on digests.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from feddig.errors import FedDigError
from feddig.report.paper.averages import name_apart
from feddig.report.paper.style import bare, explain, looks_of
from feddig.report.pictures import read_digests
from feddig.report.read_run import Run

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


def element_noise(runs: Sequence[Run]) -> Figure:
    """Variance of the noise that mixing puts on each feature element, from digests without other noise."""
    with_digests = [run for run in runs if (run.path / "digests").is_dir()]
    if not with_digests:
        raise FedDigError("element noise is measured on digests, and none of these results has any")
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axes = figure.subplots()
    named = name_apart(with_digests, "mixing")
    looks = looks_of(name for _, name in named)
    for run, name in named:
        variances = np.sort(noise_of_mixing(run).ravel())[::-1]
        axes.plot(
            variances, drawstyle="steps-mid", color=looks[name].colour, linestyle=looks[name].dash, label=name
        )
        axes.axhline(float(variances.mean()), color=looks[name].colour, linewidth=0.8, alpha=0.6)
    axes.set_xlabel("elements of a feature, from the most to the least perturbed")
    axes.set_ylabel("variance of the noise by mixing\n(feature units squared)")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    bare(axes)
    explain(figure, "Level lines: the same noise spread evenly, as noise of one scale would be")
    return figure


def noise_of_mixing(run: Run) -> np.ndarray:
    """Estimate, for each element, the variance of what the other samples add to the heaviest one of a digest.

    A digest sum w_k r_k of independent samples has variance v sum w_k^2, which is measured; the others' part of it
    is v (sum w_k^2 - w_1^2).
    """
    mechanism, mixing = run.setting("privacy.mechanism"), run.setting("digest.mixing")
    if (mechanism, mixing) != ("none", "random"):
        raise FedDigError(
            f"{run.path}: element noise needs digests with privacy.mechanism none and digest.mixing random, "
            f"not {mechanism} and {mixing}"
        )
    mixed = int(run.setting("digest.samples_per_digest"))
    weights = np.asarray(run.setting("digest.weights") or [1 / mixed] * mixed)
    silos = [features for features, _ in read_digests(run.path / "digests") if len(features) > 1]
    if not silos:
        raise FedDigError(f"{run.path}: no silo has two digests, so there is no variance to measure")
    # silos hold different data: the variance is that within each of them
    shares = np.array([len(features) - 1 for features in silos])
    each = np.stack([features.var(axis=0, ddof=1, dtype=np.float64) for features in silos])
    total = np.average(each, axis=0, weights=shares)
    power = (weights**2).sum()
    others: np.ndarray = total * (power - weights.max() ** 2) / power
    return others
