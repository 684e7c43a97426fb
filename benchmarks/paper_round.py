"""Measure the time of the paper's round: 558,344 grey images of 62 classes at four silos, size-matched model.

    python benchmarks/paper_round.py --out benchmarks/results/paper_round.json

Images are generated, so no data set is needed; the time does not depend on their content. The same round is also
trained by the ordinary eager loop (one worker, torch's own kernels and number formats, nothing recorded).
"""

import argparse
import itertools
import json
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from feddig.core.absence import Absence
from feddig.core.algorithms import BASES
from feddig.core.engine import InProcessEngine
from feddig.core.moderator import Moderator
from feddig.core.recipe import read_recipe
from feddig.core.samples import ImageSource, RawSamples
from feddig.core.silo import Silo
from feddig.core.training import RoundResult, run_rounds
from feddig.core.workers import Worker, WorkerPool, build_workers
from feddig.data.dataset import Images
from feddig.experiment.setup import choose_device, choose_precision, describe_device, prepare_device
from feddig.gpu.fused import use_kernels
from feddig.models.encoder import feature_shape, load_encoder
from feddig.models.flat import FlatNetwork
from feddig.models.networks import build_classifier, build_guidance
from feddig.settings import DigestSettings, ModeratorSettings, PrivacySettings, TrainingSettings

IMAGES, CLASSES, SHAPE = 558_344, 62, (1, 32, 32)
SHARES = (0.341, 0.236, 0.238, 0.185)
PAPER_SECONDS = {"fedavg": 24.0, "fedprox": 26.5, "fednova": 24.3, "feddig": 44.9}
"""A round on a V100, as the paper reports it."""


@dataclass(frozen=True)
class Case:
    """A line of the table."""

    algorithm: str
    away: int = 0
    eager: bool = False

    @property
    def name(self) -> str:
        """The name in the table."""
        recalled = f", {self.away} recalled" if self.away else ""
        return f"{self.algorithm}{recalled}{', ordinary eager loop' if self.eager else ''}"


CASES = [
    Case("fedavg", eager=True),
    Case("feddig", eager=True),
    *(Case(name) for name in ("fedavg", "fedprox", "fednova", "feddig")),
    *(Case("feddig", away) for away in (1, 2, 3, 4)),
]


def draw_images(count: int) -> Images:
    """Draw images that can be learned: a faint pattern for each class, and noise."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, CLASSES, count)
    patterns = draw.integers(0, 128, (CLASSES, *SHAPE), dtype=np.uint8)
    pixels = draw.integers(0, 128, (count, *SHAPE), dtype=np.uint8)
    return Images(pixels + patterns[labels], labels)


def split_rows(count: int, shares: tuple[float, ...]) -> list[np.ndarray]:
    """Split the rows into silos by their shares."""
    ends = np.round(np.cumsum((0.0, *shares)) / sum(shares) * count).astype(int)
    return [np.arange(first, last) for first, last in itertools.pairwise(ends)]


class Federation:
    """The paper's setting with one algorithm, ready to train rounds."""

    def __init__(
        self,
        case: Case,
        images: Images,
        device: torch.device,
        precision: str,
        *,
        shares: tuple[float, ...] = SHARES,
        rounds: int = 100,
        times_digests: int = 1,
    ) -> None:
        recipe = read_recipe(case.algorithm)
        training = TrainingSettings(rounds=rounds, precision=precision)
        torch.manual_seed(0)
        encoder = load_encoder("default", SHAPE[0]).to(device) if recipe.sees_features else None
        code = feature_shape(load_encoder("default", SHAPE[0]), SHAPE) if recipe.sees_features else None
        network = FlatNetwork(build_classifier("size-matched", SHAPE, CLASSES, code), device)
        bf16 = precision == "bf16"
        if case.eager:
            use_kernels(False)
            workers = WorkerPool([Worker(network)])
        else:
            workers = build_workers(network, bf16=bf16, record=device.type == "cuda")
        guidance = None
        if code is not None:
            guidance = FlatNetwork(build_guidance("deconvolution", code, SHAPE), device, bf16=bf16)
        source, base = ImageSource(images, encoder, device), BASES[recipe.base]()
        self.silos = [
            Silo(index, RawSamples(source, rows), base, training, 0)
            for index, rows in enumerate(split_rows(len(images), shares))
        ]
        self.moderator = Moderator(
            silos=len(shares), algorithm=base, workers=workers, guidance_producer=guidance, training=training,
            settings=ModeratorSettings(), weighting="equal", seed=0,
        )  # fmt: skip
        present = np.ones((len(shares), rounds), dtype=bool)
        present[: case.away, 1:] = False  # all silos are present once, to send a digest

        def digest_of(silo: Silo):
            assert encoder is not None
            digest = silo.make_digest(encoder, CLASSES, DigestSettings(), PrivacySettings())
            features, labels = (
                tensor.repeat(times_digests, *[1] * (tensor.dim() - 1))
                for tensor in (digest.features, digest.labels)
            )
            return replace(digest, features=features, labels=labels)

        engine = InProcessEngine(self.silos, Absence(present), workers, digest_of)
        self._rounds: Iterator[RoundResult] = run_rounds(self.moderator, engine, recipe, range(rounds))

    def time_round(self) -> tuple[float, RoundResult]:
        """Train a round and return its seconds."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        started = time.perf_counter()
        result = next(self._rounds)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return time.perf_counter() - started, result


def main() -> None:
    """Time every case and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default=None)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = choose_device(options.device)
    chosen = choose_precision(options.precision, device)
    images = draw_images(options.images)
    rows = []
    for case in CASES:
        if options.only not in case.name:
            continue
        precision = "fp32" if case.eager else chosen
        prepare_device(precision, device)
        if case.eager:
            torch.backends.cudnn.allow_tf32 = True  # torch's own default
        if device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        federation = Federation(case, images, device, precision)
        # the first round collects digests, compiles and records; the second may record recall
        first = [federation.time_round()[0] for _ in range(1 if case.eager else 2)]
        timed = [federation.time_round() for _ in range(1 if case.eager else options.repeats)]
        seconds = [one for one, _ in timed]
        row = {
            "case": case.name,
            "precision": precision,
            "seconds": statistics.median(seconds),
            "least": min(seconds),
            "most": max(seconds),
            "first_rounds": first,
            "silos": statistics.median(result.seconds_silos for _, result in timed),
            "recall": statistics.median(result.seconds_recall for _, result in timed),
            "joint": statistics.median(result.seconds_joint for _, result in timed),
            "peak_gib": torch.cuda.max_memory_reserved() / 2**30 if device.type == "cuda" else None,
        }
        eager = next((r for r in rows if r["case"] == f"{case.algorithm}, ordinary eager loop"), None)
        row["times_faster"] = eager["seconds"] / row["seconds"] if eager else None
        row["paper_v100_seconds"] = None if case.away or case.eager else PAPER_SECONDS[case.algorithm]
        rows.append(row)
        print(
            f"{row['case']:32} {row['precision']}  {row['seconds']:.3f} s ({row['least']:.3f} to {row['most']:.3f})"
            f"  silos {row['silos']:.3f}  recall {row['recall']:.3f}  joint {row['joint']:.3f}"
            f"  first {', '.join(f'{one:.1f}' for one in first)}  peak {row['peak_gib'] or 0:.1f} GiB"
            + (f"  {row['times_faster']:.1f} times" if row["times_faster"] else ""),
            flush=True,
        )
        del federation
    result = {
        "format_version": 1,
        "command": "python benchmarks/paper_round.py",
        "images": options.images,
        "device": describe_device(device),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
