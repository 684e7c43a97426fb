"""Downloads of public data sets from a local server that can simulate faults."""

import gzip
import hashlib
import io
import re
import shutil
import socket
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from feddig.data import download, load_dataset
from feddig.data.load import describe
from feddig.data.public_sets import PUBLISHED, Download
from feddig.errors import DataError
from feddig.files import cache_folder
from public_sets import contents, hide_data_sets, is_mapped, labels, one_line, records

TRAIN, TEST = (records(part, 100, True, {"train": 30, "test": 5}).tobytes() for part in ("train", "test"))


@dataclass
class Server:
    """The server's files, the faults it simulates, and the requests it received."""

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    """For each of the next replies, the number of bytes after which the connection is closed."""
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
    """Hide this computer's data sets and proxies."""
    hide_data_sets(monkeypatch, tmp_path)
    monkeypatch.setenv("no_proxy", "127.0.0.1")


ARCHIVE = "cifar-100-binary.tar.gz"
WHOLE = ["cifar100", "cifar100/downloaded.json", "cifar100/test.bin", "cifar100/train.bin"]


def cifar_archive() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as opened:
        for name, content in (("train.bin", TRAIN), ("test.bin", TEST), ("fine_label_names.txt", b"apple")):
            member = tarfile.TarInfo(f"cifar-100-binary/{name}")
            member.size = len(content)
            opened.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def offer(
    monkeypatch: pytest.MonkeyPatch, server: Server, name: str, files: dict[str, bytes]
) -> tuple[Download, ...]:
    """Put files on the server, and set the published sizes and hashes to theirs."""
    server.files.update(files)
    downloads = tuple(
        Download(server.address + file, len(content), hashlib.sha256(content).hexdigest())
        for file, content in files.items()
    )
    monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], downloads=downloads))
    return downloads


@pytest.fixture
def cifar(server: Server, monkeypatch: pytest.MonkeyPatch) -> Download:
    """Put CIFAR-100 on the server."""
    # received bytes are written chunk by chunk
    monkeypatch.setattr(download, "_CHUNK_BYTES", 500)
    (known,) = offer(monkeypatch, server, "cifar100", {ARCHIVE: cifar_archive()})
    return known


def in_cache() -> list[str]:
    return sorted(str(path.relative_to(cache_folder())) for path in cache_folder().rglob("*"))


# --- complete downloads


def test_a_set_that_is_nowhere_is_downloaded_once(server: Server, cifar: Download) -> None:
    dataset = load_dataset("cifar100")
    assert (len(dataset.train), len(dataset.test)) == (30, 5)
    assert dataset.test.labels.tolist() == list(TEST[1::3074])
    assert in_cache() == WHOLE
    assert load_dataset("cifar100").fingerprint() == dataset.fingerprint()
    assert server.asked == [None]
    assert not any("python" in agent.lower() for agent in server.agents)


def test_gzipped_files_are_kept_unzipped_so_that_they_can_be_mapped(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = contents("fashion-mnist")
    zipped = {f"{name}.gz": gzip.compress(content) for name, content in files.items()}
    offer(monkeypatch, server, "fashion-mnist", zipped)
    dataset = load_dataset("fashion-mnist")
    assert is_mapped(dataset.train.pixels)
    names = ["downloaded.json", *files]
    assert in_cache() == sorted(["fashion-mnist", *(f"fashion-mnist/{name}" for name in names)])


def test_a_zip_archive_of_gzipped_files(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    name, buffer = "emnist-byclass", io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as opened:
        opened.writestr("gzip/", "")
        opened.writestr("gzip/emnist-letters-test-labels-idx1-ubyte.gz", b"not wanted")
        for file, content in contents(name).items():
            opened.writestr(f"gzip/{file}.gz", gzip.compress(content))
    offer(monkeypatch, server, name, {"gzip.zip": buffer.getvalue()})
    monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], train_count=10, test_count=4))
    dataset = load_dataset(name)
    assert dataset.train.labels.tolist() == labels("train", 62).tolist()
    assert is_mapped(dataset.train.pixels)
    assert in_cache() == sorted([name, *(f"{name}/{file}" for file in ["downloaded.json", *contents(name)])])
    # the record of the download shows that the unzipped files are official
    found = next(one for one in describe(None, True) if one.name == name)
    assert (found.standing, found.where) == ("official", cache_folder() / name)


