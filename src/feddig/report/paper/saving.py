"""Writing a figure as PNG and SVG, the same bytes for the same data."""

from io import BytesIO
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from feddig.files import FORMAT_VERSION, write_atomically

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
