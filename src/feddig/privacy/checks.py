"""Settings of [privacy] that no single key can show to be wrong."""

from feddig.errors import SettingError
from feddig.privacy.mechanism import DISCRETE
from feddig.settings import DigestSettings, PrivacySettings


def check_privacy(privacy: PrivacySettings, digest: DigestSettings) -> None:
    """Check that the mechanism has what it needs, and that nothing is asked for which it does not do."""
    if privacy.mechanism == "paper-laplace":
        _check_nothing_is_ignored(privacy)
    if privacy.mechanism in DISCRETE:
        _check_mechanism(privacy, digest)
        _check_adjacency(privacy)
        _check_budget(privacy)


def _check_nothing_is_ignored(privacy: PrivacySettings) -> None:
    """Refuse what paper-laplace would silently leave undone; `none`, the control of an experiment, may have it."""
    asked = {
        "delta": privacy.delta > 0,
        "adjacency": privacy.adjacency != "same-label",
        "clip_bound": privacy.clip_bound is not None,
        "label_epsilon": privacy.label_epsilon is not None,
    }
    for key, is_asked in asked.items():
        if is_asked:
            raise SettingError(
                f"privacy.{key}: paper-laplace does not heed it; leave it out, or set privacy.mechanism to "
                + " or ".join(DISCRETE)
            )
    for key in ("budget_epsilon", "budget_delta"):
        if getattr(privacy, key) is not None:
            raise SettingError(
                f"privacy.{key}: no budget covers paper-laplace, whose record epsilon is infinite; leave it out, "
                "or set privacy.mechanism to " + " or ".join(DISCRETE)
            )


def _check_mechanism(privacy: PrivacySettings, digest: DigestSettings) -> None:
    if len(set(digest.weights)) > 1:
        raise SettingError(
            f"digest.weights: {privacy.mechanism} sends sums of integers, which weigh all samples alike; leave it out"
        )
    if privacy.clip_bound is None:
        raise SettingError(
            f"privacy.clip_bound: {privacy.mechanism} needs a public bound on a sample's features; set one"
        )
    if privacy.mechanism == "discrete-gaussian" and privacy.delta == 0:
        raise SettingError(
            "privacy.delta: discrete-gaussian needs one above 0, far below 1 over the number of samples, "
            "for example 1e-6"
        )
    if privacy.mechanism == "discrete-laplace" and privacy.delta > 0:
        raise SettingError(
            "privacy.delta: discrete-laplace promises a delta of 0 and has no use for one; leave it out, or set "
            "privacy.mechanism to discrete-gaussian"
        )


def _check_adjacency(privacy: PrivacySettings) -> None:
    if privacy.adjacency == "same-label" and privacy.label_epsilon is not None:
        raise SettingError(
            "privacy.label_epsilon: under same-label adjacency labels are public and get no noise; leave it "
            "out, or set privacy.adjacency to replace-one"
        )
    if privacy.adjacency == "replace-one" and privacy.label_epsilon is None:
        raise SettingError(
            "privacy.label_epsilon: replace-one adjacency needs noise on the labels; set one, for example 1, or "
            "set privacy.adjacency to same-label"
        )


def _check_budget(privacy: PrivacySettings) -> None:
    """Check that a single release fits the budget."""
    epsilon = privacy.epsilon + (privacy.label_epsilon or 0)
    if privacy.budget_epsilon is not None and epsilon > privacy.budget_epsilon:
        raise SettingError(
            f"privacy.budget_epsilon: {privacy.budget_epsilon:g} does not cover a single release, which costs "
            f"{epsilon:g}; raise it, or lower privacy.epsilon"
        )
    delta = privacy.delta if privacy.mechanism == "discrete-gaussian" else 0.0
    if privacy.budget_delta is not None and delta > privacy.budget_delta:
        raise SettingError(
            f"privacy.budget_delta: {privacy.budget_delta:g} does not cover a single release, which costs "
            f"{delta:g}; raise it, or lower privacy.delta"
        )
