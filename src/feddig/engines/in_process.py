"""The simulation's engine: silos live in this process, and the availability table says who replies."""

from collections.abc import Callable, Sequence

from feddig.absence import Absence
from feddig.digest import Digest
from feddig.messages import Reply, Request
from feddig.models.flat import FlatNetwork
from feddig.silo import Silo


class InProcessEngine:
    """Runs the present silos one after the other, on one network that each of them loads."""

    def __init__(
        self,
        silos: Sequence[Silo],
        absence: Absence,
        network: FlatNetwork,
        digest_of: Callable[[Silo], Digest],
    ) -> None:
        self._silos, self._absence, self._network, self._digest_of = silos, absence, network, digest_of

    def collect_digests(self, silos: Sequence[int], round: int) -> list[Digest]:
        """Have the asked silos that are there make their digests."""
        return [self._digest_of(self._silos[silo]) for silo in silos if self._absence.present[silo, round]]

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Have the silos that are there train."""
        return [
            self._silos[request.silo].train(request, self._network)
            for request in requests
            if self._absence.present[request.silo, request.round]
        ]
