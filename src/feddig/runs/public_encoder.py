"""Train an encoder on a public data set instead of generated images.

Every silo gets the encoder, which may reveal what it was trained on, so use it only with data that anybody may see.
"""

from pathlib import Path

import torch
from torch import Tensor

from feddig.core.samples import ImageSource, padded_shape
from feddig.data.dataset import Dataset
from feddig.errors import SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import load_data
from feddig.models.train_encoder import EncoderTraining
from feddig.settings import DataSettings


def load_public(name: str, path: Path | None, data_dir: Path | None) -> Dataset:
    """Load a data set as an experiment with this data.name, data.path and --data-dir would."""
    data = DataSettings(name=name, path=str(path) if path is not None else None)
    return load_data(Experiment(data=data).located(data_dir))


def check_channels(dataset: Dataset, wanted: int | None) -> int:
    """Return the number of channels of the images; raise an error if another number was asked for."""
    channels = padded_shape(dataset.train)[0]
    if wanted is not None and wanted != channels:
        raise SettingError(
            f"--channels: {wanted} asked for, but the images of {dataset.name} have {channels}; leave it out"
        )
    return channels


def training_on(dataset: Dataset) -> EncoderTraining:
    """Return the shipped encoders' training, but on the set's training images, padded as silos see them."""
    source = ImageSource(dataset.train, None, torch.device("cpu"))

    def draw(count: int, channels: int, generator: torch.Generator) -> Tensor:
        return source.images(torch.randint(len(source), (count,), generator=generator))

    return EncoderTraining(f"images of {dataset.name}, noisy code", draw)


def facts_about(dataset: Dataset) -> dict[str, str]:
    """Return the facts about the training data that the encoder's file records."""
    return {
        "data": dataset.name,
        "data_fingerprint": dataset.fingerprint(),
        "data_images": str(len(dataset.train)),
    }
