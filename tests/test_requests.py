"""Late replies are logged and dropped, at whatever time they arrive."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Error, RecordDict
from flwr.common.constant import ErrorCode

from feddig.errors import FedDigError
from feddig.federation import requests
from feddig.federation.contract import VALID_DEADLINES
from feddig.federation.flower_1_41.replies import Answer
from feddig.federation.requests import RequestSender
from federations import Answered, write_message

pytestmark = pytest.mark.flower

DEADLINE = 10.0
LATE = "silo 1: its reply of round 5 came late and is dropped"


class Clock:
    """A clock that only sleep() advances."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SlowGrid:
    """A grid that gives each reply at its time and deletes replies after `deleted`, as Flower's SuperLink does."""

    def __init__(self, clock: Clock, deleted: float = float("inf")) -> None:
        self._clock, self._deleted, self._replies = clock, deleted, {}  # type: ignore[var-annotated]
        self.when: Callable[[int, int], float] = lambda silo, round: 0.0
        """Return the time at which a silo's reply of a round arrives."""
        self.sent = 0

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        names = []
        for message in messages:
            self.sent += 1
            names.append(f"message {self.sent}")
            silo, round = message.metadata.dst_node_id, int(message.metadata.group_id)
            self._replies[names[-1]] = self.when(silo, round)
        return names

    def pull_messages(self, names: Iterable[str]) -> list[Answered]:
        arrived = [name for name in names if self._replies.get(name, float("inf")) <= self._clock.now]
        gone = self._clock.now > self._deleted
        found = [
            Answered(name, Error(ErrorCode.MESSAGE_UNAVAILABLE, "long words") if gone else RecordDict())
            for name in arrived
        ]
        for name in arrived:
            del self._replies[name]
        return found


class StillGrid(SlowGrid):
    """A grid whose SuperLink stands still while it takes messages."""

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        raise ConnectionError("the push session may have expired")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(requests, "time", made)
    return made


def ask(sender: RequestSender, silos: Iterable[int], round: int) -> list[int]:
    numbers = list(silos)
    contents, nodes = {silo: RecordDict() for silo in numbers}, {silo: silo for silo in numbers}
    return sorted(sender.ask(contents, nodes, "train", round=round, deadline=DEADLINE))


def a_round_without_silo_1(clock: Clock, *, arrives: float, **options: Any) -> tuple[RequestSender, SlowGrid]:
    grid = SlowGrid(clock, **options)
    grid.when = lambda silo, round: arrives if (silo, round) == (1, 4) else 0.0
    sender = RequestSender(grid, write_message)  # type: ignore[arg-type]
    assert ask(sender, [0, 1], 4) == [0]
    assert sender.is_busy(1)
    return sender, grid


class RefusingReader:
    """A reader that refuses one reply as too large."""

    def __init__(self, refused: str) -> None:
        self._refused, self.limits = refused, []  # type: ignore[var-annotated]

    def pull(self, limits: Mapping[str, int | None], until: float) -> list[Answer]:
        self.limits.append((dict(limits), until))
        fault = "its reply is refused: it is too large"
        return [
            Answer(name, fault=fault) if name == self._refused else Answer(name, RecordDict())
            for name in limits
        ]


def test_messages_that_the_superlink_did_not_take_end_the_app_with_one_line(clock: Clock) -> None:
    sender = RequestSender(StillGrid(clock), write_message)  # type: ignore[arg-type]
    with pytest.raises(FedDigError, match=r"the SuperLink did not take all messages \(the push"):
        ask(sender, [0, 1], 4)
    with pytest.raises(FedDigError, match="the SuperLink did not take all messages"):
        sender.ping(2, 2, RecordDict(), round=4, deadline=DEADLINE)


def test_a_refused_reply_is_logged_and_its_silo_is_absent_but_not_busy(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sender = RequestSender(SlowGrid(clock), write_message)  # type: ignore[arg-type]
    sender._replies = reader = RefusingReader("message 2")
    contents, nodes = {silo: RecordDict() for silo in (0, 1)}, {0: 0, 1: 1}
    found = sender.ask(contents, nodes, "train", round=4, deadline=DEADLINE, largest=77)
    assert [*found] == [0]
    assert "silo 1, round 5: its reply is refused: it is too large" in caplog.text
    assert not sender.is_busy(1), "it is sent a request in the next round"
    assert reader.limits == [({"message 1": 77, "message 2": 77}, DEADLINE)]


def test_a_late_reply_is_logged_also_when_its_message_is_no_longer_valid(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sender, _ = a_round_without_silo_1(clock, arrives=15.0)
    clock.now = VALID_DEADLINES * DEADLINE + 1  # a long joint update
    sender.drop_late()
    assert LATE in caplog.text
    assert not sender.is_busy(1)


def test_a_late_reply_is_logged_also_when_its_silo_was_restarted(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sender, _ = a_round_without_silo_1(clock, arrives=15.0)
    sender.mark_free(1)
    assert not sender.is_busy(1), "it can be sent a request at once"
    clock.now = 16.0
    sender.drop_late()
    assert LATE in caplog.text


def test_a_late_reply_is_pulled_while_waiting_for_others(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sender, grid = a_round_without_silo_1(clock, arrives=15.0, deleted=20.0)
    grid.when = lambda silo, round: 19.9
    assert ask(sender, [0, 2], 5) == [0, 2], "the late reply counts for no silo in this round"
    clock.now = 30.0
    sender.drop_late()
    assert LATE in caplog.text


def test_a_reply_that_was_deleted_or_never_came_is_logged_too(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sender, _ = a_round_without_silo_1(clock, arrives=15.0, deleted=20.0)
    clock.now = 30.0
    sender.drop_late()
    assert "silo 1: its reply of round 5 is given up: its message is no longer valid" in caplog.text
    sender, _ = a_round_without_silo_1(clock, arrives=float("inf"))
    clock.now += 2 * VALID_DEADLINES * DEADLINE
    sender.drop_late()
    assert "silo 1: a reply of round 5 can no longer come" in caplog.text
    assert not sender.is_busy(1)
    caplog.clear()
    sender.drop_late()
    assert not caplog.text, "it is logged once"


def test_a_silo_that_answers_a_ping_is_asked_again_and_its_late_reply_is_logged(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    sender, grid = a_round_without_silo_1(clock, arrives=18.0)
    grid.when = lambda silo, round: clock.now + 1
    sender.ping(1, 1, RecordDict(), round=4, deadline=DEADLINE)
    clock.now += 2
    sender.drop_late()
    assert not sender.is_busy(1)
    clock.now = 19.0
    with caplog.at_level(logging.WARNING):
        sender.drop_late()
    assert LATE in caplog.text
