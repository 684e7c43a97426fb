"""The lattice check: are released numbers whole multiples of a public step, and is the noise as strong as agreed?

Noise in floating point leaves traces in the last bits; whole numbers leave none. Everyone who has a digest can check
the step; only someone who knows the mixture before the noise can check the noise.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from feddig.attacks.statistics import Estimate, mean_estimate


@dataclass(frozen=True)
class Lattice:
    """How many released numbers are multiples of the step."""

    numbers: int
    off: int
    """Numbers that are no whole multiple of the step."""
    undecided: int
    """Numbers so large that their type cannot distinguish neighbouring multiples."""
    worst: float
    """The largest distance from a multiple, in steps; arbitrary numbers have 0.25 on average."""


def check_lattice(released: Tensor, step: float) -> Lattice:
    """Compare released numbers with the whole multiples of a public step, rounded to the numbers' own type.

    Up to 2^22 steps float32 has values between the multiples, so that a number can fail to be one.
    """
    numbers = released.flatten()
    steps = numbers.double() / step
    whole = steps.round()
    size = numbers.abs()
    spacing = (torch.nextafter(size, torch.full_like(size, torch.inf)) - size).double()
    blurred = spacing > step / 2
    return Lattice(
        numbers=numbers.numel(),
        off=int((((whole * step).to(numbers.dtype) != numbers) & ~blurred).sum()),
        undecided=int(blurred.sum()),
        worst=float((steps - whole).abs().max()),
    )


def evaluate_noise(released: Tensor, mixed: Tensor, contract_deviation: float) -> Estimate:
    """Return the variance of the noise between mixture and release, divided by the contract's."""
    noise = (released.double() - mixed.double()) / contract_deviation
    return mean_estimate(noise.square(), 1.0)
