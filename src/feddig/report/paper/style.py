"""Style the figures so that curves and bars can be told apart in print and with any colour vision, and save them."""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddig.files import write_atomically
from feddig.report.pictures import to_bytes
from feddig.report.read_run import Run

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""The palette of Okabe and Ito for any colour vision, without its yellow, which is too pale on paper."""
DASHES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++")
GREY = "#777777"
SMALL = 8
"""Font size of explanations, in points."""
LETTERS_PER_INCH = 15
"""Letters of that size in an inch, about."""
DPI = 200
"""Enough for print."""
PAPER_ALGORITHMS = ("feddig", "fedavg", "fedprox", "fednova", "feddyn", "adabest")
"""The paper's algorithms have the same style in every figure."""

Dash = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Style:
    """Distinguishes a curve or a set of bars from the others; any one of the three suffices."""

    colour: str
    dash: Dash
    hatch: str


FROZEN = Style(GREY, ":", "oo")
"""The frozen control always has this style; a second and third control of a figure have similar ones."""
CONTROLS = (FROZEN, Style("#aaaaaa", (0, (1, 3)), "**"), Style("#444444", (0, (3, 1, 1, 1)), "OO"))


def choose_styles(names: Iterable[str]) -> dict[str, Style]:
    """Give each name a style: the paper's algorithms and controls their own, the others what is left."""
    styles: dict[str, Style] = {}
    next_free, controls = len(PAPER_ALGORITHMS), 0
    used: set[str] = set()
    for name in dict.fromkeys(names):
        algorithm = name.split(",")[0]
        if is_frozen(name):
            styles[name] = CONTROLS[controls % len(CONTROLS)]
            controls += 1
        elif algorithm in PAPER_ALGORITHMS and algorithm not in used:
            styles[name] = _style(PAPER_ALGORITHMS.index(algorithm))
            used.add(algorithm)
        else:
            styles[name] = _style(next_free)
            next_free += 1
    return styles


def is_frozen(name: str) -> bool:
    """Return whether a name is that of a frozen control, over any base and with any settings after it."""
    return name.split(",")[0].split("+")[0] == "frozen"


def _style(number: int) -> Style:
    repeat = number // len(COLOURS)
    return Style(
        COLOURS[number % len(COLOURS)],
        # a colour that is used again gets other dashes and hatches
        DASHES[(number + repeat) % len(DASHES)],
        HATCHES[(number + repeat) % len(HATCHES)],
    )


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
