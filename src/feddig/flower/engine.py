"""An engine that reaches the silos through Flower's grid: no valid reply by the deadline means absent."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from feddig.absence import Absence
from feddig.digest import Digest
from feddig.errors import FedDigError
from feddig.flower.wire import WireError, pack_question, pack_request, read_digest_of, read_reply, read_silo
from feddig.messages import Reply, Request

log = logging.getLogger("feddig")

POLL_SECONDS = 0.05
DIGEST, WHO = "query.digest", "query.silo"


class DigestStore(Protocol):
    """Where digests are kept before training counts on them."""

    def kept_digest(self, silo: int) -> Digest | None:
        """Give a digest that arrived before."""
        ...

    def keep_digest(self, digest: Digest) -> None:
        """Keep one that arrives."""
        ...


class GridEngine:
    """Carries requests over Flower's grid; in a simulation the availability table says who is asked at all."""

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
        self._experiment, self._deadline, self._write = experiment, deadline, write
        self._nodes: dict[int, int] = {}

    def known_away(self, requests: Sequence[Request]) -> list[Request]:
        """Read from the table whom it would be no use to ask."""
        return [request for request in requests if not self._here(request.silo, request.round)]

    def collect_digests(self, silos: Sequence[int], round: int) -> list[Digest]:
        """Ask these silos for their digests, and keep each one before it is used."""
        kept = {silo: self._digests.kept_digest(silo) for silo in silos}
        asked = [silo for silo in silos if kept[silo] is None and self._here(silo, round)]
        questions = {silo: pack_question(self._experiment) for silo in asked}
        for silo, content in self._ask(questions, DIGEST, round).items():
            try:
                digest = read_digest_of(content, silo)
            except WireError as error:
                log.warning("silo %d, round %d: its digest is refused: %s", silo, round, error)
                continue
            self._digests.keep_digest(digest)
            kept[silo] = digest
        return [digest for silo, digest in kept.items() if digest is not None and self._here(silo, round)]

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Send the requests out and wait for replies until the deadline."""
        asked = {one.silo: one for one in requests if self._here(one.silo, one.round)}
        if not asked:
            return []
        packed = {silo: pack_request(request, self._experiment) for silo, request in asked.items()}
        round, replies = requests[0].round, []
        for silo, content in self._ask(packed, "train", round).items():
            try:
                replies.append(read_reply(content, asked[silo]))
            except WireError as error:
                log.warning("silo %d, round %d: its reply is refused: %s", silo, round, error)
        return [_onto(reply, asked[reply.silo]) for reply in sorted(replies, key=lambda reply: reply.silo)]

    def _here(self, silo: int, round: int) -> bool:
        return bool(self._absence.present[silo, round])

    def _ask(self, contents: Mapping[int, RecordDict], kind: str, round: int) -> dict[int, RecordDict]:
        """Send a message to each of these silos and give what came back in time, by silo."""
        if not contents:
            return {}
        nodes = self._find_nodes()
        messages = {
            silo: self._message(content, nodes[silo], kind, round)
            for silo, content in contents.items()
            if silo in nodes
        }
        senders = dict(zip(self._grid.push_messages(messages.values()), messages, strict=True))
        return self._collect(senders, round)

    def _collect(self, senders: Mapping[str, int], round: int) -> dict[int, RecordDict]:
        """Pull replies until all are there or the deadline has passed."""
        waiting, found = dict(senders), {}
        until = time.monotonic() + self._deadline
        while waiting and time.monotonic() < until:
            for reply in self._grid.pull_messages(list(waiting)):
                # an error tells in whose place it was sent only by the message that it answers
                silo = waiting.pop(reply.metadata.reply_to_message_id)
                if reply.has_error():
                    log.warning("silo %d, round %d: %s", silo, round, reply.error.reason or "failed")
                else:
                    found[silo] = reply.content
            if waiting:
                time.sleep(POLL_SECONDS)
        for silo in waiting.values():
            log.warning("silo %d, round %d: no reply in %g s", silo, round, self._deadline)
        return found

    def _find_nodes(self) -> Mapping[int, int]:
        """Learn which node is which silo by asking, once; the numbers of nodes mean nothing by themselves."""
        if len(self._nodes) < self._absence.silos:
            unknown = [node for node in self._grid.get_node_ids() if node not in self._nodes.values()]
            messages = [self._message(pack_question(self._experiment), node, WHO, 0) for node in unknown]
            asked = dict(zip(self._grid.push_messages(messages), range(len(messages)), strict=True))
            for place, content in self._collect(asked, 0).items():
                silo = read_silo(content)
                if silo not in range(self._absence.silos) or silo in self._nodes:
                    raise FedDigError(
                        f"a node says it is silo {silo}; there are {self._absence.silos}, each once"
                    )
                self._nodes[silo] = unknown[place]
        return self._nodes

    def _message(self, content: RecordDict, node: int, kind: str, round: int) -> Message:
        return self._write(content, node, kind, ttl=self._deadline, group_id=str(round))


def _onto(reply: Reply, request: Request) -> Reply:
    """Move an update to where the model is."""
    return replace(reply, update=reply.update.to(request.weights.device))
