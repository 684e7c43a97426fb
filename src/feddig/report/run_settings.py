"""How to repeat what a page shows: the settings as TOML, and the command."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from feddig.report.grouping import SEEDS, differing, flatten
from feddig.report.read_run import Run

GRID = ("algorithm.name", "absence.scenario", *SEEDS)
"""What feddig compare sets by itself."""


def repeat_one(run: Run) -> tuple[str, str]:
    """Give a run's settings and the command that repeats it."""
    return spell_toml(run.settings), "feddig run experiment.toml --out again"


def repeat_all(runs: Sequence[Run]) -> tuple[str, str] | None:
    """Give the settings that runs share and the one command that repeats them all; None if there is no such one."""
    tables = [flatten(run.settings) for run in runs]
    if not all(tables):
        return None
    apart = differing(tables)
    if any(key not in GRID for key in apart) or "file" in {run.scenario for run in runs}:
        return None
    # a stream's own seed can be left open only where it follows the top-level one
    if any(table[key] != table["seed"] for key in apart if key in SEEDS for table in tables):
        return None
    shared = {key: value for key, value in tables[0].items() if key not in apart and key != "seed"}
    shared.pop("algorithm.name", None)
    shared.pop("absence.scenario", None)
    names = {
        "algorithms": [run.algorithm for run in runs],
        "scenarios": [run.scenario for run in runs],
        "seeds": [str(run.seed) for run in sorted(runs, key=lambda run: run.seed)],
    }
    options = " ".join(
        f"--{name} {shlex.quote(','.join(dict.fromkeys(values)))}" for name, values in names.items()
    )
    return spell_toml(_nest(shared)), f"feddig compare experiment.toml {options} --out again"


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        place = table
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return table


def spell_toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """Spell settings as TOML, values before sections."""
    lines = [f"{key} = {_value(value)}" for key, value in table.items() if not isinstance(value, Mapping)]
    text = "".join(f"{line}\n" for line in lines)
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner = spell_toml(value, f"{prefix}{key}.")
            has_own = any(not isinstance(each, Mapping) for each in value.values())
            text += f"\n[{prefix}{key}]\n{inner}" if has_own or not value else inner
    return text if prefix else text.lstrip("\n")


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        # JSON's escapes are TOML's too, but for the one control character that JSON leaves alone
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)
