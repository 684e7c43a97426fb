"""Read the files of a results folder one by one.

For reports, a file that is missing or damaged becomes a note, and the other files are still read.
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

MAX_SILO_NUMBER = 1_000_000
"""A larger silo number is damage."""
AUDIT_DEPTH = 2
"""An audit may lie this many folders below its run."""


def read_settings(file: Path, notes: list[str]) -> Mapping[str, Any]:
    """Read experiment.toml; return no settings, with a note why, if it cannot be used."""
    try:
        settings = tomllib.loads(file.read_text(encoding="utf-8"))
        check_version(file, settings.get("format_version"))
    except FileNotFoundError:
        notes.append("experiment.toml is missing: settings, and how to repeat the run, are unknown.")
    except (OSError, ValueError, FileFormatError) as error:
        notes.append(_describe_damage(file, error))
    else:
        return settings
    return {}


def read_rows(file: Path, notes: list[str], pending: list[str]) -> list[Mapping[str, Any]]:
    """Read the rows of metrics.jsonl up to the first damaged line.

    Damage goes into `notes`. What a running process has yet to write, such as the rest of the last line, goes into
    `pending`.
    """
    rows: list[Mapping[str, Any]] = []
    try:
        content = file.read_bytes()
    except OSError:
        pending.append("metrics.jsonl is missing: there are no curves.")
        return []
    lines = content.splitlines()
    for number, line in enumerate(lines):
        try:
            row = json.loads(line)
            check_version(file, row["format_version"])
            if row["round"] != number:
                raise ValueError(f"round {number} expected")
        except FileFormatError as error:
            notes.append(_describe_damage(file, error))
            break
        except (ValueError, KeyError, TypeError):
            is_half_written = number == len(lines) - 1 and not content.endswith(b"\n")
            (pending if is_half_written else notes).append(
                f"metrics.jsonl: line {number + 1} is damaged; only the rounds before it are shown."
            )
            break
        rows.append(row)
    if not lines:
        pending.append("metrics.jsonl is empty: no round is finished yet.")
    return rows


def read_availability(file: Path, rows: Sequence[Mapping[str, Any]], notes: list[str]) -> Absence | None:
    """Read availability.csv; if it cannot be used, take who was present from the rows of metrics.jsonl."""
    try:
        absence = read_absence(file)
    except FileFormatError as error:
        notes.append(
            _describe_damage(file, error)
            if file.exists()
            else "availability.csv is missing: who was present is taken from metrics.jsonl."
        )
        return _availability_in(rows)
    # a federation updates its table shortly after each round
    return absence if absence.rounds >= len(rows) else _availability_in(rows)


def _availability_in(rows: Sequence[Mapping[str, Any]]) -> Absence | None:
    """Return who was present according to the rows themselves."""
    counts = [len(row.get("validation_accuracy") or ()) for row in rows]
    numbers = [silo + 1 for row in rows for silo in _silo_numbers(row, "present")]
    silos = max([*counts, *numbers], default=0)
    if not silos:
        return None
    present = np.zeros((silos, len(rows)), dtype=bool)
    for round, row in enumerate(rows):
        present[silos_in(row, "present", silos), round] = True
    return Absence(present)


def silos_in(row: Mapping[str, Any], key: str, silos: int) -> list[int]:
    """Return the numbers of the silos that a row lists under a key; numbers that cannot be are left out."""
    return [silo for silo in _silo_numbers(row, key) if silo < silos]


def _silo_numbers(row: Mapping[str, Any], key: str) -> list[int]:
    found = row.get(key)
    if not isinstance(found, list):
        return []
    return [each for each in found if isinstance(each, int) and 0 <= each < MAX_SILO_NUMBER]


def read_audits(folder: Path, notes: list[str]) -> list[Mapping[str, Any]]:
    """Read every audit.json in a run's folder and up to AUDIT_DEPTH folders below."""
    audits = []
    patterns = ["*/" * depth + "audit.json" for depth in range(AUDIT_DEPTH + 1)]
    for file in sorted({file for pattern in patterns for file in folder.glob(pattern)}):
        audit = read_json(file)
        if isinstance(audit, str):
            notes.append(audit)
        elif not isinstance(audit.get("checks"), list):
            notes.append(f"{file.name} has no checks; make the audit again.")
        else:
            audits.append(audit)
    return audits


