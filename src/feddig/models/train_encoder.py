"""Train the encoders that come with FedDig: an autoencoder learns from generated images.

No photograph and no silo's data is used, so the encoder is public by construction. The first part of this file trains
the encoder, the second builds the even encoder over it, the third draws the images.
docs/measurements/encoder.md compares this training with others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feddig.errors import DivergenceError
from feddig.models.encoder import LEVEL_SIDE, ConvEncoder, EvenEncoder
from feddig.seeds import torch_stream

DrawImages = Callable[[int, int, torch.Generator], Tensor]
"""Draws images [count, channels, size, size] in [0, 1] from a count, a number of channels and a random stream."""

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Computes the loss from the images, their codes and the decoder's reconstructions."""

STEPS = 600
BATCH = 64
PEAK_LEARNING_RATE = 3e-3
ATTEMPTS = 5
# after the sigmoid: a brightness of 0.18
DARK = -1.5
LEAST_ACTIVE = 0.02
LEAST_SPREAD = 0.01
# acts like a learning rate for F_D: docs/measurements/encoder.md shows the results of other values
LARGEST_VALUE = 64.0

EVEN_IMAGES = 8000
EVEN_BATCH = 500
LEVELLING = 0.75
"""0 leaves the code as it is, 1 makes it vary equally in all directions; 1 would amplify mere noise."""
LEAST_VARIANCE = 0.01
"""As a share of the average; directions of a smaller variance are amplified no further."""

MOST_SHAPES = 3
OUTLINE_WAVES = 4
STROKE_DOTS = 20


def generate_images(count: int, channels: int, generator: torch.Generator, size: int = 32) -> Tensor:
    """Draw images [count, channels, size, size] in [0, 1]: one to three filled shapes on a background."""
    images = _backgrounds(count, channels, generator, size)
    for number in range(MOST_SHAPES):
        # the first shape is always drawn, each further one less often
        drawn = torch.rand(count, 1, 1, 1, generator=generator) < 0.6**number
        cover = _shapes(count, generator, size) * drawn
        images = torch.lerp(images, _fillings(count, channels, generator, size), cover)
    return _blacken_borders(images, generator).clamp(0, 1)


def reconstruction_error(images: Tensor, codes: Tensor, reconstructed: Tensor) -> Tensor:
    """Return the mean squared difference between the images and their reconstructions."""
    return nn.functional.mse_loss(reconstructed, images)


@dataclass(frozen=True)
class EncoderTraining:
    """What the autoencoder learns from and what it minimises; the defaults made the shipped encoders."""

    name: str = "generated images, noisy code"
    draw_images: DrawImages = generate_images
    noise: float = 0.01
    """Scale of the Laplace noise on the code, as a share of its largest value: 1/100 in the paper's runs."""
    loss: Loss = reconstruction_error


SHIPPED_TRAINING = EncoderTraining()


def make_encoder(
    channels: int = 1,
    seed: int = 0,
    steps: int = STEPS,
    batch: int = BATCH,
    report: Callable[[int, float], None] | None = None,
    training: EncoderTraining = SHIPPED_TRAINING,
) -> ConvEncoder:
    """Train an encoder; the same arguments give the same weights. `report` is called with each step and its loss."""
    threads = torch.get_num_threads()
    # sums over several threads round differently
    torch.set_num_threads(1)
    try:
        for attempt in range(ATTEMPTS):
            draw = torch_stream(seed, "encoder", channels, attempt)
            encoder = _train(training, channels, steps, batch, draw, report)
            if _all_channels_active(encoder, training, draw):
                return _scale_channels(encoder, training, draw)
    finally:
        torch.set_num_threads(threads)
    raise DivergenceError(
        f"encoder: a channel stayed inactive in all {ATTEMPTS} attempts from seed {seed}; "
        "use another seed or more steps"
    )


