"""Compare ways to post-process digests of known noise, each measured by two small classifiers.

Fashion-MNIST through the shipped encoder, or through the even one (--encoder even); digests with the discrete
Gaussian, same-label adjacency, delta 1e-6. The classifiers see only features, learn from digests and are tested
on the features of single images without noise.

python benchmarks/noise_aware.py --data-dir FOLDER --out benchmarks/results/noise_aware.json
"""

import argparse
import itertools
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from feddig.core.samples import ImageSource
from feddig.data.load import load_dataset
from feddig.digest.digest import make_digest, without_noise
from feddig.models.encoder import load_encoder
from feddig.models.train_encoder import generate_images
from feddig.settings import DigestSettings, PrivacySettings

CLASSES = 10
STEPS, BATCH, LR = 400, 256, 3e-3
UNITS = {"default": 60.0, "even": 20.0}
"""Divisors of each encoder's features: about their standard deviation over images."""

Way = Callable[[Tensor, Tensor, float, int], Tensor]


def as_received(features: Tensor, labels: Tensor, deviation: float, samples: int) -> Tensor:
    """Do nothing."""
    return features


def towards_the_pooled_mean(features: Tensor, labels: Tensor, deviation: float, samples: int) -> Tensor:
    """Shrink each direction by the share of its variance that is not noise (Wiener), without labels."""
    rows = features.double()
    rest = rows - rows.mean(0)
    gains, directions = _wiener(rest, deviation, len(rows) - 1)
    return (rows.mean(0) + (rest @ directions * gains) @ directions.T).float()


def labels_part_alone(features: Tensor, labels: Tensor, deviation: float, samples: int) -> Tensor:
    """Keep only what labels explain."""
    shares = labels.double()
    return (shares @ torch.linalg.pinv(shares) @ features.double()).clamp(min=0).float()


def towards_the_labels_part(features: Tensor, labels: Tensor, deviation: float, samples: int) -> Tensor:
    """Shrink what labels do not explain by the share of its variance that is not noise (Wiener)."""
    return without_noise(features, labels, deviation)


WAYS: dict[str, Way] = {
    "as received": as_received,
    "towards the pooled mean": towards_the_pooled_mean,
    "labels' part alone": labels_part_alone,
    "towards the labels' part": towards_the_labels_part,
    "as single samples": without_noise,
}
"""moderator.noise_aware uses the last but one with random mixing, and the last with mixing within classes."""


def main() -> None:
    """Measure every method with every noise and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--data", default="fashion-mnist")
    parser.add_argument("--epsilons", type=float, nargs="+", default=[8.0, 1.0])
    parser.add_argument("--spd", type=int, nargs="+", default=[4, 64, 1024])
    parser.add_argument("--mixings", nargs="+", default=["random", "within-class"])
    parser.add_argument("--encoder", choices=UNITS, default="default")
    parser.add_argument("--clip-bound", type=float, default=350.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    train, test = _features(options.data, options.data_dir, options.encoder)
    unit = UNITS[options.encoder]
    norm = _public_norm()
    print(f"median L2 norm of the shipped encoder's features on generated images: {norm:.0f}")
    rows = []
    for mixing, epsilon, spd in itertools.product(options.mixings, options.epsilons, options.spd):
        privacy = PrivacySettings(
            mechanism="discrete-gaussian", epsilon=epsilon, delta=1e-6, clip_bound=options.clip_bound
        )
        settings = DigestSettings(samples_per_digest=spd, mixing=mixing, seed=0)
        digest = make_digest(0, *train, CLASSES, settings=settings, privacy=privacy, encoder="")
        deviation = float(str(digest.facts["noise_deviation"]))
        setting = {"mixing": mixing, "epsilon": epsilon, "samples_per_digest": spd, "digests": len(digest)}
        print(f"{mixing}, epsilon {epsilon:g}, SpD {spd}: {len(digest)} digests, noise {deviation:.3g}")
        for name, way in WAYS.items():
            clear = way(digest.features.flatten(1), digest.labels, deviation, spd)
            found = {
                kind: _judge(kind, clear, digest.labels, test, unit) for kind in ("linear", "hidden layer")
            }
            rows.append({**setting, "noise_deviation": deviation, "way": name, "accuracy": found})
            print(
                f"  {name:26}" + "".join(f"{kind} {value:5.1f}  " for kind, value in found.items()),
                flush=True,
            )
    clean = {
        kind: _judge(kind, train[0].flatten(1), nn.functional.one_hot(train[1], CLASSES).float(), test, unit)
        for kind in ("linear", "hidden layer")
    }
    print("raw features, no mixing, no noise  " + str(clean))
    result = {
        "format_version": 1,
        "command": "python benchmarks/noise_aware.py",
        "data": options.data,
        "encoder": options.encoder,
        "clip_bound": options.clip_bound,
        "delta": 1e-6,
        "median_norm_on_generated_images": norm,
        "load_before": os.getloadavg()[0],
        "versions": {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "without_noise": clean,
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def _features(
    name: str, data_dir: Path | None, encoder_name: str
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    dataset, encoder = load_dataset(name, data_dir=data_dir), load_encoder(encoder_name, 1)
    pairs = []
    for images in (dataset.train, dataset.test):
        source = ImageSource(images, encoder, torch.device("cpu"))
        assert source.features is not None
        pairs.append((source.features, source.labels))
    return pairs[0], pairs[1]


def _public_norm() -> float:
    """Return the median norm on generated images, by which a clip can be chosen without data."""
    images = generate_images(4000, 1, torch.Generator().manual_seed(0))
    with torch.no_grad():
        return float(load_encoder("default", 1)(images).flatten(1).norm(dim=1).median())


def _wiener(rest: Tensor, deviation: float, left: int) -> tuple[Tensor, Tensor]:
    variances, directions = torch.linalg.eigh(rest.T @ rest / left)
    edge = deviation**2 * (1 + (rest.shape[1] / left) ** 0.5) ** 2
    return torch.where(variances > edge, 1 - deviation**2 / variances.clamp(min=edge), 0), directions


def _judge(kind: str, features: Tensor, labels: Tensor, test: tuple[Tensor, Tensor], unit: float) -> float:
    """Train a classifier on these and return its test accuracy."""
    torch.manual_seed(0)
    width, stream = features.shape[1], torch.Generator().manual_seed(1)
    network: nn.Module = nn.Linear(width, CLASSES)
    if kind == "hidden layer":
        network = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, CLASSES))
    optimiser = torch.optim.Adam(network.parameters(), lr=LR)
    middle = features.mean(0)
    for _ in range(STEPS):
        batch = torch.randint(len(features), (BATCH,), generator=stream)
        loss = nn.functional.cross_entropy(network((features[batch] - middle) / unit), labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        guesses = network((test[0].flatten(1) - middle) / unit).argmax(1)
    return round(float((guesses == test[1]).float().mean()) * 100, 1)


if __name__ == "__main__":
    main()
