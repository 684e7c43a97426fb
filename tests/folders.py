"""Looking into results folders: what two runs of the same seed must have in common, and how to start a run."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

TIMES = ("seconds", "seconds_silos", "seconds_recall", "seconds_joint", "seconds_preparing")
"""The fields of a metrics row that differ between two runs of the same seed."""
REPEATS = (
    "experiment.toml", "partition.csv", "availability.csv", "model.safetensors", "guidance.safetensors",
)  # fmt: skip
"""Files that are the same to the byte in two runs of the same experiment, next to digests/."""


def rows(folder: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def rows_without_times(folder: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl without its time fields."""
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows(folder)]


def contents(folder: Path) -> dict[str, object]:
    """Gather all that the same seed must give again: files to the byte, metrics without their times."""
    files = [folder / name for name in REPEATS] + sorted((folder / "digests").glob("*.safetensors"))
    found: dict[str, object] = {
        str(path.relative_to(folder)): path.read_bytes() for path in files if path.exists()
    }
    return {**found, "metrics.jsonl": rows_without_times(folder)}


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Note every file under a folder with its bytes and the moment it was written."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def tensors(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a safetensors file."""
    with safe_open(path, framework="numpy") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def header(path: Path) -> dict[str, str]:
    """Read what a tensor file of ours says about itself."""
    with safe_open(path, framework="numpy") as opened:
        return dict(json.loads(opened.metadata()["feddig"]))


def start_feddig(arguments: Sequence[object], **options: Any) -> subprocess.Popen[str]:
    """Start the command in a process of its own, with what it says in pipes."""
    return start_python(["-m", "feddig", *arguments], **options)


def start_python(arguments: Sequence[object], **options: Any) -> subprocess.Popen[str]:
    """Start a Python process with what it says in pipes, and without colours from this terminal."""
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR")}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment, **options}
    return subprocess.Popen([sys.executable, *map(str, arguments)], text=True, **options)
