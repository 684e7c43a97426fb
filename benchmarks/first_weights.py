"""Measure how the guidance producer's initial weights look, and how far training changes them.

    python benchmarks/first_weights.py --data-dir FOLDER --out benchmarks/results/first_weights.json

P_G learns from digests only (`digests-only`) on part of Fashion-MNIST, with the small classifier and the paper's
learning rate. Reported for each seed: the brightness of its pictures of digests before and after training, and how far
its weights moved.
"""

import argparse
import json
import logging
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from feddig_variants import guidance_of
from torch import nn

from feddig.audit.inputs import load_guidance
from feddig.experiment.toml import experiment_from_table
from feddig.files import write_atomically
from feddig.runs.results_folder import ResultsFolder
from feddig.runs.run import run

SHOWN = 300


def main() -> None:
    """Train from each seed's initial weights and print the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", default="0,1,2,3")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    logging.getLogger("feddig").setLevel(logging.WARNING)
    rows = [measure(int(seed), options) for seed in options.seeds.split(",")]
    facts = {"format_version": 1, "command": "python benchmarks/first_weights.py", "rounds": options.rounds}
    write_atomically(
        options.out, json.dumps({**facts, "images": options.images, "rows": rows}, indent=1) + "\n"
    )


def measure(seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train from one seed's initial weights; all else is drawn from seed 0."""
    table = {
        "data": {"name": "fashion-mnist", "limit": options.images},
        "algorithm": {"name": "digests-only"},
        "absence": {"scenario": "none"},
        "model": {"classifier": "small"},
        "training": {"rounds": options.rounds, "batch": 64, "lr": 0.001, "threads": 1},
    }
    experiment = experiment_from_table(table).located(options.data_dir)
    networks = guidance_of(seed)(experiment)
    before = networks.guidance
    assert before is not None
    with TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        summary = run(experiment, out, device="cpu", networks=networks)
        digest = ResultsFolder(out).kept_digest(1)
        assert digest is not None
        after = load_guidance(out / "guidance.safetensors", digest.features.shape[1:], (1, 32, 32))
    first, last = (nn.utils.parameters_to_vector(each.parameters()).detach() for each in (before, after))
    with torch.no_grad():
        bright = [float(each(digest.features[:SHOWN]).mean()) for each in (before, after)]
    row = {
        "seed": seed,
        "brightness_before": bright[0],
        "brightness_after": bright[1],
        "moved_share": float((last - first).norm() / first.norm()),
        "accuracy": summary["accuracy"]["final"],
        "device": summary["device"],
    }
    print(json.dumps(row), flush=True)
    return row


if __name__ == "__main__":
    main()
