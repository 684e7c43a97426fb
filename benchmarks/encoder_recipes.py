"""Compare recipes for the encoder by the accuracy of a classifier that learns from digests only.

    python benchmarks/encoder_recipes.py [--data-dir FOLDER] [--out results.json] [--seeds 3] [--steps N] [--images N]

Measured on Fashion-MNIST and EMNIST ByClass, where FedDig finds them. The measure: encode training images, scale the
largest value to 4, make digests (four samples each, the paper's noise), train a small classifier on them and test it
on unmixed features. Recipes do not learn from real images, except those whose name says so.
"""

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from encoder_trials import (
    SAMPLES_PER_DIGEST,
    draw_clouds,
    draw_pairs,
    draw_scribbles,
    draw_varied,
    draw_varied_pairs,
    with_decorrelation,
    with_edges,
    with_recognition,
    with_recognition_in_digests,
)
from torch import Tensor, nn

from feddig.core.samples import ImageSource
from feddig.data import Images, load_dataset
from feddig.errors import DivergenceError
from feddig.models.train_encoder import BATCH, STEPS, EncoderTraining, make_encoder
from feddig.seeds import numpy_stream, torch_stream

SETS = ("fashion-mnist", "emnist-byclass")
TEST_SHARE = 2
"""Training images per test image."""
LARGEST = 4.0
NOISE = 0.01
EPOCHS = 16
LEARNING_RATE = 0.01


@dataclass(frozen=True)
class Measured:
    """The images of a data set for measuring encoders."""

    name: str
    classes: int
    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor

    def draw(self, count: int, _channels: int, generator: torch.Generator) -> Tensor:
        """Draw training images, for the recipes that learn from the data itself."""
        return self.images[torch.randint(len(self.images), (count,), generator=generator)]


def recipes(fashion: Measured, emnist: Measured, steps: int) -> list[tuple[EncoderTraining, int]]:
    """List the recipes, with this number of training steps."""
    return [
        (EncoderTraining("untrained", noise=0), 0),
        (EncoderTraining("shipped"), steps),
        (EncoderTraining("shipped, on Fashion-MNIST itself", fashion.draw), steps),
        (EncoderTraining("shipped, on EMNIST itself", emnist.draw), steps),
        (EncoderTraining("recognition", draw_pairs, loss=with_recognition), steps),
        (EncoderTraining("recognition in digests", draw_pairs, loss=with_recognition_in_digests), steps),
        (
            EncoderTraining(
                "varied, recognition in digests", draw_varied_pairs, loss=with_recognition_in_digests
            ),
            steps,
        ),
        (EncoderTraining("1/f noise", draw_clouds), steps),
        (EncoderTraining("scribbles", draw_scribbles), steps),
        (EncoderTraining("varied images", draw_varied), steps),
        (EncoderTraining("edges", loss=with_edges), steps),
        (EncoderTraining("channels decorrelated", loss=with_decorrelation), steps),
    ]


