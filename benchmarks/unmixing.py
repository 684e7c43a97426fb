"""Measure how many of 400 digests of Fashion-MNIST an attacker unmixes, with a pool of 10,000 images.

python benchmarks/unmixing.py --out benchmarks/results/unmixing.json
"""

import argparse
import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from feddig import load_dataset
from feddig.attacks.candidates import Candidates, read_noise
from feddig.attacks.unmixing import Unmixing, evaluate_unmixing, unmix
from feddig.core.samples import ImageSource
from feddig.data.dataset import Images
from feddig.digest.digest import Digest, make_digest, mix_groups
from feddig.experiment.setup import describe_device
from feddig.models.encoder import encoder_hash, load_encoder
from feddig.seeds import seeded_uniforms, torch_stream
from feddig.settings import DigestSettings, PrivacySettings

POOL, DIGESTS, SEED = 10_000, 400, 0
EPSILONS, SAMPLES_PER_DIGEST = (0.005, 0.0005), (2, 4, 8)


@dataclass(frozen=True)
class Attacked:
    """The result of one setting."""

    samples_per_digest: int
    epsilon: float
    result: Unmixing
    seconds: float

    def row(self) -> dict[str, object]:
        """Return the row that is written to the file."""
        result = self.result
        return {
            "samples_per_digest": self.samples_per_digest,
            "epsilon": self.epsilon,
            "digests": result.digests.trials,
            "whole": result.digests.hits,
            "whole_interval": result.digests.interval(),
            "whole_chance": result.digests.chance,
            "members": result.members.trials,
            "members_found": result.members.hits,
            "members_chance": result.members.chance,
            "search_gave_up": result.gave_up,
            "noise_hid_it": result.hidden,
            "mean_found_residual": float(result.found_residuals.mean()),
            "mean_true_residual": float(result.true_residuals.mean()),
            "seconds": round(self.seconds, 1),
        }


def main() -> None:
    """Attack every setting, print a table and write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--digests", type=int, default=DIGESTS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    load_before = os.getloadavg()[0]
    pool, encoder = candidates()
    print("| SpD | epsilon | whole digests | 95 % interval | members | gave up | noise hid it | seconds |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for epsilon in EPSILONS:
        for spd in SAMPLES_PER_DIGEST:
            attacked = attack(pool, spd, epsilon, options.digests, encoder)
            rows.append(attacked.row())
            result = attacked.result
            low, high = result.digests.interval()
            print(
                f"| {spd} | {epsilon} | {result.digests.share:.2%} | {low:.1%} to {high:.1%} | "
                f"{result.members.share:.2%} | {result.gave_up} | {result.hidden} | {attacked.seconds:.0f} |",
                flush=True,
            )
    written = {
        "format_version": 1,
        "command": "python benchmarks/unmixing.py",
        "data": "fashion-mnist",
        "pool": POOL,
        "seed": SEED,
        "encoder": encoder,
        "threads": options.threads,
        "load_before": load_before,
        "device": describe_device(torch.device("cpu")),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(written, indent=2) + "\n")


def candidates() -> tuple[Candidates, str]:
    """Draw the pool and encode it; return the encoder's hash too."""
    images, encoder = load_dataset("fashion-mnist").train, load_encoder("default", 1)
    rows = torch.randperm(len(images), generator=torch_stream(SEED, "unmixing pool"))[:POOL].numpy()
    chosen = Images(images.pixels[rows], images.labels[rows])
    source = ImageSource(chosen, encoder, torch.device("cpu"))
    assert source.features is not None
    return Candidates(source.features.flatten(1), source.labels), encoder_hash(encoder)


def digests_of(pool: Candidates, spd: int, epsilon: float, count: int, encoder: str) -> tuple[Digest, Tensor]:
    """Make digests of the pool's first images; return their members too."""
    silo, settings = 0, DigestSettings(samples_per_digest=spd, seed=SEED)
    features, labels = pool.features[: count * spd], pool.labels[: count * spd]
    digest = make_digest(
        silo,
        features,
        labels,
        len(pool.rows),
        settings=settings,
        privacy=PrivacySettings(epsilon=epsilon),
        encoder=encoder,
    )
    return digest, mix_groups(labels, spd, settings.mixing, seeded_uniforms(SEED, "mixing", silo))


def attack(pool: Candidates, spd: int, epsilon: float, count: int, encoder: str) -> Attacked:
    """Make digests, unmix them and count."""
    digest, members = digests_of(pool, spd, epsilon, count, encoder)
    started = time.perf_counter()
    noise = read_noise(digest, float(pool.features.abs().max()))
    found = unmix(digest, pool, noise)
    seconds = time.perf_counter() - started
    return Attacked(spd, epsilon, evaluate_unmixing(found, digest, pool, members, noise), seconds)


if __name__ == "__main__":
    main()
