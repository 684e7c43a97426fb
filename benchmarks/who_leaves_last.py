"""Measure how FedDig's final accuracy depends on the silo that leaves last: other partitions and orders of leaving.

    python benchmarks/who_leaves_last.py fashion-mnist --cases 0:index,0:size,1:index,0@3:index

A case is a seed and the order in which silos leave: `index`, or `size` for the largest first. The seed also draws the
partition, unless another seed follows `@`: `0@3` has the partition of seed 3 and the initial weights, batches, mixing
and noise of seed 0. Settings are those of first_results.py. OUT/<data set>.json has measures, curves, and each silo's
size; cases that are in it are not run again.
"""

import argparse
import json
import logging
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from first_results import experiment_of

from feddig.errors import FedDigError
from feddig.files import write_atomically
from feddig.report.read_run import read_rounds
from feddig.runs.compare import grid, run_grid


def main() -> None:
    """Run every case with every algorithm and collect the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--cases", default="0:index,0:size,1:index,2:index")
    parser.add_argument("--algorithms", default="feddig,feddig-no-recall,feddig-no-joint")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--precision", default=None, help="fp32, tf32 or bf16; left out: the device's")
    parser.add_argument("--work", type=Path, default=Path("results/who-leaves-last"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/who-leaves-last"))
    parser.add_argument("--label", default="", help="part of the file's name")
    options = parser.parse_args()
    logging.getLogger("feddig").setLevel(logging.WARNING)
    file = options.out / f"{options.name}{options.label}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    done = {(row["case"], row["algorithm"]) for row in rows}
    for case in options.cases.split(","):
        seeds, _, order = case.partition(":")
        seed, _, deal = seeds.partition("@")
        algorithms = [name for name in options.algorithms.split(",") if (case, name) not in done]
        experiment = experiment_of(options.name, options.rounds, "default").located(options.data_dir)
        experiment = replace(
            experiment,
            seed=int(seed),
            data=replace(experiment.data, seed=int(deal or seed)),
            absence=replace(experiment.absence, order=order),
            training=replace(experiment.training, precision=options.precision),
        )
        work = options.work / options.name / f"{case}{options.label}".replace(":", "-")
        cells = grid(experiment, algorithms, ["sequential"], [int(seed)], work)
        for outcome in run_grid(cells):
            if outcome.summary is None:
                raise FedDigError(f"{case}: {outcome.failure}")
            rows.append(row_of(case, outcome.cell.path, outcome.summary))
            shown = {
                key: rows[-1][key] for key in ("case", "algorithm", "mean_250_299", "samples_by_leaving")
            }
            print(json.dumps(shown), flush=True)
            facts = {
                "format_version": 1,
                "command": f"python benchmarks/who_leaves_last.py {options.name}",
                "rows": rows,
            }
            # write after each run, so that an interruption loses nothing
            write_atomically(file, json.dumps(facts, indent=1) + "\n")


def row_of(case: str, path: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a run, with the silos in the order in which they leave."""
    table = [line.split(",") for line in (path / "availability.csv").read_text().splitlines()]
    lasts = {int(row[0]): row.count("1") for row in table if row[0].isdigit()}
    silos = [line.split(",") for line in (path / "partition.csv").read_text().splitlines()]
    sizes = Counter(row[1] for row in silos if row[-1] == "train")
    leaving = sorted(lasts, key=lambda silo: lasts[silo])
    return {
        "case": case,
        "algorithm": summary["algorithm"],
        "mean_250_299": summary["accuracy"]["mean_250_299"],
        "accuracy": summary["accuracy"],
        "leaving": leaving,
        "samples_by_leaving": [sizes[str(silo)] for silo in leaving],
        "precision": summary["precision"],
        "device": summary["device"],
        "versions": summary["versions"],
        "curve": [round(value, 2) for value in read_rounds(path).accuracies],
    }


if __name__ == "__main__":
    main()
