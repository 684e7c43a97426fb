"""A run's results folder: written after every round, so that a kill at any moment loses no finished round.

While a process works on a run it holds a lock on the folder's log.txt.
"""

import json
import logging
import os
import shutil
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from feddig.core.absence import Absence, read_absence
from feddig.data.partition import Partition
from feddig.digest.digest import Digest
from feddig.digest.digest_file import read_digest, write_digest
from feddig.errors import FedDigError, FileFormatError
from feddig.experiment.experiment import Experiment
from feddig.experiment.toml import read_experiment, write_experiment
from feddig.files import (
    FORMAT_VERSION,
    STARTING,
    check_version,
    read_tensors,
    write_atomically,
    write_tensors,
)
from feddig.report.run_files import read_summary

try:
    import fcntl
except ImportError:
    fcntl = None  # type: ignore[assignment]

log = logging.getLogger("feddig")

LOCK_RETRY_SECONDS = 0.05
MIN_LOCK_SECONDS = 0.3
"""A run tries at least this long to get its lock: feddig watch takes the lock for an instant to see if it is free."""


@contextmanager
def open_log(folder: Path, wait_seconds: float = 0.0) -> Iterator[None]:
    """Lock a results folder, and copy the log into its log.txt, while a run is worked on.

    If another process works on the run, wait up to `wait_seconds` seconds for it to end.
    """
    handler = logging.FileHandler(folder / "log.txt", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level, propagate = log.level, log.propagate
    if not log.isEnabledFor(logging.INFO):
        # log.txt gets all of INFO, even where the user's own handlers show less
        log.setLevel(logging.INFO)
        log.propagate = False
    log.addHandler(handler)
    try:
        _lock(handler, folder, time.monotonic() + max(wait_seconds, MIN_LOCK_SECONDS))
        log.info("log, format_version %d", FORMAT_VERSION)
        yield
    except (FedDigError, KeyboardInterrupt) as error:
        # at INFO, because the caller reports the error to the user; this line is for log.txt
        log.info("stopped: %s", str(error) or "interrupted")
        raise
    finally:
        log.removeHandler(handler)
        handler.close()
        log.setLevel(level)
        log.propagate = propagate


def _lock(handler: logging.FileHandler, folder: Path, until: float) -> None:
    """Lock the folder for this process; the system releases the lock however the process ends."""
    if fcntl is None or handler.stream is None:
        return  # Windows has no such lock
    while True:
        try:
            fcntl.flock(handler.stream.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= until:
                raise FedDigError(
                    f"{folder}: another process is working on this run; wait for it to end"
                ) from None
        time.sleep(LOCK_RETRY_SECONDS)


@dataclass(frozen=True)
class Checkpoint:
    """The state after the last finished round."""

    rounds: int
    """The number of finished rounds."""
    state: dict[str, Tensor]
    digests: dict[int, Digest]
    inputs: Mapping[str, str]
    """Hashes of what the run was started with."""
    newer: Sequence[int] = ()
    """Silos whose digests are newer than the checkpoint."""


class ResultsFolder:
    """The files of one run. A round is finished once its checkpoint is written; later metrics are dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def started(self) -> bool:
        """Whether a run was started here."""
        return (self.path / "experiment.toml").exists()

    @property
    def finished(self) -> bool:
        """Whether the run here is complete: its summary is written last."""
        return (self.path / "summary.json").exists()

    def create(self) -> None:
        """Create the folder for a new run; a folder that holds anything but an interrupted start is an error."""
        if self.started:
            raise FedDigError(
                f"{self.path}: holds a run already; continue it with --resume, or choose another --out"
            )
        mark = self.path / STARTING
        if self.path.exists() and not mark.exists():
            if self.path.is_file():
                raise FedDigError(f"{self.path}: is a file; choose another --out, a new folder")
            entries = sorted(self.path.iterdir())
            if entries:
                raise FedDigError(
                    f"{self.path}: is not empty (it holds {entries[0].name!r}); choose another --out, a new folder"
                )
        self.path.mkdir(parents=True, exist_ok=True)
        mark.touch()
        for entry in self.path.iterdir():  # files of a start that was killed before any training
            if entry.is_dir():
                shutil.rmtree(entry)
            elif entry != mark:
                entry.unlink()

    def write_setup(self, experiment: Experiment, partition: str | None, availability: str) -> None:
        """Write availability, partition and experiment; the experiment last, because it marks the run as started.

        There is no partition where every silo has its own data.
        """
        if partition is not None:
            write_atomically(self.path / "partition.csv", partition)
        self.write_availability(availability)
        write_atomically(self.path / "experiment.toml", write_experiment(experiment))
        (self.path / STARTING).unlink(missing_ok=True)

    def write_availability(self, table: str) -> None:
        """Write which silos are present in each round; a federation writes it again after each round."""
        write_atomically(self.path / "availability.csv", table)

    def check_setup(self, partition: str, absence: Absence) -> None:
        """On resuming, check that partition and availability are the same as at the start.

        If the number of rounds is another one, the rounds that both availabilities have must be the same.
        """
        same = (self.path / "partition.csv").read_text(encoding="utf-8") == partition
        self._check_same("partition.csv", same)
        self._check_same("availability.csv", self.has_availability(absence) or self._has_rounds_of(absence))

    def _check_same(self, name: str, same: bool) -> None:
        if not same:
            raise FileFormatError(
                f"{self.path / name}: differs from what experiment.toml gives now; the data or the file was changed"
            )

    def has_availability(self, absence: Absence) -> bool:
        """Return whether availability.csv is this table."""
        return (self.path / "availability.csv").read_text(encoding="utf-8") == absence.to_csv()

    def _has_rounds_of(self, absence: Absence) -> bool:
        """Return whether availability.csv has more or fewer rounds than this table, and else is the same."""
        found = read_absence(self.path / "availability.csv")
        rounds = min(found.rounds, absence.rounds)
        same = found.until(rounds).to_csv() == absence.until(rounds).to_csv()
        return same and found.rounds != absence.rounds

    def experiment(self) -> Experiment:
        """Read the resolved experiment."""
        if not self.started:
            raise FileFormatError(
                f"{self.path}: holds no experiment.toml, so there is nothing to resume here; give a run's folder"
            )
        return read_experiment(self.path / "experiment.toml")

    def read_partition(self) -> Partition:
        """Read who holds which training image."""
        return Partition.from_csv(self.path / "partition.csv")

    def digest_path(self, silo: int) -> Path:
        """Return the path of a silo's digest."""
        return self.path / "digests" / f"silo-{silo}.safetensors"

    def keep_digest(self, digest: Digest) -> None:
        """Write a digest that has arrived."""
        write_digest(self.digest_path(digest.silo), digest)

    def delete_digest(self, silo: int) -> None:
        """Delete a silo's digest, if there is one."""
        self.digest_path(silo).unlink(missing_ok=True)

    def kept_digest(self, silo: int) -> Digest | None:
        """Read a digest that arrived before, if any; making it again with new noise would be a second release."""
        path = self.digest_path(silo)
        return read_digest(path) if path.exists() else None

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a round's row to metrics.jsonl."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"format_version": FORMAT_VERSION, **row}) + "\n")
            stream.flush()
            os.fsync(stream.fileno())

    def metrics(self) -> list[dict[str, Any]]:
        """Read the rows of metrics.jsonl."""
        return self._rows(self._lines())

    def _lines(self) -> list[bytes]:
        path = self.path / "metrics.jsonl"
        return path.read_bytes().splitlines() if path.exists() else []

    def _rows(self, lines: list[bytes]) -> list[dict[str, Any]]:
        rows = []
        for number, line in enumerate(lines):
            try:
                row = json.loads(line)
            except ValueError:
                row = None
            if not isinstance(row, dict):
                raise FileFormatError(f"{self.path / 'metrics.jsonl'}: line {number + 1} is damaged")
            check_version(self.path / "metrics.jsonl", row.get("format_version"))
            rows.append(row)
        return rows

    def drop_rows_after(self, rounds: int) -> None:
        """Drop the rows after this many rounds: those of a round that was interrupted before its checkpoint."""
        path = self.path / "metrics.jsonl"
        lines = self._lines()[:rounds]
        rows = self._rows(lines)
        if [row.get("round") for row in rows] != list(range(rounds)):
            raise FileFormatError(
                f"{path}: lacks rows of the {rounds} rounds that the checkpoint has finished"
            )
        kept = b"".join(line + b"\n" for line in lines)
        if kept != (path.read_bytes() if path.exists() else None):
            write_atomically(path, kept)

    @property
    def checkpoint_path(self) -> Path:
        """The path of the checkpoint."""
        return self.path / "checkpoint" / "state.safetensors"

    def write_checkpoint(
        self,
        rounds: int,
        state: Mapping[str, Tensor],
        digests: Mapping[int, Digest],
        inputs: Mapping[str, str],
    ) -> None:
        """Replace the checkpoint by the state after this many rounds; it refers to digests by hash."""
        hashes = {str(silo): digest.hash for silo, digest in sorted(digests.items())}
        arrays = {name: tensor.detach().cpu().numpy() for name, tensor in state.items()}
        facts = {"rounds": str(rounds), "digests": json.dumps(hashes), "inputs": json.dumps(inputs)}
        write_tensors(self.checkpoint_path, "checkpoint", arrays, facts)

    def read_checkpoint(
        self, *, new_releases: bool = False, without: Collection[int] = ()
    ) -> Checkpoint | None:
        """Read the last checkpoint and its digests, or newer digests if `new_releases`; None before the first round.

        Digests of the silos `without` are left out.
        """
        if not self.checkpoint_path.exists():
            return None
        arrays, facts = read_tensors(self.checkpoint_path, "checkpoint")
        digests, newer = {}, []
        for silo, wanted in json.loads(facts["digests"]).items():
            if int(silo) in without:
                continue
            path = self.digest_path(int(silo))
            digests[int(silo)] = read_digest(path)
            if digests[int(silo)].hash != wanted:
                if not new_releases:
                    raise FileFormatError(f"{path}: not the digest that the checkpoint refers to")
                newer.append(int(silo))
        state = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return Checkpoint(int(facts["rounds"]), state, digests, json.loads(facts["inputs"]), newer)

    @property
    def rounds_done(self) -> int:
        """The number of finished rounds."""
        checkpoint = self.read_checkpoint()
        return checkpoint.rounds if checkpoint else 0

    def remove_partial_files(self) -> None:
        """Remove partial files that a killed process left."""
        for part in self.path.rglob(".*.part"):
            part.unlink()
        (self.path / STARTING).unlink(missing_ok=True)

    def write_guidance(self, tensors: Mapping[str, Tensor], facts: Mapping[str, str]) -> None:
        """Write guidance.safetensors, with the tensor names of the module's state dict."""
        arrays = {key: tensor.numpy() for key, tensor in tensors.items()}
        write_tensors(self.path / "guidance.safetensors", "guidance", arrays, facts)

    def reopen(self) -> None:
        """Let a finished run go on: its summary is written again at its end."""
        (self.path / "summary.json").unlink(missing_ok=True)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, which marks the run as finished."""
        write_atomically(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def summary(self) -> dict[str, Any]:
        """Read summary.json."""
        return read_summary(self.path)

    def check_space(self, needed: int) -> None:
        """Raise an error if the disk has too little space for the run."""
        folder = next(
            parent for parent in (self.path.absolute(), *self.path.absolute().parents) if parent.exists()
        )
        free = shutil.disk_usage(folder).free
        if free < needed:
            raise FedDigError(
                f"{self.path}: the run needs about {needed / 1e6:,.0f} MB, but {free / 1e6:,.0f} MB are free; "
                "free some space or choose another --out"
            )
