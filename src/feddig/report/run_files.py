"""The files of a run, each read for itself: what is missing or damaged is noted, and the rest is given."""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from feddig.core.absence import Absence, read_absence
from feddig.errors import FileFormatError
from feddig.files import check_version

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
