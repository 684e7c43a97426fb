"""Build the parties of an experiment: a federation in one process, a silo by itself, or a moderator by itself."""

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

from feddig.core.absence import Absence
from feddig.core.engine import InProcessEngine
from feddig.core.moderator import Moderator
from feddig.core.plus import Committee, ImageClassifier
from feddig.core.samples import ImageSource, RawSamples, padded_shape
from feddig.core.silo import Silo
from feddig.core.workers import Worker, WorkerPool, build_workers
from feddig.data.dataset import Dataset, Images
from feddig.data.partition import Partition
from feddig.digest.digest import Digest, check_mixable
from feddig.errors import SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import (
    Layout,
    Networks,
    build_networks,
    choose_device,
    lay_out,
    prepare_device,
    with_precision,
)
from feddig.models.encoder import encoder_hash
from feddig.models.flat import FlatNetwork
from feddig.settings import AlgorithmSettings, ModelSettings, ModeratorSettings, TrainingSettings

log = logging.getLogger("feddig")

WORTH_RECORDING = 2000
"""Number of steps from which compiling kernels and recording steps (seconds) pays back on a GPU (2 ms a step)."""


@dataclass(frozen=True)
class Party:
    """What every party holds: an experiment, its networks on a device, and the workers that train them."""

    experiment: Experiment
    """Resolved: nothing is left open."""
    classes: int
    encoder: nn.Module | None
    """P_R, where the model sees features."""
    guidance: nn.Module | None
    expert: nn.Module | None
    network: FlatNetwork
    """What is evaluated, in full precision: the classifier, or in FedDig+ the committee."""
    workers: WorkerPool
    given: Networks
    """Networks that were given in Python in place of those that the experiment names."""

    @property
    def encoder_hash(self) -> str | None:
        """Hash of P_R, where the model sees features."""
        return None if self.encoder is None else encoder_hash(self.encoder)

    def source(self, images: Images) -> ImageSource:
        """Return these images as the classifier sees them."""
        return ImageSource(images, self.encoder, self.network.device)

    def silo(self, index: int, samples: RawSamples) -> Silo:
        """Build the silo that trains on these samples."""
        experiment = self.experiment
        return Silo(
            index,
            samples,
            experiment.base_algorithm(),
            experiment.training,
            experiment.seed,
            classes=self.classes,
            prior_correction=bool(experiment.algorithm.prior_correction),
        )

    def make_digest(self, silo: Silo) -> Digest:
        """Make a silo's digest as the experiment says."""
        experiment = self.experiment
        if self.encoder is None:
            raise SettingError(f"silo {silo.index}: {experiment.algorithm.name} has no digests")
        digest = silo.make_digest(self.encoder, self.classes, experiment.digest, experiment.privacy)
        left_out = digest.facts["left_out"]
        log.info("silo %d: %d digests, %s of its samples left out", silo.index, len(digest), left_out)
        return digest

    def moderator(self, silos: int) -> Moderator:
        """Build the moderator of this number of silos."""
        experiment, guidance = self.experiment, self.guidance
        bf16 = experiment.training.precision == "bf16"
        return Moderator(
            silos=silos,
            algorithm=experiment.base_algorithm(),
            workers=self.workers,
            guidance_producer=None
            if guidance is None
            else FlatNetwork(guidance, self.network.device, bf16=bf16),
            expert=None if self.expert is None else FlatNetwork(self.expert, self.network.device),
            training=experiment.training,
            settings=experiment.moderator,
            weighting=experiment.algorithm.weighting,
            seed=experiment.seed,
            prior_correction=bool(experiment.algorithm.prior_correction),
        )


def build_party(
    experiment: Experiment,
    image_shape: tuple[int, int, int],
    classes: int,
    *,
    device: torch.device,
    networks: Networks | None = None,
    record: bool = False,
    background: bool = False,
) -> Party:
    """Build the networks and workers of a resolved experiment, for images of this (padded) shape.

    `record`: on a GPU, record steps as CUDA graphs. `background`: train while the caller does something else.
    """
    training = experiment.training
    prepare_device(training.precision, device)
    if training.threads:
        torch.set_num_threads(training.threads)
    given = networks or Networks()
    encoder, classifier, guidance, expert = build_networks(experiment, image_shape, classes, given)
    encoder = encoder.to(device) if encoder is not None else None
    network = FlatNetwork(classifier, device)
    bf16 = training.precision == "bf16"
    workers = build_workers(network, bf16=bf16, record=record, background=background)
    if expert is not None and isinstance(classifier, ImageClassifier):
        committee = Committee(
            copy.deepcopy(classifier.classifier),
            copy.deepcopy(expert),
            classes,
            experiment.digest.samples_per_digest,
        )
        network = FlatNetwork(committee, device)
    return Party(experiment, classes, encoder, guidance, expert, network, workers, given)


@dataclass(frozen=True)
class Moderated:
    """A party with a moderator; its rounds can be recorded."""

    party: Party
    moderator: Moderator

    @property
    def experiment(self) -> Experiment:
        """The experiment with nothing left open."""
        return self.party.experiment

    @property
    def network(self) -> FlatNetwork:
        """The classifier in full precision, for evaluation."""
        return self.party.network

    @property
    def workers(self) -> WorkerPool:
        """Where silos, recall models and the joint update train."""
        return self.party.workers

    def inputs(self) -> dict[str, str]:
        """Return hashes of what the run is made from; a resumed run must be given the same."""
        raise NotImplementedError

    def task(self) -> tuple[tuple[int, int, int], tuple[str, ...]]:
        """Return the shape of an image as it is stored (channels, height, width) and the names of the classes."""
        raise NotImplementedError


