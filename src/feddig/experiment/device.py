"""Which device a run uses, and what it is called."""

import platform

import torch

from feddig.errors import SettingError


def choose_device(name: str) -> torch.device:
    """Take auto, cpu, cuda or cuda:N at its word; auto is the first GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()) or (kind == "cpu" and number):
        raise SettingError(f"--device: {name!r} is not known; choose auto, cpu, cuda or cuda:N")
    if kind == "cuda":
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= found:
            raise SettingError(
                f"--device: {name!r} asked for, but {found} CUDA devices are there; use --device auto"
            )
    return torch.device(name)


def describe_device(device: torch.device) -> str:
    """Name the device as a report should."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'' if threads == 1 else 's'}"