def main() -> None:
    """Measure every recipe, print the table and write it to a file."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--data-dir", type=Path)
    options.add_argument("--out", type=Path)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--steps", type=int, default=STEPS, help="of an encoder's training")
    options.add_argument("--images", type=int, default=20_000, help="for training; half as many test")
    options.add_argument("--only", default="", help="names of recipes, separated by semicolons")
    chosen = options.parse_args()
    torch.set_num_threads(1)

    fashion, emnist = (load(name, chosen.data_dir, chosen.images) for name in SETS)
    listed = recipes(fashion, emnist, chosen.steps)
    if chosen.only:
        listed = [each for each in listed if each[0].name in chosen.only.split(";")]
    rows = []
    print("| recipe | Fashion-MNIST | by seed | EMNIST | by seed | seconds |\n|---|---|---|---|---|---|")
    for recipe, steps in listed:
        try:
            rows.append(measure(recipe, steps, chosen.seeds, (fashion, emnist)))
            print(as_line(rows[-1]), flush=True)
        except DivergenceError as error:
            print(f"| {recipe.name} | {error} | | | | |", flush=True)
        if chosen.out:
            write(chosen.out, rows, chosen.images)


def as_line(row: dict[str, Any]) -> str:
    """Return a row of the printed table."""
    cells = [row["recipe"]]
    for name in SETS:
        by_seed = ", ".join(f"{value:.1f}" for value in row[name]["digests_by_seed"])
        cells += [f"{row[name]['digests']:.1f}", by_seed]
    return f"| {' | '.join(cells)} | {row['seconds']:.0f} |"


def write(path: Path, rows: list[dict[str, Any]], images: int) -> None:
    """Write all rows so far, with the settings."""
    facts = {
        "format_version": 2,
        "device": f"CPU, 1 thread, {platform.machine()}",
        "torch": torch.__version__,
        "batch": BATCH,
        "training_images": images,
        "test_images": images // TEST_SHARE,
        "rows": rows,
    }
    path.write_text(json.dumps(facts, indent=2) + "\n")


def load(name: str, data_dir: Path | None, count: int) -> Measured:
    """Load the images of a set, the same for every recipe and seed."""
    dataset = load_dataset(name, data_dir=data_dir)
    images, labels = _some(dataset.train, count)
    test_images, test_labels = _some(dataset.test, count // TEST_SHARE)
    return Measured(name, dataset.classes, images, labels, test_images, test_labels)


def _some(images: Images, count: int) -> tuple[Tensor, Tensor]:
    rows = torch.from_numpy(numpy_stream(0, "benchmark images").choice(len(images), count, replace=False))
    source = ImageSource(images, None, torch.device("cpu"))
    return source.images(rows), source.targets(rows)


def measure(recipe: EncoderTraining, steps: int, seeds: int, sets: tuple[Measured, ...]) -> dict[str, Any]:
    """Train the encoder once per seed, and for each set a classifier on digests."""
    found: dict[str, dict[str, list[float]]] = {
        one.name: {"digests": [], "largest": [], "deviation": []} for one in sets
    }
    seconds = []
    for seed in range(seeds):
        start = time.perf_counter()
        encoder = make_encoder(1, seed, steps, training=recipe)
        seconds.append(time.perf_counter() - start)
        for one in sets:
            for name, value in _measure_on(one, encoder, seed).items():
                found[one.name][name].append(value)
    return {
        "recipe": recipe.name,
        "steps": steps,
        "seconds": statistics.mean(seconds),
        **{
            one: {
                **{name: statistics.mean(values) for name, values in kinds.items()},
                **{f"{name}_by_seed": values for name, values in kinds.items()},
            }
            for one, kinds in found.items()
        },
    }


def _measure_on(one: Measured, encoder: Callable[[Tensor], Tensor], seed: int) -> dict[str, float]:
    features, tests = encode(encoder, one.images), encode(encoder, one.test_images)
    largest, deviation = features.amax().item(), features.std().item()
    # use one scale for all recipes, because the largest value acts like a learning rate
    features, tests = features * (LARGEST / largest), tests * (LARGEST / largest)
    soft = nn.functional.one_hot(one.labels, one.classes).float()
    mixed, mixed_soft = make_digests(features, soft, torch_stream(seed, "benchmark digests"))
    return {
        "digests": accuracy(mixed, mixed_soft, EPOCHS, seed, tests, one.test_labels),
        "largest": largest,
        "deviation": deviation,
    }


@torch.no_grad()
def encode(encoder: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Encode in parts, which needs less memory."""
    return torch.cat([encoder(part) for part in images.split(1000)])


def make_digests(features: Tensor, soft: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Average groups of four samples in random order, and add noise of a hundredth of the largest value."""
    order = torch.randperm(len(features), generator=generator).view(-1, SAMPLES_PER_DIGEST)
    pair = torch.empty(2, len(order), *features.shape[1:]).exponential_(generator=generator)
    noise = NOISE * features.amax() * (pair[0] - pair[1])
    return features[order].mean(1) + noise, soft[order].mean(1)


def accuracy(inputs: Tensor, soft: Tensor, epochs: int, seed: int, tests: Tensor, answers: Tensor) -> float:
    """Train a small classifier and return its test accuracy in per cent."""
    torch.manual_seed(seed)
    classifier = nn.Sequential(
        *(nn.Conv2d(4, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, soft.shape[1])),
    )
    optimiser = torch.optim.SGD(classifier.parameters(), lr=LEARNING_RATE, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs)
    for _ in range(epochs):
        order = torch.randperm(len(inputs))
        for start in range(0, len(inputs), 32):
            rows = order[start : start + 32]
            loss = nn.functional.cross_entropy(classifier(inputs[rows]), soft[rows])
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
        schedule.step()
    with torch.no_grad():
        right = torch.cat([classifier(part).argmax(1) for part in tests.split(1000)]) == answers
    return 100 * float(right.float().mean())


if __name__ == "__main__":
    main()
