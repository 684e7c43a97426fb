"""Downloads of public data sets, from a server on this computer that can be made to misbehave."""

import gzip
import hashlib
import io
import re
import socket
import sys
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from feddig.data import load_dataset, locate
from feddig.data.catalogue import describe
from feddig.data.download import unpack
from feddig.data.locate import cache_folder
from feddig.data.public_sets import PUBLISHED, Download
from feddig.errors import DataError

TRAIN, TEST = (
    np.random.default_rng(seed).integers(0, 100, (count, 3074), dtype=np.uint8).tobytes()
    for seed, count in ((1, 30), (2, 5))
)


@dataclass
class Server:
    """What the server on this computer offers, how it misbehaves, and what it was asked."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    # how many bytes it sends in each of the next replies before it hangs up
    cuts: list[int] = field(default_factory=list)
    ranges: bool = True
    status: int = 200
    asked: list[str | None] = field(default_factory=list)
    agents: list[str] = field(default_factory=list)


def handler_for(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.asked.append(self.headers["Range"])
            server.agents.append(self.headers["User-Agent"])
            content = server.files.get(self.path.lstrip("/"))
            if server.status != 200 or content is None:
                self.send_error(server.status if server.status != 200 else 404)
                return
            start = 0
            if server.ranges and self.headers["Range"]:
                start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206)
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            else:
                self.send_response(200)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            rest = content[start:]
            self.wfile.write(rest[: server.cuts.pop(0)] if server.cuts else rest)

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@pytest.fixture
def server() -> Iterator[Server]:
    offered = Server()
    running = ThreadingHTTPServer(("127.0.0.1", 0), handler_for(offered))
    offered.address = f"http://127.0.0.1:{running.server_port}/"
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield offered
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture(autouse=True)
def _nothing_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Keep the tests away from the data that this computer may have, and from any proxy."""
    monkeypatch.delenv("FEDDIG_DATA", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(locate, "DEBIAN_FOLDER", tmp_path / "debian")


def tar(members: dict[str, bytes], *, more: Callable[[tarfile.TarFile], object] | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as opened:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
        if more is not None:
            more(opened)
    return buffer.getvalue()


def cifar_archive() -> bytes:
    return tar(
        {
            "cifar-100-binary/fine_label_names.txt": b"apple\n",
            "cifar-100-binary/train.bin": TRAIN,
            "cifar-100-binary/test.bin": TEST,
        }
    )


def offer(
    monkeypatch: pytest.MonkeyPatch, server: Server, name: str, files: dict[str, bytes]
) -> tuple[Download, ...]:
    """Put files on the server, and make them what the publisher is known to publish."""
    server.files.update(files)
    downloads = tuple(
        Download(server.address + file, len(content), hashlib.sha256(content).hexdigest())
        for file, content in files.items()
    )
    monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], downloads=downloads))
    return downloads


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert "; " in text, "an error must name a remedy"
    return text


def is_mapped(array: np.ndarray) -> bool:
    owner: object = array
    while isinstance(owner, np.ndarray) and not isinstance(owner, np.memmap):
        owner = owner.base
    return isinstance(owner, np.memmap)


def left_behind() -> list[str]:
    return sorted(str(path.relative_to(cache_folder())) for path in cache_folder().rglob("*"))


WHOLE = ["cifar100", "cifar100/downloaded.json", "cifar100/test.bin", "cifar100/train.bin"]


# --- good downloads


def test_a_set_that_is_nowhere_is_downloaded_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": cifar_archive()})
    dataset = load_dataset("cifar100")
    assert (len(dataset.train), len(dataset.test)) == (30, 5)
    assert dataset.test.labels.tolist() == list(TEST[1::3074])
    assert left_behind() == WHOLE
    assert load_dataset("cifar100").fingerprint() == dataset.fingerprint()
    assert server.asked == [None]
    assert not any("python" in agent.lower() for agent in server.agents)


