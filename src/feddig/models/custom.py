"""Import a user's own network, and check before the first round that the networks fit together."""

import importlib
import os
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn

from feddig.errors import SettingError, first_line


def import_network(name: str, key: str, known: str, *arguments: object) -> nn.Module:
    """Return the network that a user's function, given as package.module:function, builds."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as with `python -m`: a user's module lies in the working folder
    module_name, colon, function_name = name.partition(":")
    if not colon:
        raise SettingError(f"{key}: {name!r} is not known; choose {known}, or write package.module:function")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"{key}: {name!r} cannot be imported ({error}); check the name and PYTHONPATH"
        ) from None
    try:
        network = function(*arguments)
    except Exception as error:  # a user's code may fail in any way
        raise SettingError(f"{key}: {name!r} failed: {first_line(error)}") from error
    if not isinstance(network, nn.Module):
        raise SettingError(f"{key}: {name!r} returned {type(network).__name__}, not a torch.nn.Module")
    return network


def check_networks(
    classifier: nn.Module,
    guidance_producer: nn.Module | None,
    *,
    image_shape: tuple[int, int, int],
    feature_shape: tuple[int, ...] | None,
    classes: int,
) -> None:
    """Check the shapes that pass between P_G and M, and that training changes nothing but parameters."""
    inputs = [torch.zeros(2, *image_shape)]
    if feature_shape is not None:
        inputs.append(torch.zeros(2, *feature_shape))
    if guidance_producer is not None and feature_shape is not None:
        guidance = _try("model.guidance", guidance_producer, inputs[1])
        if guidance.shape != inputs[0].shape:
            raise SettingError(
                f"model.guidance: gives {tuple(guidance.shape[1:])} for a code of {feature_shape}, "
                f"but images are {image_shape}; change its last layer"
            )
    logits = _try("model.classifier", classifier, *inputs)
    if logits.shape != (2, classes):
        raise SettingError(
            f"model.classifier: gives {tuple(logits.shape[1:])} for an image, but there are {classes} classes; "
            f"make its last layer {classes} wide"
        )


def _try(key: str, network: nn.Module, *inputs: Tensor) -> Tensor:
    before = {name: buffer.clone() for name, buffer in network.named_buffers()}
    network.train()
    output = _call(key, lambda: network(*inputs))
    for name, buffer in network.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise SettingError(
                f"{key}: its buffer {name!r} changes in training, and no federated rule says how to average it; "
                "use GroupNorm, or BatchNorm with track_running_stats=False"
            )
    return output


def _call(key: str, forward: Callable[[], Tensor]) -> Tensor:
    try:
        with torch.no_grad():
            output = forward()
    except Exception as error:  # a user's network may fail in any way
        raise SettingError(f"{key}: fails on a batch of two zero samples: {first_line(error)}") from error
    if not isinstance(output, Tensor) or not output.is_floating_point():
        raise SettingError(f"{key}: gives {type(output).__name__}, not a tensor of floats")
    return output
