"""Compile the kernels on a machine without a GPU: python tools/compile_kernels.py (needs triton).

Each kernel is called as in training, with tensors of every number format and shape in use, but it is compiled for an
H200 instead of run. This finds what Triton refuses; only tests/test_gpu.py tests whether a kernel is right.
"""

import itertools
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from feddig.gpu.kernels import conv_pool, transposed_convolution

HOPPER = GPUTarget("cuda", 90, 32)
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.uint8: "*u8"}
compiled = set()


def compile_instead(kernel: JITFunction, *arguments: Any, grid: Any, warmup: bool, **options: Any) -> None:
    """Compile a kernel for the arguments that it is called with."""
    signature, constants = {}, {}
    for parameter, argument in zip(kernel.params, arguments, strict=True):
        if parameter.is_constexpr:
            signature[parameter.name], constants[(parameter.num,)] = "constexpr", argument
        else:
            signature[parameter.name] = TYPES[argument.dtype] if isinstance(argument, torch.Tensor) else "i32"
    key = (kernel.__name__, *signature.values(), *constants.values())
    if key not in compiled:
        triton.compile(ASTSource(kernel, signature, constants), target=HOPPER, options=options)
        compiled.add(key)


def main() -> None:
    """Call every kernel in every format."""
    JITFunction.run = compile_instead
    for inputs, outputs, precision in itertools.product((1, 3, 4), (16, 32, 64), ("bf16", "tf32", "ieee")):
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        images, weight = torch.rand(256, inputs, 32, 32), torch.rand(outputs, inputs, 3, 3, dtype=dtype)
        out, winner = conv_pool.convolve_pool(
            images, weight, torch.rand(outputs, dtype=dtype), dtype, precision
        )
        for of_images in (False, True):
            conv_pool.convolve_pool_gradients(images, weight, out, winner, precision, of_images=of_images)
        out, winner = conv_pool.pool(out, torch.rand(outputs, dtype=dtype))
        conv_pool.pool_gradients(out, winner)
        if inputs == 4:
            continue
        features, first, second = (
            torch.rand(256, 4, 8, 8),
            torch.rand(4, 2, 2, 16),
            torch.rand(16, 2, 2, inputs),
        )
        bias = torch.rand(16)
        weights = (features, first, bias, second)
        guidance = transposed_convolution.transposed_convolutions(*weights, torch.rand(inputs), precision)
        transposed_convolution.transposed_convolution_gradients(*weights, guidance, guidance, precision)
    print(f"{len(compiled)} kernels compiled for {HOPPER.backend} {HOPPER.arch}")


if __name__ == "__main__":
    main()
