"""Draw pictures as PNG without torch: accuracy curves, the pictures of an audit, and guidance."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from statistics import fmean

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import NullFormatter
from PIL import Image

from feddig.core.absence import Absence
from feddig.errors import FileFormatError
from feddig.files import FORMAT_VERSION, read_tensors, write_atomically
from feddig.privacy.mechanisms import mechanism_of
from feddig.report.curve_styles import STATES, choose_styles
from feddig.report.grouping import Curve
from feddig.report.page_data import split_into_periods
from feddig.report.read_run import Run, read_rounds

HERE, EDGE, AWAY = (STATES[state][0] for state in ("here", "recalled", "away"))
LINE_WIDTH = 2.0
HANDLE_LENGTH = 3.2
"""Length of a line in a legend, in letters: long enough to show every pattern."""
GENERATOR = f"feddig, format_version {FORMAT_VERSION}"
DPI = 120
"""Of the pictures of curves, in pixels per inch."""
MIN_FALSE_POSITIVES = 1e-3
"""The left end of the membership curves; the axis is logarithmic because few false alarms matter most."""
IMAGE_GAP = 2
"""Pixels between images."""
MAX_DIGESTS = 4000
"""Class means are estimated from up to this many digests; more do not change the picture."""
LONGEST_NAME = 16
"""Characters of a silo's name."""


def to_bytes(figure: Figure, ending: str = "png", dpi: int = 100) -> bytes:
    """Return a figure as a PNG or SVG file without dates, versions or random names: same data, same bytes."""
    metadata = {"Software": GENERATOR} if ending == "png" else {"Date": None, "Creator": GENERATOR}
    stream = BytesIO()
    # without a salt, the names of clip paths and markers in SVG are random
    with matplotlib.rc_context({"svg.hashsalt": "feddig"}), warnings.catch_warnings():
        # a name in a script that matplotlib's font lacks is drawn as boxes
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(stream, format=ending, dpi=dpi, metadata=metadata)
    return stream.getvalue()


class NotebookFigure(Figure):
    """A figure that a notebook shows even if it has not imported pyplot."""

    def _repr_png_(self) -> bytes:
        return to_bytes(self)


def draw_run(path: Path) -> None:
    """Draw curves.png of a run into its folder."""
    write_atomically(path / "curves.png", to_bytes(plot_run(read_rounds(path)), dpi=DPI))


def draw_curves(runs: Sequence[Run], title: str) -> bytes:
    """Return the figure of `plot_curves` as a PNG file."""
    return to_bytes(plot_curves(runs, title), dpi=DPI)


def plot_run(run: Run) -> NotebookFigure:
    """Plot one run's accuracy over rounds, and who is away."""
    title = f"{run.algorithm}, {run.scenario}, seed {run.seed}"
    if len(run.rows) < run.planned_rounds:
        title += f", {len(run.rows)} of {run.planned_rounds} rounds"
    return plot_curves([run], title)


def plot_curves(runs: Sequence[Run], title: str) -> NotebookFigure:
    """Plot accuracy over rounds, one curve for each algorithm (the mean over its seeds), and who is away."""
    absences = [run.absence for run in runs if run.absence is not None]
    figure = NotebookFigure(figsize=(8, 5), layout="constrained")
    ratios = (4, 0.5 + 0.12 * min(absences[0].silos, 12))
    curves, table = figure.subplots(2, 1, sharex=True, height_ratios=ratios)
    legend_title = "at the end"
    for algorithm, style in choose_styles(run.algorithm for run in runs).items():
        curve = Curve(algorithm, [run for run in runs if run.algorithm == algorithm])
        seeds = [_accuracies(run) for run in curve.runs]
        means = [fmean(values) for values in zip(*seeds, strict=True)]
        label, before = f"{algorithm}  {means[-1]:.1f}", curve.before_the_leave
        if before:
            legend_title = "at the end (before the first leave)"
            label += f"  ({fmean(before.values()):.1f})"
        curves.plot(means, color=style.colour, linestyle=style.dash, linewidth=LINE_WIDTH, label=label)
        if len(seeds) > 1:
            low, high = ([edge(values) for values in zip(*seeds, strict=True)] for edge in (min, max))
            curves.fill_between(range(len(means)), low, high, color=style.colour, alpha=0.15, linewidth=0)
    low, high = curves.get_ylim()
    if high > 100:
        # no accuracy is above 100; a line at 100 is drawn whole
        curves.set_ylim(min(low, 95), 100.4)
    curves.set_ylabel(f"{runs[0].measured_on} accuracy (%)")
    curves.set_title(title)
    curves.grid(alpha=0.25)
    curves.legend(
        title=legend_title, loc="best", framealpha=0.8, edgecolor="none", handlelength=HANDLE_LENGTH
    )
    for side in ("top", "right"):
        curves.spines[side].set_visible(False)
    seeds_differ = len({absence.present.tobytes() for absence in absences}) > 1
    names = next(run.classes.silo_names for run in runs if run.absence is absences[0])
    _draw_absence(table, absences[0], names, seeds_differ=seeds_differ)
    return figure


