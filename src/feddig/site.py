"""A silo by itself, as a process of its own holds it: its share of the data, a network to train, its digest."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from feddig.data.images import Images
from feddig.data.lazy import choose
from feddig.device import choose_device
from feddig.digest import Digest
from feddig.errors import SettingError
from feddig.experiment import Experiment
from feddig.lanes import Lane, build_lanes
from feddig.layout import lay_out
from feddig.models.flat import FlatNetwork
from feddig.networks import Networks, build_networks
from feddig.precision import prepare_device
from feddig.samples import ImageSource, RawSamples, padded_shape
from feddig.silo import Silo


@dataclass(frozen=True)
class Site:
    """What a silo needs to answer the moderator."""

    silo: Silo
    lane: Lane
    make_digest: Callable[[], Digest]


def build_site(experiment: Experiment, index: int, *, device: str = "auto") -> Site:
    """Build the silo of this number, with its share of the experiment's data and nobody else's."""
    layout, place = lay_out(experiment, device=device), choose_device(device)
    experiment, dataset = layout.experiment, layout.dataset
    if index not in range(len(layout.training_rows())):
        raise SettingError(f"silo {index}: there are only silos 0 to {len(layout.training_rows()) - 1}")
    training = experiment.training
    prepare_device(training.precision, place)
    if training.threads:
        torch.set_num_threads(training.threads)
    rows = layout.training_rows()[index]
    own = Images(choose(dataset.train.pixels, rows), dataset.train.labels[rows])
    encoder, classifier, _ = build_networks(
        experiment, padded_shape(dataset.train), dataset.classes, Networks()
    )
    encoder = encoder.to(place) if encoder is not None else None
    samples = RawSamples.all_of(ImageSource(own, encoder, place))
    silo = Silo(index, samples, experiment.base_algorithm(), training, experiment.seed)
    network = FlatNetwork(classifier, place)
    # one training at a time, and a process that may end after it: recording would not pay
    lanes = build_lanes(network, bf16=training.precision == "bf16", record=False)

    def make_digest() -> Digest:
        if encoder is None:
            raise SettingError(f"silo {index}: {experiment.algorithm.name} has no digests")
        return silo.make_digest(encoder, dataset.classes, experiment.digest, experiment.privacy)

    return Site(silo, lanes.first, make_digest)
