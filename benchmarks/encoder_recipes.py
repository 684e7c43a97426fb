"""Compare ways of making the encoder by how well a classifier learns from digests alone.

    python benchmarks/encoder_recipes.py FOLDER [--out results.json] [--seeds 3]

FOLDER holds Fashion-MNIST as four gzipped IDX files. The measure: encode training images, make digests (four
samples each, the paper's noise), train a small classifier on them and test it on plain, unmixed features. The
column "plain" trains on the features themselves instead, without mixing and noise. Real images only measure;
no recipe learns from them, except the one that is named so and marks what is possible.
"""

import argparse
import gzip
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from feddig.errors import DivergenceError
from feddig.models.encoder_making import BATCH, LARGEST_VALUE, STEPS, Recipe, make_encoder
from feddig.seeds import torch_stream

TRAINING_IMAGES = 10_000
TEST_IMAGES = 10_000
CLASSES = 10
SAMPLES_PER_DIGEST = 4
NOISE = 0.01
DIGEST_EPOCHS = 16
PLAIN_EPOCHS = 3
LEARNING_RATE = 0.01


def main() -> None:
    """Measure every recipe, print the table and write it down."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("folder", type=Path)
    options.add_argument("--out", type=Path)
    options.add_argument("--seeds", type=int, default=3)
    chosen = options.parse_args()
    torch.set_num_threads(1)

    images, labels = read_idx(chosen.folder, "train", TRAINING_IMAGES)
    test_images, test_labels = read_idx(chosen.folder, "t10k", TEST_IMAGES)

    def fashion(count: int, _channels: int, generator: torch.Generator) -> Tensor:
        return images[torch.randint(len(images), (count,), generator=generator)]

    recipes: list[tuple[Recipe, int]] = [
        (Recipe("untrained", noise=0), 0),
        (Recipe("generated images", noise=0), STEPS),
        (Recipe("generated images, noisy code", noise=NOISE), STEPS),
        (Recipe("generated images, mixed and noisy code", mixed=SAMPLES_PER_DIGEST, noise=NOISE), STEPS),
        (Recipe("Fashion-MNIST itself, noisy code", fashion, noise=NOISE), STEPS),
        (Recipe("blobs only", draw_blobs, noise=0), STEPS),
    ]
    rows = []
    print("| recipe | digests | by seed | plain | largest / deviation | seconds |\n|---|---|---|---|---|---|")
    for recipe, steps in recipes:
        try:
            row = measure(recipe, steps, chosen.seeds, (images, labels), (test_images, test_labels))
        except DivergenceError as error:
            print(f"| {recipe.name} | {error} | | | | |", flush=True)
            continue
        rows.append(row)
        by_seed = ", ".join(f"{value:.1f}" for value in row["digests_by_seed"])
        print(
            f"| {recipe.name} | {row['digests']:.1f} | {by_seed} | {row['plain']:.1f} "
            f"| {row['peak']:.1f} | {row['seconds']:.0f} |",
            flush=True,
        )
    if chosen.out:
        facts = {
            "format_version": 1,
            "device": f"CPU, 1 thread, {platform.machine()}",
            "torch": torch.__version__,
            "steps": STEPS,
            "batch": BATCH,
            "training_images": TRAINING_IMAGES,
            "test_images": TEST_IMAGES,
            "rows": rows,
        }
        chosen.out.write_text(json.dumps(facts, indent=2) + "\n")


def measure(
    recipe: Recipe, steps: int, seeds: int, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]
) -> dict[str, Any]:
    """Make the encoder once per seed, and a classifier from digests and one from plain features each time."""
    digests, plain, peaks, seconds = [], [], [], []
    for seed in range(seeds):
        start = time.perf_counter()
        encoder = make_encoder(1, seed, steps, recipe=recipe)
        seconds.append(time.perf_counter() - start)
        features, test_features = encode(encoder, train[0]), encode(encoder, test[0])
        peaks.append((features.amax() / features.std()).item())
        soft = nn.functional.one_hot(train[1], CLASSES).float()
        mixed, mixed_soft = make_digests(features, soft, torch_stream(seed, "benchmark digests"))
        digests.append(accuracy(mixed, mixed_soft, DIGEST_EPOCHS, seed, test_features, test[1]))
        plain.append(accuracy(features, soft, PLAIN_EPOCHS, seed, test_features, test[1]))
    return {
        "recipe": recipe.name,
        "digests": statistics.mean(digests),
        "digests_by_seed": digests,
        "plain": statistics.mean(plain),
        "plain_by_seed": plain,
        "peak": statistics.mean(peaks),
        "seconds": statistics.mean(seconds),
    }


@torch.no_grad()
def encode(encoder: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Encode in parts, to need little memory."""
    starts = range(0, len(images), 1000)
    # brought near a deviation of 1, so that the comparison is of recipes and not of scales
    return torch.cat([encoder(images[start : start + 1000]) for start in starts]) * (4 / LARGEST_VALUE)


def make_digests(features: Tensor, soft: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Average every four samples in random order, and add noise of a hundredth of the largest value."""
    order = torch.randperm(len(features), generator=generator).view(-1, SAMPLES_PER_DIGEST)
    pair = torch.empty(2, len(order), *features.shape[1:]).exponential_(generator=generator)
    noise = NOISE * features.amax() * (pair[0] - pair[1])
    return features[order].mean(1) + noise, soft[order].mean(1)


def accuracy(inputs: Tensor, soft: Tensor, epochs: int, seed: int, tests: Tensor, answers: Tensor) -> float:
    """Train a small classifier and give its test accuracy in per cent."""
    torch.manual_seed(seed)
    classifier = nn.Sequential(
        *(nn.Conv2d(4, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 128, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(512, CLASSES)),
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
        right = classifier(tests).argmax(1) == answers
    return 100 * float(right.float().mean())


def draw_blobs(count: int, channels: int, generator: torch.Generator) -> Tensor:
    """Draw a few soft round spots on a plain ground, the simplest generated images."""
    line = torch.linspace(-1, 1, 32)
    centre = torch.rand(2, count, 3, 1, generator=generator) * 1.6 - 0.8
    width = torch.rand(count, 3, 1, generator=generator) * 0.4 + 0.1
    down, across = torch.exp(-((line - centre) / width).square())
    brightness = torch.rand(count, 3, 1, 1, generator=generator)
    spots = brightness * down.unsqueeze(3) * across.unsqueeze(2)
    # not only black: with nothing but dark images a channel dies at nearly every start
    ground = torch.rand(count, 1, 1, 1, generator=generator)
    images: Tensor = (ground + spots.sum(1, keepdim=True)).clamp(0, 1)
    return images.expand(-1, channels, -1, -1)


def read_idx(folder: Path, part: str, count: int) -> tuple[Tensor, Tensor]:
    """Read images, padded with zeros from 28x28 to 32x32, and their labels."""
    with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as stream:
        pixels = np.frombuffer(stream.read(), np.uint8, offset=16).reshape(-1, 1, 28, 28)[:count]
    with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as stream:
        labels = np.frombuffer(stream.read(), np.uint8, offset=8)[:count]
    images = torch.from_numpy(pixels.astype(np.float32) / 255)
    return nn.functional.pad(images, (2, 2, 2, 2)), torch.from_numpy(labels.astype(np.int64))


if __name__ == "__main__":
    main()
