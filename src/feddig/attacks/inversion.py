"""How alike two images look: PSNR and SSIM.

A denoiser: what painted images look like after a network that has learnt how mixing and noise spoil them.

The attacker imitates the silo: public images are encoded, mixed and noised as the digest says of itself, and painted
by the same attack. The network learns to turn such paintings into the mean of the images that were mixed, which is the
best that can be hoped for without telling them apart.

Inversion: what images can be painted from a digest's features, and whom do they look like?

Two attackers know the public encoder. The paper's trains a decoder on public images to undo the encoder, and gives
it the digest. The other changes an image until its code is the digest.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, mse_loss

from feddig.attacks.candidates import Noise
from feddig.attacks.statistics import Estimate, Rate, mean_estimate
from feddig.seeds import derive, torch_stream

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


DENOISER_STEPS, DENOISER_BATCH, DENOISER_LEARNING_RATE = 1000, 32, 2e-3
IMITATED = 2000
"""Digests that the attacker makes of public images to learn from."""
MIXED = 400_000
"""Images that it mixes for that, at most."""
AT_ONCE = 16
DENOISER_WIDTH = 32


class Denoiser(nn.Module):
    """Convolutions at half size, where they are cheap and see far; what they give is added to the painting."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.PixelUnshuffle(2),
            nn.Conv2d(4 * channels, DENOISER_WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(DENOISER_WIDTH, DENOISER_WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(DENOISER_WIDTH, DENOISER_WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(DENOISER_WIDTH, 4 * channels, 3, padding=1),
            nn.PixelShuffle(2),
        )

    def forward(self, painted: Tensor) -> Tensor:
        """Clean paintings [batch, channels, height, width], even in height and width."""
        return cast(Tensor, (painted + self.layers(painted)).clamp(0, 1))


def imitate_digests(
    codes: Tensor,
    images: Tensor,
    samples_per_digest: int,
    noise: Noise,
    *,
    seed: int = 0,
    count: int = IMITATED,
) -> tuple[Tensor, Tensor]:
    """Mix and noise codes of public images as a silo would; give such features and the mean images behind them."""
    draw = torch_stream(seed, "imitated digests")
    count = min(count, max(DENOISER_BATCH, MIXED // samples_per_digest))
    features, means = [], []
    # a few at a time: of many samples a digest only the mean need be in memory
    for rows in torch.split(torch.randint(len(codes), (count, samples_per_digest), generator=draw), AT_ONCE):
        features.append(codes[rows].mean(1))
        means.append(images[rows].mean(1))
    mixed = torch.cat(features)
    return mixed + noise.draw(mixed.shape, draw), torch.cat(means)


def train_denoiser(painted: Tensor, clean: Tensor, *, seed: int = 0, steps: int = DENOISER_STEPS) -> Denoiser:
    """Train on paintings of imitated digests and the images that should come out."""
    draw = torch_stream(seed, "denoiser")
    # first weights come from torch's global stream, which is others' too
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "denoiser", "first weights"))
        denoiser = Denoiser(painted.shape[1])
    optimiser = torch.optim.Adam(denoiser.parameters(), lr=DENOISER_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        rows = torch.randint(len(painted), (DENOISER_BATCH,), generator=draw)
        loss = mse_loss(denoiser(painted[rows]), clean[rows])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return denoiser.eval().requires_grad_(False)


@torch.no_grad()
def denoise(denoiser: Denoiser, painted: Tensor) -> Tensor:
    """Clean paintings of real digests."""
    return torch.cat([denoiser(batch) for batch in torch.split(painted, 1024)])


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
    )


def _unevenness(images: Tensor) -> Tensor:
    """Sum up how much neighbouring pixels of each image differ, as a mean over its pixels."""
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(1)
    across = (images[..., 1:] - images[..., :-1]).abs().flatten(1).mean(1)
    return down + across
