"""Guidance pictures next to class means."""

from collections.abc import Sequence
from html import escape

import numpy as np

from feddig.report.guidance_pictures import as_address, read_pictures
from feddig.report.runs import Run

MOST_CLASSES = 128


def guidance_section(run: Run) -> str:
    """Show what the guidance producer makes of each class, beside the mean of its images."""
    if not (run.path / "guidance.safetensors").exists():
        return ""
    pictures = read_pictures(run.path, str(run.setting("model.guidance")))
    kinds = [("class mean", pictures.means), ("guidance", pictures.guidance)]
    there = [(title, images) for title, images in kinds if images is not None]
    classes = min((len(images) for _, images in there), default=0)
    names = [*run.classes.names, *(f"class {number}" for number in range(len(run.classes.names), classes))]
    cards = "".join(
        f"<figure>{_pair(there, number)}<figcaption>{escape(names[number])}</figcaption></figure>"
        for number in range(min(classes, MOST_CLASSES))
    )
    order = " beside ".join(title for title, _ in there)
    caption = (
        f"{order[:1].upper()}{order[1:]}: what the guidance producer makes of a class, whose mean feature is "
        "estimated from the digests. It is trained to help the classifier, not to look like the class."
        if pictures.guidance is not None
        else ""
    )
    missing = " ".join(pictures.missing)
    return f'<div class="cards">{cards}</div><p class="caption">{escape(f"{caption} {missing}".strip())}</p>'


def _pair(kinds: Sequence[tuple[str, np.ndarray]], number: int) -> str:
    return "".join(
        f'<img alt="{title}" src="{as_address(images[number])}" width="64" height="64">'
        for title, images in kinds
    )
