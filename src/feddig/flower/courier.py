"""Carries messages to nodes of Flower's grid and back: what has not come by the deadline does not count."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from feddig.flower.contract import PATIENCE

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
        self._grid, self._write = grid, write
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
    ) -> dict[int, RecordDict]:
        """Send these contents, by silo, to the silos' nodes; give the contents of the replies, by silo."""
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
        found = self._collect(senders, round, sent + deadline)
        for name, silo in senders.items():
            log.warning("silo %d, round %d: no reply to %s in %g s", silo, round, kind, deadline)
            self._unanswered[name] = _Unanswered(silo, round, sent + PATIENCE * deadline)
            self._owed.add(name)
        return found

    def _collect(self, waiting: dict[str, int], round: int, until: float) -> dict[int, RecordDict]:
        """Pull replies until all are there or time is up; those still waited for stay in `waiting`."""
        found: dict[int, RecordDict] = {}
        pause = POLL_SECONDS
        while waiting:
            # late ones too: before the next round Flower may have thrown them away
            for reply in self._grid.pull_messages([*waiting, *self._unanswered]):
                # an error tells in whose place it was sent only by the message that it answers
                silo = waiting.pop(reply.metadata.reply_to_message_id, None)
                if silo is None:
                    self._drop(reply)
                    continue
                if reply.has_error():
                    log.warning("silo %d, round %d: %s", silo, round, reply.error.reason or "failed")
                else:
                    found[silo] = reply.content
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
        for reply in self._grid.pull_messages(list(self._unanswered)) if self._unanswered else ():
            self._drop(reply)
        for name, late in _expired(self._unanswered).items():
            log.warning("silo %d: a reply of round %d can no longer come", late.silo, late.round)
            self._release(name)
        for reply in self._grid.pull_messages(list(self._knocks)) if self._knocks else ():
            knock = self._knocks.pop(reply.metadata.reply_to_message_id, None)
            if knock is not None and not reply.has_error():
                self.forget(knock.silo)
        for name in _expired(self._knocks):
            del self._knocks[name]

    def _drop(self, reply: Message) -> None:
        """Tell of a reply that came late, or of what came in its place, and wait no more for it."""
        name = reply.metadata.reply_to_message_id
        late = self._unanswered.get(name)
        if late is None:
            return
        if reply.has_error():
            gone = reply.error.code == ErrorCode.MESSAGE_UNAVAILABLE
            reason = "its message is no longer valid" if gone else reply.error.reason or "failed"
            log.warning("silo %d: its reply of round %d is given up: %s", late.silo, late.round, reason)
        else:
            log.warning("silo %d: its reply of round %d came late and is dropped", late.silo, late.round)
        self._release(name)

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
