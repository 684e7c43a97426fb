"""Kernels for the guidance producer P_G: a code painted into an image.

P_G is small, and torch spends more time on starting its many kernels than on computing. As its transposed
convolutions tile, each cell of a code becomes its 4x4 pixels without regard to its neighbours: one kernel forth, one
back.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from feddig.gpu.kernels.sums import MOST_PROGRAMS, product, sum_rows

CELLS = 64
"""Cells of a code that one program paints."""


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
    value = product(tl.maximum(sketch, 0.0), strokes, PRECISION)
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
        back = tl.where(sketch > 0, product(slope, tl.trans(strokes), PRECISION), 0.0)
        # the code itself, and below it a row of ones for the bias
        seen = _code(features, cell[None, :], row[:, None], total, height, width, CODE)
        of_first += product(seen, back, PRECISION)
        of_second += product(tl.trans(tl.maximum(sketch, 0.0)), slope, PRECISION)
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
    of_first, of_second, of_bias = torch.split(sum_rows(sums), sizes)
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
