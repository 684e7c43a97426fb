"""Taking the wanted files out of an archive, and nothing else."""

import gzip
import hashlib
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from feddig.errors import DataError

_AT_ONCE = 2**20


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
                shutil.copyfileobj(source, target, _AT_ONCE)
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
        while piece := stream.read(_AT_ONCE):
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
