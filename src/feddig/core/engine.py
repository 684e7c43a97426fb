"""What an engine does: carry requests out and replies back. A silo that does not reply is absent.

The simulation's engine: silos live in this process, and the availability table says who replies.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from feddig.core.absence import Absence
from feddig.core.messages import Reply, Request
from feddig.core.silo import Silo
from feddig.core.workers import Worker, WorkerPool
from feddig.digest.digest import Digest


class Engine(Protocol):
    """Any means of reaching the silos."""

    def collect_digests(self, silos: Sequence[int], round: int) -> list[Digest]:
        """Ask these silos for their digests; those who are not there send none."""
        ...

    def known_away(self, requests: Sequence[Request]) -> list[Request]:
        """Tell which silos are known to be away before anybody is asked; others may still not reply."""
        ...

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Send the requests out and give the replies that came back, in the silos' order."""
        ...


class InProcessEngine:
    """Runs the present silos: one after the other on a CPU, side by side on a GPU."""

    def __init__(
        self,
        silos: Sequence[Silo],
        absence: Absence,
        workers: WorkerPool,
        digest_of: Callable[[Silo], Digest],
    ) -> None:
        self._silos, self._absence, self._lanes, self._digest_of = silos, absence, workers, digest_of

    def collect_digests(self, silos: Sequence[int], round: int) -> list[Digest]:
        """Have the asked silos that are there make their digests."""
        return [self._digest_of(self._silos[silo]) for silo in silos if self._absence.present[silo, round]]

    def known_away(self, requests: Sequence[Request]) -> list[Request]:
        """Read from the table whom it would be no use to ask."""
        return [request for request in requests if not self._here(request)]

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Have the silos that are there train."""
        training = [self._lanes.submit(self._train(request)) for request in requests if self._here(request)]
        done = [future.result() for future in training]
        return [replace(one.result, seconds=one.seconds) for one in done]

    def _train(self, request: Request) -> Callable[[Worker], Reply]:
        return lambda worker: self._silos[request.silo].train(request, worker)

    def _here(self, request: Request) -> bool:
        return bool(self._absence.present[request.silo, request.round])
