"""Late replies are logged and dropped, whenever they come."""

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from flwr.app import Error, RecordDict
from flwr.common.constant import ErrorCode

from feddig.federation import requests
from feddig.federation.contract import VALID_DEADLINES
from feddig.federation.flower_1_41.replies import Answer
from feddig.federation.requests import RequestSender
from federations import Answered, write_message

pytestmark = pytest.mark.flower

DEADLINE = 10.0
LATE = "silo 1: its reply of round 5 came late and is dropped"


class Clock:
    """A clock that moves only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class SlowGrid:
    """Gives replies at their times; after `deleted` a reply is gone, as on Flower's SuperLink."""

    def __init__(self, clock: Clock, deleted: float = float("inf")) -> None:
        self._clock, self._deleted, self._replies = clock, deleted, {}  # type: ignore[var-annotated]
        self.when: Callable[[int, int], float] = lambda silo, round: 0.0
        """When the reply of a silo in a round comes."""
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
        come = [name for name in names if self._replies.get(name, float("inf")) <= self._clock.now]
        gone = self._clock.now > self._deleted
        found = [
            Answered(name, Error(ErrorCode.MESSAGE_UNAVAILABLE, "long words") if gone else RecordDict())
            for name in come
        ]
        for name in come:
            del self._replies[name]
        return found


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(requests, "time", made)
    return made


def ask(asker: RequestSender, silos: Iterable[int], round: int) -> list[int]:
    numbers = list(silos)
    contents, nodes = {silo: RecordDict() for silo in numbers}, {silo: silo for silo in numbers}
    return sorted(asker.ask(contents, nodes, "train", round=round, deadline=DEADLINE))


def a_round_without_silo_1(clock: Clock, *, comes: float, **options: Any) -> tuple[RequestSender, SlowGrid]:
    grid = SlowGrid(clock, **options)
    grid.when = lambda silo, round: comes if (silo, round) == (1, 4) else 0.0
    asker = RequestSender(grid, write_message)  # type: ignore[arg-type]
    assert ask(asker, [0, 1], 4) == [0]
    assert asker.is_busy(1)
    return asker, grid


class Refusing:
    """A reader that finds the reply of silo 1 too large."""

    def __init__(self, refused: str) -> None:
        self._refused, self.limits = refused, []  # type: ignore[var-annotated]

    def pull(self, limits: Mapping[str, int | None], until: float) -> list[Answer]:
        self.limits.append((dict(limits), until))
        fault = "its reply is refused: it is too large"
        return [
            Answer(name, fault=fault) if name == self._refused else Answer(name, RecordDict())
            for name in limits
        ]


def test_a_refused_reply_is_logged_and_its_silo_is_absent_but_not_busy(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    asker = RequestSender(SlowGrid(clock), write_message)  # type: ignore[arg-type]
    asker._replies = reader = Refusing("message 2")
    contents, nodes = {silo: RecordDict() for silo in (0, 1)}, {0: 0, 1: 1}
    found = asker.ask(contents, nodes, "train", round=4, deadline=DEADLINE, largest=77)
    assert [*found] == [0]
    assert "silo 1, round 5: its reply is refused: it is too large" in caplog.text
    assert not asker.is_busy(1), "it is asked again in the next round"
    assert reader.limits == [({"message 1": 77, "message 2": 77}, DEADLINE)]


def test_a_late_reply_is_logged_also_when_its_message_is_no_longer_valid(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    asker, _ = a_round_without_silo_1(clock, comes=15.0)
    clock.now = VALID_DEADLINES * DEADLINE + 1  # a long joint update
    asker.drop_late()
    assert LATE in caplog.text
    assert not asker.is_busy(1)


def test_a_late_reply_is_logged_also_when_its_silo_was_restarted(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    asker, _ = a_round_without_silo_1(clock, comes=15.0)
    asker.mark_free(1)
    assert not asker.is_busy(1), "it can be asked again at once"
    clock.now = 16.0
    asker.drop_late()
    assert LATE in caplog.text


def test_a_late_reply_is_pulled_while_others_are_waited_for(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    asker, grid = a_round_without_silo_1(clock, comes=15.0, deleted=20.0)
    grid.when = lambda silo, round: 19.9
    assert ask(asker, [0, 2], 5) == [0, 2], "a late reply is nobody's in this round"
    clock.now = 30.0
    asker.drop_late()
    assert LATE in caplog.text


def test_a_reply_that_was_deleted_or_never_came_is_logged_too(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    asker, _ = a_round_without_silo_1(clock, comes=15.0, deleted=20.0)
    clock.now = 30.0
    asker.drop_late()
    assert "silo 1: its reply of round 5 is given up: its message is no longer valid" in caplog.text
    asker, _ = a_round_without_silo_1(clock, comes=float("inf"))
    clock.now += 2 * VALID_DEADLINES * DEADLINE
    asker.drop_late()
    assert "silo 1: a reply of round 5 can no longer come" in caplog.text
    assert not asker.is_busy(1)
    caplog.clear()
    asker.drop_late()
    assert not caplog.text, "it is told of once"


def test_a_silo_that_answers_a_ping_is_asked_again_and_its_late_reply_is_logged(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    asker, grid = a_round_without_silo_1(clock, comes=18.0)
    grid.when = lambda silo, round: clock.now + 1
    asker.ping(1, 1, RecordDict(), round=4, deadline=DEADLINE)
    clock.now += 2
    asker.drop_late()
    assert not asker.is_busy(1)
    clock.now = 19.0
    with caplog.at_level(logging.WARNING):
        asker.drop_late()
    assert LATE in caplog.text
