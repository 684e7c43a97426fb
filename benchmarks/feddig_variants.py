"""What moves FedDig's end: one thing changed at a time, silos leave one after the other, seed 0.

    python benchmarks/feddig_variants.py emnist-byclass --data-dir FOLDER --out benchmarks/results/feddig-variants

Settings are first_results.py's, so that the variant `as shipped` repeats its line. A scale is the largest value of the
code on generated images (64 as shipped); `wide guidance` is a P_G whose transposed convolutions overlap. Writes
OUT/<data set>.json after each run, and skips variants that are in it already.
"""

import argparse
import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from encoder_scale import Scaled
from first_results import experiment_of
from torch import nn

from feddig import Networks
from feddig.experiment import Experiment
from feddig.files import write_atomically
from feddig.report.results import read_result
from feddig.running import run


def wide_guidance() -> nn.Module:
    """Build a P_G that paints over its neighbours' pixels too: kernels of 4 at a stride of 2."""
    return nn.Sequential(
        nn.ConvTranspose2d(4, 16, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1),
        nn.Sigmoid(),
    )


def with_moderator(**settings: Any) -> Callable[[Experiment], Experiment]:
    """Change the moderator's settings."""
    return lambda experiment: replace(experiment, moderator=replace(experiment.moderator, **settings))


def with_precision(precision: str) -> Callable[[Experiment], Experiment]:
    """Change the number format."""
    return lambda experiment: replace(experiment, training=replace(experiment.training, precision=precision))


def same(experiment: Experiment) -> Experiment:
    """Change nothing."""
    return experiment


VARIANTS: dict[str, tuple[Callable[[Experiment], Experiment], Callable[[], Networks]]] = {
    "as shipped": (same, Networks),
    "scale 16": (same, lambda: Networks(encoder=Scaled(16))),
    "scale 256": (same, lambda: Networks(encoder=Scaled(256))),
    "wide guidance": (same, lambda: Networks(guidance=wide_guidance())),
    "joint lr x 0.1": (with_moderator(joint_lr=0.0001), Networks),
    "joint lr x 3": (with_moderator(joint_lr=0.003), Networks),
    "guidance lr x 10": (with_moderator(guidance_lr=0.01), Networks),
    "two joint epochs": (with_moderator(joint_epochs=2), Networks),
    "four joint epochs": (with_moderator(joint_epochs=4), Networks),
    "four recall epochs": (with_moderator(recall_epochs=4), Networks),
    "four recall, four joint epochs": (with_moderator(recall_epochs=4, joint_epochs=4), Networks),
    "fp32": (with_precision("fp32"), Networks),
    "scale 4": (same, lambda: Networks(encoder=Scaled(4))),
    "scale 1024": (same, lambda: Networks(encoder=Scaled(1024))),
}


def main() -> None:
    """Run the variants that are still to be run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--algorithm", default="feddig")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--work", type=Path, default=Path("results/feddig-variants"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/feddig-variants"))
    options = parser.parse_args()
    logging.getLogger("feddig").setLevel(logging.WARNING)
    file = options.out / f"{options.name}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    done = {(row["variant"], row["algorithm"]) for row in rows}
    base = experiment_of(options.name, options.rounds, "default").located(options.data_dir)
    base = replace(base, algorithm=replace(base.algorithm, name=options.algorithm))
    for name in options.variants.split(","):
        if (name, options.algorithm) in done:
            continue
        change, networks = VARIANTS[name]
        out = options.work / options.name / f"{options.algorithm} {name}"
        summary = run(change(base), out, networks=networks())
        rows.append(
            {
                "variant": name,
                **{key: summary[key] for key in ("algorithm", "accuracy", "precision", "device", "versions")},
                "curve": [round(value, 2) for value in read_result(out).accuracies],
            }
        )
        print(
            options.algorithm,
            name,
            summary["accuracy"]["mean_250_299"],
            summary["accuracy"]["final"],
            flush=True,
        )
        options.out.mkdir(parents=True, exist_ok=True)
        facts = {
            "format_version": 1,
            "command": f"python benchmarks/feddig_variants.py {options.name}",
            "rows": rows,
        }
        write_atomically(file, json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
