"""Images of a run's data set: a mean image of each class for its page, and raw images to set beside guidance.

classes.json counts each silo's training samples by class; class_means.safetensors holds a mean image of each class,
made of the data set's own test images, so that it contains no silo's image.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from feddig.core.samples import ImageSource
from feddig.data.dataset import Dataset, Images
from feddig.data.partition import Partition
from feddig.data.public_sets import PUBLISHED
from feddig.errors import FedDigError
from feddig.experiment.setup import load_data
from feddig.experiment.toml import read_experiment
from feddig.files import FORMAT_VERSION, write_atomically, write_tensors
from feddig.models.encoder import load_encoder
from feddig.report.pictures import EncodedImages

COUNTS, MEANS = "classes.json", "class_means.safetensors"
IMAGES = 200
"""How many images of a class its mean is made of; more would not change the picture."""
LONGEST_SIDE = 64
"""Longest side of a mean image in pixels; from larger images only every second or third pixel is taken."""


def write_class_facts(folder: Path, dataset: Dataset, partition: Partition) -> None:
    """Write both files of a simulated run unless they exist; the same data gives the same bytes."""
    if (folder / COUNTS).exists() and (folder / MEANS).exists():
        return
    labels = dataset.train.labels
    counts = [
        np.bincount(labels[share.train], minlength=dataset.classes).tolist() for share in partition.shares
    ]
    names = dataset.class_names or [f"class {number}" for number in range(dataset.classes)]
    facts = {"format_version": FORMAT_VERSION, "names": list(names), "counts": counts}
    if partition.names:
        facts["silos"] = list(partition.names)
    write_atomically(folder / COUNTS, json.dumps(facts) + "\n")
    means = class_means(dataset.test, dataset.classes)
    write_tensors(folder / MEANS, "class-means", {"means": means}, {"data": dataset.name})


def class_means(images: Images, classes: int) -> np.ndarray:
    """Average some images of each class, in [0, 1]; a class without images is black."""
    _, channels, height, width = images.pixels.shape
    step = -(-max(height, width) // LONGEST_SIDE)
    means = np.zeros((classes, channels, -(-height // step), -(-width // step)), dtype=np.float32)
    whole = 255.0 if images.pixels.dtype == np.uint8 else 1.0
    for number in range(classes):
        rows = np.flatnonzero(images.labels == number)[:IMAGES]
        if rows.size:
            means[number] = images.pixels[rows][:, :, ::step, ::step].mean(axis=0, dtype=np.float64) / whole
    return means


def load_samples(folder: Path, count: int, data_dir: Path | None = None) -> EncodedImages:
    """Return test images of a run's data set, from each class in turn; no silo holds them."""
    experiment = read_experiment(folder / "experiment.toml")
    if data_dir is not None and experiment.data.name in PUBLISHED:
        # the run may have been made on another computer
        experiment = replace(experiment, data=replace(experiment.data, path=None)).located(data_dir)
    dataset = load_data(experiment)
    rows = np.array(list(_in_turn(dataset, count)), dtype=np.int64)
    chosen = Images(dataset.test.pixels[rows], dataset.test.labels[rows])
    encoder = load_encoder(experiment.digest.encoder, chosen.pixels.shape[1])
    source = ImageSource(chosen, encoder, torch.device("cpu"))
    if source.features is None:
        raise FedDigError(f"{folder}: its encoder gives no features")
    images = source.images(torch.arange(len(chosen)))
    return EncodedImages(images.numpy(), source.features.numpy(), chosen.labels)


def _in_turn(dataset: Dataset, count: int) -> Iterator[int]:
    """Yield rows of the test images: the first of each class, then the second of each, and so on."""
    by_class = [np.flatnonzero(dataset.test.labels == number).tolist() for number in range(dataset.classes)]
    turns = [rows[turn] for turn in range(count) for rows in by_class if turn < len(rows)]
    yield from turns[:count]
