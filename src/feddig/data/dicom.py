"""DICOM files as pixels of eight bits, by the extra `dicom`.

Grey values follow from the file alone: rescaled as its slope and intercept say, then its first window from black to
white; without a window, the whole range of its stored bits. MONOCHROME1 is turned round, so that more is brighter.
"""

from pathlib import Path
from typing import Any

import numpy as np

from feddig.errors import DataError

DICOM = ".dcm"


def describe_dicom(path: Path) -> tuple[bool, tuple[int, int]]:
    """Return whether an image is grey, and its width and height, from its header."""
    header = _read(path, header_only=True)
    try:
        return int(header.SamplesPerPixel) == 1, (int(header.Columns), int(header.Rows))
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{path}: a DICOM file without an image ({error}); remove it") from None


def read_dicom(path: Path) -> np.ndarray:
    """Read an image as uint8: [height, width] in grey, or [height, width, 3] in colour."""
    file = _read(path)
    if int(file.get("NumberOfFrames") or 1) > 1:
        raise DataError(f"{path}: holds {file.NumberOfFrames} frames; save each as an image of its own")
    kind = str(file.get("PhotometricInterpretation", ""))
    if kind == "PALETTE COLOR":
        raise DataError(f"{path}: has a palette of colours; save it as RGB")
    try:
        pixels = np.asarray(file.pixel_array)
    except Exception as error:  # each of pydicom's decoders raises its own
        raise DataError(
            f"{path}: its pixels cannot be read ({type(error).__name__}: {' '.join(str(error).split())[:200]}); save "
            "it without compression"
        ) from None
    if pixels.ndim == 3:
        if pixels.dtype != np.uint8:
            raise DataError(f"{path}: colours have {pixels.dtype}; save it with 8 bits per channel")
        return pixels
    try:
        low, high = _range(file)
    except (TypeError, ValueError, IndexError) as error:
        raise DataError(
            f"{path}: its window or rescaling is damaged ({error}); correct or remove it"
        ) from None
    values = pixels * float(file.get("RescaleSlope", 1)) + float(file.get("RescaleIntercept", 0))
    grey: np.ndarray = (np.clip((values - low) / (high - low), 0, 1) * 255).astype(np.uint8)
    return 255 - grey if kind == "MONOCHROME1" else grey


def _range(file: Any) -> tuple[float, float]:
    """Return the values that become black and white."""
    slope, intercept = float(file.get("RescaleSlope", 1)), float(file.get("RescaleIntercept", 0))
    if "WindowCenter" in file and "WindowWidth" in file:
        centre, width = (_first(file[name].value) for name in ("WindowCenter", "WindowWidth"))
        # the standard's linear function (C.11.2.1.2.1); a window may be one value wide
        half = max(width - 1, 1) / 2
        return centre - 0.5 - half, centre - 0.5 + half
    bits = int(file.BitsStored)
    first = -(2 ** (bits - 1)) if int(file.get("PixelRepresentation", 0)) else 0
    edges = [value * slope + intercept for value in (first, first + 2**bits - 1)]
    if edges[0] == edges[1]:
        raise ValueError("slope 0")
    return min(edges), max(edges)


def _first(value: Any) -> float:
    return float(value if isinstance(value, str | int | float) else value[0])


def _read(path: Path, *, header_only: bool = False) -> Any:
    try:
        import pydicom
    except ImportError:
        raise DataError(
            f"{path}: is a DICOM file, which needs pydicom; install it with: python -m pip install 'feddig[dicom]'"
        ) from None
    try:
        return pydicom.dcmread(path, stop_before_pixels=header_only)
    except Exception as error:  # pydicom raises many kinds on damaged files
        raise DataError(
            f"{path}: not a readable DICOM file ({type(error).__name__}); replace the file or remove it"
        ) from None
