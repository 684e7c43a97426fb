"""MobileNetV2 with BatchNorm folded away: plain convolutions with a bias, and ReLU6.

Its 1280 features serve as a code (the paper's P_R) or as what a classifier sees of an image (F_R). Folding
leaves no running averages behind, and no federated rule says how to average those.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad, relu6

NETWORK = "mobilenet-v2"
CHANNELS = 3
STEM_CHANNELS = 32
FEATURES = 1280
LEVELLING_IMAGES = 64

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Of each stage: how many times its blocks widen, its channels, its blocks, the stride of the first of them."""

PADDINGS = ("same", "symmetric")
"""TensorFlow's, which at stride 2 pads an even side only after its end; and one zero on either side."""

NORMALISATIONS = {
    "centred": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
"""What is taken from red, green and blue in [0, 1], and what the rest is divided by: "centred" is [-1, 1]."""


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
        """Find how many zeros stand before and after a side, so that stride s leaves ceil(side / s) places."""
        stride, kernel = self.stride[0], self.kernel_size[0]
        zeros = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        return zeros // 2, zeros - zeros // 2


class Bottleneck(nn.Module):
    """Widen, filter each channel alone, narrow; the outcome is added to the input where it has its shape."""

    def __init__(self, before: int, after: int, widen: int, stride: int, padding: str) -> None:
        super().__init__()
        wide = before * widen
        self.expand = nn.Conv2d(before, wide, 1) if widen > 1 else None
        self.depthwise = Filter(wide, wide, stride, padding, groups=wide)
        self.project = nn.Conv2d(wide, after, 1)
        self.residual = stride == 1 and before == after

    def forward(self, images: Tensor) -> Tensor:
        """Give the block's output; it may be below zero."""
        wide = images if self.expand is None else relu6(self.expand(images))
        narrow = cast(Tensor, self.project(relu6(self.depthwise(wide))))
        return images + narrow if self.residual else narrow


class MobileNetV2(nn.Module):
    """MobileNetV2-1.0 up to its 1280 features; the padding and normalisation that its weights want are part of it.

    It may enlarge images first, this many times: weights that were trained on large images see little in small
    ones, whose last places have nothing but padding around them.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, padding: str = "symmetric", normalisation: str = "centred", enlarge: int = 1) -> None:
        super().__init__()
        if padding not in PADDINGS or normalisation not in NORMALISATIONS or enlarge < 1:
            raise ValueError(f"no such kind of MobileNetV2: {padding!r}, {normalisation!r}, {enlarge!r}")
        self.channels = CHANNELS
        self.padding, self.normalisation, self.enlarge = padding, normalisation, enlarge
        # not in the state dict, where weights are: the name of the normalisation is kept with them
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

        A side of up to 32 ends as one place; the places of larger images are averaged, as MobileNetV2 does.
        """
        if self.enlarge > 1:
            images = interpolate(images, scale_factor=self.enlarge, mode="bilinear", align_corners=False)
        seen = self.blocks(relu6(self.stem((images - self.mean) / self.deviation)))
        return relu6(self.top(seen)).mean((2, 3), keepdim=True)

    @property
    def facts(self) -> dict[str, str]:
        """What decides the features beside the weights."""
        return {
            "network": NETWORK,
            "padding": self.padding,
            "normalisation": self.normalisation,
            "enlarge": str(self.enlarge),
        }


def fresh_mobilenet() -> MobileNetV2:
    """Draw first weights from which it learns without BatchNorm.

    A batch of coloured patches passes through once, and each layer takes over what BatchNorm would have done
    to it. Branches beside an identity start at zero: their sum would otherwise grow from block to block.
    """
    network = MobileNetV2()
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    for layer in layers:
        nn.init.kaiming_normal_(layer.weight)
        nn.init.zeros_(cast(Tensor, layer.bias))
    for block in network.blocks:
        if isinstance(block, Bottleneck) and block.residual:
            nn.init.zeros_(block.project.weight)
    hooks = [layer.register_forward_hook(_level) for layer in layers]
    with torch.no_grad():
        # patches and not single pixels, because neighbours in an image are alike
        network(torch.rand(LEVELLING_IMAGES, CHANNELS, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3))
    for hook in hooks:
        hook.remove()
    return network


def _level(layer: nn.Module, _: object, output: Tensor) -> Tensor:
    """Give each channel of a layer's output mean 0 and deviation 1, by changing the layer itself."""
    variance, mean = torch.var_mean(output, (0, 2, 3), correction=0)
    deviation = (variance + 1e-5).sqrt()
    weight, bias = layer.get_parameter("weight"), layer.get_parameter("bias")
    weight.div_(deviation.view(-1, 1, 1, 1))
    bias.sub_(mean).div_(deviation)
    return (output - mean.view(-1, 1, 1)) / deviation.view(-1, 1, 1)
