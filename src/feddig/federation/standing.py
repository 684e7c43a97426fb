"""status.json: how a federation stands, written anew whenever that changes, for whoever wants to look."""

import json
import os
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from feddig.digest.digest import Digest
from feddig.federation.contract import Contract
from feddig.files import FORMAT_VERSION, write_atomically


class Standing:
    """Knows what status.json is to tell."""

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
        """Write down a new state, with what else has changed."""
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
