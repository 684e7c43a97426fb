"""Independent random streams, all derived from one seed.

Each stream is named by its purpose, so drawing more from one never changes another: an absent silo does not change the
batch order of the other silos.
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
"""Draws the given number of uniform numbers in [0, 1), from a seed or from the system's entropy."""


def derive(seed: int, *names: Name) -> int:
    """Return the seed of the stream with these names; it is the same on every machine."""
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def torch_stream(seed: int, *names: Name) -> "torch.Generator":
    """Return a named stream for torch (on the CPU, so that the device does not change the draws)."""
    import torch  # imported only here, because reports need other parts of this module and no torch

    return torch.Generator().manual_seed(derive(seed, *names))


def numpy_stream(seed: int, *names: Name) -> np.random.Generator:
    """Return a named stream for numpy."""
    return np.random.default_rng(derive(seed, *names))


def seeded_uniforms(seed: int, *names: Name) -> Uniforms:
    """Return a named stream of uniform numbers, which everybody who knows the seed can repeat."""
    return numpy_stream(seed, *names).random


def system_uniforms(count: int) -> np.ndarray:
    """Draw uniform numbers of 53 bits from the system's entropy; nobody can repeat them."""
    bits = np.frombuffer(os.urandom(8 * count), dtype=np.uint64) >> np.uint64(11)
    uniforms: np.ndarray = bits * 2.0**-53
    return uniforms
