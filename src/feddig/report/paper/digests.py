"""Pictures of guidance: what the guidance producer makes of classes and of single digests, a row for each result."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddig.errors import FedDigError
from feddig.report.paper.averages import name_apart
from feddig.report.paper.style import SMALL, explain
from feddig.report.pictures import ShownSamples, paint_digests, paint_features, read_pictures
from feddig.report.read_run import Run

MOST_ACROSS = 10
MOST_RESULTS = 12


@dataclass(frozen=True)
class _Row:
    label: str
    images: np.ndarray
    """[images, channels, height, width], from 0 to 1."""
    titles: Sequence[str] = ()


def class_guidance(runs: Sequence[Run]) -> Figure:
    """Guidance of each class beside the mean image of the class, a row for each result."""
    rows: list[_Row] = []
    said = "Guidance of a class: of its mean feature, estimated from the digests"
    classes = 0
    shown: str | None = None
    without: dict[str, None] = {}
    for run, label in _with_guidance(runs):
        pictures = read_pictures(run.path, str(run.setting("model.guidance")))
        if pictures.guidance is None:
            raise FedDigError(f"{run.path}: {pictures.missing[-1]}")
        classes = max(classes, len(pictures.guidance))
        names = _class_names(run, len(pictures.guidance))
        data = str(run.setting("data.name"))
        titles: Sequence[str] = () if data == shown else names
        if pictures.means is not None and data != shown:
            rows.append(_Row(f"class mean\n{data}", pictures.means, titles))
            titles = ()
        elif data != shown:
            without[data] = None
        rows.append(_Row(label, pictures.guidance, titles))
        shown = data
    more = f"The first {MOST_ACROSS} of {classes} classes" if classes > MOST_ACROSS else ""
    lacking = f"No class means in the results on {', '.join(without)}" if without else ""
    return _draw_rows(rows, said, more, lacking)


def digest_guidance(runs: Sequence[Run]) -> Figure:
    """Guidance of single digests as they were sent, each with its main class, a row for each result."""
    rows = []
    for run, label in _with_guidance(runs):
        painted = paint_digests(run.path, str(run.setting("model.guidance")), MOST_ACROSS)
        if isinstance(painted, str):
            raise FedDigError(f"{run.path}: {painted}")
        images, labels = painted
        names = _class_names(run, labels.shape[1])
        titles = [f"{names[int(share.argmax())]} {share.max():.0%}" for share in labels]
        rows.append(_Row(label, images, titles))
    return _draw_rows(rows, "Over each picture: the largest class in its digest, and that class's share")


def sample_guidance(runs: Sequence[Run], samples: Callable[[Run, int], ShownSamples]) -> Figure:
    """Guidance of single test images under the images themselves: not mixed, without noise; a row for each result."""
    rows: list[_Row] = []
    shown: str | None = None
    for run, label in _with_guidance(runs):
        raw = samples(run, MOST_ACROSS)
        painted = paint_features(run.path, str(run.setting("model.guidance")), raw.features)
        if isinstance(painted, str):
            raise FedDigError(f"{run.path}: {painted}")
        data = str(run.setting("data.name"))
        if data != shown:
            names = _class_names(run, max(len(run.classes.names), int(raw.labels.max()) + 1))
            titles = [names[int(number)] for number in raw.labels]
            rows.append(_Row(f"test image\n{data}", raw.images, titles))
        rows.append(_Row(label, painted))
        shown = data
    return _draw_rows(rows, "Guidance of the image above, as its feature is: not mixed, without noise")


def _with_guidance(runs: Sequence[Run]) -> list[tuple[Run, str]]:
    """Keep the runs that have a guidance producer, each with what sets it apart from the others."""
    having = [run for run in runs if (run.path / "guidance.safetensors").exists()]
    if not having:
        raise FedDigError(
            "guidance is drawn from runs of FedDig, and none of these results has any (guidance.safetensors)"
        )
    if len(having) > MOST_RESULTS:
        raise FedDigError(
            f"{len(having)} results have guidance, and a figure has room for {MOST_RESULTS}; give fewer folders"
        )
    return name_apart(having, "guidance")


def _class_names(run: Run, classes: int) -> list[str]:
    known = list(run.classes.names)
    return known if len(known) == classes else [f"class {number}" for number in range(classes)]


def _draw_rows(rows: Sequence[_Row], *said: str) -> Figure:
    across = min(max(len(row.images) for row in rows), MOST_ACROSS)
    figure = Figure(figsize=(1.6 + 0.85 * across, 0.6 + 1.0 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), across, squeeze=False)
    for row, line in zip(rows, grid, strict=True):
        for place, axes in enumerate(line):
            _draw_image(axes, row, place)
        line[0].set_ylabel(row.label, rotation=0, ha="right", va="center", fontsize=SMALL)
    explain(figure, *said)
    return figure


def _draw_image(axes: Axes, row: _Row, place: int) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    if place < len(row.images):
        image = row.images[place]
        axes.imshow(
            image[0] if len(image) == 1 else image.transpose(1, 2, 0), cmap="gray", vmin=0, vmax=1,
            interpolation="nearest",
        )  # fmt: skip
        if place < len(row.titles):
            axes.set_title(row.titles[place], fontsize=SMALL - 1.5, pad=2)
