"""The privacy mechanisms, one file each; to add one, write its file and name it here."""

from collections.abc import Mapping

from feddig.errors import FileFormatError, SettingError, nearest
from feddig.privacy.accounting import Promise
from feddig.privacy.mechanisms.base import Fact, Facts, Mechanism, Randomness, Samples, weights_of
from feddig.privacy.mechanisms.discrete_gaussian import DiscreteGaussian
from feddig.privacy.mechanisms.discrete_laplace import DiscreteLaplace
from feddig.privacy.mechanisms.none import NoNoise
from feddig.privacy.mechanisms.paper_laplace import PaperLaplace
from feddig.settings import DigestSettings, PrivacySettings

MECHANISMS: dict[str, Mechanism] = {
    "paper-laplace": PaperLaplace(),
    "discrete-laplace": DiscreteLaplace(),
    "discrete-gaussian": DiscreteGaussian(),
    "none": NoNoise(),
}

__all__ = [
    "MECHANISMS", "Fact", "Facts", "Mechanism", "Randomness", "Samples", "check_privacy", "mechanism_of",
    "promise_for", "promise_of", "public_facts", "weights_of",
]  # fmt: skip

_SPECIAL = (
    "delta", "adjacency", "unit", "clip_bound", "label_epsilon", "budget_epsilon", "budget_delta",
)  # fmt: skip
"""Keys of [privacy] that ask for something which not every mechanism does."""


def mechanism_of(facts: Mapping[str, object]) -> Mechanism:
    """Return the mechanism that a digest names; of one that is not known, one that promises nothing."""
    return MECHANISMS.get(str(facts.get("mechanism")), Mechanism())


def check_privacy(privacy: PrivacySettings, digest: DigestSettings) -> None:
    """Check that the mechanism has what it needs, and that no key is set which it does not use."""
    mechanism = MECHANISMS.get(privacy.mechanism)
    if mechanism is None:
        raise SettingError(
            f"privacy.mechanism: {privacy.mechanism!r} is not known; {nearest(privacy.mechanism, MECHANISMS)}"
        )
    # `none`, the control of an experiment, uses no key: it takes the place of any mechanism without other changes
    for key in _SPECIAL if mechanism.uses else ():
        if key not in mechanism.uses and getattr(privacy, key) != getattr(PrivacySettings(), key):
            others = [name for name, other in MECHANISMS.items() if key in other.uses]
            raise SettingError(
                f"privacy.{key}: {privacy.mechanism} does not use it; leave it out, or set privacy.mechanism to "
                + " or ".join(others)
            )
    mechanism.check(privacy, digest)
    if "budget_epsilon" in mechanism.uses:
        _check_budget(privacy)


def public_facts(
    privacy: PrivacySettings,
    digest: DigestSettings,
    elements: int,
    classes: int | None = None,
    encoder: str = "",
) -> Facts:
    """Return all that a digest made with these settings tells about itself before there is any data."""
    check_privacy(privacy, digest)
    mixed = digest.samples_per_digest
    return {
        "samples_per_digest": mixed,
        "mixing": digest.mixing,
        "weights": list(digest.weights or [1 / mixed] * mixed),
        "mechanism": privacy.mechanism,
        "epsilon": privacy.epsilon,
        "scale_size": privacy.scale_size,
        "random": privacy.random,
        "encoder": encoder,
        **MECHANISMS[privacy.mechanism].facts(privacy, digest, elements, classes),
    }


def promise_of(facts: Mapping[str, Fact], elements: int) -> Promise:
    """Return what a digest with these facts, of `elements` numbers each, promises a record."""
    try:
        return mechanism_of(facts).promise(facts, elements)
    except (KeyError, ValueError, TypeError, ArithmeticError) as error:
        raise FileFormatError(f"the digest's facts lack or garble {error}; make the digest again") from None


def promise_for(
    privacy: PrivacySettings, digest: DigestSettings, elements: int, classes: int | None = None
) -> Promise:
    """Return what a digest made with these settings promises a record; no data is needed."""
    return promise_of(public_facts(privacy, digest, elements, classes), elements)


def _check_budget(privacy: PrivacySettings) -> None:
    """Check that a single release fits the budget."""
    epsilon = privacy.epsilon + (privacy.label_epsilon or 0)
    if privacy.budget_epsilon is not None and epsilon > privacy.budget_epsilon:
        raise SettingError(
            f"privacy.budget_epsilon: {privacy.budget_epsilon:g} does not cover a single release, which costs "
            f"{epsilon:g}; raise it, or lower privacy.epsilon"
        )
    if privacy.budget_delta is not None and privacy.delta > privacy.budget_delta:
        raise SettingError(
            f"privacy.budget_delta: {privacy.budget_delta:g} does not cover a single release, which costs "
            f"{privacy.delta:g}; raise it, or lower privacy.delta"
        )
