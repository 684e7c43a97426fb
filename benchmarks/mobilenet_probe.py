"""Compare how well CIFAR-10's classes can be read from codes of MobileNetV2 and of the shipped colour encoder.

    python benchmarks/mobilenet_probe.py FOLDER WEIGHTS [--out results.json] [--images 5000] [--test-images 2000]

FOLDER contains CIFAR-10's binary version, WEIGHTS is a file that `feddig encoder import` accepts. The measure: a
linear classifier on the codes of 5,000 training images, tested on 2,000 test images. Its weight penalty is chosen on
a fifth of the training images, not on the test images.
"""

import argparse
import json
import platform
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from feddig import load_dataset
from feddig.models.encoder import encoder_hash, load_encoder
from feddig.models.mobilenet import import_mobilenet, new_mobilenet

CHOOSING_SHARE = 5
"""One in this many training images is used to choose the penalty."""
ENLARGEMENTS = (1, 2, 3)
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1)
SEED = 0


def main() -> None:
    """Measure each code, print a table and write it to a file."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("folder", type=Path)
    options.add_argument("weights", type=Path)
    options.add_argument("--out", type=Path)
    options.add_argument("--images", type=int, default=5000, help="training images")
    options.add_argument("--test-images", type=int, default=2000)
    chosen = options.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(SEED)

    dataset = load_dataset("cifar10", chosen.folder, limit=chosen.images, seed=SEED)
    images = torch.cat(
        [
            torch.from_numpy(part.pixels[torch.arange(count).numpy()]).float() / 255
            for part, count in ((dataset.train, chosen.images), (dataset.test, chosen.test_images))
        ]
    )
    labels = torch.from_numpy(dataset.train.labels[: chosen.images])
    answers = torch.from_numpy(dataset.test.labels[: chosen.test_images])

    imported = {factor: import_mobilenet(chosen.weights, factor).eval() for factor in ENLARGEMENTS}
    encoders: dict[str, nn.Module] = {
        "the pixels themselves": nn.Identity(),
        "shipped colour encoder": load_encoder("default", 3),
        "MobileNetV2, fresh weights": new_mobilenet().eval(),
        **{f"MobileNetV2, imported, --enlarge {factor}": network for factor, network in imported.items()},
    }
    rows = []
    print("| code | numbers | test accuracy (%) | largest | above zero (%) |\n|---|---|---|---|---|")
    for name, encoder in encoders.items():
        with torch.no_grad():
            codes = torch.cat([encoder(part).flatten(1) for part in images.split(250)])
        row = {
            "code": name,
            "numbers": codes.shape[1],
            "accuracy": probe(codes[: chosen.images], labels, codes[chosen.images :], answers),
            "largest": codes.max().item(),
            "above_zero": 100 * (codes > 0).float().mean().item(),
        }
        rows.append(row)
        print(
            f"| {name} | {row['numbers']:,} | {row['accuracy']:.1f} | {row['largest']:.1f} "
            f"| {row['above_zero']:.1f} |",
            flush=True,
        )
    if chosen.out:
        facts = {
            "format_version": 1,
            "device": f"CPU, 2 threads, {platform.machine()}",
            "torch": torch.__version__,
            "encoder": encoder_hash(imported[1]),
            "seed": SEED,
            "training_images": chosen.images,
            "test_images": chosen.test_images,
            "rows": rows,
        }
        chosen.out.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def probe(codes: Tensor, labels: Tensor, test_codes: Tensor, answers: Tensor) -> float:
    """Return the test accuracy of a linear classifier in per cent."""
    mean, deviation = codes.mean(0), codes.std(0) + 1e-6
    codes, test_codes = (codes - mean) / deviation, (test_codes - mean) / deviation
    most = len(codes) - len(codes) // CHOOSING_SHARE
    found = {
        penalty: accuracy(fit(codes[:most], labels[:most], penalty), codes[most:], labels[most:])
        for penalty in PENALTIES
    }
    return accuracy(fit(codes, labels, max(found, key=lambda penalty: found[penalty])), test_codes, answers)


def fit(codes: Tensor, labels: Tensor, penalty: float) -> nn.Linear:
    """Fit a linear classifier with up to 100 steps of L-BFGS."""
    classifier = nn.Linear(codes.shape[1], 10)
    nn.init.zeros_(classifier.weight)
    nn.init.zeros_(classifier.bias)
    optimiser = torch.optim.LBFGS(classifier.parameters(), max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = cross_entropy(classifier(codes), labels) + penalty * classifier.weight.square().sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return classifier


@torch.no_grad()
def accuracy(classifier: nn.Linear, codes: Tensor, labels: Tensor) -> float:
    """Return the accuracy in per cent."""
    return 100 * float((classifier(codes).argmax(1) == labels).float().mean())


if __name__ == "__main__":
    main()
