"""Engines carry requests to silos and replies back; a silo that does not reply is absent.

The engine here runs silos in this process; the availability table says which of them reply.
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
    """A way to reach the silos."""

    def collect_digests(self, silos: Sequence[int], round: int) -> list[Digest]:
        """Ask these silos for their digests; absent ones send none."""
        ...

    def known_away(self, requests: Sequence[Request]) -> list[Request]:
        """Return the requests to silos that are known to be absent; others may still not reply."""
        ...

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Send the requests and return the replies that came back, in the silos' order."""
        ...


class InProcessEngine:
    """Runs the present silos: one after the other on a CPU, several at a time on a GPU."""

    def __init__(
        self,
        silos: Sequence[Silo],
        absence: Absence,
        workers: WorkerPool,
        digest_of: Callable[[Silo], Digest],
    ) -> None:
        self._silos, self._absence, self._workers, self._digest_of = silos, absence, workers, digest_of

    def collect_digests(self, silos: Sequence[int], round: int) -> list[Digest]:
        """Return the digests of those of these silos that have joined."""
        return [self._digest_of(self._silos[silo]) for silo in silos if self._absence.joined[silo, round]]

    def known_away(self, requests: Sequence[Request]) -> list[Request]:
        """Return the requests to silos that the table says are absent."""
        return [request for request in requests if not self._here(request)]

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Train the present silos and return their replies."""
        training = [self._workers.submit(self._train(request)) for request in requests if self._here(request)]
        done = [future.result() for future in training]
        return [replace(one.result, seconds=one.seconds) for one in done]

    def _train(self, request: Request) -> Callable[[Worker], Reply]:
        return lambda worker: self._silos[request.silo].train(request, worker)

    def _here(self, request: Request) -> bool:
        return bool(self._absence.present[request.silo, request.round])