def _train(
    training: EncoderTraining,
    channels: int,
    steps: int,
    batch: int,
    draw: torch.Generator,
    report: Callable[[int, float], None] | None,
) -> ConvEncoder:
    """Train encoder and decoder together to reconstruct the image."""
    # torch draws first weights from its global stream, which must not move; they are replaced
    with torch.random.fork_rng(devices=[]):
        encoder = ConvEncoder(channels)
        last = nn.ConvTranspose2d(16, channels, kernel_size=2, stride=2)
        decoder = nn.Sequential(
            nn.ConvTranspose2d(4, 16, kernel_size=2, stride=2), nn.ReLU(), last, nn.Sigmoid()
        )
    _set_first_weights(encoder, draw)
    _set_first_weights(decoder, draw)
    # the decoder starts with dark images, as most are: starting with grey would push every channel to zero
    assert last.bias is not None
    nn.init.constant_(last.bias, DARK)
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=PEAK_LEARNING_RATE)
    for step in range(steps):
        # the rate rises and falls: large steps at the start make channels inactive, small ones at the end converge
        rate = PEAK_LEARNING_RATE * math.sin(math.pi * (step + 1) / (steps + 1))
        for group in optimiser.param_groups:
            group["lr"] = rate
        images = training.draw_images(batch, channels, draw)
        codes = encoder(images)
        if training.noise > 0:
            codes = codes + _laplace(codes.shape, draw) * training.noise * codes.detach().amax()
        loss = training.loss(images, codes, decoder(codes))
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if report is not None:
            report(step, loss.item())
    return encoder


def _set_first_weights(network: nn.Module, draw: torch.Generator) -> None:
    for layer in network.children():
        if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
            nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=draw)
            assert layer.bias is not None
            # slightly above zero, so that no channel starts inactive on black images
            nn.init.constant_(layer.bias, 0.05)


def _laplace(shape: torch.Size, draw: torch.Generator) -> Tensor:
    """Draw Laplace noise of scale 1, as the difference of two exponential draws."""
    pair = torch.empty(2, *shape).exponential_(generator=draw)
    return pair[0] - pair[1]


@torch.no_grad()
def _all_channels_active(encoder: ConvEncoder, training: EncoderTraining, draw: torch.Generator) -> bool:
    """Check that each channel is above zero in enough places and differs between images."""
    codes = encoder(training.draw_images(256, encoder.channels, draw))
    active = (codes > 0).float().mean(dim=(0, 2, 3))
    spread = codes.std(dim=0).mean(dim=(1, 2))
    # NaN is never above zero, so it fails too
    return bool((active > LEAST_ACTIVE).all() and (spread > LEAST_SPREAD * codes.amax()).all())


@torch.no_grad()
def _scale_channels(encoder: ConvEncoder, training: EncoderTraining, draw: torch.Generator) -> ConvEncoder:
    """Scale each channel so that its largest value is LARGEST_VALUE.

    The paper's noise follows the largest value of all channels and is equally strong in each, so it would hide a
    channel of small values. Scaling the last weights scales the code exactly, because ReLU keeps positive factors.
    """
    codes = encoder(training.draw_images(1024, encoder.channels, draw))
    factors = LARGEST_VALUE / codes.amax(dim=(0, 2, 3))
    assert encoder.summary.bias is not None
    encoder.summary.weight *= factors.view(-1, 1, 1, 1)
    encoder.summary.bias *= factors
    return encoder


