"""What the moderator of a federation works with: networks, digests, perhaps test images, and no silo's data."""

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from feddig.core.absence import Absence, draw_absence
from feddig.core.moderator import Moderator
from feddig.core.samples import SIDE, ImageSource, RawSamples
from feddig.core.workers import Lanes, build_lanes
from feddig.errors import SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import Networks, build_networks, choose_device, prepare_device, with_precision
from feddig.federation.contract import ADDRESS, Contract
from feddig.federation.silo_data import load_test_set
from feddig.federation.wire import Terms
from feddig.models.encoder import encoder_hash, feature_shape
from feddig.models.flat import FlatNetwork
from feddig.privacy.mechanism import DISCRETE
from feddig.privacy.sound import contract_for, promised_facts

BY_SIZE = ("temporary", "forever")


@dataclass(frozen=True)
class Desk:
    """All that the moderator has when the first round begins."""

    contract: Contract
    experiment: Experiment
    """The contract's, with nothing left open."""
    moderator: Moderator
    network: FlatNetwork
    """The classifier in full precision, for evaluation."""
    lanes: Lanes
    terms: Terms | None
    """What a digest must be like; None where the algorithm has none."""
    schedule: Absence | None
    """Who is not even asked, in a rehearsal of a scenario."""
    test: RawSamples | None

    def inputs(self) -> dict[str, str]:
        """Name by hash what a run is made from; where the moderator is, and how patient it is, may change."""
        lasting = replace(
            self.contract,
            address=ADDRESS,
            training_deadline=1.0,
            digest_deadline=1.0,
            new_release=False,
            update_limit=None,
            digest_limit=None,
        )
        return {"contract": lasting.hash}


def build_desk(contract: Contract, test_set: Path, *, device: str = "auto") -> Desk:
    """Build the moderator that a contract describes."""
    place = choose_device(device)
    experiment = with_precision(contract.experiment.resolved(), place)
    _check_possible(experiment)
    training = experiment.training
    prepare_device(training.precision, place)
    if training.threads:
        torch.set_num_threads(training.threads)
    shape = padded(contract.image_shape)
    encoder, classifier, guidance = build_networks(experiment, shape, len(contract.classes), Networks())
    encoder = encoder.to(place) if encoder is not None else None
    network, bf16 = FlatNetwork(classifier, place), training.precision == "bf16"
    lanes = build_lanes(network, bf16=bf16, record=True, beside=True)
    moderator = Moderator(
        silos=len(contract.members),
        algorithm=experiment.base_algorithm(),
        lanes=lanes,
        guidance_producer=FlatNetwork(guidance, place, bf16=bf16) if guidance is not None else None,
        training=training,
        settings=experiment.moderator,
        weighting=experiment.algorithm.weighting,
        seed=experiment.seed,
    )
    terms = None
    if encoder is not None and experiment.recipe.collects_digests:
        terms = _agree_on_digests(contract, experiment, encoder, shape)
    images = load_test_set(test_set, contract)
    test = None if images is None else RawSamples.all_of(ImageSource(images, encoder, place))
    return Desk(contract, experiment, moderator, network, lanes, terms, _schedule(experiment), test)


def padded(image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Give the shape of an image as the networks see it."""
    channels, height, width = image_shape
    return channels, -(-height // SIDE) * SIDE, -(-width // SIDE) * SIDE


def _check_possible(experiment: Experiment) -> None:
    """Refuse what makes no sense, or cannot be known, where silos keep their data."""
    recipe = experiment.recipe
    if recipe.centralised or recipe.frozen:
        raise SettingError(f"algorithm.name: {recipe.name} is a control for simulations; choose another")
    for name, value in vars(experiment.base_algorithm()).items():
        if value is None:
            raise SettingError(
                f"algorithm.{recipe.base}.{name}: must be in the contract, because it follows from how many steps "
                "silos take, which nobody knows in advance"
            )


def _agree_on_digests(
    contract: Contract, experiment: Experiment, encoder: nn.Module, image_shape: tuple[int, int, int]
) -> Terms:
    """Derive from the contract what every digest must be like."""
    if encoder_hash(encoder) != contract.encoder_hash:
        raise SettingError(
            "digest.encoder: is another here than the one that the contract names by federation.encoder_hash; "
            "use the release of FedDig that wrote the contract"
        )
    settings, privacy = experiment.digest, experiment.privacy
    shape, classes, mixed = (
        feature_shape(encoder, image_shape),
        len(contract.classes),
        settings.samples_per_digest,
    )
    facts: dict[str, object] = {
        "samples_per_digest": mixed,
        "mixing": settings.mixing,
        "weights": list(settings.weights or [1 / mixed] * mixed),
        "mechanism": privacy.mechanism,
        "epsilon": privacy.epsilon,
        "scale_size": privacy.scale_size,
        "random": privacy.random,
        "encoder": contract.encoder_hash,
    }
    if privacy.mechanism in DISCRETE:
        facts |= promised_facts(contract_for(privacy, settings, math.prod(shape), classes), privacy)
    return Terms(tuple(shape), classes, facts)


def _schedule(experiment: Experiment) -> Absence | None:
    """Draw whom a rehearsal leaves out; without a scenario everybody may come and go as they like."""
    absence, silos = experiment.absence, experiment.data.silos
    if absence.scenario == "none":
        return None
    if absence.scenario in BY_SIZE or absence.order == "size":
        raise SettingError(
            f"absence.scenario: {absence.scenario} by size needs the sizes of silos, which a moderator does not "
            'know; give a table with scenario = "file", or order = "index"'
        )
    return draw_absence(
        absence.scenario,
        sizes=np.ones(silos, dtype=int).tolist(),
        rounds=experiment.training.rounds,
        order=absence.order,
        leave=absence.leave,
        return_=absence.return_,
        file=Path(absence.file) if absence.file else None,
        seed=absence.seed or 0,
    )
