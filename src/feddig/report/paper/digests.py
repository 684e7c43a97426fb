"""Draw guidance, and the noise that mixing puts on digests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddig.errors import FedDigError
from feddig.report.curve_styles import choose_styles
from feddig.report.paper.averages import name_runs
from feddig.report.paper.style import SMALL, add_explanation, simplify_axes
from feddig.report.pictures import (
    EncodedImages,
    draw_digest_guidance,
    draw_guidance,
    read_class_pictures,
    read_digests,
)
from feddig.report.read_run import Run

MAX_COLUMNS = 10
MAX_RESULTS = 12
SAMPLES_PER_DIGEST = (2, 4, 8)
WEIGHTS = 21
"""Weights of the first sample that are tried, from 1 to 0."""
DRAWS = 20_000
SEED = 0


@dataclass(frozen=True)
class _Row:
    label: str
    images: np.ndarray
    """[images, channels, height, width], from 0 to 1."""
    titles: Sequence[str] = ()


def class_guidance(runs: Sequence[Run]) -> Figure:
    """Guidance of each class beside the mean image of the class, one row for each result."""
    rows: list[_Row] = []
    classes = 0
    shown: str | None = None
    without_means: dict[str, None] = {}
    for run, label in _with_guidance(runs):
        pictures = read_class_pictures(run.path, str(run.setting("model.guidance")))
        if pictures.guidance is None:
            raise FedDigError(f"{run.path}: {pictures.missing[-1]}")
        classes = max(classes, len(pictures.guidance))
        data = str(run.setting("data.name"))
        titles: Sequence[str] = () if data == shown else _class_names(run, len(pictures.guidance))
        if pictures.means is not None and data != shown:
            rows.append(_Row(f"class mean\n{data}", pictures.means, titles))
            titles = ()
        elif data != shown:
            without_means[data] = None
        rows.append(_Row(label, pictures.guidance, titles))
        shown = data
    meaning = "Guidance of a class: of its mean feature, estimated from the digests"
    more = f"The first {MAX_COLUMNS} of {classes} classes" if classes > MAX_COLUMNS else ""
    missing = f"No class means in the results on {', '.join(without_means)}" if without_means else ""
    return _draw_rows(rows, meaning, more, missing)


def digest_guidance(runs: Sequence[Run]) -> Figure:
    """Guidance of single digests as they were sent, each with its main class, one row for each result."""
    rows = []
    for run, label in _with_guidance(runs):
        drawn = draw_digest_guidance(run.path, str(run.setting("model.guidance")), MAX_COLUMNS)
        if isinstance(drawn, str):
            raise FedDigError(f"{run.path}: {drawn}")
        images, labels = drawn
        names = _class_names(run, labels.shape[1])
        titles = [f"{names[int(share.argmax())]} {share.max():.0%}" for share in labels]
        rows.append(_Row(label, images, titles))
    return _draw_rows(rows, "Above each picture: the largest class in its digest, and that class's share")


def sample_guidance(runs: Sequence[Run], samples: Callable[[Run, int], EncodedImages]) -> Figure:
    """Guidance of single test images below the images: not mixed, without noise, one row for each result."""
    rows: list[_Row] = []
    shown: str | None = None
    for run, label in _with_guidance(runs):
        raw = samples(run, MAX_COLUMNS)
        drawn = draw_guidance(run.path, str(run.setting("model.guidance")), raw.features)
        if isinstance(drawn, str):
            raise FedDigError(f"{run.path}: {drawn}")
        data = str(run.setting("data.name"))
        if data != shown:
            names = _class_names(run, max(len(run.classes.names), int(raw.labels.max()) + 1))
            rows.append(
                _Row(f"test image\n{data}", raw.images, [names[label] for label in raw.labels.tolist()])
            )
        rows.append(_Row(label, drawn))
        shown = data
    return _draw_rows(rows, "Guidance of the image above, from its own feature: not mixed, without noise")


def _with_guidance(runs: Sequence[Run]) -> list[tuple[Run, str]]:
    """Return the runs that have a guidance producer, each with the settings in which it differs from the others."""
    found = [run for run in runs if (run.path / "guidance.safetensors").exists()]
    if not found:
        raise FedDigError(
            "guidance is drawn from runs of FedDig, and none of these results has any (guidance.safetensors)"
        )
    if len(found) > MAX_RESULTS:
        raise FedDigError(
            f"{len(found)} results have guidance, and a figure has room for {MAX_RESULTS}; give fewer folders"
        )
    return name_runs(found, "guidance")


def _class_names(run: Run, classes: int) -> list[str]:
    names = list(run.classes.names)
    return names if len(names) == classes else [f"class {number}" for number in range(classes)]


def _draw_rows(rows: Sequence[_Row], *sentences: str) -> Figure:
    across = min(max(len(row.images) for row in rows), MAX_COLUMNS)
    figure = Figure(figsize=(1.6 + 0.85 * across, 0.6 + 1.0 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), across, squeeze=False)
    for row, line in zip(rows, grid, strict=True):
        for column, axes in enumerate(line):
            _draw_image(axes, row, column)
        line[0].set_ylabel(row.label, rotation=0, ha="right", va="center", fontsize=SMALL)
    add_explanation(figure, *sentences)
    return figure


def _draw_image(axes: Axes, row: _Row, column: int) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    if column < len(row.images):
        image = row.images[column]
        axes.imshow(
            image[0] if len(image) == 1 else image.transpose(1, 2, 0), cmap="gray", vmin=0, vmax=1,
            interpolation="nearest",
        )  # fmt: skip
        if column < len(row.titles):
            axes.set_title(row.titles[column], fontsize=SMALL - 1.5, pad=2)


def element_noise(runs: Sequence[Run]) -> Figure:
    """Variance of the noise that mixing puts on each feature element, from digests without other noise."""
    with_digests = [run for run in runs if (run.path / "digests").is_dir()]
    if not with_digests:
        raise FedDigError("element noise is measured on digests, and none of these results has any")
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axes = figure.subplots()
    named = name_runs(with_digests, "mixing")
    styles = choose_styles(name for _, name in named)
    for run, name in named:
        variances, style = np.sort(_mixing_noise(run).ravel())[::-1], styles[name]
        axes.plot(variances, drawstyle="steps-mid", color=style.colour, linestyle=style.dash, label=name)
        axes.axhline(float(variances.mean()), color=style.colour, linewidth=0.8, alpha=0.6)
    axes.set_xlabel("elements of a feature, from the most to the least perturbed")
    axes.set_ylabel("variance of the noise by mixing\n(feature units squared)")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)
    simplify_axes(axes)
    add_explanation(figure, "Level lines: the same noise spread evenly, as noise of one scale would be")
    return figure


def _mixing_noise(run: Run) -> np.ndarray:
    """Estimate, for each element, the variance that the other samples add to the heaviest one of a digest.

    A digest sum w_k r_k of independent samples has variance v sum w_k^2, which is measured; the others' part of it
    is v (sum w_k^2 - w_1^2).
    """
    mechanism, mixing = run.setting("privacy.mechanism"), run.setting("digest.mixing")
    if (mechanism, mixing) != ("none", "random"):
        raise FedDigError(
            f"{run.path}: element noise needs digests with privacy.mechanism none and digest.mixing random, "
            f"not {mechanism} and {mixing}"
        )
    samples = int(run.setting("digest.samples_per_digest"))
    weights = np.asarray(run.setting("digest.weights") or [1 / samples] * samples)
    silos = [features for features, _ in read_digests(run.path / "digests") if len(features) > 1]
    if not silos:
        raise FedDigError(f"{run.path}: no silo has two digests, so there is no variance to measure")
    # silos hold different data, so the variance is measured within each silo
    degrees = np.array([len(features) - 1 for features in silos])
    variances = np.stack([features.var(axis=0, ddof=1, dtype=np.float64) for features in silos])
    total = np.average(variances, axis=0, weights=degrees)
    power = (weights**2).sum()
    others: np.ndarray = total * (power - weights.max() ** 2) / power
    return others


def mixing_variance(runs: Sequence[Run] = ()) -> Figure:
    """Variance of noise after mixing, by the weights: drawn samples beside theory. Takes no results."""
    if runs:
        raise FedDigError("mixing variance is drawn from samples of its own; give it no results")
    figure = Figure(figsize=(5.6, 3.8), layout="constrained")
    axes = figure.subplots()
    first, fine = np.linspace(1, 0, WEIGHTS), np.linspace(1, 0, 201)
    styles = choose_styles([f"SpD {samples}" for samples in SAMPLES_PER_DIGEST])
    for samples, (name, style) in zip(SAMPLES_PER_DIGEST, styles.items(), strict=True):
        theory = variance_in_theory(mixing_weights(fine, samples))
        axes.plot(fine, theory, color=style.colour, linestyle=style.dash, label=name)
        measured = variance_in_samples(mixing_weights(first, samples))
        axes.plot(first, measured, "o", color=style.colour, markersize=4)
    # on the left one sample alone, on the right none of it
    axes.set_xlim(1.02, -0.02)
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("weight of the first sample; the others share the rest equally")
    axes.set_ylabel("variance after mixing\n(of one sample's noise)")
    axes.legend(frameon=False)
    simplify_axes(axes)
    add_explanation(
        figure, f"Lines: the sum of squared weights. Dots: {DRAWS:,} Laplace samples each, seed {SEED}"
    )
    return figure


def mixing_weights(first: np.ndarray, samples: int) -> np.ndarray:
    """Return mixing weights, one row for each weight of the first sample: (1, 0, ...) to (0, 1/(n-1), ...)."""
    rest = np.repeat((1 - first)[:, None] / (samples - 1), samples - 1, axis=1)
    return np.concatenate([first[:, None], rest], axis=1)


def variance_in_theory(weights: np.ndarray) -> np.ndarray:
    """Return the variance of sum w_k n_k for independent n_k of variance 1: the sum of w_k squared."""
    variances: np.ndarray = (weights**2).sum(1)
    return variances


def variance_in_samples(weights: np.ndarray) -> np.ndarray:
    """Measure the same variance on drawn noise: Laplace, as in the paper, with variance 1."""
    stream = np.random.default_rng(SEED)
    noise = stream.laplace(scale=np.sqrt(0.5), size=(DRAWS, weights.shape[1]))
    variances: np.ndarray = (noise @ weights.T).var(axis=0, ddof=1)
    return variances