def read_json(file: Path) -> Mapping[str, Any] | str:
    """Read a JSON object, or return a sentence that says why it cannot be used."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        check_version(file, found["format_version"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, FileFormatError) as error:
        return _describe_damage(file, error)
    return dict(found)


def read_summary(folder: Path) -> dict[str, Any]:
    """Read summary.json; a missing or damaged file is an error."""
    path = folder / "summary.json"
    try:
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise FileFormatError(f"{path}: cannot be read ({error})") from None
    check_version(path, summary.get("format_version"))
    return summary


def _describe_damage(file: Path, error: Exception) -> str:
    # without the folder's path: a page is often sent to others
    reason = str(error).replace(f"{file}: ", "").replace(str(file), file.name)
    return f"{file.name} cannot be used: {reason}."


def finite(value: Any) -> float | None:
    """Return a finite number as a float, and None for anything else."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


@dataclass(frozen=True)
class Classes:
    """How the classes are spread over the silos, as far as it is known."""

    names: Sequence[str]
    counts: np.ndarray | None
    """Training samples, silo x class."""
    sizes: Sequence[int]
    """Training samples of each silo; empty if unknown."""
    source: str
    """A sentence: where the counts come from, or why there are none."""
    silo_names: Sequence[str] = ()
    """Empty if the silos only have numbers."""


NO_CLASSES = Classes((), None, (), "")


def read_classes(folder: Path, data_name: str) -> Classes:
    """Read class counts from classes.json, or else from the labels of the digests."""
    stored = _read_stored_classes(folder / "classes.json")
    if stored is not None:
        return stored
    names, sizes = _known_names(data_name), _read_sizes(folder / "partition.csv")
    counted = _count_labels(folder / "digests")
    if counted is None:
        source = "The folder has neither classes.json nor digests, so how classes are spread is not known."
        return Classes(names, None, sizes, source)
    counts, source = counted
    if len(names) != counts.shape[1]:
        names = [f"class {number}" for number in range(counts.shape[1])]
    return Classes(names, counts, sizes, source)


def _read_stored_classes(file: Path) -> Classes | None:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        check_version(file, found["format_version"])
        names, counts = [str(name) for name in found["names"]], np.asarray(found["counts"], dtype=np.int64)
        silos = [str(name) for name in found.get("silos", ())]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, FileFormatError):
        return None
    fits = counts.ndim == 2 and counts.shape[1] == len(names) and len(silos) in (0, len(counts))
    if not fits or (counts < 0).any():
        return None
    return Classes(names, counts, counts.sum(1).tolist(), "Training samples of each class.", silos)


def _known_names(data_name: str) -> Sequence[str]:
    if data_name == "fashion-mini":
        return FASHION_CLASSES
    return PUBLISHED[data_name].classes if data_name in PUBLISHED else ()


def _read_sizes(file: Path) -> list[int]:
    """Count the training samples of each silo in partition.csv."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    silos = Counter(parts[1] for parts in (line.split(",") for line in lines) if parts[2:] == ["train"])
    if not silos or not all(silo.isdecimal() and len(silo) < 7 for silo in silos):
        return []
    return [silos[str(silo)] for silo in range(1 + max(map(int, silos)))]


def _count_labels(folder: Path) -> tuple[np.ndarray, str] | None:
    """Count samples by the soft labels of digests: a digest mixes SpD samples, and its labels are class shares."""
    rows: dict[int, np.ndarray] = {}
    is_noisy = False
    for file in folder.glob("silo-*.safetensors"):
        try:
            tensors, head = read_tensors(file, "digest")
            facts: Mapping[str, Any] = json.loads(head["facts"])
            rows[int(head["silo"])] = tensors["labels"].sum(0) * int(facts["samples_per_digest"])
            is_noisy |= bool(facts.get("label_epsilon"))
        except (FileFormatError, KeyError, ValueError, TypeError, AttributeError):
            continue  # the other digests can still be counted
    widths = {row.shape for row in rows.values()}
    if len(widths) != 1:
        return None
    counts = np.zeros((1 + max(rows), *widths.pop()))
    for silo, row in rows.items():
        counts[silo] = row
    source = (
        "Training samples in digests, counted by their labels; samples that filled no digest are missing."
    )
    if is_noisy:
        source += " The labels carry noise, so the counts do too."
    return np.rint(counts).astype(np.int64), source
