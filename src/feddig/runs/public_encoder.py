"""An encoder that learns from a public data set instead of generated images.

Whatever an encoder learnt from goes with it to every silo, so this is for data that anybody may see.
"""

from pathlib import Path

import torch
from torch import Tensor

from feddig.core.samples import ImageSource, padded_shape
from feddig.data.dataset import Dataset
from feddig.errors import SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import load_data
from feddig.models.train_encoder import Recipe
from feddig.settings import DataSettings


def load_public(name: str, path: Path | None, data_dir: Path | None) -> Dataset:
    """Load the data set that would be an experiment's data.name, data.path and --data-dir."""
    data = DataSettings(name=name, path=str(path) if path is not None else None)
    return load_data(Experiment(data=data).located(data_dir))


def agreed_channels(dataset: Dataset, wanted: int | None) -> int:
    """Give the number of channels that the images have, which may not be another than the one asked for."""
    channels = padded_shape(dataset.train)[0]
    if wanted is not None and wanted != channels:
        raise SettingError(
            f"--channels: {wanted} asked for, but the images of {dataset.name} have {channels}; leave it out"
        )
    return channels


def recipe_from(dataset: Dataset) -> Recipe:
    """Describe the shipped recipe with the set's training images, padded as silos see them, as its images."""
    source = ImageSource(dataset.train, None, torch.device("cpu"))

    def draw(count: int, channels: int, generator: torch.Generator) -> Tensor:
        return source.images(torch.randint(len(source), (count,), generator=generator))

    return Recipe(f"images of {dataset.name}, noisy code", draw)


def facts_about(dataset: Dataset) -> dict[str, str]:
    """Tell what the encoder learnt from, for its file."""
    return {
        "data": dataset.name,
        "data_fingerprint": dataset.fingerprint(),
        "data_images": str(len(dataset.train)),
    }
