"""Kernels for the guidance producer P_G: two transposed convolutions that turn a code into an image.

P_G is small, and torch spends more time on starting its many kernels than on computing. Its transposed convolutions
have a stride equal to their size, so each cell of a code becomes 4x4 pixels independently of its neighbours. One kernel
computes the forward pass, one the backward pass.

In the kernels a unit is one hidden channel in one quarter of a cell, and an output is one pixel of a cell in one
channel.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from feddig.gpu.kernels.reduce import MOST_PROGRAMS, product, sum_rows

CELLS = 64
"""Cells of a code that one program computes."""


@triton.jit
def _transposed_forward(
    features, first, first_bias, second, second_bias, out, total, height, width,
    CODE: tl.constexpr, HIDDEN: tl.constexpr, CHANNELS: tl.constexpr, CELLS: tl.constexpr, OUTPUTS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Turn some cells of a code into 4x4 pixels each: two transposed convolutions and a sigmoid."""
    cell = tl.program_id(0) * CELLS + tl.arange(0, CELLS)
    unit, output = tl.arange(0, 4 * HIDDEN), tl.arange(0, OUTPUTS)
    hidden_values = _hidden_values(
        features, first, first_bias, cell, unit, total, height, width, CODE, HIDDEN
    )
    matrix = _second_matrix(second, unit, output, HIDDEN, CHANNELS)
    value = product(tl.maximum(hidden_values, 0.0), matrix, PRECISION)
    value += tl.load(second_bias + output % CHANNELS)[None, :].to(tl.float32)
    at, exists = _addresses(cell, output, total, height, width, CHANNELS)
    tl.store(out + at, 1.0 / (1.0 + tl.exp(-value)), mask=exists)


