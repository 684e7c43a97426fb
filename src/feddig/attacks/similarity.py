"""How alike two images look: PSNR and SSIM."""

import torch
from torch import Tensor
from torch.nn.functional import conv2d

WINDOW, SPREAD = 11, 1.5
"""Side and standard deviation, in pixels, of the window through which SSIM looks (Wang et al., 2004)."""
STEADY_MEAN, STEADY_VARIANCE = 0.01**2, 0.03**2
"""What keeps SSIM's ratios finite on flat ground; the values of its authors."""


def psnr(images: Tensor, others: Tensor) -> Tensor:
    """Give the peak signal-to-noise ratio in decibels of images [..., channels, height, width] in [0, 1]."""
    return -10 * (images - others).square().mean(dim=(-3, -2, -1)).log10()


def ssim(images: Tensor, others: Tensor) -> Tensor:
    """Give the structural similarity of images [..., channels, height, width] in [0, 1]: 1 for the same image."""
    shape = (images + others).shape
    first, second = (each.expand(shape).reshape(-1, 1, *shape[-2:]) for each in (images, others))
    means = _blur(first), _blur(second)
    variances = _blur(first * first) - means[0] ** 2, _blur(second * second) - means[1] ** 2
    shared = _blur(first * second) - means[0] * means[1]
    brightness = (2 * means[0] * means[1] + STEADY_MEAN) / (means[0] ** 2 + means[1] ** 2 + STEADY_MEAN)
    structure = (2 * shared + STEADY_VARIANCE) / (variances[0] + variances[1] + STEADY_VARIANCE)
    return (brightness * structure).flatten(1).mean(1).view(shape[:-2]).mean(-1)


def _blur(images: Tensor) -> Tensor:
    """Average over the window, only where it lies within the image."""
    side = min(WINDOW, *images.shape[-2:])
    places = torch.arange(side, dtype=images.dtype) - (side - 1) / 2
    line = torch.exp(-(places**2) / (2 * SPREAD**2))
    line /= line.sum()
    return conv2d(conv2d(images, line.view(1, 1, -1, 1)), line.view(1, 1, 1, -1))
