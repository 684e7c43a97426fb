"""Image files as pixels of eight bits, all of one mode and size; DICOM files by the extra `dicom`.

Grey values of a DICOM file follow from the file alone: rescaled as its slope and intercept say, then its first window
from black to white; without a window, the whole range of its stored bits. MONOCHROME1 is turned round, so that more is
brighter.
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from feddig.errors import DataError

DICOM = ".dcm"
ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", DICOM)
TWELVE_BITS = 2**12
_GREY = ("1", "L", "LA", "La")


@dataclass(frozen=True)
class Headers:
    """What the headers of some image files say: the first file of each kind."""

    grey: dict[bool, Path]
    """A file without colours, and one with."""
    sizes: dict[tuple[int, int], Path]
    """A file of each width and height."""


def read_headers(paths: list[Path]) -> Headers:
    """Read the header of every file."""
    found = Headers({}, {})
    for path in paths:
        if path.suffix.lower() == DICOM:
            without_colour, size = describe_dicom(path)
        else:
            with _open(path) as image:
                without_colour, size = is_grey(image), image.size
        found.grey.setdefault(without_colour, path)
        found.sizes.setdefault(size, path)
    return found


@dataclass
class Decoder:
    """The mode and size that every image of the set is converted to."""

    mode: str
    width: int
    height: int
    deepest: int = 0
    """The largest value in images of 16 bits; 0 if there are none."""

    @classmethod
    def for_all(cls, paths: list[Path], image_size: int, channels: int | None) -> "Decoder":
        """Read every file's header. What is not given must be the same in all of them."""
        headers = read_headers(paths)
        grey, sizes = headers.grey, headers.sizes
        if channels is None and len(grey) > 1:
            raise DataError(
                f"{grey[False]}: is in colour, and {grey[True]} is grey; set data.channels to 1 to read all images as "
                "grey, or to 3 to read all in colour"
            )
        if image_size == 0 and len(sizes) > 1:
            (first, _), (other, path) = list(sizes.items())[:2]
            raise DataError(
                f"{path}: {other[0]} x {other[1]} pixels, "
                f"but the images before it have {first[0]} x {first[1]}; "
                "set data.image_size to bring all to one size"
            )
        width, height = (image_size, image_size) if image_size else next(iter(sizes))
        return cls("L" if channels == 1 or (channels is None and True in grey) else "RGB", width, height)

    def read(self, path: Path) -> np.ndarray:
        """Read one image as [height, width, channels]."""
        if path.suffix.lower() == DICOM:
            return self._fit(Image.fromarray(read_dicom(path)))
        with _open(path) as opened:
            if opened.mode.startswith("I"):
                self.deepest = max(self.deepest, int(np.asarray(opened).max()))
            return self._fit(to_eight_bits(opened, str(path)))

    def _fit(self, image: Image.Image) -> np.ndarray:
        image = image.convert(self.mode)
        if image.size != (self.width, self.height):
            image = image.resize((self.width, self.height), Image.Resampling.BILINEAR)
        return np.asarray(image).reshape(self.height, self.width, -1)

    @property
    def is_dark(self) -> bool:
        """Whether images of 16 bits use 12 or fewer, and so become nearly black."""
        return 0 < self.deepest < TWELVE_BITS


@contextmanager
def _open(path: Path) -> Iterator[Image.Image]:
    """Open an image; turn every error that Pillow raises on a damaged file into one line that names it."""
    try:
        with Image.open(path) as image:
            yield image
    except (OSError, EOFError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError) as error:
        raise DataError(
            f"{path}: not a readable image ({type(error).__name__}); replace the file or remove it"
        ) from None


def is_grey(image: Image.Image) -> bool:
    """Return whether an image's mode has no colours."""
    return image.mode in _GREY or image.mode.startswith("I")


def to_eight_bits(image: Image.Image, place: str) -> Image.Image:
    """Convert an image to a mode that Pillow turns into grey or colour without loss; of 16 bits keep the upper 8."""
    if image.mode.startswith("I"):
        # Pillow's own conversion makes everything above 255 white; a range of each image's own would change contrasts
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65_535:
            raise DataError(f"{place}: values outside 16 bits; save it with 8 or 16 bits per pixel")
        return Image.fromarray((values >> 8).astype(np.uint8))
    if image.mode == "F":
        raise DataError(
            f"{place}: floating-point pixels have no agreed range; save it with 8 bits per channel"
        )
    if "transparency" in image.info:
        return image.convert("RGBA")
    return image


def describe_dicom(path: Path) -> tuple[bool, tuple[int, int]]:
    """Return whether an image is grey, and its width and height, from its header."""
    header = _read_dicom(path, header_only=True)
    try:
        return int(header.SamplesPerPixel) == 1, (int(header.Columns), int(header.Rows))
    except (AttributeError, TypeError, ValueError) as error:
        raise DataError(f"{path}: a DICOM file without an image ({error}); remove it") from None


def read_dicom(path: Path) -> np.ndarray:
    """Read an image as uint8: [height, width] in grey, or [height, width, 3] in colour."""
    file = _read_dicom(path)
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
        low, high = _dicom_range(file)
    except (TypeError, ValueError, IndexError) as error:
        raise DataError(
            f"{path}: its window or rescaling is damaged ({error}); correct or remove it"
        ) from None
    values = pixels * float(file.get("RescaleSlope", 1)) + float(file.get("RescaleIntercept", 0))
    grey: np.ndarray = (np.clip((values - low) / (high - low), 0, 1) * 255).astype(np.uint8)
    return 255 - grey if kind == "MONOCHROME1" else grey


def _dicom_range(file: Any) -> tuple[float, float]:
    """Return the values that become black and white."""
    slope, intercept = float(file.get("RescaleSlope", 1)), float(file.get("RescaleIntercept", 0))
    if "WindowCenter" in file and "WindowWidth" in file:
        centre, width = (_first_value(file[name].value) for name in ("WindowCenter", "WindowWidth"))
        # the standard's linear function (C.11.2.1.2.1); a window may be one value wide
        half = max(width - 1, 1) / 2
        return centre - 0.5 - half, centre - 0.5 + half
    bits = int(file.BitsStored)
    first = -(2 ** (bits - 1)) if int(file.get("PixelRepresentation", 0)) else 0
    edges = [value * slope + intercept for value in (first, first + 2**bits - 1)]
    if edges[0] == edges[1]:
        raise ValueError("slope 0")
    return min(edges), max(edges)


def _first_value(value: Any) -> float:
    return float(value if isinstance(value, str | int | float) else value[0])


def _read_dicom(path: Path, *, header_only: bool = False) -> Any:
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
