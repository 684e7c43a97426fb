"""Independent random streams, all derived from one seed.

Each stream is named by what it is for, so drawing more from one never shifts another: a silo that
stays away leaves the batch order of everybody else untouched.
"""

import hashlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

Name = str | int

Uniforms = Callable[[int], np.ndarray]
"""Gives so many numbers, uniform in [0, 1): from a seed, or from the system's entropy."""


def derive(seed: int, *names: Name) -> int:
    """Derive the seed of the stream with these names; the same names give the same seed everywhere."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_stream(seed: int, *names: Name) -> "torch.Generator":
    """Open a named stream for torch (on the CPU, so that the device never changes what is drawn)."""
    import torch  # only here: reports read data sets and absence, and do without it

    return torch.Generator().manual_seed(derive(seed, *names))


def numpy_stream(seed: int, *names: Name) -> np.random.Generator:
    """Open a named stream for numpy."""
    return np.random.default_rng(derive(seed, *names))


def seeded_uniforms(seed: int, *names: Name) -> Uniforms:
    """Open a named stream of uniform numbers, which anybody who knows the seed can draw again."""
    return numpy_stream(seed, *names).random


def system_uniforms(count: int) -> np.ndarray:
    """Draw uniform numbers from the system's entropy, 53 bits each; nobody can draw them again."""
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    uniforms: np.ndarray = bits * 2.0**-53
    return uniforms