def _accuracies(run: Run) -> list[float]:
    return [math.nan if value is None else value for value in run.accuracies]


def _draw_absence(axes: Axes, absence: Absence, names: Sequence[str], *, seeds_differ: bool) -> None:
    """Draw one bar for each silo, with its name or else its number: here, away, not joined."""
    for silo, row in enumerate(absence.present.tolist()):
        joined = int(absence.rounds - absence.joined[silo].sum())
        for start, end, is_here in split_into_periods(row):
            colour = HERE if is_here else "white" if start < joined else AWAY
            axes.broken_barh(
                [(start - 0.5, end - start)],
                (silo - 0.4, 0.8),
                facecolors=colour,
                edgecolors=EDGE,
                linewidth=0.4,
            )
    axes.set_ylim(absence.silos - 0.5, -0.5)
    if absence.silos <= 12:
        axes.set_yticks(range(absence.silos))
        if len(names) == absence.silos:
            axes.set_yticklabels(map(_short, names), fontsize=8, parse_math=False)
    axes.set_ylabel("silo")
    label = "round      (dark: here, light: away, white: not joined)"
    axes.set_xlabel(label + ("; first seed's" if seeds_differ else ""))
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"


def draw_membership(curves: Mapping[str, np.ndarray]) -> bytes:
    """Draw true over false positives, one curve for each score."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    styles = choose_styles(curves)
    for name, points in curves.items():
        axes.plot(
            np.maximum(points[:, 0], MIN_FALSE_POSITIVES),
            points[:, 1],
            color=styles[name].colour,
            linestyle=styles[name].dash,
            linewidth=LINE_WIDTH,
            label=name,
            drawstyle="steps-post",
        )
    chance = np.geomspace(MIN_FALSE_POSITIVES, 1, 100)
    axes.plot(chance, chance, color="#888888", linewidth=1, label="chance")
    axes.set_xscale("log")
    # written by hand: powers of ten would need mathematical fonts
    axes.set_xticks([0.001, 0.01, 0.1, 1], ["0.1 %", "1 %", "10 %", "100 %"])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(MIN_FALSE_POSITIVES, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("non-members taken for members (logarithmic)")
    axes.set_ylabel("members found (share)")
    axes.grid(alpha=0.25)
    # below the axes, because the curves may be anywhere between them
    figure.legend(frameon=False, loc="outside lower center", ncols=3, handlelength=HANDLE_LENGTH)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return to_bytes(figure)


def draw_recovered(pictures: Mapping[str, np.ndarray]) -> bytes:
    """Draw one row for each digest: its members, then what each attack recovered."""
    columns = {name: _arrange(images) for name, images in pictures.items()}
    widths = [column.shape[1] for column in columns.values()]
    height = next(iter(columns.values())).shape[0]
    inches = 12 / sum(widths)
    figure = Figure(figsize=(12.6, height * inches + 0.9), layout=ConstrainedLayoutEngine(w_pad=0.06))
    row = figure.subplots(1, len(columns), width_ratios=widths, squeeze=False)[0]
    for axes, (name, column) in zip(row, columns.items(), strict=True):
        axes.imshow(column, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(name.replace(", ", ",\n").replace(" by ", "\nby "), fontsize=9)
        axes.set_axis_off()
    return to_bytes(figure)


def _arrange(images: np.ndarray) -> np.ndarray:
    """Arrange [rows, images in a row, channels, height, width] as one picture with white between images."""
    rows, across, channels, height, width = images.shape
    canvas = np.ones(
        (rows * (height + IMAGE_GAP) - IMAGE_GAP, across * (width + IMAGE_GAP) - IMAGE_GAP, channels),
        dtype=np.float32,
    )
    for row in range(rows):
        for place in range(across):
            top, left = row * (height + IMAGE_GAP), place * (width + IMAGE_GAP)
            canvas[top : top + height, left : left + width] = images[row, place].transpose(1, 2, 0)
    return canvas if channels == 3 else canvas[..., 0]


@dataclass(frozen=True)
class ClassPictures:
    """Images in [0, 1], class x channels x height x width; None where there are none, with the reasons."""

    guidance: np.ndarray | None
    means: np.ndarray | None
    missing: Sequence[str]


@dataclass(frozen=True)
class EncodedImages:
    """Images in [0, 1] with the features that an encoder gives them and their labels."""

    images: np.ndarray
    features: np.ndarray
    labels: np.ndarray


def read_class_pictures(folder: Path, producer: str) -> ClassPictures:
    """Draw the guidance of each class, and read the mean image of each class.

    `producer` is the setting model.guidance; only the guidance producer that comes with FedDig can be run here.
    """
    missing = []
    means = _read_means(folder / "class_means.safetensors")
    if means is None:
        missing.append("The mean image of each class is not in the folder (class_means.safetensors).")
    guidance = None
    if not (folder / "guidance.safetensors").exists():
        missing.append("There is no guidance producer in the folder (guidance.safetensors).")
    elif (features := _class_features(folder / "digests")) is None:
        missing.append("Guidance is drawn from digests, and the folder has none.")
    else:
        drawn = draw_guidance(folder, producer, features)
        if isinstance(drawn, str):
            missing.append(f"{drawn[:1].upper()}{drawn[1:]}.")
        else:
            guidance = drawn
    return ClassPictures(guidance, means, missing)


def draw_digest_guidance(folder: Path, producer: str, count: int) -> tuple[np.ndarray, np.ndarray] | str:
    """Draw the guidance of single digests, taken from the silos in turn, and return it with their soft labels.

    Where that is not possible, return the reason.
    """
    silos = read_digests(folder / "digests")
    chosen = [(silo, place) for place in range(count) for silo in silos if place < len(silo[0])][:count]
    if not chosen:
        return "guidance is drawn from digests, and the folder has none"
    guidance = draw_guidance(folder, producer, np.stack([silo[0][place] for silo, place in chosen]))
    if isinstance(guidance, str):
        return guidance
    return guidance, np.stack([silo[1][place] for silo, place in chosen])


def draw_guidance(folder: Path, producer: str, features: np.ndarray) -> np.ndarray | str:
    """Draw what a run's guidance producer makes of features; where that is not possible, return the reason."""
    if producer != "deconvolution":
        return f"the guidance producer is your own ({producer}), which cannot be run here"
    guidance = _run_producer(folder / "guidance.safetensors", features)
    if guidance is None:
        return "guidance.safetensors is missing, damaged or of another shape than FedDig's own"
    return guidance


