"""What the local loop trains on, and how accuracy is measured on it.

A source holds rows; it gives the inputs and the targets of a batch of rows. Samples are some rows of a source: a silo's
own images, or the digests of one silo, seen through the guidance producer. Silos that live in one process share one
source, so that a GPU holds the data once and one recorded step serves them all.
"""

import copy
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Protocol, Self

import numpy as np
import torch
from torch import Tensor, nn

from feddig.data.dataset import Images
from feddig.digest.digest import Digest, denoise
from feddig.models.flat import FlatNetwork

SIDE = 8
"""Images are padded with zeros to a multiple of this, so that three 2x2 pools divide them: 28 becomes 32."""

AT_ONCE, AT_ONCE_ON_GPU = 1024, 4096
"""Images that are encoded or classified at a time."""
LARGEST_IN_MEMORY = 2**31
"""Features that need more bytes are kept in an unnamed memory-mapped file."""
LARGEST_SHARE = 0.5
"""Share of a GPU's free memory that pixels may take; larger sets are read from the CPU batch by batch."""


class Source(Protocol):
    """Rows that a training step can read a batch from."""

    def __len__(self) -> int: ...

    def inputs(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return the classifier's inputs for these rows."""
        ...

    def targets(self, rows: Tensor) -> Tensor:
        """Return the targets for these rows: class numbers or soft labels."""
        ...


class Samples:
    """Some rows of a source, or all of them."""

    def __init__(self, source: Source, rows: Tensor | None = None) -> None:
        self.source, self.rows = source, rows

    def __len__(self) -> int:
        return len(self.source) if self.rows is None else len(self.rows)

    def inputs(self, places: Tensor) -> tuple[Tensor, ...]:
        """Return the classifier's inputs for these samples."""
        return self.source.inputs(self.rows_at(places))

    def targets(self, places: Tensor) -> Tensor:
        """Return the targets for these samples."""
        return self.source.targets(self.rows_at(places))

    def rows_at(self, places: Tensor) -> Tensor:
        """Return the source's rows of these samples."""
        return places if self.rows is None else self.rows[places]


def padded_shape(images: Images) -> tuple[int, int, int]:
    """Return the shape of an image as the networks see it, after padding."""
    channels, height, width = images.pixels.shape[1:]
    return padded((channels, height, width))


def padded(image_shape: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return an image's shape after padding."""
    channels, height, width = image_shape
    below, right = _missing(height, width)
    return channels, height + below, width + right


class ImageSource:
    """An image set, with the encoded features r of its images if an encoder is given.

    On a CPU pixels are read from the (perhaps memory-mapped) array batch by batch; a GPU holds them, padded.
    """

    def __init__(self, images: Images, encoder: nn.Module | None, device: torch.device) -> None:
        self._images, self._encoder, self.device = images, encoder, device
        self.labels = torch.from_numpy(np.asarray(images.labels, dtype=np.int64)).to(device)
        self.groups = None if images.groups is None else torch.from_numpy(images.groups)
        self.resident = device.type != "cpu" and self._size() <= _free_memory(device) * LARGEST_SHARE
        """Whether a GPU holds the pixels."""
        self._pixels = self._held() if self.resident else None

    def __len__(self) -> int:
        return len(self._images)

    def inputs(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return images, and features where the model sees them."""
        features = self.features
        return (self.images(rows),) if features is None else (self.images(rows), features[rows])

    def targets(self, rows: Tensor) -> Tensor:
        """Return class numbers."""
        return self.labels[rows]

    def images(self, rows: Tensor) -> Tensor:
        """Return images as floats in [0, 1], padded."""
        if self._pixels is not None:
            return _floats(self._pixels[rows])
        return _pad(_floats(self._read(rows.cpu().numpy()).to(self.device)))

    @cached_property
    def features(self) -> Tensor | None:
        """The encoded features r of all images, computed once because the encoder never changes."""
        encoder = self._encoder
        if encoder is None:
            return None
        # in full precision, whatever the precision of training
        with torch.no_grad(), torch.autocast(self.device.type, enabled=False):
            every = torch.split(torch.arange(len(self), device=self.device), AT_ONCE)
            encoded = (encoder(self.images(rows)) for rows in every)
            first = next(encoded)
            features = _room((len(self), *first.shape[1:]), self.device)
            features[: len(first)] = first
            for rows, part in zip(every[1:], encoded, strict=True):
                features[rows[0] : rows[0] + len(part)] = part
            return features

    def _read(self, rows: np.ndarray) -> Tensor:
        pixels = np.ascontiguousarray(self._images.pixels[rows])
        # a single channel may have any stride, and the order of torch's sums depends on strides
        return torch.from_numpy(pixels.reshape(-1)).view(pixels.shape)

    def _size(self) -> int:
        itemsize = np.dtype(self._images.pixels.dtype).itemsize
        return len(self) * int(np.prod(padded_shape(self._images))) * itemsize

    def _held(self) -> Tensor:
        every = np.array_split(np.arange(len(self)), -(-len(self) // (16 * AT_ONCE)) or 1)
        return torch.cat([_pad(self._read(rows).to(self.device)) for rows in every])


class RawSamples(Samples):
    """Images of a silo, or images that a model is tested on."""

    source: ImageSource

    def __init__(self, source: ImageSource, rows: np.ndarray) -> None:
        super().__init__(source, torch.from_numpy(rows.astype(np.int64)).to(source.device))

    @classmethod
    def all_of(cls, source: ImageSource) -> Self:
        """Return all images of a source."""
        return cls(source, np.arange(len(source)))

    @property
    def labels(self) -> Tensor:
        """Class numbers."""
        return self.source.labels[self.rows]

    @property
    def groups(self) -> Tensor | None:
        """Numbers of the groups that the images belong to, where the data names them."""
        groups = self.source.groups
        return groups if groups is None or self.rows is None else groups[self.rows.cpu()]

    @property
    def features(self) -> Tensor | None:
        """Encoded features r, where there is an encoder."""
        features = self.source.features
        return None if features is None else features[self.rows]

    def images(self, places: Tensor) -> Tensor:
        """Return the images of these samples."""
        return self.source.images(self.rows_at(places))


class DigestSource:
    """Digests as samples: guidance G = P_G(D_R) in the image's place, D_R in the feature's, D_y as target.

    With `noise_aware` D_R is seen as if without its noise, as far as its level is known.
    """

    resident = True

    def __init__(
        self,
        digests: Sequence[Digest],
        guidance_producer: nn.Module,
        *,
        train_guidance: bool = False,
        noise_aware: bool = False,
    ) -> None:
        features = torch.cat([digest.features for digest in digests])
        self._features = denoise(digests, features) if noise_aware else features
        self._labels = torch.cat([digest.labels for digest in digests])
        self._guidance_producer, self._train_guidance = guidance_producer, train_guidance
        sizes = [len(digest) for digest in digests]
        # the digests become views of the pool, so that memory holds them once
        self._digests = {
            digest.silo: replace(digest, features=features, labels=labels)
            for digest, features, labels in zip(
                digests, torch.split(features, sizes), torch.split(self._labels, sizes), strict=True
            )
        }
        every = torch.split(torch.arange(len(self), device=self._labels.device), sizes)
        self._rows = {digest.silo: rows for digest, rows in zip(digests, every, strict=True)}

    def __len__(self) -> int:
        return len(self._labels)

    def with_guidance_in_training(self) -> Self:
        """Return the same digests for the joint update."""
        source = copy.copy(self)
        source._train_guidance = True
        return source

    def of(self, silo: int) -> Samples:
        """Return the digests of one silo as samples."""
        return Samples(self, self._rows[silo])

    def digests(self) -> dict[int, Digest]:
        """Return the digests by silo."""
        return dict(self._digests)

    def inputs(self, rows: Tensor) -> tuple[Tensor, ...]:
        """Return guidance and digest features; gradients reach P_G in the joint update only."""
        features = self._features[rows]
        with torch.set_grad_enabled(self._train_guidance):
            return self._guidance_producer.train(self._train_guidance)(features), features

    def targets(self, rows: Tensor) -> Tensor:
        """Return soft labels."""
        return self._labels[rows]


def _floats(pixels: Tensor) -> Tensor:
    return pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels


def _pad(images: Tensor) -> Tensor:
    below, right = _missing(*images.shape[-2:])
    edges = (right // 2, right - right // 2, below // 2, below - below // 2)
    return nn.functional.pad(images, edges) if any(edges) else images


def _missing(height: int, width: int) -> tuple[int, int]:
    """Return how many rows and columns padding adds; a one-row image is not padded."""
    return (0, 0) if height == 1 else (-height % SIDE, -width % SIDE)


def _room(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Allocate features; on disk where they would not fit into memory."""
    count = int(np.prod(shape))
    if device.type != "cpu" or count * 4 <= LARGEST_IN_MEMORY:
        return torch.empty(shape, device=device)
    with tempfile.TemporaryDirectory() as folder:  # deleted at once; the mapping keeps the bytes
        file = str(Path(folder) / "features")
        return torch.from_file(file, shared=True, size=count, dtype=torch.float32).view(shape)


def _free_memory(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0]


@torch.no_grad()
def accuracy(network: FlatNetwork, samples: RawSamples) -> float | None:
    """Return the percentage of samples that the network classifies correctly; None without samples."""
    if not len(samples):
        return None
    right = torch.zeros((), dtype=torch.long, device=network.device)
    for indices, outputs in _outputs(network, samples):
        right += (outputs.argmax(1) == samples.targets(indices)).sum()
    return 100.0 * int(right) / len(samples)


@torch.no_grad()
def classify(network: FlatNetwork, samples: RawSamples) -> Tensor:
    """Return the network's logits for all samples, on the CPU; `accuracy` counts their largest ones."""
    return torch.cat([outputs.cpu() for _, outputs in _outputs(network, samples)])


def _outputs(network: FlatNetwork, samples: RawSamples) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the places of some samples and the network's outputs for them."""
    network.module.eval()
    at_once = AT_ONCE if network.device.type == "cpu" else AT_ONCE_ON_GPU
    for indices in torch.split(torch.arange(len(samples), device=network.device), at_once):
        yield indices, network.module(*samples.inputs(indices))
