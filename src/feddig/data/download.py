"""Find a public data set on this computer, or download it into the user's cache.

A download is used only if it has the known hash. One that breaks off is continued, in the same run or the next.
"""

import gzip
import hashlib
import importlib
import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from feddig.data.public_sets import Download, PublishedSet
from feddig.errors import DataError, SettingError
from feddig.files import cache_folder, write_atomically

VARIABLE = "FEDDIG_DATA"
DEBIAN_FOLDER = Path("/usr/share/datasets")
RECORD = "downloaded.json"
"""The file next to a downloaded set that holds the hashes of its unpacked files."""

_CHUNK_BYTES = 2**18
# NIST's server refuses Python's user agents; a reply that is compressed in transit would not have the known hash
_HEADERS = {"User-Agent": "Mozilla/5.0 (compatible; FedDig)", "Accept-Encoding": "identity"}


def find_folder(wanted: PublishedSet, data_dir: Path | None) -> Path | None:
    """Return the first folder that holds the whole set; None if no part of it is on this computer."""
    places = _places(data_dir)
    for place in places:
        folder = find_folder_in(wanted, place)
        if folder is not None:
            return folder
    for place in places:
        refuse_unusable(wanted, place)
    return None


def find_folder_in(wanted: PublishedSet, place: Path) -> Path | None:
    """Return the folder that holds the whole set: this one, or one in it of the set's or the publisher's name."""
    return next((folder for folder in _candidates(wanted, place) if not missing_files(wanted, folder)), None)


def refuse_unusable(wanted: PublishedSet, place: Path) -> None:
    """Raise an error if the set lies here in a form that cannot be used: pickled, or incomplete."""
    for folder in _candidates(wanted, place):
        for path in (folder / name for name in wanted.pickled):
            if path.exists():
                raise DataError(
                    f"{path}: the pickled version of {wanted.name}, which is never read because a pickle can run "
                    f"any program; get the binary version from {wanted.downloads[0].address}"
                )
    for folder in _candidates(wanted, place):
        missing = missing_files(wanted, folder)
        # in a folder of another name, a file called train.bin may belong to another set
        if folder != place and 0 < len(missing) < len(wanted.files):
            raise DataError(
                f"{folder}: {wanted.name} is not complete, {' and '.join(missing)} missing; "
                "add the rest, or remove the folder to have it downloaded"
            )


def missing_files(wanted: PublishedSet, folder: Path) -> list[str]:
    """Return the names of the set's files that this folder lacks."""
    return [file.name for file in wanted.files if find_file(folder, file.name) is None]


def find_file(folder: Path, name: str) -> Path | None:
    """Find a file under the names that publishers and unpacking programs give it."""
    names = [name]
    if "-idx" in name:
        names = [stem + ending for stem in (name, name.replace("-idx", ".idx")) for ending in ("", ".gz")]
    return next((folder / each for each in names if (folder / each).is_file()), None)


def file_hash(path: Path, algorithm: str = "sha256", *, unzip: bool = False) -> str:
    """Hash a file, or the content of a gzip file."""
    with gzip.open(path) if unzip else path.open("rb") as stream:
        return hashlib.file_digest(stream, algorithm).hexdigest()


def download_set(wanted: PublishedSet, cache: Path) -> Path:
    """Download a set into the cache and return its folder, which exists with all files or not at all."""
    folder = cache / wanted.name
    try:
        # imported only here, because a set that is on this computer can be read without it
        pooch = importlib.import_module("pooch")
    except ImportError:
        raise DataError(
            f"{wanted.name}: not found on this computer, and it cannot be downloaded without pooch; "
            f"install pooch, or {_by_hand(wanted, folder)}"
        ) from None
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=f".{wanted.name}.") as temporary:
            unpacked = Path(temporary) / "unpacked"
            unpacked.mkdir()
            for download in wanted.downloads:
                for path in _retrieve(pooch, wanted, download, Path(temporary), folder):
                    path.rename(unpacked / path.name)
            _write_record(wanted, unpacked)
            # Windows renames nothing to a name that exists, not even to that of an empty folder
            with suppress(OSError):
                folder.rmdir()
            try:
                unpacked.rename(folder)
            except OSError:
                # another process may have finished the same download first
                if missing_files(wanted, folder):
                    raise
    except OSError as error:
        raise DataError(
            f"{cache}: {wanted.name} cannot be kept here ({error.strerror or error}); "
            "free some space or check the permissions"
        ) from None
    return folder


def read_record(wanted: PublishedSet, folder: Path) -> dict[str, str]:
    """Return the hashes that the files of a checked download had when they were unpacked; empty if unknown."""
    try:
        record = json.loads((folder / RECORD).read_bytes())
        return dict(record["files"]) if record["downloads"] == _known_hashes(wanted) else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_record(wanted: PublishedSet, folder: Path) -> None:
    hashes = {file.name: file_hash(folder / file.name) for file in wanted.files}
    record = {"format_version": 1, "downloads": _known_hashes(wanted), "files": hashes}
    write_atomically(folder / RECORD, json.dumps(record, indent=2) + "\n")


