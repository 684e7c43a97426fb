"""How the default encoders are made: an autoencoder that learns from generated images.

No photograph and no silo's data takes part, so the encoder is public by construction. The first half of
this file trains; the second half draws the images. docs/measurements/encoder.md compares this recipe with others.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from feddig.errors import DivergenceError
from feddig.models.encoder import ConvEncoder
from feddig.seeds import torch_stream

ImageSource = Callable[[int, int, torch.Generator], Tensor]
"""Draws images [count, channels, size, size] in [0, 1] from a count, a number of channels and a stream."""

Loss = Callable[[Tensor, Tensor, Tensor], Tensor]
"""What training makes small, from the images, their codes and what the decoder painted from the codes."""

STEPS = 600
BATCH = 64
PEAK_LEARNING_RATE = 3e-3
ATTEMPTS = 5
# through the sigmoid: a brightness of 0.18
DARK = -1.5
LEAST_ACTIVE = 0.02
LEAST_SPREAD = 0.01
# acts like a learning rate for F_D: docs/measurements/encoder.md shows what others give
LARGEST_VALUE = 64.0

LAYERS = 3
OUTLINE_WAVES = 4
STROKE_DOTS = 20


def generate_images(count: int, channels: int, generator: torch.Generator, size: int = 32) -> Tensor:
    """Draw images [count, channels, size, size] in [0, 1]: up to three painted shapes on a ground."""
    images = _ground(count, channels, generator, size)
    for layer in range(LAYERS):
        # the first shape is always there, the others come less and less often
        there = torch.rand(count, 1, 1, 1, generator=generator) < 0.6**layer
        cover = _shapes(count, generator, size) * there
        images = torch.lerp(images, _paint(count, channels, generator, size), cover)
    return _frame(images, generator).clamp(0, 1)


def reconstruction_error(images: Tensor, codes: Tensor, painted: Tensor) -> Tensor:
    """Give the mean squared difference between the images and what was painted."""
    return nn.functional.mse_loss(painted, images)


@dataclass(frozen=True)
class Recipe:
    """What the autoencoder learns from; the default is the recipe of the shipped encoders."""

    name: str = "generated images, noisy code"
    images: ImageSource = generate_images
    mixed: int = 1
    """How many codes are averaged, like a digest, to paint the average of their images; 1 is no mixing."""
    noise: float = 0.01
    """Scale of the Laplace noise on the code, as a share of its largest value: 1/100 in the paper's runs."""
    loss: Loss = reconstruction_error


SHIPPED_RECIPE = Recipe()


class ConvDecoder(nn.Module):
    """The encoder's mirror: it paints the image back from the code, and is thrown away after training."""

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        self.widen = nn.ConvTranspose2d(4, 16, kernel_size=2, stride=2)
        self.paint = nn.ConvTranspose2d(16, channels, kernel_size=2, stride=2)

    def forward(self, codes: Tensor) -> Tensor:
        """Paint images in [0, 1], four times as high and wide as the codes [batch, 4, height, width]."""
        return torch.sigmoid(self.paint(torch.relu(self.widen(codes))))


def make_encoder(
    channels: int = 1,
    seed: int = 0,
    steps: int = STEPS,
    batch: int = BATCH,
    report: Callable[[int, float], None] | None = None,
    recipe: Recipe = SHIPPED_RECIPE,
) -> ConvEncoder:
    """Train an encoder; the same arguments give the same weights. `report` hears each step and its loss."""
    with _one_thread():
        for attempt in range(ATTEMPTS):
            draw = torch_stream(seed, "encoder", channels, attempt)
            encoder = _train(recipe, channels, steps, batch, draw, report)
            if _all_channels_live(encoder, recipe, draw):
                return _level_channels(encoder, recipe, draw)
    raise DivergenceError(
        f"encoder: {ATTEMPTS} starts from seed {seed} all left a channel dead; "
        "take another seed or more steps"
    )


