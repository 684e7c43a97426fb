"""Send requests to silos over Flower's grid, collect the replies that come before the deadline, and see who is online.

A broken silo is online and says that it cannot answer.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from feddig.errors import FedDigError
from feddig.federation.certificates import fingerprint
from feddig.federation.contract import VALID_DEADLINES, Member
from feddig.federation.flower_1_41.replies import Answer, open_reader

log = logging.getLogger("feddig")

WHO = "query.silo"
POLL_SECONDS = 0.05
LONGEST_PAUSE = 0.5

Failed = Callable[[int, int, str], None]
"""Is told of a silo that gave no valid reply: its number, the round, and why."""


def log_fault(silo: int, round: int, fault: str) -> None:
    """Log why a silo gave no valid reply."""
    log.warning("silo %d, round %d: %s", silo, round + 1, fault)


@dataclass(frozen=True)
class _Unanswered:
    """A request without a reply: to which silo, in which round, and until when a reply may come."""

    silo: int
    round: int
    until: float


class RequestSender:
    """Sends a request to each of some silos and returns what came back in time."""

    def __init__(self, grid: Grid, write: Callable[..., Message] = Message) -> None:
        self._grid, self._write, self._replies = grid, write, open_reader(grid)
        self._unanswered: dict[str, _Unanswered] = {}
        """Requests to which a reply may still come, to be logged and dropped."""
        self._working_on: set[str] = set()
        """Those of them on which a silo may still be working."""
        self._pings: dict[str, _Unanswered] = {}

    def ask(
        self,
        contents: Mapping[int, RecordDict],
        nodes: Mapping[int, int],
        kind: str,
        *,
        round: int,
        deadline: float,
        largest: int = 0,
        failed: Failed = log_fault,
        excused: bool = False,
    ) -> dict[int, RecordDict]:
        """Send these contents, by silo, to the silos' nodes; return the contents of the replies, by silo.

        A reply whose arrays have more bytes than `largest` does not count. `failed` is told of the silos that say that
        they cannot answer; if they are `excused`, only of those with another contract, and the rest is logged.
        """
        if not contents:
            return {}
        sent = time.monotonic()
        messages = {
            silo: self._write(content, nodes[silo], kind, ttl=VALID_DEADLINES * deadline, group_id=str(round))
            for silo, content in contents.items()
        }
        ids = self._push(list(messages.values()))
        # a message that Flower did not take comes back without a name, or not at all
        receivers = {name: silo for name, silo in zip(ids, messages, strict=False) if name}
        for silo in messages.keys() - set(receivers.values()):
            log.warning("silo %d, round %d: the message could not be sent", silo, round + 1)
        found = self._collect(receivers, round, sent + deadline, largest, failed, excused)
        for name, silo in receivers.items():
            log.warning("silo %d, round %d: no reply to %s in %g s", silo, round + 1, kind, deadline)
            self._unanswered[name] = _Unanswered(silo, round, sent + VALID_DEADLINES * deadline)
            self._working_on.add(name)
        return found

    def _push(self, messages: list[Message]) -> list[str]:
        """Send messages and return their names.

        The SuperLink may have stood still while it took them. Then nobody knows what it has, and only a new run, which
        drops all of them, is sure to begin cleanly.
        """
        try:
            return list(self._grid.push_messages(messages))
        except Exception as error:
            raise FedDigError(f"the SuperLink did not take all messages ({error})") from error

    def _collect(
        self, waiting: dict[str, int], round: int, until: float, largest: int, failed: Failed, excused: bool
    ) -> dict[int, RecordDict]:
        """Pull replies until all are there or time is up; requests without a reply stay in `waiting`."""
        found: dict[int, RecordDict] = {}
        pause = POLL_SECONDS
        while waiting:
            # late replies too: Flower may delete them before the next round
            wanted = dict.fromkeys(waiting, largest) | dict.fromkeys(self._unanswered)
            for answer in self._replies.pull(wanted, until):
                silo = waiting.pop(answer.name, None)
                if silo is None:
                    self._drop(answer)
                elif answer.content is None:
                    told = answer.other_contract or (answer.cannot_answer and not excused)
                    (failed if told else log_fault)(silo, round, answer.fault)
                else:
                    found[silo] = answer.content
            left = until - time.monotonic()
            if left <= 0:
                break
            if waiting:
                time.sleep(min(pause, left))
                pause = min(1.2 * pause, LONGEST_PAUSE)
        return found

    def ping(self, silo: int, node: int, content: RecordDict, *, round: int, deadline: float) -> None:
        """Ask a silo that is late for a sign of life, without waiting for it."""
        valid = VALID_DEADLINES * deadline
        message = self._write(content, node, WHO, ttl=valid, group_id=str(round))
        for name in self._push([message]):
            if name:
                self._pings[name] = _Unanswered(silo, round, time.monotonic() + valid)

    def drop_late(self) -> None:
        """Log and drop replies that came after their round's deadline."""
        for answer in self._replies.pull(dict.fromkeys(self._unanswered), time.monotonic()):
            self._drop(answer)
        for name, late in _expired(self._unanswered).items():
            log.warning("silo %d: a reply of round %d can no longer come", late.silo, late.round + 1)
            self._remove(name)
        for answer in self._replies.pull(dict.fromkeys(self._pings), time.monotonic()):
            ping = self._pings.pop(answer.name, None)
            if ping is not None and not answer.fault:
                self.mark_free(ping.silo)
        for name in _expired(self._pings):
            del self._pings[name]

    def _drop(self, answer: Answer) -> None:
        """Log that a reply came late or failed, and stop waiting for it."""
        late = self._unanswered.get(answer.name)
        if late is None:
            return
        if answer.fault:
            reason = "its message is no longer valid" if answer.expired else answer.fault
            log.warning("silo %d: its reply of round %d is given up: %s", late.silo, late.round + 1, reason)
        else:
            log.warning("silo %d: its reply of round %d came late and is dropped", late.silo, late.round + 1)
        self._remove(answer.name)

    def _remove(self, name: str) -> None:
        del self._unanswered[name]
        self._working_on.discard(name)

    def is_busy(self, silo: int) -> bool:
        """Return whether this silo may still work on an earlier request: a further one would only wait there."""
        return any(self._unanswered[name].silo == silo for name in self._working_on)

    def mark_free(self, silo: int) -> None:
        """Count this silo as free: it was restarted, or answered a ping. Its earlier replies stay late."""
        self._working_on -= {name for name in self._working_on if self._unanswered[name].silo == silo}
        for name in [name for name, one in self._pings.items() if one.silo == silo]:
            del self._pings[name]


def _expired(waiting: Mapping[str, _Unanswered]) -> dict[str, _Unanswered]:
    """Return the requests to which no reply can come any more."""
    return {name: one for name, one in waiting.items() if time.monotonic() > one.until}


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
        self.reasons: dict[int, str] = {}
        """What each of them said."""

    def add(self, silo: int, round: int, reason: str) -> None:
        """Note that a silo could not answer in this round, and leave it alone for a while."""
        pause = min(2 * self._pauses[silo], LONGEST_BROKEN) if silo in self._pauses else BROKEN_SECONDS
        self._pauses[silo], self._again[silo] = pause, time.monotonic() + pause
        self.reasons[silo] = reason
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
        self.reasons.pop(silo, None)

    def __contains__(self, silo: int) -> bool:
        """Return whether a silo is broken."""
        return silo in self._pauses

    def rests(self, silo: int) -> bool:
        """Return whether a silo is broken and not to be asked yet."""
        return time.monotonic() < self._again.get(silo, 0.0)
