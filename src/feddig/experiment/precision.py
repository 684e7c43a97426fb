"""In which number format training computes: full, tf32 or bf16, and which of them a device does well."""

import torch

from feddig.errors import SettingError

AMPERE = (8, 0)
"""The first generation of NVIDIA's GPUs with matrix units for tf32 and bf16."""


def choose_precision(asked: str | None, device: torch.device) -> str:
    """Take what was asked for; left open, a GPU with the units for it trains in bf16, anything else in fp32."""
    has_units = device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE
    if asked is None:
        return "bf16" if has_units else "fp32"
    if asked == "tf32" and not has_units:
        raise SettingError("training.precision: tf32 needs an NVIDIA GPU of 2020 or later; use fp32")
    return asked


def prepare_device(precision: str | None, device: torch.device) -> None:
    """Tell torch, for the whole process, what it may round; after training in bf16, evaluation may use tf32."""
    if device.type != "cuda":
        return
    tf32 = precision != "fp32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True  # shapes repeat, so the search for the fastest kernel pays
