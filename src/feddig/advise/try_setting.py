"""List the settings of the grid, and try one: what it promises, what attacks find, and how well a model learns.

Attacks are run on one silo's digests.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from feddig.advise.choose import RateInterval, Setting, SettingResult
from feddig.audit.attack_checks import check_membership, check_unmixing
from feddig.audit.audit import CLIP, DELTA, settings_block
from feddig.audit.audited import AuditImages, prepare_audit
from feddig.audit.findings import NOT_RUN, AttackBudget, Figure, Limits
from feddig.core.samples import ImageSource, accuracy, padded_shape
from feddig.core.silo import Silo
from feddig.core.training import run_rounds
from feddig.data.dataset import Dataset
from feddig.digest.digest import Digest, check_digest
from feddig.errors import DataError, SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import Layout
from feddig.models.encoder import load_encoder
from feddig.privacy.mechanisms import MECHANISMS
from feddig.runs.build import Simulation, build_simulation
from feddig.seeds import numpy_stream
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


@dataclass(frozen=True)
class AttackedSilo:
    """The silo whose digests are attacked, and the images for that: the same for all settings."""

    silo: int
    images: AuditImages
    budget: AttackBudget
    seed: int


def load_attacked_silo(layout: Layout, silo: int, budget: AttackBudget) -> AttackedSilo:
    """Use a silo's training images as members, half of the test images as non-members and half as public."""
    dataset, experiment = layout.dataset, layout.experiment
    own = dataset.train.choose(layout.partition.shares[silo].train)
    encoder = load_encoder(experiment.digest.encoder, padded_shape(own)[0]).eval()
    seen = {image.tobytes() for image in own.pixels[np.arange(len(own))]}
    order = numpy_stream(experiment.seed, "advise", "strangers").permutation(len(dataset.test))
    # more images than both halves can use need not be read
    order = order[: budget.pool + budget.public]
    others = [row for row in order if dataset.test.pixels[np.array([row])].tobytes() not in seen]
    half = len(others) // 2
    if half < 1:
        raise DataError(
            f"data: {len(others)} test images are no members of silo {silo}; attacks need at least 2"
        )
    device = torch.device("cpu")
    holdout, public = (
        ImageSource(dataset.test.choose(np.sort(np.array(rows))), encoder, device)
        for rows in (others[:half][: budget.pool], others[half:][: budget.public])
    )
    images = AuditImages(ImageSource(own, encoder, device), holdout, public, encoder)
    return AttackedSilo(silo, images, budget, experiment.seed)


def try_setting(
    experiment: Experiment, setting: Setting, target: AttackedSilo, dataset: Dataset, device: str = "auto"
) -> SettingResult:
    """Train on the digests of a setting, attack those of one silo, and compute what they promise."""
    simulation = build_simulation(experiment, device=device, dataset=dataset)
    made: dict[int, Digest] = {}

    def digest_of(silo: Silo) -> Digest:
        digest = simulation.make_digest(silo)
        check_digest(digest, f"digest of silo {silo.index}")
        made[silo.index] = digest
        return digest

    reached = _train(simulation, digest_of)
    # a silo that joins in no round of this short run is attacked all the same
    digest = made.get(target.silo) or digest_of(simulation.silos[target.silo])
    digest = digest.to(torch.device("cpu"))
    resolved = simulation.experiment
    promised = digest.promise
    linked, digests, unmixed = _attack(digest, target, resolved.digest.seed or 0)
    return SettingResult(setting, promised.epsilon, promised.delta, linked, digests, unmixed, reached)


def _train(simulation: Simulation, digest_of: Callable[[Silo], Digest]) -> float:
    experiment = simulation.experiment
    rounds = range(experiment.training.rounds)
    for _ in run_rounds(simulation.moderator, simulation.engine(digest_of), experiment.recipe, rounds):
        pass
    simulation.network.load(simulation.moderator.model())
    reached = accuracy(simulation.network, simulation.test)
    if reached is None:
        raise DataError("data: has no test images to measure accuracy on")
    return reached


def _attack(
    digest: Digest, target: AttackedSilo, mixing_seed: int
) -> tuple[RateInterval, int, RateInterval | None]:
    """Run the audit's checks 3 and 4; the digests are seeded, so their mixing can be drawn again."""
    audited = prepare_audit(digest, target.images, target.budget, seed=target.seed, mixing_seed=mixing_seed)
    limits = Limits()
    membership, _ = check_membership(audited, limits)
    links = [figure for figure in membership.figures if figure.name.startswith("linked")]
    unmixing, _ = check_unmixing(audited, limits)
    whole = [figure for figure in unmixing.figures if figure.name == "digests unmixed whole"]
    # an attacker would use the better of both scores
    best = max(links, key=lambda figure: figure.value)
    unmixed = None if unmixing.minimum == NOT_RUN else _rate_interval(whole[0])
    return _rate_interval(best), len(audited.groups), unmixed


def _rate_interval(figure: Figure) -> RateInterval:
    assert figure.interval is not None
    assert figure.chance is not None
    assert figure.trials is not None
    low, high = figure.interval
    return RateInterval(figure.value, low, high, figure.chance, figure.trials)
