"""The paper's method and its controls on one data set: silos leave one after the other, seed 0.

    python benchmarks/first_results.py fashion-mnist --work results/first --out benchmarks/results/first-results

Writes OUT/<data set>.json (every run's measures, its curve, its seconds) and OUT/<data set>.png. Whole results
folders lie under --work; give the same command again to go on with what was cut off.
"""

import argparse
import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from feddig.errors import FedDigError
from feddig.experiment.experiment import Experiment
from feddig.experiment.toml import read_experiment
from feddig.files import write_atomically
from feddig.report.pictures import draw_curves
from feddig.report.read_run import read_rounds
from feddig.runs.compare import Cell, grid, run_grid

CONTROLS = (
    "fedavg", "frozen", "feddig", "digests-only", "feddig-no-recall", "feddig-no-joint", "centralised",
)  # fmt: skip
COLOUR = {"cifar10", "cifar100"}
PAPER = Path(__file__).parent.parent / "experiments" / "paper.toml"


def experiment_of(name: str, rounds: int, encoder: str) -> Experiment:
    """Give the paper's settings, but any size of silo; for colour sets it names another batch and scale size."""
    colour = ["training.batch=32", "privacy.scale_size=10000"] if name in COLOUR else []
    return read_experiment(
        PAPER,
        [
            f"data.name={name}",
            "data.min_share=0",
            f"training.rounds={rounds}",
            f"digest.encoder={encoder}",
            *colour,
        ],
    )


def cells_of(experiment: Experiment, algorithms: list[str], out: Path) -> list[Cell]:
    """Lay out the runs: all of them with silos leaving, FedAvg also with nobody absent."""
    cells = grid(experiment, algorithms, ["sequential"], [experiment.seed], out)
    if "fedavg" in algorithms:
        cells += grid(experiment, ["fedavg"], ["none"], [experiment.seed], out)
    return cells


def main() -> None:
    """Run and collect."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--algorithms", default=",".join(CONTROLS))
    parser.add_argument("--encoder", default="default")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--work", type=Path, default=Path("results/first"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/first-results"))
    parser.add_argument("--label", default="", help="goes into the file's name")
    options = parser.parse_args()
    logging.getLogger("feddig").setLevel(logging.WARNING)
    experiment = experiment_of(options.name, options.rounds, options.encoder)
    experiment = replace(experiment, seed=options.seed).located(options.data_dir)
    work = options.work / (options.name + options.label)
    started = time.perf_counter()
    runs: dict[str, Any] = {}
    drawn = []
    for outcome in run_grid(cells_of(experiment, options.algorithms.split(","), work)):
        settled = outcome.cell.experiment
        name = settled.algorithm.name + (", nobody absent" if settled.absence.scenario == "none" else "")
        if outcome.summary is None:
            raise FedDigError(f"{name}: {outcome.failure}")
        result = read_rounds(outcome.cell.path)
        drawn += [result] if settled.absence.scenario == "sequential" else []
        kept = ("accuracy", "data", "device", "precision", "seconds_per_round", "versions")
        runs[name] = {key: outcome.summary[key] for key in kept}
        runs[name]["curve"] = [round(value, 2) for value in result.accuracies]
        measures = outcome.summary["accuracy"]
        print(name, measures["mean_250_299"], measures["final"], flush=True)
    options.out.mkdir(parents=True, exist_ok=True)
    facts = {
        "format_version": 1,
        "command": f"python benchmarks/first_results.py {options.name}",
        "seed": options.seed,
        "encoder": Path(options.encoder).stem,
        "seconds": time.perf_counter() - started,
        "runs": runs,
    }
    stem = options.out / (options.name + options.label)
    write_atomically(stem.with_suffix(".json"), json.dumps(facts, indent=1) + "\n")
    title = f"{options.name}, silos leave one after the other, seed {options.seed}"
    write_atomically(stem.with_suffix(".png"), draw_curves(drawn, title))


if __name__ == "__main__":
    main()
