"""Functions that several kernels share: products in a given precision, and sums over programs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_PROGRAMS = 264
"""For kernels that sum over a batch: two for each multiprocessor of an H200."""


@triton.jit
def product(left, right, PRECISION: tl.constexpr):
    """Multiply two matrices in bf16 or in one of Triton's precisions."""
    if PRECISION == "bf16":
        result = tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16))
    else:
        result = tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision=PRECISION)
    return (
        result  # one return only: after a return inside a branch Triton would still compile the other branch
    )


@triton.jit
def _add_rows(rows, out, count, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Sum the rows of a matrix, always in the same order."""
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)
        exists = (row < count)[:, None] & (column < width)[None, :]
        total += tl.load(rows + row[:, None] * width + column[None, :], mask=exists, other=0.0)
    tl.store(out + column, tl.sum(total, 0), mask=column < width)


def sum_rows(rows: Tensor) -> Tensor:
    """Add the sums of all programs."""
    out = torch.empty(rows.shape[1:], device=rows.device)
    _add_rows[(triton.cdiv(out.numel(), 16),)](rows, out, len(rows), out.numel(), 128, 16, num_warps=4)
    return out
