"""Write and read status.json: the state of a federation, for a terminal, a program and `federation up`."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from feddig.errors import FileFormatError
from feddig.federation.contract import Contract
from feddig.federation.folders import ModeratorFolder
from feddig.federation.processes.processes import is_alive, running
from feddig.files import FORMAT_VERSION, check_version, write_atomically

if TYPE_CHECKING:
    from feddig.digest.digest import Digest

FINISHED = "finished"
KEYS = ("federation", "pid", "state", "round", "rounds", "accuracy", "accuracy_of", "updated", "silos")
APP = "flwr-serverapp"


@dataclass(frozen=True)
class Status:
    """The state of a federation as its moderator last wrote it."""

    content: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        """Whether all rounds are done."""
        return bool(self.content["state"] == FINISHED)

    @property
    def rounds_done(self) -> int:
        """How many rounds are done."""
        return int(self.content["round"])

    @property
    def rounds(self) -> int:
        """How many rounds there are."""
        return int(self.content["rounds"])

    @property
    def accuracy(self) -> str:
        """The accuracy after the last round, as a text."""
        value, of = self.content["accuracy"], self.content["accuracy_of"]
        return f"accuracy {value:.1f} % ({of})" if value is not None else "accuracy not yet known"

    @property
    def attendance(self) -> str:
        """The names of the silos by their state, as a text."""
        groups: dict[str, list[str]] = {}
        for silo in self.content["silos"]:
            recalled = silo["state"] != "here" and silo["recalled"]
            groups.setdefault("recalled" if recalled else silo["state"], []).append(silo["name"])
        order = ("here", "recalled", "away", "never seen")
        return "  ".join(f"{state}: {' '.join(groups[state])}" for state in order if state in groups)


def read_status(path: Path) -> Status | None:
    """Read status.json; None before the moderator has written it for the first time."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path}: cannot be read ({error}); the next round writes it again") from None
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: is not a status; the next round writes it again")
    check_version(path, content.get("format_version"))
    missing = [key for key in KEYS if key not in content]
    if missing:
        raise FileFormatError(f"{path}: has no {missing[0]}; the next round writes it again")
    return Status(content)


def moderator_runs(folder: ModeratorFolder, status: Status | None) -> bool:
    """Return whether the moderator's app runs now."""
    if status is None:
        return bool(running(folder.path, APP))
    process = int(status.content["pid"])
    return process in running(folder.path) if Path("/proc").is_dir() else is_alive(process)


def describe(status: Status) -> str:
    """Describe a status in one line."""
    done = f"{status.rounds_done} of {status.rounds} rounds"
    return f"{done}  {status.accuracy}  {status.attendance}"


def tabulate(status: Status) -> Table:
    """Return a table of the silos."""
    table = Table()
    for title in ("silo", "name", "state", "away since round", "digest", "recalled"):
        table.add_column(title, overflow="fold")
    for silo in status.content["silos"]:
        since, digest = silo["away_since_round"], silo["digest"]
        table.add_row(
            str(silo["silo"]),
            silo["name"],
            silo["state"],
            "" if since is None else str(since),
            "not held" if digest is None else digest[:12],
            "yes" if silo["recalled"] else "",
        )
    return table


class StatusFile:
    """Writes status.json whenever the state of a federation changes."""

    def __init__(self, path: Path, contract: Contract) -> None:
        self._path, self._contract = path, contract
        self._rows: Sequence[Mapping[str, Any]] = ()
        self._state, self._here, self._held = "waiting", set[int](), dict[int, str]()

    def note(
        self,
        state: str,
        *,
        rows: Sequence[Mapping[str, Any]] | None = None,
        here: Collection[int] | None = None,
        digests: Mapping[int, Digest] | None = None,
    ) -> None:
        """Write a new state, with what else has changed."""
        self._state = state
        if rows is not None:
            self._rows = rows
        if here is not None:
            self._here = set(here)
        if digests is not None:
            self._held = {silo: digest.hash for silo, digest in digests.items()}
        write_atomically(self._path, json.dumps(self._content(), indent=2) + "\n")

    def _content(self) -> dict[str, Any]:
        last = self._rows[-1] if self._rows else {}
        return {
            "format_version": FORMAT_VERSION,
            "federation": self._contract.name,
            "pid": os.getpid(),
            "state": self._state,
            "round": len(self._rows),
            "rounds": self._contract.experiment.training.rounds,
            "promise": self._contract.experiment.say_promise(),
            "accuracy": last.get("accuracy"),
            "accuracy_of": last.get("accuracy_of"),
            "updated": datetime.now(UTC).isoformat(timespec="seconds"),
            "silos": [
                {
                    "silo": silo,
                    "name": member.name,
                    **self._presence(silo),
                    "digest": self._held.get(silo),
                    "recalled": silo in last.get("recalled", ()),
                }
                for silo, member in enumerate(self._contract.members)
            ],
        }

    def _presence(self, silo: int) -> dict[str, Any]:
        if silo in self._here:
            return {"state": "here", "away_since_round": None}
        took_part = [row["round"] for row in self._rows if silo in row["present"]]
        if took_part:
            return {"state": "away", "away_since_round": took_part[-1] + 1}
        return {"state": "away" if silo in self._held else "never seen", "away_since_round": None}
