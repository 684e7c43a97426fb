"""Inversion: recover images from a digest's features, and compare them with the members.

Two attackers know the public encoder. The paper's trains a decoder on public images that inverts the encoder, and
applies it to the digest. The other changes an image until its code is the digest. Both may add a denoiser, which is
trained on imitated digests of public images: it turns a recovered image into the mean of the mixed images, the best
possible answer without unmixing.
"""

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, mse_loss

from feddig.attacks.candidates import Noise
from feddig.attacks.statistics import Estimate, SuccessRate, mean_estimate
from feddig.seeds import derive, torch_stream

STEPS, BATCH, LEARNING_RATE, WIDTH = 1000, 64, 2e-3, 64
"""Of the decoder and its training."""
AT_ONCE = 1024
MIN_DIFFERENCE = 0.05
"""Decoded images that differ less than this, as a share of how much true images do, count as all the same."""
CHANGES, CHANGE_RATE = 300, 0.1
"""Optimisation steps of an image, and their size."""
SMOOTHNESS = 0.3
"""Weight of the differences between neighbouring pixels, relative to those between codes."""
DENOISER_STEPS, DENOISER_BATCH, DENOISER_LEARNING_RATE, DENOISER_WIDTH = 1000, 32, 2e-3, 32
IMITATED = 2000
"""Digests that the attacker makes of public images to train the denoiser."""
MIXED = 400_000
"""Images that these digests mix, at most."""
WINDOW, SPREAD = 11, 1.5
"""Side and standard deviation, in pixels, of SSIM's window (Wang et al., 2004)."""
STEADY_MEAN, STEADY_VARIANCE = 0.01**2, 0.03**2
"""Constants that keep SSIM's ratios finite in flat areas; the values of its authors."""


class Decoder(nn.Module):
    """Inverts an encoder: convolutions at the code's size, then pixels for each place of the code."""

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
        """Of the last convolution: the brightness of pixels where a code is zero."""
        last = cast(nn.Conv2d, self.layers[4])
        return cast(nn.Parameter, last.bias)

    def forward(self, features: Tensor) -> Tensor:
        """Decode features into images in [0, 1]."""
        return cast(Tensor, self.layers(features.view(-1, *self.code_shape) / self.unit))


def train_decoder(encoder: nn.Module, public_images: Tensor, *, seed: int = 0, steps: int = STEPS) -> Decoder:
    """Train a decoder on public images [images, channels, height, width] in [0, 1]."""
    codes = apply_in_batches(encoder, public_images)
    decoder = _train_decoder(codes, public_images, seed, steps)
    decoded = apply_in_batches(decoder, codes[:BATCH])
    if not decoded.std(0).mean() >= MIN_DIFFERENCE * public_images[:BATCH].std(0).mean():
        # where most pixels are black, the first steps can kill every channel: start as dark as the images are
        decoder = _train_decoder(codes, public_images, seed, steps, brightness=float(public_images.mean()))
    return decoder


def _train_decoder(
    codes: Tensor, images: Tensor, seed: int, steps: int, brightness: float | None = None
) -> Decoder:
    channels, height, width = images.shape[1:]
    # initial weights come from torch's global stream, which must not change
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "pseudo-inverse", "first weights"))
        decoder = Decoder(tuple(codes.shape[1:]), (channels, height, width))
    decoder.unit.copy_(codes.std().clamp(min=1e-6))
    if brightness is not None:
        nn.init.constant_(decoder.bias, float(torch.logit(torch.tensor(brightness), eps=1e-3)))
    _fit(decoder, codes, images, LEARNING_RATE, BATCH, steps, torch_stream(seed, "pseudo-inverse"))
    return decoder.eval().requires_grad_(False)


