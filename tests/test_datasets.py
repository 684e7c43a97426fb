"""Data sets: each source with good files, and with each kind of wrong file."""

import gzip
import itertools
import lzma
import re
import runpy
import shutil
import struct
import tempfile
import zipfile
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from feddig.core.samples import ImageSource, padded_shape
from feddig.data import Dataset, dataset_from_arrays, load_dataset
from feddig.data.dataset import Images, group_numbers, hold_out
from feddig.data.load import NAMES, load_fashion_mini
from feddig.data.public_sets import FASHION_CLASSES
from feddig.errors import DataError, SettingError
from public_sets import is_mapped, one_line, write_idx

BUNDLE = Path(str(files("feddig.data") / "fashion_mini"))
TRAIN_IMAGES, TRAIN_LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_IMAGES, TEST_LABELS = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def random_bytes(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


@pytest.fixture(scope="module")
def full() -> Dataset:
    return load_dataset("fashion-mini")


# --- names, paths and limits


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(
        SettingError,
        match=re.escape("data.name: unknown data set 'fashion-min'; did you mean 'fashion-mini'?"),
    ):
        load_dataset("fashion-min")


def test_the_names_are_the_four_sources_and_the_four_public_sets() -> None:
    assert NAMES[:4] == ("fashion-mini", "idx", "npz", "folder")
    assert NAMES[4:] == ("fashion-mnist", "emnist-byclass", "cifar10", "cifar100")


@pytest.mark.parametrize("name", ["idx", "npz", "folder"])
def test_a_source_without_a_path_asks_for_data_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^data\.path: ") as missing:
        load_dataset(name)
    one_line(missing)
    with pytest.raises(SettingError, match=r"^data\.path: .*nowhere") as wrong:
        load_dataset(name, tmp_path / "nowhere")
    one_line(wrong)


def test_the_bundled_set_refuses_a_path_that_it_would_ignore(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^data\.path: fashion-mini"):
        load_dataset("fashion-mini", tmp_path)


@pytest.mark.parametrize("limit", [-1, 6001])
def test_an_impossible_limit_names_data_limit(limit: int) -> None:
    with pytest.raises(SettingError, match=r"^data\.limit: ") as error:
        load_dataset("fashion-mini", limit=limit)
    one_line(error)


def test_a_limit_keeps_a_seeded_subset_in_order_and_the_whole_test_set(full: Dataset) -> None:
    first = load_dataset("fashion-mini", limit=50, seed=1)
    again = load_dataset("fashion-mini", limit=50, seed=1)
    other = load_dataset("fashion-mini", limit=50, seed=2)
    assert len(first.train) == 50
    assert len(first.test) == len(full.test)
    assert first.classes == full.classes
    assert np.array_equal(first.train.pixels, again.train.pixels)
    assert not np.array_equal(first.train.pixels, other.train.pixels)
    positions = [
        int(np.flatnonzero((full.train.pixels == one).all(axis=(1, 2, 3)))[0]) for one in first.train.pixels
    ]
    assert positions == sorted(positions)
    assert np.array_equal(full.train.labels[positions], first.train.labels)


def test_a_limit_of_all_images_keeps_all(full: Dataset) -> None:
    limited = load_dataset("fashion-mini", limit=6000)
    assert np.array_equal(full.train.pixels, limited.train.pixels)


# --- fashion-mini


def test_fashion_mini_is_an_even_tenth_of_fashion_mnist(full: Dataset) -> None:
    dataset = full
    assert dataset.train.pixels.shape == (6000, 1, 28, 28)
    assert dataset.test.pixels.shape == (1000, 1, 28, 28)
    assert dataset.train.pixels.dtype == np.uint8
    assert dataset.train.labels.dtype == np.int64
    assert np.bincount(dataset.train.labels).tolist() == [600] * 10
    assert np.bincount(dataset.test.labels).tolist() == [100] * 10
    assert dataset.classes == 10
    assert dataset.class_names == FASHION_CLASSES


def test_fashion_mini_is_shuffled_and_its_images_are_all_different(full: Dataset) -> None:
    assert len(np.unique(full.train.labels[:50])) > 5
    both = np.concatenate([full.train.pixels, full.test.pixels])
    assert len({image.tobytes() for image in both}) > 6990


def test_fashion_mini_is_small_and_carries_its_licence() -> None:
    assert sum(file.stat().st_size for file in BUNDLE.iterdir()) < 2_900_000
    assert "Copyright (c) 2017 Zalando SE" in (BUNDLE / "LICENSE").read_text()


@pytest.mark.parametrize("damage", ["cut", "missing", "swap", "not numpy"])
def test_a_damaged_bundle_is_noticed(tmp_path: Path, damage: str) -> None:
    folder = shutil.copytree(BUNDLE, tmp_path / "copy")
    file = folder / "test-labels.npy.xz"
    if damage == "missing":
        file.unlink()
    elif damage == "swap":
        # a good file, but another one than was released
        shutil.copy(folder / "train-labels.npy.xz", file)
    elif damage == "not numpy":
        file.write_bytes(lzma.compress(b"something else"))
    else:
        file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(DataError, match=r"^fashion-mini: .*install FedDig again") as error:
        load_fashion_mini(folder)
    one_line(error)


def test_making_fashion_mini_twice_gives_the_same_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From small replacements of the original files, whose images differ in their first pixels."""
    source = tmp_path / "idx"
    source.mkdir()
    for prefix, count in (("train", 7000), ("t10k", 1500)):
        images = np.zeros((count, 8, 8), np.uint8)
        images[:, 0, 0], images[:, 0, 1] = np.divmod(np.arange(count), 256)
        write_idx(source / f"{prefix}-images-idx3-ubyte", images)
        write_idx(source / f"{prefix}-labels-idx1-ubyte", np.arange(count, dtype=np.uint8) % 10)
    make = runpy.run_path(str(Path(__file__).parents[1] / "tools" / "make_fashion_mini.py"))["main"]
    made = []
    for out in (tmp_path / "first", tmp_path / "second"):
        make([str(source), "--out", str(out)])
        assert "not the recorded one" in capsys.readouterr().out
        made.append({file.name: file.read_bytes() for file in out.iterdir()})
    assert made[0] == made[1]
    assert sorted(made[0]) == sorted(file.name for file in BUNDLE.glob("*.npy.xz"))


# --- idx


def make_idx(
    folder: Path, *, ending: str = "", dotted: bool = False, channels: int = 0
) -> dict[str, np.ndarray]:
    shape = (9, 10, channels) if channels else (9, 10)
    arrays = {
        TRAIN_IMAGES: random_bytes(6, *shape),
        TRAIN_LABELS: np.array([0, 1, 2, 0, 1, 2], np.uint8),
        TEST_IMAGES: random_bytes(3, *shape, seed=1),
        TEST_LABELS: np.array([2, 4, 0], np.uint8),
    }
    for name, array in arrays.items():
        write_idx(folder / (name.replace("-idx", ".idx") + ending if dotted else name + ending), array)
    return arrays


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("dotted", [False, True])
def test_idx_files_are_read_under_each_of_their_names(tmp_path: Path, ending: str, dotted: bool) -> None:
    arrays = make_idx(tmp_path, ending=ending, dotted=dotted)
    dataset = load_dataset("idx", tmp_path)
    assert dataset.train.pixels.shape == (6, 1, 9, 10)
    assert np.array_equal(dataset.train.pixels[:, 0], arrays[TRAIN_IMAGES])
    assert np.array_equal(dataset.test.pixels[:, 0], arrays[TEST_IMAGES])
    assert dataset.test.labels.tolist() == [2, 4, 0]
    assert dataset.test.labels.dtype == np.int64


def test_a_test_label_that_training_never_shows_still_counts_as_a_class(tmp_path: Path) -> None:
    make_idx(tmp_path)
    dataset = load_dataset("idx", tmp_path)
    assert dataset.classes == 5
    assert dataset.class_names == ("0", "1", "2", "3", "4")


def test_idx_images_are_memory_mapped_gzipped_or_not(tmp_path: Path) -> None:
    make_idx(tmp_path)
    plain = load_dataset("idx", tmp_path)
    assert is_mapped(plain.train.pixels)
    assert is_mapped(plain.test.pixels)
    zipped = tmp_path / "zipped"
    zipped.mkdir()
    make_idx(zipped, ending=".gz")
    assert is_mapped(load_dataset("idx", zipped).train.pixels)
    assert is_mapped(load_dataset("idx", zipped).test.pixels)


def test_colour_idx_images_come_out_channels_first(tmp_path: Path) -> None:
    arrays = make_idx(tmp_path, channels=3)
    dataset = load_dataset("idx", tmp_path)
    assert dataset.train.pixels.shape == (6, 3, 9, 10)
    assert np.array_equal(dataset.train.pixels[4, 2], arrays[TRAIN_IMAGES][4, :, :, 2])
    assert is_mapped(dataset.train.pixels)


@pytest.mark.parametrize("name", [TRAIN_IMAGES, TRAIN_LABELS, TEST_IMAGES, TEST_LABELS])
def test_a_missing_idx_file_is_named(tmp_path: Path, name: str) -> None:
    make_idx(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=name) as error:
        load_dataset("idx", tmp_path)
    one_line(error)


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[:-1], ("truncated", "expected 556 bytes", "found 555")),
        (lambda content: content[:10], ("truncated", "header of 16 bytes", "found 10")),
        (lambda content: content + b"\x00", ("too long", "expected 556 bytes", "found 557")),
        (lambda content: b"\x89PNG" + content[4:], ("not an IDX file", "expected", "89504e47")),
        (lambda content: b"", ("not an IDX file", "found nothing")),
        (lambda content: b"\x00\x00\x0d\x03" + content[4:], ("unsigned bytes", "0x08", "0x0d")),
        (lambda content: b"\x00\x00\x08\x01" + content[4:], ("3 or 4 dimensions", "found 1")),
        (lambda content: content[:4] + b"\xff" * 12 + content[16:], ("truncated", "expected")),
    ],
)
def test_a_wrong_idx_file_is_named_with_expected_and_found(
    tmp_path: Path, ending: str, damage: Callable[[bytes], bytes], words: tuple[str, ...]
) -> None:
    make_idx(tmp_path, ending=ending)
    file = tmp_path / (TRAIN_IMAGES + ending)
    content = gzip.decompress(file.read_bytes()) if ending else file.read_bytes()
    assert len(content) == 556
    file.write_bytes(gzip.compress(damage(content)) if ending else damage(content))
    with pytest.raises(DataError) as error:
        load_dataset("idx", tmp_path)
    text = one_line(error)
    assert text.startswith(f"{file}: ")
    for word in words:
        assert word in text


@pytest.mark.parametrize("damage", ["cut", "flip", "not gzip", "checksum"])
def test_a_corrupt_gzip_is_named(tmp_path: Path, damage: str) -> None:
    make_idx(tmp_path, ending=".gz")
    file = tmp_path / f"{TEST_IMAGES}.gz"
    content = bytearray(file.read_bytes())
    if damage == "cut":
        del content[len(content) // 2 :]
    elif damage == "flip":
        content[10] = 0xFF  # no such kind of block
    elif damage == "checksum":
        content[-8] ^= 1
    else:
        content[:2] = b"no"
    file.write_bytes(content)
    with pytest.raises(DataError, match=f"{TEST_IMAGES}.gz: .*gzip") as error:
        load_dataset("idx", tmp_path)
    one_line(error)


def test_idx_images_and_labels_of_different_number_are_named(tmp_path: Path) -> None:
    make_idx(tmp_path)
    write_idx(tmp_path / TRAIN_LABELS, np.zeros(5, np.uint8))
    with pytest.raises(
        DataError, match=f"{TRAIN_LABELS}: 5 labels, but 6 images in .*{TRAIN_IMAGES}"
    ) as error:
        load_dataset("idx", tmp_path)
    one_line(error)


def test_an_empty_idx_set_is_an_error(tmp_path: Path) -> None:
    make_idx(tmp_path)
    write_idx(tmp_path / TRAIN_IMAGES, np.zeros((0, 9, 10), np.uint8))
    write_idx(tmp_path / TRAIN_LABELS, np.zeros(0, np.uint8))
    with pytest.raises(DataError, match="no images"):
        load_dataset("idx", tmp_path)


def test_idx_test_images_of_another_size_are_refused(tmp_path: Path) -> None:
    make_idx(tmp_path)
    write_idx(tmp_path / TEST_IMAGES, random_bytes(3, 12, 12))
    with pytest.raises(DataError, match=r"9 x 10 .*12 x 12") as error:
        load_dataset("idx", tmp_path)
    one_line(error)


# --- npz


def good_arrays() -> dict[str, np.ndarray]:
    return {
        "x_train": random_bytes(6, 9, 10),
        "y_train": np.array([0, 1, 2, 0, 1, 2]),
        "x_test": random_bytes(3, 9, 10, seed=1),
        "y_test": np.array([2, 1, 0]),
    }


def save(path: Path, *, compressed: bool = False, without: str = "", **changed: np.ndarray) -> Path:
    arrays: dict[str, Any] = good_arrays() | changed
    arrays.pop(without, None)
    write = np.savez_compressed if compressed else np.savez
    write(path, **arrays)
    return path


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(
    "x_train",
    [
        random_bytes(6, 9, 10),
        random_bytes(6, 9, 10).astype(np.float32) / 255,
        np.asfortranarray(random_bytes(6, 9, 10)),
    ],
    ids=["bytes", "floats", "columns first"],
)
def test_an_npz_holds_what_numpy_reads(tmp_path: Path, compressed: bool, x_train: np.ndarray) -> None:
    path = save(tmp_path / "set.npz", compressed=compressed, x_train=x_train)
    dataset = load_dataset("npz", path)
    with np.load(path, allow_pickle=False) as expected:
        assert np.array_equal(dataset.train.pixels[:, 0], expected["x_train"])
        assert np.array_equal(dataset.test.pixels[:, 0], expected["x_test"])
        assert np.array_equal(dataset.train.labels, expected["y_train"])
    assert is_mapped(dataset.train.pixels)
    assert is_mapped(dataset.test.pixels)
    assert dataset.classes == 3


def test_an_npz_mapping_finds_members_behind_other_bytes(tmp_path: Path) -> None:
    path = save(tmp_path / "set.npz")
    behind = tmp_path / "behind.npz"
    behind.write_bytes(b"#!/bin/sh\n" * 7 + path.read_bytes())
    dataset = load_dataset("npz", behind)
    assert is_mapped(dataset.train.pixels)
    assert np.array_equal(dataset.train.pixels[:, 0], good_arrays()["x_train"])


def test_an_npz_mapping_finds_members_with_other_headers_than_numpy_writes(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(save(tmp_path / "good.npz")) as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            member = zipfile.ZipInfo(name)
            member.extra = struct.pack("<HH", 0xFEED, 5) + b"extra" if name == "x_train.npy" else b""
            target.writestr(member, source.read(name))
    dataset = load_dataset("npz", path)
    assert is_mapped(dataset.train.pixels)
    assert np.array_equal(dataset.train.pixels[:, 0], good_arrays()["x_train"])
    assert np.array_equal(dataset.test.pixels[:, 0], good_arrays()["x_test"])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((6, 9, 10, 3), (6, 3, 9, 10)), ((6, 9, 10, 1), (6, 1, 9, 10)), ((6, 3, 9, 10), (6, 3, 9, 10))],
)
def test_both_orders_of_channels_are_understood(
    tmp_path: Path, shape: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    x_train = random_bytes(*shape)
    path = save(tmp_path / "set.npz", x_train=x_train, x_test=x_train[:3])
    dataset = load_dataset("npz", path)
    assert dataset.train.pixels.shape == expected
    wanted = x_train if shape == expected else np.moveaxis(x_train, 3, 1)
    assert np.array_equal(dataset.train.pixels, wanted)


@pytest.mark.parametrize("shape", [(6, 9, 10, 4), (6, 90), (6, 2, 9, 10), (6, 1, 9, 10, 3)])
def test_a_shape_that_is_not_of_images_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = save(tmp_path / "set.npz", x_train=random_bytes(*shape))
    with pytest.raises(DataError, match=f"x_train: shape {re.escape(str(list(shape)))}") as error:
        load_dataset("npz", path)
    one_line(error)


def test_an_npz_needs_no_test_part_where_images_are_held_out(tmp_path: Path) -> None:
    path, arrays = tmp_path / "set.npz", good_arrays()
    train = {"x_train": arrays["x_train"], "y_train": arrays["y_train"]}
    np.savez(path, **train, g_train=np.array(list("pqrpqr")))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"x_test: no such array.*data\.validation") as error:
        load_dataset("npz", path)
    one_line(error)
    dataset = load_dataset("npz", path, held_out=0.1)
    assert (len(dataset.train), len(dataset.test), dataset.classes) == (6, 0, 3)
    assert dataset.train.groups is not None
    assert dataset.train.groups.tolist() == group_numbers(list("pqrpqr")).tolist()
    assert len(set(dataset.train.groups.tolist())) == 3
    np.savez(path, **train, x_test=arrays["x_test"])  # type: ignore[arg-type]
    with pytest.raises(DataError, match="y_test: no such array"):
        load_dataset("npz", path, held_out=0.1)


@pytest.mark.parametrize("as_floats", [False, True])
@pytest.mark.parametrize("axis", [1, 3])
def test_grey_arrays_in_three_equal_channels_are_read_as_grey(
    tmp_path: Path, axis: int, as_floats: bool
) -> None:
    grey = {name: array for name, array in good_arrays().items() if name.startswith("x_")}
    if as_floats:
        grey = {name: array / 255 for name, array in grey.items()}
    saved = {name: np.stack([array] * 3, axis=axis) for name, array in grey.items()}
    path = save(tmp_path / "set.npz", **saved)
    assert load_dataset("npz", path).train.pixels.shape == (6, 3, 9, 10)
    dataset = load_dataset("npz", path, channels=1)
    plain = load_dataset("npz", save(tmp_path / "plain.npz", **grey))
    for part, wanted in ((dataset.train, plain.train), (dataset.test, plain.test)):
        assert np.array_equal(part.pixels[:], wanted.pixels[:])
    saved["x_test"][1, 2, 2, 2] = 0
    path = save(tmp_path / "colour.npz", **saved)
    with pytest.raises(DataError, match="x_test: image 1 is in colour, but grey images are wanted") as error:
        load_dataset("npz", path, channels=1)
    one_line(error)


def test_grey_files_saved_in_colour_are_read_as_grey(tmp_path: Path) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(16, 16)
    for number in range(10):
        (tmp_path / "cat").mkdir(exist_ok=True)
        Image.fromarray(np.stack([every] * 3, axis=2)).save(tmp_path / "cat" / f"{number}.png")
    dataset = load_dataset("folder", tmp_path, image_size=0, channels=1)
    assert (dataset.train.pixels[:] == every).all()


@pytest.mark.parametrize("name", ["x_train", "y_train", "x_test", "y_test"])
def test_a_missing_array_is_named(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / "set.npz", without=name)
    with pytest.raises(DataError, match=f"set.npz: {name}: no such array") as error:
        load_dataset("npz", path)
    one_line(error)


@pytest.mark.parametrize("compressed", [False, True])
def test_python_objects_are_never_read(tmp_path: Path, compressed: bool) -> None:
    path = save(tmp_path / "set.npz", compressed=compressed, y_test=np.array([None, 1, 2], dtype=object))
    with pytest.raises(DataError, match=r"set\.npz: y_test: holds Python objects") as error:
        load_dataset("npz", path)
    one_line(error)


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("keep", [0, 100, 0.99])
def test_a_truncated_npz_is_named(tmp_path: Path, compressed: bool, keep: float) -> None:
    path = save(tmp_path / "set.npz", compressed=compressed)
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(len(content) * keep)])
    with pytest.raises(DataError, match=r"set\.npz: not a whole \.npz file") as error:
        load_dataset("npz", path)
    one_line(error)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_flipped_bit_in_an_array_is_noticed_even_when_mapped(tmp_path: Path, compressed: bool) -> None:
    # large, because a small array is read whole together with its header
    path = save(tmp_path / "set.npz", compressed=compressed, x_test=random_bytes(3, 100, 100))
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        member = archive.getinfo("x_test.npy")
    content[member.header_offset + member.compress_size - 100] ^= 1
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"set\.npz: x_test: damaged") as error:
        load_dataset("npz", path)
    one_line(error)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("damage", ["short", "long", "not numpy"])
def test_an_array_whose_length_does_not_fit_its_shape_is_refused(
    tmp_path: Path, method: int, damage: str
) -> None:
    good = save(tmp_path / "good.npz")
    path = tmp_path / "set.npz"
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(path, "w", method) as target:
        for name in source.namelist():
            content = source.read(name)
            if name == "x_train.npy":
                content = {"short": content[:-1], "long": content + b"0", "not numpy": b"not an array"}[
                    damage
                ]
            target.writestr(name, content)
    with pytest.raises(DataError, match=r"set\.npz: x_train: ") as error:
        load_dataset("npz", path)
    one_line(error)


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "set.npz"
    with path.open("wb") as stream:
        np.save(stream, random_bytes(3, 9, 9))
    with pytest.raises(DataError, match=r"set\.npz: not a whole \.npz file"):
        load_dataset("npz", path)


# --- folder


def colour(seed: int, size: tuple[int, int] = (12, 10), mode: str = "RGB") -> Image.Image:
    width, height = size
    return Image.fromarray(random_bytes(height, width, 3, seed=seed)).convert(mode)


def make_classes(
    folder: Path, counts: dict[str, int], *, ending: str = "png", mode: str = "RGB", start: int = 0
) -> None:
    for position, (name, count) in enumerate(counts.items()):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            colour(start + 1000 * position + number, mode=mode).save(folder / name / f"{number:02}.{ending}")


@pytest.fixture
def with_test_part(tmp_path: Path) -> Path:
    make_classes(tmp_path / "train", {"dog": 3, "cat": 2})
    make_classes(tmp_path / "test", {"cat": 1, "dog": 2}, start=10_000)
    return tmp_path


def test_a_folder_with_its_own_test_part(with_test_part: Path) -> None:
    dataset = load_dataset("folder", with_test_part, image_size=0)
    assert dataset.class_names == ("cat", "dog")
    assert dataset.classes == 2
    assert dataset.train.labels.tolist() == [0, 1, 0, 1, 1], "in the order of their names"
    assert dataset.test.labels.tolist() == [0, 1, 1]
    assert dataset.train.pixels.shape == (5, 3, 10, 12)
    expected = np.asarray(Image.open(with_test_part / "train" / "dog" / "00.png")).transpose(2, 0, 1)
    assert np.array_equal(dataset.train.pixels[1], expected)


@pytest.mark.parametrize("size", [8, 32])
def test_images_of_any_size_are_resized(with_test_part: Path, size: int) -> None:
    colour(5, (40, 17)).save(with_test_part / "train" / "cat" / "wide.png")
    dataset = load_dataset("folder", with_test_part, image_size=size)
    assert dataset.train.pixels.shape == (6, 3, size, size)


def test_resizing_keeps_the_picture(tmp_path: Path) -> None:
    """Left half black, right half white: it must stay so, and not become transposed."""
    half = np.zeros((20, 60), np.uint8)
    half[:, 30:] = 255
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.fromarray(half).save(tmp_path / name / f"{number}.png")
    pixels = load_dataset("folder", tmp_path, image_size=16).train.pixels
    assert pixels.shape == (2, 1, 16, 16)
    assert pixels[:, :, :, :7].max() == 0
    assert pixels[:, :, :, 9:].min() == 255


@pytest.mark.parametrize("ending", ["png", "jpg", "bmp", "gif", "webp", "tiff", "PNG"])
def test_every_format_is_read(tmp_path: Path, ending: str) -> None:
    make_classes(tmp_path, {"a": 2, "b": 2}, ending=ending)
    assert load_dataset("folder", tmp_path).train.pixels.shape == (2, 3, 32, 32)


@pytest.mark.parametrize("mode", ["L", "1", "LA"])
def test_grey_images_stay_grey(tmp_path: Path, mode: str) -> None:
    make_classes(tmp_path, {"a": 2, "b": 2}, mode=mode)
    assert load_dataset("folder", tmp_path).train.pixels.shape == (2, 1, 32, 32)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P"])
def test_one_colour_image_among_grey_ones_changes_no_other(tmp_path: Path, mode: str) -> None:
    make_classes(tmp_path, {"a": 4, "b": 4}, mode="L")
    grey = load_dataset("folder", tmp_path, channels=1)
    colour(1, mode=mode).save(tmp_path / "a" / "00.png")
    with pytest.raises(
        DataError, match=r"a.00\.png: is in colour, and .* is grey; set data\.channels"
    ) as error:
        load_dataset("folder", tmp_path)
    one_line(error)
    again = load_dataset("folder", tmp_path, channels=1)
    for before, after in ((grey.train, again.train), (grey.test, again.test)):
        changed = (np.asarray(before.pixels) != np.asarray(after.pixels)).any(axis=(1, 2, 3))
        assert changed.sum() <= 1
    assert load_dataset("folder", tmp_path, channels=3).train.pixels.shape[1] == 3


@pytest.mark.parametrize("channels", [0, 2, 4])
def test_only_grey_and_colour_can_be_chosen(with_test_part: Path, channels: int) -> None:
    with pytest.raises(SettingError, match=r"^data\.channels: "):
        load_dataset("folder", with_test_part, channels=channels)


def test_transparent_palettes_raise_no_warning(tmp_path: Path) -> None:
    make_classes(tmp_path, {"a": 2, "b": 2})
    colour(1, mode="P").save(tmp_path / "a" / "00.png", transparency=bytes(range(256)))
    assert load_dataset("folder", tmp_path).train.pixels.shape == (2, 3, 32, 32)


def test_sixteen_bit_grey_keeps_its_contrast(tmp_path: Path) -> None:
    deep = np.linspace(0, 65_535, 100).astype(np.uint16).reshape(10, 10)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for number in range(2):
            Image.fromarray(deep).save(tmp_path / name / f"{number}.png")
    pixels = load_dataset("folder", tmp_path, image_size=0).train.pixels
    assert np.array_equal(pixels[0, 0], deep >> 8)


@pytest.mark.parametrize("values", [np.float32(0.5), np.int32(70_000), np.int32(-1)])
def test_pixels_without_an_agreed_range_are_refused(tmp_path: Path, values: np.generic) -> None:
    make_classes(tmp_path, {"a": 2, "b": 2})
    Image.fromarray(np.full((10, 12), values)).save(tmp_path / "b" / "odd.tif")
    with pytest.raises(DataError, match=r"odd\.tif: ") as error:
        load_dataset("folder", tmp_path, channels=1)
    one_line(error)


def contents(images: Images) -> list[bytes]:
    return [image.tobytes() for image in images.pixels]


def test_without_a_test_part_a_seeded_tenth_is_the_test_set(tmp_path: Path) -> None:
    make_classes(tmp_path, {"a": 30, "b": 10, "c": 2})

    def drawn(seed: int) -> Dataset:
        return load_dataset("folder", tmp_path, seed=seed, image_size=0)

    dataset = drawn(1)
    # files of one name stay together, so a tenth of 42 may become up to 6
    assert 4 <= len(dataset.test) <= 6
    assert len(set(contents(dataset.test) + contents(dataset.train))) == 42
    assert contents(dataset.test) == contents(drawn(1).test)
    assert any(contents(dataset.test) != contents(drawn(seed).test) for seed in range(2, 6))


@pytest.mark.parametrize("part", [False, True])
def test_a_share_can_be_held_out(tmp_path: Path, part: bool) -> None:
    make_classes(tmp_path / "train" if part else tmp_path, {"a": 20, "b": 20})
    dataset = load_dataset("folder", tmp_path, held_out=0.25)
    assert (len(dataset.train), len(dataset.test)) == (30, 10)
    none = load_dataset("folder", tmp_path, held_out=0)
    assert (len(none.train), len(none.test)) == (40, 0)


def test_in_a_folder_with_parts_a_place_does_not_tell_a_label(tmp_path: Path) -> None:
    """`data.limit` and an even partition choose by place, so moving an image to another class must move no other."""

    def kept(label: str) -> set[int]:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        for part, number in itertools.product(("train", "test"), range(60)):
            own = label if number == 7 else "xyz"[number % 3]
            (folder / part / own).mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), number, np.uint8)).save(folder / part / own / f"{number}.png")
        dataset = load_dataset("folder", folder, image_size=0, limit=30, seed=1)
        return {int(image.max()) for image in dataset.train.pixels}

    assert kept("x") == kept("y") == kept("z")


def test_a_new_name_changes_the_parts_of_few_others() -> None:
    names = [f"{number:03}" for number in range(200)]
    before = {name for name, apart in zip(names, hold_out(names, 0.1, 0, "test"), strict=True) if apart}
    assert len(before) == 20
    for replaced in range(0, 200, 10):
        other = [*names[:replaced], "new", *names[replaced + 1 :]]
        after = {name for name, apart in zip(other, hold_out(other, 0.1, 0, "test"), strict=True) if apart}
        assert len(after) == 20
        assert len((before ^ after) - {"new", names[replaced]}) <= 1


@given(data=st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_replacing_an_image_or_its_class_changes_no_other_images_part(
    tmp_path: Path, data: st.DataObject
) -> None:
    """Names may repeat in other classes. The parts keep their sizes, and all other images their part."""
    names = data.draw(st.lists(st.sampled_from("0123456789abcdef"), min_size=2, unique=True))
    files = [
        (f"{name}.png", label)
        for name in names
        for label in data.draw(st.lists(st.sampled_from("xyz"), min_size=1, unique=True))
    ]
    replaced = data.draw(st.integers(0, len(files) - 1))
    free = [label for label in "xyz" if (files[replaced][0], label) not in files]
    label = data.draw(st.sampled_from([*free, files[replaced][1]]))

    def parts(changed: bool) -> tuple[set[int], set[int]]:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        for place, (name, own) in enumerate(files):
            here = folder / (label if changed and place == replaced else own) / name
            here.parent.mkdir(exist_ok=True)
            new = changed and place == replaced
            Image.fromarray(np.full((8, 8), 200 if new else place, np.uint8)).save(here)
        dataset = load_dataset("folder", folder, image_size=0, seed=3)
        found = [
            {replaced if image.max() == 200 else int(image.max()) for image in part.pixels}
            for part in (dataset.train, dataset.test)
        ]
        return found[0], found[1]

    assert parts(changed=False) == parts(changed=True)


def test_folders_below_a_class_are_groups_that_are_never_split(tmp_path: Path) -> None:
    """Patients p0 to p9 have two images in each of two classes; one more image has no group."""
    for label, patient in itertools.product("ab", range(10)):
        folder = tmp_path / label / f"p{patient}"
        folder.mkdir(parents=True)
        for number in range(2):
            colour(10 * patient + number, mode="L").save(folder / f"{number}.png")
    colour(99, mode="L").save(tmp_path / "a" / "alone.png")
    for seed in range(5):
        dataset = load_dataset("folder", tmp_path, seed=seed, held_out=0.3)
        train, test = dataset.train.groups, dataset.test.groups
        assert train is not None
        assert test is not None
        assert len(train) + len(test) == 41
        assert not set(train) & set(test)
        assert sorted(np.unique(np.concatenate([train, test]), return_counts=True)[1]) == [1, *[4] * 10]
    assert load_dataset("folder", tmp_path).train.choose(np.arange(3)).groups is not None


def test_an_archive_may_name_groups(tmp_path: Path) -> None:
    images, labels = np.zeros((4, 8, 8), np.uint8), np.array([0, 1, 0, 1])
    arrays = {"x_train": images, "y_train": labels, "x_test": images[:2], "y_test": labels[:2]}
    np.savez(
        tmp_path / "a.npz", **arrays, g_train=np.array(["p", "q", "p", "r"]), g_test=np.array(["s", "s"])
    )  # type: ignore[arg-type]
    dataset = load_dataset("npz", tmp_path / "a.npz")
    assert dataset.train.groups is not None
    assert dataset.test.groups is not None
    assert dataset.train.groups.tolist() == group_numbers(["p", "q", "p", "r"]).tolist()
    assert dataset.test.groups.tolist() == group_numbers(["s", "s"]).tolist()
    np.savez(tmp_path / "b.npz", **arrays, g_train=np.zeros(3), g_test=np.zeros(2))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"b\.npz: g_train has shape \[3\], but there are 4 images") as error:
        load_dataset("npz", tmp_path / "b.npz")
    one_line(error)


def test_hidden_files_other_files_and_hidden_folders_are_ignored(with_test_part: Path) -> None:
    before = load_dataset("folder", with_test_part)
    (with_test_part / "train" / "cat" / ".hidden.png").write_bytes(b"no image")
    (with_test_part / "train" / "cat" / "notes.txt").write_text("no image")
    (with_test_part / "train" / ".cache").mkdir()
    (with_test_part / "train" / "list.csv").write_text("no class")
    after = load_dataset("folder", with_test_part)
    assert np.array_equal(before.train.pixels, after.train.pixels)
    assert after.class_names == ("cat", "dog")


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    make_classes(tmp_path, {"train": 3, "bus": 3})
    assert load_dataset("folder", tmp_path).class_names == ("bus", "train")


@pytest.mark.parametrize("damage", ["cut", "empty", "no image"])
def test_an_unreadable_image_is_named(with_test_part: Path, damage: str) -> None:
    file = with_test_part / "train" / "dog" / "01.png"
    content = file.read_bytes()
    file.write_bytes({"cut": content[: len(content) // 2], "empty": b"", "no image": b"hello" * 20}[damage])
    with pytest.raises(DataError, match=f"{re.escape(str(file))}: not a readable image") as error:
        load_dataset("folder", with_test_part)
    one_line(error)


def test_a_cut_jpeg_is_named(tmp_path: Path) -> None:
    make_classes(tmp_path, {"a": 2, "b": 2}, ending="jpg")
    file = tmp_path / "a" / "01.jpg"
    file.write_bytes(file.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"01\.jpg: not a readable image"):
        load_dataset("folder", tmp_path)


def test_an_image_of_another_size_is_named_with_the_setting_that_helps(with_test_part: Path) -> None:
    colour(5, (40, 17)).save(with_test_part / "train" / "dog" / "wide.png")
    with pytest.raises(DataError, match=r"wide\.png: 40 x 17 .*12 x 10.*data\.image_size") as error:
        load_dataset("folder", with_test_part, image_size=0)
    one_line(error)


@pytest.mark.parametrize("size", [-1, 7])
def test_an_unusable_image_size_names_the_setting(with_test_part: Path, size: int) -> None:
    with pytest.raises(SettingError, match=r"^data\.image_size: "):
        load_dataset("folder", with_test_part, image_size=size)


def test_images_that_all_have_one_name_cannot_be_split(tmp_path: Path) -> None:
    make_classes(tmp_path, {"a": 1, "b": 1})
    with pytest.raises(DataError, match=r"2 images have too few names .* a name of its own") as error:
        load_dataset("folder", tmp_path)
    one_line(error)


def test_a_class_in_the_test_part_only_is_refused(with_test_part: Path) -> None:
    make_classes(with_test_part / "test", {"owl": 1})
    with pytest.raises(DataError, match=r"test.owl: a class without training images") as error:
        load_dataset("folder", with_test_part)
    one_line(error)


def test_a_class_without_test_images_is_allowed(with_test_part: Path) -> None:
    make_classes(with_test_part / "train", {"owl": 1})
    dataset = load_dataset("folder", with_test_part)
    assert dataset.classes == 3
    assert dataset.test.labels.max() == 1


def test_missing_parts_of_a_folder_are_named(
    with_test_part: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (with_test_part / "train" / "empty").mkdir()
    with pytest.raises(DataError, match=r"train.empty: holds no images"):
        load_dataset("folder", with_test_part)
    (with_test_part / "train" / "empty").rmdir()
    shutil.rmtree(with_test_part / "test")
    with pytest.raises(DataError, match="no folder test"):
        load_dataset("folder", with_test_part)
    (with_test_part / "test").mkdir()
    with pytest.raises(DataError, match="test: holds no images"):
        load_dataset("folder", with_test_part)
    with pytest.raises(DataError, match="holds no folders"):
        load_dataset("folder", tmp_path_factory.mktemp("bare"))


# --- arrays, and the checks that all sources share


def from_arrays(**changed: object) -> Dataset:
    return dataset_from_arrays(**(good_arrays() | changed))  # type: ignore[arg-type]


def test_arrays_become_a_data_set() -> None:
    dataset = from_arrays()
    assert dataset.name == "tensors"
    assert len(dataset.train) == 6
    assert dataset.train.pixels.shape == (6, 1, 9, 10)
    assert np.array_equal(dataset.train.pixels[:, 0], good_arrays()["x_train"])
    assert dataset.classes == 3


def test_tensors_become_a_data_set() -> None:
    tensor = torch.rand(6, 3, 9, 10)
    dataset = dataset_from_arrays(tensor, torch.arange(6), tensor[:2], torch.tensor([0, 1]), name="mine")
    assert dataset.name == "mine"
    assert np.array_equal(dataset.train.pixels, tensor.numpy())
    assert dataset.classes == 6


@pytest.mark.parametrize(
    "value", [torch.rand(6, 9, 10, requires_grad=True), [[1, 2], [3]]], ids=["gradient", "ragged"]
)
def test_what_is_no_array_is_refused(value: object) -> None:
    with pytest.raises(DataError, match=r"^tensors: x_train: ") as error:
        from_arrays(x_train=value)
    one_line(error)


@pytest.mark.parametrize("kind", [np.float16, np.float64, ">f4"])
def test_every_kind_of_float_becomes_float32(kind: str) -> None:
    pixels = np.linspace(0, 1, 540).reshape(6, 9, 10).astype(kind)
    dataset = from_arrays(x_train=pixels)
    assert dataset.train.pixels.dtype == np.dtype(np.float32)
    assert dataset.train.pixels.dtype.isnative
    assert np.array_equal(dataset.train.pixels[:, 0], pixels.astype(np.float32))


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_the_first_image_that_is_not_finite_is_named(tmp_path: Path, bad: float) -> None:
    pixels = np.zeros((20, 9, 10), np.float32)
    pixels[17:, 3, 4] = bad
    path = save(tmp_path / "set.npz", x_train=pixels, y_train=np.arange(20))
    with pytest.raises(
        DataError, match=r"set\.npz: x_train: image 17 has a value that is not a finite number"
    ) as error:
        load_dataset("npz", path)
    one_line(error)


def test_a_bad_value_is_found_far_into_a_large_array() -> None:
    pixels = np.zeros((700, 100, 100), np.float32)
    pixels[650, 99, 99] = np.nan
    with pytest.raises(DataError, match="x_train: image 650 "):
        from_arrays(x_train=pixels, y_train=np.zeros(700, np.int64))


@pytest.mark.parametrize("bad", [-0.01, 1.01, 255.0])
def test_floats_out_of_range_are_refused_with_the_remedy(bad: float) -> None:
    pixels = np.zeros((3, 9, 10))
    pixels[2, 0, 0] = bad
    with pytest.raises(
        DataError, match=r"x_test: image 2 .*; divide by 255, leave out a normalisation, or store uint8"
    ):
        from_arrays(x_test=pixels)


@pytest.mark.parametrize("kind", [np.int64, np.int8, np.uint16, bool, complex])
def test_other_kinds_of_pixels_are_refused(kind: type) -> None:
    with pytest.raises(DataError, match="x_train: pixels are "):
        from_arrays(x_train=np.zeros((6, 9, 10), kind))


@pytest.mark.parametrize("shape", [(6, 7, 10), (6, 10, 7), (6, 3, 7, 10)])
def test_images_smaller_than_eight_pixels_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match=r"x_train: images are .*at least 8") as error:
        from_arrays(x_train=np.zeros(shape, np.uint8))
    one_line(error)


def test_images_of_eight_pixels_are_taken() -> None:
    dataset = from_arrays(x_train=np.zeros((6, 8, 8), np.uint8), x_test=np.zeros((3, 8, 8), np.uint8))
    assert dataset.train.pixels.shape == (6, 1, 8, 8)


# --- tables


def from_rows(rows: np.ndarray, **changed: np.ndarray) -> Dataset:
    labels = np.arange(len(rows)) % 2
    parts = {"x_train": rows, "y_train": labels, "x_test": rows, "y_test": labels}
    return dataset_from_arrays(**(parts | changed))


@pytest.mark.parametrize("columns", [1, 3, 8, 30])
def test_a_row_of_a_table_is_an_image_one_pixel_high_that_is_not_padded(columns: int) -> None:
    rows = np.random.default_rng(0).random((6, columns))
    dataset = from_rows(rows)
    assert dataset.train.pixels.shape == (6, 1, 1, columns)
    assert padded_shape(dataset.train) == (1, 1, columns)
    seen = ImageSource(dataset.train, None, torch.device("cpu")).images(torch.arange(6))
    assert torch.equal(seen, torch.from_numpy(rows.astype(np.float32)).view(6, 1, 1, columns))


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"x_train": np.full((6, 4), 1.5)}, "x_train: row 0 has a value outside 0 to 1; scale each column"),
        ({"x_test": np.full((6, 4), np.nan)}, "x_test: row 0 has a value that is not a finite number"),
        ({"x_train": np.ones((6, 4), np.uint8)}, "x_train: the table holds uint8; scale each column"),
        ({"x_train": np.zeros((6, 0))}, "x_train: holds no rows"),
        ({"y_train": np.zeros(5, np.int64)}, "y_train: 5 labels, but 6 rows in tensors: x_train"),
        ({"x_test": np.zeros((6, 3))}, "training images are 1 x 4 .*, but test images 1 x 3"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(changed: dict[str, np.ndarray], words: str) -> None:
    with pytest.raises(DataError, match=words) as error:
        from_rows(np.zeros((6, 4)), **changed)
    one_line(error)


@pytest.mark.parametrize("part", ["train", "test"])
def test_an_empty_part_is_refused(part: str) -> None:
    with pytest.raises(DataError, match=f"x_{part}: holds no images"):
        from_arrays(**{f"x_{part}": np.zeros((0, 9, 10), np.uint8), f"y_{part}": np.zeros(0, np.int64)})


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.array([0, 1, -1, 0, 0, 0]), "label 2 is -1"),
        (np.array([0, 1, 2, 0, 0, 10**9]), "label 5 is 1000000000"),
        (np.array([0, 1, 2, 0, 0, 2**64 - 1], np.uint64), "label 5 is 18446744073709551615"),
        (np.array([0, 1, 0.5, 0, 0, 0]), "whole numbers"),
        (np.array([0, 1, np.nan, 0, 0, 0]), "whole numbers"),
        (np.array([True, False] * 3), "whole numbers"),
        (np.array(list("abcdef")), "whole numbers"),
        (np.zeros((6, 1), np.int64), r"shape \[6, 1\]"),
        (np.zeros(5, np.int64), "5 labels, but 6 images"),
        (np.zeros(0, np.int64), "0 labels, but 6 images"),
    ],
)
def test_unusable_labels_are_refused(labels: np.ndarray, words: str) -> None:
    with pytest.raises(DataError, match=f"y_train: .*{words}") as error:
        from_arrays(y_train=labels)
    one_line(error)


@pytest.mark.parametrize("kind", [np.uint8, np.int32, ">i8", np.float32])
def test_labels_of_any_kind_that_are_whole_numbers_become_int64(kind: str) -> None:
    dataset = from_arrays(y_train=np.array([0, 1, 2, 3, 4, 5]).astype(kind))
    assert dataset.train.labels.dtype == np.int64
    assert dataset.train.labels.dtype.isnative
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 4, 5]


def test_grey_training_and_colour_test_images_do_not_go_together() -> None:
    with pytest.raises(DataError, match="1 channel, but test images 9 x 10 with 3 channels") as error:
        from_arrays(x_test=random_bytes(3, 9, 10, 3))
    one_line(error)
