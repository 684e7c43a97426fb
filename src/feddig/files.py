"""Write and read files that are never half written; and find the user's cache."""

import hashlib
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from feddig.errors import FedDigError, FileFormatError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FORMAT_VERSION = 1
STARTING = ".starting"
"""Marks a results folder until its experiment.toml is written, so that a killed start can be cleared away."""
HEAD = "feddig"
"""The metadata key of a safetensors file that holds FedDig's facts, as JSON."""


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write a file in one step, so that a kill or a power cut leaves the old or the new content."""
    data = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files private, but colleagues may read results
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if os.name == "posix":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def write_tensors(path: Path, kind: str, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> None:
    """Write a safetensors file that names its kind and its format version."""
    write_atomically(path, pack_tensors(kind, tensors, facts))


def pack_tensors(kind: str, tensors: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> bytes:
    """Return the bytes of such a file."""
    body = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    head = {
        **facts,
        "format": f"feddig-{kind}",
        "format_version": str(FORMAT_VERSION),
        "content": hash_tensors(body),
    }
    # one key only, because safetensors writes several in random order and the same content must give the same bytes
    packed: bytes = save(body, metadata={HEAD: json.dumps(head, sort_keys=True)})
    return packed


def read_tensors(path: Path, kind: str) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read such a file; refuse one that is damaged, of another kind or of another version."""
    try:
        with safe_open(path, framework="numpy") as opened:
            head = json.loads((opened.metadata() or {}).get(HEAD, "{}"))
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise FileFormatError(f"{path}: no such file") from None
    except (SafetensorError, OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise FileFormatError(
            f"{path}: not a readable safetensors file ({error}); give a FedDig {kind} file, or copy it again"
        ) from None
    facts = {str(key): str(value) for key, value in head.items()} if isinstance(head, dict) else {}
    if facts.get("format") != f"feddig-{kind}":
        raise FileFormatError(f"{path}: not a FedDig {kind} file; give one that this program wrote")
    check_version(path, facts.get("format_version"))
    if facts.get("content") != hash_tensors(tensors):
        raise FileFormatError(
            f"{path}: its content does not match its hash; it was damaged, make or copy it again"
        )
    return tensors, facts


def read_toml(path: Path, missing: str, remedy: str = "correct it") -> dict[str, Any]:
    """Read a TOML file; the error says what a missing file means, or why it is unreadable and what to do."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise FileFormatError(f"{path}: {missing}") from None
    except UnicodeDecodeError as error:
        raise FileFormatError(
            f"{path}: cannot be read as a text in UTF-8 (byte {error.start}); give a TOML file"
        ) from None
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read ({error})") from None
    except (ValueError, RecursionError) as error:  # also raised for numbers of thousands of digits
        raise FileFormatError(f"{path}: not valid TOML: {error}; {remedy}") from None


def hash_tensors(tensors: Mapping[str, np.ndarray]) -> str:
    """Hash the names, shapes, types and bytes of tensors."""
    chunks = []
    for name, array in sorted(tensors.items()):
        chunks += [f"{name} {array.shape} {array.dtype}".encode(), np.ascontiguousarray(array).tobytes()]
    return content_hash(*chunks)


def check_version(path: Path, found: object) -> None:
    """Refuse a file of a format version that this program does not read."""
    if str(found) != str(FORMAT_VERSION):
        raise FileFormatError(
            f"{path}: format_version {found}, but this FedDig reads {FORMAT_VERSION}; "
            "use the release that wrote it or make the file again"
        )


def content_hash(*chunks: bytes) -> str:
    """Return the SHA-256 of some chunks and their lengths, in hex."""
    state = hashlib.sha256()
    for chunk in chunks:
        state.update(len(chunk).to_bytes(8, "big"))
        state.update(chunk)
    return state.hexdigest()


def cache_folder() -> Path:
    """Return the folder in which programs on this platform keep what can be fetched again."""
    if sys.platform == "win32":
        local = os.environ.get("LOCALAPPDATA")
        return (Path(local) if local else _home() / "AppData" / "Local") / "feddig" / "Cache"
    if sys.platform == "darwin":
        return _home() / "Library" / "Caches" / "feddig"
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # the XDG standard says that a relative path is to be ignored
    return (Path(shared) if os.path.isabs(shared) else _home() / ".cache") / "feddig"


def state_folder() -> Path:
    """Return the folder in which programs on this platform keep what must not be lost."""
    if sys.platform == "win32":
        return cache_folder().with_name("State")
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support" / "feddig"
    shared = os.environ.get("XDG_STATE_HOME", "")
    return (Path(shared) if os.path.isabs(shared) else _home() / ".local" / "state") / "feddig"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # a user without a name, as some containers have
        raise FedDigError("HOME: is not set, and this user has no home folder; set it to a folder") from None


def path_fingerprint(path: Path) -> str:
    """Hash the content of a file, or of all files in a folder apart from hidden ones, whatever their names are."""
    if path.is_file():
        return _hash_file(path)
    inside = [
        file
        for file in path.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(path).parts)
    ]
    return content_hash(*(one.encode() for one in sorted(map(_hash_file, inside))))


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold a lock on this file, made if it is not there, so that processes take turns (not on Windows).

    Without `wait` it yields whether the lock was free.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:
        if fcntl is not None:
            try:
                fcntl.flock(stream.fileno(), fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
        yield True


@contextmanager
def attended(path: Path) -> Iterator[Callable[[], int | None]]:
    """Share a lock on this file, and count in it how many processes ever did.

    What is yielded returns that count while no other process shares it (not on Windows), else None. So a process that
    gets the same count twice was alone in between.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as stream:

        def alone() -> int | None:
            if fcntl is not None:
                try:
                    fcntl.flock(stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return None
                finally:  # a failure takes the shared lock away
                    fcntl.flock(stream.fileno(), fcntl.LOCK_SH)
            return path.stat().st_size

        if fcntl is not None:
            fcntl.flock(stream.fileno(), fcntl.LOCK_SH)
        stream.write(b".")
        stream.flush()
        yield alone


def _hash_file(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
