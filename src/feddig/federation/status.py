"""Write and read status.json: the state of a federation, for a terminal, a program and `federation up`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
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

FINISHED, SENDING, BROKEN, PAUSED_BY_OPERATOR = "finished", "sending", "broken", "paused by the operator"
KEYS = ("federation", "pid", "state", "round", "rounds", "accuracy", "accuracy_of", "updated", "silos")
APP = "flwr-serverapp"
NOBODY: Mapping[int, str] = {}


@dataclass(frozen=True)
class Status:
    """The state of a federation as its moderator last wrote it."""

    content: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        """Whether all rounds are done, and the final model was sent."""
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
        """The names of the silos by what they did in the last round; before the first, by where they are."""
        groups: dict[str, list[str]] = {}
        for silo in self.content["silos"]:
            did = next((did for did in ("replied", "recalled") if silo.get(did)), silo["state"])
            # a silo may have come, or come back, since the last round
            did = "away" if did == "here" and self.rounds_done and "replied" in silo else did
            groups.setdefault(did, []).append(silo["name"])
            if did != silo["state"] == BROKEN:
                groups.setdefault(BROKEN, []).append(silo["name"])
        order = ("here", "replied", "recalled", BROKEN, "away", "never seen")
        return "  ".join(f"{did}: {', '.join(groups[did])}" for did in order if did in groups)

    @property
    def faults(self) -> list[str]:
        """A line for each broken silo: its name and why it is broken."""
        told = [(silo["name"], silo.get("reason")) for silo in self.content["silos"]]
        return [f"{name} is broken: {reason}" for name, reason in told if reason]

    @property
    def received(self) -> set[int]:
        """The silos that have the final model; all of them if an older release wrote the status."""
        return {silo["silo"] for silo in self.content["silos"] if silo.get("received", True)}

    @property
    def lacking(self) -> str:
        """Which silos lack the final model in the end, as a text; empty if none does."""
        members = [silo for silo in self.content["silos"] if silo["state"] != "removed"]
        names = ", ".join(silo["name"] for silo in members if silo["silo"] not in self.received)
        return f"without the final model: {names}" if self.finished and names else ""

    def lacks_only(self, names: Collection[str]) -> bool:
        """Return whether the rounds are done, and only silos of these names lack the final model."""
        missing = set(self.content.get("missing", ()))
        return self.content["state"] == SENDING and bool(missing) and missing.issubset(names)

    @property
    def waits(self) -> str:
        """For which silos the moderator waits, as a text; empty if it does not wait."""
        missing, state = ", ".join(self.content.get("missing", ())), self.content["state"]
        if state == PAUSED_BY_OPERATOR:
            return PAUSED_BY_OPERATOR
        if state == SENDING:
            return f"sending the model to: {missing}" if missing else ""
        return f"{state}, missing: {missing}" if missing else ""


Show = Callable[[Status], None]


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
    """Return whether the moderator's app runs now; before its first status, whether anything runs for it."""
    if status is None:
        return bool(running(folder.path))
    process = int(status.content["pid"])
    return process in running(folder.path) if Path("/proc").is_dir() else is_alive(process)


def say_paused(folder: ModeratorFolder) -> str:
    """Say that the operator paused a federation, and how it goes on."""
    return f"{PAUSED_BY_OPERATOR}; `feddig federation resume {folder.path}` goes on"


def describe(status: Status) -> str:
    """Describe a status in one line."""
    done = f"round {status.rounds_done} of {status.rounds}" if status.rounds_done else "before round 1"
    parts = (status.waits, done, status.accuracy, status.attendance, status.lacking)
    return "  ".join(part for part in parts if part)


def show_lines(say: Callable[[str], None]) -> Show:
    """Return a function that says a line when a round is done, the moderator begins to wait, or a silo is broken."""
    said: dict[bool, str] = {}
    show_faults = show_new_faults(say)

    def show(status: Status) -> None:
        # while it waits it also asks now and then, which is nothing new
        line, waits = f"{status.content['federation']}: {describe(status)}", bool(status.waits)
        if said.get(waits) != line:
            say(line)
        said[waits] = line
        show_faults(status)

    return show


