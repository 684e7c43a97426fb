"""Read results folders, compare runs of the same seed, run commands and scripts, and wait for processes."""

import json
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from feddig.cli import main

REPEATS = (
    "experiment.toml", "partition.csv", "availability.csv", "model.safetensors", "guidance.safetensors",
)  # fmt: skip
"""Files that have the same bytes in two runs of the same experiment, in addition to digests/."""
TIMES = ("seconds", "seconds_silos", "seconds_recall", "seconds_joint", "seconds_preparing")
"""The fields of a metrics row that differ between two runs of the same seed."""


def rows(folder: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def rows_without_times(folder: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl without the measured times."""
    return [{key: value for key, value in row.items() if key not in TIMES} for row in rows(folder)]


def contents(folder: Path) -> dict[str, object]:
    """Return what runs of the same seed have in common: bytes of files, and metrics without times."""
    files = [folder / name for name in REPEATS] + sorted((folder / "digests").glob("*.safetensors"))
    found: dict[str, object] = {
        str(path.relative_to(folder)): path.read_bytes() for path in files if path.exists()
    }
    return {**found, "metrics.jsonl": rows_without_times(folder)}


def snapshot(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the modification time of every file under a folder."""
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def tensors(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a safetensors file."""
    with safe_open(path, framework="numpy") as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def network_tensors(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a model's file without those of its encoder."""
    return {name: array for name, array in tensors(path).items() if not name.startswith("encoder/")}


def header(path: Path) -> dict[str, str]:
    """Read the facts of a FedDig tensor file."""
    with safe_open(path, framework="numpy") as opened:
        return dict(json.loads(opened.metadata()["feddig"]))


def run_feddig(*words: object) -> int:
    """Run a command in this process, which is faster than starting one, and return its exit code."""
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    logging.getLogger("feddig").handlers.clear()  # they write to this test's standard error
    return int(ended.value.code or 0)


def error_line(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """Run a command that must fail with exit code 2 and print one line; return the line."""
    assert run_feddig(*words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    assert line.startswith("feddig: error: ")
    return line


def run_script(script: Path, *arguments: str, folder: Path | None = None, **variables: str) -> str:
    """Run a Python script with these environment variables, check that it prints no errors, and return its output."""
    command = [sys.executable, "-W", "error", str(script), *arguments]
    environment = {**os.environ, **variables}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def start_feddig(arguments: Sequence[object], **options: Any) -> subprocess.Popen[str]:
    """Start the command in a process, with its output in pipes."""
    return start_python(["-m", "feddig", *arguments], **options)


def start_python(arguments: Sequence[object], **options: Any) -> subprocess.Popen[str]:
    """Start a Python process with its output in pipes and without this terminal's colours."""
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "FORCE_COLOR")}
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment, **options}
    return subprocess.Popen([sys.executable, *map(str, arguments)], text=True, **options)


def wait_until(
    holds: Callable[[], object],
    seconds: float = 60.0,
    *,
    pause: float = 0.05,
    process: subprocess.Popen[str] | None = None,
) -> None:
    """Wait for a condition; fail after some seconds, or if the process ends before."""
    last = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < last, f"the condition did not hold within {seconds:g} s"
        assert process is None or process.poll() is None, f"ended too early: {process.communicate()}"
        time.sleep(pause)