def _train(
    recipe: Recipe,
    channels: int,
    steps: int,
    batch: int,
    draw: torch.Generator,
    report: Callable[[int, float], None] | None,
) -> ConvEncoder:
    """Teach encoder and decoder together to give the image back."""
    # torch draws first weights from its global stream, which others use too; ours replace them
    with torch.random.fork_rng(devices=[]):
        encoder, decoder = ConvEncoder(channels), ConvDecoder(channels)
    _set_first_weights(encoder, draw)
    _set_first_weights(decoder, draw)
    # the decoder starts with dark images, because most are: painting grey would push every channel to zero
    assert decoder.paint.bias is not None
    nn.init.constant_(decoder.paint.bias, DARK)
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=PEAK_LEARNING_RATE)
    for step in range(steps):
        # rises and falls like half a wave: early large steps kill channels, late small ones settle the weights
        rate = PEAK_LEARNING_RATE * math.sin(math.pi * (step + 1) / (steps + 1))
        for group in optimiser.param_groups:
            group["lr"] = rate
        images = recipe.images(batch, channels, draw)
        codes = encoder(images)
        if recipe.mixed > 1:
            codes, images = _with_mixtures(codes, recipe.mixed), _with_mixtures(images, recipe.mixed)
        if recipe.noise > 0:
            codes = codes + _laplace(codes.shape, draw) * recipe.noise * codes.detach().amax()
        loss = recipe.loss(images, codes, decoder(codes))
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
            # slightly above zero, so that no channel starts dead on black images
            nn.init.constant_(layer.bias, 0.05)


def _with_mixtures(values: Tensor, count: int) -> Tensor:
    """Append the averages of every `count` neighbours."""
    whole = len(values) // count * count
    return torch.cat([values, values[:whole].view(-1, count, *values.shape[1:]).mean(1)])


def _laplace(shape: torch.Size, draw: torch.Generator) -> Tensor:
    """Draw Laplace noise of scale 1, as the difference of two exponential draws."""
    pair = torch.empty(2, *shape).exponential_(generator=draw)
    return pair[0] - pair[1]


@torch.no_grad()
def _all_channels_live(encoder: ConvEncoder, recipe: Recipe, draw: torch.Generator) -> bool:
    """Check that each channel is above zero in a fair share of places and differs between images."""
    codes = encoder(recipe.images(256, encoder.channels, draw))
    active = (codes > 0).float().mean(dim=(0, 2, 3))
    spread = codes.std(dim=0).mean(dim=(1, 2))
    # a code that is not a number is never above zero, so it fails too
    return bool((active > LEAST_ACTIVE).all() and (spread > LEAST_SPREAD * codes.amax()).all())


@torch.no_grad()
def _level_channels(encoder: ConvEncoder, recipe: Recipe, draw: torch.Generator) -> ConvEncoder:
    """Scale each channel until its largest value is the same, LARGEST_VALUE.

    The paper's noise follows the largest value of all channels and is equally strong in each, so a channel
    that speaks softly would drown. ReLU lets a positive factor pass, so scaling the last weights scales the
    code exactly.
    """
    codes = encoder(recipe.images(1024, encoder.channels, draw))
    factors = LARGEST_VALUE / codes.amax(dim=(0, 2, 3))
    assert encoder.summary.bias is not None
    encoder.summary.weight *= factors.view(-1, 1, 1, 1)
    encoder.summary.bias *= factors
    return encoder


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute on one thread: sums that are split over several threads round differently."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator) * (high - low) + low


