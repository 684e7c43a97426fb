"""A silo by itself, as a process of its own holds it: its share of the data, a network to train, its digest."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from feddig.core.samples import ImageSource, RawSamples, padded_shape
from feddig.core.silo import Silo
from feddig.core.workers import Lane, build_lanes
from feddig.data.images import Images
from feddig.data.lazy import choose
from feddig.digest.digest import Digest
from feddig.errors import SettingError
from feddig.experiment.device import choose_device
from feddig.experiment.experiment import Experiment
from feddig.experiment.layout import lay_out
from feddig.experiment.networks import Networks, build_networks
from feddig.experiment.precision import prepare_device
from feddig.models.flat import FlatNetwork


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
