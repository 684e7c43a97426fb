"""The grid of `feddig advise`: its settings, and the experiment of each."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from feddig.advise.choose import Setting
from feddig.audit.next_steps import CLIP, DELTA, settings_block
from feddig.errors import SettingError
from feddig.experiment.experiment import Experiment
from feddig.privacy.mechanisms import MECHANISMS
from feddig.settings import PrivacySettings

STEPS = 50


@dataclass(frozen=True)
class ShortRun:
    """How long a model is trained on each setting's digests, and with which bound and delta these are made."""

    algorithm: str = "digests-only"
    rounds: int = 5
    joint_steps: int | None = None
    clip_bound: float | None = None
    delta: float | None = None


def list_settings(
    sizes: Sequence[int],
    mixings: Sequence[str],
    mechanisms: Sequence[str],
    epsilons: Sequence[float],
    paper_epsilons: Sequence[float],
) -> list[Setting]:
    """List the settings of the grid: each mechanism at its own epsilons."""
    levels: dict[str, Sequence[float | None]] = {"": [None], "paper": paper_epsilons, "record": epsilons}
    noises = [(name, level) for name in mechanisms for level in levels[MECHANISMS[name].epsilon_is]]
    return [
        Setting(size, mixing, mechanism, level)
        for (mechanism, level), size, mixing in itertools.product(noises, sizes, mixings)
    ]


def shorten_experiment(experiment: Experiment, run: ShortRun) -> Experiment:
    """Return the experiment that all settings share: short, seeded, with equally many joint steps."""
    if experiment.digest.weights:
        raise SettingError(
            "digest.weights: a sweep over samples per digest needs equal weights; leave it out"
        )
    privacy, moderator = experiment.privacy, experiment.moderator
    bound = run.clip_bound or privacy.clip_bound
    if bound is None and experiment.digest.encoder == "default":
        bound = CLIP
    short = replace(
        experiment,
        algorithm=replace(experiment.algorithm, name=run.algorithm),
        # the keys that a sweep varies have fixed values here, so that they do not distinguish two sweeps
        digest=replace(experiment.digest, samples_per_digest=1, mixing="random"),
        privacy=replace(
            privacy,
            mechanism="none",
            epsilon=1.0,
            delta=run.delta or privacy.delta or DELTA,
            clip_bound=bound,
            # the sweep's limit replaces the budget
            budget_epsilon=None,
            budget_delta=None,
            random="seeded",
        ),
        training=replace(experiment.training, rounds=run.rounds),
        moderator=replace(moderator, joint_steps=run.joint_steps or moderator.joint_steps or STEPS),
    )
    if not short.recipe.collects_digests or not short.recipe.joint:
        raise SettingError(
            f"--algorithm: {run.algorithm} has no joint update on digests; choose digests-only or feddig"
        )
    return short


def apply_setting(shared: Experiment, setting: Setting) -> Experiment:
    """Return the experiment of one setting."""
    used = {key: getattr(shared.privacy, key) for key in MECHANISMS[setting.mechanism].uses}
    if "clip_bound" in used and used["clip_bound"] is None:
        raise SettingError(
            f"--clip-bound: {setting.mechanism} needs a public bound on features of this encoder; give one, or "
            "leave the mechanism out of --mechanisms"
        )
    if setting.epsilon is not None:
        labels = used.get("label_epsilon") or 0
        if setting.epsilon <= labels:
            raise SettingError(
                f"--epsilons: {setting.epsilon:g} is not above privacy.label_epsilon, {labels:g}, "
                "which is a part of it"
            )
        used["epsilon"] = setting.epsilon - labels
    privacy = PrivacySettings(**{**used, "mechanism": setting.mechanism, "random": "seeded"})
    digest = replace(shared.digest, samples_per_digest=setting.samples_per_digest, mixing=setting.mixing)
    return replace(shared, digest=digest, privacy=privacy)


def chosen_settings(shared: Experiment, setting: Setting) -> str:
    """Return a setting as TOML to paste into an experiment's file; its noise is from the system's entropy."""
    privacy = apply_setting(shared, setting).privacy
    used = {key: getattr(privacy, key) for key in ("mechanism", *sorted(MECHANISMS[setting.mechanism].uses))}
    return settings_block(
        {
            "digest": {"samples_per_digest": setting.samples_per_digest, "mixing": setting.mixing},
            "privacy": {
                **{key: value for key, value in used.items() if value is not None},
                "random": "system",
            },
        }
    )
