"""Measure the accuracy that bf16 and tf32 cost: FedDig on Fashion-MNIST, 100 rounds, paired by seed.

python benchmarks/precision.py --out benchmarks/results/precision.json
"""

import argparse
import json
import logging
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from first_results import experiment_of

from feddig.files import write_atomically
from feddig.report.read_run import read_rounds
from feddig.runs.run import run

PRECISIONS = ("fp32", "tf32", "bf16")
LAST = 10


def main() -> None:
    """Run every precision with every seed and compare the means of the last rounds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="fashion-mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--algorithm", default="feddig")
    parser.add_argument("--precisions", default=",".join(PRECISIONS))
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--work", type=Path, default=Path("results/precision"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.getLogger("feddig").setLevel(logging.WARNING)
    base = experiment_of(options.name, options.rounds, "default").located(options.data_dir)
    rows: list[dict[str, Any]] = []
    for seed in map(int, options.seeds.split(",")):
        for precision in options.precisions.split(","):
            experiment = replace(
                base,
                seed=seed,
                algorithm=replace(base.algorithm, name=options.algorithm),
                training=replace(base.training, precision=precision),
            )
            out = options.work / f"{options.algorithm}-{precision}-{seed}"
            summary = run(experiment, out)
            curve = read_rounds(out).accuracies
            row = {
                "seed": seed,
                "precision": precision,
                "mean_last": statistics.fmean(curve[-LAST:]),
                "seconds_per_round": summary["seconds_per_round"],
                "device": summary["device"],
                "curve": [round(value, 2) for value in curve],
            }
            rows.append(row)
            print(
                f"seed {seed}  {precision}  {row['mean_last']:.2f}  {row['seconds_per_round']:.3f} s",
                flush=True,
            )
    exact = {row["seed"]: row["mean_last"] for row in rows if row["precision"] == "fp32"}
    gaps = {
        precision: [
            row["mean_last"] - exact[row["seed"]]
            for row in rows
            if row["precision"] == precision and row["seed"] in exact
        ]
        for precision in options.precisions.split(",")
    }
    for precision, values in gaps.items():
        if values:
            print(f"{precision} minus fp32: {statistics.fmean(values):+.2f} points ({values})")
    result = {"format_version": 1, "rounds": options.rounds, "last": LAST, "gaps": gaps, "rows": rows}
    if options.out:
        write_atomically(options.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
