"""Carry the requests of a real federation to its silos, which come and go, and may reply late, wrongly or never.

A silo is known by its key, whatever number Flower gives its node.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from feddig.core.absence import Absence
from feddig.core.messages import Reply, Request
from feddig.digest.digest import Digest
from feddig.federation.certificates import fingerprint
from feddig.federation.contract import Contract, Member
from feddig.federation.requests import RequestSender
from feddig.federation.simulation_engine import DIGEST, DigestStore, read_replies
from feddig.federation.wire import (
    About,
    Score,
    Terms,
    WireError,
    largest_update,
    pack_question,
    pack_request,
    read_digest_of,
    read_score,
)

log = logging.getLogger("feddig")


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
        self._numbers = {member.fingerprint: number for number, member in enumerate(members)}
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


class DeploymentEngine:
    """Sends requests to the silos that are online; a schedule, if there is one, leaves some of them out.

    A silo that comes is asked for its digest before anything else, and again whenever it comes back.
    """

    def __init__(
        self,
        grid: Grid,
        contract: Contract,
        digests: DigestStore,
        *,
        terms: Terms | None,
        schedule: Absence | None = None,
        tell: Callable[[str], None] = lambda state: None,
        write: Callable[..., Message] = Message,
    ) -> None:
        self._contract, self._digests, self._terms, self._schedule = contract, digests, terms, schedule
        self._tell, self._about = tell, About("contract", contract.hash)
        self._online, self._requests = OnlineSilos(grid, contract.members), RequestSender(grid, write)
        self._admitted: set[int] = set()
        """Silos that have sent their digest since they came."""
        self._looked: int | None = None

    def look(self) -> None:
        """Find the silos that are online now, and drop late replies."""
        self._requests.drop_late()
        for silo in self._online.refresh():
            self._requests.mark_free(silo)
            self._admitted.discard(silo)

    def here(self, round: int) -> list[int]:
        """List the silos that can be asked: online, not busy with an earlier round, and in the schedule."""
        online = [silo for silo in self._online.nodes if self.expected(silo, round)]
        return [silo for silo in online if not self._requests.is_busy(silo)]

    def expected(self, silo: int, round: int) -> bool:
        """Return whether this silo is present in this round by the schedule, if there is one."""
        return self._schedule is None or bool(self._schedule.present[silo, round])

    def collect_digests(self, silos: Sequence[int], round: int) -> list[Digest]:
        """Ask the silos that came, or came back, for their digests, and store each new one before it is used."""
        self._look_once(round)
        joined = self._schedule.joined[:, round] if self._schedule is not None else None
        online = [silo for silo in self._online.nodes if joined is None or joined[silo]]
        asked = [silo for silo in online if silo not in self._admitted and not self._requests.is_busy(silo)]
        if asked:
            self._tell("collecting")
        questions = {silo: pack_question(self._about) for silo in asked}
        taken = []
        answers = self._ask(
            questions, DIGEST, round, self._contract.digest_deadline, self._contract.largest_digest
        )
        for silo, content in answers.items():
            try:
                digest = self._take_digest(content, silo)
            except WireError as error:
                log.warning("silo %d, round %d: its digest is refused: %s", silo, round, error)
                continue
            self._admitted.add(silo)
            if digest is not None:
                taken.append(digest)
        return taken

    def _take_digest(self, content: RecordDict, silo: int) -> Digest | None:
        """Check a digest, store it if it is new, and return it then."""
        digest = read_digest_of(content, silo, self._terms, self._contract.largest_digest)
        held = self._digests.kept_digest(silo)
        if held is not None and held.hash == digest.hash:
            return None
        if held is not None and not self._contract.new_release:
            # the digest that was agreed on stays in use, and the silo may train
            log.warning(
                "silo %d: sends another digest (%s) than is held (%s), and the contract allows no new release; "
                "the held one stays",
                silo,
                digest.hash[:12],
                held.hash[:12],
            )
            return None
        self._digests.keep_digest(digest)
        log.info("silo %d: its digest %s is kept", silo, digest.hash[:12])
        return digest

    def known_away(self, requests: Sequence[Request]) -> list[Request]:
        """Return the requests whose silos cannot be asked."""
        return [request for request in requests if not self._can_train(request)]

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Send the requests and wait for replies until the deadline."""
        self._tell("training")
        asked = {one.silo: one for one in requests if self._can_train(one)}
        packed = {silo: pack_request(request, self._about) for silo, request in asked.items()}
        replies = []
        if packed:
            round, largest = requests[0].round, largest_update(requests[0].weights.numel())
            contents = self._ask(packed, "train", round, self._contract.training_deadline, largest)
            replies = read_replies(contents, asked, self._contract.longest_update)
        self._tell("joint")
        return replies

    def evaluate(self, weights: Tensor, silos: Sequence[int], round: int) -> dict[int, Score]:
        """Ask these silos for the accuracy of a model on their validation images."""
        here = set(self.here(round))
        packed = {
            silo: pack_request(Request(silo, round, weights, {}), self._about)
            for silo in silos
            if silo in here
        }
        scores = {}
        for silo, content in self._ask(packed, "evaluate", round, self._contract.training_deadline).items():
            try:
                scores[silo] = read_score(content, silo, round)
            except WireError as error:
                log.warning("silo %d, round %d: its evaluation is refused: %s", silo, round, error)
        return scores

    def _can_train(self, request: Request) -> bool:
        """Return whether a silo can be asked and, if digests are collected, has sent its own."""
        self._look_once(request.round)
        admitted = self._terms is None or request.silo in self._admitted
        return admitted and request.silo in self.here(request.round)

    def _look_once(self, round: int) -> None:
        """Look at the start of a round; a silo that comes later is asked in the next one."""
        if self._looked != round:
            self._looked = round
            self.look()

    def _ask(
        self,
        contents: Mapping[int, RecordDict],
        kind: str,
        round: int,
        deadline: float,
        largest: int = 0,
    ) -> dict[int, RecordDict]:
        nodes = {silo: node.number for silo, node in self._online.nodes.items()}
        found = self._requests.ask(contents, nodes, kind, round=round, deadline=deadline, largest=largest)
        for silo in contents:
            if self._requests.is_busy(silo):
                # it is asked again when it has answered this ping, or the request that it works on
                content = pack_question(self._about)
                self._requests.ping(silo, nodes[silo], content, round=round, deadline=deadline)
        return found
