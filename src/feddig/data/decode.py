"""Image files as pixels of eight bits, all of one mode and size."""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from feddig.data.dicom import DICOM, describe_dicom, read_dicom
from feddig.errors import DataError

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", DICOM)
TWELVE_BITS = 2**12
_GREY = ("1", "L", "LA", "La")


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
        grey: dict[bool, Path] = {}
        sizes: dict[tuple[int, int], Path] = {}
        for path in paths:
            if path.suffix.lower() == DICOM:
                without_colour, size = describe_dicom(path)
                grey.setdefault(without_colour, path)
                sizes.setdefault(size, path)
                continue
            with _open(path) as image:
                grey.setdefault(is_grey(image), path)
                sizes.setdefault(image.size, path)
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
