"""What a privacy mechanism supplies: how noise gets onto a digest, and what that promises a record.

A mechanism is one class in a file of its own and one line in the table MECHANISMS. It holds no state. Settings become
facts, which are public and written into the digest; all that a mechanism does afterwards follows from the facts. The
defaults are those of a mechanism that sends mixed features as they are and promises nothing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from feddig.errors import FileFormatError
from feddig.privacy.accounting import Promise
from feddig.privacy.clipping import Clip
from feddig.privacy.samplers import SeededSource, Source, SystemSource
from feddig.seeds import Uniforms, seeded_uniforms, system_uniforms
from feddig.settings import DigestSettings, PrivacySettings

Fact = str | int | float | list[float]
Facts = dict[str, Fact]
FactTypes = Mapping[str, type | tuple[type, ...]]

UPDATES = (
    "The model's updates in every round are not covered: they are sent besides the digest and reveal more."
)


@dataclass(frozen=True)
class Samples:
    """A silo's encoded samples, and which of them are mixed with which."""

    features: np.ndarray
    """[samples, *feature shape], float32."""
    labels: np.ndarray
    """[samples]: the labels that the mechanism has randomised, if it does."""
    groups: np.ndarray
    """[digests, SpD] rows of the samples, no row twice."""
    classes: int
    mix: Callable[[], tuple[np.ndarray, np.ndarray]]
    """Return the weighted means of the groups' features and of their one-hot labels, in float32."""


@dataclass(frozen=True)
class Randomness:
    """The random numbers of one silo: from the system's entropy, or from a seed for simulations."""

    kind: str
    """As in privacy.random: system or seeded."""
    seed: int
    silo: int
    threads: int = 1
    """Threads that draw noise; they change the time that it takes and nothing else."""

    def uniforms(self, purpose: str) -> Uniforms:
        """Return a stream of uniform numbers in [0, 1)."""
        if self.kind == "system":
            return system_uniforms
        return seeded_uniforms(self.seed, purpose, self.silo)

    def words(self, purpose: str) -> Source:
        """Return a source of uniform 64-bit words, for exact noise."""
        return SystemSource() if self.kind == "system" else SeededSource(self.seed, purpose, self.silo)


class Mechanism:
    """All that differs between one privacy mechanism and the next."""

    citation: ClassVar[str] = ""
    """Where the mechanism and the proof of its promise are published."""
    uses: ClassVar[frozenset[str]] = frozenset()
    """The keys of [privacy] that it uses; others are refused if they are set."""
    epsilon_is: ClassVar[str] = ""
    """What privacy.epsilon means: `record`, `paper` (it bounds nothing by itself), or nothing."""
    heavy_tails: ClassVar[bool] = False
    """Whether the noise is Laplace's and not Gauss's: attacks choose their likelihood by it."""
    fact_types: ClassVar[FactTypes] = {}
    """The facts that it adds to a digest, which a reader insists on; numbers must be finite and not negative."""

    def check(self, privacy: PrivacySettings, digest: DigestSettings) -> None:
        """Refuse settings that no single key can show to be wrong."""

    def facts(
        self, privacy: PrivacySettings, digest: DigestSettings, elements: int, classes: int | None
    ) -> Facts:
        """Return what a digest tells besides its settings; `elements` (ell) is the number of numbers in a feature."""
        return {}

    def randomise_labels(
        self, labels: np.ndarray, classes: int, facts: Mapping[str, Fact], randomness: Randomness
    ) -> np.ndarray:
        """Return the labels that grouping and mixing may see."""
        return labels

    def release(
        self, samples: Samples, facts: Mapping[str, Fact], randomness: Randomness
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return features and soft labels of the digests, as a receiver has them."""
        return samples.mix()

    def stored(self, features: np.ndarray, facts: Mapping[str, Fact]) -> np.ndarray:
        """Return what a digest file holds for these features."""
        return features

    def received(self, stored: np.ndarray, facts: Mapping[str, Fact]) -> np.ndarray:
        """Return the features of what a digest file holds."""
        return stored

    def noise_deviation(self, facts: Mapping[str, Fact], largest: float | None = None) -> float | None:
        """Return the noise's standard deviation on each number, or None where it is not known.

        `largest` is the silo's largest feature (tau), or an attacker's guess of it.
        """
        return None

    def clip(self, facts: Mapping[str, Fact]) -> Clip | None:
        """Return the public clip and its integer grid, or None where features are sent as real numbers."""
        return None

    def rho(self, sensitivity: float, noise_scale: float) -> float | None:
        """Return rho of concentrated differential privacy, or None where there is no such bound."""
        return None

    def promise(self, facts: Mapping[str, Fact], elements: int) -> Promise:
        """Return what one release of a digest with these facts promises a record."""
        name = facts.get("mechanism")
        sentence = f"{name} is not known to this version of FedDig: take the record epsilon as infinite"
        return no_promise(facts, sentence, (f"{sentence}.", UPDATES))


def no_promise(facts: Mapping[str, Fact], sentence: str, assumptions: tuple[str, ...]) -> Promise:
    """Return the promise of a mechanism that promises nothing."""
    return Promise(
        mechanism=str(facts.get("mechanism")),
        adjacency=str(facts.get("adjacency", "same-label")),
        epsilon=math.inf,
        delta=0.0,
        epsilon_if_bound_public=math.inf,
        sensitivity=math.inf,
        norm="L1",
        noise_scale=0.0,
        unit="feature",
        random=str(facts.get("random", "")),
        sentence=sentence,
        assumptions=assumptions,
    )


def number(facts: Mapping[str, object], name: str) -> float:
    """Return a fact that is a number."""
    value = facts.get(name)
    if not isinstance(value, int | float):
        raise FileFormatError(f"the digest does not say its {name}; make the digest again")
    return float(value)


def weights_of(facts: Mapping[str, Fact]) -> list[float]:
    """Return w_k, the weights of the samples in a digest."""
    weights = facts["weights"]
    assert isinstance(weights, list)
    return weights


def say_mixing(facts: Mapping[str, Fact], *, randomised: bool = False) -> str:
    """Say what mixing counts for; labels may be randomised before it."""
    chosen = "without regard to the data"
    if facts["mixing"] == "within-class":
        chosen = "by randomised label alone" if randomised else "by label alone"
    return (
        f"Each sample is in one digest only and its partners are chosen {chosen}; mixing counts for the largest "
        f"weight, {max(weights_of(facts)):.6g}, and for nothing more."
    )


def say_randomness(facts: Mapping[str, Fact]) -> str:
    """Say where the randomness comes from."""
    if facts["random"] == "system":
        return "Mixing and noise are drawn from the system's entropy, which nobody can draw again."
    return (
        "Mixing and noise are drawn from a seed, as in a simulation: anyone who knows the seed can remove the noise, "
        "and nothing is promised against them."
    )
