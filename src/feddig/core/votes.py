"""Votes of absent silos: each votes with the last model that it returned.

A vote keeps the model where it still serves the absent silo. But an old vote also holds back what others have learned
since, so it follows the model, the faster the more of the federation's training it has missed:

    rate = present share * (missed share)^2

The missed share is the mean, over all silos that ever trained, of the share of a silo's rounds that came after the
vote. A vote of a silo that leaves a long-trained federation hardly moves; one from the first rounds, or from before
half of the silos joined, soon follows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from feddig.core.messages import Reply

POWER = 2


@dataclass(frozen=True)
class Vote:
    """The model that a silo votes for."""

    reply: Reply
    """The silo's last reply, with the model that it returned in the update's place."""
    seen: Tensor
    """Rounds of each silo's training that went into this model."""


class Votes:
    """The last models that silos returned, and in how many rounds each silo has trained."""

    def __init__(self, silos: int, *, keep: bool) -> None:
        self.rounds = torch.zeros(silos, dtype=torch.float64)
        self._keep = keep
        self._votes: dict[int, Vote] = {}

    def of_absent(self, replies: Sequence[Reply], weights: Tensor) -> dict[int, Reply]:
        """Return for each absent silo that once replied an update towards its vote."""
        present = {reply.silo for reply in replies}
        return {
            silo: replace(vote.reply, update=vote.reply.update - weights)
            for silo, vote in self._votes.items()
            if silo not in present
        }

    def take(self, replies: Sequence[Reply], before: Tensor) -> None:
        """Count these silos' rounds, and keep the models that they returned for the model `before`."""
        for reply in replies:
            self.rounds[reply.silo] += 1
        for reply in replies if self._keep else ():
            self._votes[reply.silo] = Vote(replace(reply, update=before + reply.update), self.rounds.clone())

    def follow(self, replies: Sequence[Reply], weights: Tensor) -> None:
        """Move the absent silos' votes towards the new model."""
        present, trained = {reply.silo for reply in replies}, self.rounds > 0
        if not present:
            return
        for silo, vote in self._votes.items():
            if silo in present:
                continue
            missed = float((1 - vote.seen[trained] / self.rounds[trained]).mean())
            rate = len(present) / int(trained.sum()) * missed**POWER
            self._votes[silo] = Vote(
                replace(vote.reply, update=torch.lerp(vote.reply.update, weights, rate)),
                torch.lerp(vote.seen, self.rounds, rate),
            )

    def state(self) -> dict[str, Tensor]:
        """Return everything as tensors."""
        state = {"rounds_trained": self.rounds.clone()}
        for silo, vote in self._votes.items():
            state[f"returned.{silo}"] = vote.reply.update
            state[f"returned.{silo}.facts"] = torch.tensor([vote.reply.steps, vote.reply.samples])
            state[f"returned.{silo}.seen"] = vote.seen
        return state

    def restore(self, state: Mapping[str, Tensor], device: torch.device) -> None:
        """Load such a state; silos that have joined the federation since have not trained."""
        silos = len(self.rounds)
        self.rounds = _padded(state["rounds_trained"], silos)
        for silo in range(len(self.rounds)):
            if f"returned.{silo}" in state:
                steps, samples = (int(number) for number in state[f"returned.{silo}.facts"])
                model = state[f"returned.{silo}"].to(device)
                last = Reply(silo, 0, model, steps, samples, loss=0.0)
                self._votes[silo] = Vote(last, _padded(state[f"returned.{silo}.seen"], silos))

    def forget(self, silo: int) -> None:
        """Drop a silo's vote, and the count of its rounds."""
        self._votes.pop(silo, None)
        self.rounds[silo] = 0


def _padded(rounds: Tensor, silos: int) -> Tensor:
    rounds = rounds.cpu()
    return torch.cat([rounds, rounds.new_zeros(silos - len(rounds))])
