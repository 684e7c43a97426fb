"""Carry the requests of a simulation on Flower's engine: a silo without a valid reply by the deadline is absent."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from feddig.core.absence import Absence
from feddig.core.messages import Reply, Request
from feddig.digest.digest import Digest
from feddig.errors import FedDigError
from feddig.federation.requests import WHO, RequestSender
from feddig.federation.wire import (
    LARGEST_DIGEST,
    About,
    WireError,
    largest_update,
    pack_question,
    pack_request,
    read_digest_of,
    read_reply,
    read_silo,
)

log = logging.getLogger("feddig")

DIGEST = "query.digest"


class DigestStore(Protocol):
    """Where digests are stored before training uses them."""

    def kept_digest(self, silo: int) -> Digest | None:
        """Return the digest that arrived earlier, if any."""
        ...

    def keep_digest(self, digest: Digest) -> None:
        """Store a digest."""
        ...


class GridEngine:
    """Sends requests over Flower's grid to the silos that are present in the availability table."""

    def __init__(
        self,
        grid: Grid,
        absence: Absence,
        digests: DigestStore,
        *,
        experiment: str,
        deadline: float,
        write: Callable[..., Message] = Message,
    ) -> None:
        self._grid, self._absence, self._digests = grid, absence, digests
        self._about, self._deadline = About("experiment", experiment), deadline
        self._requests = RequestSender(grid, write)
        self._nodes: dict[int, int] = {}

    def known_away(self, requests: Sequence[Request]) -> list[Request]:
        """Return the requests to silos that are absent in the table."""
        return [request for request in requests if not self._here(request.silo, request.round)]

    def collect_digests(self, silos: Sequence[int], round: int) -> list[Digest]:
        """Ask these silos for their digests, and store each one before it is used."""
        kept = {silo: self._digests.kept_digest(silo) for silo in silos}
        joined = self._absence.joined[:, round]
        asked = [silo for silo in silos if kept[silo] is None and joined[silo]]
        questions = {silo: pack_question(self._about) for silo in asked}
        for silo, content in self._ask(questions, DIGEST, round, LARGEST_DIGEST).items():
            try:
                digest = read_digest_of(content, silo)
            except WireError as error:
                log.warning("silo %d, round %d: its digest is refused: %s", silo, round + 1, error)
                continue
            self._digests.keep_digest(digest)
            kept[silo] = digest
        return [digest for silo, digest in kept.items() if digest is not None and joined[silo]]

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Send the requests and wait for replies until the deadline."""
        asked = {one.silo: one for one in requests if self._here(one.silo, one.round)}
        if not asked:
            return []
        packed = {silo: pack_request(request, self._about) for silo, request in asked.items()}
        largest = largest_update(requests[0].weights.numel())
        return read_replies(self._ask(packed, "train", requests[0].round, largest), asked)

    def _here(self, silo: int, round: int) -> bool:
        return bool(self._absence.present[silo, round])

    def _ask(
        self, contents: Mapping[int, RecordDict], kind: str, round: int, largest: int
    ) -> dict[int, RecordDict]:
        """Send a message to each of these silos; return what came back in time, by silo."""
        nodes = self._find_nodes() if contents else {}
        known = {silo: content for silo, content in contents.items() if silo in nodes}
        return self._requests.ask(known, nodes, kind, round=round, deadline=self._deadline, largest=largest)

    def _find_nodes(self) -> Mapping[int, int]:
        """Ask each node once which silo it is: the numbers of nodes mean nothing."""
        if len(self._nodes) < self._absence.silos:
            unknown = [node for node in self._grid.get_node_ids() if node not in self._nodes.values()]
            # by position, until they have said which silo they are
            questions = {place: pack_question(self._about) for place in range(len(unknown))}
            places = dict(enumerate(unknown))
            answers = self._requests.ask(questions, places, WHO, round=0, deadline=self._deadline)
            for place, content in answers.items():
                silo = read_silo(content)
                if silo not in range(self._absence.silos) or silo in self._nodes:
                    raise FedDigError(
                        f"a node says it is silo {silo}; there are {self._absence.silos}, each once"
                    )
                self._nodes[silo] = unknown[place]
        return self._nodes


def read_replies(
    contents: Mapping[int, RecordDict], asked: Mapping[int, Request], limit: float = math.inf
) -> list[Reply]:
    """Read the replies to these requests, in the silos' order; an invalid one does not count."""
    replies = []
    for silo, content in sorted(contents.items()):
        request = asked[silo]
        try:
            reply = read_reply(content, request, limit)
        except WireError as error:
            log.warning("silo %d, round %d: its reply is refused: %s", silo, request.round + 1, error)
            continue
        replies.append(replace(reply, update=reply.update.to(request.weights.device)))
    return replies
