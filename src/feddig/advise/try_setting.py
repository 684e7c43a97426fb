"""Trying one setting of digests: what it promises, what attacks find in one silo's digests, how well a model learns."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from feddig.advise.choose import Rate, Row, Setting
from feddig.audit.attack_checks import check_membership, check_unmixing
from feddig.audit.findings import NOT_RUN, Effort, Figure, Limits
from feddig.audit.subject import prepare_subject
from feddig.core.samples import ImageSource, accuracy, padded_shape
from feddig.core.silo import Silo
from feddig.core.training import run_rounds
from feddig.data.dataset import Dataset, Images
from feddig.data.mmap import choose
from feddig.digest.digest import Digest, check_digest
from feddig.errors import DataError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import Layout
from feddig.models.encoder import load_encoder
from feddig.runs.build import Simulation, build_simulation
from feddig.seeds import numpy_stream


@dataclass(frozen=True)
class Target:
    """One silo's images, strangers to it, and what attackers learn from: the same for all settings."""

    silo: int
    members: ImageSource
    holdout: ImageSource
    public: ImageSource
    encoder: nn.Module
    effort: Effort
    seed: int


def gather_target(layout: Layout, silo: int, effort: Effort) -> Target:
    """Take a silo's training images as members; half of the test images are strangers, half are public."""
    dataset, experiment = layout.dataset, layout.experiment
    own = _some(dataset.train, layout.partition.shares[silo].train)
    encoder = load_encoder(experiment.digest.encoder, padded_shape(own)[0]).eval()
    seen = {image.tobytes() for image in own.pixels[np.arange(len(own))]}
    order = numpy_stream(experiment.seed, "advise", "strangers").permutation(len(dataset.test))
    # more than both halves can hold need not be read
    order = order[: effort.pool + effort.public]
    others = [row for row in order if dataset.test.pixels[np.array([row])].tobytes() not in seen]
    half = len(others) // 2
    if half < 1:
        raise DataError(
            f"data: {len(others)} test images are no members of silo {silo}; attacks need at least 2"
        )
    device = torch.device("cpu")
    parts = (others[:half][: effort.pool], others[half:][: effort.public])
    held, public = (
        ImageSource(_some(dataset.test, np.sort(np.array(rows))), encoder, device) for rows in parts
    )
    return Target(silo, ImageSource(own, encoder, device), held, public, encoder, effort, experiment.seed)


def try_setting(
    experiment: Experiment, setting: Setting, target: Target, dataset: Dataset, device: str = "auto"
) -> Row:
    """Train on digests of a setting, attack those of one silo, and account for them."""
    simulation = build_simulation(experiment, device=device, dataset=dataset)
    made: dict[int, Digest] = {}

    def digest_of(silo: Silo) -> Digest:
        digest = simulation.make_digest(silo)
        check_digest(digest, f"digest of silo {silo.index}")
        made[silo.index] = digest
        return digest

    reached = _train(simulation, digest_of)
    # a silo that joins in no round of a run this short can be attacked all the same
    digest = made.get(target.silo) or digest_of(simulation.silos[target.silo])
    digest = digest.to(torch.device("cpu"))
    resolved = simulation.experiment
    promised = digest.promise
    linked, digests, unmixed = _attack(digest, target, resolved.digest.seed or 0)
    return Row(setting, promised.epsilon, promised.delta, linked, digests, unmixed, reached)


def _train(simulation: Simulation, digest_of: Callable[[Silo], Digest]) -> float:
    experiment = simulation.experiment
    rounds = range(experiment.training.rounds)
    for _ in run_rounds(simulation.moderator, simulation.engine(digest_of), experiment.recipe, rounds):
        pass
    simulation.network.load(simulation.moderator.weights)
    reached = accuracy(simulation.network, simulation.test)
    if reached is None:
        raise DataError("data: has no test images to measure accuracy on")
    return reached


def _attack(digest: Digest, target: Target, mixing_seed: int) -> tuple[Rate, int, Rate | None]:
    """Make the audit's checks 3 and 4 on digests whose mixing can be drawn again, because they are seeded."""
    limits = Limits()
    subject = prepare_subject(
        digest,
        target.members,
        target.holdout,
        target.public,
        target.encoder,
        target.effort,
        seed=target.seed,
        mixing_seed=mixing_seed,
    )
    membership, _ = check_membership(subject, limits)
    links = [figure for figure in membership.figures if figure.name.startswith("linked")]
    unmixing, _ = check_unmixing(subject, limits)
    whole = [figure for figure in unmixing.figures if figure.name == "digests unmixed whole"]
    # of two scores an attacker would use the better one
    best = max(links, key=lambda figure: figure.value)
    return _rate(best), len(subject.groups), None if unmixing.least == NOT_RUN else _rate(whole[0])


def _rate(figure: Figure) -> Rate:
    assert figure.interval is not None
    assert figure.chance is not None
    assert figure.trials is not None
    low, high = figure.interval
    return Rate(figure.value, low, high, figure.chance, figure.trials)


def _some(images: Images, rows: np.ndarray) -> Images:
    return Images(choose(images.pixels, rows), images.labels[rows])
