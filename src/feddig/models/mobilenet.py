"""MobileNetV2 with BatchNorm folded into the convolutions, and the import of its weights.

Its 1280 features serve as a code (the paper's P_R) or as a classifier's features of an image (F_R). Folding leaves no
running averages, for which federated learning has no rule.

Weights are imported from files with TensorFlow's or torchvision's names. No pickle is opened, because opening one runs
a program.
"""

import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad, relu6

from feddig.errors import FileFormatError, SettingError, first_line

NETWORK = "mobilenet-v2"
CHANNELS = 3
STEM_CHANNELS = 32
FEATURES = 1280
NORMALISING_IMAGES = 64

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Of each stage: the expansion factor, the channels, the number of blocks, the stride of the first block."""

PADDINGS = ("same", "symmetric")
"""TensorFlow's padding, which at stride 2 pads an even side only at its end; and one zero on either side."""

NORMALISATIONS = {
    "centred": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""The mean and the deviation of red, green and blue; "centred" maps [0, 1] to [-1, 1]."""


class Filter(nn.Conv2d):
    """A 3x3 convolution that pads as its network does."""

    def __init__(self, before: int, after: int, stride: int, padding: str, groups: int = 1) -> None:
        # at stride 1 both paddings are one zero on either side
        self.as_needed = padding == "same" and stride > 1
        super().__init__(before, after, 3, stride, padding=0 if self.as_needed else 1, groups=groups)

    def forward(self, images: Tensor) -> Tensor:
        """Pad and convolve."""
        if self.as_needed:
            height, width = images.shape[-2:]
            images = pad(images, (*self._edges(width), *self._edges(height)))
        return super().forward(images)

    def _edges(self, side: int) -> tuple[int, int]:
        """Return how many zeros to add before and after a side, so that stride s gives ceil(side / s) outputs."""
        stride, kernel = self.stride[0], self.kernel_size[0]
        zeros = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        return zeros // 2, zeros - zeros // 2


class Bottleneck(nn.Module):
    """Expand, filter each channel, project; the result is added to the input if it has the same shape."""

    def __init__(self, before: int, after: int, widen: int, stride: int, padding: str) -> None:
        super().__init__()
        wide = before * widen
        self.expand = nn.Conv2d(before, wide, 1) if widen > 1 else None
        self.depthwise = Filter(wide, wide, stride, padding, groups=wide)
        self.project = nn.Conv2d(wide, after, 1)
        self.residual = stride == 1 and before == after

    def forward(self, images: Tensor) -> Tensor:
        """Return the block's output, which may be negative."""
        wide = images if self.expand is None else relu6(self.expand(images))
        narrow = cast(Tensor, self.project(relu6(self.depthwise(wide))))
        return images + narrow if self.residual else narrow


class MobileNetV2(nn.Module):
    """MobileNetV2-1.0 up to its 1280 features, with the padding and normalisation that its weights were trained with.

    It can enlarge images first: weights that were trained on large images recognise little in small ones, whose last
    pixels are surrounded by padding.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, padding: str = "symmetric", normalisation: str = "centred", enlarge: int = 1) -> None:
        super().__init__()
        if padding not in PADDINGS or normalisation not in NORMALISATIONS or enlarge < 1:
            raise ValueError(f"no such kind of MobileNetV2: {padding!r}, {normalisation!r}, {enlarge!r}")
        self.channels = CHANNELS
        self.padding, self.normalisation, self.enlarge = padding, normalisation, enlarge
        # not in the state dict, because the file keeps the name of the normalisation
        for name, values in zip(("mean", "deviation"), NORMALISATIONS[normalisation], strict=True):
            self.register_buffer(name, torch.tensor(values).view(-1, 1, 1), persistent=False)
        self.stem = Filter(CHANNELS, STEM_CHANNELS, 2, padding)
        blocks, before = [], STEM_CHANNELS
        for widen, after, repeats, stride in STAGES:
            for repeat in range(repeats):
                blocks.append(Bottleneck(before, after, widen, stride if repeat == 0 else 1, padding))
                before = after
        self.blocks = nn.Sequential(*blocks)
        self.top = nn.Conv2d(before, FEATURES, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Turn colour images in [0, 1] into non-negative features of 1280x1x1.

        A side of up to 32 ends as one pixel; the pixels of larger images are averaged, as in MobileNetV2.
        """
        if self.enlarge > 1:
            images = interpolate(images, scale_factor=self.enlarge, mode="bilinear", align_corners=False)
        seen = self.blocks(relu6(self.stem((images - self.mean) / self.deviation)))
        return relu6(self.top(seen)).mean((2, 3), keepdim=True)

    @property
    def facts(self) -> dict[str, str]:
        """What decides the features in addition to the weights."""
        return {
            "network": NETWORK,
            "padding": self.padding,
            "normalisation": self.normalisation,
            "enlarge": str(self.enlarge),
        }


def new_mobilenet() -> MobileNetV2:
    """Draw first weights from which the network learns without BatchNorm.

    A batch of coloured patches passes through once, and each layer's weights are normalised as BatchNorm would do.
    Residual branches start at zero, because their sum would otherwise grow from block to block.
    """
    network = MobileNetV2()
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(cast(Tensor, layer.bias))
    for block in network.blocks:
        if isinstance(block, Bottleneck) and block.residual:
            nn.init.zeros_(block.project.weight)
    hooks = [layer.register_forward_hook(_normalise) for layer in layers]
    with torch.no_grad():
        # patches instead of single pixels, because neighbouring pixels of an image are similar
        network(
            torch.rand(NORMALISING_IMAGES, CHANNELS, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3)
        )
    for hook in hooks:
        hook.remove()
    return network


def _normalise(layer: nn.Module, _: object, output: Tensor) -> Tensor:
    """Change a layer so that each channel of its output has mean 0 and deviation 1."""
    variance, mean = torch.var_mean(output, (0, 2, 3), correction=0)
    deviation = (variance + 1e-5).sqrt()
    weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
    weight.div_(deviation.view(-1, 1, 1, 1))
    bias.sub_(mean).div_(deviation)
    return (output - mean.view(-1, 1, 1)) / deviation.view(-1, 1, 1)


PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".pkl", ".tar")
EPSILON = 1e-5
"""What torchvision's BatchNorm adds to the variance."""

