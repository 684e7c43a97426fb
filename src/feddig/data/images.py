"""What a data set is, wherever it came from."""

from dataclasses import dataclass

import numpy as np

from feddig.data.lazy import Pixels
from feddig.files import content_hash


@dataclass(frozen=True, eq=False)
class Images:
    """Images with their labels.

    `pixels` is [n, channels, height, width], uint8 or float32 from 0 to 1; `labels` is int64 [n]. The pixels
    may lie in memory-mapped files: treat them as read-only, and index them with an array of positions to
    get an ordinary array in memory.
    """

    pixels: Pixels
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test images of one task, with the number and the names of its classes."""

    name: str
    train: Images
    test: Images
    classes: int
    class_names: tuple[str, ...]

    def fingerprint(self) -> str:
        """Name the data by its labels and a thousand of its images, so that a change is noticed cheaply."""
        chunks = []
        for images in (self.train, self.test):
            places = np.unique(np.linspace(0, len(images) - 1, min(len(images), 1000)).astype(np.int64))
            chunks += [str(images.pixels.shape).encode(), images.labels.tobytes()]
            chunks.append(np.ascontiguousarray(images.pixels[places]).tobytes())
        return content_hash(*chunks)
