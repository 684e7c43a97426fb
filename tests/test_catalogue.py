"""The four public data sets: reading and finding their files, and recognising other files."""

import gzip
import hashlib
import json
import pickle
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from feddig.data import download, load_dataset
from feddig.data.download import find_folder
from feddig.data.load import Entry, describe
from feddig.data.mmap import LazyPixels
from feddig.data.public_sets import PUBLISHED, PublishedSet
from feddig.errors import DataError, SettingError
from feddig.files import cache_folder
from public_sets import contents, draw, hide_data_sets, idx_bytes, is_mapped, labels, one_line, records, write

NAMES = tuple(PUBLISHED)


@pytest.fixture(autouse=True)
def _nothing_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide this computer's data sets, and refuse downloads."""
    hide_data_sets(monkeypatch, tmp_path)

    def refuse(wanted: PublishedSet, cache: Path) -> Path:
        raise AssertionError(f"{wanted.name} would be downloaded")

    monkeypatch.setattr("feddig.data.load.download_set", refuse)


def entry(name: str, *, verify: bool, data_dir: Path | None = None) -> Entry:
    return next(one for one in describe(data_dir, verify) if one.name == name)


# --- reading


@pytest.mark.parametrize("name", NAMES)
def test_a_set_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    dataset = load_dataset(name, write(tmp_path / "here", name))
    shape = (3, 32, 32) if name.startswith("cifar") else (1, 28, 28)
    for part, images in (("train", dataset.train), ("test", dataset.test)):
        assert np.array_equal(
            images.pixels, draw(part, *shape[-3 if shape[0] == 3 else 1 :]).reshape(-1, *shape)
        )
        assert images.labels.tolist() == labels(part, dataset.classes).tolist()
        assert images.pixels.dtype == np.uint8
        assert images.labels.dtype == np.int64
    assert dataset.name == name
    assert dataset.class_names == PUBLISHED[name].classes


@pytest.mark.parametrize("name", ["fashion-mnist", "emnist-byclass"])
def test_gzipped_files_hold_the_same(tmp_path: Path, name: str) -> None:
    plain = load_dataset(name, write(tmp_path / "plain", name))
    zipped = load_dataset(name, write(tmp_path / "zipped", name, zipped=True))
    assert plain.fingerprint() == zipped.fingerprint()
    assert is_mapped(zipped.train.pixels)


@pytest.mark.parametrize("name", NAMES)
def test_one_file_is_memory_mapped_and_several_are_read_on_demand(tmp_path: Path, name: str) -> None:
    dataset = load_dataset(name, write(tmp_path / "here", name))
    assert is_mapped(dataset.test.pixels)
    if name == "cifar10":
        assert isinstance(dataset.train.pixels, LazyPixels)
    else:
        assert is_mapped(dataset.train.pixels)


def test_emnist_images_are_turned_upright(tmp_path: Path) -> None:
    folder = write(tmp_path / "here", "emnist-byclass")
    stored = np.zeros((1, 28, 28), np.uint8)
    stored[0, 3, 20] = 255  # column 3, row 20
    (folder / "emnist-byclass-test-images-idx3-ubyte").write_bytes(idx_bytes(stored))
    (folder / "emnist-byclass-test-labels-idx1-ubyte").write_bytes(idx_bytes(np.array([61], np.uint8)))
    test = load_dataset("emnist-byclass", folder).test
    assert np.argwhere(test.pixels[0, 0] == 255).tolist() == [[20, 3]]
    assert load_dataset("emnist-byclass", folder).class_names[61] == "z"


def test_cifar_colours_are_red_green_blue(tmp_path: Path) -> None:
    folder = write(tmp_path / "here", "cifar10")
    record = bytes([9]) + bytes([1] * 1024) + bytes([2] * 1024) + bytes([3] * 1024)
    (folder / "test_batch.bin").write_bytes(record)
    test = load_dataset("cifar10", folder).test
    assert test.pixels[0, :, 5, 7].tolist() == [1, 2, 3]
    assert test.labels.tolist() == [9]


def test_cifar100_counts_fine_labels_only(tmp_path: Path) -> None:
    dataset = load_dataset("cifar100", write(tmp_path / "here", "cifar100"))
    assert dataset.classes == 100
    assert dataset.train.labels.tolist() == labels("train", 100).tolist()


