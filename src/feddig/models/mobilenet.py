"""MobileNetV2 with BatchNorm folded into the convolutions.

Its 1280 features serve as a code (the paper's P_R) or as a classifier's features of an image (F_R). Folding leaves no
running averages, for which federated learning has no rule.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad, relu6

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
