"""Raw images to set beside guidance: a few of a run's data set, with the features that its encoder gives them.

From an experiment to a federation in this process: data, silos, moderator, engine.

A silo by itself, as a process of its own holds it: its share of the data, a network to train, its digest.

The guidance that a moderator would learn from a silo's digests, for the audit's pictures where no run gave one.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from feddig.core.absence import Absence
from feddig.core.engine import InProcessEngine
from feddig.core.moderator import Moderator
from feddig.core.samples import ImageSource, RawSamples, padded_shape
from feddig.core.silo import Silo
from feddig.core.workers import Lane, Lanes, build_lanes
from feddig.data.dataset import Dataset, Images
from feddig.data.mmap import choose
from feddig.data.partition import Partition
from feddig.data.public_sets import PUBLISHED
from feddig.digest.digest import Digest, check_mixable
from feddig.errors import FedDigError, SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import (
    Layout,
    Networks,
    build_networks,
    choose_device,
    lay_out,
    load_data,
    prepare_device,
)
from feddig.experiment.toml import read_experiment
from feddig.models.encoder import encoder_hash, load_encoder
from feddig.models.flat import FlatNetwork
from feddig.report.guidance_pictures import ShownSamples
from feddig.settings import ModelSettings, ModeratorSettings, TrainingSettings


def load_samples(folder: Path, count: int, data_dir: Path | None = None) -> ShownSamples:
    """Take test images of a run's data set, from each class in turn; they are no silo's."""
    experiment = read_experiment(folder / "experiment.toml")
    if data_dir is not None and experiment.data.name in PUBLISHED:
        # the place that the run remembers may be another computer's
        experiment = replace(experiment, data=replace(experiment.data, path=None)).located(data_dir)
    dataset = load_data(experiment)
    rows = np.array(list(_in_turn(dataset, count)), dtype=np.int64)
    chosen = Images(dataset.test.pixels[rows], dataset.test.labels[rows])
    encoder = load_encoder(experiment.digest.encoder, chosen.pixels.shape[1])
    source = ImageSource(chosen, encoder, torch.device("cpu"))
    if source.features is None:
        raise FedDigError(f"{folder}: its encoder gives no features")
    images = source.images(torch.arange(len(chosen)))
    return ShownSamples(images.numpy(), source.features.numpy(), chosen.labels)


def _in_turn(dataset: Dataset, count: int) -> Iterator[int]:
    """Give rows of the test images: the first of each class, then the second of each, and so on."""
    by_class = [np.flatnonzero(dataset.test.labels == number).tolist() for number in range(dataset.classes)]
    turns = [rows[turn] for turn in range(count) for rows in by_class if turn < len(rows)]
    yield from turns[:count]


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


@dataclass(frozen=True)
class Site:
    """What a silo needs to answer the moderator."""

    silo: Silo
    lane: Lane
    network: FlatNetwork
    """The classifier in full precision, for evaluation."""
    encoder: nn.Module | None
    make_digest: Callable[[], Digest]


def build_site(experiment: Experiment, index: int, *, device: str = "auto") -> Site:
    """Build the silo of this number, with its share of the experiment's data and nobody else's."""
    layout = lay_out(experiment, device=device)
    if index not in range(len(layout.training_rows())):
        raise SettingError(f"silo {index}: there are only silos 0 to {len(layout.training_rows()) - 1}")
    rows, images = layout.training_rows()[index], layout.dataset.train
    own = Images(choose(images.pixels, rows), images.labels[rows])
    return build_site_of(layout.experiment, index, own, layout.dataset.classes, device=device)


def build_site_of(
    experiment: Experiment, index: int, own: Images, classes: int, *, device: str = "auto"
) -> Site:
    """Build the silo of this number with training images of its own; the experiment leaves nothing open."""
    place, training = choose_device(device), experiment.training
    prepare_device(training.precision, place)
    if training.threads:
        torch.set_num_threads(training.threads)
    encoder, classifier, _ = build_networks(experiment, padded_shape(own), classes, Networks())
    encoder = encoder.to(place) if encoder is not None else None
    samples = RawSamples.all_of(ImageSource(own, encoder, place))
    silo = Silo(index, samples, experiment.base_algorithm(), training, experiment.seed)
    network = FlatNetwork(classifier, place)
    # one training at a time, and a process that may end after it: recording would not pay
    lanes = build_lanes(network, bf16=training.precision == "bf16", record=False)

    def make_digest() -> Digest:
        if encoder is None:
            raise SettingError(f"silo {index}: {experiment.algorithm.name} has no digests")
        return silo.make_digest(encoder, classes, experiment.digest, experiment.privacy)

    return Site(silo, lanes.first, network, encoder, make_digest)


STEPS = 200
"""Joint steps: as many as docs/privacy.md shows guidance after."""
TRAINING = TrainingSettings(batch=64, lr=0.01, clip_norm=1.0)
"""Gradients are kept short, because an audit's digests may have noise of any strength."""


def learn_guidance(
    digest: Digest, encoder: nn.Module, image_shape: tuple[int, int, int], *, seed: int, steps: int = STEPS
) -> nn.Module:
    """Hold the digests as a moderator does, update jointly, and give the guidance producer P_G that this leaves."""
    experiment = Experiment(
        seed=seed,
        model=ModelSettings(classifier="small"),
        training=TRAINING,
        moderator=ModeratorSettings(joint_steps=steps),
    )
    classes = int(digest.labels.shape[1])
    _, classifier, guidance = build_networks(experiment, image_shape, classes, Networks(encoder=encoder))
    assert guidance is not None
    producer = FlatNetwork(guidance, torch.device("cpu"))
    moderator = Moderator(
        silos=1,
        algorithm=experiment.base_algorithm(),
        lanes=build_lanes(FlatNetwork(classifier, torch.device("cpu")), bf16=False, record=False),
        guidance_producer=producer,
        training=experiment.training,
        settings=experiment.moderator,
        weighting=experiment.algorithm.weighting,
        seed=seed,
    )
    # the only silo here, whatever number it has in its federation
    moderator.hold([replace(digest, silo=0)])
    moderator.joint_update(0)
    return producer.module.eval().requires_grad_(False)
