"""Independent random streams, and files that are written atomically."""

import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from feddig.errors import FedDigError, FileFormatError, nearest
from feddig.files import (
    cache_folder,
    check_version,
    content_hash,
    read_tensors,
    state_folder,
    write_atomically,
    write_tensors,
)
from feddig.seeds import derive, numpy_stream, seeded_uniforms, torch_stream

# --- seeds


def test_a_derived_seed_is_the_same_on_every_machine_and_in_every_release() -> None:
    """A seed is the first 8 bytes of SHA-256 of "0/batches/2/17", without the last bit."""
    assert derive(0, "batches", 2, 17) == 7673668631788296146


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**64), st.lists(st.text(max_size=8), max_size=3))
def test_every_derived_seed_fits_torch_and_numpy(seed: int, names: list[str]) -> None:
    assert 0 <= derive(seed, *names) < 2**63
    torch_stream(seed, *names)
    numpy_stream(seed, *names)


def test_every_name_and_every_seed_opens_another_stream() -> None:
    names = [(), ("noise",), ("mixing",), ("noise", 0), ("noise", 1), ("noise", 1, 0), ("noise", 0, 1)]
    seeds = [derive(seed, *name) for seed in (0, 1, 10) for name in names]
    assert len(set(seeds)) == len(seeds)


def test_drawing_from_one_stream_never_shifts_another() -> None:
    alone = seeded_uniforms(3, "noise", 1)(5)
    other = seeded_uniforms(3, "noise", 2)
    other(1000)
    np.random.default_rng(0).random(10)
    assert np.array_equal(seeded_uniforms(3, "noise", 1)(5), alone)
    assert not np.array_equal(other(5), alone)


def test_a_stream_goes_on_where_it_was() -> None:
    whole = seeded_uniforms(3, "noise")(6)
    stream = seeded_uniforms(3, "noise")
    assert np.array_equal(np.concatenate([stream(2), stream(4)]), whole)


def test_torch_streams_leave_the_global_one_alone() -> None:
    before = torch.random.get_rng_state()
    first = torch.rand(3, generator=torch_stream(0, "batches"))
    assert torch.equal(torch.rand(3, generator=torch_stream(0, "batches")), first)
    assert not torch.equal(torch.rand(3, generator=torch_stream(1, "batches")), first)
    assert torch.equal(torch.random.get_rng_state(), before)


# --- atomic files


@pytest.mark.parametrize(("content", "bytes_"), [("Grüße\n", "Grüße\n".encode()), (b"\x00\xff", b"\x00\xff")])
def test_text_and_bytes_arrive_as_they_are(tmp_path: Path, content: str | bytes, bytes_: bytes) -> None:
    path = tmp_path / "new" / "folders" / "file"
    write_atomically(path, content)
    assert path.read_bytes() == bytes_
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "a long text")
    write_atomically(path, "short")
    assert path.read_text() == "short"


@pytest.mark.skipif(os.name != "posix", reason="only POSIX has these permissions")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_the_users_umask_decides_who_may_read_a_file(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "file", "x")
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == mode


