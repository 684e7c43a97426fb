"""Images and losses that may give a better encoder than the shipped recipe; encoder_recipes.py compares them."""

import math

import torch
from torch import Tensor, nn

from feddig.models.train_encoder import generate_images, reconstruction_error

SIZE = 32
SAMPLES_PER_DIGEST = 4
TEMPERATURE = 0.2


# --- images


def draw_clouds(count: int, channels: int, generator: torch.Generator) -> Tensor:
    """Draw noise whose amplitude falls with frequency (1/f), as in photographs."""
    down, across = torch.fft.fftfreq(SIZE).view(-1, 1), torch.fft.rfftfreq(SIZE).view(1, -1)
    frequency = torch.hypot(down, across).clamp_min(1 / SIZE)
    fading = frequency ** -_uniform((count, 1, 1, 1), 0.5, 2, generator)
    white = torch.randn(count, channels, SIZE, SIZE, generator=generator)
    clouds = torch.fft.irfft2(torch.fft.rfft2(white) * fading, s=(SIZE, SIZE))
    contrast = _uniform((count, 1, 1, 1), 0.2, 2, generator)
    middle = torch.randn(count, 1, 1, 1, generator=generator)
    return torch.sigmoid(contrast * clouds / clouds.std(dim=(1, 2, 3), keepdim=True) + middle)


def draw_scribbles(count: int, channels: int, generator: torch.Generator) -> Tensor:
    """Draw two to five joined curves of one width, bright on black, similar to letters."""
    joints = _uniform((6, count, 1, 2), -0.7, 0.7, generator)
    bends = _uniform((5, count, 1, 2), -0.7, 0.7, generator)
    time = torch.linspace(0, 1, 16).view(1, -1, 1)
    line = (torch.arange(SIZE) + 0.5) / SIZE * 2 - 1
    half_width = _uniform((count, 1, 1), 0.06, 0.2, generator)
    strokes = torch.randint(2, 6, (count, 1, 1), generator=generator)
    cover = torch.zeros(count, SIZE, SIZE)
    for number, (start, bend, end) in enumerate(zip(joints[:-1], bends, joints[1:], strict=True)):
        dots = (1 - time).square() * start + 2 * time * (1 - time) * bend + time.square() * end
        below, beside = (dots.unsqueeze(2) - line.view(1, 1, -1, 1)).square().unbind(3)
        distance = (below.unsqueeze(3) + beside.unsqueeze(2)).amin(1).sqrt()
        stroke = torch.sigmoid(SIZE * (half_width - distance)) * (number < strokes)
        cover = torch.maximum(cover, stroke)
    return cover.unsqueeze(1).expand(-1, channels, -1, -1)


def draw_garments(count: int, channels: int, generator: torch.Generator) -> Tensor:
    """Draw mirrored outlines on black, filled with fine texture, because man-made objects are often symmetric."""
    half = SIZE // 2
    steps = torch.linspace(0, 1, SIZE).view(1, -1)
    outline = _uniform((count, 1), 0.2, 0.9, generator).expand(-1, SIZE)
    for wave in range(1, 6):
        phase = _uniform((count, 1), 0, 2 * math.pi, generator)
        outline = outline + _uniform((count, 1), 0, 0.4 / wave, generator) * torch.sin(
            wave * math.pi * steps + phase
        )
    beside = torch.linspace(0, 1, half).view(1, 1, -1)
    right = torch.sigmoid(12 * (outline.unsqueeze(2) - beside))
    mask = torch.cat([right.flip(2), right], dim=2).unsqueeze(1)
    top, bottom = _uniform((2, count, 1, 1, 1), 0, 0.25, generator)
    line = steps.view(1, 1, -1, 1)
    mask = mask * (line > top) * (line < 1 - bottom)
    return mask * draw_clouds(count, channels, generator)


def draw_varied(count: int, channels: int, generator: torch.Generator) -> Tensor:
    """Mix the shipped images, clouds, scribbles and garments in equal parts."""
    quarter = math.ceil(count / 4)
    sources = (generate_images, draw_clouds, draw_scribbles, draw_garments)
    images = torch.cat([draw(quarter, channels, generator) for draw in sources])
    return images[torch.randperm(len(images), generator=generator)[:count]]