@triton.jit
def _transposed_backward(
    features, first, first_bias, second, guidance, gradient, sums, total, height, width, programs,
    CODE: tl.constexpr, HIDDEN: tl.constexpr, CHANNELS: tl.constexpr, CELLS: tl.constexpr, OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Sum each program's share of the gradients: of the first layer, of the second, of the second's bias."""
    unit, output, row = tl.arange(0, 4 * HIDDEN), tl.arange(0, OUTPUTS), tl.arange(0, ROWS)
    matrix = _second_matrix(second, unit, output, HIDDEN, CHANNELS)
    of_first = tl.zeros((ROWS, 4 * HIDDEN), tl.float32)
    of_second = tl.zeros((4 * HIDDEN, OUTPUTS), tl.float32)
    of_bias = tl.zeros((OUTPUTS,), tl.float32)
    for block in range(tl.program_id(0), tl.cdiv(total, CELLS), programs):
        cell = block * CELLS + tl.arange(0, CELLS)
        hidden_values = _hidden_values(
            features, first, first_bias, cell, unit, total, height, width, CODE, HIDDEN
        )
        at, exists = _addresses(cell, output, total, height, width, CHANNELS)
        value = tl.load(guidance + at, mask=exists, other=0.0).to(tl.float32)
        slope = tl.load(gradient + at, mask=exists, other=0.0).to(tl.float32) * value * (1.0 - value)
        back = tl.where(hidden_values > 0, product(slope, tl.trans(matrix), PRECISION), 0.0)
        # the code, and below it a row of ones for the bias
        code = _code(features, cell[None, :], row[:, None], total, height, width, CODE)
        of_first += product(code, back, PRECISION)
        of_second += product(tl.trans(tl.maximum(hidden_values, 0.0)), slope, PRECISION)
        of_bias += tl.sum(slope, 0)
    here = sums + tl.program_id(0) * (ROWS * 4 * HIDDEN + 4 * HIDDEN * OUTPUTS + OUTPUTS)
    tl.store(here + row[:, None] * (4 * HIDDEN) + unit[None, :], of_first)
    here += ROWS * 4 * HIDDEN
    tl.store(here + unit[:, None] * OUTPUTS + output[None, :], of_second)
    tl.store(here + 4 * HIDDEN * OUTPUTS + output, of_bias)


@triton.jit
def _hidden_values(
    features, first, first_bias, cell, unit, total, height, width, CODE: tl.constexpr, HIDDEN: tl.constexpr
):
    """Return the first layer's values before ReLU."""
    hidden_values = tl.load(first_bias + unit % HIDDEN)[None, :].to(tl.float32)
    hidden_values = tl.broadcast_to(hidden_values, (cell.shape[0], unit.shape[0]))
    for channel_in in tl.static_range(CODE):
        code = _code(features, cell, channel_in, total, height, width, CODE)
        weight = tl.load(first + channel_in * (4 * HIDDEN) + unit).to(tl.float32)
        hidden_values += code[:, None] * weight[None, :]
    return hidden_values


@triton.jit
def _code(features, cell, channel_in, total, height, width, CODE: tl.constexpr):
    """Return a channel of the code of some cells; the channel after the last is 1, and further ones are 0."""
    size = height * width
    at = (cell // size * CODE + channel_in) * size + cell % size
    exists = cell < total
    code = tl.load(features + at, mask=exists & (channel_in < CODE), other=0.0).to(tl.float32)
    return tl.where(exists & (channel_in == CODE), 1.0, code)


@triton.jit
def _second_matrix(second, unit, output, HIDDEN: tl.constexpr, CHANNELS: tl.constexpr):
    """Return the second layer as one matrix; a unit contributes only to the four pixels of its own quarter."""
    quarter, within = output // (4 * CHANNELS), output % (4 * CHANNELS)
    own = (unit // HIDDEN)[:, None] == quarter[None, :]
    at = (unit % HIDDEN)[:, None] * (4 * CHANNELS) + within[None, :]
    return tl.load(second + at, mask=own, other=0.0).to(tl.float32)


@triton.jit
def _addresses(cell, output, total, height, width, CHANNELS: tl.constexpr):
    """Return the addresses of the outputs of some cells in the images, and which of them exist."""
    size = height * width
    image, y, x = cell // size, cell % size // width, cell % width
    quarter, pixel, channel = output // (4 * CHANNELS), output // CHANNELS % 4, output % CHANNELS
    row = 4 * y[:, None] + (2 * (quarter // 2) + pixel // 2)[None, :]
    column = 4 * x[:, None] + (2 * (quarter % 2) + pixel % 2)[None, :]
    at = ((image[:, None] * CHANNELS + channel[None, :]) * 4 * height + row) * 4 * width + column
    return at, (cell < total)[:, None] & (output < 16 * CHANNELS)[None, :]


def transposed_convolutions(
    features: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor, precision: str
):
    """Compute guidance from a code; weights have their output channels last."""
    count, code, height, width = features.shape
    channels = len(second_bias)
    out = torch.empty((count, channels, 4 * height, 4 * width), device=features.device)
    cells = count * height * width
    _transposed_forward[(triton.cdiv(cells, CELLS),)](
        features, first, first_bias, second, second_bias, out, cells, height, width,
        code, len(first_bias), channels, CELLS, _outputs(channels), precision, num_warps=4,
    )  # fmt: skip
    return out


def transposed_convolution_gradients(
    features: Tensor,
    first: Tensor,
    first_bias: Tensor,
    second: Tensor,
    guidance: Tensor,
    gradient: Tensor,
    precision: str,
):
    """Return the gradients of the first weight and bias and of the second weight and bias, in torch's shapes."""
    count, code, height, width = features.shape
    hidden, channels = len(first_bias), guidance.shape[1]
    cells, outputs, rows = (
        count * height * width,
        _outputs(channels),
        max(16, triton.next_power_of_2(code + 1)),
    )
    programs = min(MOST_PROGRAMS, triton.cdiv(cells, CELLS))
    sizes = [rows * 4 * hidden, 4 * hidden * outputs, outputs]
    sums = torch.empty((programs, sum(sizes)), device=features.device)
    _transposed_backward[(programs,)](
        features, first, first_bias, second, guidance, gradient, sums, cells, height, width, programs,
        code, hidden, channels, CELLS, outputs, rows, precision, num_warps=4,
    )  # fmt: skip
    of_first, of_second, of_bias = torch.split(sum_rows(sums), sizes)
    of_first = of_first.view(rows, 2, 2, hidden)
    # a unit has gradients in its own quarter only, so quarters are summed along the diagonal
    of_second = of_second.view(4, hidden, outputs)[:, :, : 16 * channels].view(4, hidden, 4, 4 * channels)
    of_second = of_second.diagonal(dim1=0, dim2=2).sum(-1).view(hidden, 2, 2, channels)
    return (
        of_first[:code].permute(0, 3, 1, 2),
        of_first[code].sum((0, 1)),
        of_second.permute(0, 3, 1, 2),
        of_bias[: 16 * channels].view(16, channels).sum(0),
    )


def _outputs(channels: int) -> int:
    """Count the outputs of a cell, rounded up to a size that the matrix units support."""
    return max(16, triton.next_power_of_2(16 * channels))
