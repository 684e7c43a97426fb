"""What a results folder says about classes, so that a report need not look for the data again.

classes.json counts each silo's training samples by class; class_means.safetensors holds a mean image of each class,
of the data set's own test images, so that no silo's image is in it.
"""

import json
from pathlib import Path

import numpy as np

from feddig.data.images import Dataset, Images
from feddig.data.partition import Partition
from feddig.files import FORMAT_VERSION, write_atomically, write_tensors

COUNTS, MEANS = "classes.json", "class_means.safetensors"
IMAGES = 200
"""Images of a class that its mean is of: more change no picture."""
LONGEST_SIDE = 64
"""Of a mean, in pixels: of larger images every second pixel is taken, or every third; it is for a small picture."""


def write_class_facts(folder: Path, dataset: Dataset, partition: Partition) -> None:
    """Write both files of a run that simulates its silos, unless they are there; the same data gives the same bytes."""
    if (folder / COUNTS).exists() and (folder / MEANS).exists():
        return
    labels = dataset.train.labels
    counts = [
        np.bincount(labels[share.train], minlength=dataset.classes).tolist() for share in partition.shares
    ]
    names = dataset.class_names or [f"class {number}" for number in range(dataset.classes)]
    facts = {"format_version": FORMAT_VERSION, "names": list(names), "counts": counts}
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
