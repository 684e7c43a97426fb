"""Lay out and explain the figures, and save them; curve_styles has the colours."""

import textwrap
from collections.abc import Iterable
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddig.files import write_atomically
from feddig.report.pictures import to_bytes
from feddig.report.read_run import Run

GREY = "#777777"
"""Of marks that are no curve."""
SMALL = 8
"""Font size of explanations, in points."""
LETTERS_PER_INCH = 15
"""Letters of that size in an inch, about."""
DPI = 200
"""Enough for print."""


def is_frozen(name: str) -> bool:
    """Return whether a name is that of a frozen control, over any base and with any settings after it."""
    return name.split(",")[0].split("+")[0] == "frozen"


def simplify_axes(axes: Axes) -> None:
    """Remove the top and right side of the frame, and draw a faint grid behind everything."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def add_explanation(figure: Figure, *sentences: str) -> None:
    """Write what a reader must know under the figure, in small letters."""
    text = ". ".join(sentence for sentence in sentences if sentence)
    if text:
        width = int(figure.get_figwidth() * LETTERS_PER_INCH)
        figure.supxlabel(textwrap.fill(f"{text}.", width), fontsize=SMALL, color="#333333")


def accuracy_label(runs: Iterable[Run]) -> str:
    """Return the label of the accuracy axis, for runs that were measured on the same kind of images."""
    return f"{next(iter(runs)).measured_on} accuracy (%)"


def describe_seeds(counts: Iterable[int]) -> str:
    """Say over how many seeds the values are means, and what the bars or bands show."""
    found = sorted(set(counts))
    if found == [1]:
        return "One seed each, so no spread is known"
    number = str(found[0]) if len(found) == 1 else f"{found[0]} to {found[-1]}"
    return f"Mean ± standard deviation over n = {number} seeds"


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write folder/name.png and folder/name.svg, and return both paths."""
    paths = [folder / f"{name}.{ending}" for ending in ("png", "svg")]
    for path in paths:
        write_atomically(path, to_bytes(figure, path.suffix[1:], DPI))
    return paths
