"""Carry the requests of a real federation to its silos, which come and go, and may reply late, wrongly or never.

A silo is known by its key, whatever number Flower gives its node.
"""

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from feddig.core.absence import Absence
from feddig.core.messages import Reply, Request
from feddig.digest.digest import Digest
from feddig.federation.contract import Contract
from feddig.federation.requests import BrokenSilos, OnlineSilos, RequestSender
from feddig.federation.simulation_engine import DIGEST, DigestStore, read_replies
from feddig.federation.wire import (
    About,
    Score,
    SentModel,
    Terms,
    WireError,
    largest_update,
    pack_model_file,
    pack_question,
    pack_request,
    read_digest_of,
    read_receipt,
    read_score,
)

log = logging.getLogger("feddig")

MODEL = "query.model"
LOOK_SECONDS = 0.5
RETRY_SECONDS, LONGEST_PAUSE = 1.0, 60.0
"""How long to wait before silos that fail are asked the same again: doubled each time."""

Tell = Callable[[str, Sequence[int]], None]
"""Is told the moderator's state, and the silos that it waits for."""


class DeploymentEngine:
    """Sends requests to the silos that are online; a schedule, if there is one, leaves some of them out.

    A silo that comes is asked for its digest before anything else, and again whenever it comes back. While fewer silos
    reply than a round needs, the same request is sent again: silos give the same answer, so no round is lost.
    """

    def __init__(
        self,
        grid: Grid,
        contract: Contract,
        digests: DigestStore,
        *,
        terms: Terms | None,
        schedule: Absence | None = None,
        needed: Callable[[int], int] = lambda round: 0,
        resumed: int | None = None,
        tell: Tell = lambda state, missing: None,
        write: Callable[..., Message] = Message,
    ) -> None:
        """`needed` says how many silos must reply in a round; `resumed` is a round that may have been asked."""
        self._contract, self._digests, self._terms, self._schedule = contract, digests, terms, schedule
        self._needed, self._resumed = needed, resumed
        self._tell, self._about = tell, About("contract", contract.hash, contract.version)
        self._online, self._requests = OnlineSilos(grid, contract.members), RequestSender(grid, write)
        self._broken = BrokenSilos(contract.members)
        self._admitted: set[int] = set()
        """Silos that have sent their digest since they came."""
        self._refused: dict[int, tuple[int, float]] = {}
        """Silos whose digest was not valid: in which round they were asked, and when they may be asked again in it."""
        self.arrived: dict[int, Digest] = {}
        """Digests that came since the moderator last collected them."""
        self._looked: int | None = None

    def look(self) -> None:
        """Find the silos that are online now, and drop late replies."""
        self._requests.drop_late()
        for silo in self._online.refresh():
            self._requests.mark_free(silo)
            self._broken.restarted(silo)
            self._admitted.discard(silo)
            self._refused.pop(silo, None)

    def here(self, round: int | None) -> list[int]:
        """List the silos that are online, not broken, not busy with an earlier round, and in the schedule, if any."""
        return [silo for silo in self._reachable(round) if silo not in self._broken]

    @property
    def broken(self) -> dict[int, str]:
        """Return the silos that are online and said that they cannot answer, and why."""
        return {silo: self._broken.reasons[silo] for silo in self._online.nodes if silo in self._broken}

    def _reachable(self, round: int | None) -> list[int]:
        """List the silos that can be asked: those that are here, and broken ones whose pause is over."""
        online = [silo for silo in self._online.nodes if round is None or self.expected(silo, round)]
        return [silo for silo in online if not self._requests.is_busy(silo) and not self._broken.rests(silo)]

    def expected(self, silo: int, round: int) -> bool:
        """Return whether this silo is a member, and present in this round by the schedule, if there is one."""
        if silo not in self._contract.active:
            return False
        return self._schedule is None or bool(self._schedule.present[silo, round])

    def ready(self, round: int) -> list[int]:
        """List the silos that can be asked to train: if digests are collected, those that have sent theirs."""
        return [silo for silo in self._reachable(round) if self._terms is None or silo in self._admitted]

    def wait(
        self,
        round: int,
        enough: Callable[[set[int]], bool],
        state: str = "paused",
        *,
        counted: Collection[int] = (),
        silent: float = 0.0,
        longest: float = math.inf,
    ) -> None:
        """Wait until the silos that are ready, with those that are `counted` anyway, are enough; say who is missing.

        Nothing is said for `silent` seconds. After `longest` seconds wait no more.
        """
        began, said = time.monotonic(), ""
        self._look_once(round)
        while True:
            self._admit(round)
            here = {*counted, *self.ready(round)}
            if not self._contract.experiment.recipe.silos_train:
                here |= self._admitted  # they have done their part
            if enough(here) or time.monotonic() - began >= longest:
                break
            missing = [silo for silo in self._everybody if self.expected(silo, round) and silo not in here]
            self._tell(state, missing)
            names = self.names(missing)
            if names != said and time.monotonic() - began >= silent:
                log.warning("round %d: %s until more silos are here; missing: %s", round + 1, state, names)
                said = names
            time.sleep(LOOK_SECONDS)
            self.look()
        if said:
            log.info("round %d: enough silos are here; it goes on", round + 1)

    def names(self, silos: Collection[int]) -> str:
        """Return the names of silos, with commas between."""
        return ", ".join(self._contract.members[silo].name for silo in sorted(silos)) or "nobody"

    @property
    def _everybody(self) -> range:
        return range(len(self._contract.members))

    def collect_digests(self, silos: Sequence[int], round: int) -> list[Digest]:
        """Return the digests of silos that came, or came back, since the last call; each new one is stored first."""
        self._look_once(round)
        self._admit(round)
        arrived, self.arrived = self.arrived, {}
        return list(arrived.values())

    def _admit(self, round: int) -> None:
        """Ask the silos that came, or came back, for their digests, if there are any."""
        if self._terms is None:
            return
        joined = self._schedule.joined[:, round] if self._schedule is not None else None
        online = [silo for silo in self._online.nodes if joined is None or joined[silo]]
        asked = [
            silo
            for silo in online
            if silo not in self._admitted and not self._requests.is_busy(silo) and self._may_ask(silo, round)
        ]
        if asked:
            self._tell("collecting", ())
        questions = {silo: pack_question(self._about) for silo in asked}
        answers = self._ask(
            questions, DIGEST, round, self._contract.digest_deadline, self._contract.largest_digest
        )
        for silo, content in answers.items():
            try:
                digest = self._take_digest(content, silo)
            except WireError as error:
                log.warning("silo %d, round %d: its digest is refused: %s", silo, round + 1, error)
                continue
            self._admitted.add(silo)
            if digest is not None:
                self.arrived[silo] = digest
        again = time.monotonic() + LONGEST_PAUSE
        refused = [silo for silo in asked if silo not in self._admitted and silo not in self._broken]
        self._refused |= dict.fromkeys(refused, (round, again))

    def _may_ask(self, silo: int, round: int) -> bool:
        """Return whether a silo whose digest was not valid may be asked again: once in a round, and now and then."""
        asked, again = self._refused.get(silo, (None, 0.0))
        return not self._broken.rests(silo) and (asked != round or time.monotonic() >= again)

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
        """Send the requests and return the replies, when as many have come as the round needs."""
        round, pause = requests[0].round, RETRY_SECONDS
        found: dict[int, Reply] = {}
        while True:
            self._tell("training", ())
            asked = {one.silo: one for one in requests if one.silo not in found and self._can_train(one)}
            found |= {reply.silo: reply for reply in self._train(asked)}
            answered = {
                silo for silo in asked if not self._requests.is_busy(silo) and silo not in self._broken
            }
            if self._are_enough(round, found.keys(), answered):
                break
            missing = [
                one.silo for one in requests if one.silo not in found and self.expected(one.silo, round)
            ]
            self._tell("paused", missing)
            log.warning(
                "round %d: %d silos replied and it needs %d; missing: %s; they are asked again",
                round + 1, len(found), self._needed(round), self.names(missing),
            )  # fmt: skip
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            self.look()
            self.wait(round, lambda here: len(here) >= self._needed(round), counted=found.keys())
        self._tell("joint", ())
        return [found[silo] for silo in sorted(found)]

    def _are_enough(self, round: int, replied: Collection[int], answered: Collection[int]) -> bool:
        """Return whether a round has the replies that it needs.

        In the round in which a moderator resumes, silos may refuse a request that differs from the one before; they
        would refuse it for ever.
        """
        counted = {*replied, *(answered if round == self._resumed else ())}
        return len(counted) >= self._needed(round)

    def _train(self, asked: Mapping[int, Request]) -> list[Reply]:
        if not asked:
            return []
        one = next(iter(asked.values()))
        packed = {silo: pack_request(request, self._about) for silo, request in asked.items()}
        largest = largest_update(one.weights.numel())
        contents = self._ask(packed, "train", one.round, self._contract.training_deadline, largest)
        return read_replies(contents, asked, self._contract.longest_update)

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
                log.warning("silo %d, round %d: its evaluation is refused: %s", silo, round + 1, error)
        return scores

    def send_model(self, model: SentModel, silos: Collection[int]) -> set[int]:
        """Send a trained model to those of these silos that can be asked; return those that have kept it."""
        reachable, packed = self._reachable(None), pack_model_file(model, self._about)
        contents = {silo: packed for silo in silos if silo in reachable}
        kept, round = set(), model.rounds - 1
        for silo, content in self._ask(contents, MODEL, round, self._contract.training_deadline).items():
            try:
                read_receipt(content, silo, model.rounds)
                kept.add(silo)
            except WireError as error:
                self._broken.add(silo, round, f"its receipt for the model is refused: {error}")
        return kept

    def _can_train(self, request: Request) -> bool:
        """Return whether a silo can be asked to train."""
        self._look_once(request.round)
        return request.silo in self.ready(request.round)

    def _look_once(self, round: int) -> None:
        """Look at the start of a round; a silo that comes later is asked in the next one, or after a pause."""
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
        # a silo that cannot evaluate may still train; one that refuses a resumed round may take part in the next
        excused = kind == "evaluate" or (kind == "train" and round == self._resumed)
        found = self._requests.ask(
            contents, nodes, kind,
            round=round, deadline=deadline, largest=largest, failed=self._broken.add, excused=excused,
        )  # fmt: skip
        for silo in found:
            self._broken.answered(silo)
        for silo in contents:
            if self._requests.is_busy(silo):
                # it is asked again when it has answered this ping, or the request that it works on
                content = pack_question(self._about)
                self._requests.ping(silo, nodes[silo], content, round=round, deadline=deadline)
        return found
