"""Pixels that are read from where they lie only when they are asked for, so that a set may exceed memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class LazyPixels:
    """Images [n, channels, height, width] behind a function that reads some of them.

    Index them as an array: what comes back is an ordinary array of the images asked for.
    """

    read: Callable[[np.ndarray], np.ndarray]
    places: np.ndarray
    """For each image, the place that `read` knows it by."""
    image_shape: tuple[int, int, int]
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape that all images together have."""
        return (len(self.places), *self.image_shape)

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, key: Any) -> np.ndarray:
        images, *within = key if isinstance(key, tuple) else (key,)
        places = self.places[images]
        values = self.read(np.atleast_1d(places))
        found: np.ndarray = values[(slice(None) if places.ndim else 0, *within)]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        # numpy asks for this when everything is wanted at once
        return self[:].astype(dtype or self.dtype, copy=False)


Pixels = np.ndarray | LazyPixels
"""Images [n, channels, height, width], in memory, mapped or read on demand."""


def join(parts: Sequence[Pixels]) -> Pixels:
    """Put several arrays of images behind one another, where they lie."""
    if len(parts) == 1:
        return parts[0]
    ends = np.cumsum([len(part) for part in parts])

    def read(places: np.ndarray) -> np.ndarray:
        images = np.empty((len(places), *parts[0].shape[1:]), parts[0].dtype)
        holders = np.searchsorted(ends, places, side="right")
        for number, part in enumerate(parts):
            held = holders == number
            images[held] = part[places[held] - (ends[number] - len(part))]
        return images

    return LazyPixels(read, np.arange(ends[-1]), _image_shape(parts[0]), parts[0].dtype)


def choose(pixels: Pixels, rows: np.ndarray) -> Pixels:
    """Give some of the images, where they lie."""
    return LazyPixels(lambda places: pixels[places], rows, _image_shape(pixels), pixels.dtype)


def convert(pixels: np.ndarray, dtype: np.dtype) -> Pixels:
    """Give the images as another type of number, converted when they are read."""
    if pixels.dtype == dtype:
        return pixels
    every = np.arange(len(pixels))
    return LazyPixels(lambda places: pixels[places].astype(dtype), every, _image_shape(pixels), dtype)


def _image_shape(pixels: Pixels) -> tuple[int, int, int]:
    channels, height, width = pixels.shape[1:]
    return channels, height, width
