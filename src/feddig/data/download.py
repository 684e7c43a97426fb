"""Taking the wanted files out of an archive, and nothing else.

Fetching a public data set from its publisher into the cache, once.

Every download is checked against its known hash before anything of it is used. One that is cut off is
continued, in the same run or the next.
"""

import gzip
import hashlib
import importlib
import json
import logging
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from feddig.data.locate import missing_files
from feddig.data.public_sets import Download, PublishedSet
from feddig.errors import DataError
from feddig.files import write_atomically

_UNPACKED_AT_ONCE = 2**20


def unpack(archive: Path, wanted: Collection[str], folder: Path) -> None:
    """Write the wanted files into a folder, from a zip or tar archive or from one gzipped file.

    Files are known by their own names, whatever folder of the archive they are in, and gzipped ones are
    unzipped. All other members are passed over.
    """
    found: set[str] = set()
    try:
        for path, content in _members(archive, wanted):
            name = path.name.removesuffix(".gz")
            if name in found:
                raise DataError(f"{archive}: holds {name} twice; get another copy of the archive")
            found.add(name)
            with _unzipped(path, content) as source, (folder / name).open("xb") as target:
                shutil.copyfileobj(source, target, _UNPACKED_AT_ONCE)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{archive}: a damaged archive ({error}); get another copy of it") from None
    missing = [name for name in wanted if name not in found]
    if missing:
        raise DataError(
            f"{archive}: the archive lacks {' and '.join(missing)}; get another copy of the archive"
        )


def file_hash(path: Path, algorithm: str = "sha256") -> str:
    """Hash the content of a file, unzipped or not, a piece at a time."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def unzipped_hash(path: Path, algorithm: str = "sha256") -> str:
    """Hash what a gzip file unzips to."""
    state = hashlib.new(algorithm)
    with gzip.open(path) as stream:
        while piece := stream.read(_UNPACKED_AT_ONCE):
            state.update(piece)
    return state.hexdigest()


def _members(archive: Path, wanted: Collection[str]) -> Iterator[tuple[PurePosixPath, IO[bytes]]]:
    if archive.suffix == ".zip":
        with zipfile.ZipFile(archive) as opened:
            for member in opened.infolist():
                # the upper half of these bits is the kind of file on Unix; 0o12 is a symbolic link
                link = member.external_attr >> 28 == 0o12
                path = _safe_path(archive, member.filename, wanted, plain=not link and not member.is_dir())
                if path is not None:
                    with opened.open(member) as content:
                        yield path, content
    elif archive.name.endswith(".tar.gz"):
        with tarfile.open(archive, "r:gz") as unrolled:
            for entry in unrolled:
                path = _safe_path(archive, entry.name, wanted, plain=entry.isreg())
                extracted = unrolled.extractfile(entry) if path is not None else None
                if path is not None and extracted is not None:
                    with extracted:
                        yield path, extracted
    else:
        with archive.open("rb") as stream:
            yield PurePosixPath(archive.name), stream


def _safe_path(archive: Path, name: str, wanted: Collection[str], *, plain: bool) -> PurePosixPath | None:
    """Pass over members that nobody wants, and refuse a wanted one that is not an ordinary file inside."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.name.removesuffix(".gz") not in wanted:
        return None
    if not plain or path.is_absolute() or ".." in path.parts or ":" in path.parts[0]:
        raise DataError(
            f"{archive}: its member {name!r} is a link or leads outside; get another copy of the archive"
        )
    return path


@contextmanager
def _unzipped(path: PurePosixPath, content: IO[bytes]) -> Iterator[IO[bytes] | gzip.GzipFile]:
    if path.suffix != ".gz":
        yield content
        return
    with gzip.GzipFile(fileobj=content) as stream:
        yield stream


RECORD = "downloaded.json"
"""The file beside a downloaded set that says which checked download its files came from."""

_ATTEMPTS = 3
_SECONDS = 30
_AT_ONCE = 2**18
# NIST's server refuses programs that introduce themselves as Python
_HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; FedDig)", "Accept-Encoding": "identity"}


def fetch(wanted: PublishedSet, cache: Path) -> Path:
    """Download a set into the cache and return its folder, which is there whole or not at all."""
    folder = cache / wanted.name
    pooch = _import_pooch(wanted, folder)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{wanted.name}.") as temporary:
            unpacked = Path(temporary) / "unpacked"
            unpacked.mkdir()
            for download in wanted.downloads:
                archive = _retrieve(pooch, wanted, download, Path(temporary), cache)
                unpack(archive, _contents(wanted, download), unpacked)
                archive.unlink()
            _write_record(wanted, unpacked)
            _move(unpacked, folder, wanted)
    except OSError as error:
        raise DataError(
            f"{cache}: {wanted.name} cannot be kept here ({error.strerror or error}); "
            "free some space or check the permissions"
        ) from None
    return folder


