"""FedDig+ against its parts and its rivals: learning rates chosen on validation data, then the marks.

    python benchmarks/feddig_plus.py emnist-byclass --data-dir FOLDER --methods votes --rates .001,.005
    python benchmarks/feddig_plus.py emnist-byclass --data-dir FOLDER --seeds 0,1,2,3,4 --scenarios sequential

A cell is a method, a scenario, a learning rate and a seed. Each finished cell is written to OUT/<data set>/ as one JSON
file and skipped when the command is given again. Seed 100 chooses: its cells keep only the validation accuracy, pooled
over the silos.
"""

import argparse
import json
import logging
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from first_results import experiment_of

from feddig.experiment.experiment import Experiment
from feddig.files import write_atomically
from feddig.report.read_run import read_rounds
from feddig.runs.run import run

CHOOSING = 100
"""The seed that learning rates and settings are chosen with."""
PRIOR = {"algorithm.prior_correction": True}
VOTES = {"moderator.votes": 1.0}
METHODS: dict[str, Mapping[str, Any]] = {
    "fedavg": {"algorithm.name": "fedavg"},
    "prior": {"algorithm.name": "fedavg", **PRIOR},
    "votes": {"algorithm.name": "fedavg", **PRIOR, **VOTES},
    "plus": {"algorithm.name": "feddig-plus"},
    "plus-no-prior": {"algorithm.name": "feddig-plus", "algorithm.prior_correction": False},
    "plus-no-votes": {"algorithm.name": "feddig-plus", "moderator.votes": 0.0},
    "expert": {"algorithm.name": "digest-expert"},
    "digests-only": {"algorithm.name": "digests-only"},
    "feddig": {"algorithm.name": "feddig"},
    "feddig-prior": {"algorithm.name": "feddig", **PRIOR},
    "feddig-votes": {"algorithm.name": "feddig", **PRIOR, **VOTES},
}


def with_settings(experiment: Experiment, settings: Mapping[str, Any]) -> Experiment:
    """Change settings, given as section.key."""
    for key, value in settings.items():
        section, _, field = key.partition(".")
        experiment = replace(experiment, **{section: replace(getattr(experiment, section), **{field: value})})
    return experiment


def measure(out: Path, seed: int) -> dict[str, Any]:
    """Return what is kept of a run: pooled validation accuracy, and test accuracy unless the seed is for choosing."""
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    sizes = validation_sizes(out)
    pooled = [
        sum(size * value for size, value in zip(sizes, row["validation_accuracy"], strict=True)) / sum(sizes)
        for row in rows
        if "validation_accuracy" in row
    ]
    kept: dict[str, Any] = {"validation": [round(value, 2) for value in pooled]}
    if seed != CHOOSING:
        kept["test"] = [round(value, 2) for value in read_rounds(out).accuracies]
    return kept


def validation_sizes(out: Path) -> list[int]:
    """Count each silo's validation samples in partition.csv."""
    counts: dict[int, int] = {}
    for line in (out / "partition.csv").read_text().splitlines():
        parts = line.split(",")
        if len(parts) == 3 and parts[2] == "validation":
            counts[int(parts[1])] = counts.get(int(parts[1]), 0) + 1
    return [counts[silo] for silo in sorted(counts)]


def main() -> None:
    """Run the cells that are still to be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--scenarios", default="sequential")
    parser.add_argument("--rates", default="0.001,0.003,0.005,0.01")
    parser.add_argument("--seeds", default=str(CHOOSING))
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--part", default="0/1", help="I/N: run the cells I, I + N, ... of the list")
    parser.add_argument("--work", type=Path, default=Path("results/feddig-plus"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/feddig-plus"))
    options = parser.parse_args()
    logging.getLogger("feddig").setLevel(logging.WARNING)
    cells = [
        (method, scenario, float(rate), int(seed))
        for seed in options.seeds.split(",")
        for rate in options.rates.split(",")
        for scenario in options.scenarios.split(",")
        for method in options.methods.split(",")
    ]
    part, parts = map(int, options.part.split("/"))
    for method, scenario, rate, seed in cells[part::parts]:
        label = f"{method} {scenario} {rate:g} {seed}"
        file = options.out / options.name / f"{label.replace(' ', '_')}.json"
        if file.exists():
            continue
        base = replace(experiment_of(options.name, options.rounds, "default"), seed=seed)
        settings = {**METHODS[method], "training.lr": rate, "absence.scenario": scenario}
        experiment = with_settings(base, settings).located(options.data_dir)
        out = options.work / options.name / label
        shutil.rmtree(out, ignore_errors=True)
        started = time.perf_counter()
        summary = run(experiment, out)
        kept = measure(out, seed)
        facts = {
            "format_version": 1,
            "method": method,
            "scenario": scenario,
            "lr": rate,
            "seed": seed,
            "settings": settings,
            **{key: summary[key] for key in ("precision", "device", "versions")},
            "seconds": round(time.perf_counter() - started, 1),
            **kept,
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, json.dumps(facts) + "\n")
        print(label, round(fmean(kept["validation"][-50:]), 2), facts["seconds"], flush=True)


if __name__ == "__main__":
    main()
