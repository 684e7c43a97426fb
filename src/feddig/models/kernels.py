"""Triton kernels for the stage that the classifiers are built of (3x3 convolution, 2x2 max-pool, ReLU), and for P_G.

On a GPU such a stage is bound by memory: its largest array, the convolution's output, is written, read by the
pool, and its gradient written and read again. Two things avoid most of that. Where the input has few channels
(the first layer), one kernel convolves and pools at once, so that the large array never exists. Elsewhere one
kernel adds the bias, pools and applies ReLU. Both note for each output which of the four pixels under the window
won, one byte, and the way back needs nothing else. Arrays lie with channels last.

The guidance producer is small, and torch spends more time on starting its many kernels than on computing. As its
transposed convolutions tile, each cell of a code becomes its 4x4 pixels without regard to its neighbours: one kernel
forth, one back.

Only fused.py imports this file, and only where Triton is installed.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

NOBODY = tl.constexpr(4)
"""Stands in the winners' place where ReLU let nothing through; the windows' pixels are 0 to 3, row by row."""

PLACES = 64
"""Outputs that one program of a forward kernel computes, each in all channels."""
FEW_PLACES = 16
"""The same where a program does little for each: more programs hide the latency of memory."""
CELLS = 64
"""Cells of a code that one program paints."""
PIXELS = 256
"""Pixels whose gradient one program adds up."""
MOST_PROGRAMS = 264
"""Of a kernel that sums over a batch: two for each multiprocessor of an H200."""


@triton.jit
def _convolve_pool(
    images, weight, bias, out, winner, total, height, width,
    INPUTS: tl.constexpr, TAPS: tl.constexpr, OUTPUTS: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Convolve, pool and apply ReLU for some places; a tap is one number under the 3x3 kernel."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    channel = tl.arange(0, OUTPUTS)
    tap = tl.arange(0, TAPS)
    image, y, x = _locate(place, height, width)
    source, tap_y, tap_x = tap % INPUTS, tap // INPUTS // 3, tap // INPUTS % 3
    real = tap < INPUTS * 9
    kernel = tl.load(weight + channel[None, :] * (INPUTS * 9) + tap[:, None], mask=real[:, None], other=0.0)
    best = tl.full((PLACES, OUTPUTS), float("-inf"), tl.float32)
    won = tl.zeros((PLACES, OUTPUTS), tl.int32)
    for pixel in tl.static_range(4):
        row = 2 * y[:, None] + pixel // 2 + tap_y[None, :] - 1
        column = 2 * x[:, None] + pixel % 2 + tap_x[None, :] - 1
        inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
        seen = tl.load(
            images + ((image[:, None] * INPUTS + source[None, :]) * height + row) * width + column,
            mask=inside & real[None, :] & (place < total)[:, None], other=0.0,
        )  # fmt: skip
        value = _product(seen, kernel, PRECISION)
        won = tl.where(value > best, pixel, won)
        best = tl.maximum(value, best)
    best += tl.load(bias + channel)[None, :].to(tl.float32)
    _store(out, winner, best, won, place, channel, total, OUTPUTS)


@triton.jit
def _pool(values, bias, out, winner, total, height, width, OUTPUTS: tl.constexpr, PLACES: tl.constexpr):
    """Add the bias, pool and apply ReLU for some places."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    channel = tl.arange(0, OUTPUTS)
    image, y, x = _locate(place, height, width)
    best = tl.full((PLACES, OUTPUTS), float("-inf"), tl.float32)
    won = tl.zeros((PLACES, OUTPUTS), tl.int32)
    for pixel in tl.static_range(4):
        at = (image * height + 2 * y + pixel // 2) * width + 2 * x + pixel % 2
        value = tl.load(
            values + at[:, None] * OUTPUTS + channel[None, :], mask=(place < total)[:, None], other=0.0
        ).to(tl.float32)
        won = tl.where(value > best, pixel, won)
        best = tl.maximum(value, best)
    best += tl.load(bias + channel)[None, :].to(tl.float32)
    _store(out, winner, best, won, place, channel, total, OUTPUTS)


@triton.jit
def _weight_gradient(
    images, gradient, winner, sums, total, height, width, programs,
    INPUTS: tl.constexpr, TAPS: tl.constexpr, OUTPUTS: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum each program's share of the gradient of weight and bias; the bias is a tap that always sees 1."""
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
        won = tl.load(winner + at, mask=(place < total)[:, None], other=NOBODY)
        for pixel in tl.static_range(4):
            row = 2 * y[None, :] + pixel // 2 + tap_y[:, None] - 1
            column = 2 * x[None, :] + pixel % 2 + tap_x[:, None] - 1
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            seen = tl.load(
                images + ((image[None, :] * INPUTS + source[:, None]) * height + row) * width + column,
                mask=inside & real[:, None] & (place < total)[None, :], other=0.0,
            )  # fmt: skip
            seen = tl.where((tap == INPUTS * 9)[:, None], 1.0, seen.to(tl.float32))
            part = tl.where(won == pixel, slope, 0.0)
            total_sum += _product(seen, part, PRECISION)
    tl.store(sums + (tl.program_id(0) * TAPS + tap)[:, None] * OUTPUTS + channel[None, :], total_sum)


@triton.jit
def _tap_gradients(
    weight, gradient, winner, out, total,
    INPUTS: tl.constexpr, TAPS: tl.constexpr, OUTPUTS: tl.constexpr, PLACES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Send the gradients of some places back through the kernel: to each tap, for each pixel that may have won."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    channel = tl.arange(0, OUTPUTS)
    tap = tl.arange(0, TAPS)
    kernel = tl.load(
        weight + channel[:, None] * (INPUTS * 9) + tap[None, :], mask=(tap < INPUTS * 9)[None, :], other=0.0
    )
    at = place[:, None] * OUTPUTS + channel[None, :]
    slope = tl.load(gradient + at, mask=(place < total)[:, None], other=0.0)
    won = tl.load(winner + at, mask=(place < total)[:, None], other=NOBODY)
    for pixel in tl.static_range(4):
        part = tl.where(won == pixel, slope, 0.0)
        reached = _product(part, kernel, PRECISION)
        tl.store(
            out + (place[:, None] * 4 + pixel) * TAPS + tap[None, :], reached, mask=(place < total)[:, None]
        )


@triton.jit
def _gather_taps(
    reached, out, total, height, width, INPUTS: tl.constexpr, TAPS: tl.constexpr, PIXELS: tl.constexpr
):
    """Add up what reached some pixels of the images: each lies under up to nine taps of its neighbours."""
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
            reached + (place * 4 + own) * TAPS + position * INPUTS + source, mask=inside, other=0.0
        )
    tl.store(out + pixel, slope, mask=pixel < total)


@triton.jit
def _unpool(
    gradient, winner, out, sums, total, height, width, programs, OUTPUTS: tl.constexpr, PLACES: tl.constexpr
):
    """Hand each gradient to the pixel that won, and sum each program's share of the bias's gradient."""
    channel = tl.arange(0, OUTPUTS)
    bias = tl.zeros((PLACES, OUTPUTS), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(total, PLACES), programs):
        place = block * PLACES + tl.arange(0, PLACES)
        image, y, x = _locate(place, height, width)
        there = (place < total)[:, None]
        at = place[:, None] * OUTPUTS + channel[None, :]
        slope = tl.load(gradient + at, mask=there, other=0.0)
        won = tl.load(winner + at, mask=there, other=NOBODY)
        bias += tl.where(won < NOBODY, slope, 0.0).to(tl.float32)
        for pixel in tl.static_range(4):
            before = (image * height + 2 * y + pixel // 2) * width + 2 * x + pixel % 2
            tl.store(
                out + before[:, None] * OUTPUTS + channel[None, :],
                tl.where(won == pixel, slope, 0.0), mask=there,
            )  # fmt: skip
    tl.store(sums + tl.program_id(0) * OUTPUTS + channel, tl.sum(bias, 0))


@triton.jit
def _paint(
    features, first, first_bias, second, second_bias, out, total, height, width,
    CODE: tl.constexpr, HIDDEN: tl.constexpr, CHANNELS: tl.constexpr, CELLS: tl.constexpr, DOTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Turn some cells of a code into 4x4 pixels each: two transposed convolutions that tile, and a sigmoid."""
    cell = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    node, dot = tl.arange(0, 4 * HIDDEN), tl.arange(0, DOTS)
    sketch = _sketch(features, first, first_bias, cell, node, total, height, width, CODE, HIDDEN)
    strokes = _strokes(second, node, dot, HIDDEN, CHANNELS)
    value = _product(tl.maximum(sketch, 0.0), strokes, PRECISION)
    value += tl.load(second_bias + dot % CHANNELS)[None, :].to(tl.float32)
    at, there = _pixels(cell, dot, total, height, width, CHANNELS)
    tl.store(out + at, 1.0 / (1.0 + tl.exp(-value)), mask=there)


@triton.jit
def _paint_gradients(
    features, first, first_bias, second, painted, gradient, sums, total, height, width, programs,
    CODE: tl.constexpr, HIDDEN: tl.constexpr, CHANNELS: tl.constexpr, CELLS: tl.constexpr, DOTS: tl.constexpr,
    ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum each program's share of the gradients: of the first layer, of the second, of the second's bias."""
    node, dot, row = tl.arange(0, 4 * HIDDEN), tl.arange(0, DOTS), tl.arange(0, ROWS)
    strokes = _strokes(second, node, dot, HIDDEN, CHANNELS)
    of_first = tl.zeros((ROWS, 4 * HIDDEN), tl.float32)
    of_second = tl.zeros((4 * HIDDEN, DOTS), tl.float32)
    of_bias = tl.zeros((DOTS,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(total, CELLS), programs):
        cell = block * CELLS + tl.arange(0, CELLS)
        sketch = _sketch(features, first, first_bias, cell, node, total, height, width, CODE, HIDDEN)
        at, there = _pixels(cell, dot, total, height, width, CHANNELS)
        value = tl.load(painted + at, mask=there, other=0.0).to(tl.float32)
        slope = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32) * value * (1.0 - value)
        back = tl.where(sketch > 0, _product(slope, tl.trans(strokes), PRECISION), 0.0)
        # the code itself, and below it a row of ones for the bias
        seen = _code(features, cell[None, :], row[:, None], total, height, width, CODE)
        of_first += _product(seen, back, PRECISION)
        of_second += _product(tl.trans(tl.maximum(sketch, 0.0)), slope, PRECISION)
        of_bias += tl.sum(slope, 0)
    here = sums + tl.program_id(0) * (ROWS * 4 * HIDDEN + 4 * HIDDEN * DOTS + DOTS)
    tl.store(here + row[:, None] * (4 * HIDDEN) + node[None, :], of_first)
    here += ROWS * 4 * HIDDEN
    tl.store(here + node[:, None] * DOTS + dot[None, :], of_second)
    tl.store(here + 4 * HIDDEN * DOTS + dot, of_bias)


@triton.jit
def _sketch(
    features, first, first_bias, cell, node, total, height, width, CODE: tl.constexpr, HIDDEN: tl.constexpr
):
    """Give the first layer's values before ReLU; a node is one hidden channel in one of a cell's four corners."""
    sketch = tl.load(first_bias + node % HIDDEN)[None, :].to(tl.float32)
    sketch = tl.broadcast_to(sketch, (cell.shape[0], node.shape[0]))
    for part in tl.static_range(CODE):
        seen = _code(features, cell, part, total, height, width, CODE)
        weight = tl.load(first + part * (4 * HIDDEN) + node).to(tl.float32)
        sketch += seen[:, None] * weight[None, :]
    return sketch


@triton.jit
def _code(features, cell, part, total, height, width, CODE: tl.constexpr):
    """Give a part of the code of some cells; the part after the last is 1, and those after it 0."""
    size = height * width
    at = (cell // size * CODE + part) * size + cell % size
    there = cell < total
    seen = tl.load(features + at, mask=there & (part < CODE), other=0.0).to(tl.float32)
    return tl.where(there & (part == CODE), 1.0, seen)


@triton.jit
def _strokes(second, node, dot, HIDDEN: tl.constexpr, CHANNELS: tl.constexpr):
    """Give the second layer as one matrix: a node paints only the four pixels of its own corner."""
    corner, within = dot // (4 * CHANNELS), dot % (4 * CHANNELS)
    own = (node // HIDDEN)[:, None] == corner[None, :]
    at = (node % HIDDEN)[:, None] * (4 * CHANNELS) + within[None, :]
    return tl.load(second + at, mask=own, other=0.0).to(tl.float32)


@triton.jit
def _pixels(cell, dot, total, height, width, CHANNELS: tl.constexpr):
    """Find where the dots of some cells lie in the images; a dot is one pixel of a cell, in one channel."""
    size = height * width
    image, y, x = cell // size, cell % size // width, cell % width
    corner, pixel, channel = dot // (4 * CHANNELS), dot // CHANNELS % 4, dot % CHANNELS
    row = 4 * y[:, None] + (2 * (corner // 2) + pixel // 2)[None, :]
    column = 4 * x[:, None] + (2 * (corner % 2) + pixel % 2)[None, :]
    at = ((image[:, None] * CHANNELS + channel[None, :]) * 4 * height + row) * 4 * width + column
    return at, (cell < total)[:, None] & (dot < 16 * CHANNELS)[None, :]


@triton.jit
def _product(left, right, PRECISION: tl.constexpr):
    if PRECISION == "bf16":
        return tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16))
    return tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision=PRECISION)


@triton.jit
def _add_rows(rows, out, count, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sum the rows of a matrix, always in the same order."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)
        there = (row < count)[:, None] & (column < width)[None, :]
        total += tl.load(rows + row[:, None] * width + column[None, :], mask=there, other=0.0)
    tl.store(out + column, tl.sum(total, 0), mask=column < width)


@triton.jit
def _locate(place, height, width):
    """Find the image, row and column of an output."""
    size = (height // 2) * (width // 2)
    within = place % size
    return place // size, within // (width // 2), within % (width // 2)


@triton.jit
def _store(out, winner, best, won, place, channel, total, OUTPUTS: tl.constexpr):
    at = place[:, None] * OUTPUTS + channel[None, :]
    there = (place < total)[:, None]
    tl.store(out + at, tl.maximum(best, 0.0), mask=there)
    tl.store(winner + at, tl.where(best > 0, won, NOBODY).to(tl.uint8), mask=there)


def convolve_pool(images: Tensor, weight: Tensor, bias: Tensor, dtype: torch.dtype, precision: str):
    """Convolve, pool and apply ReLU; give the outputs and who won."""
    count, inputs, height, width = images.shape
    out, winner = _outputs(count, len(weight), height, width, dtype, images.device)
    total = count * (height // 2) * (width // 2)
    _convolve_pool[(triton.cdiv(total, PLACES),)](
        images, weight, bias, out, winner, total, height, width,
        inputs, _taps(inputs), len(weight), PLACES, precision, num_warps=4,
    )  # fmt: skip
    return out, winner


def convolve_pool_gradients(
    images: Tensor, weight: Tensor, gradient: Tensor, winner: Tensor, precision: str, *, of_images: bool
):
    """Give the gradients of images (or None), weight and bias."""
    count, inputs, height, width = images.shape
    outputs, taps = len(weight), _taps(inputs)
    total = count * (height // 2) * (width // 2)
    places = 2 * FEW_PLACES if total > 16 * MOST_PROGRAMS * FEW_PLACES else FEW_PLACES
    programs = min(MOST_PROGRAMS, triton.cdiv(total, places))
    sums = torch.empty((programs, taps, outputs), device=images.device)
    _weight_gradient[(programs,)](
        images, gradient, winner, sums, total, height, width, programs,
        inputs, taps, outputs, places, precision, num_warps=4,
    )  # fmt: skip
    summed = _sum_rows(sums)
    weight_gradient = summed[: inputs * 9].view(3, 3, inputs, outputs).permute(3, 2, 0, 1)
    image_gradient = None
    if of_images:
        reached = torch.empty((total, 4, taps), device=images.device)
        _tap_gradients[(triton.cdiv(total, PLACES),)](
            weight, gradient, winner, reached, total, inputs, taps, outputs, PLACES, precision, num_warps=4
        )
        image_gradient = torch.empty_like(images)
        _gather_taps[(triton.cdiv(images.numel(), PIXELS),)](
            reached, image_gradient, images.numel(), height, width, inputs, taps, PIXELS, num_warps=4
        )
    return image_gradient, weight_gradient, summed[inputs * 9]


def pool(values: Tensor, bias: Tensor):
    """Add the bias, pool and apply ReLU; give the outputs and who won."""
    count, channels, height, width = values.shape
    out, winner = _outputs(count, channels, height, width, values.dtype, values.device)
    total = count * (height // 2) * (width // 2)
    _pool[(triton.cdiv(total, FEW_PLACES),)](
        values, bias, out, winner, total, height, width, channels, FEW_PLACES, num_warps=4
    )
    return out, winner


def pool_gradients(gradient: Tensor, winner: Tensor):
    """Give the gradients of the pooled values and of the bias."""
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
        winner,
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
    return values, _sum_rows(sums)


def paint(
    features: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor, precision: str
):
    """Paint guidance from a code: weights come with their output channels last."""
    count, code, height, width = features.shape
    channels = len(second_bias)
    out = torch.empty((count, channels, 4 * height, 4 * width), device=features.device)
    cells = count * height * width
    _paint[(triton.cdiv(cells, CELLS),)](
        features, first, first_bias, second, second_bias, out, cells, height, width,
        code, len(first_bias), channels, CELLS, _dots(channels), precision, num_warps=4,
    )  # fmt: skip
    return out


def paint_gradients(
    features: Tensor,
    first: Tensor,
    first_bias: Tensor,
    second: Tensor,
    painted: Tensor,
    gradient: Tensor,
    precision: str,
):
    """Give the gradients of the first weight and bias and of the second weight and bias, in torch's shapes."""
    count, code, height, width = features.shape
    hidden, channels = len(first_bias), painted.shape[1]
    cells, dots, rows = count * height * width, _dots(channels), max(16, triton.next_power_of_2(code + 1))
    programs = min(MOST_PROGRAMS, triton.cdiv(cells, CELLS))
    sizes = [rows * 4 * hidden, 4 * hidden * dots, dots]
    sums = torch.empty((programs, sum(sizes)), device=features.device)
    _paint_gradients[(programs,)](
        features, first, first_bias, second, painted, gradient, sums, cells, height, width, programs,
        code, hidden, channels, CELLS, dots, rows, precision, num_warps=4,
    )  # fmt: skip
    of_first, of_second, of_bias = torch.split(_sum_rows(sums), sizes)
    of_first = of_first.view(rows, 2, 2, hidden)
    # only a node's own corner is real: corners are summed along the diagonal
    of_second = of_second.view(4, hidden, dots)[:, :, : 16 * channels].view(4, hidden, 4, 4 * channels)
    of_second = of_second.diagonal(dim1=0, dim2=2).sum(-1).view(hidden, 2, 2, channels)
    return (
        of_first[:code].permute(0, 3, 1, 2),
        of_first[code].sum((0, 1)),
        of_second.permute(0, 3, 1, 2),
        of_bias[: 16 * channels].view(16, channels).sum(0),
    )


def _dots(channels: int) -> int:
    """Count the pixels of a cell in all channels, rounded up to what the matrix units take."""
    return max(16, triton.next_power_of_2(16 * channels))


def _outputs(count: int, channels: int, height: int, width: int, dtype: torch.dtype, device: torch.device):
    shape = (count, channels, height // 2, width // 2)
    return tuple(
        torch.empty(shape, dtype=kind, device=device, memory_format=torch.channels_last)
        for kind in (dtype, torch.uint8)
    )


def _sum_rows(rows: Tensor) -> Tensor:
    out = torch.empty(rows.shape[1:], device=rows.device)
    _add_rows[(triton.cdiv(out.numel(), 16),)](rows, out, len(rows), out.numel(), 128, 16, num_warps=4)
    return out


def _taps(inputs: int) -> int:
    """Count the taps, one more for the bias, rounded up to what the matrix units take."""
    return max(16, triton.next_power_of_2(inputs * 9 + 1))