def read_record(wanted: PublishedSet, folder: Path) -> dict[str, str]:
    """Read the hashes that files of a checked download had when they were unpacked; empty without them."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        if record["downloads"] != _known(wanted):
            return {}
        return {str(name): str(digits) for name, digits in record["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def by_hand(wanted: PublishedSet, folder: Path) -> str:
    """Say which files to get by hand, where they are and where they go."""
    names = " and ".join(file.name for file in wanted.files)
    addresses = " and ".join(download.address for download in wanted.downloads)
    return f"put {names} from {addresses} into {folder}"


def _import_pooch(wanted: PublishedSet, folder: Path) -> Any:
    """Import what downloads only now: whoever has the files needs no downloader."""
    try:
        return importlib.import_module("pooch")
    except ImportError:
        raise DataError(
            f"{wanted.name}: not found on this computer, and it cannot be downloaded without pooch; "
            f"install pooch, or {by_hand(wanted, folder)}"
        ) from None


def _retrieve(pooch: Any, wanted: PublishedSet, download: Download, temporary: Path, cache: Path) -> Path:
    resumed = cache / f"{wanted.name}-{download.sha256[:12]}.part"
    logger: logging.Logger = pooch.get_logger()
    level = logger.level
    # its log repeats what the progress bar shows
    logger.setLevel(logging.WARNING)

    def downloader(address: str, output_file: str, _: object) -> None:
        _download(download, resumed)
        os.replace(resumed, output_file)

    try:
        kept: str = pooch.retrieve(
            url=download.address,
            known_hash=f"sha256:{download.sha256}",
            fname=download.file_name,
            path=temporary,
            downloader=downloader,
        )
    except ValueError:
        raise DataError(
            f"{download.address}: what came is not the known file (its hash differs) and was thrown away; "
            f"try again, or {by_hand(wanted, cache / wanted.name)}"
        ) from None
    except _BrokenOffError as error:
        raise DataError(
            f"{download.address}: {error}; try again later, or {by_hand(wanted, cache / wanted.name)}"
        ) from None
    finally:
        logger.setLevel(level)
    return Path(kept)


class _BrokenOffError(Exception):
    """The server could not be reached, refused, or stopped in the middle."""


def _download(download: Download, path: Path) -> None:
    """Bring the file at path to its full length, continuing what is there already."""
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"downloading {download.address}", soft_wrap=True, highlight=False)
    columns = (TextColumn(download.file_name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("", total=download.size)
        failed = 0
        while True:
            before = _length(path)
            try:
                _continue(download, path, lambda length: progress.update(bar, completed=length))
                return
            except _BrokenOffError:
                # an attempt that got further does not count: a slow line may need many
                failed = 0 if _length(path) > before else failed + 1
                if failed >= _ATTEMPTS or _length(path) == 0:
                    raise


def _continue(download: Download, path: Path, show: Callable[[int], object]) -> None:
    """Ask once for what is missing, and add it to the file."""
    start = _length(path)
    if start >= download.size:
        # a part as long as the whole is judged by its hash; a longer one cannot be right
        if start == download.size:
            return
        path.unlink()
        start = 0
    headers = {**_HEADERS, "Range": f"bytes={start}-"} if start else _HEADERS
    try:
        with urllib.request.urlopen(
            urllib.request.Request(download.address, headers=headers), timeout=_SECONDS
        ) as reply:
            # a server that cannot continue sends the whole again
            start = start if _continues(reply, start) else 0
            with path.open("ab" if start else "wb") as stream:
                _copy(reply, stream.write, start, download.size, show)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and start:
            # the server's file is shorter than what is here, which must have begun from another
            path.unlink()
            _continue(download, path, show)
            return
        raise _BrokenOffError(f"the server answered {error.code} {error.reason}") from None
    except urllib.error.URLError as error:
        reason = getattr(error.reason, "strerror", None) or error.reason
        raise _BrokenOffError(f"cannot be reached ({reason})") from None
    except (TimeoutError, ConnectionError, HTTPException) as error:
        raise _BrokenOffError(f"the connection broke off ({error})") from None
    if _length(path) < download.size:
        raise _BrokenOffError(
            f"cut off after {_length(path):,} of {download.size:,} bytes, which are kept to continue from"
        )


def _continues(reply: HTTPResponse, start: int) -> bool:
    return reply.status == 206 and reply.headers.get("Content-Range", "").startswith(f"bytes {start}-")


def _copy(
    reply: HTTPResponse,
    write: Callable[[bytes], object],
    length: int,
    size: int,
    show: Callable[[int], object],
) -> None:
    # one byte more than the known size is enough to fail the check of the hash; an endless reply ends here
    while length <= size and (piece := reply.read(min(_AT_ONCE, size + 1 - length))):
        write(piece)
        length += len(piece)
        show(length)


def _length(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _contents(wanted: PublishedSet, download: Download) -> list[str]:
    """List the files of the set that this download brings: itself, or all of them from an archive."""
    names = [file.name for file in wanted.files]
    own = download.file_name.removesuffix(".gz")
    return [own] if own in names else names


def _known(wanted: PublishedSet) -> dict[str, str]:
    return {download.address: download.sha256 for download in wanted.downloads}


def _write_record(wanted: PublishedSet, folder: Path) -> None:
    hashes = {file.name: file_hash(folder / file.name) for file in wanted.files}
    record = {"format_version": 1, "downloads": _known(wanted), "files": hashes}
    write_atomically(folder / RECORD, json.dumps(record, indent=2) + "\n")


def _move(unpacked: Path, folder: Path, wanted: PublishedSet) -> None:
    # an empty folder of that name would be in the way on Windows
    with suppress(OSError):
        folder.rmdir()
    try:
        os.rename(unpacked, folder)
    except OSError:
        # another run may have finished the same download first
        if not folder.is_dir() or missing_files(wanted, folder):
            raise
        shutil.rmtree(unpacked)
