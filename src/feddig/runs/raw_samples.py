"""Raw images to set beside guidance: a few of a run's data set, with the features that its encoder gives them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from feddig.core.samples import ImageSource
from feddig.data.images import Dataset, Images
from feddig.data.public_sets import PUBLISHED
from feddig.errors import FedDigError
from feddig.experiment.layout import load_data
from feddig.experiment.toml import read_experiment
from feddig.models.encoder import load_encoder
from feddig.report.guidance_pictures import ShownSamples


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
