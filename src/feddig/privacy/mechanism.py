"""The paper's noise on mixed features, and an honest word on what each mechanism guarantees.

`paper-laplace` is the paper's DP(epsilon) = Lap(0, tau / (S epsilon)), where tau is the largest feature
value that the silo holds and S a constant. It is here to reproduce the paper. It is not differentially
private for a record: tau depends on the data, the soft labels are released exactly, and the noise does
not grow with the number of elements. The sound mechanisms are in sound.py.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from feddig.seeds import Uniforms

DISCRETE = ("discrete-laplace", "discrete-gaussian")
"""The mechanisms that add integer noise of a public scale."""

AT_ONCE = 2**18
"""Numbers drawn at once: as many as a processor's cache holds."""


@dataclass(frozen=True)
class Perturbed:
    """Noised features, with the scale that was used."""

    features: Tensor
    scale: float


def add_noise(
    mixed: Tensor, *, mechanism: str, largest: float, epsilon: float, scale_size: int, uniforms: Uniforms
) -> Perturbed:
    """Add the mechanism's noise to mixed features; `largest` is tau."""
    if mechanism == "none":
        return Perturbed(mixed, 0.0)
    if mechanism == "paper-laplace":
        scale = laplace_scale(largest, epsilon, scale_size)
        return Perturbed(mixed + laplace_noise(mixed.shape, scale, uniforms).to(mixed.device), scale)
    if mechanism in DISCRETE:
        raise ValueError(f"{mechanism} adds integers to integer sums, and never real numbers to features")
    raise ValueError(f"unknown mechanism {mechanism!r}")


def laplace_scale(largest: float, epsilon: float, scale_size: int) -> float:
    """Give the paper's noise scale tau / (S epsilon)."""
    return largest / (scale_size * epsilon)


def laplace_noise(shape: torch.Size, scale: float, uniforms: Uniforms) -> Tensor:
    """Draw Laplace noise: an exponential size by the inverse of its distribution, and a fair sign."""
    noise = np.empty(math.prod(shape), dtype=np.float32)
    stretches = [slice(start, start + AT_ONCE) for start in range(0, len(noise), AT_ONCE)]
    for stretch in stretches:
        noise[stretch] = -scale * np.log1p(-uniforms(len(noise[stretch])))
    for stretch in stretches:
        noise[stretch] *= np.where(uniforms(len(noise[stretch])) < 0.5, np.float32(-1), np.float32(1))
    return torch.from_numpy(noise).view(shape)


def record_epsilon_if_public(elements: int, scale_size: int, epsilon: float, heaviest: float) -> float:
    """Give ell S epsilon max_k w_k: what a record would be promised if tau were public and labels known."""
    return elements * scale_size * epsilon * heaviest


def guarantee(
    mechanism: str,
    *,
    elements: int,
    scale_size: int,
    epsilon: float,
    heaviest: float,
    facts: Mapping[str, object] | None = None,
) -> str:
    """Say in one sentence what the mechanism promises about a single record; `facts` are those of the digest."""
    if mechanism == "none":
        return "no noise: record epsilon is infinite"
    if mechanism in DISCRETE:
        return _sound_guarantee(epsilon, facts or {})
    if mechanism != "paper-laplace":
        return f"{mechanism} is not known to this release: take the record epsilon for infinite"
    known = record_epsilon_if_public(elements, scale_size, epsilon, heaviest)
    digits = 0 if known >= 100 else 2
    return (
        "record epsilon is infinite (tau depends on the data and labels are exact); "
        f"if tau were public and labels known it would be {known:,.{digits}f}"
        + ("" if math.isfinite(known) else " (overflow)")
    )


def _sound_guarantee(epsilon: float, facts: Mapping[str, object]) -> str:
    """Say what integer noise promises; where facts are missing, where to look for them."""
    scope = "; it covers this one release of the digest and not the updates of the model"
    missing = {"adjacency", "delta", "label_epsilon", "random"} - facts.keys()
    if missing:
        return (
            f"record epsilon is {epsilon:g} for the features; adjacency, delta and what labels add to it are among "
            f"the facts of each digest{scope}"
        )
    delta, labels = float(str(facts["delta"])), float(str(facts["label_epsilon"]))
    parts = "labels are public" if not labels else f"{epsilon:g} for features and {labels:g} for labels"
    against = "" if facts["random"] == "system" else "; against whoever knows the seed nothing is promised"
    return (
        f"record epsilon is {epsilon + labels:g} and delta {delta:g} under {facts['adjacency']} adjacency ({parts})"
        f"{scope}{against}"
    )