@pytest.mark.parametrize("name", ["replace", "fsync"])
def test_a_failed_write_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")

    def fail(*arguments: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as broken:
        broken.setattr(os, name, fail)
        with pytest.raises(OSError, match="no space left"):
            write_atomically(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    write_atomically(path, "new")
    assert path.read_text() == "new"


def test_the_content_is_on_disk_before_the_file_is_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a power failure could leave an empty file."""
    done: list[str] = []
    sync, move = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: (done.append("sync"), sync(handle))[1])
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append("replace"), move(old, new))[1])
    write_atomically(tmp_path / "file", "x")
    assert done[:2] == ["sync", "replace"]


# --- tensors

ARRAYS = {"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.array([-1], np.int64)}


def test_tensors_come_back_with_their_facts(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, "model", {**ARRAYS, "turned": ARRAYS["a"].T}, {"seed": "3"})
    arrays, facts = read_tensors(path, "model")
    assert set(arrays) == {"a", "b", "turned"}
    assert np.array_equal(arrays["a"], ARRAYS["a"])
    assert np.array_equal(arrays["turned"], ARRAYS["a"].T)
    assert arrays["b"].dtype == np.int64
    assert set(facts) == {"format", "format_version", "content", "seed"}
    assert (facts["format"], facts["format_version"], facts["seed"]) == ("feddig-model", "1", "3")


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    facts = dict.fromkeys("abcdefgh", "x")
    for number in range(4):
        write_tensors(tmp_path / str(number), "model", ARRAYS, facts)
    write_tensors(tmp_path / "4", "model", ARRAYS, dict(reversed(facts.items())))
    assert len({(tmp_path / str(number)).read_bytes() for number in range(5)}) == 1


def test_facts_cannot_change_the_kind_or_the_version(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, "model", ARRAYS, {"format": "feddig-digest", "format_version": "9", "content": "y"})
    facts = read_tensors(path, "model")[1]
    assert (facts["format"], facts["format_version"]) == ("feddig-model", "1")


def refused(path: Path, message: str) -> None:
    with pytest.raises(FileFormatError, match=message) as error:
        read_tensors(path, "model")
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not a readable safetensors file"),
        (
            b"not safetensors, but text that is long enough to have a length",
            "not a readable safetensors file",
        ),
        (save(ARRAYS), "not a FedDig model file"),
        (save(ARRAYS, metadata={"feddig": "not JSON"}), "not a readable safetensors file"),
        (save(ARRAYS, metadata={"feddig": "[1]"}), "not a FedDig model file"),
        (save(ARRAYS, metadata={"feddig": '{"format": "feddig-digest"}'}), "not a FedDig model file"),
        (
            save(ARRAYS, metadata={"feddig": '{"format": "feddig-model", "format_version": "0"}'}),
            "format_version 0, but this FedDig reads 1",
        ),
        (
            save(ARRAYS, metadata={"feddig": '{"format": "feddig-model", "format_version": "1"}'}),
            "does not match its hash",
        ),
    ],
)
def test_files_that_hold_no_tensors_of_this_kind_are_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    refused(path, message)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    refused(tmp_path / "missing.safetensors", "no such file")
    refused(tmp_path, "not a readable safetensors file")


def test_files_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, "model", ARRAYS, {})
    whole = path.read_bytes()
    for length in range(0, len(whole), 5):
        path.write_bytes(whole[:length])
        refused(path, "not a readable safetensors file")


def test_a_wrong_byte_in_a_tensor_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    write_tensors(path, "model", ARRAYS, {})
    whole = path.read_bytes()
    for place in range(len(whole) - 32, len(whole)):  # six floats and one integer
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        refused(path, "does not match its hash")


@pytest.mark.parametrize("found", [0, 2, "2", None, "", 1.0])
def test_only_this_format_version_is_read(found: object) -> None:
    check_version(Path("x"), 1)
    check_version(Path("x"), "1")
    with pytest.raises(FileFormatError, match=f"x: format_version {found}, but this FedDig reads 1"):
        check_version(Path("x"), found)


def test_a_content_hash_depends_on_where_chunks_end() -> None:
    hashes = [content_hash(*chunks) for chunks in ([b"ab", b"c"], [b"a", b"bc"], [b"abc"], [b"abc", b""], [])]
    assert len(set(hashes)) == 5
    assert content_hash() == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


# --- the nearest known word


def test_the_nearest_word_or_else_all_of_them() -> None:
    assert nearest("sequental", ("none", "sequential")) == "did you mean 'sequential'?"
    assert nearest("xyz", ("none", "groups")) == "choose from groups, none"


def test_a_user_without_a_home_is_told_so_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 2**31 - 5)  # this user has no name, as in a container
    for folder in (state_folder, cache_folder):
        with pytest.raises(FedDigError, match="HOME: is not set"):
            folder()
