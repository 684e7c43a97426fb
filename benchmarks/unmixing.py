"""Measure how many of 400 digests of Fashion-MNIST an attacker unmixes, with a pool of 10,000 images.

    python benchmarks/unmixing.py --out benchmarks/results/unmixing.json
    python benchmarks/unmixing.py --by-record-epsilon --out benchmarks/results/attack_success.json --picture attacks.png

The second command attacks digests of four images with sound noise, from a record epsilon of 0.5 to no noise: it
unmixes them, and links images of the pool to the digests that contain them. With --draw FILE the picture is drawn from
the results in that file, and nothing is attacked.
"""

import argparse
import json
import math
import os
import platform
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # needs no screen
import matplotlib.pyplot as plt
import torch
from torch import Tensor

from feddig import load_dataset
from feddig.attacks.candidates import Candidates, read_noise
from feddig.attacks.membership import evaluate_linking, score_records
from feddig.attacks.unmixing import Unmixing, evaluate_unmixing, unmix
from feddig.core.samples import ImageSource
from feddig.data.dataset import Images
from feddig.digest.digest import Digest, make_digest, mix_groups
from feddig.experiment.setup import describe_device
from feddig.models.encoder import encoder_hash, load_encoder
from feddig.report.curve_styles import choose_styles
from feddig.seeds import seeded_uniforms, torch_stream
from feddig.settings import DigestSettings, PrivacySettings

POOL, DIGESTS, SEED = 10_000, 400, 0
EPSILONS, SAMPLES_PER_DIGEST = (0.005, 0.0005), (2, 4, 8)
RECORD_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, math.inf)
"""The last one means no noise."""
SOUND = PrivacySettings(mechanism="discrete-gaussian", delta=1e-6, clip_bound=350.0)


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
    parser.add_argument("--by-record-epsilon", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--picture", type=Path, help="with --by-record-epsilon: draw it")
    parser.add_argument("--draw", type=Path, help="only draw --picture, from this file of results")
    options = parser.parse_args()
    if options.draw:
        draw(json.loads(options.draw.read_text())["rows"], options.picture)
        return
    torch.set_num_threads(options.threads)
    load_before = os.getloadavg()[0]
    pool, encoder = candidates()
    rows: list[dict[str, Any]] = []
    if options.by_record_epsilon:
        for epsilon in RECORD_EPSILONS:
            rows.append(success(pool, epsilon, options.digests, encoder))
            print(json.dumps(rows[-1]), flush=True)
        if options.picture:
            draw(rows, options.picture)
    else:
        print(
            "| SpD | epsilon | whole digests | 95 % interval | members | gave up | noise hid it | seconds |"
        )
        print("|---|---|---|---|---|---|---|---|")
    for epsilon in () if options.by_record_epsilon else EPSILONS:
        for spd in SAMPLES_PER_DIGEST:
            attacked = attack(pool, spd, PrivacySettings(epsilon=epsilon), options.digests, encoder)
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
        "command": "python benchmarks/unmixing.py" + " --by-record-epsilon" * options.by_record_epsilon,
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


def digests_of(
    pool: Candidates, spd: int, privacy: PrivacySettings, count: int, encoder: str
) -> tuple[Digest, Tensor]:
    """Make digests of the pool's first images; return their members too."""
    silo, settings = 0, DigestSettings(samples_per_digest=spd, seed=SEED)
    features, labels = pool.features[: count * spd], pool.labels[: count * spd]
    digest = make_digest(
        silo,
        features,
        labels,
        len(pool.rows),
        settings=settings,
        privacy=privacy,
        encoder=encoder,
    )
    return digest, mix_groups(labels, spd, settings.mixing, seeded_uniforms(SEED, "mixing", silo))


def attack(pool: Candidates, spd: int, privacy: PrivacySettings, count: int, encoder: str) -> Attacked:
    """Make digests, unmix them and count."""
    digest, members = digests_of(pool, spd, privacy, count, encoder)
    started = time.perf_counter()
    noise = read_noise(digest, float(pool.features.abs().max()))
    found = unmix(digest, pool, noise)
    seconds = time.perf_counter() - started
    return Attacked(spd, privacy.epsilon, evaluate_unmixing(found, digest, pool, members, noise), seconds)


def success(pool: Candidates, epsilon: float, count: int, encoder: str, spd: int = 4) -> dict[str, Any]:
    """Attack digests of this record epsilon in both ways; return the shares that were found, and chance."""
    privacy = replace(SOUND, epsilon=epsilon) if math.isfinite(epsilon) else PrivacySettings(mechanism="none")
    unmixed = attack(pool, spd, privacy, count, encoder).result.members
    digest, members = digests_of(pool, spd, privacy, count, encoder)
    homes = torch.empty(members.numel(), dtype=torch.long)
    homes[members.flatten()] = torch.arange(len(members)).repeat_interleave(spd)
    inside = Candidates(pool.features[: len(homes)], pool.labels[: len(homes)])
    public = Candidates(pool.features[len(homes) :], pool.labels[len(homes) :])
    noise = read_noise(digest, float(pool.features.abs().max()))
    linked = evaluate_linking(score_records(digest, inside, public, noise).likelihood_ratio, homes)
    return {
        "record_epsilon": epsilon if math.isfinite(epsilon) else "inf",
        **{
            name: {"share": rate.share, "interval": rate.interval(), "chance": rate.chance, "of": rate.trials}
            for name, rate in (("unmixed", unmixed), ("linked", linked))
        },
    }


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the success of both attacks against epsilon, with intervals and chance; chance has the attack's colour."""
    figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
    places = range(len(rows))
    attacks = {"linked": "images linked to their digest", "unmixed": "images named by unmixing"}
    for name, style in choose_styles(attacks).items():
        shares, chances = ([100 * row[name][key] for row in rows] for key in ("share", "chance"))
        low, high = zip(*([100 * edge for edge in row[name]["interval"]] for row in rows), strict=True)
        axes.fill_between(places, low, high, color=style.colour, alpha=0.2, lw=0)
        axes.plot(places, shares, color=style.colour, ls=style.dash, marker="o", label=attacks[name])
        axes.plot(places, chances, color=style.colour, ls=":", lw=1)
        axes.annotate("chance", (0, chances[0]), (-4, 0), textcoords="offset points", ha="right", va="center",
                      fontsize=8, color=style.colour)  # fmt: skip
    names = [f"{row['record_epsilon']:g}" if row["record_epsilon"] != "inf" else "no noise" for row in rows]
    axes.set_xticks(places, names)
    # logarithmic: what is left at a small epsilon lies below one percent
    axes.set_yscale("log")
    axes.set_yticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
    axes.set(xlabel="record epsilon (delta 1e-6); more noise to the left", ylabel="found (%, logarithmic)")
    axes.set(xlim=(-0.9, len(rows) - 0.7), ylim=(0.01, 150))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="upper left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
