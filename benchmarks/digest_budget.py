"""Measure accuracy and the moderator's time by the number of digests that a joint update may use.

    python benchmarks/digest_budget.py --out benchmarks/results/digest_budget.json

FedDig runs in the demo's setting, or with first_results.py's settings on the set of --name; silos leave in sequence.
A share of 1 uses all digests; it runs first and counts them. A smaller share sets moderator.digest_budget: each pass
draws that many digests, evenly over silos and classes. The seconds are those of the joint update.
"""

import argparse
import json
import logging
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from first_results import experiment_of

from feddig.experiment.toml import demo_experiment
from feddig.files import write_atomically
from feddig.report.read_run import read_rounds
from feddig.runs.run import run

SHARES = (1.0, 0.5, 0.25, 0.1, 0.05)


def main() -> None:
    """Run every share with every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", default="", help="a data set; left out: the demo's setting")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--shares", default=",".join(map(str, SHARES)))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--work", type=Path, default=Path("results/digest-budget"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.getLogger("feddig").setLevel(logging.WARNING)
    base = (
        experiment_of(options.name, 300, "default")
        if options.name
        else demo_experiment("algorithm.name=feddig")
    )
    base = base.located(options.data_dir)
    base = replace(base, algorithm=replace(base.algorithm, name="feddig"))
    if options.rounds:
        base = replace(base, training=replace(base.training, rounds=options.rounds))
    rows: list[dict[str, Any]] = []
    for seed in map(int, options.seeds.split(",")):
        digests = 0
        for share in sorted({1.0, *map(float, options.shares.split(","))}, reverse=True):
            budget = round(share * digests) if share < 1 else 0
            experiment = replace(base, seed=seed, moderator=replace(base.moderator, digest_budget=budget))
            out = options.work / (options.name or "demo") / f"seed-{seed}-share-{share}"
            rows.append(row_of(seed, share, budget, out, run(experiment, out)))
            digests = rows[-1]["digests"] if share == 1 else digests
            print(
                "  ".join(f"{key} {value}" for key, value in rows[-1].items() if key != "curve"), flush=True
            )
    if options.out:
        result = {
            "format_version": 1,
            "command": "python benchmarks/digest_budget.py",
            "device": rows[0].pop("device"),
            "rows": [{key: value for key, value in row.items() if key != "device"} for row in rows],
        }
        write_atomically(options.out, json.dumps(result, indent=1) + "\n")


def row_of(seed: int, share: float, budget: int, out: Path, summary: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a run."""
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    joint = [row["seconds_joint"] for row in metrics if "seconds_joint" in row]
    spd = next(iter(summary["digests"].values()))["samples_per_digest"]
    sizes = [line.split(",") for line in (out / "partition.csv").read_text().splitlines()]
    silos = {row[1] for row in sizes if row[-1] == "train"}
    digests = sum(sum(row[1] == silo and row[-1] == "train" for row in sizes) // spd for silo in silos)
    return {
        "seed": seed,
        "share": share,
        "budget": budget,
        "digests": digests,
        "final": summary["accuracy"]["final"],
        "absence_mean": summary["accuracy"]["absence_mean"],
        "seconds_joint": statistics.median(joint),
        "device": summary["device"],
        "curve": [round(value, 2) for value in read_rounds(out).accuracies],
    }


if __name__ == "__main__":
    main()
