"""Which silo holds how much of which class, from what a results folder holds of it.

The files of a run, each read for itself: what is missing or damaged is noted, and the rest is given.
"""

import json
import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from feddig.core.absence import Absence, read_absence
from feddig.data.public_sets import FASHION_CLASSES, PUBLISHED
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
        return FASHION_CLASSES
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


MOST_SILOS = 1_000_000
"""A silo's number beyond this is damage."""
AUDITS_LIE = 2
"""How many folders below a run's an audit may lie."""


def read_settings(file: Path, notes: list[str]) -> Mapping[str, Any]:
    """Read experiment.toml; nothing, with a note why, if it cannot be used."""
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
        check_version(file, settings.get("format_version"))
    except FileNotFoundError:
        notes.append("experiment.toml is not there: settings, and how to repeat the run, are unknown.")
    except (OSError, ValueError, FileFormatError) as error:
        notes.append(_damage(file, error))
    else:
        return settings
    return {}


def read_rows(file: Path, notes: list[str], pending: list[str]) -> list[Mapping[str, Any]]:
    """Read the rounds up to the first line that is damaged: while a run goes on, the last may be half written.

    What is wrong is noted; what is only not there yet is pending.
    """
    rows: list[Mapping[str, Any]] = []
    try:
        content = file.read_bytes()
    except OSError:
        pending.append("metrics.jsonl is not there: there are no curves.")
        return []
    lines = content.splitlines()
    for number, line in enumerate(lines):
        try:
            row = json.loads(line)
            check_version(file, row["format_version"])
            if row["round"] != number:
                raise ValueError(f"round {number} expected")
        except FileFormatError as error:
            notes.append(_damage(file, error))
            break
        except (ValueError, KeyError, TypeError):
            is_half_written = number == len(lines) - 1 and not content.endswith(b"\n")
            (pending if is_half_written else notes).append(
                f"metrics.jsonl: line {number + 1} is damaged; shown are the rounds before it."
            )
            break
        rows.append(row)
    if not lines:
        pending.append("metrics.jsonl is empty: no round is finished yet.")
    return rows


def read_presence(file: Path, rows: Sequence[Mapping[str, Any]], notes: list[str]) -> Absence | None:
    """Read who was there from availability.csv, or else from the rounds themselves."""
    try:
        absence = read_absence(file)
    except FileFormatError as error:
        notes.append(
            _damage(file, error)
            if file.exists()
            else "availability.csv is not there: who was there is taken from metrics.jsonl."
        )
        return _presence_in(rows)
    # a federation writes its table anew a moment after each round
    return absence if absence.rounds >= len(rows) else _presence_in(rows)


def _presence_in(rows: Sequence[Mapping[str, Any]]) -> Absence | None:
    """Gather from the rounds themselves who was there."""
    silos = max(
        (
            max([len(row.get("validation_accuracy") or ()), *(silo + 1 for silo in _numbers(row, "present"))])
            for row in rows
        ),
        default=0,
    )
    if not silos:
        return None
    present = np.zeros((silos, len(rows)), dtype=bool)
    for round, row in enumerate(rows):
        present[silos_in(row, "present", silos), round] = True
    return Absence(present)


def read_audits(path: Path, notes: list[str]) -> list[Mapping[str, Any]]:
    """Read audits of this run's digests: audit.json here, or up to AUDITS_LIE folders below."""
    audits = []
    places = ["*/" * below + "audit.json" for below in range(AUDITS_LIE + 1)]
    for file in sorted({file for place in places for file in path.glob(place)}):
        audit = read_object(file)
        if isinstance(audit, str) or not isinstance(audit.get("checks"), list):
            notes.append(audit if isinstance(audit, str) else f"{file.name}: holds no checks; make it again.")
        else:
            audits.append(audit)
    return audits


def read_object(file: Path) -> Mapping[str, Any] | str:
    """Read a JSON object, or say why not."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        check_version(file, found["format_version"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, FileFormatError) as error:
        return _damage(file, error)
    return dict(found)


def _damage(file: Path, error: Exception) -> str:
    # the folder's own place is left out: a page is often sent to others
    said = str(error).replace(f"{file}: ", "").replace(str(file), file.name)
    return f"{file.name} cannot be used: {said}."


def silos_in(row: Mapping[str, Any], key: str, silos: int) -> list[int]:
    """List the silos that a round names under a key, those that cannot be left out."""
    return [silo for silo in _numbers(row, key) if silo < silos]


def _numbers(row: Mapping[str, Any], key: str) -> list[int]:
    found = row.get(key)
    if not isinstance(found, list):
        return []
    return [each for each in found if isinstance(each, int) and 0 <= each < MOST_SILOS]


def finite(value: Any) -> float | None:
    """Take a finite number as it is, and anything else for unknown."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None
