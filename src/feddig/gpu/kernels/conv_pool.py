"""Kernels for the block that the classifiers are built of: 3x3 convolution, 2x2 max-pool, ReLU.

On a GPU this block is bound by memory: the convolution's output, its largest array, is written, read by the pool, and
its gradient is written and read again. Two things avoid most of that. If the input has few channels (the first layer),
one kernel convolves and pools, so that the large array never exists. Otherwise one kernel adds the bias, pools and
applies ReLU. Both store for each output which of the window's four pixels was the largest, as one byte; the backward
pass needs nothing else. Arrays have their channels last.

In the kernels a place is one pixel of the output, and a tap is one number under the 3x3 kernel.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from feddig.gpu.kernels.reduce import MOST_PROGRAMS, product, sum_rows

NO_PIXEL = tl.constexpr(4)
"""Stored where the largest pixel is not above zero; the pixels of a window are numbered 0 to 3, row by row."""

PLACES = 64
"""Places that one program of a forward kernel computes, each in all channels."""
FEW_PLACES = 16
"""The same for kernels that do little work per place: more programs hide the latency of memory."""
PIXELS = 256
"""Pixels whose gradient one program sums."""


@triton.jit
def _convolve_pool(
    images, weight, bias, out, argmax, total, height, width,
    INPUTS: tl.constexpr, TAPS: tl.constexpr, OUTPUTS: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Convolve, pool and apply ReLU for some places."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    channel = tl.arange(0, OUTPUTS)
    tap = tl.arange(0, TAPS)
    image, y, x = _locate(place, height, width)
    source, tap_y, tap_x = tap % INPUTS, tap // INPUTS // 3, tap // INPUTS % 3
    real = tap < INPUTS * 9
    kernel = tl.load(weight + channel[None, :] * (INPUTS * 9) + tap[:, None], mask=real[:, None], other=0.0)
    best = tl.full((PLACES, OUTPUTS), float("-inf"), tl.float32)
    best_pixel = tl.zeros((PLACES, OUTPUTS), tl.int32)
    for pixel in tl.static_range(4):
        row = 2 * y[:, None] + pixel // 2 + tap_y[None, :] - 1
        column = 2 * x[:, None] + pixel % 2 + tap_x[None, :] - 1
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        patch = tl.load(
            images + ((image[:, None] * INPUTS + source[None, :]) * height + row) * width + column,
            mask=inside & real[None, :] & (place < total)[:, None], other=0.0,
        )  # fmt: skip
        value = product(patch, kernel, PRECISION)
        best_pixel = tl.where(value > best, pixel, best_pixel)
        best = tl.maximum(value, best)
    best += tl.load(bias + channel)[None, :].to(tl.float32)
    _store(out, argmax, best, best_pixel, place, channel, total, OUTPUTS)


@triton.jit
def _pool(values, bias, out, argmax, total, height, width, OUTPUTS: tl.constexpr, PLACES: tl.constexpr):
    """Add the bias, pool and apply ReLU for some places."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    channel = tl.arange(0, OUTPUTS)
    image, y, x = _locate(place, height, width)
    best = tl.full((PLACES, OUTPUTS), float("-inf"), tl.float32)
    best_pixel = tl.zeros((PLACES, OUTPUTS), tl.int32)
    for pixel in tl.static_range(4):
        at = (image * height + 2 * y + pixel // 2) * width + 2 * x + pixel % 2
        value = tl.load(
            values + at[:, None] * OUTPUTS + channel[None, :], mask=(place < total)[:, None], other=0.0
        ).to(tl.float32)
        best_pixel = tl.where(value > best, pixel, best_pixel)
        best = tl.maximum(value, best)
    best += tl.load(bias + channel)[None, :].to(tl.float32)
    _store(out, argmax, best, best_pixel, place, channel, total, OUTPUTS)


@triton.jit
def _weight_gradient(
    images, gradient, argmax, sums, total, height, width, programs,
    INPUTS: tl.constexpr, TAPS: tl.constexpr, OUTPUTS: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum each program's share of the gradient of weight and bias; the bias is a tap whose input is always 1."""
    channel = tl.arange(0, OUTPUTS)
    tap = tl.arange(0, TAPS)
    source, tap_y, tap_x = tap % INPUTS, tap // INPUTS // 3, tap // INPUTS % 3
    real = tap < INPUTS * 9
    total_sum = tl.zeros((TAPS, OUTPUTS), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(total, PLACES), programs):
        place = block * PLACES + tl.arange(0, PLACES)
        image, y, x = _locate(place, height, width)
        at = place[:, None] * OUTPUTS + channel[None, :]
        slope = tl.load(gradient + at, mask=(place < total)[:, None], other=0.0)
        best_pixel = tl.load(argmax + at, mask=(place < total)[:, None], other=NO_PIXEL)
        for pixel in tl.static_range(4):
            row = 2 * y[None, :] + pixel // 2 + tap_y[:, None] - 1
            column = 2 * x[None, :] + pixel % 2 + tap_x[:, None] - 1
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            patch = tl.load(
                images + ((image[None, :] * INPUTS + source[:, None]) * height + row) * width + column,
                mask=inside & real[:, None] & (place < total)[None, :], other=0.0,
            )  # fmt: skip
            patch = tl.where((tap == INPUTS * 9)[:, None], 1.0, patch.to(tl.float32))
            part = tl.where(best_pixel == pixel, slope, 0.0)
            total_sum += product(patch, part, PRECISION)
    tl.store(sums + (tl.program_id(0) * TAPS + tap)[:, None] * OUTPUTS + channel[None, :], total_sum)


@triton.jit
def _tap_gradients(
    weight, gradient, argmax, out, total,
    INPUTS: tl.constexpr, TAPS: tl.constexpr, OUTPUTS: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Compute the gradient of each tap of some places, for each of the window's four pixels."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    channel = tl.arange(0, OUTPUTS)
    tap = tl.arange(0, TAPS)
    kernel = tl.load(
        weight + channel[:, None] * (INPUTS * 9) + tap[None, :], mask=(tap < INPUTS * 9)[None, :], other=0.0
    )
    at = place[:, None] * OUTPUTS + channel[None, :]
    slope = tl.load(gradient + at, mask=(place < total)[:, None], other=0.0)
    best_pixel = tl.load(argmax + at, mask=(place < total)[:, None], other=NO_PIXEL)
    for pixel in tl.static_range(4):
        part = tl.where(best_pixel == pixel, slope, 0.0)
        tap_gradient = product(part, kernel, PRECISION)
        tl.store(
            out + (place[:, None] * 4 + pixel) * TAPS + tap[None, :],
            tap_gradient,
            mask=(place < total)[:, None],
        )


@triton.jit
def _gather_taps(
    tap_gradient, out, total, height, width, INPUTS: tl.constexpr, TAPS: tl.constexpr, PIXELS: tl.constexpr
):
    """Sum the gradients of some pixels of the images: each lies under up to nine taps."""
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    image, within = pixel // (INPUTS * height * width), pixel % (height * width)
    source = pixel // (height * width) % INPUTS
    y, x = within // width, within % width
    slope = tl.zeros((PIXELS,), tl.float32)
    for position in tl.static_range(9):
        row, column = y - position // 3 + 1, x - position % 3 + 1
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (pixel < total)
        place = (image * (height // 2) + row // 2) * (width // 2) + column // 2
        own = (row % 2) * 2 + column % 2
        slope += tl.load(
            tap_gradient + (place * 4 + own) * TAPS + position * INPUTS + source, mask=inside, other=0.0
        )
    tl.store(out + pixel, slope, mask=pixel < total)


@triton.jit
def _unpool(
    gradient, argmax, out, sums, total, height, width, programs, OUTPUTS: tl.constexpr, PLACES: tl.constexpr
):
    """Assign each gradient to the window's largest pixel, and sum each program's share of the bias's gradient."""
    channel = tl.arange(0, OUTPUTS)
    bias = tl.zeros((PLACES, OUTPUTS), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(total, PLACES), programs):
        place = block * PLACES + tl.arange(0, PLACES)
        image, y, x = _locate(place, height, width)
        exists = (place < total)[:, None]
        at = place[:, None] * OUTPUTS + channel[None, :]
        slope = tl.load(gradient + at, mask=exists, other=0.0)
        best_pixel = tl.load(argmax + at, mask=exists, other=NO_PIXEL)
        bias += tl.where(best_pixel < NO_PIXEL, slope, 0.0).to(tl.float32)
        for pixel in tl.static_range(4):
            before = (image * height + 2 * y + pixel // 2) * width + 2 * x + pixel % 2
            tl.store(
                out + before[:, None] * OUTPUTS + channel[None, :],
                tl.where(best_pixel == pixel, slope, 0.0), mask=exists,
            )  # fmt: skip
    tl.store(sums + tl.program_id(0) * OUTPUTS + channel, tl.sum(bias, 0))


@triton.jit
def _locate(place, height, width):
    """Return the image, row and column of a place."""
    size = (height // 2) * (width // 2)
    within = place % size
    return place // size, within // (width // 2), within % (width // 2)


@triton.jit
def _store(out, argmax, best, best_pixel, place, channel, total, OUTPUTS: tl.constexpr):
    at = place[:, None] * OUTPUTS + channel[None, :]
    exists = (place < total)[:, None]
    tl.store(out + at, tl.maximum(best, 0.0), mask=exists)
    tl.store(argmax + at, tl.where(best > 0, best_pixel, NO_PIXEL).to(tl.uint8), mask=exists)


def convolve_pool(images: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, precision: str):
    """Convolve, pool and apply ReLU; return the outputs and the number of each window's largest pixel."""
    count, inputs, height, width = images.shape
    out, argmax = _outputs(count, len(weight), height, width, dtype, images.device)
    total = count * (height // 2) * (width // 2)
    _convolve_pool[(triton.cdiv(total, PLACES),)](
        images, weight, bias, out, argmax, total, height, width,
        inputs, _taps(inputs), len(weight), PLACES, precision, num_warps=4,
    )  # fmt: skip
    return out, argmax


def convolve_pool_gradients(
    images: Tensor, weight: Tensor, gradient: Tensor, argmax: Tensor, precision: str, *, of_images: bool
):
    """Return the gradients of images (or None), weight and bias."""
    count, inputs, height, width = images.shape
    outputs, taps = len(weight), _taps(inputs)
    total = count * (height // 2) * (width // 2)
    places = 2 * FEW_PLACES if total > 16 * MOST_PROGRAMS * FEW_PLACES else FEW_PLACES
    programs = min(MOST_PROGRAMS, triton.cdiv(total, places))
    sums = torch.empty((programs, taps, outputs), device=images.device)
    _weight_gradient[(programs,)](
        images, gradient, argmax, sums, total, height, width, programs,
        inputs, taps, outputs, places, precision, num_warps=4,
    )  # fmt: skip
    summed = sum_rows(sums)
    weight_gradient = summed[: inputs * 9].view(3, 3, inputs, outputs).permute(3, 2, 0, 1)
    image_gradient = None
    if of_images:
        tap_gradient = torch.empty((total, 4, taps), device=images.device)
        _tap_gradients[(triton.cdiv(total, PLACES),)](
            weight,
            gradient,
            argmax,
            tap_gradient,
            total,
            inputs,
            taps,
            outputs,
            PLACES,
            precision,
            num_warps=4,
        )
        image_gradient = torch.empty_like(images)
        _gather_taps[(triton.cdiv(images.numel(), PIXELS),)](
            tap_gradient, image_gradient, images.numel(), height, width, inputs, taps, PIXELS, num_warps=4
        )
    return image_gradient, weight_gradient, summed[inputs * 9]


def pool(values: Tensor, bias: Tensor):
    """Add the bias, pool and apply ReLU; return the outputs and the number of each window's largest pixel."""
    count, channels, height, width = values.shape
    out, argmax = _outputs(count, channels, height, width, values.dtype, values.device)
    total = count * (height // 2) * (width // 2)
    _pool[(triton.cdiv(total, FEW_PLACES),)](
        values, bias, out, argmax, total, height, width, channels, FEW_PLACES, num_warps=4
    )
    return out, argmax


def pool_gradients(gradient: Tensor, argmax: Tensor):
    """Return the gradients of the pooled values and of the bias."""
    count, channels, height, width = gradient.shape
    values = torch.empty(
        (count, channels, 2 * height, 2 * width), dtype=gradient.dtype, device=gradient.device,
        memory_format=torch.channels_last,
    )  # fmt: skip
    total = count * height * width
    programs = min(2 * MOST_PROGRAMS, triton.cdiv(total, FEW_PLACES))
    sums = torch.empty((programs, channels), device=gradient.device)
    _unpool[(programs,)](
        gradient,
        argmax,
        values,
        sums,
        total,
        2 * height,
        2 * width,
        programs,
        channels,
        FEW_PLACES,
        num_warps=4,
    )
    return values, sum_rows(sums)


def _outputs(count: int, channels: int, height: int, width: int, dtype: torch.dtype, device: torch.device):
    shape = (count, channels, height // 2, width // 2)
    return tuple(
        torch.empty(shape, dtype=kind, device=device, memory_format=torch.channels_last)
        for kind in (dtype, torch.uint8)
    )


def _taps(inputs: int) -> int:
    """Count the taps and one for the bias, rounded up to a size that the matrix units support."""
    return max(16, triton.next_power_of_2(inputs * 9 + 1))
