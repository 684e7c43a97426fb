"""The sentences without which a promise is worth nothing: what must be true for its numbers to hold."""

from feddig.settings import DigestSettings, PrivacySettings

UPDATES = (
    "The model's updates in every round are not covered: they are sent besides the digest and reveal more."
)
ENCODER = "The encoder is public and has learnt from none of the silo's data."
ONCE = "The digest is released once: a second one with fresh noise costs as much again."
FRESH = "Every release draws noise of its own; sending the same bytes again costs nothing."
PLANNED = "No release was planned by what an earlier one of the same records showed."
NO_NOISE = "There is no noise, so nothing is promised, and no clip, so nothing bounds a record's part."
IN_TAU = "Sensitivity and noise scale are in units of tau, the silo's largest feature."
INFINITE = (
    "The record epsilon is infinite: the noise scale follows tau, which depends on the data; D_y is released "
    "exactly; and noise in floating point leaves traces in the last digits."
)
IF_PUBLIC = (
    "The epsilon if the bound were public takes tau for a public clip of each element, labels for known and the "
    "noise for exact."
)


def curve(concentrated: float) -> str:
    """Say how well the epsilon of Gaussian noise is founded."""
    return (
        "Epsilon and delta are proved for integer noise on all elements together, from the exact curve of Gaussian "
        "noise and Poisson's summation formula; who trusts published bounds alone (concentrated differential privacy) "
        f"takes epsilon {concentrated:.4g} at the same delta."
    )


def neighbours(privacy: PrivacySettings) -> str:
    """Say which two data sets must look alike."""
    other = "another of its class" if privacy.adjacency == "same-label" else "any other"
    return (
        "How many samples a silo has is public; what is hidden is whether one record is itself or "
        f"{other}, not whether a record is there."
    )


def labels(privacy: PrivacySettings, keep_probability: float | None) -> str:
    """Say what happens to labels."""
    if privacy.adjacency == "same-label":
        return "Labels are public: D_y is exact, and a record's class is not hidden at all."
    often = "" if keep_probability is None else f" with probability {keep_probability:.6g}"
    return (
        f"Each label stays as it is{often}, or else becomes one of the other classes at random; this costs "
        f"{privacy.label_epsilon:g}, which is added to the {privacy.epsilon:g} of the features."
    )


def mixed(digest: DigestSettings, heaviest: float, *, randomised: bool = False) -> str:
    """Say what mixing counts for; labels may be randomised before it."""
    chosen = "without a look at the data"
    if digest.mixing == "within-class":
        chosen = "by randomised label alone" if randomised else "by label alone"
    return (
        f"Each sample is in one digest only and its partners are chosen {chosen}; mixing counts for the largest "
        f"weight, {heaviest:.6g}, and for nothing more."
    )


def clipped(privacy: PrivacySettings) -> str:
    """Say how a sample's features are bounded."""
    how = {"l1": "to an L1 norm of", "l2": "to an L2 norm of", "box": "each to at most"}[privacy.clip_norm]
    return (
        f"Values below zero are cut to zero and a sample's features then clipped {how} {privacy.clip_bound:g}, a "
        "bound that is public and was computed from no silo's data."
    )


def drawn(privacy: PrivacySettings) -> str:
    """Say where the randomness comes from."""
    if privacy.random == "system":
        return "Mixing and noise are drawn from the system's entropy, which nobody can draw again."
    return (
        "Mixing and noise are drawn from a seed, as in a simulation: whoever knows it takes the noise off, and "
        "against them nothing is promised."
    )
