"""An audit's pictures: membership curves, and members beside what attacks recovered."""

from collections.abc import Mapping
from io import BytesIO

import numpy as np
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import NullFormatter

from feddig.files import FORMAT_VERSION
from feddig.report.figures import COLOURS, STYLES

FEWEST = 1e-3
"""The left end of the curves, whose axis is logarithmic: what counts is few false alarms."""
GAP = 2
"""Pixels between images."""


def draw_membership(curves: Mapping[str, np.ndarray]) -> bytes:
    """Draw true over false positives, a curve for each score."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for place, (name, points) in enumerate(curves.items()):
        axes.plot(
            np.maximum(points[:, 0], FEWEST),
            points[:, 1],
            color=COLOURS[place % len(COLOURS)],
            linestyle=STYLES[place % len(STYLES)],
            linewidth=2,
            label=name,
            drawstyle="steps-post",
        )
    chance = np.geomspace(FEWEST, 1, 100)
    axes.plot(chance, chance, color="#888888", linewidth=1, label="chance")
    axes.set_xscale("log")
    # spelled by hand: powers of ten would need mathematical fonts
    axes.set_xticks([0.001, 0.01, 0.1, 1], ["0.1 %", "1 %", "10 %", "100 %"])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(FEWEST, 1)
    axes.set_ylim(0, 1.02)
    axes.set_xlabel("strangers taken for members (logarithmic)")
    axes.set_ylabel("members found (share)")
    axes.grid(alpha=0.25)
    # under the curves, which may be anywhere between the axes
    figure.legend(frameon=False, loc="outside lower center", ncols=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return _png(figure)


def draw_recovered(pictures: Mapping[str, np.ndarray]) -> bytes:
    """Draw a row for each digest: its members, then what each attack made of it."""
    columns = {name: _column(images) for name, images in pictures.items()}
    widths = [column.shape[1] for column in columns.values()]
    height = next(iter(columns.values())).shape[0]
    inches = 12 / sum(widths)
    figure = Figure(figsize=(12.6, height * inches + 0.9), layout=ConstrainedLayoutEngine(w_pad=0.06))
    row = figure.subplots(1, len(columns), width_ratios=widths, squeeze=False)[0]
    for axes, (name, column) in zip(row, columns.items(), strict=True):
        axes.imshow(column, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(name.replace(", ", ",\n").replace(" by ", "\nby "), fontsize=9)
        axes.set_axis_off()
    return _png(figure)


def _column(images: np.ndarray) -> np.ndarray:
    """Lay [rows, images in a row, channels, height, width] out as one picture, white between images."""
    rows, across, channels, height, width = images.shape
    canvas = np.ones((rows * (height + GAP) - GAP, across * (width + GAP) - GAP, channels), dtype=np.float32)
    for row in range(rows):
        for place in range(across):
            top, left = row * (height + GAP), place * (width + GAP)
            canvas[top : top + height, left : left + width] = images[row, place].transpose(1, 2, 0)
    return canvas if channels == 3 else canvas[..., 0]


def _png(figure: Figure) -> bytes:
    stream = BytesIO()
    # no date or version inside: the same audit draws the same bytes
    figure.savefig(
        stream, format="png", dpi=100, metadata={"Software": f"feddig, format_version {FORMAT_VERSION}"}
    )
    return stream.getvalue()
