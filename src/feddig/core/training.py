"""The round loop. READ THIS FIRST: it is the paper's Algorithm 1, and everything else serves it."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from feddig.core.engine import Engine
from feddig.core.local import Trained
from feddig.core.messages import Reply
from feddig.core.moderator import Moderator
from feddig.core.recipe import Recipe


@dataclass(frozen=True)
class RoundResult:
    """The result of a round."""

    round: int
    replies: Sequence[Reply]
    stand_ins: Sequence[Reply]
    joint: Trained | None
    seconds_silos: float
    """Until the last reply arrived."""
    seconds_recall: float
    """Of the recall models; this overlaps with the silos' time where both train at once."""
    seconds_joint: float


def run_rounds(
    moderator: Moderator,
    engine: Engine,
    recipe: Recipe,
    rounds: Iterable[int],
    frozen_from: int | None = None,
) -> Iterator[RoundResult]:
    """Train round by round; after each yield the moderator holds the model of that round.

    `frozen_from` is the round from which the frozen control never trains again.
    """
    for round in rounds:
        if recipe.frozen and frozen_from is not None and round >= frozen_from:
            yield RoundResult(round, [], [], None, 0.0, 0.0, 0.0)
            continue
        clock = Clock()
        if recipe.collects_digests:  # lines 2-4: once, when a silo joins
            missing = [silo for silo in range(moderator.silos) if silo not in moderator.digests]
            moderator.hold(engine.collect_digests(missing, round))
        requests = moderator.push(round)  # line 6
        away = engine.known_away(requests) if recipe.recall else []
        recalling = moderator.begin_recall(away)  # lines 12-17, while the others train
        clock.lap()
        replies = engine.exchange(requests) if recipe.silos_train else []  # lines 8-10
        seconds_silos = clock.lap()
        # a silo that was known to be away may have come back while the engine waited for others
        replied = {reply.silo for reply in replies}
        stand_ins = [one for one in recalling.finish() if one.silo not in replied]
        if recipe.recall:  # and for those who were asked and did not reply
            stand_ins += moderator.recall(requests, [*replies, *stand_ins])
        clock.lap()
        moderator.aggregate(round, replies, stand_ins)  # line 18
        joint = moderator.joint_update(round) if recipe.joint else None  # lines 20-21
        if recipe.expert:  # FedDig+, instead of recall and joint update
            joint = moderator.update_expert()
        seconds_recall = moderator.seconds_of(stand_ins)
        yield RoundResult(round, replies, stand_ins, joint, seconds_silos, seconds_recall, clock.lap())


class Clock:
    """A stopwatch."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last call."""
        now = time.perf_counter()
        self._since, since = now, self._since
        return now - since
