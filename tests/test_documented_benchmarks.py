"""Every benchmark that the documents show: its command is run as it stands there, with less to do."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from documented import ROOT, Command, commands_of, pages, quoted_commands
from public_sets import write_all
from test_mobilenet import draw_tensorflow_weights

BENCHMARKS = {
    "digest_budget": "--rounds 2 --shares 0.5 --seeds 0",
    "encoder_recipes": "--seeds 1 --steps 2 --images 200",
    "encoder_scale": "--rounds 2 --scales 4",
    "feddig_plus": "--rounds 2 --methods plus --rates 0.01 --seeds 100",
    "feddig_variants": "--rounds 1 --variants 'P_G of seed 3'",
    "federation_overhead": "--rounds 2 --silos 2 --images 200",
    "first_results": "--rounds 2 --algorithms fedavg,feddig",
    "first_weights": "--rounds 1 --images 400 --seeds 0",
    "growth": "--images 800 --few-images 400 --repeats 1 --rounds 10 --silos 4 --digests 1 --device cpu",
    "mobilenet_probe": "--images 60 --test-images 20",
    "precision": "--rounds 1 --seeds 0 --precisions fp32",
    "privacy_figures": "--images 1200 --joint-steps 1 --steps 2 --rounds 1 --device cpu --out pictures",
    "privacy_table": "--cells within-class-8-4-seed-0 --rounds 2 --joint-steps 2 --classifier small --device cpu "
    "--limit 600 --min-samples 64 --out cells",
    "step_profile": "",
    "unmixing": "--digests 4",
    "who_leaves_last": "--rounds 2 --cases 1:index --algorithms feddig",
}
"""What is added to a benchmark's command so that it takes seconds; those of federations take minutes."""

ON_FLOWER = {"federation_overhead"}
"""Benchmarks that start a federation. chaos does so for minutes; test_deployment.py has its faults one by one."""

NOT_RUN = {"chaos", "digest_making", "noise_aware", "paper_round", "peers", "update_lengths"}
"""Not run here; that they take the documented options is seen in test_commands.py, and test_benchmarks.py runs most."""

BLOCKS = [command for page in pages() for command in commands_of(page)]
QUOTED = [command for page in pages() for command in quoted_commands(page)]
IN_BLOCKS = {command.words[1] for command in BLOCKS if command.starts_with("python")}
SHOWN_BENCHMARKS = [
    pytest.param(command, marks=[pytest.mark.process] if Path(command.words[1]).stem in ON_FLOWER else [])
    for command in {
        command.words: command
        for command in [*BLOCKS, *(quoted for quoted in QUOTED if quoted.words[1] not in IN_BLOCKS)]
    }.values()
    if command.starts_with("python")
    and Path(command.words[1]).parent.name == "benchmarks"
    and Path(command.words[1]).stem not in NOT_RUN
]
"""Those that the documents show, each once; what a sentence quotes is run if no block shows its script."""


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write what the documents call FOLDER and WEIGHTS: small sets of noise, and drawn weights."""
    folder = tmp_path_factory.mktemp("sets")
    write_all(folder / "FOLDER", {"train": 2400, "test": 200})
    np.savez(folder / "weights.npz", **draw_tensorflow_weights())  # type: ignore[arg-type]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("command", SHOWN_BENCHMARKS, ids=str)
def test_a_benchmarks_command_runs(command: Command, sets: Path, tmp_path: Path) -> None:
    """On small sets of noise, in a folder of its own: what it measures is nothing."""
    script = Path(command.words[1]).stem
    if script in ON_FLOWER:
        pytest.importorskip("flwr", reason="the extra flower is not there")
    if script == "step_profile" and not torch.cuda.is_available():
        pytest.skip("it looks into a GPU's kernels")
    for name in ("FOLDER", "weights.npz"):
        (tmp_path / name).symlink_to(sets / name)
    (tmp_path / "benchmarks" / "results").mkdir(parents=True)
    is_table = command.words[2:3] == ("table",)  # of the results that are kept in the repository
    fewer = [] if is_table else shlex.split(BENCHMARKS[script])
    done = subprocess.run(
        [sys.executable, str(ROOT / command.words[1]), *command.words[2:], *fewer],
        cwd=tmp_path,
        env={**os.environ, "FEDDIG_DATA": str(tmp_path / "FOLDER"), "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{command.page}: {command}\n{done.stderr}"
    if "--out" in command.words and "--out" not in fewer:
        assert Path(tmp_path, command.words[command.words.index("--out") + 1]).exists()
