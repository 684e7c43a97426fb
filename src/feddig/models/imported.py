"""A user's own network, named in an experiment as package.module:function."""

import importlib
import os
import sys

from torch import nn

from feddig.errors import SettingError, first_line


def import_network(name: str, key: str, known: str, *arguments: object) -> nn.Module:
    """Call a user's own function, given as package.module:function, for a network."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` has it: a user's module lies beside the experiment
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
