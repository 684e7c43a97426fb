"""Reading status.json: how a federation stands, for a terminal, for a program, and for `federation up`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from feddig.errors import FileFormatError
from feddig.federation.folders import ModeratorFolder
from feddig.federation.processes.identity import is_alive
from feddig.federation.processes.processes import running
from feddig.files import check_version

FINISHED = "finished"
KEYS = ("federation", "pid", "state", "round", "rounds", "accuracy", "accuracy_of", "updated", "silos")
APP = "flwr-serverapp"


@dataclass(frozen=True)
class Status:
    """How a federation stands, as its moderator last wrote it down."""

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
        """The accuracy after the last round, in words."""
        value, of = self.content["accuracy"], self.content["accuracy_of"]
        return f"accuracy {value:.1f} % ({of})" if value is not None else "accuracy not yet known"

    @property
    def attendance(self) -> str:
        """Who is here and who is not, in a few words."""
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
        raise FileFormatError(f"{path}: cannot be read ({error}); the next round writes it anew") from None
    if not isinstance(content, dict):
        raise FileFormatError(f"{path}: is not a status; the next round writes it anew")
    check_version(path, content.get("format_version"))
    missing = [key for key in KEYS if key not in content]
    if missing:
        raise FileFormatError(f"{path}: has no {missing[0]}; the next round writes it anew")
    return Status(content)


def moderator_runs(folder: ModeratorFolder, status: Status | None) -> bool:
    """Tell whether the moderator's app is at work now."""
    if status is None:
        return bool(running(folder.path, APP))
    process = int(status.content["pid"])
    return process in running(folder.path) if Path("/proc").is_dir() else is_alive(process)


def describe(status: Status) -> str:
    """Say how it stands in one line."""
    done = f"{status.rounds_done} of {status.rounds} rounds"
    return f"{done}  {status.accuracy}  {status.attendance}"


def tabulate(status: Status) -> Table:
    """Show the silos in a table."""
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
