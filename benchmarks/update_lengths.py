"""Measure the longest update of a round as a multiple of the model's norm.

    python benchmarks/update_lengths.py --out benchmarks/results/update_lengths.json

FedDig over each base algorithm in the demo's setting, at the demo's learning rate and at ten times that rate, on the
CPU; updates of recall models count too. A federation refuses updates that are longer than the contract's limit.
"""

import argparse
import json
import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

from feddig.core.messages import Reply
from feddig.core.moderator import Moderator
from feddig.errors import FedDigError
from feddig.experiment.toml import demo_experiment
from feddig.federation.contract import UPDATE_LIMIT
from feddig.files import write_atomically
from feddig.runs.run import run

BASES = ("fedavg", "fedprox", "fednova", "feddyn", "adabest")


class Watch:
    """Record the longest update that a moderator aggregates within the with block."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._aggregate = Moderator.aggregate

    def __enter__(self) -> "Watch":
        watch, aggregate = self, self._aggregate

        def aggregate_and_record(
            moderator: Moderator, round: int, replies: Sequence[Reply], stand_ins: Sequence[Reply] = ()
        ) -> None:
            model = max(1.0, float(moderator.weights.norm()))
            lengths = (float(reply.update.norm()) / model for reply in (*replies, *stand_ins))
            watch.longest = max([watch.longest, *lengths])
            aggregate(moderator, round, replies, stand_ins)

        Moderator.aggregate = aggregate_and_record  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        Moderator.aggregate = self._aggregate  # type: ignore[method-assign]


def main() -> None:
    """Measure each algorithm at both rates and print a line for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--bases", default=",".join(BASES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.getLogger("feddig").setLevel(logging.ERROR)
    rate = demo_experiment().training.lr
    rows = []
    for base in options.bases.split(","):
        for lr in (rate, 10 * rate):
            changes = {
                "seed": options.seed,
                "algorithm.name": f"feddig+{base}",
                "training.rounds": options.rounds,
                "training.lr": lr,
                "data.limit": options.images,
            }
            experiment = demo_experiment([f"{key}={value}" for key, value in changes.items()])
            diverged = False
            with Watch() as watch, tempfile.TemporaryDirectory() as folder:
                try:
                    run(experiment, Path(folder) / "run", device="cpu")
                except FedDigError:
                    diverged = True
            rows.append({"base": base, "lr": lr, "longest": watch.longest, "diverged": diverged})
            print(f"{base:<8} lr {lr:<5g} {watch.longest:8.3g} times the model{', diverged' * diverged}")
    result = {
        "format_version": 1,
        "command": "python benchmarks/update_lengths.py",
        "rounds": options.rounds,
        "images": options.images,
        "seed": options.seed,
        "device": "cpu",
        "limit": UPDATE_LIMIT,
        "rows": rows,
    }
    if options.out:
        write_atomically(options.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