def _at_times(count: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Draw a strength per image [count, 1, 1, 1]; those below zero become zero, so some have none."""
    return _uniform((count, 1, 1, 1), low, high, generator).clamp_min(0)


def _ground(count: int, channels: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw what lies behind the shapes: black for half of the images, plain or cloudy for the others."""
    clouds = _clouds(count, channels, generator, size) * _at_times(count, -0.2, 0.4, generator)
    lit = torch.rand(count, 1, 1, 1, generator=generator) < 0.5
    return (_colours(count, channels, 0.1, 0.9, generator) + clouds) * lit


def _paint(count: int, channels: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw the filling of a shape: a colour, at times with a gradient, clouds or stripes."""
    colour = _colours(count, channels, 0.0, 1.0, generator)
    gradient = _gradients(count, generator, size) * _at_times(count, -0.2, 0.4, generator)
    clouds = _clouds(count, 1, generator, size) * _at_times(count, -0.3, 0.3, generator)
    stripes = _stripes(count, generator, size) * _at_times(count, -0.6, 0.4, generator)
    return (colour + gradient + clouds + stripes).clamp(0, 1)


def _colours(count: int, channels: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """Draw a colour per image; its channels lie near each other, as they do in most photographs."""
    level = _uniform((count, 1, 1, 1), low, high, generator)
    if channels == 1:
        return level
    return level + 0.2 * torch.randn(count, channels, 1, 1, generator=generator)


def _clouds(count: int, channels: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw noise from -1 to 1 that is strong in coarse and weak in fine detail, as photographs are."""
    down = torch.fft.fftfreq(size).view(-1, 1)
    across = torch.fft.rfftfreq(size).view(1, -1)
    frequency = torch.hypot(down, across).clamp_min(1 / size)
    fading = frequency ** -_uniform((count, 1, 1, 1), 0.8, 2.2, generator)
    white = torch.randn(count, channels, size, size, generator=generator)
    clouds = torch.fft.irfft2(torch.fft.rfft2(white) * fading, s=(size, size))
    return torch.tanh(clouds / clouds.std(dim=(1, 2, 3), keepdim=True))


def _gradients(count: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw a slope from about -1 to 1 in a random direction."""
    down, across = _pixels(size)
    angle = _uniform((count, 1, 1), 0, 2 * math.pi, generator)
    return (down * angle.sin() + across * angle.cos()).unsqueeze(1)


def _stripes(count: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw stripes from -1 to 1, broad or fine, soft or sharp."""
    waves = _uniform((count, 1, 1, 1), 4, 40, generator)
    phase = _uniform((count, 1, 1, 1), 0, 2 * math.pi, generator)
    sharpness = _uniform((count, 1, 1, 1), 1, 6, generator)
    return torch.tanh(sharpness * torch.sin(waves * _gradients(count, generator, size) + phase))


def _shapes(count: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw how far a shape covers each pixel [count, 1, size, size]: outlines, blobs, strokes."""
    third = math.ceil(count / 3)
    parts = [draw(third, generator, size) for draw in (_outlines, _blobs, _strokes)]
    order = torch.randperm(3 * third, generator=generator)[:count]
    return torch.cat(parts)[order].unsqueeze(1)


def _outlines(count: int, generator: torch.Generator, size: int) -> Tensor:
    """Fill a closed outline: a circle bent by a few waves, stretched and turned."""
    down, across = _placed_pixels(count, generator, size)
    angle = torch.atan2(down, across)
    radius = torch.ones_like(angle)
    for wave in range(2, 2 + OUTLINE_WAVES):
        phase = _uniform((count, 1, 1), 0, 2 * math.pi, generator)
        radius += _uniform((count, 1, 1), 0, 1 / wave, generator) * torch.sin(wave * angle + phase)
    sharpness = _uniform((count, 1, 1), 4, 20, generator)
    return torch.sigmoid(sharpness * (radius - torch.hypot(down, across)))


def _blobs(count: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw a soft spot that fades outwards."""
    down, across = _placed_pixels(count, generator, size)
    return torch.exp(-(down.square() + across.square()))


def _strokes(count: int, generator: torch.Generator, size: int) -> Tensor:
    """Draw a pen stroke: a curve between two places that bends towards a third, as a chain of round dots."""
    start, bend, end = _uniform((3, count, 1, 2), -0.8, 0.8, generator)
    time = torch.linspace(0, 1, STROKE_DOTS).view(1, -1, 1)
    dots = (1 - time).square() * start + 2 * time * (1 - time) * bend + time.square() * end
    down, across = _pixels(size)
    below = (dots[:, :, 0, None, None] - down).square()
    beside = (dots[:, :, 1, None, None] - across).square()
    distance = (below + beside).amin(1).sqrt()
    half_width = _uniform((count, 1, 1), 0.04, 0.16, generator)
    return torch.sigmoid(size * (half_width - distance))


def _frame(images: Tensor, generator: torch.Generator) -> Tensor:
    """Blacken a border of up to four pixels in some images, because smaller images come padded with zeros."""
    size = images.shape[-1]
    line = torch.arange(size)
    from_edge = torch.minimum(line, size - 1 - line)
    depth = torch.minimum(from_edge.view(-1, 1), from_edge.view(1, -1))
    border = torch.randint(-4, 5, (len(images), 1, 1, 1), generator=generator)
    return images * (depth >= border)


def _pixels(size: int) -> tuple[Tensor, Tensor]:
    """Give the pixels' places from -1 to 1, down [size, 1] and across [1, size]."""
    line = (torch.arange(size) + 0.5) / size * 2 - 1
    return line.view(size, 1), line.view(1, size)


def _placed_pixels(count: int, generator: torch.Generator, size: int) -> tuple[Tensor, Tensor]:
    """Give the pixels' places as seen from a shape that is moved, turned and stretched."""
    down, across = _pixels(size)
    down = down - _uniform((count, 1, 1), -0.5, 0.5, generator)
    across = across - _uniform((count, 1, 1), -0.5, 0.5, generator)
    angle = _uniform((count, 1, 1), 0, math.pi, generator)
    height = _uniform((count, 1, 1), 0.15, 1.0, generator)
    width = _uniform((count, 1, 1), 0.15, 1.0, generator)
    turned_down = down * angle.cos() - across * angle.sin()
    turned_across = down * angle.sin() + across * angle.cos()
    return turned_down / height, turned_across / width
