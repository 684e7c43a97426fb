"""Measure the time of the integer noise for the paper's digests: 139,586 digests of 256 elements.

python benchmarks/discrete_noise.py --out benchmarks/results/discrete_noise.json
"""

import argparse
import itertools
import json
import os
import platform
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from feddig.experiment.setup import describe_device
from feddig.privacy.integer_noise import DiscreteGaussianNoise, DiscreteLaplaceNoise, IntegerNoise
from feddig.privacy.samplers import SeededSource, Source, SystemSource

DIGESTS, ELEMENTS = 139_586, 256
NOISES: dict[str, IntegerNoise] = {
    "discrete Laplace, scale 50": DiscreteLaplaceNoise(Fraction(50)),
    "discrete Laplace, scale 5000": DiscreteLaplaceNoise(Fraction(5000)),
    "discrete Gaussian, sigma 5": DiscreteGaussianNoise(Fraction(5**2)),
    "discrete Gaussian, sigma 500": DiscreteGaussianNoise(Fraction(500**2)),
}
SOURCES: dict[str, Source] = {"system": SystemSource(), "seeded": SeededSource(0, "benchmark")}


def main() -> None:
    """Time every distribution with every source and number of threads, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--digests", type=int, default=DIGESTS)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    samples = options.digests * ELEMENTS
    load_before = os.getloadavg()[0]
    print(f"{samples:,} samples, load {load_before:.2f}; median of {options.repeats}")
    rows = []
    for (name, noise), threads, source in itertools.product(NOISES.items(), options.threads, SOURCES):
        seconds = sorted(_time(noise, samples, SOURCES[source], threads) for _ in range(options.repeats))
        rows.append({"noise": name, "source": source, "threads": threads, "seconds": seconds})
        middle = seconds[len(seconds) // 2]
        print(
            f"{name:30} {source:8} {threads} threads  {middle:7.2f} s  {middle / samples * 1e9:6.1f} ns each",
            flush=True,
        )
    result = {
        "format_version": 1,
        "command": "python benchmarks/discrete_noise.py",
        "samples": samples,
        "load_before": load_before,
        "device": describe_device(torch.device("cpu")),
        "versions": {"numpy": np.__version__, "python": platform.python_version()},
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")


def _time(noise: IntegerNoise, samples: int, source: Source, threads: int) -> float:
    """Time one full draw, including its table."""
    fresh = replace(noise)
    started = time.perf_counter()
    fresh.draw(samples, source, threads)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
