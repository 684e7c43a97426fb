"""Measure what changes FedDig's final accuracy: one change at a time, silos leave in sequence, seed 0.

    python benchmarks/feddig_variants.py emnist-byclass --data-dir FOLDER --out benchmarks/results/feddig-variants

Settings are those of first_results.py, so the variant `as shipped` repeats its line. A scale is the largest value of
the code on generated images (64 as shipped). `wide guidance` is a P_G whose transposed convolutions overlap. `of seed
3` draws one thing (initial weights of P_G or M, digests, partition) from seed 3 and all else from seed 0; `and all of
seed 3` draws everything from seed 3. `linear F_D` is the other interpretation of the paper's size. OUT/<data set>.json
is written after each run, and its variants are not run again. `--draw` runs nothing and draws the curves of --variants
from that file to OUT/<data set>.png.
"""

import argparse
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from encoder_scale import Scaled
from first_results import experiment_of
from matplotlib.figure import Figure
from torch import nn

from feddig import Networks
from feddig.experiment.experiment import Experiment
from feddig.files import write_atomically
from feddig.models.networks import Classifier, build_classifier, build_guidance, size_matched_raw
from feddig.report.curve_styles import choose_styles
from feddig.report.read_run import read_rounds
from feddig.runs.run import run
from feddig.seeds import derive

LEAVES = (100, 150, 200, 250)
CODE, IMAGE = (4, 8, 8), (1, 32, 32)
CLASSES = {"fashion-mnist": 10, "fashion-mini": 10, "emnist-byclass": 62}


def wide_guidance() -> nn.Module:
    """Build a P_G with overlapping kernels: size 4 at a stride of 2."""
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


def with_seed_of(part: str, seed: int) -> Callable[[Experiment], Experiment]:
    """Draw the partition ("data") or the digests ("digest") from another seed."""
    return lambda experiment: replace(experiment, **{part: replace(getattr(experiment, part), seed=seed)})


def with_seed(seed: int) -> Callable[[Experiment], Experiment]:
    """Draw everything from another seed."""
    return lambda experiment: replace(experiment, seed=seed, data=replace(experiment.data, seed=seed))


def guidance_of(seed: int) -> Callable[[Experiment], Networks]:
    """Start P_G from its initial weights in a run of this seed."""

    def build(experiment: Experiment) -> Networks:
        torch.manual_seed(derive(seed, "initial weights", "guidance"))
        return Networks(guidance=build_guidance(experiment.model.guidance, CODE, IMAGE))

    return build


def dark_guidance(seed: int, bias: float) -> Callable[[Experiment], Networks]:
    """Start P_G from the initial weights of this seed with another last bias; far below 0, pictures start dark."""

    def build(experiment: Experiment) -> Networks:
        networks = guidance_of(seed)(experiment)
        assert networks.guidance is not None
        *_, last = (layer for layer in networks.guidance.modules() if isinstance(layer, nn.ConvTranspose2d))
        assert last.bias is not None
        nn.init.constant_(last.bias, bias)
        return networks

    return build


def classifier_of(seed: int) -> Callable[[Experiment], Networks]:
    """Start M from its initial weights in a run of this seed."""

    def build(experiment: Experiment) -> Networks:
        torch.manual_seed(derive(seed, "initial weights", "classifier"))
        classes = CLASSES[experiment.data.name]
        return Networks(classifier=build_classifier(experiment.model.classifier, IMAGE, classes, CODE))

    return build


def linear_digest_part(seed: int) -> Callable[[Experiment], Networks]:
    """Use the other F_D of the paper's 1.00 MB: one layer, from 256 to 325 numbers."""

    def build(experiment: Experiment) -> Networks:
        torch.manual_seed(derive(seed, "initial weights", "classifier"))
        digest_part = nn.Sequential(nn.Flatten(), nn.Linear(256, 325), nn.ReLU())
        head = nn.Sequential(
            nn.Linear(2048 + 325, 512), nn.ReLU(), nn.Linear(512, CLASSES[experiment.data.name])
        )
        return Networks(classifier=Classifier(size_matched_raw(1), digest_part, head))

    return build


def fixed(**networks: Any) -> Callable[[Experiment], Networks]:
    """Use these networks for every experiment."""
    return lambda _: Networks(**{name: build() for name, build in networks.items()})