def test_classes_are_numbered_as_the_publishers_do() -> None:
    assert [len(PUBLISHED[name].classes) for name in NAMES] == [10, 62, 10, 100]
    assert PUBLISHED["emnist-byclass"].classes[10] == "A"
    assert PUBLISHED["cifar100"].classes == tuple(sorted(set(PUBLISHED["cifar100"].classes)))


def test_a_limit_counts_for_public_sets_too(tmp_path: Path) -> None:
    folder = write(tmp_path / "here", "cifar10")
    assert len(load_dataset("cifar10", folder, limit=3).train) == 3


# --- damaged files


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "damage",
    [lambda content: content[:-1], lambda content: content + b"\x00", lambda content: b""],
    ids=["truncated", "too long", "empty"],
)
def test_a_file_of_the_wrong_length_is_named(
    tmp_path: Path, name: str, damage: Callable[[bytes], bytes]
) -> None:
    folder = write(tmp_path / "here", name)
    for file in PUBLISHED[name].files:
        path = folder / file.name
        whole = path.read_bytes()
        path.write_bytes(damage(whole))
        with pytest.raises(DataError, match=f"^{re.escape(str(path))}: .*expected .*found") as error:
            load_dataset(name, folder)
        one_line(error)
        path.write_bytes(whole)


def test_records_of_the_other_cifar_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "here", "cifar100")
    (folder / "test.bin").write_bytes(records("test", 10, False).tobytes())
    with pytest.raises(DataError, match=r"test\.bin: .*records of 3,074 bytes"):
        load_dataset("cifar100", folder)


@pytest.mark.parametrize(
    ("name", "file", "content", "words"),
    [
        ("cifar10", "data_batch_3.bin", bytes([5, *[0] * 3072, 10, *[0] * 3072]), "label 1 is 10"),
        ("cifar100", "test.bin", bytes([0, 100, *[0] * 3072]), "label 0 is 100"),
        (
            "fashion-mnist",
            "t10k-labels-idx1-ubyte",
            idx_bytes(np.array([0, 1, 2, 10], np.uint8)),
            "label 3 is 10",
        ),
    ],
)
def test_a_label_outside_the_classes_is_named(
    tmp_path: Path, name: str, file: str, content: bytes, words: str
) -> None:
    folder = write(tmp_path / "here", name)
    (folder / file).write_bytes(content)
    with pytest.raises(DataError, match=f"{file}: {words}") as error:
        load_dataset(name, folder)
    one_line(error)


def test_images_and_labels_of_different_number_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "here", "emnist-byclass")
    (folder / "emnist-byclass-test-labels-idx1-ubyte").write_bytes(idx_bytes(np.zeros(3, np.uint8)))
    with pytest.raises(DataError, match="3 labels, but 4 images"):
        load_dataset("emnist-byclass", folder)


def test_colour_images_are_not_emnist(tmp_path: Path) -> None:
    folder = write(tmp_path / "here", "emnist-byclass")
    (folder / "emnist-byclass-test-images-idx3-ubyte").write_bytes(idx_bytes(draw("test", 28, 28, 3)))
    with pytest.raises(DataError, match="expected 3 dimensions, found 4"):
        load_dataset("emnist-byclass", folder)


# --- the pickled version


class Trap:
    """An object that ends the process when it is unpickled."""

    def __reduce__(self) -> tuple[Callable[[str], object], tuple[str]]:
        return exec, ("raise SystemExit('a pickle was opened')",)


@pytest.mark.parametrize(("name", "folder", "file"), [(n, *PUBLISHED[n].pickled) for n in NAMES[2:]])
@pytest.mark.parametrize("given", [True, False], ids=["as path", "in the search"])
def test_pickled_cifar_is_refused_and_the_binary_one_named(
    tmp_path: Path, name: str, folder: str, file: str, given: bool
) -> None:
    (tmp_path / "data" / folder).mkdir(parents=True)
    (tmp_path / "data" / folder / file).write_bytes(pickle.dumps(Trap()))
    path = tmp_path / "data" / folder if given else None
    with pytest.raises(DataError, match=f"pickled version of {name}.*-binary.tar.gz$") as error:
        load_dataset(name, path, data_dir=tmp_path / "data")
    one_line(error)


