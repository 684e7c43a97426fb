"""How the figures look: colours, dashes and hatches that can be told apart in print and by the colour-blind.

Writing a figure as PNG and SVG, the same bytes for the same data.
"""

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from feddig.files import FORMAT_VERSION, write_atomically
from feddig.report.read_run import Run

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
"""Okabe and Ito's, chosen to be told apart with any kind of colour vision; without their yellow, lost on paper."""
DASHES = ("-", "--", "-.", ":")
HATCHES = ("", "//", "..", "\\\\", "xx", "--", "++")
GREY = "#777777"
SMALL = 8
"""Points: of what explains a figure rather than being its subject."""
SMALL_LETTERS = 15
"""Letters of that size in an inch, about."""
USUAL = ("feddig", "fedavg", "fedprox", "fednova", "feddyn", "adabest")
"""The algorithms of the paper, which look the same in every figure whether the others are there or not."""


Dash = str | tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Look:
    """What tells a curve or a row of bars from the others; any one of the three suffices."""

    colour: str
    dash: Dash
    hatch: str


FROZEN = Look(GREY, ":", "oo")
"""The control always looks like this, and a second and third one of a figure nearly so."""
CONTROLS = (FROZEN, Look("#aaaaaa", (0, (1, 3)), "**"), Look("#444444", (0, (3, 1, 1, 1)), "OO"))


def looks_of(names: Iterable[str]) -> dict[str, Look]:
    """Give each name its look: the usual ones theirs, frozen its own, the others what is left."""
    looks: dict[str, Look] = {}
    spare, controls = len(USUAL), 0
    taken: set[str] = set()
    for name in dict.fromkeys(names):
        head = name.split(",")[0]
        if is_frozen(name):
            looks[name] = CONTROLS[controls % len(CONTROLS)]
            controls += 1
        elif head in USUAL and head not in taken:
            looks[name] = _look(USUAL.index(head))
            taken.add(head)
        else:
            looks[name] = _look(spare)
            spare += 1
    return looks


def is_frozen(name: str) -> bool:
    """Say whether a name is that of a frozen control: over any base, and with whatever tells it apart."""
    return name.split(",")[0].split("+")[0] == "frozen"


def _look(place: int) -> Look:
    turn = place // len(COLOURS)
    return Look(
        COLOURS[place % len(COLOURS)],
        # a colour's second turn has other dashes and hatches than its first
        DASHES[(place + turn) % len(DASHES)],
        HATCHES[(place + turn) % len(HATCHES)],
    )


def bare(axes: Axes) -> None:
    """Take away the frame's sides that say nothing, and draw a faint grid behind everything."""
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def explain(figure: Figure, *sentences: str) -> None:
    """Write what a reader must know under the figure, small."""
    said = ". ".join(sentence for sentence in sentences if sentence)
    if said:
        across = int(figure.get_figwidth() * SMALL_LETTERS)
        figure.supxlabel(textwrap.fill(f"{said}.", across), fontsize=SMALL, color="#333333")


def accuracy_label(runs: Iterable[Run]) -> str:
    """Name the accuracy axis; the caller has checked that all runs were measured on the same kind of images."""
    return f"{next(iter(runs)).measured_on} accuracy (%)"


def spell_seeds(counts: Iterable[int]) -> str:
    """Say over how many seeds something is a mean, and what its bars or bands are."""
    found = sorted(set(counts))
    if found == [1]:
        return "One seed each, so no spread is known"
    most = found[-1]
    number = str(most) if len(found) == 1 else f"{found[0]} to {most}"
    return f"Mean ± standard deviation over n = {number} seeds"


DOTS = 200
"""Pixels an inch: enough for print."""
MAKER = f"feddig, format_version {FORMAT_VERSION}"


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write folder/name.png and folder/name.svg, and give both places."""
    written = []
    for ending in ("png", "svg"):
        path = folder / f"{name}.{ending}"
        write_atomically(path, as_bytes(figure, ending))
        written.append(path)
    return written


def as_bytes(figure: Figure, ending: str) -> bytes:
    """Spell a figure as a PNG or SVG file without dates, random names or matplotlib's version."""
    facts = {"Software": MAKER} if ending == "png" else {"Date": None, "Creator": MAKER}
    stream = BytesIO()
    # names of clip paths and markers are random unless they are salted
    with matplotlib.rc_context({"svg.hashsalt": "feddig"}):
        figure.savefig(stream, format=ending, dpi=DOTS, metadata=facts)
    return stream.getvalue()
