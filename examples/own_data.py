"""FedDig on your own images: a folder for each class, and what is left when the silo that matters most goes away.

    python examples/own_data.py                 # draws four classes of small pictures first, to have a folder
    python examples/own_data.py photos          # photos/<class>/*.png; or photos/train/<class> and photos/test/<class>

Every image becomes 32 x 32 pixels (data.image_size), and a seeded tenth is for testing unless there is a folder for
that. The rest is dealt out to four silos, unevenly. At half-time the silo leaves that holds the largest
share of any one class, or the one you name: who is there when is a table of 0 and 1. They train four times:

- FedAvg where nobody leaves: the mark to reach;
- FedAvg with whoever is there;
- frozen is FedAvg that stops for good when the silo leaves: the control to beat;
- FedDig got a digest from each silo beforehand, and trains on the digest of whoever is away.

The learning rate and the passes were chosen so that FedAvg learns where nobody leaves, not for FedDig.
"""

import argparse
import itertools
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image

import feddig
from feddig.experiment.setup import lay_out
from feddig.report.page import write_report


def draw_folder(folder: Path) -> Path:
    """Stand in for your images: grey, noisy, never twice in the same place; 100 a class to train and 50 to test."""
    stream = np.random.default_rng(0)
    rows, columns = np.mgrid[-14:14, -14:14]
    for name, number in itertools.product(("cross", "disc", "ring", "stripes"), range(150)):
        down, right = stream.integers(-3, 4, 2)
        y, x = rows - down, columns - right
        distance = np.hypot(y, x)
        shape = {
            "cross": (np.minimum(abs(y), abs(x)) < 2) & (distance < 9),
            "disc": distance < 6,
            "ring": abs(distance - 7) < 2,
            "stripes": (y % 6 < 3) & (distance < 9),
        }[name]
        pixels = 40 + 180 * shape + stream.normal(0, 20, shape.shape)
        file = folder / ("train" if number < 100 else "test") / name / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file)
    return folder


def let_one_leave(
    experiment: feddig.Experiment, out: Path, leaver: int | None
) -> tuple[feddig.Experiment, int]:
    """Write who is there when: the leaver, else the silo with most of a class, only until half-time."""
    layout = lay_out(experiment)
    labels, classes = layout.dataset.train.labels, layout.dataset.classes
    held = np.array([np.bincount(labels[each.train], minlength=classes) for each in layout.partition.shares])
    print("images of each class:", *(f"silo {silo} {row.tolist()}" for silo, row in enumerate(held)))
    if leaver is None:
        leaver = int((held / held.sum(axis=0).clip(1)).max(axis=1).argmax())
    present = np.ones((len(held), experiment.training.rounds), dtype=int)
    present[leaver, experiment.training.rounds // 2 :] = 0
    out.mkdir(parents=True)
    np.savetxt(out / "availability.csv", present, fmt="%d", delimiter=",")
    absence = replace(experiment.absence, scenario="file", file=str(out / "availability.csv"))
    return replace(experiment, absence=absence), leaver


def main() -> None:
    """Compare the three on a folder of images."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, nargs="?", help="your images; left out: some are drawn")
    parser.add_argument("--rounds", type=int, default=18)
    parser.add_argument("--leaver", type=int, choices=range(4), help="the silo that leaves")
    parser.add_argument("--out", type=Path, help="new folder for the results")
    options = parser.parse_args()
    images = options.folder or draw_folder(Path(tempfile.mkdtemp()) / "images")
    out = options.out or Path(tempfile.mkdtemp()) / "own-data"

    experiment = feddig.demo_experiment(
        [
            "data.name=folder",
            f"data.path={images}",
            "data.skew=0.3",
            "data.min_samples=32",  # no silo has fewer images
            "training.local_epochs=3",  # few images, so several passes over them in a round
            "training.batch=8",
            "training.lr=0.02",
            f"training.rounds={options.rounds}",
        ]
    )
    experiment, leaver = let_one_leave(experiment, out, options.leaver)
    cells = feddig.grid(experiment, ["fedavg"], ["none"], [0], out)
    cells += feddig.grid(experiment, ["fedavg", "frozen", "feddig"], ["file"], [0], out)
    outcomes = feddig.run_grid(cells)  # rounds that several of them share are trained once

    print(f"{images}: test accuracy in percent")
    print(f"algorithm   silo {leaver}   at the end")
    for outcome in outcomes:
        result = outcome.summary
        if result is None:  # a run that fails stops no other
            raise SystemExit(f"{outcome.cell.path}: {outcome.failure}")
        stays = "stays" if result.scenario == "none" else "leaves"
        print(f"{result.algorithm:12}{stays:8} {result.accuracy:10.1f}")
    print(f"report: {write_report([out])[0]}")


if __name__ == "__main__":
    main()