def test_a_binary_set_next_to_a_pickled_one_is_read(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    write(tmp_path / "cifar-10-batches-bin", "cifar10")
    assert len(load_dataset("cifar10", data_dir=tmp_path).train) == 10


# --- where sets are searched


@pytest.mark.parametrize("name", NAMES)
def test_each_place_is_preferred_to_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "given").mkdir()
    (tmp_path / "variable").mkdir()
    monkeypatch.setenv("FEDDIG_DATA", str(tmp_path / "variable"))
    expected = [
        tmp_path / "debian" / name,
        cache_folder() / name,
        tmp_path / "variable",
        tmp_path / "variable" / name,
        tmp_path / "given",
        tmp_path / "given" / name,
    ]
    assert find_folder(PUBLISHED[name], tmp_path / "given") is None
    for place in expected:
        write(place, name)
        assert find_folder(PUBLISHED[name], tmp_path / "given") == place
    assert len(load_dataset(name, data_dir=tmp_path / "given").test) == 4


@pytest.mark.parametrize("name", NAMES[1:])
def test_the_folder_of_the_publishers_archive_is_found(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / PUBLISHED[name].folder, name)
    assert find_folder(PUBLISHED[name], tmp_path) == folder
    assert len(load_dataset(name, tmp_path).test) == 4


