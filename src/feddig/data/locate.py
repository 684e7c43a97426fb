"""Where the files of a public data set may lie on this computer, and whether they do."""

import os
import sys
from pathlib import Path

from feddig.data.public_sets import PublishedSet
from feddig.errors import DataError, SettingError

VARIABLE = "FEDDIG_DATA"
DEBIAN_FOLDER = Path("/usr/share/datasets")


def cache_folder() -> Path:
    """Name the folder in which this platform wants programs to keep what can be fetched again."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else Path.home() / "AppData" / "Local") / "feddig" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "feddig"
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # the standard says that a relative path is to be ignored
    return (Path(shared) if os.path.isabs(shared) else Path.home() / ".cache") / "feddig"


def places(data_dir: Path | None) -> list[Path]:
    """List the folders to look in, first to last."""
    given = [("--data-dir", data_dir)]
    if os.environ.get(VARIABLE):
        given.append((VARIABLE, Path(os.environ[VARIABLE])))
    found = []
    for what, place in given:
        if place is None:
            continue
        if not place.is_dir():
            # to look elsewhere, or to download, would hide a misspelt folder
            raise SettingError(f"{what}: {place} is not a folder; make it, or give the one with your data")
        found.append(place)
    return [*dict.fromkeys([*found, cache_folder(), DEBIAN_FOLDER])]


def find_folder(wanted: PublishedSet, data_dir: Path | None) -> Path | None:
    """Find the first folder that holds the whole set; None when there is no trace of it."""
    looked_in = places(data_dir)
    for place in looked_in:
        folder = folder_within(wanted, place)
        if folder is not None:
            return folder
    for place in looked_in:
        refuse_traces(wanted, place)
    return None


def folder_within(wanted: PublishedSet, place: Path) -> Path | None:
    """Find the set in this folder or in one below it that bears the set's or the publisher's name."""
    for folder in _candidates(wanted, place):
        if not missing_files(wanted, folder):
            return folder
    return None


def refuse_traces(wanted: PublishedSet, place: Path) -> None:
    """Explain why what lies here is not used: a pickled version, or a set that is not complete."""
    if wanted.pickled is not None:
        folder_name, file_name = wanted.pickled
        for folder in _candidates(wanted, place):
            for trace in (folder / folder_name, folder / file_name):
                if trace.exists():
                    raise DataError(
                        f"{trace}: the pickled version of {wanted.name}, which is never read as it can run "
                        f"any program; get the binary version from {wanted.downloads[0].address}"
                    )
    for folder in _candidates(wanted, place):
        missing = missing_files(wanted, folder)
        # in a folder of another name, a file called train.bin need not be ours
        if folder != place and 0 < len(missing) < len(wanted.files):
            raise DataError(
                f"{folder}: {wanted.name} is not complete, {' and '.join(missing)} missing; "
                "add the rest, or remove the folder to have it downloaded"
            )


def missing_files(wanted: PublishedSet, folder: Path) -> list[str]:
    """List the files of the set that this folder lacks."""
    return [file.name for file in wanted.files if find_file(folder, file.name) is None]


def find_file(folder: Path, name: str) -> Path | None:
    """Find a file under the names that publishers and their unpackers give it."""
    names = [name]
    if "-idx" in name:
        names = [stem + ending for stem in (name, name.replace("-idx", ".idx")) for ending in ("", ".gz")]
    return next((folder / each for each in names if (folder / each).is_file()), None)


def _candidates(wanted: PublishedSet, place: Path) -> list[Path]:
    # the set's own folder first: the files of Fashion-MNIST are named as those of MNIST, which may lie beside
    own = place / wanted.name
    below = [own / wanted.folder, place / wanted.folder] if wanted.folder else []
    return [own, *below, place]