def read_digests(folder: Path) -> list[tuple[np.ndarray, np.ndarray]]:
    """Read the features and soft labels of each silo's digest; a damaged digest is left out."""
    found = []
    for file in sorted(folder.glob("silo-*.safetensors")):
        with suppress(FileFormatError, KeyError, ValueError, TypeError):
            tensors, head = read_tensors(file, "digest")
            found.append((_received(tensors["features"], head), tensors["labels"]))
    return found


def _received(stored: np.ndarray, head: Mapping[str, str]) -> np.ndarray:
    """Return the features of what a digest file holds, as every receiver does."""
    facts = json.loads(head["facts"])
    return mechanism_of(facts).received(stored, facts)


def _class_features(folder: Path) -> np.ndarray | None:
    """Estimate each class's mean feature by least squares: a digest is about its labels times these means."""
    found = read_digests(folder)
    features, labels = [pair[0] for pair in found], [pair[1] for pair in found]
    if not features or len({each.shape[1:] for each in features + labels}) != 2:
        return None
    mixed, shares = np.concatenate(features), np.concatenate(labels)
    kept = np.linspace(0, len(mixed) - 1, min(len(mixed), MAX_DIGESTS)).round().astype(int)
    means = np.linalg.lstsq(shares[kept], mixed[kept].reshape(len(kept), -1), rcond=None)[0]
    # features come from a ReLU, so they are never negative
    class_features: np.ndarray = np.maximum(means, 0).reshape(-1, *mixed.shape[1:]).astype(np.float32)
    return class_features


def _read_means(file: Path) -> np.ndarray | None:
    try:
        means = read_tensors(file, "class-means")[0]["means"]
    except (FileFormatError, KeyError):
        return None
    return means if means.ndim == 4 and means.shape[1] in (1, 3) and np.isfinite(means).all() else None


def _run_producer(file: Path, features: np.ndarray) -> np.ndarray | None:
    """Run the guidance producer: transposed convolutions without overlap, ReLU between them, a sigmoid at the end."""
    try:
        layers = _read_layers(read_tensors(file, "guidance")[0])
        for place, (weight, bias) in enumerate(layers):
            batch, _, height, width = features.shape
            tiles = np.einsum("bchw,coij->bohiwj", features, weight)
            features = tiles.reshape(batch, -1, height * weight.shape[2], width * weight.shape[3])
            features = features + bias[:, None, None]
            is_last = place == len(layers) - 1
            features = 1 / (1 + np.exp(np.minimum(-features, 80))) if is_last else np.maximum(features, 0)
    except (FileFormatError, KeyError, ValueError, IndexError, StopIteration):
        return None
    return features if features.shape[1] in (1, 3) else None


def _read_layers(tensors: Mapping[str, np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    places = sorted({int(name.split(".")[-2]) for name in tensors})
    prefix = next(iter(tensors)).rsplit(".", 2)[0]
    return [(tensors[f"{prefix}.{place}.weight"], tensors[f"{prefix}.{place}.bias"]) for place in places]


def image_png(image: np.ndarray) -> bytes:
    """Return an image in [0, 1], channels x height x width, as a PNG file."""
    pixels = (255 * image.clip(0, 1)).round().astype(np.uint8)
    array = pixels.transpose(1, 2, 0) if len(pixels) == 3 else pixels[0]
    stream = BytesIO()
    Image.fromarray(array).save(stream, "PNG", optimize=True)
    return stream.getvalue()
