"""Run the commands of all benchmarks that the documents show, with smaller inputs."""

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
"""Options that make a benchmark's command take seconds, or minutes for a federation."""

ON_FLOWER = {"federation_overhead"}
"""Benchmarks that start a federation. chaos takes too long; test_deployment.py tests its faults one by one."""

NOT_RUN = {"chaos", "digest_making", "noise_aware", "paper_round", "peers", "update_lengths"}
"""Not run here: test_commands.py checks their documented options, and test_benchmarks.py runs most of them."""

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
"""Documented commands, each once; a command quoted in a sentence is run only if no block shows its script."""


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the data sets and weights that the documents call FOLDER and WEIGHTS, with random values."""
    folder = tmp_path_factory.mktemp("sets")
    write_all(folder / "FOLDER", {"train": 2400, "test": 200})
    np.savez(folder / "weights.npz", **draw_tensorflow_weights())  # type: ignore[arg-type]
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("command", SHOWN_BENCHMARKS, ids=str)
def test_a_benchmarks_command_runs(command: Command, sets: Path, tmp_path: Path) -> None:
    """Run the command on small random data sets in a separate folder; its results mean nothing."""
    script = Path(command.words[1]).stem
    if script in ON_FLOWER:
        pytest.importorskip("flwr", reason="the extra flower is not installed")
    if script == "step_profile" and not torch.cuda.is_available():
        pytest.skip("it profiles kernels on a GPU")
    for name in ("FOLDER", "weights.npz"):
        (tmp_path / name).symlink_to(sets / name)
    # these only read the results that are in the repository
    only_reads = command.words[2:3] in (("table",), ("picture",)) or "--draw" in command.words
    results = tmp_path / "benchmarks" / "results"
    if only_reads:
        results.parent.mkdir()
        results.symlink_to(ROOT / "benchmarks" / "results")
    else:
        results.mkdir(parents=True)
    fewer = [] if only_reads else shlex.split(BENCHMARKS[script])
    done = subprocess.run(
        [sys.executable, str(ROOT / command.words[1]), *command.words[2:], *fewer],
        cwd=tmp_path,
        env={**os.environ, "FEDDIG_DATA": str(tmp_path / "FOLDER"), "OMP_WAIT_POLICY": "passive"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode == 0, f"{command.page}: {command}\n{done.stderr}"
    for option in ("--out", "--picture"):
        if option in command.words and option not in fewer:
            assert Path(tmp_path, command.words[command.words.index(option) + 1]).exists()