@torch.no_grad()
def make_even_encoder(encoder: ConvEncoder, seed: int = 0, images: int = EVEN_IMAGES) -> EvenEncoder:
    """Build an even encoder over this one, from statistics of its code on generated images."""
    draw = torch_stream(seed, "even encoder", encoder.channels)
    batches = [generate_images(EVEN_BATCH, encoder.channels, draw) for _ in range(images // EVEN_BATCH)]
    codes = torch.cat([encoder(batch) for batch in batches]).double()
    mean = codes.mean(dim=(0, 2, 3)).view(-1, 1, 1)
    # building a layer draws first weights from torch's global stream, which must not move
    with torch.random.fork_rng(devices=[]):
        even = EvenEncoder(encoder, encoder.channels, codes.shape[1])
    even.mean.copy_(mean)
    even.level.weight.copy_(levelling_kernel(codes - mean))
    return even.eval().requires_grad_(False)


def levelling_kernel(codes: Tensor) -> Tensor:
    """Return the convolution [channels, channels, side, side] that levels codes [images, channels, height, width].

    In the Fourier domain each direction of channels is scaled by variance ^ (-LEVELLING / 2): directions in which codes
    vary much are reduced, those in which they vary little are amplified.
    """
    height, width = codes.shape[-2:]
    # twice as high and wide, so that opposite edges of a code do not meet
    waves = torch.fft.fft2(codes, s=(2 * height, 2 * width))
    spectrum = torch.einsum("ncij,ndij->ijcd", waves, waves.conj()) / len(codes)
    spectrum = spectrum / spectrum.diagonal(dim1=-2, dim2=-1).real.mean()
    variances, directions = torch.linalg.eigh(spectrum)
    gains = variances.clamp(min=LEAST_VARIANCE) ** (-LEVELLING / 2)
    response = (directions * gains.unsqueeze(-2)) @ directions.mH
    kernel = torch.fft.fftshift(torch.fft.ifft2(response.permute(2, 3, 0, 1)).real, dim=(-2, -1))
    top, left = height - LEVEL_SIDE // 2, width - LEVEL_SIDE // 2
    # torch's convolution expects the kernel flipped, which is the same as swapping its channels
    middle: Tensor = kernel[..., top : top + LEVEL_SIDE, left : left + LEVEL_SIDE]
    return middle.transpose(0, 1)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator) * (high - low) + low


def _strengths(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Draw a strength per image [count, 1, 1, 1]; negative draws become zero."""
    return _uniform((count, 1, 1, 1), low, high, generator).clamp_min(0)


def _backgrounds(count: int, channels: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw backgrounds: black for half of the images, plain or cloudy for the others."""
    clouds = _clouds(count, channels, generator, size) * _strengths(count, -0.2, 0.4, generator)
    lit = torch.rand(count, 1, 1, 1, generator=generator) < 0.5
    return (_colours(count, channels, 0.1, 0.9, generator) + clouds) * lit


def _fillings(count: int, channels: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw fillings of shapes: a colour, sometimes with a gradient, clouds or stripes."""
    colour = _colours(count, channels, 0.0, 1.0, generator)
    gradient = _gradients(count, generator, size) * _strengths(count, -0.2, 0.4, generator)
    clouds = _clouds(count, 1, generator, size) * _strengths(count, -0.3, 0.3, generator)
    stripes = _stripes(count, generator, size) * _strengths(count, -0.6, 0.4, generator)
    return (colour + gradient + clouds + stripes).clamp(0, 1)


def _colours(count: int, channels: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Draw a colour per image; its channels are similar, as in most photographs."""
    level = _uniform((count, 1, 1, 1), low, high, generator)
    if channels == 1:
        return level
    return level + 0.2 * torch.randn(count, channels, 1, 1, generator=generator)


def _clouds(count: int, channels: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw 1/f noise from -1 to 1: strong in coarse and weak in fine detail, as photographs are."""
    down = torch.fft.fftfreq(size).view(-1, 1)
    across = torch.fft.rfftfreq(size).view(1, -1)
    frequency = torch.hypot(down, across).clamp_min(1 / size)
    fading = frequency ** -_uniform((count, 1, 1, 1), 0.8, 2.2, generator)
    white = torch.randn(count, channels, size, size, generator=generator)
    clouds = torch.fft.irfft2(torch.fft.rfft2(white) * fading, s=(size, size))
    return torch.tanh(clouds / clouds.std(dim=(1, 2, 3), keepdim=True))


def _gradients(count: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw gradients from about -1 to 1 in random directions."""
    down, across = _pixels(size)
    angle = _uniform((count, 1, 1), 0, 2 * math.pi, generator)
    return (down * angle.sin() + across * angle.cos()).unsqueeze(1)


def _stripes(count: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw stripes from -1 to 1, wide or narrow, soft or sharp."""
    waves = _uniform((count, 1, 1, 1), 4, 40, generator)
    phase = _uniform((count, 1, 1, 1), 0, 2 * math.pi, generator)
    sharpness = _uniform((count, 1, 1, 1), 1, 6, generator)
    return torch.tanh(sharpness * torch.sin(waves * _gradients(count, generator, size) + phase))


def _shapes(count: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw how much a shape covers each pixel [count, 1, size, size]: outlines, blobs or strokes."""
    third = math.ceil(count / 3)
    parts = [draw(third, generator, size) for draw in (_outlines, _blobs, _strokes)]
    order = torch.randperm(3 * third, generator=generator)[:count]
    return torch.cat(parts)[order].unsqueeze(1)


def _outlines(count: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw filled outlines: circles with a few waves, stretched and rotated."""
    down, across = _placed_pixels(count, generator, size)
    angle = torch.atan2(down, across)
    radius = torch.ones_like(angle)
    for wave in range(2, 2 + OUTLINE_WAVES):
        phase = _uniform((count, 1, 1), 0, 2 * math.pi, generator)
        radius += _uniform((count, 1, 1), 0, 1 / wave, generator) * torch.sin(wave * angle + phase)
    sharpness = _uniform((count, 1, 1), 4, 20, generator)
    return torch.sigmoid(sharpness * (radius - torch.hypot(down, across)))


def _blobs(count: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw soft spots that fade outwards."""
    down, across = _placed_pixels(count, generator, size)
    return torch.exp(-(down.square() + across.square()))


def _strokes(count: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw pen strokes: quadratic curves between two points, each made of a row of round dots."""
    start, bend, end = _uniform((3, count, 1, 2), -0.8, 0.8, generator)
    time = torch.linspace(0, 1, STROKE_DOTS).view(1, -1, 1)
    dots = (1 - time).square() * start + 2 * time * (1 - time) * bend + time.square() * end
    down, across = _pixels(size)
    vertical = (dots[:, :, 0, None, None] - down).square()
    horizontal = (dots[:, :, 1, None, None] - across).square()
    distance = (vertical + horizontal).amin(1).sqrt()
    half_width = _uniform((count, 1, 1), 0.04, 0.16, generator)
    return torch.sigmoid(size * (half_width - distance))


def _blacken_borders(images: Tensor, generator: torch.Generator) -> Tensor:
    """Blacken up to four border pixels in some images, because small images are padded with zeros."""
    size = images.shape[-1]
    line = torch.arange(size)
    from_edge = torch.minimum(line, size - 1 - line)
    depth = torch.minimum(from_edge.view(-1, 1), from_edge.view(1, -1))
    border = torch.randint(-4, 5, (len(images), 1, 1, 1), generator=generator)
    return images * (depth >= border)


def _pixels(size: int) -> tuple[Tensor, Tensor]:
    """Return pixel coordinates from -1 to 1, down [size, 1] and across [1, size]."""
    line = (torch.arange(size) + 0.5) / size * 2 - 1
    return line.view(size, 1), line.view(1, size)


def _placed_pixels(count: int, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    """Return pixel coordinates relative to shapes that are moved, rotated and stretched."""
    down, across = _pixels(size)
    down = down - _uniform((count, 1, 1), -0.5, 0.5, generator)
    across = across - _uniform((count, 1, 1), -0.5, 0.5, generator)
    angle = _uniform((count, 1, 1), 0, math.pi, generator)
    height = _uniform((count, 1, 1), 0.15, 1.0, generator)
    width = _uniform((count, 1, 1), 0.15, 1.0, generator)
    turned_down = down * angle.cos() - across * angle.sin()
    turned_across = down * angle.sin() + across * angle.cos()
    return turned_down / height, turned_across / width
