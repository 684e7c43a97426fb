"""Measure the time to make the paper's digests: 558,344 samples through encoder, mixing and noise.

python benchmarks/digest_making.py --out benchmarks/results/digest_making.json
python benchmarks/digest_making.py --mechanism discrete-gaussian --random system --drawn --repeats 3 \\
    --out benchmarks/results/digest_making_sound.json
"""

import argparse
import json
import os
import platform
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from paper_round import CLASSES, IMAGES, SHARES, draw_images, split_rows

from feddig.core.samples import ImageSource, RawSamples
from feddig.digest.digest import make_digest
from feddig.experiment.setup import choose_device, describe_device
from feddig.models.encoder import load_encoder
from feddig.settings import DigestSettings, PrivacySettings

MECHANISMS = {
    "paper-laplace": PrivacySettings(),
    "discrete-laplace": PrivacySettings("discrete-laplace", 8.0, clip_bound=350.0),
    "discrete-gaussian": PrivacySettings("discrete-gaussian", 8.0, delta=1e-6, clip_bound=350.0),
}


def main() -> None:
    """Time both parts several times and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--mechanism", default="paper-laplace", choices=list(MECHANISMS))
    parser.add_argument("--random", default="seeded", choices=("seeded", "system"))
    parser.add_argument("--drawn", action="store_true", help="draw features instead of encoding images")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = choose_device(options.device)
    images = draw_images(options.images)
    encoder = load_encoder("default", 1).to(device)
    privacy = replace(MECHANISMS[options.mechanism], random=options.random)
    load_before = os.getloadavg()[0]
    rows = []
    for _ in range(options.repeats):
        source = ImageSource(images, None if options.drawn else encoder, device)
        started = time.perf_counter()
        features = _draw(len(images), device) if options.drawn else source.features
        assert features is not None
        _wait(device)
        encoded, used = time.perf_counter(), time.process_time()
        count = 0
        for silo, part in enumerate(split_rows(len(images), SHARES)):
            samples = RawSamples(source, part)
            digest = make_digest(
                silo, features[samples.rows], samples.labels, CLASSES,
                settings=DigestSettings(), privacy=privacy, encoder="",
            )  # fmt: skip
            count += len(digest)
        _wait(device)
        done, processor = time.perf_counter(), time.process_time() - used
        # CPU seconds of all cores are more comparable on a shared machine
        rows.append({"mix_and_noise": done - encoded, "mix_and_noise_processor": processor})
        if not options.drawn:
            rows[-1] |= {"encode": encoded - started, "all": done - started}
        parts = "  ".join(f"{name} {seconds:.2f} s" for name, seconds in rows[-1].items())
        print(f"{options.images:,} samples, {count:,} digests: {parts}", flush=True)
    result = {
        "format_version": 1,
        "command": "python benchmarks/digest_making.py",
        "images": options.images,
        "mechanism": options.mechanism,
        "random": options.random,
        "features": "drawn" if options.drawn else "encoded",
        "threads": torch.get_num_threads(),
        "load_before": load_before,
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


def _draw(count: int, device: torch.device) -> torch.Tensor:
    """Draw features of the shape and roughly the norm of encoded ones."""
    return (torch.rand(count, 4, 8, 8, generator=torch.Generator().manual_seed(0)) * 45).to(device)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