def test_gzipped_files_are_kept_unzipped_so_that_they_can_be_mapped(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    images, labels = np.zeros((3, 28, 28), np.uint8), np.arange(3, dtype=np.uint8)
    images_file = bytes([0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 28, 0, 0, 0, 28]) + images.tobytes()
    labels_file = bytes([0, 0, 8, 1, 0, 0, 0, 3]) + labels.tobytes()
    names = [file.name for file in PUBLISHED["fashion-mnist"].files]
    files = {
        f"{name}.gz": gzip.compress(content)
        for name, content in zip(names, [images_file, labels_file] * 2, strict=True)
    }
    offer(monkeypatch, server, "fashion-mnist", files)
    dataset = load_dataset("fashion-mnist")
    assert is_mapped(dataset.train.pixels)
    assert left_behind() == sorted(
        ["fashion-mnist", "fashion-mnist/downloaded.json", *(f"fashion-mnist/{name}" for name in names)]
    )


def emnist_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        opened.writestr("gzip/", "")
        opened.writestr("gzip/emnist-letters-test-labels-idx1-ubyte.gz", b"not wanted")
        for part, count in (("train", 6), ("test", 2)):
            images = bytes([0, 0, 8, 3, 0, 0, 0, count, 0, 0, 0, 28, 0, 0, 0, 28]) + bytes(count * 784)
            labels = bytes([0, 0, 8, 1, 0, 0, 0, count]) + bytes(range(count))
            for kind, content in (("images-idx3", images), ("labels-idx1", labels)):
                opened.writestr(f"gzip/emnist-byclass-{part}-{kind}-ubyte.gz", gzip.compress(content))
    return buffer.getvalue()


def test_a_zip_within_which_files_are_gzipped(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, server, "emnist-byclass", {"gzip.zip": emnist_zip()})
    known = PUBLISHED["emnist-byclass"]
    monkeypatch.setitem(PUBLISHED, "emnist-byclass", replace(known, train_count=6, test_count=2))
    dataset = load_dataset("emnist-byclass")
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert is_mapped(dataset.train.pixels)
    # unzipped files are known to be the publisher's by the download that they came from
    found = next(one for one in describe(None, True) if one.name == "emnist-byclass")
    assert (found.standing, found.where) == ("official", cache_folder() / "emnist-byclass")


# --- interrupted ones


def test_a_download_that_is_cut_off_is_continued_where_it_stopped(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": cifar_archive()})
    server.cuts = [1000, 500]
    assert len(load_dataset("cifar100").train) == 30
    assert server.asked == [None, "bytes=1000-", "bytes=1500-"]
    assert left_behind() == WHOLE


def test_the_next_run_continues_what_the_last_one_could_not_finish(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": cifar_archive()})
    server.cuts = [2000, 0, 0, 0]
    with pytest.raises(DataError, match=r"cut off after 2,000 of [\d,]+ bytes, which are kept") as error:
        load_dataset("cifar100")
    one_line(error)
    (part,) = left_behind()
    assert part.endswith(".part")
    server.asked.clear()
    assert len(load_dataset("cifar100").train) == 30
    assert server.asked == ["bytes=2000-"]
    assert left_behind() == WHOLE


def test_a_server_that_cannot_continue_sends_the_whole_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": cifar_archive()})
    server.ranges, server.cuts = False, [1000]
    assert len(load_dataset("cifar100").train) == 30
    assert server.asked == [None, "bytes=1000-"]


def test_a_part_that_is_too_long_is_begun_again(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = cifar_archive()
    (known,) = offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": archive})
    cache_folder().mkdir(parents=True)
    part = cache_folder() / f"cifar100-{known.sha256[:12]}.part"
    part.write_bytes(b"x" * (len(archive) + 9))
    assert len(load_dataset("cifar100").train) == 30
    assert server.asked == [None]


def test_a_part_that_the_server_cannot_continue_is_begun_again(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = cifar_archive()
    (known,) = offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": archive})
    cache_folder().mkdir(parents=True)
    (cache_folder() / f"cifar100-{known.sha256[:12]}.part").write_bytes(b"x" * 900)
    server.files["cifar-100-binary.tar.gz"] = archive[:500]
    with pytest.raises(DataError, match="cut off after 500"):
        load_dataset("cifar100")
    assert server.asked[:2] == ["bytes=900-", None]
    server.files["cifar-100-binary.tar.gz"] = archive
    assert len(load_dataset("cifar100").train) == 30


def test_a_part_of_another_file_is_thrown_away_with_its_hash(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    (known,) = offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": cifar_archive()})
    cache_folder().mkdir(parents=True)
    (cache_folder() / f"cifar100-{known.sha256[:12]}.part").write_bytes(b"x" * 100)
    with pytest.raises(DataError, match="hash differs"):
        load_dataset("cifar100")
    assert left_behind() == []
    assert len(load_dataset("cifar100").train) == 30


# --- wrong ones


@pytest.mark.parametrize("wrong", ["same length", "longer"])
def test_a_wrong_hash_is_refused_and_nothing_is_left(
    server: Server, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    archive = cifar_archive()
    offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": archive})
    changed = archive[:-1] + bytes([archive[-1] ^ 1]) if wrong == "same length" else archive + bytes(10**6)
    server.files["cifar-100-binary.tar.gz"] = changed
    with pytest.raises(DataError, match="its hash differs") as error:
        load_dataset("cifar100")
    assert server.address in one_line(error)
    assert left_behind() == []


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_refusal_names_the_files_the_folder_and_the_address(
    server: Server, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    (known,) = offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": cifar_archive()})
    server.status = status
    with pytest.raises(DataError, match=f"the server answered {status}") as error:
        load_dataset("cifar100")
    text = one_line(error)
    for word in ("train.bin and test.bin", str(cache_folder() / "cifar100"), known.address):
        assert word in text
    assert server.asked == [None]
    assert left_behind() == []


def test_a_refused_connection_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    address = f"http://127.0.0.1:{port}/cifar-100-binary.tar.gz"
    known = replace(PUBLISHED["cifar100"], downloads=(Download(address, 1, "00"),))
    monkeypatch.setitem(PUBLISHED, "cifar100", known)
    with pytest.raises(DataError, match=f"^{re.escape(address)}: cannot be reached") as error:
        load_dataset("cifar100")
    one_line(error)
    assert left_behind() == []


def test_without_pooch_the_error_says_what_to_do(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": cifar_archive()})
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"install pooch, or put train\.bin and test\.bin") as error:
        load_dataset("cifar100")
    assert str(cache_folder() / "cifar100") in one_line(error)
    assert server.asked == []
    # whoever has the files needs no pooch
    (tmp_path / "train.bin").write_bytes(TRAIN)
    (tmp_path / "test.bin").write_bytes(TEST)
    assert len(load_dataset("cifar100", data_dir=tmp_path).train) == 30


def test_a_cache_that_cannot_be_written_is_named(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": cifar_archive()})
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(DataError, match="cifar100 cannot be kept here") as error:
        load_dataset("cifar100")
    one_line(error)


# --- archives


def bad_archives() -> dict[str, bytes]:
    def add_link(opened: tarfile.TarFile) -> None:
        link = tarfile.TarInfo("cifar-100-binary/test.bin")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        opened.addfile(link)

    return {
        "outside": tar({"train.bin": TRAIN, "../test.bin": TEST}),
        "deep outside": tar({"train.bin": TRAIN, "a/../../test.bin": TEST}),
        "absolute": tar({"train.bin": TRAIN, "/tmp/test.bin": TEST}),
        "a link": tar({"train.bin": TRAIN}, more=add_link),
        "twice": tar({"a/train.bin": TRAIN, "b/train.bin": TRAIN, "test.bin": TEST}),
        "incomplete": tar({"train.bin": TRAIN}),
        "truncated": cifar_archive()[:-2000],
        "not an archive": b"<html>",
    }


@pytest.mark.parametrize("kind", list(bad_archives()))
def test_a_bad_archive_is_refused_and_nothing_is_left(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": bad_archives()[kind]})
    with pytest.raises(DataError, match=r"archive") as error:
        load_dataset("cifar100")
    one_line(error)
    assert left_behind() == []
    assert not list(tmp_path.rglob("*.bin"))


def test_members_that_nobody_wants_are_not_unpacked_wherever_they_lead(tmp_path: Path) -> None:
    archive = tmp_path / "some.tar.gz"
    archive.write_bytes(tar({"../evil": b"evil", "x/train.bin": TRAIN, "test.bin": TEST}))
    (tmp_path / "out").mkdir()
    unpack(archive, ["train.bin", "test.bin"], tmp_path / "out")
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "out",
        "some.tar.gz",
        "test.bin",
        "train.bin",
    ]


@pytest.mark.parametrize("name", ["../train.bin", "..\\train.bin", "/train.bin", "C:\\train.bin"])
def test_a_zip_that_leads_outside_is_refused(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as opened:
        opened.writestr(name, TRAIN)
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="leads outside"):
        unpack(tmp_path / "some.zip", ["train.bin"], tmp_path / "out")
    assert not list(tmp_path.rglob("*.bin"))


def test_a_link_in_a_zip_is_refused(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("train.bin")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "some.zip", "w") as opened:
        opened.writestr(link, "/etc/passwd")
    (tmp_path / "out").mkdir()
    with pytest.raises(DataError, match="is a link"):
        unpack(tmp_path / "some.zip", ["train.bin"], tmp_path / "out")


def test_a_run_that_finished_first_is_not_overwritten(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer(monkeypatch, server, "cifar100", {"cifar-100-binary.tar.gz": cifar_archive()})

    def meanwhile(archive: Path, wanted: object, folder: Path) -> None:
        for target in (folder, cache_folder() / "cifar100"):
            target.mkdir(exist_ok=True)
            (target / "train.bin").write_bytes(TRAIN)
            (target / "test.bin").write_bytes(TEST)

    monkeypatch.setattr("feddig.data.download.unpack", meanwhile)
    assert len(load_dataset("cifar100").train) == 30
    assert left_behind() == ["cifar100", "cifar100/test.bin", "cifar100/train.bin"]