def show_new_faults(say: Callable[[str], None]) -> Show:
    """Return a function that says a line when a silo is broken that was not before, or for another reason."""
    known: list[str] = []

    def show(status: Status) -> None:
        for fault in status.faults:
            if fault not in known:
                say(f"{status.content['federation']}: {fault}")
        known[:] = status.faults

    return show


def tabulate(status: Status) -> Table:
    """Return a table of the silos."""
    table = Table()
    for title in ("silo", "name", "state", "away since round", "digest", "last round"):
        table.add_column(title, overflow="fold")
    for silo in status.content["silos"]:
        since, digest = silo["away_since_round"], silo["digest"]
        table.add_row(
            str(silo["silo"]),
            silo["name"],
            silo["state"],
            # in the file rounds count from 0
            "" if since is None else str(since + 1),
            "not held" if digest is None else digest[:12],
            next((did for did in ("replied", "recalled") if silo.get(did)), ""),
        )
    return table


class StatusFile:
    """Writes status.json whenever the state of a federation changes."""

    def __init__(self, path: Path, contract: Contract) -> None:
        self._path, self._contract = path, contract
        self._rows: Sequence[Mapping[str, Any]] = ()
        self._here, self._held = set[int](), dict[int, str]()
        self.state = "waiting"
        self._broken: Mapping[int, str] = {}
        self.received: set[int] = set()
        """The silos that have the final model."""
        self._missing: Sequence[int] = ()

    def note(
        self,
        state: str,
        *,
        rows: Sequence[Mapping[str, Any]] | None = None,
        here: Collection[int] | None = None,
        broken: Mapping[int, str] = NOBODY,
        digests: Mapping[int, Digest] | None = None,
        missing: Sequence[int] = (),
    ) -> None:
        """Write a new state, with the silos that it waits for and what else has changed."""
        self.state, self._missing, self._broken = state, missing, broken
        if rows is not None:
            self._rows = rows
        if here is not None:
            self._here = set(here)
        if digests is not None:
            self._held = {silo: digest.hash for silo, digest in digests.items()}
        write_atomically(self._path, json.dumps(self._content(), indent=2) + "\n")

    def describe(self) -> str:
        """Describe the state in one line."""
        return describe(Status(self._content()))

    def _content(self) -> dict[str, Any]:
        last = self._rows[-1] if self._rows else {}
        return {
            "format_version": FORMAT_VERSION,
            "federation": self._contract.name,
            "pid": os.getpid(),
            "state": self.state,
            "round": len(self._rows),
            "rounds": self._contract.experiment.training.rounds,
            "version": self._contract.version,
            "promise": self._contract.experiment.say_promise(),
            "accuracy": last.get("accuracy"),
            "accuracy_of": last.get("accuracy_of"),
            "missing": [self._contract.members[silo].name for silo in self._missing],
            "updated": datetime.now(UTC).isoformat(timespec="seconds"),
            "silos": [
                {
                    "silo": silo,
                    "name": member.name,
                    **self._presence(silo),
                    "reason": self._broken.get(silo),
                    "digest": self._held.get(silo),
                    "replied": silo in last.get("present", ()),
                    "recalled": silo in last.get("recalled", ()),
                    "received": silo in self.received,
                }
                for silo, member in enumerate(self._contract.members)
            ],
        }

    def _presence(self, silo: int) -> dict[str, Any]:
        if silo not in self._contract.active:
            return {"state": "removed", "away_since_round": None}
        if silo in self._broken:
            return {"state": BROKEN, "away_since_round": None}
        if silo in self._here:
            return {"state": "here", "away_since_round": None}
        took_part = [row["round"] for row in self._rows if silo in row["present"]]
        if took_part:
            return {"state": "away", "away_since_round": took_part[-1] + 1}
        return {"state": "away" if silo in self._held else "never seen", "away_since_round": None}
