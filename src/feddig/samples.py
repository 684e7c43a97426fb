"""What the local loop trains on: a silo's raw samples, or digests seen through the guidance producer.

Both answer the same two questions for a batch of indices, inputs and targets, which is why a recall
model is just a silo whose data set is its digest.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from feddig.data.datasets import Images
from feddig.digest import Digest

SIDE = 8
"""Images are padded with zeros to a multiple of this, so that three 2x2 pools divide them: 28 becomes 32."""

ENCODE_AT_ONCE = 1024


class Samples(Protocol):
    """Anything the local loop can train on."""

    def __len__(self) -> int: ...

    def inputs(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Give what goes into the classifier for these samples."""
        ...

    def targets(self, indices: Tensor) -> Tensor:
        """Give what should come out: class numbers or soft labels."""
        ...


def padded_shape(images: Images) -> tuple[int, int, int]:
    """Give the shape of an image as the networks see it, after padding."""
    channels, height, width = images.pixels.shape[1:]
    return channels, -(-height // SIDE) * SIDE, -(-width // SIDE) * SIDE


class RawSamples:
    """Some rows of an image set, with their encoded features r if an encoder is given.

    On a CPU pixels are read from the (perhaps memory-mapped) array batch by batch; a GPU holds them.
    """

    def __init__(
        self, images: Images, rows: np.ndarray, encoder: nn.Module | None, device: torch.device
    ) -> None:
        self._images, self._rows, self._encoder, self._device = images, rows, encoder, device
        self.labels = torch.from_numpy(images.labels[rows]).to(device)
        self._on_device = self._read(np.arange(len(rows))).to(device) if device.type != "cpu" else None

    def __len__(self) -> int:
        return len(self._rows)

    def inputs(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Give images, and features where the model sees them."""
        images = self.images(indices)
        return (images,) if self.features is None else (images, self.features[indices])

    def targets(self, indices: Tensor) -> Tensor:
        """Give class numbers."""
        return self.labels[indices]

    def images(self, indices: Tensor) -> Tensor:
        """Give images as floats in [0, 1], padded."""
        pixels = self._read(indices.numpy()) if self._on_device is None else self._on_device[indices]
        floats = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels
        height, width = floats.shape[-2:]
        below, right = -height % SIDE, -width % SIDE
        edges = (right // 2, right - right // 2, below // 2, below - below // 2)
        return nn.functional.pad(floats, edges) if any(edges) else floats

    @cached_property
    def features(self) -> Tensor | None:
        """The encoded features r of all samples, computed once because the encoder never changes."""
        if self._encoder is None:
            return None
        # in full precision, whatever the training that first asks for them runs in
        with torch.no_grad(), torch.autocast(self._device.type, enabled=False):
            indices = torch.split(torch.arange(len(self), device=self._device), ENCODE_AT_ONCE)
            return torch.cat([self._encoder(self.images(part)) for part in indices])

    def _read(self, places: np.ndarray) -> Tensor:
        pixels = np.ascontiguousarray(self._images.pixels[self._rows[places]])
        # through one dimension: a lone channel may carry any stride, and torch chooses its sums by strides
        return torch.from_numpy(pixels.reshape(-1)).view(pixels.shape)


class DigestSamples:
    """Digests as samples: guidance G = P_G(D_R) in the image's place, D_R in the feature's, D_y as target."""

    def __init__(
        self, digests: Sequence[Digest], guidance_producer: nn.Module, *, train_guidance: bool
    ) -> None:
        self._features = torch.cat([digest.features for digest in digests])
        self._labels = torch.cat([digest.labels for digest in digests])
        self._guidance_producer = guidance_producer.train(train_guidance)
        self._train_guidance = train_guidance

    def __len__(self) -> int:
        return len(self._labels)

    def inputs(self, indices: Tensor) -> tuple[Tensor, ...]:
        """Give guidance and digest features; gradients reach P_G in the joint update only."""
        features = self._features[indices]
        with torch.set_grad_enabled(self._train_guidance):
            return self._guidance_producer(features), features

    def targets(self, indices: Tensor) -> Tensor:
        """Give soft labels."""
        return self._labels[indices]