@pytest.mark.parametrize("how", ["argument", "variable"])
def test_a_data_folder_that_is_not_there_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "variable":
        monkeypatch.setenv("FEDDIG_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(SettingError, match="nowhere is not a folder") as error:
        load_dataset("cifar10", data_dir=tmp_path / "nowhere" if how == "argument" else None)
    one_line(error)


def test_with_a_path_no_other_folder_is_searched(tmp_path: Path) -> None:
    write(cache_folder() / "cifar10", "cifar10")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty: data_batch_1\.bin and .*test_batch\.bin missing") as error:
        load_dataset("cifar10", tmp_path / "empty")
    one_line(error)
    with pytest.raises(SettingError, match=r"^data\.path: .*nowhere") as wrong:
        load_dataset("cifar10", tmp_path / "nowhere")
    one_line(wrong)


def test_an_incomplete_set_is_named_rather_than_downloaded(tmp_path: Path) -> None:
    write(tmp_path / "cifar10", "cifar10")
    (tmp_path / "cifar10" / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match=r"cifar10 is not complete, data_batch_4\.bin missing") as error:
        load_dataset("cifar10", data_dir=tmp_path)
    one_line(error)
    write(cache_folder() / "cifar10", "cifar10")
    assert len(load_dataset("cifar10", data_dir=tmp_path).train) == 10


@pytest.mark.parametrize(
    ("platform", "variables", "expected"),
    [
        ("linux", {"XDG_CACHE_HOME": "/var/mine"}, "/var/mine/feddig"),
        ("linux", {"XDG_CACHE_HOME": "relative"}, "~/.cache/feddig"),
        ("linux", {}, "~/.cache/feddig"),
        ("darwin", {"XDG_CACHE_HOME": "/var/mine"}, "~/Library/Caches/feddig"),
        ("win32", {"LOCALAPPDATA": "/local"}, "/local/feddig/Cache"),
        ("win32", {}, "~/AppData/Local/feddig/Cache"),
    ],
)
def test_the_cache_is_in_the_platforms_folder(
    monkeypatch: pytest.MonkeyPatch, platform: str, variables: dict[str, str], expected: str
) -> None:
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder() == Path(expected).expanduser()


# --- official or other


def declare_official(monkeypatch: pytest.MonkeyPatch, name: str, *, of_gzip: bool = False) -> None:
    """Declare the small files of these tests as the publisher's files."""

    def fingerprint(file: str) -> str:
        content = contents(name)[file]
        return "md5:" + hashlib.md5(gzip.compress(content, mtime=0) if of_gzip else content).hexdigest()

    known = PUBLISHED[name]
    train, test = (
        tuple(replace(file, fingerprint=fingerprint(file.name), of_gzip=of_gzip) for file in files)
        for files in (known.train_files, known.test_files)
    )
    monkeypatch.setitem(
        PUBLISHED,
        name,
        replace(known, train_files=train, test_files=test, train_count=10, test_count=4),
    )


def test_a_set_that_is_not_here_is_described_by_what_is_published() -> None:
    assert [one.name for one in describe()] == list(NAMES)
    for one in describe(None, True):
        assert not one.present
        assert one.where is one.train is one.test is one.fault is None
        assert one.standing == "unknown"
        assert one.licence
        assert one.address.startswith("https://")


@pytest.mark.parametrize("name", NAMES)
def test_a_set_with_other_counts_is_another_one_without_hashing(tmp_path: Path, name: str) -> None:
    folder = write(tmp_path / "data" / name, name)
    found = entry(name, verify=False, data_dir=tmp_path / "data")
    assert (found.present, found.where, found.train, found.test) == (True, folder, 10, 4)
    assert found.standing == "other"
    assert found.classes == len(PUBLISHED[name].classes)


@pytest.mark.parametrize("name", NAMES)
def test_the_publishers_hashes_make_a_set_official(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    declare_official(monkeypatch, name)
    folder = write(tmp_path / name, name)
    assert entry(name, verify=False, data_dir=tmp_path).standing == "unknown"
    assert entry(name, verify=True, data_dir=tmp_path).standing == "official"
    path = folder / PUBLISHED[name].files[-1].name
    changed = bytearray(path.read_bytes())
    changed[-1] = 0 if changed[-1] else 1
    path.write_bytes(changed)
    assert entry(name, verify=True, data_dir=tmp_path).standing == "other"


def test_gzipped_copies_are_official_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    declare_official(monkeypatch, "fashion-mnist")
    write(tmp_path / "fashion-mnist", "fashion-mnist", zipped=True)
    assert entry("fashion-mnist", verify=True, data_dir=tmp_path).standing == "official"


def test_where_only_the_gzip_file_has_a_known_hash_unzipped_files_need_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "emnist-byclass"
    declare_official(monkeypatch, name, of_gzip=True)
    zipped = tmp_path / "zipped" / name
    zipped.mkdir(parents=True)
    for file, content in contents(name).items():
        (zipped / f"{file}.gz").write_bytes(gzip.compress(content, mtime=0))
    assert entry(name, verify=True, data_dir=tmp_path / "zipped").standing == "official"
    (zipped / "emnist-byclass-test-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(contents(name)["emnist-byclass-test-labels-idx1-ubyte"], mtime=1)
    )
    assert entry(name, verify=True, data_dir=tmp_path / "zipped").standing == "other"

    plain = write(tmp_path / "plain" / name, name)
    assert entry(name, verify=True, data_dir=tmp_path / "plain").standing == "unknown"
    download._write_record(PUBLISHED[name], plain)
    assert entry(name, verify=True, data_dir=tmp_path / "plain").standing == "official"
    record = json.loads((plain / download.RECORD).read_text())
    for wrong, standing in (
        ({**record, "downloads": {}}, "unknown"),
        ({**record, "files": dict.fromkeys(record["files"], "00")}, "other"),
        ([], "unknown"),
    ):
        (plain / download.RECORD).write_text(json.dumps(wrong))
        assert entry(name, verify=True, data_dir=tmp_path / "plain").standing == standing


def test_a_damaged_set_is_present_with_its_fault(tmp_path: Path) -> None:
    folder = write(tmp_path / "cifar10", "cifar10")
    (folder / "test_batch.bin").write_bytes(b"short")
    found = entry("cifar10", verify=False, data_dir=tmp_path)
    assert found.present
    assert found.fault is not None
    assert "test_batch.bin: damaged" in found.fault
    images = write(tmp_path / "fashion-mnist", "fashion-mnist") / "train-images-idx3-ubyte"
    images.write_bytes(images.read_bytes()[:-1])
    # images are read only to verify them
    assert entry("fashion-mnist", verify=False, data_dir=tmp_path).fault is None
    assert "truncated" in (entry("fashion-mnist", verify=True, data_dir=tmp_path).fault or "")


def test_a_pickled_set_is_described_as_absent_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "cifar-100-python").mkdir()
    found = entry("cifar100", verify=False, data_dir=tmp_path)
    assert not found.present
    assert "pickled" in (found.fault or "")


def test_a_misspelt_folder_is_not_described(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="nowhere is not a folder"):
        describe(tmp_path / "nowhere")