def _known_hashes(wanted: PublishedSet) -> dict[str, str]:
    return {download.address: download.sha256 for download in wanted.downloads}


def _places(data_dir: Path | None) -> list[Path]:
    """Return the folders to look in, first to last."""
    given = [("--data-dir", data_dir)] if data_dir is not None else []
    if os.environ.get(VARIABLE):
        given.append((VARIABLE, Path(os.environ[VARIABLE])))
    for name, place in given:
        if not place.is_dir():
            # looking elsewhere, or downloading, would hide a misspelt folder
            raise SettingError(f"{name}: {place} is not a folder; make it, or give the one with your data")
    return [*(place for _, place in given), cache_folder(), DEBIAN_FOLDER]


def _candidates(wanted: PublishedSet, place: Path) -> list[Path]:
    # the set's own folder first, because MNIST's files, named as Fashion-MNIST's, may lie in the place itself
    own = place / wanted.name
    below = [own / wanted.folder, place / wanted.folder] if wanted.folder else []
    return [own, *below, place]


def _by_hand(wanted: PublishedSet, folder: Path) -> str:
    names = " and ".join(file.name for file in wanted.files)
    addresses = " and ".join(download.address for download in wanted.downloads)
    return f"put {names} from {addresses} into {folder}"


def _retrieve(
    pooch: Any, wanted: PublishedSet, download: Download, temporary: Path, folder: Path
) -> list[Path]:
    """Download one file, check its hash and unpack it; return the files of the set that it holds."""
    unpack = None
    if download.file_name.endswith(".zip"):
        unpack = pooch.Unzip(members=[f"{wanted.folder}/{file.name}.gz" for file in wanted.files])
    elif download.file_name.endswith(".tar.gz"):
        unpack = pooch.Untar(members=[f"{wanted.folder}/{file.name}" for file in wanted.files])
    part = folder.parent / f"{wanted.name}-{download.sha256[:12]}.part"

    def downloader(address: str, output_file: str, _: object) -> None:
        _complete(pooch, download, part)
        os.replace(part, output_file)

    # its log repeats what the progress bar shows
    pooch.get_logger().setLevel("WARNING")
    try:
        found: str | list[str] = pooch.retrieve(
            url=download.address,
            known_hash=f"sha256:{download.sha256}",
            fname=download.file_name,
            path=temporary,
            downloader=downloader,
            processor=unpack,
        )
    except ValueError:
        raise DataError(
            f"{download.address}: the downloaded file does not have the known hash and was deleted; "
            f"try again, or {_by_hand(wanted, folder)}"
        ) from None
    except ConnectionError as error:
        raise DataError(
            f"{download.address}: {error}; try again later, or {_by_hand(wanted, folder)}"
        ) from None
    paths = [Path(path) for path in ([found] if isinstance(found, str) else found)]
    return [
        Path(pooch.Decompress(name=path.stem)(str(path), "download", None)) if path.suffix == ".gz" else path
        for path in paths
    ]


def _complete(pooch: Any, download: Download, part: Path) -> None:
    """Append to a file what it lacks, in several attempts as long as each brings something."""
    requests = importlib.import_module("requests")
    console = Console(stderr=True)
    if not console.is_terminal:
        console.print(f"downloading {download.address}", soft_wrap=True, highlight=False)
    columns = (TextColumn(download.file_name), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=download.size)
        while (start := _size(part)) < download.size:
            headers = {**_HEADERS, "Range": f"bytes={start}-"} if start else _HEADERS
            problem = "the connection broke off"
            try:
                with part.open("ab") as stream:
                    pooch.HTTPDownloader(
                        progressbar=_ProgressBar(progress, task, start),
                        chunk_size=_CHUNK_BYTES,
                        headers=headers,
                    )(download.address, stream, None)
            except requests.RequestException as error:
                problem = f"the connection failed ({type(error).__name__})"
                if error.response is not None:
                    problem = f"the server answered {error.response.status_code} {error.response.reason}"
            size = _size(part)
            if size == 0 or (start and size > download.size):
                # nothing came, or the server cannot continue and has sent the whole file again
                part.unlink()
            if size == start:
                raise ConnectionError(f"{problem} after {size:,} of {download.size:,} bytes")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class _ProgressBar:
    """The progress bar that pooch's downloader calls, shown by rich; it starts where the download does."""

    total = 0

    def __init__(self, progress: Progress, task: TaskID, start: int) -> None:
        self._progress, self._task, self._start = progress, task, start
        self.reset()

    def update(self, count: int) -> None:
        """Show that more bytes have come."""
        self._progress.advance(self._task, count)

    def reset(self) -> None:
        """Go back to the start."""
        self._progress.update(self._task, completed=self._start)

    def close(self) -> None:
        """Do nothing, because rich removes the bar."""
