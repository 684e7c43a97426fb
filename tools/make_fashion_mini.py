"""Make the data set fashion-mini from the four IDX files of Fashion-MNIST.

    python tools/make_fashion_mini.py FOLDER

The same files give the same arrays. Copy the printed fingerprint into feddig/data/load.py.
"""

import argparse
import io
import lzma
from importlib.resources import files
from pathlib import Path

import numpy as np

from feddig.data.arrays import load_idx
from feddig.data.dataset import Images
from feddig.data.load import FILES, FINGERPRINT, fingerprint
from feddig.files import write_atomically
from feddig.seeds import numpy_stream

SEED = 2017
TRAIN_PER_CLASS = 600
TEST_PER_CLASS = 100


def choose(images: Images, part: str, per_class: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the same number of images from each class, and shuffle them."""
    stream = numpy_stream(SEED, "fashion-mini", part)
    drawn = [
        stream.choice(np.flatnonzero(images.labels == label), size=per_class, replace=False)
        for label in np.unique(images.labels)
    ]
    chosen = stream.permutation(np.concatenate(drawn))
    # without the channel, as in the original files
    return np.ascontiguousarray(images.pixels[chosen, 0]), images.labels[chosen].astype(np.uint8)


def compress(array: np.ndarray) -> bytes:
    """Return an array as an .npy file, compressed by xz."""
    plain = io.BytesIO()
    np.save(plain, array, allow_pickle=False)
    return lzma.compress(plain.getvalue(), preset=9 | lzma.PRESET_EXTREME)


def main(words: list[str] | None = None) -> None:
    """Read the folder, write the four files and print their size and fingerprint."""
    parser = argparse.ArgumentParser(
        description="Make fashion-mini from the four IDX files of Fashion-MNIST."
    )
    parser.add_argument("folder", type=Path, help="where the four IDX files are")
    parser.add_argument(
        "--out", type=Path, default=Path(str(files("feddig.data") / "fashion_mini")), help="where to write"
    )
    arguments = parser.parse_args(words)
    full = load_idx(arguments.folder)
    arrays = [*choose(full.train, "train", TRAIN_PER_CLASS), *choose(full.test, "test", TEST_PER_CLASS)]
    size = 0
    for name, array in zip(FILES, arrays, strict=True):
        content = compress(array)
        write_atomically(arguments.out / f"{name}.npy.xz", content)
        size += len(content)
    found = fingerprint(arrays)
    print(f"{size:,} bytes, fingerprint {found}")
    print("as recorded" if found == FINGERPRINT else "not the recorded one: put it into feddig/data/load.py")


if __name__ == "__main__":
    main()
