"""Data sets larger than memory: images that are mapped or read on demand, and the files in the cache."""

import gzip
import os
import shutil
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from feddig.data.arrays import map_gzip
from feddig.data.mmap import LazyPixels, choose, convert, join, map_unnamed
from feddig.errors import DataError
from feddig.files import cache_folder

CONTENT = bytes(range(256)) * 50


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "platform", "linux")
    return cache_folder() / "unzipped"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.gz"
    path.write_bytes(gzip.compress(CONTENT))
    return path


def kept(cache: Path) -> list[Path]:
    return sorted(cache.iterdir()) if cache.exists() else []


# --- gzip files and the cache


def test_a_public_file_is_unzipped_once(cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = map_gzip(source, keep=True)
    assert isinstance(first, np.memmap)
    assert first.tobytes() == CONTENT
    assert len(kept(cache)) == 1
    monkeypatch.setattr("gzip.open", lambda path: pytest.fail(f"{path} is unzipped again"))
    assert map_gzip(source, keep=True).tobytes() == CONTENT


def test_no_copy_of_a_users_own_file_stays(cache: Path, source: Path) -> None:
    mapped = map_gzip(source, keep=False)
    assert isinstance(mapped, np.memmap)
    assert mapped.tobytes() == CONTENT
    assert kept(cache) == []


def test_a_changed_source_is_noticed_and_its_old_copy_removed(cache: Path, source: Path) -> None:
    old = map_gzip(source, keep=True)
    before, facts = kept(cache), source.stat()
    changed = bytes([1]) + CONTENT[1:]
    source.write_bytes(gzip.compress(changed))
    # even if its time stays the same
    os.utime(source, ns=(facts.st_atime_ns, facts.st_mtime_ns))
    assert source.stat().st_mtime_ns == facts.st_mtime_ns
    assert map_gzip(source, keep=True).tobytes() == changed
    assert len(kept(cache)) == 1
    assert kept(cache) != before
    assert old.tobytes() == CONTENT, "an array that maps the old copy keeps it"


def test_two_sources_of_one_name_are_told_apart(cache: Path, source: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    other = tmp_path / "other" / source.name
    other.write_bytes(gzip.compress(b"something else"))
    map_gzip(source, keep=True)
    assert map_gzip(other, keep=True).tobytes() == b"something else"
    assert map_gzip(source, keep=True).tobytes() == CONTENT
    assert len(kept(cache)) == 2


def test_a_truncated_copy_is_written_again(cache: Path, source: Path) -> None:
    map_gzip(source, keep=True)
    (copy,) = kept(cache)
    copy.write_bytes(CONTENT[:100])
    assert map_gzip(source, keep=True).tobytes() == CONTENT
    assert kept(cache) == [copy]


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    "damage",
    [lambda content: content[:-20], lambda content: b"no" + content[2:], lambda content: b"", bytes.swapcase],
    ids=["cut", "not gzip", "empty", "garbled"],
)
def test_a_damaged_file_is_named_and_leaves_nothing_behind(
    cache: Path, source: Path, damage: Callable[[bytes], bytes], keep: bool
) -> None:
    damaged = damage(source.read_bytes())
    source.write_bytes(damaged)
    if not damaged:
        # gzip accepts an empty file; its reader reports what is missing
        assert map_gzip(source, keep=keep).size == 0
        return
    with pytest.raises(DataError, match=r"source\.gz: expected a whole gzip file, found a damaged one"):
        map_gzip(source, keep=keep)
    assert kept(cache) == []


@pytest.mark.parametrize("keep", [True, False])
def test_mapping_works_without_a_usable_cache(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keep: bool
) -> None:
    # a file in place of the folder also stops the superuser
    (tmp_path / "cache").write_bytes(b"")
    mapped = map_gzip(source, keep=keep)
    assert isinstance(mapped, np.memmap)
    assert mapped.tobytes() == CONTENT
    # without any disk, in memory
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert map_gzip(source, keep=keep).tobytes() == CONTENT


def test_a_full_disk_leaves_nothing_behind(
    cache: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert map_gzip(source, keep=True).tobytes() == CONTENT
    assert kept(cache) == []


def test_several_threads_do_not_disturb_each_other(cache: Path, source: Path) -> None:
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(map_gzip(source, keep=True).tobytes())) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 8
    assert len(kept(cache)) == 1


def test_empty_content_can_be_mapped(cache: Path) -> None:
    assert map_unnamed(lambda: iter(())).shape == (0,)


# --- read on demand


def parts() -> list[np.ndarray]:
    stream = np.random.default_rng(0)
    return [stream.integers(0, 256, (count, 3, 8, 9), dtype=np.uint8) for count in (4, 1, 6)]


@pytest.mark.parametrize(
    "key",
    [
        np.array([10, 0, 4, 4, 3, 5]),
        np.array([], np.int64),
        np.array([-1, -11]),
        np.arange(11) % 3 == 0,
        slice(2, 9, 3),
        slice(None),
        7,
        -1,
        (slice(3, 6), 0),
        (4, slice(None), 5, 7),
    ],
    ids=str,
)
def test_joined_images_are_indexed_like_one_array(key: object) -> None:
    joined, whole = join(parts()), np.concatenate(parts())
    assert isinstance(joined, LazyPixels)
    assert (joined.shape, joined.dtype, joined.ndim, len(joined)) == (whole.shape, whole.dtype, 4, 11)
    assert np.array_equal(joined[key], whole[key])
    assert joined[key].shape == whole[key].shape
    assert np.array_equal(joined, whole)


@pytest.mark.parametrize("row", [11, -12])
def test_an_index_out_of_range_is_an_error(row: int) -> None:
    with pytest.raises(IndexError):
        join(parts())[np.array([0, row])]


def test_only_the_chosen_images_are_read() -> None:
    asked: list[list[int]] = []

    def read(places: np.ndarray) -> np.ndarray:
        asked.append(places.tolist())
        return np.zeros((len(places), 1, 8, 8), np.uint8)

    pixels = choose(LazyPixels(read, np.arange(100), (1, 8, 8), np.dtype(np.uint8)), np.array([90, 10, 50]))
    assert pixels.shape == (3, 1, 8, 8)
    assert pixels[np.array([2, 0])].shape == (2, 1, 8, 8)
    assert asked == [[50, 90]]


def test_floats_are_converted_when_they_are_read() -> None:
    doubles = np.random.default_rng(0).random((5, 1, 8, 8))
    singles = convert(doubles, np.dtype(np.float32))
    assert isinstance(singles, LazyPixels)
    assert singles[np.array([3])].dtype == np.float32
    assert np.array_equal(singles, doubles.astype(np.float32))


# --- with less memory than the set needs

MEBIBYTE = 2**20
SIDE = 128
SIZES = {"idx": 192 * MEBIBYTE, "fashion-mnist": 80 * MEBIBYTE, "cifar10": 80 * MEBIBYTE}
"""The memory that each set would take, in bytes."""

LIMITED_MEMORY_PROGRAM = """
import re, resource, sys
from pathlib import Path
import numpy as np, torch
from torch import nn
import feddig
from feddig.data import load_dataset
from feddig.experiment.toml import experiment_from_table
from feddig.core.samples import ImageSource

torch.set_num_threads(1)
folder = Path(sys.argv[1])
# torch's own memory does not count
taken = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1)) * 1024

def limit_to(mebibytes):
    resource.setrlimit(resource.RLIMIT_DATA, (taken + mebibytes * 2**20, resource.RLIM_INFINITY))

limit_to(64)
for name in ("idx", "fashion-mnist", "cifar10"):
    dataset = load_dataset(name, folder / name)
    source = ImageSource(dataset.train, None, torch.device("cpu"))
    for rows in torch.split(torch.randperm(len(source))[:500], 50):
        assert len(source.images(rows)) == 50
    try:
        np.array(dataset.train.pixels)
    except MemoryError:
        print(name, len(source))

limit_to(160)
table = {
    "data": {"name": "idx", "path": str(folder / "idx"), "silos": 2, "partition": "iid"},
    "absence": {"scenario": "none"},
    "algorithm": {"name": "fedavg"},
    "training": {"rounds": 1, "batch": 32, "threads": 1},
}
quick = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(64, 4))
networks = feddig.Networks(classifier=quick)
summary = feddig.run(experiment_from_table(table), folder / "run", device="cpu", networks=networks)
print("rounds", summary["rounds"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits data without mapped files")
def test_sets_larger_than_memory_are_read_and_trained_on(tmp_path: Path) -> None:
    for name in ("idx", "fashion-mnist"):
        (tmp_path / name).mkdir()
        write_idx(tmp_path / name, SIZES[name])
    images = tmp_path / "fashion-mnist" / "train-images-idx3-ubyte"
    with images.open("rb") as plain, gzip.open(f"{images}.gz", "wb", compresslevel=1) as zipped:
        shutil.copyfileobj(plain, zipped, MEBIBYTE)
    images.unlink()
    (tmp_path / "cifar10").mkdir()
    records = SIZES["cifar10"] // 5 // 3073
    for number in range(1, 6):
        write_sparse(tmp_path / "cifar10" / f"data_batch_{number}.bin", b"", records * 3073)
    write_sparse(tmp_path / "cifar10" / "test_batch.bin", b"", 3073)

    command = [sys.executable, "-c", LIMITED_MEMORY_PROGRAM, str(tmp_path)]
    # freed memory counts unless it is returned to the system at once
    allocation = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536", "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **allocation}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines() == [
        f"idx {SIZES['idx'] // SIDE**2}",
        f"fashion-mnist {SIZES['fashion-mnist'] // SIDE**2}",
        f"cifar10 {5 * records}",
        "rounds 1",
    ]


def write_sparse(path: Path, head: bytes, size: int) -> None:
    """Write a file of zeros that takes no space on the disk."""
    path.write_bytes(head)
    os.truncate(path, len(head) + size)


def write_idx(folder: Path, size: int) -> None:
    for prefix, count in (("train", size // SIDE**2), ("t10k", 10)):
        head = struct.pack(">4B3I", 0, 0, 8, 3, count, SIDE, SIDE)
        write_sparse(folder / f"{prefix}-images-idx3-ubyte", head, count * SIDE**2)
        labels = (np.arange(count) % 4).astype(np.uint8)
        head = struct.pack(">4BI", 0, 0, 8, 1, count)
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())
