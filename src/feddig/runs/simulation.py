"""From an experiment to a federation in this process: data, silos, moderator, engine."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from feddig.core.absence import Absence
from feddig.core.in_process import InProcessEngine
from feddig.core.moderator import Moderator
from feddig.core.samples import ImageSource, RawSamples, padded_shape
from feddig.core.silo import Silo
from feddig.core.workers import Lanes, build_lanes
from feddig.data.datasets import Dataset
from feddig.data.partition import Partition
from feddig.digest.digest import Digest, check_mixable
from feddig.experiment.device import choose_device
from feddig.experiment.experiment import Experiment
from feddig.experiment.layout import Layout, lay_out
from feddig.experiment.networks import Networks, build_networks
from feddig.experiment.precision import prepare_device
from feddig.models.encoder import encoder_hash
from feddig.models.flat import FlatNetwork

log = logging.getLogger("feddig")

WORTH_RECORDING = 2000
"""Steps in a run from which on a GPU compiling kernels and recording steps (seconds) pays back (2 ms a step)."""


@dataclass(frozen=True)
class Simulation:
    """A federation in one process, ready for its first round."""

    experiment: Experiment
    """Resolved: nothing is left open."""
    dataset: Dataset
    partition: Partition
    absence: Absence
    silos: tuple[Silo, ...]
    moderator: Moderator
    network: FlatNetwork
    """The classifier in full precision, for evaluation."""
    lanes: Lanes
    """Where silos, recall models and the joint update train."""
    test: RawSamples
    validation: tuple[RawSamples, ...]
    silo_tests: tuple[RawSamples, ...]
    make_digest: Callable[[Silo], Digest]
    encoder_hash: str | None
    """Of P_R, where the model sees features."""

    def inputs(self) -> dict[str, str]:
        """Name by hash what a run is made from: a resumed one must be given the same."""
        encoder = {"encoder": self.encoder_hash} if self.encoder_hash else {}
        return {"data set": self.dataset.fingerprint(), **encoder}

    def engine(self, digest_of: Callable[[Silo], Digest]) -> InProcessEngine:
        """Build the engine; `digest_of` may keep digests on disk and give them back."""
        everybody = np.ones((1, self.absence.rounds), dtype=bool)
        absence = Absence(everybody) if self.experiment.recipe.centralised else self.absence
        return InProcessEngine(self.silos, absence, self.lanes, digest_of)


def build_simulation(
    experiment: Experiment,
    *,
    device: str = "auto",
    dataset: Dataset | None = None,
    networks: Networks | None = None,
) -> Simulation:
    """Load, deal out and build everything an experiment names."""
    place = choose_device(device)
    layout = lay_out(experiment, dataset, device)
    experiment, dataset, dealt = layout.experiment, layout.dataset, layout.partition
    training = experiment.training
    prepare_device(training.precision, place)
    if training.threads:
        torch.set_num_threads(training.threads)
    image_shape = padded_shape(dataset.train)

    encoder, classifier, guidance = build_networks(
        experiment, image_shape, dataset.classes, networks or Networks()
    )
    encoder = encoder.to(place) if encoder is not None else None
    images = ImageSource(dataset.train, encoder, place)
    algorithm = experiment.base_algorithm()
    silos = tuple(
        Silo(
            index,
            RawSamples(images, rows),
            algorithm,
            training,
            experiment.seed,
        )
        for index, rows in enumerate(layout.training_rows())
    )
    if experiment.recipe.collects_digests:
        for silo in silos:
            check_mixable(silo.index, silo.samples.labels, experiment.digest)
    network = FlatNetwork(classifier, place)
    bf16 = training.precision == "bf16"
    lanes = build_lanes(network, bf16=bf16, record=_steps(layout) >= WORTH_RECORDING)
    moderator = Moderator(
        silos=len(silos),
        algorithm=algorithm,
        lanes=lanes,
        guidance_producer=FlatNetwork(guidance, place, bf16=bf16) if guidance is not None else None,
        training=training,
        settings=experiment.moderator,
        weighting=experiment.algorithm.weighting,
        seed=experiment.seed,
    )

    def make_digest(silo: Silo) -> Digest:
        assert encoder is not None
        digest = silo.make_digest(encoder, dataset.classes, experiment.digest, experiment.privacy)
        log.info(
            "silo %d: %d digests, %s of its samples left out",
            silo.index,
            len(digest),
            digest.facts["left_out"],
        )
        return digest

    everything = np.arange(len(dataset.test))
    return Simulation(
        experiment=experiment,
        dataset=dataset,
        partition=dealt,
        absence=layout.absence,
        silos=silos,
        moderator=moderator,
        network=network,
        lanes=lanes,
        test=RawSamples(ImageSource(dataset.test, encoder, place), everything),
        validation=tuple(RawSamples(images, share.validation) for share in dealt.shares),
        silo_tests=tuple(RawSamples(images, share.test) for share in dealt.shares),
        make_digest=make_digest,
        encoder_hash=encoder_hash(encoder) if encoder is not None else None,
    )


def _steps(layout: Layout) -> int:
    """Count the steps that silos take in the whole run if nobody is ever away."""
    training = layout.experiment.training
    a_pass = sum(-(-len(rows) // training.batch) for rows in layout.training_rows())
    return a_pass * training.local_epochs * training.rounds
