"""The networks that are trained: the classifier M and the guidance producer P_G, and a check that they fit together.

M has extractors F_R (image or guidance) and F_D (feature or digest), and a head C. P_G is the moderator's private
network that turns a digest into an image-like input.
"""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from feddig.errors import SettingError, first_line
from feddig.gpu.fused import ConvPool, in_parallel, transposed_convolutions
from feddig.models.encoder import import_network, load_encoder_file
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


class Deconvolution(nn.Module):
    """Two transposed convolutions of stride 2, so that an 8x8 digest becomes 32x32 guidance G in [0, 1]."""

    def __init__(self, feature_channels: int, image_channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(feature_channels, 16, 2, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(16, image_channels, 2, stride=2),
            nn.Sigmoid(),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Turn digest features D_R into guidance G."""
        return transposed_convolutions(features, self.layers)


class PointDeconvolution(nn.Module):
    """Three transposed convolutions whose stride is their size: a 1x1 digest becomes 4x4, 16x16 and 32x32 guidance G.

    The layers between hold 64x4x4 and 16x16x16 numbers: about as many as a code of 1280, and more than a colour image
    of 3x32x32, so neither is a bottleneck. Nearly all weights are in the first layer.
    """

    def __init__(self, feature_channels: int, image_channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(feature_channels, 64, 4, stride=4),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 16, 4, stride=4),
            nn.ReLU(),
            nn.ConvTranspose2d(16, image_channels, 2, stride=2),
            nn.Sigmoid(),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Turn digest features D_R into guidance G."""
        return cast(Tensor, self.layers(features))


def build_guidance(name: str, feature_shape: tuple[int, ...], image_shape: tuple[int, int, int]) -> nn.Module:
    """Build the guidance producer that a setting names."""
    if name == "deconvolution":
        if len(feature_shape) != 3:
            raise SettingError(
                f"model.guidance: 'deconvolution' needs a code of three dimensions, the encoder gives {feature_shape}; "
                "give your own as package.module:function"
            )
        if feature_shape[1:] == (1, 1) and image_shape[1:] == (32, 32):
            return PointDeconvolution(feature_shape[0], image_shape[0])
        if image_shape[1:] != (4 * feature_shape[1], 4 * feature_shape[2]):
            raise SettingError(
                f"model.guidance: 'deconvolution' makes 32x32 images from a code of 1x1, and images of four times "
                f"the code's sides, but not {image_shape} from {feature_shape}; give your own as "
                "package.module:function"
            )
        return Deconvolution(feature_shape[0], image_shape[0])
    return import_network(name, "model.guidance", "deconvolution", feature_shape, image_shape)


def check_networks(
    classifier: nn.Module,
    guidance_producer: nn.Module | None,
    *,
    image_shape: tuple[int, int, int],
    feature_shape: tuple[int, ...] | None,
    classes: int,
) -> None:
    """Check the shapes that pass between P_G and M, and that training changes nothing but parameters."""
    inputs = [torch.zeros(2, *image_shape)]
    if feature_shape is not None:
        inputs.append(torch.zeros(2, *feature_shape))
    if guidance_producer is not None and feature_shape is not None:
        guidance = _try("model.guidance", guidance_producer, inputs[1])
        if guidance.shape != inputs[0].shape:
            raise SettingError(
                f"model.guidance: gives {tuple(guidance.shape[1:])} for a code of {feature_shape}, "
                f"but images are {image_shape}; change its last layer"
            )
    logits = _try("model.classifier", classifier, *inputs)
    if logits.shape != (2, classes):
        raise SettingError(
            f"model.classifier: gives {tuple(logits.shape[1:])} for an image, but there are {classes} classes; "
            f"make its last layer {classes} wide"
        )


def _try(key: str, network: nn.Module, *inputs: Tensor) -> Tensor:
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    network.train()
    output = _call(key, lambda: network(*inputs))
    for name, buffer in network.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise SettingError(
                f"{key}: its buffer {name!r} changes in training, and no federated rule says how to average it; "
                "use GroupNorm, or BatchNorm with track_running_stats=False"
            )
    return output


def _call(key: str, forward: Callable[[], Tensor]) -> Tensor:
    try:
        with torch.no_grad():
            output = forward()
    except Exception as error:  # a user's network may fail in any way
        raise SettingError(f"{key}: fails on a batch of two zero samples: {first_line(error)}") from error
    if not isinstance(output, Tensor) or not output.is_floating_point():
        raise SettingError(f"{key}: gives {type(output).__name__}, not a tensor of floats")
    return output
