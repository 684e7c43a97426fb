"""Who is who and who is here: a silo is known by its key, whatever number Flower gives its node."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.serverapp import Grid

from feddig.federation.contract import Member
from feddig.federation.credentials import fingerprint

log = logging.getLogger("feddig")


@dataclass(frozen=True)
class Seat:
    """A silo's node while it is online."""

    node: int
    since: str
    """When Flower last saw it come online: another time is another start of the silo."""


class Roster:
    """The silos that are online, found by their keys each time one looks."""

    def __init__(self, grid: Grid, members: Sequence[Member]) -> None:
        self._grid, self._members = grid, members
        self._numbers = {member.fingerprint: number for number, member in enumerate(members)}
        self._strangers: set[int] = set()
        self.seats: Mapping[int, Seat] = {}
        """The silos that were online when last looked, in order."""

    def look(self) -> set[int]:
        """See who is online now; give the silos that came, or came back, since the last look."""
        found = {}
        for node in self._grid.get_nodes():
            silo = self._numbers.get(_fingerprint(node.public_key) or "")
            if silo is not None:
                found[silo] = Seat(node.node_id, node.last_activated_at)
            elif node.node_id not in self._strangers:
                self._strangers.add(node.node_id)
                log.warning(
                    "node %d: its key is of no silo in the contract; nothing is sent to it", node.node_id
                )
        came = {silo for silo, seat in found.items() if self.seats.get(silo) != seat}
        for silo in sorted(came):
            log.info("silo %d (%s) is here", silo, self._members[silo].name)
        for silo in sorted(self.seats.keys() - found.keys()):
            log.info("silo %d (%s) is away", silo, self._members[silo].name)
        self.seats = dict(sorted(found.items()))
        return came


def _fingerprint(encoded: bytes) -> str | None:
    """Name the key that Flower knows a node by (PEM); None if it is none of ours."""
    try:
        key = load_pem_public_key(encoded)
    except ValueError:
        return None
    return fingerprint(key) if isinstance(key, ec.EllipticCurvePublicKey) else None