@dataclass(frozen=True)
class Simulation(Moderated):
    """A federation in one process, ready for its first round."""

    dataset: Dataset
    partition: Partition
    absence: Absence
    silos: tuple[Silo, ...]
    test: RawSamples
    validation: tuple[RawSamples, ...]
    silo_tests: tuple[RawSamples, ...]

    def make_digest(self, silo: Silo) -> Digest:
        """Make a silo's digest."""
        return self.party.make_digest(silo)

    def inputs(self) -> dict[str, str]:
        """Return hashes of what the run is made from; a resumed run must be given the same."""
        encoder = self.party.encoder_hash
        return {"data set": self.dataset.fingerprint(), **({"encoder": encoder} if encoder else {})}

    def task(self) -> tuple[tuple[int, int, int], tuple[str, ...]]:
        """Return the shape of an image as it is stored (channels, height, width) and the names of the classes."""
        channels, height, width = self.dataset.test.pixels.shape[1:]
        names = self.dataset.class_names or tuple(map(str, range(self.dataset.classes)))
        return (channels, height, width), names

    def engine(self, digest_of: Callable[[Silo], Digest]) -> InProcessEngine:
        """Build the engine; `digest_of` may keep digests on disk and give them back."""
        everybody = np.ones((1, self.absence.rounds), dtype=bool)
        absence = Absence(everybody) if self.experiment.recipe.centralised else self.absence
        return InProcessEngine(self.silos, absence, self.workers, digest_of)


def build_simulation(
    experiment: Experiment,
    *,
    device: str = "auto",
    dataset: Dataset | None = None,
    networks: Networks | None = None,
    partition: Partition | None = None,
) -> Simulation:
    """Build all parties of an experiment in this process."""
    layout = lay_out(experiment, dataset, device, partition)
    experiment, dataset, partition = layout.experiment, layout.dataset, layout.partition
    party = build_party(
        experiment,
        padded_shape(dataset.train),
        dataset.classes,
        device=choose_device(device),
        networks=networks,
        record=_steps(layout) >= WORTH_RECORDING,
    )
    images = party.source(dataset.train)
    silos = tuple(
        party.silo(index, RawSamples(images, rows)) for index, rows in enumerate(layout.training_rows())
    )
    if experiment.recipe.collects_digests:
        for silo in silos:
            check_mixable(silo.index, silo.samples.labels, experiment.digest)
    return Simulation(
        party=party,
        dataset=dataset,
        partition=partition,
        absence=layout.absence,
        silos=silos,
        moderator=party.moderator(len(silos)),
        test=RawSamples.all_of(party.source(dataset.test)),
        validation=tuple(RawSamples(images, share.validation) for share in partition.shares),
        silo_tests=tuple(RawSamples(images, share.test) for share in partition.shares),
    )


def _steps(layout: Layout) -> int:
    """Count the steps that silos take in the whole run if nobody is ever away."""
    training = layout.experiment.training
    steps = sum(-(-len(rows) // training.batch) for rows in layout.training_rows())
    return steps * training.local_epochs * training.rounds


@dataclass(frozen=True)
class Site:
    """A silo in a process of its own."""

    party: Party
    silo: Silo

    @property
    def network(self) -> FlatNetwork:
        """The classifier in full precision, for evaluation."""
        return self.party.network

    @property
    def worker(self) -> Worker:
        """The worker that trains for this silo."""
        return self.party.workers.first

    def make_digest(self) -> Digest:
        """Make this silo's digest."""
        return self.party.make_digest(self.silo)


def build_site(experiment: Experiment, index: int, *, device: str = "auto") -> Site:
    """Build one silo of a simulated experiment, with its share of the data and no other silo's."""
    layout = lay_out(experiment, device=device)
    if index not in range(len(layout.training_rows())):
        raise SettingError(f"silo {index}: there are only silos 0 to {len(layout.training_rows()) - 1}")
    rows, images = layout.training_rows()[index], layout.dataset.train
    return build_site_of(layout.experiment, index, images.choose(rows), layout.dataset.classes, device=device)


def build_site_of(
    experiment: Experiment, index: int, own: Images, classes: int, *, device: str = "auto"
) -> Site:
    """Build the silo that trains on these images of its own; the experiment is resolved."""
    # its process may end after one training, so recording would not pay
    party = build_party(experiment, padded_shape(own), classes, device=choose_device(device))
    return Site(party, party.silo(index, RawSamples.all_of(party.source(own))))


GUIDANCE_STEPS = 200
"""Joint steps after which the audit shows guidance."""
GUIDANCE_TRAINING = TrainingSettings(batch=64, lr=0.01, clip_norm=1.0)
"""Gradients are clipped, because an audit's digests may have noise of any strength."""


def learn_guidance(
    digest: Digest,
    encoder: nn.Module,
    image_shape: tuple[int, int, int],
    *,
    seed: int,
    steps: int = GUIDANCE_STEPS,
) -> nn.Module:
    """Train a guidance producer P_G on one silo's digest, as a moderator that holds only this digest would."""
    device = torch.device("cpu")
    experiment = Experiment(
        seed=seed,
        algorithm=AlgorithmSettings(name="feddig"),
        model=ModelSettings(classifier="small"),
        training=GUIDANCE_TRAINING,
        moderator=ModeratorSettings(joint_steps=steps),
    )
    party = build_party(
        with_precision(experiment, device),
        image_shape,
        int(digest.labels.shape[1]),
        device=device,
        networks=Networks(encoder=encoder),
    )
    moderator = party.moderator(silos=1)
    # it is silo 0 here, whatever its number in the federation
    moderator.hold([replace(digest, silo=0)])
    moderator.joint_update(0)
    assert moderator.guidance_producer is not None
    return moderator.guidance_producer.module.eval().requires_grad_(False)
