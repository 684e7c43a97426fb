"""Carries messages to nodes of Flower's grid and back: what has not come by the deadline does not count."""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid

log = logging.getLogger("feddig")

WHO = "query.silo"
POLL_SECONDS = 0.05
LONGEST_PAUSE = 0.5
PATIENCE = 2
"""A message is valid for so many times its deadline: a late reply is then seen, told of and dropped."""


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
        return found

    def _collect(self, waiting: dict[str, int], round: int, until: float) -> dict[int, RecordDict]:
        """Pull replies until all are there or time is up; those still waited for stay in `waiting`."""
        found: dict[int, RecordDict] = {}
        pause = POLL_SECONDS
        while waiting:
            for reply in self._grid.pull_messages(list(waiting)):
                # an error tells in whose place it was sent only by the message that it answers
                silo = waiting.pop(reply.metadata.reply_to_message_id, None)
                if silo is None:
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
        for reply, late in self._pull_late(self._unanswered):
            if not reply.has_error():
                log.warning("silo %d: its reply of round %d came late and is dropped", late.silo, late.round)
        for reply, late in self._pull_late(self._knocks):
            if not reply.has_error():
                self.forget(late.silo)

    def _pull_late(self, waiting: dict[str, _Unanswered]) -> list[tuple[Message, _Unanswered]]:
        """Pull what has come for these messages, and wait no more for it, nor for what is no longer valid."""
        for name in [name for name, one in waiting.items() if time.monotonic() > one.until]:
            del waiting[name]
        found = self._grid.pull_messages(list(waiting)) if waiting else []
        named = [(reply, waiting.pop(reply.metadata.reply_to_message_id, None)) for reply in found]
        return [(reply, late) for reply, late in named if late is not None]

    def owes(self, silo: int) -> bool:
        """Tell whether this silo may still be busy with a message of before: asking more would only queue up."""
        return any(one.silo == silo for one in self._unanswered.values())

    def forget(self, silo: int) -> None:
        """Wait no more for this silo: it was started anew, or lives and is free."""
        for waiting in (self._unanswered, self._knocks):
            for name in [name for name, one in waiting.items() if one.silo == silo]:
                del waiting[name]
