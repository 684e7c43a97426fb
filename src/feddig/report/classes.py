"""Which silo holds how much of which class, from what a results folder holds of it."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feddig.data.bundled import CLASS_NAMES
from feddig.data.public_sets import PUBLISHED
from feddig.errors import FileFormatError
from feddig.files import check_version, read_tensors


@dataclass(frozen=True)
class Classes:
    """Class names and training samples, as far as they are known."""

    names: Sequence[str]
    counts: np.ndarray | None
    """Silo x class."""
    sizes: Sequence[int]
    """Training samples of each silo; empty if unknown."""
    told: str
    """Where the counts come from, or why there are none."""
    silos: Sequence[str] = ()
    """What the silos are called; empty if they only have numbers."""


def read_classes(folder: Path, data: str) -> Classes:
    """Read class counts from classes.json, or else from the labels of the digests; `data` names the data set."""
    sizes = _read_sizes(folder / "partition.csv")
    stored = _read_stored(folder / "classes.json")
    if stored is not None:
        stored_names, counts, silos = stored
        told = "Training samples of each class."
        return Classes(stored_names, counts, counts.sum(1).tolist(), told, silos)
    names = _known_names(data)
    summed = _sum_labels(folder / "digests")
    if summed is None:
        told = "The folder holds neither classes.json nor digests, so how classes are spread is not known."
        return Classes(names, None, sizes, told)
    counts, told = summed
    if len(names) != counts.shape[1]:
        names = [f"class {number}" for number in range(counts.shape[1])]
    return Classes(names, counts, sizes, told)


def _known_names(data: str) -> Sequence[str]:
    if data == "fashion-mini":
        return CLASS_NAMES
    return PUBLISHED[data].classes if data in PUBLISHED else ()


def _read_stored(file: Path) -> tuple[list[str], np.ndarray, list[str]] | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        check_version(file, found["format_version"])
        names, counts = [str(name) for name in found["names"]], np.asarray(found["counts"], dtype=np.int64)
        silos = [str(name) for name in found.get("silos", ())]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, FileFormatError):
        return None
    fits = counts.ndim == 2 and counts.shape[1] == len(names) and len(silos) in (0, len(counts))
    return (names, counts, silos) if fits and (counts >= 0).all() else None


def _read_sizes(file: Path) -> list[int]:
    """Count each silo's training samples in partition.csv."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    silos = Counter(parts[1] for parts in (line.split(",") for line in lines) if parts[2:] == ["train"])
    if not silos or not all(silo.isdecimal() and len(silo) < 7 for silo in silos):
        return []
    return [silos[str(silo)] for silo in range(1 + max(map(int, silos)))]


def _sum_labels(folder: Path) -> tuple[np.ndarray, str] | None:
    """Count samples by the soft labels of digests: each digest mixes SpD samples, and its labels are their shares."""
    rows: dict[int, np.ndarray] = {}
    noisy = False
    for file in folder.glob("silo-*.safetensors"):
        try:
            tensors, head = read_tensors(file, "digest")
            facts: Mapping[str, Any] = json.loads(head["facts"])
            rows[int(head["silo"])] = tensors["labels"].sum(0) * int(facts["samples_per_digest"])
            noisy |= bool(facts.get("label_epsilon"))
        except (FileFormatError, KeyError, ValueError, TypeError, AttributeError):
            continue  # a damaged digest is as good as none: the others still tell their part
    widths = {row.shape for row in rows.values()}
    if len(widths) != 1:
        return None
    counts = np.zeros((1 + max(rows), *widths.pop()))
    for silo, row in rows.items():
        counts[silo] = row
    told = (
        "Training samples in digests, counted by their labels; the few that filled no digest are not in it."
    )
    if noisy:
        told += " The labels carry noise, so these counts do too."
    return np.rint(counts).astype(np.int64), told
