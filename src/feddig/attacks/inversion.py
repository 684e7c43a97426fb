"""Inversion: what images can be painted from a digest's features, and whom do they look like?

Two attackers know the public encoder. The paper's trains a decoder on public images to undo the encoder, and gives
it the digest. The other changes an image until its code is the digest.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from feddig.attacks.intervals import Estimate, Rate, mean_estimate
from feddig.attacks.similarity import psnr, ssim
from feddig.seeds import derive, torch_stream

STEPS, BATCH, LEARNING_RATE = 1000, 64, 2e-3
"""Of the decoder's training."""
CHANGES, CHANGE_RATE = 300, 0.1
"""Of the optimised image: how often and how fast it changes."""
SMOOTHNESS = 0.3
"""How much an optimised image pays for differences between neighbours, against those in its code."""
WIDTH = 64
LEAST_DIFFERENCE = 0.05
"""Painted images that differ less than this, as a share of how much true ones do, are all the same image."""


class PseudoInverse(nn.Module):
    """A decoder that undoes an encoder: convolutions where the code is, then pixels for each place of the code."""

    unit: Tensor
    """What codes are divided by, so that numbers of any size can be learnt from."""

    def __init__(self, feature_shape: tuple[int, ...], image_shape: tuple[int, int, int]) -> None:
        super().__init__()
        # a code without places is a single place
        self.code_shape = (
            feature_shape if len(feature_shape) == 3 else (torch.Size(feature_shape).numel(), 1, 1)
        )
        factor, uneven = divmod(image_shape[1], self.code_shape[1])
        if uneven or image_shape[2] != self.code_shape[2] * factor:
            raise ValueError(f"images {image_shape} are no whole multiple of codes {self.code_shape}")
        self.layers = nn.Sequential(
            nn.Conv2d(self.code_shape[0], WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(WIDTH, image_shape[0] * factor**2, 3, padding=1),
            nn.PixelShuffle(factor),
            nn.Sigmoid(),
        )
        self.register_buffer("unit", torch.ones(()))

    @property
    def bias(self) -> nn.Parameter:
        """Of the last convolution: how bright pixels are where a code says nothing."""
        last = cast(nn.Conv2d, self.layers[4])
        return cast(nn.Parameter, last.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Paint images in [0, 1] from features."""
        return cast(Tensor, self.layers(features.view(-1, *self.code_shape) / self.unit))


@dataclass(frozen=True)
class Inversion:
    """How alike painted images and members are, against strangers of the members' classes.

    Each digest's image is compared with all of its members, and the likest counts; the same for strangers, whose
    mean is the `chance` of the estimates.
    """

    psnr: Estimate
    ssim: Estimate
    closer: Rate
    """Digests whose image is more like a member, by SSIM, than like any of as many strangers; chance is a half."""
    images: Tensor
    """What was painted, for a picture."""
    likest: Tensor
    """[digests], which member each image is most like."""


def train_pseudo_inverse(
    encoder: nn.Module, public_images: Tensor, *, seed: int = 0, steps: int = STEPS
) -> PseudoInverse:
    """Train a decoder on public images [images, channels, height, width] in [0, 1]."""
    with torch.no_grad():
        codes = torch.cat([encoder(batch) for batch in torch.split(public_images, 1024)])
    decoder = _train(codes, public_images, seed, steps)
    if not _tells_apart(decoder, codes, public_images):
        # where most pixels are black the first steps can kill every channel: begin as dark as the images are
        decoder = _train(codes, public_images, seed, steps, brightness=float(public_images.mean()))
    return decoder


def _train(
    codes: Tensor, images: Tensor, seed: int, steps: int, brightness: float | None = None
) -> PseudoInverse:
    draw = torch_stream(seed, "pseudo-inverse")
    channels, height, width = images.shape[1:]
    # first weights come from torch's global stream, which is others' too
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "pseudo-inverse", "first weights"))
        decoder = PseudoInverse(tuple(codes.shape[1:]), (channels, height, width))
    decoder.unit.copy_(codes.std().clamp(min=1e-6))
    if brightness is not None:
        nn.init.constant_(decoder.bias, float(torch.logit(torch.tensor(brightness), eps=1e-3)))
    optimiser = torch.optim.Adam(decoder.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        rows = torch.randint(len(codes), (BATCH,), generator=draw)
        loss = mse_loss(decoder(codes[rows]), images[rows])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return decoder.eval().requires_grad_(False)


def _tells_apart(decoder: PseudoInverse, codes: Tensor, images: Tensor) -> bool:
    """Check that painted images differ from each other at all, where the true ones do."""
    some = slice(0, BATCH)
    return bool(paint(decoder, codes[some]).std(0).mean() >= LEAST_DIFFERENCE * images[some].std(0).mean())


@torch.no_grad()
def paint(decoder: nn.Module, features: Tensor) -> Tensor:
    """Apply the pseudo-inverse to digest features D_R."""
    return torch.cat([decoder(batch) for batch in torch.split(features, 1024)])


def optimise_images(
    encoder: nn.Module, features: Tensor, image_shape: tuple[int, int, int], *, changes: int = CHANGES
) -> Tensor:
    """Change images, grey at first, until their codes are the digest features D_R and neighbours differ little."""
    brightness = torch.zeros(len(features), *image_shape, requires_grad=True)
    optimiser = torch.optim.Adam([brightness], lr=CHANGE_RATE)
    unit = features.square().mean().clamp(min=1e-12)
    for _ in range(changes):
        images = torch.sigmoid(brightness)
        differences = (encoder(images) - features).square().flatten(1).mean(1) / unit
        loss = (differences + SMOOTHNESS * _unevenness(images)).sum()
        (brightness.grad,) = torch.autograd.grad(loss, [brightness])
        optimiser.step()
    return torch.sigmoid(brightness.detach())


def evaluate_inversion(images: Tensor, members: Tensor, strangers: Tensor) -> Inversion:
    """Compare each digest's image with its members [digests, SpD, ...] and with as many strangers of their classes."""
    likeness = ssim(images[:, None], members)
    baseline = ssim(images[:, None], strangers).amax(1)
    decibels = psnr(images[:, None], members).amax(1)
    closer = int((likeness.amax(1) > baseline).sum())
    return Inversion(
        psnr=mean_estimate(decibels, float(psnr(images[:, None], strangers).amax(1).mean())),
        ssim=mean_estimate(likeness.amax(1), float(baseline.mean())),
        closer=Rate(closer, len(images), 0.5),
        images=images,
        likest=likeness.argmax(1),
    )


def _unevenness(images: Tensor) -> Tensor:
    """Sum up how much neighbouring pixels of each image differ, as a mean over its pixels."""
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(1)
    across = (images[..., 1:] - images[..., :-1]).abs().flatten(1).mean(1)
    return down + across
