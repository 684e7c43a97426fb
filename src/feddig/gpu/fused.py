"""Layers that use our own kernels (kernels/) on an NVIDIA GPU, where these compute the same in less time.

They are the block of the classifiers (3x3 convolution, 2x2 max-pool, ReLU) and the layers of the guidance producer.
A recorded step also computes F_D and F_R in parallel.
"""

import importlib.util
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d, max_pool2d, relu

log = logging.getLogger("feddig")

FEW_CHANNELS = 4
"""Inputs of at most this many channels are convolved and pooled in one kernel."""
FEWEST_OUTPUTS, MOST_OUTPUTS = 16, 256


@contextmanager
def in_parallel(inputs: Tensor) -> Iterator[Callable[[], None]]:
    """Compute the `with` block in parallel to what follows it, until the yielded function is called.

    This happens only while a step is recorded as a CUDA graph: the block becomes a branch of the graph.
    """
    if not inputs.is_cuda or not torch.cuda.is_current_stream_capturing():
        yield lambda: None
        return
    main, side = torch.cuda.current_stream(inputs.device), _side_stream(inputs.device)
    side.wait_stream(main)
    with torch.cuda.stream(side):
        yield lambda: main.wait_stream(side)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    # one stream is enough: steps are recorded one at a time, and a graph does not keep its stream
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _Switch:
    on = False


def use_kernels(wanted: bool) -> None:
    """Turn our kernels on or off in this process; without Triton or a C compiler, warn and leave them off."""
    missing = [
        name
        for name, found in (
            ("Triton", importlib.util.find_spec("triton")),
            ("a C compiler", shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")),
        )
        if not found
    ]
    if wanted and missing:
        log.warning("fused kernels need %s, which was not found; training is slower", " and ".join(missing))
    _Switch.on = wanted and not missing


def uses_kernels() -> bool:
    """Tell whether our kernels are on."""
    return _Switch.on


class ConvPool(nn.Conv2d):
    """relu(max_pool(conv(x))), which equals max_pool(relu(conv(x))) with a quarter of the work in ReLU."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3, padding=1)

    def forward(self, images: Tensor) -> Tensor:
        """Halve the sides of images [batch, inputs, height, width]."""
        if not self._fits(images):
            return relu(max_pool2d(super().forward(images), 2))
        if self.in_channels <= FEW_CHANNELS:
            return cast(Tensor, _ConvolvePool.apply(images, self.weight, self.bias))  # type: ignore[no-untyped-call]
        convolved = conv2d(images, self.weight, None, padding=1)
        return cast(Tensor, _Pool.apply(convolved, self.bias))  # type: ignore[no-untyped-call]

    def _fits(self, images: Tensor) -> bool:
        outputs = self.out_channels
        return (
            _Switch.on
            and images.is_cuda
            and FEWEST_OUTPUTS <= outputs <= MOST_OUTPUTS
            and outputs & (outputs - 1) == 0
            and not (images.shape[-1] % 2 or images.shape[-2] % 2)
        )


def transposed_convolutions(features: Tensor, layers: nn.Sequential) -> Tensor:
    """Run a guidance producer's layers: two transposed convolutions whose stride is their size, ReLU, sigmoid."""
    first, second = layers[0], layers[2]
    assert isinstance(first, nn.ConvTranspose2d)
    assert isinstance(second, nn.ConvTranspose2d)
    hidden = first.out_channels
    fits = _Switch.on and features.is_cuda and not features.requires_grad
    if not fits or hidden & (hidden - 1) or hidden > FEWEST_OUTPUTS or first.in_channels > FEWEST_OUTPUTS:
        return cast(Tensor, layers(features))
    weights = (first.weight, first.bias, second.weight, second.bias)
    return cast(Tensor, _TransposedConvolutions.apply(features, *weights))  # type: ignore[no-untyped-call]


class _ConvolvePool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from feddig.gpu.kernels import conv_pool

        images, weight = images.contiguous(), weight.contiguous(memory_format=torch.channels_last)
        dtype = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else weight.dtype
        ctx.precision = _precision(dtype)
        out, argmax = conv_pool.convolve_pool(images, weight, bias, dtype, ctx.precision)
        ctx.save_for_backward(images, weight, argmax)
        return cast(Tensor, out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor, Tensor]:
        from feddig.gpu.kernels import conv_pool

        images, weight, argmax = ctx.saved_tensors
        of_images, of_weight, of_bias = conv_pool.convolve_pool_gradients(
            images, weight, gradient.contiguous(memory_format=torch.channels_last), argmax, ctx.precision,
            of_images=ctx.needs_input_grad[0],
        )  # fmt: skip
        return of_images, of_weight.to(weight.dtype), of_bias.to(weight.dtype)


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, bias: Tensor) -> Tensor:
        from feddig.gpu.kernels import conv_pool

        out, argmax = conv_pool.pool(values.contiguous(memory_format=torch.channels_last), bias)
        ctx.save_for_backward(argmax)
        ctx.dtype = bias.dtype
        return cast(Tensor, out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        from feddig.gpu.kernels import conv_pool

        (argmax,) = ctx.saved_tensors
        of_values, of_bias = conv_pool.pool_gradients(
            gradient.contiguous(memory_format=torch.channels_last), argmax
        )
        return of_values, of_bias.to(ctx.dtype)


class _TransposedConvolutions(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, first: Tensor, first_bias: Tensor, second: Tensor, second_bias: Tensor
    ) -> Tensor:
        from feddig.gpu.kernels import transposed_convolution

        features = features.contiguous()
        stored = [weight.permute(0, 2, 3, 1).contiguous() for weight in (first, second)]
        ctx.precision = _precision(first.dtype)
        out = transposed_convolution.transposed_convolutions(
            features, stored[0], first_bias, stored[1], second_bias, ctx.precision
        )
        ctx.save_for_backward(features, stored[0], first_bias, stored[1], out)
        return cast(Tensor, out)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from feddig.gpu.kernels import transposed_convolution

        features, first, first_bias, second, guidance = ctx.saved_tensors
        gradients = transposed_convolution.transposed_convolution_gradients(
            features, first, first_bias, second, guidance, gradient.contiguous(), ctx.precision
        )
        return (None, *(of_weight.to(first.dtype) for of_weight in gradients))


def _precision(dtype: torch.dtype) -> str:
    """Return the precision of products by Triton's name."""
    if dtype == torch.bfloat16:
        return "bf16"
    return "tf32" if torch.backends.cudnn.allow_tf32 else "ieee"