_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, SafetensorError, OSError, EOFError, MemoryError),
    *(ValueError, TypeError, AttributeError, KeyError, RuntimeError),
)
"""The errors that numpy and safetensors raise on damaged files."""


class Arrays:
    """The arrays of a file, each checked when it is taken."""

    def __init__(self, path: Path, arrays: dict[str, np.ndarray]) -> None:
        self.path, self._arrays = path, arrays

    def named(self, *starts: str) -> bool:
        """Tell whether an array's name starts with one of these."""
        return any(name.startswith(starts) for name in self._arrays)

    def take(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Remove and return an array, in float64, so that folding loses no precision."""
        if name not in self._arrays:
            raise FileFormatError(f"{self.path}: {name}: no such array; give a file with the whole network")
        array = self._arrays.pop(name)
        if array.dtype.kind != "f":
            raise FileFormatError(
                f"{self.path}: {name}: holds {array.dtype}, not floating-point numbers; "
                "give weights that are not quantised"
            )
        if array.shape != shape:
            raise FileFormatError(
                f"{self.path}: {name}: has shape {array.shape}, but MobileNetV2 of width 1.0 has {shape} there"
            )
        if not np.isfinite(array).all():
            raise FileFormatError(
                f"{self.path}: {name}: holds numbers that are not finite; save or copy it again"
            )
        return array.astype(np.float64)

    def check_nothing_is_left(self) -> None:
        """Refuse arrays that MobileNetV2 does not have; its classifier for ImageNet is not needed."""
        for name in sorted(self._arrays):
            if not name.startswith("classifier.") and not name.endswith(".num_batches_tracked"):
                raise FileFormatError(f"{self.path}: {name}: MobileNetV2 has no such array; give its weights")


Take = Callable[[Arrays, str, tuple[int, ...]], tuple[np.ndarray, np.ndarray]]
"""Takes a convolution's weight of this shape and its bias from a file."""


def import_mobilenet(path: Path, enlarge: int = 1) -> MobileNetV2:
    """Read MobileNetV2 from an .npz or .safetensors file; the arrays' names tell who wrote it."""
    arrays = Arrays(path, _read(path))
    # building a network draws first weights from torch's global stream, which must not move
    with torch.random.fork_rng(devices=[]):
        if arrays.named("features."):
            network = _fill(MobileNetV2("symmetric", "imagenet", enlarge), arrays, _take_torchvision)
        elif arrays.named("Conv1.", "expanded_conv_", "block_"):
            network = _fill(MobileNetV2("same", "centred", enlarge), arrays, _take_tensorflow)
        else:
            raise FileFormatError(
                f"{path}: holds no array of MobileNetV2; names must be torchvision's ('features.0.0.weight', ...) "
                "or, BatchNorm folded, TensorFlow's ('Conv1.weight', ...)"
            )
    arrays.check_nothing_is_left()
    return network


def _fill(network: MobileNetV2, arrays: Arrays, take: Take) -> MobileNetV2:
    state = {}
    for layer, convolution in network.named_modules():
        if isinstance(convolution, nn.Conv2d):
            folded = take(arrays, layer, tuple(convolution.weight.shape))
            for part, array in zip(("weight", "bias"), folded, strict=True):
                with np.errstate(over="ignore"):
                    numbers = array.astype(np.float32)
                if not np.isfinite(numbers).all():
                    raise FileFormatError(
                        f"{arrays.path}: {layer}.{part}: numbers are too large once BatchNorm is folded; "
                        "check the file"
                    )
                state[f"{layer}.{part}"] = torch.from_numpy(numbers)
    network.load_state_dict(state)
    return network


def _take_tensorflow(arrays: Arrays, layer: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    name = _tensorflow_name(layer)
    return arrays.take(f"{name}.weight", shape), arrays.take(f"{name}.bias", shape[:1])


def _take_torchvision(arrays: Arrays, layer: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    convolution, norm = _torchvision_names(layer)
    weight = arrays.take(f"{convolution}.weight", shape)
    scale, shift, mean, variance = (
        arrays.take(f"{norm}.{part}", shape[:1]) for part in ("weight", "bias", "running_mean", "running_var")
    )
    if (variance < 0).any():
        raise FileFormatError(
            f"{arrays.path}: {norm}.running_var: holds variances below zero; check the file"
        )
    factor = scale / np.sqrt(variance + EPSILON)
    return weight * factor[:, None, None, None], shift - mean * factor


def _tensorflow_name(layer: str) -> str:
    """Translate "blocks.3.project" to "block_3_project"; the first and last layers have names of their own."""
    if layer in ("stem", "top"):
        return {"stem": "Conv1", "top": "Conv_1"}[layer]
    _, block, part = layer.split(".")
    return f"expanded_conv_{part}" if block == "0" else f"block_{block}_{part}"


def _torchvision_names(layer: str) -> tuple[str, str]:
    """Translate "blocks.3.project" to the names of its convolution and of the BatchNorm after it."""
    if layer in ("stem", "top"):
        place = {"stem": "features.0", "top": "features.18"}[layer]
        return f"{place}.0", f"{place}.1"
    _, block, part = layer.split(".")
    # the first block does not expand, so its numbers start one earlier
    parts = ("depthwise", "project") if block == "0" else ("expand", "depthwise", "project")
    place = f"features.{int(block) + 1}.conv"
    number = parts.index(part)
    if part == "project":
        return f"{place}.{number}", f"{place}.{number + 1}"
    return f"{place}.{number}.0", f"{place}.{number}.1"


def _read(path: Path) -> dict[str, np.ndarray]:
    if not path.is_file():
        raise SettingError(f"{path}: no such file; give MobileNetV2's weights as .npz or .safetensors")
    if path.suffix in PICKLES:
        raise SettingError(
            f"{path}: a pickle, which is never opened because that runs a program; if you trust it, turn it into "
            "safetensors yourself: `import torch, safetensors.torch` and `safetensors.torch.save_file("
            f"torch.load({path.name!r}, weights_only=True), {path.with_suffix('.safetensors').name!r})`"
        )
    if path.suffix not in (".npz", ".safetensors"):
        raise SettingError(
            f"{path}: its name must end in .npz or .safetensors; give MobileNetV2's weights in such a file"
        )
    return _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        # opened here, because numpy does not close a file that it cannot read
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            if not isinstance(archive, np.lib.npyio.NpzFile):
                raise FileFormatError(
                    f"{path}: holds one array, not an archive of them; save it with numpy.savez"
                )
            return {name: _read_array(path, name, archive.__getitem__) for name in archive.files}
    except _DAMAGE as error:
        raise FileFormatError(f"{path}: not a whole .npz file ({first_line(error)}); copy it again") from None


def _read_safetensors(path: Path) -> dict[str, np.ndarray]:
    try:
        with safe_open(path, framework="numpy") as opened:
            return {name: _read_array(path, name, opened.get_tensor) for name in opened.keys()}  # noqa: SIM118
    except _DAMAGE as error:
        raise FileFormatError(
            f"{path}: not a whole safetensors file ({first_line(error)}); copy it again"
        ) from None


def _read_array(path: Path, name: str, read: Callable[[str], np.ndarray]) -> np.ndarray:
    try:
        return np.asarray(read(name))
    except _DAMAGE as error:
        raise FileFormatError(
            f"{path}: {name}: cannot be read ({first_line(error)}); save or copy it again"
        ) from None
