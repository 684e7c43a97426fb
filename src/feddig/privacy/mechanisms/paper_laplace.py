"""The paper's noise, DP(epsilon) = Lap(0, tau / (S epsilon)), here to reproduce the paper.

tau is the largest feature value that the silo holds and S a constant. It is not differentially private for a record:
tau depends on the data, the soft labels are released exactly, and the noise does not grow with the number of elements.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from feddig.privacy.accounting import Promise
from feddig.privacy.mechanisms.base import (
    UPDATES,
    Fact,
    Mechanism,
    Randomness,
    Samples,
    no_promise,
    number,
    say_mixing,
    say_randomness,
    weights_of,
)
from feddig.seeds import Uniforms

AT_ONCE = 2**18
"""Numbers drawn at once: as many as fit in a processor's cache."""

INFINITE = (
    "The record epsilon is infinite: the noise scale follows tau, which depends on the data; D_y is released "
    "exactly; and noise in floating point leaves traces in the last digits."
)
IN_TAU = "Sensitivity and noise scale are in units of tau, the silo's largest feature."
IF_PUBLIC = (
    "The epsilon if the bound were public treats tau as a public clip of each element, labels as known and the "
    "noise as exact."
)


class PaperLaplace(Mechanism):
    """Add Laplace noise of scale tau / (S epsilon) to each mixed feature."""

    citation = (
        'Hsu, Chang and Chen, "Mitigating Data Absence in Federated Learning Using Privacy-Controllable Data Digests" '
        "(2022)"
    )
    uses = frozenset({"epsilon", "scale_size"})
    epsilon_is = "paper"
    heavy_tails = True

    def release(
        self, samples: Samples, facts: Mapping[str, Fact], randomness: Randomness
    ) -> tuple[np.ndarray, np.ndarray]:
        """Mix, and add the noise to the features; labels get none."""
        mixed, labels = samples.mix()
        scale = _scale(facts, float(np.abs(samples.features).max()))
        return mixed + laplace_noise(mixed.shape, scale, randomness.uniforms("noise")), labels

    def noise_deviation(self, facts: Mapping[str, Fact], largest: float | None = None) -> float | None:
        """Return what follows from tau, which the digest does not tell."""
        return None if largest is None else math.sqrt(2) * _scale(facts, largest)

    def promise(self, facts: Mapping[str, Fact], elements: int) -> Promise:
        """Return the promise of nothing, and what it would be if tau were public: ell S epsilon max_k w_k."""
        heaviest = max(weights_of(facts))
        known = elements * number(facts, "scale_size") * number(facts, "epsilon") * heaviest
        digits = 0 if known >= 100 else 2
        sentence = (
            "record epsilon is infinite (tau depends on the data and labels are exact); "
            f"if tau were public and labels known it would be {known:,.{digits}f}"
            + ("" if math.isfinite(known) else " (overflow)")
        )
        assumptions = (INFINITE, IN_TAU, IF_PUBLIC, say_mixing(facts), say_randomness(facts), UPDATES)
        return replace(
            no_promise(facts, sentence, assumptions),
            epsilon_if_bound_public=known,
            sensitivity=elements * heaviest,
            noise_scale=_scale(facts, 1.0),
            unit="tau",
        )


def laplace_scale(largest: float, epsilon: float, scale_size: int) -> float:
    """Return the paper's noise scale tau / (S epsilon)."""
    return largest / (scale_size * epsilon)


def laplace_noise(shape: tuple[int, ...], scale: float, uniforms: Uniforms) -> np.ndarray:
    """Draw Laplace noise: an exponential size by the inverse of its distribution, and a fair sign."""
    noise = np.empty(math.prod(shape), dtype=np.float32)
    parts = [noise[start : start + AT_ONCE] for start in range(0, len(noise), AT_ONCE)]
    for part in parts:
        part[:] = -scale * np.log1p(-uniforms(len(part)))
    for part in parts:
        part *= np.where(uniforms(len(part)) < 0.5, np.float32(-1), np.float32(1))
    return noise.reshape(shape)


def _scale(facts: Mapping[str, Fact], largest: float) -> float:
    return laplace_scale(largest, number(facts, "epsilon"), int(number(facts, "scale_size")))
