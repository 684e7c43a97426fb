"""How long it takes to make the paper's digests: 558,344 samples through encoder, mixing and noise.

python benchmarks/digest_making.py --out benchmarks/results/digest_making.json
"""

import argparse
import json
import platform
import time
from pathlib import Path

import numpy as np
import torch
from paper_round import CLASSES, IMAGES, SHARES, cut, draw_images

from feddig.device import choose_device, describe_device
from feddig.digest import make_digest
from feddig.models.encoder import load_encoder
from feddig.samples import ImageSource, RawSamples
from feddig.settings import DigestSettings, PrivacySettings


def main() -> None:
    """Time both parts, several times, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--random", default="seeded", choices=("seeded", "system"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = choose_device(options.device)
    images = draw_images(options.images)
    encoder = load_encoder("default", 1).to(device)
    privacy = PrivacySettings(random=options.random)
    rows = []
    for _ in range(options.repeats):
        source = ImageSource(images, encoder, device)
        started = time.perf_counter()
        assert source.features is not None
        _wait(device)
        encoded = time.perf_counter()
        count = 0
        for silo, part in enumerate(cut(len(images), SHARES)):
            samples = RawSamples(source, part)
            assert samples.features is not None
            digest = make_digest(
                silo, samples.features, samples.labels, CLASSES,
                settings=DigestSettings(), privacy=privacy, encoder="",
            )  # fmt: skip
            count += len(digest)
        _wait(device)
        done = time.perf_counter()
        rows.append({"encode": encoded - started, "mix_and_noise": done - encoded, "all": done - started})
        parts = "  ".join(f"{name} {seconds:.2f} s" for name, seconds in rows[-1].items())
        print(f"{options.images:,} samples, {count:,} digests: {parts}", flush=True)
    result = {
        "format_version": 1,
        "command": "python benchmarks/digest_making.py",
        "images": options.images,
        "random": options.random,
        "device": describe_device(device),
        "versions": {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
