"""Who is who and who is here: a silo is known by its key, whatever number Flower gives its node.

The engine of a real federation: silos are known by their keys, come and go, and may answer nonsense or nothing.
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
from feddig.federation.requests import Courier
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


class DeploymentEngine:
    """Carries requests to the silos that are online; a schedule, if there is one, says who is not even asked.

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
        self._roster, self._courier = Roster(grid, contract.members), Courier(grid, write)
        self._welcomed: set[int] = set()
        """Silos that have shown their digest since they came."""
        self._looked: int | None = None

    def look(self) -> None:
        """See who is online now, and drop what came late."""
        self._courier.drop_late()
        for silo in self._roster.look():
            self._courier.forget(silo)
            self._welcomed.discard(silo)

    def here(self, round: int) -> list[int]:
        """List the silos that it is of use to ask: online, not still busy with an earlier round, not scheduled away."""
        return [
            silo for silo in self._roster.seats if self.expected(silo, round) and not self._courier.owes(silo)
        ]

    def expected(self, silo: int, round: int) -> bool:
        """Tell whether the schedule, if there is one, has this silo there in this round."""
        return self._schedule is None or bool(self._schedule.present[silo, round])

    def collect_digests(self, silos: Sequence[int], round: int) -> list[Digest]:
        """Ask silos that came, or came back, for their digests, and keep each new one before it is used."""
        self._look_once(round)
        asked = [silo for silo in self.here(round) if silo not in self._welcomed]
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
            self._welcomed.add(silo)
            if digest is not None:
                taken.append(digest)
        return taken

    def _take_digest(self, content: RecordDict, silo: int) -> Digest | None:
        """Check a digest and keep it if it is new."""
        digest = read_digest_of(content, silo, self._terms, self._contract.largest_digest)
        held = self._digests.kept_digest(silo)
        if held is not None and held.hash == digest.hash:
            return None
        if held is not None and not self._contract.new_release:
            # what was agreed on stays in use, and the silo itself is who it says it is
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
        """Tell whom it would be no use to ask."""
        return [request for request in requests if not self._can_train(request)]

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Send the requests out and wait for replies until the deadline."""
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
        """Ask these silos how good a model is on validation images of theirs."""
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
        """Tell whether a silo is here and, where digests are collected, has shown its own."""
        self._look_once(request.round)
        welcome = self._terms is None or request.silo in self._welcomed
        return welcome and request.silo in self.here(request.round)

    def _look_once(self, round: int) -> None:
        """Look at the start of a round; who comes later is asked in the next."""
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
        nodes = {silo: seat.node for silo, seat in self._roster.seats.items()}
        found = self._courier.ask(contents, nodes, kind, round=round, deadline=deadline, largest=largest)
        for silo in contents:
            if self._courier.owes(silo):
                # it is not asked again before it has answered this, or whatever it is busy with
                question = pack_question(self._about)
                self._courier.knock(silo, nodes[silo], question, round=round, deadline=deadline)
        return found