def draw_pairs(count: int, channels: int, generator: torch.Generator) -> Tensor:
    """Draw generated images, followed by the same images slightly shifted, rotated, stretched and darkened."""
    return _with_views(generate_images(math.ceil(count / 2), channels, generator), generator)[:count]


def draw_varied_pairs(count: int, channels: int, generator: torch.Generator) -> Tensor:
    """Draw pairs of the varied images in the same way."""
    return _with_views(draw_varied(math.ceil(count / 2), channels, generator), generator)[:count]


def _with_views(images: Tensor, generator: torch.Generator) -> Tensor:
    count = len(images)
    angle = _uniform((count,), -0.2, 0.2, generator)
    stretch = _uniform((2, count), 0.9, 1.1, generator)
    shift = _uniform((2, count), -0.12, 0.12, generator)
    across = torch.stack([angle.cos() * stretch[0], -angle.sin(), shift[0]], dim=1)
    down = torch.stack([angle.sin(), angle.cos() * stretch[1], shift[1]], dim=1)
    grid = nn.functional.affine_grid(torch.stack([across, down], dim=1), list(images.shape), False)
    views = nn.functional.grid_sample(images, grid, align_corners=False)
    return torch.cat([images, views * _uniform((count, 1, 1, 1), 0.7, 1, generator)])


def _uniform(shape: tuple[int, ...], low: float, high: float, generator: torch.Generator) -> Tensor:
    return torch.rand(shape, generator=generator) * (high - low) + low


# --- losses


def with_edges(images: Tensor, codes: Tensor, painted: Tensor) -> Tensor:
    """Reconstruct the differences between neighbouring pixels too, not only the pixels."""
    error = reconstruction_error(images, codes, painted)
    for side in (2, 3):
        error = error + nn.functional.mse_loss(painted.diff(dim=side), images.diff(dim=side))
    return error


def with_decorrelation(images: Tensor, codes: Tensor, painted: Tensor) -> Tensor:
    """Add a small penalty on squared correlations between channels."""
    values = codes.transpose(0, 1).flatten(1)
    values = values - values.mean(1, keepdim=True)
    values = values / (values.norm(dim=1, keepdim=True) + 1e-6)
    others = values @ values.T - torch.eye(len(values))
    return reconstruction_error(images, codes, painted) + 0.01 * others.square().mean()


def with_recognition(images: Tensor, codes: Tensor, painted: Tensor) -> Tensor:
    """Recognise an image by the code of its other view among all images (InfoNCE)."""
    first, second = _directions(codes)
    likeness = first @ second.T / TEMPERATURE
    found = nn.functional.cross_entropy(likeness, torch.arange(len(first)))
    return reconstruction_error(images, codes, painted) + 0.03 * found


def with_recognition_in_digests(images: Tensor, codes: Tensor, painted: Tensor) -> Tensor:
    """Recognise the four images in a mixture of four codes by their other views."""
    half = len(codes) // 2 // SAMPLES_PER_DIGEST * SAMPLES_PER_DIGEST
    first, second = codes[:half].flatten(1), codes[len(codes) // 2 :][:half].flatten(1)
    middle, spread = second.mean(0), second.std(0).mean() + 1e-6
    groups = torch.arange(half) // SAMPLES_PER_DIGEST
    mixed = (first - middle).view(-1, SAMPLES_PER_DIGEST, first.shape[1]).mean(1) / spread
    likeness = nn.functional.normalize(mixed) @ nn.functional.normalize((second - middle) / spread).T
    inside = (groups.unsqueeze(0) == torch.arange(len(mixed)).unsqueeze(1)).float() / SAMPLES_PER_DIGEST
    found = nn.functional.cross_entropy(likeness / TEMPERATURE, inside)
    return reconstruction_error(images, codes, painted) + 0.01 * found


def _directions(codes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes of both views as unit vectors from their common mean."""
    flat = codes.flatten(1)
    first, second = nn.functional.normalize(flat - flat.mean(0)).chunk(2)
    return first, second