def _fit(
    network: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    learning_rate: float,
    batch: int,
    steps: int,
    draw: torch.Generator,
) -> None:
    """Minimise the squared error on random batches, with a cosine schedule."""
    optimiser = torch.optim.Adam(network.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        rows = torch.randint(len(inputs), (batch,), generator=draw)
        loss = mse_loss(network(inputs[rows]), targets[rows])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()


@torch.no_grad()
def apply_in_batches(network: nn.Module, inputs: Tensor) -> Tensor:
    """Apply a decoder to digest features D_R, or a denoiser to recovered images."""
    return torch.cat([network(batch) for batch in torch.split(inputs, AT_ONCE)])


def optimise_images(
    encoder: nn.Module, features: Tensor, image_shape: tuple[int, int, int], *, changes: int = CHANGES
) -> Tensor:
    """Change grey images until their codes match the digest features D_R and neighbouring pixels differ little."""
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


def _unevenness(images: Tensor) -> Tensor:
    """Return the mean absolute difference between neighbouring pixels of each image."""
    down = (images[..., 1:, :] - images[..., :-1, :]).abs().flatten(1).mean(1)
    across = (images[..., 1:] - images[..., :-1]).abs().flatten(1).mean(1)
    return down + across


class Denoiser(nn.Module):
    """Convolutions at half size, which are cheap and have a large receptive field, added to the input."""

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

    def forward(self, recovered: Tensor) -> Tensor:
        """Denoise images [batch, channels, height, width] of even height and width."""
        return cast(Tensor, (recovered + self.layers(recovered)).clamp(0, 1))


def imitate_digests(
    codes: Tensor,
    images: Tensor,
    samples_per_digest: int,
    noise: Noise,
    *,
    seed: int = 0,
    count: int = IMITATED,
) -> tuple[Tensor, Tensor]:
    """Mix and noise codes of public images as a silo does; return the features and the mean of the mixed images."""
    draw = torch_stream(seed, "imitated digests")
    count = min(count, max(DENOISER_BATCH, MIXED // samples_per_digest))
    features, means = [], []
    # a few at a time, so that only the means of all images must fit into memory
    for rows in torch.split(torch.randint(len(codes), (count, samples_per_digest), generator=draw), 16):
        features.append(codes[rows].mean(1))
        means.append(images[rows].mean(1))
    mixed = torch.cat(features)
    return mixed + noise.draw(mixed.shape, draw), torch.cat(means)


def train_denoiser(
    recovered: Tensor, clean: Tensor, *, seed: int = 0, steps: int = DENOISER_STEPS
) -> Denoiser:
    """Train on images recovered from imitated digests and the images that should come out."""
    # initial weights come from torch's global stream, which must not change
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "denoiser", "first weights"))
        denoiser = Denoiser(recovered.shape[1])
    _fit(
        denoiser,
        recovered,
        clean,
        DENOISER_LEARNING_RATE,
        DENOISER_BATCH,
        steps,
        torch_stream(seed, "denoiser"),
    )
    return denoiser.eval().requires_grad_(False)


@dataclass(frozen=True)
class Inversion:
    """How similar recovered images and members are, compared with non-members of the same classes.

    Each digest's image is compared with all of its members, and the most similar one counts; the same for
    non-members, whose mean is the `chance` of the estimates.
    """

    psnr: Estimate
    ssim: Estimate
    closer: SuccessRate
    """Digests whose image is closer, by SSIM, to a member than to any of as many non-members; chance is a half."""


def evaluate_inversion(images: Tensor, members: Tensor, nonmembers: Tensor) -> Inversion:
    """Compare each digest's image with its members [digests, SpD, ...] and as many non-members of their classes."""
    similarity, baseline = (ssim(images[:, None], each).amax(1) for each in (members, nonmembers))
    decibels, other_decibels = (psnr(images[:, None], each).amax(1) for each in (members, nonmembers))
    return Inversion(
        psnr=mean_estimate(decibels, float(other_decibels.mean())),
        ssim=mean_estimate(similarity, float(baseline.mean())),
        closer=SuccessRate(int((similarity > baseline).sum()), len(images), 0.5),
    )


def psnr(images: Tensor, others: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratio in decibels of images [..., channels, height, width] in [0, 1]."""
    return -10 * (images - others).square().mean(dim=(-3, -2, -1)).log10()


def ssim(images: Tensor, others: Tensor) -> Tensor:
    """Return the structural similarity of images [..., channels, height, width] in [0, 1]: 1 for the same image."""
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
