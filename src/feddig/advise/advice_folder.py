"""The folder of a sweep: what it is of, and a file for each finished setting, so that none is tried twice."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feddig.advise.choose import Row, Setting, read_row
from feddig.errors import FedDigError, FileFormatError
from feddig.files import FORMAT_VERSION, check_version, write_atomically

SWEEP = "sweep.json"


def place_of(out: Path, setting: Setting) -> Path:
    """Give the file of a setting."""
    noise = "" if setting.epsilon is None else f"_{setting.epsilon!r}"
    name = f"spd-{setting.samples_per_digest}_{setting.mixing}_{setting.mechanism}{noise}"
    return out / "settings" / f"{name}.json"


def keep(path: Path, row: Row) -> None:
    """Write what trying a setting found."""
    _write(path, row.as_json())


def claim(out: Path, facts: Mapping[str, Any]) -> None:
    """Make the folder, or see that it is of the same sweep."""
    path = out / SWEEP
    if not path.exists():
        entries = sorted(out.iterdir()) if out.is_dir() else [out] if out.exists() else []
        if entries:
            raise FedDigError(f"{out}: holds {entries[0].name!r}, which is not ours; choose another --out")
        _write(path, facts)
        return
    found = _load(path)
    for name, wanted in facts.items():
        if found.get(name) != wanted:
            raise FedDigError(
                f"{out}: was swept with {name} = {found.get(name)!r}, now {wanted!r}; choose another --out"
            )


def read_kept(path: Path) -> Row:
    """Read what trying a setting found before."""
    try:
        row = read_row(_load(path))
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: lacks or garbles {error}; remove it to try it again") from None
    if math.isnan(row.accuracy):
        raise FileFormatError(f"{path}: its accuracy is no number; remove it to try it again")
    return row


def _load(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path}: cannot be read as JSON ({error}); remove it") from None
    if not isinstance(table, dict):
        raise FileFormatError(f"{path}: holds no table; remove it")
    check_version(path, table.get("format_version"))
    return table


def _write(path: Path, table: Mapping[str, Any]) -> None:
    spelled = json.dumps({"format_version": FORMAT_VERSION, **table}, indent=2, allow_nan=False)
    write_atomically(path, spelled + "\n")
