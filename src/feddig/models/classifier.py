"""The classifier M: extractors F_R (image or guidance) and F_D (feature or digest), and a head C."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from feddig.errors import SettingError, first_line
from feddig.gpu.fused import ConvPool, in_parallel
from feddig.models.custom import import_network
from feddig.models.encoder import load_encoder_file
from feddig.models.mobilenet import CHANNELS, NETWORK, MobileNetV2, new_mobilenet


class Classifier(nn.Module):
    """M(R, r): both extractors' outputs concatenated, then the head; without F_D it is the plain M(R)."""

    def __init__(self, raw: nn.Module, digest: nn.Module | None, head: nn.Module) -> None:
        super().__init__()
        self.raw = raw
        self.digest = digest
        self.head = head

    def forward(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        """Return the logits of a batch of images (or guidance) and features (or digests)."""
        if self.digest is None:
            return cast(Tensor, self.head(self.raw(images).flatten(1)))
        if features is None:
            raise ValueError("a classifier with F_D needs features next to the images")
        with in_parallel(features) as wait:
            small = self.digest(features).flatten(1)
        large = self.raw(images).flatten(1)
        wait()
        return cast(Tensor, self.head(torch.cat([large, small], dim=1)))


def convolutions(*channels: int) -> nn.Sequential:
    """Stack 3x3 convolutions, each followed by a 2x2 max-pool and ReLU."""
    return nn.Sequential(*(ConvPool(before, after) for before, after in itertools.pairwise(channels)))


def size_matched_raw(channels: int) -> nn.Module:
    """F_R of the paper's size: 32x32 to 2048 numbers."""
    return convolutions(channels, 64, 64, 128)


def size_matched_digest(feature_shape: tuple[int, ...]) -> nn.Module:
    """F_D of the paper's size: 8x8x4 to 128 numbers."""
    if len(feature_shape) == 3 and min(feature_shape[1:]) >= 8:
        return convolutions(feature_shape[0], 32, 128, 128)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(feature_shape), 128), nn.ReLU())


def small_raw(channels: int) -> nn.Module:
    """F_R for quick runs on a CPU: the first layer has stride 2, so most work is at 16x16 and below."""
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, stride=2, padding=1), nn.ReLU(), nn.MaxPool2d(2), *convolutions(16, 32)
    )


def small_digest(feature_shape: tuple[int, ...]) -> nn.Module:
    """F_D for quick runs on a CPU."""
    if len(feature_shape) == 3 and min(feature_shape[1:]) >= 4:
        return convolutions(feature_shape[0], 16, 32)
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(feature_shape), 64), nn.ReLU())


def mobilenet_raw(channels: int) -> nn.Module:
    """F_R as MobileNetV2 with new weights: a colour image to 1280 numbers."""
    if channels != CHANNELS:
        raise SettingError(
            f"model.classifier: {NETWORK} takes colour images, but these have {channels} channel(s); "
            "choose size-matched or small"
        )
    return new_mobilenet()


def imported_raw(path: Path, channels: int) -> nn.Module:
    """F_R as MobileNetV2 that starts from an imported file's weights."""
    network = load_encoder_file(path, channels, "model.classifier")
    if not isinstance(network, MobileNetV2):
        raise SettingError(
            f"model.classifier: {path} does not hold {NETWORK}; give a file that `feddig encoder import` wrote"
        )
    return network


SIZES: dict[str, tuple[Callable[[int], nn.Module], Callable[[tuple[int, ...]], nn.Module], int]] = {
    "size-matched": (size_matched_raw, size_matched_digest, 512),
    "small": (small_raw, small_digest, 64),
    NETWORK: (mobilenet_raw, size_matched_digest, 512),
}
"""By name: the functions that build F_R and F_D, and the width of the head's hidden layer."""


def build_classifier(
    name: str,
    image_shape: tuple[int, int, int],
    classes: int,
    feature_shape: tuple[int, ...] | None,
    raw: nn.Module | None = None,
) -> nn.Module:
    """Build the classifier that a setting names; with a feature shape it has F_D, and `raw` replaces its F_R."""
    if name.endswith(".safetensors"):
        name, raw = NETWORK, imported_raw(Path(name), image_shape[0])
    if name not in SIZES:
        known = f"{', '.join(SIZES)} or a .safetensors file"
        return import_network(name, "model.classifier", known, image_shape, classes, feature_shape)
    build_raw, build_digest, hidden = SIZES[name]
    raw = raw if raw is not None else build_raw(image_shape[0])
    digest = build_digest(feature_shape) if feature_shape is not None else None
    width = _width(raw, image_shape, "F_R") + (_width(digest, feature_shape or (), "F_D") if digest else 0)
    head = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    return Classifier(raw, digest, head)


def _width(extractor: nn.Module, shape: tuple[int, ...], symbol: str) -> int:
    """Run an extractor on zeros of this shape and return the number of its outputs."""
    try:
        with torch.no_grad():
            return int(extractor(torch.zeros(2, *shape)).flatten(1).shape[1])
    except Exception as error:  # F_R may be a user's network
        raise SettingError(
            f"model.classifier: {symbol} does not take inputs of shape {shape}: {first_line(error)}"
        ) from error