# --- interrupted downloads


def test_a_download_that_breaks_off_is_continued_where_it_stopped(server: Server, cifar: Download) -> None:
    server.cuts = [1000, 500]
    assert len(load_dataset("cifar100").train) == 30
    assert server.asked == [None, "bytes=1000-", "bytes=1500-"]
    assert in_cache() == WHOLE


def test_the_next_run_continues_what_the_last_one_could_not_finish(server: Server, cifar: Download) -> None:
    server.cuts = [2000, 0]
    with pytest.raises(DataError, match=r"the connection failed .* after 2,000 of [\d,]+ bytes") as error:
        load_dataset("cifar100")
    one_line(error)
    (part,) = in_cache()
    assert part.endswith(".part")
    server.asked.clear()
    assert len(load_dataset("cifar100").train) == 30
    assert server.asked == ["bytes=2000-"]
    assert in_cache() == WHOLE


def test_a_server_that_cannot_continue_sends_the_whole_file_again(server: Server, cifar: Download) -> None:
    server.ranges, server.cuts = False, [1000]
    assert len(load_dataset("cifar100").train) == 30
    assert server.asked == [None, "bytes=1000-", None]


def test_a_part_of_another_file_is_deleted_because_of_its_hash(server: Server, cifar: Download) -> None:
    cache_folder().mkdir(parents=True)
    (cache_folder() / f"cifar100-{cifar.sha256[:12]}.part").write_bytes(b"x" * 100)
    with pytest.raises(DataError, match="does not have the known hash"):
        load_dataset("cifar100")
    assert in_cache() == []
    assert len(load_dataset("cifar100").train) == 30


# --- wrong downloads


@pytest.mark.parametrize("longer", [False, True])
def test_a_wrong_hash_is_refused_and_nothing_is_left(server: Server, cifar: Download, longer: bool) -> None:
    archive = server.files[ARCHIVE]
    server.files[ARCHIVE] = archive + bytes(10**6) if longer else archive[:-1] + bytes([archive[-1] ^ 1])
    with pytest.raises(DataError, match="does not have the known hash and was deleted") as error:
        load_dataset("cifar100")
    assert cifar.address in one_line(error)
    assert in_cache() == []


def test_a_refusal_names_the_files_the_folder_and_the_address(server: Server, cifar: Download) -> None:
    server.status = 403
    with pytest.raises(DataError, match="the server answered 403 Forbidden") as error:
        load_dataset("cifar100")
    text = one_line(error)
    for word in ("train.bin and test.bin", str(cache_folder() / "cifar100"), cifar.address):
        assert word in text
    assert server.asked == [None]
    assert in_cache() == []


def test_a_refused_connection_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    address = f"http://127.0.0.1:{port}/{ARCHIVE}"
    known = replace(PUBLISHED["cifar100"], downloads=(Download(address, 1, "00"),))
    monkeypatch.setitem(PUBLISHED, "cifar100", known)
    with pytest.raises(DataError, match=f"^{re.escape(address)}: the connection failed") as error:
        load_dataset("cifar100")
    one_line(error)
    assert in_cache() == []


def test_without_pooch_the_error_says_what_to_do(
    server: Server, cifar: Download, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"install pooch, or put train\.bin and test\.bin") as error:
        load_dataset("cifar100")
    assert str(cache_folder() / "cifar100") in one_line(error)
    assert server.asked == []
    # local files are read without pooch
    (tmp_path / "train.bin").write_bytes(TRAIN)
    (tmp_path / "test.bin").write_bytes(TEST)
    assert len(load_dataset("cifar100", data_dir=tmp_path).train) == 30


def test_a_cache_that_cannot_be_written_is_named(server: Server, cifar: Download, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file in place of the folder")
    with pytest.raises(DataError, match="cifar100 cannot be kept here") as error:
        load_dataset("cifar100")
    one_line(error)


def test_a_process_that_finished_first_is_not_overwritten(
    server: Server, cifar: Download, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meanwhile(wanted: object, unpacked: Path) -> None:
        shutil.copytree(unpacked, cache_folder() / "cifar100")

    monkeypatch.setattr(download, "_write_record", meanwhile)
    assert len(load_dataset("cifar100").train) == 30
    assert in_cache() == ["cifar100", "cifar100/test.bin", "cifar100/train.bin"]
