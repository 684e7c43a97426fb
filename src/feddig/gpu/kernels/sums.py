"""What several kernels need: products in the precision that is asked for, and sums over programs."""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST_PROGRAMS = 264
"""Of a kernel that sums over a batch: two for each multiprocessor of an H200."""


@triton.jit
def product(left, right, PRECISION: tl.constexpr):
    """Multiply two matrices, rounded as Triton calls it, or to bf16."""
    if PRECISION == "bf16":
        result = tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16))
    else:
        result = tl.dot(left.to(tl.float32), right.to(tl.float32), input_precision=PRECISION)
    return result  # once: after a return inside the branch Triton would go on to compile the other one


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


def sum_rows(rows: Tensor) -> Tensor:
    """Add up what each program has summed."""
    out = torch.empty(rows.shape[1:], device=rows.device)
    _add_rows[(triton.cdiv(out.numel(), 16),)](rows, out, len(rows), out.numel(), 128, 16, num_warps=4)
    return out
