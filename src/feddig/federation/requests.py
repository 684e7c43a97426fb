"""Carries messages to nodes of Flower's grid and back: what has not come by the deadline does not count."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

from feddig.federation.contract import PATIENCE
from feddig.federation.flower_1_41.replies import Answer, open_reader

log = logging.getLogger("feddig")

WHO = "query.silo"
POLL_SECONDS = 0.05
LONGEST_PAUSE = 0.5


@dataclass(frozen=True)
class _Unanswered:
    """A message without a reply: to which silo, in which round, and until when one may still come."""

    silo: int
    round: int
    until: float


class Courier:
    """Sends a message to each of some silos and gives what came back in time."""

    def __init__(self, grid: Grid, write: Callable[..., Message] = Message) -> None:
        self._grid, self._write, self._replies = grid, write, open_reader(grid)
        self._unanswered: dict[str, _Unanswered] = {}
        """Messages to which a reply may still come, to be told of and dropped."""
        self._owed: set[str] = set()
        """Those of them with which a silo may still be busy."""
        self._knocks: dict[str, _Unanswered] = {}

    def ask(
        self,
        contents: Mapping[int, RecordDict],
        nodes: Mapping[int, int],
        kind: str,
        *,
        round: int,
        deadline: float,
        largest: int = 0,
    ) -> dict[int, RecordDict]:
        """Send these contents, by silo, to the silos' nodes; give the contents of the replies, by silo.

        A reply whose arrays have more bytes than `largest` does not count.
        """
        if not contents:
            return {}
        sent = time.monotonic()
        messages = {
            silo: self._write(content, nodes[silo], kind, ttl=PATIENCE * deadline, group_id=str(round))
            for silo, content in contents.items()
        }
        ids = list(self._grid.push_messages(list(messages.values())))
        # what Flower did not take comes back without a name, or not at all
        senders = {name: silo for name, silo in zip(ids, messages, strict=False) if name}
        for silo in messages.keys() - set(senders.values()):
            log.warning("silo %d, round %d: the message could not be sent", silo, round)
        found = self._collect(senders, round, sent + deadline, largest)
        for name, silo in senders.items():
            log.warning("silo %d, round %d: no reply to %s in %g s", silo, round, kind, deadline)
            self._unanswered[name] = _Unanswered(silo, round, sent + PATIENCE * deadline)
            self._owed.add(name)
        return found

    def _collect(
        self, waiting: dict[str, int], round: int, until: float, largest: int
    ) -> dict[int, RecordDict]:
        """Pull replies until all are there or time is up; those still waited for stay in `waiting`."""
        found: dict[int, RecordDict] = {}
        pause = POLL_SECONDS
        while waiting:
            # late ones too: before the next round Flower may have thrown them away
            wanted = dict.fromkeys(waiting, largest) | dict.fromkeys(self._unanswered)
            for answer in self._replies.pull(wanted, until):
                silo = waiting.pop(answer.name, None)
                if silo is None:
                    self._drop(answer)
                elif answer.content is None:
                    log.warning("silo %d, round %d: %s", silo, round, answer.fault)
                else:
                    found[silo] = answer.content
            left = until - time.monotonic()
            if left <= 0:
                break
            if waiting:
                time.sleep(min(pause, left))
                pause = min(1.2 * pause, LONGEST_PAUSE)
        return found

    def knock(self, silo: int, node: int, question: RecordDict, *, round: int, deadline: float) -> None:
        """Ask a silo that owes a reply for any sign of life, without waiting for it."""
        valid = PATIENCE * deadline
        message = self._write(question, node, WHO, ttl=valid, group_id=str(round))
        for name in self._grid.push_messages([message]):
            if name:
                self._knocks[name] = _Unanswered(silo, round, time.monotonic() + valid)

    def drop_late(self) -> None:
        """Take in replies that came after their round's deadline, tell of them, and drop them."""
        for answer in self._replies.pull(dict.fromkeys(self._unanswered), time.monotonic()):
            self._drop(answer)
        for name, late in _expired(self._unanswered).items():
            log.warning("silo %d: a reply of round %d can no longer come", late.silo, late.round)
            self._release(name)
        for answer in self._replies.pull(dict.fromkeys(self._knocks), time.monotonic()):
            knock = self._knocks.pop(answer.name, None)
            if knock is not None and not answer.fault:
                self.forget(knock.silo)
        for name in _expired(self._knocks):
            del self._knocks[name]

    def _drop(self, answer: Answer) -> None:
        """Tell of a reply that came late, or of what came in its place, and wait no more for it."""
        late = self._unanswered.get(answer.name)
        if late is None:
            return
        if answer.fault:
            reason = "its message is no longer valid" if answer.expired else answer.fault
            log.warning("silo %d: its reply of round %d is given up: %s", late.silo, late.round, reason)
        else:
            log.warning("silo %d: its reply of round %d came late and is dropped", late.silo, late.round)
        self._release(answer.name)

    def _release(self, name: str) -> None:
        del self._unanswered[name]
        self._owed.discard(name)

    def owes(self, silo: int) -> bool:
        """Tell whether this silo may still be busy with a message of before: asking more would only queue up."""
        return any(self._unanswered[name].silo == silo for name in self._owed)

    def forget(self, silo: int) -> None:
        """Count this silo as free: it was started anew, or lives. What still comes from it is late as before."""
        self._owed -= {name for name in self._owed if self._unanswered[name].silo == silo}
        for name in [name for name, one in self._knocks.items() if one.silo == silo]:
            del self._knocks[name]


def _expired(waiting: Mapping[str, _Unanswered]) -> dict[str, _Unanswered]:
    """Give those to which no reply can come any more."""
    return {name: one for name, one in waiting.items() if time.monotonic() > one.until}
