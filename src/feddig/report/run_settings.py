"""Compare the settings of runs, write them as TOML, and give the command that repeats the runs."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from feddig.report.read_run import Run

SEEDS = ("seed", "data.seed", "absence.seed", "digest.seed")
"""Runs that differ only in these are averaged."""
WITHOUT_EFFECT = ("format_version", "data.path", "training.threads", "logging.tensorboard", "logging.mlflow")
"""Settings that change no number of a report."""
GRID = ("algorithm.name", "absence.scenario", *SEEDS)
"""Settings that the options of feddig compare set."""


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one table with keys such as data.silos."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in flat.items():
        *sections, name = key.split(".")
        section = table
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return table


def differing_keys(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose value is not the same in all tables."""
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if any(table.get(key) != tables[0].get(key) for table in tables)]


def repeat_run(run: Run) -> tuple[str, str]:
    """Return a run's settings as TOML and the command that repeats it."""
    return to_toml(run.settings), "feddig run experiment.toml --out again"


def repeat_runs(runs: Sequence[Run]) -> tuple[str, str] | None:
    """Return the settings that runs share and the command that repeats them all; None if one command cannot."""
    tables = [flatten(run.settings) for run in runs]
    if not all(tables):
        return None
    different = differing_keys(tables)
    if any(key not in GRID for key in different) or "file" in {run.scenario for run in runs}:
        return None
    # a seed of its own can be left out only where it equals the top-level seed
    if any(table[key] != table["seed"] for key in different if key in SEEDS for table in tables):
        return None
    left_out = {*different, "seed", "algorithm.name", "absence.scenario"}
    shared = {key: value for key, value in tables[0].items() if key not in left_out}
    values = {
        "algorithms": [run.algorithm for run in runs],
        "scenarios": [run.scenario for run in runs],
        "seeds": [str(run.seed) for run in sorted(runs, key=lambda run: run.seed)],
    }
    options = " ".join(
        f"--{name} {shlex.quote(','.join(dict.fromkeys(each)))}" for name, each in values.items()
    )
    return to_toml(_nest(shared)), f"feddig compare experiment.toml {options} --out again"


def to_toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """Write settings as TOML, values before sections."""
    lines = [
        f"{key} = {_toml_value(value)}\n" for key, value in table.items() if not isinstance(value, Mapping)
    ]
    text = "".join(lines)
    for key, value in table.items():
        if isinstance(value, Mapping):
            inner = to_toml(value, f"{prefix}{key}.")
            has_values = any(not isinstance(each, Mapping) for each in value.values())
            text += f"\n[{prefix}{key}]\n{inner}" if has_values or not value else inner
    return text if prefix else text.lstrip("\n")


def _toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, str):
        # JSON's escapes are also TOML's, except for one control character that JSON leaves as it is
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value)
