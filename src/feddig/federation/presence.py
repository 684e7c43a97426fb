"""Which silos are online, and which of them are broken: connected, but they say that they cannot answer."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.serverapp import Grid

from feddig.federation.certificates import fingerprint
from feddig.federation.contract import Member

log = logging.getLogger("feddig")

BROKEN_SECONDS, LONGEST_BROKEN = 5.0, 300.0
"""How long a broken silo is left alone before it is asked again: doubled each time."""


@dataclass(frozen=True)
class OnlineNode:
    """A silo's node while it is online."""

    number: int
    since: str
    """When Flower last saw it come online; another time means that the silo was restarted."""


class OnlineSilos:
    """The silos that are online, found by their keys at each refresh."""

    def __init__(self, grid: Grid, members: Sequence[Member]) -> None:
        self._grid, self._members = grid, members
        self._numbers = {
            member.fingerprint: number for number, member in enumerate(members) if member.removed is None
        }
        self._unknown: set[int] = set()
        self.nodes: Mapping[int, OnlineNode] = {}
        """The nodes of the silos that were online at the last refresh, in the silos' order."""

    def refresh(self) -> set[int]:
        """Find the silos that are online now; return those that came or came back since the last refresh."""
        found = {}
        for node in self._grid.get_nodes():
            silo = self._numbers.get(_fingerprint(node.public_key) or "")
            if silo is not None:
                found[silo] = OnlineNode(node.node_id, node.last_activated_at)
            elif node.node_id not in self._unknown:
                self._unknown.add(node.node_id)
                log.warning(
                    "node %d: its key is of no silo in the contract; nothing is sent to it", node.node_id
                )
        came = {silo for silo, node in found.items() if self.nodes.get(silo) != node}
        for silo in sorted(came):
            log.info("silo %d (%s) is here", silo, self._members[silo].name)
        for silo in sorted(self.nodes.keys() - found.keys()):
            log.info("silo %d (%s) is away", silo, self._members[silo].name)
        self.nodes = dict(sorted(found.items()))
        return came


def _fingerprint(encoded: bytes) -> str | None:
    """Return the fingerprint of a node's key (PEM); None if it is no key of our kind."""
    try:
        key = load_pem_public_key(encoded)
    except ValueError:
        return None
    return fingerprint(key) if isinstance(key, ec.EllipticCurvePublicKey) else None


class BrokenSilos:
    """The silos that said that they cannot answer, until they answer or are restarted."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members
        self._pauses: dict[int, float] = {}
        self._again: dict[int, float] = {}

    def add(self, silo: int, round: int, reason: str) -> None:
        """Note that a silo could not answer in this round, and leave it alone for a while."""
        pause = min(2 * self._pauses[silo], LONGEST_BROKEN) if silo in self._pauses else BROKEN_SECONDS
        self._pauses[silo], self._again[silo] = pause, time.monotonic() + pause
        log.warning(
            "silo %d, round %d: %s is broken: %s; it is asked again in %g s",
            silo, round + 1, self._members[silo].name, reason, pause,
        )  # fmt: skip

    def answered(self, silo: int) -> None:
        """Note that a silo has answered."""
        if silo in self._pauses:
            self.restarted(silo)
            log.info("silo %d (%s) answers again", silo, self._members[silo].name)

    def restarted(self, silo: int) -> None:
        """Forget what a silo's last node said."""
        self._pauses.pop(silo, None)
        self._again.pop(silo, None)

    def __contains__(self, silo: int) -> bool:
        """Return whether a silo is broken."""
        return silo in self._pauses

    def rests(self, silo: int) -> bool:
        """Return whether a silo is broken and not to be asked yet."""
        return time.monotonic() < self._again.get(silo, 0.0)