shipped = fixed()
VARIANTS: dict[str, tuple[Callable[[Experiment], Experiment], Callable[[Experiment], Networks]]] = {
    "as shipped": (same, shipped),
    "P_G of seed 3": (same, guidance_of(3)),
    "M of seed 3": (same, classifier_of(3)),
    "P_G of seed 1": (same, guidance_of(1)),
    "P_G of seed 2": (same, guidance_of(2)),
    "dark P_G": (same, dark_guidance(0, -2.0)),
    "darker P_G": (same, dark_guidance(0, -4.0)),
    "darkest P_G": (same, dark_guidance(0, -8.0)),
    **{
        f"{name} P_G and all of seed {seed}": (with_seed(seed), dark_guidance(seed, bias))
        for name, bias in (("dark", -2.0), ("darker", -4.0), ("darkest", -8.0))
        for seed in (1, 2, 3)
    },
    **{f"all of seed {seed}": (with_seed(seed), shipped) for seed in (1, 2, 3)},
    **{
        f"linear F_D and all of seed {seed}": (with_seed(seed), linear_digest_part(seed))
        for seed in (0, 1, 2, 3)
    },
    "dark P_G of seed 1": (same, dark_guidance(1, -2.0)),
    "digests of seed 3": (with_seed_of("digest", 3), shipped),
    "partition of seed 3": (with_seed_of("data", 3), shipped),
    "scale 16": (same, fixed(encoder=lambda: Scaled(16))),
    "scale 256": (same, fixed(encoder=lambda: Scaled(256))),
    "wide guidance": (same, fixed(guidance=wide_guidance)),
    "joint lr x 0.1": (with_moderator(joint_lr=0.0001), shipped),
    "joint lr x 3": (with_moderator(joint_lr=0.003), shipped),
    "guidance lr x 10": (with_moderator(guidance_lr=0.01), shipped),
    "two joint epochs": (with_moderator(joint_epochs=2), shipped),
    "four joint epochs": (with_moderator(joint_epochs=4), shipped),
    "four recall epochs": (with_moderator(recall_epochs=4), shipped),
    "four recall and joint epochs": (with_moderator(recall_epochs=4, joint_epochs=4), shipped),
    "fp32": (with_precision("fp32"), shipped),
    "scale 4": (same, fixed(encoder=lambda: Scaled(4))),
    "scale 1024": (same, fixed(encoder=lambda: Scaled(1024))),
}


def main() -> None:
    """Run the variants that have no result yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--algorithm", default="feddig")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--work", type=Path, default=Path("results/feddig-variants"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/feddig-variants"))
    parser.add_argument("--draw", action="store_true", help="draw the existing results")
    options = parser.parse_args()
    logging.getLogger("feddig").setLevel(logging.WARNING)
    file = options.out / f"{options.name}.json"
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"] if file.exists() else []
    if options.draw:
        chosen = [row for row in rows if row["algorithm"] == options.algorithm]
        draw({row["variant"]: row["curve"] for row in chosen}, options.variants.split(","), file)
        return
    done = {(row["variant"], row["algorithm"]) for row in rows}
    base = experiment_of(options.name, options.rounds, "default").located(options.data_dir)
    base = replace(base, algorithm=replace(base.algorithm, name=options.algorithm))
    for name in options.variants.split(","):
        if (name, options.algorithm) in done:
            continue
        change, networks = VARIANTS[name]
        out = options.work / options.name / f"{options.algorithm} {name}"
        summary = run(change(base), out, networks=networks(base))
        rows.append(
            {
                "variant": name,
                **{key: summary[key] for key in ("algorithm", "accuracy", "precision", "device", "versions")},
                "curve": [round(value, 2) for value in read_rounds(out).accuracies],
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


def draw(curves: Mapping[str, Sequence[float]], variants: Sequence[str], file: Path) -> None:
    """Draw the test accuracy of these variants by round; dotted lines mark rounds in which a silo leaves."""
    figure = Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    for name, style in choose_styles(name for name in variants if name in curves).items():
        axes.plot(curves[name], color=style.colour, label=name, linewidth=1.2)
    for leave in LEAVES:
        axes.axvline(leave, color="0.5", linestyle=":", linewidth=1)
    least = min(min(curve[50:]) for name, curve in curves.items() if name in variants)
    axes.set(xlabel="round", ylabel="test accuracy (%)", ylim=(least - 2, None))
    axes.set_title(f"{file.stem}, FedDig, seed 0 but ...", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(file.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main()
