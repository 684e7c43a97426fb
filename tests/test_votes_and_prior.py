"""The prior-corrected loss and the votes of absent silos, computed by hand and over whole runs."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from feddig import Dataset, Experiment, resume, run
from feddig.core.algorithms import FedDyn
from feddig.core.algorithms.base import Correction
from feddig.core.local import Step, Trainee, count_classes, count_in_digest, log_prior_ratio
from feddig.core.plus import Votes
from feddig.models.flat import FlatNetwork
from feddig.runs.build import build_simulation
from feddig.settings import ModeratorSettings, TrainingSettings
from pen_and_paper import digest_of, paper_moderator, reply_of

# --- the prior-corrected loss


def test_the_ratio_of_shares_counts_one_sample_more_of_each_class() -> None:
    """A silo with 3, 1 and 0 samples has shares 4/7, 2/7 and 1/7; the federation with 5, 5 and 5 has shares of 1/3."""
    ratio = log_prior_ratio(torch.tensor([3.0, 1.0, 0.0]), torch.tensor([5.0, 5.0, 5.0]))
    assert ratio.tolist() == pytest.approx([math.log(12 / 7), math.log(6 / 7), math.log(3 / 7)])


def test_classes_are_counted_in_labels_and_in_digests() -> None:
    assert count_classes(torch.tensor([2, 0, 2]), 4).tolist() == [1, 0, 2, 0]
    assert count_in_digest(digest_of(0, 1.0, 2.0, samples_per_digest=4)).tolist() == [8, 0]


class Rows:
    """Three rows with two numbers each, and their classes."""

    images = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    labels = torch.tensor([0, 1, 0])

    def __len__(self) -> int:
        return 3

    def inputs(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.images[rows],)

    def targets(self, rows: torch.Tensor) -> torch.Tensor:
        return self.labels[rows]


@pytest.mark.parametrize("counted", [None, torch.tensor([True, True, False])])
def test_the_corrected_gradient_agrees_with_finite_differences(counted: torch.Tensor | None) -> None:
    torch.manual_seed(0)
    network = FlatNetwork(nn.Linear(2, 3))
    prior = torch.tensor([0.5, -1.0, 2.0])
    step = Step([Trainee(network, 0.1)], Rows(), TrainingSettings(), Correction(), prior)
    step.begin(Correction(), prior)
    rows = torch.arange(3)
    _, (gradients,) = step.differentiate(rows, counted)
    found = torch.cat([part.reshape(-1) for part in gradients])
    kept = rows if counted is None else rows[counted]

    def loss(weights: torch.Tensor) -> float:
        logits = Rows.images[kept].double() @ weights[:6].view(3, 2).T + weights[6:] + prior.double()
        return float(cross_entropy(logits, Rows.labels[kept]))

    weights, small = network.weights().double(), 1e-5
    for place in range(len(weights)):
        moved = torch.zeros_like(weights)
        moved[place] = small
        slope = (loss(weights + moved) - loss(weights - moved)) / (2 * small)
        assert float(found[place]) == pytest.approx(slope, abs=1e-5)


def test_a_class_that_a_silo_lacks_is_pushed_down_less() -> None:
    """The silo has no sample of class 2; its gradient on that class's bias makes the model forget the class."""
    network = FlatNetwork(nn.Linear(2, 3))
    ratio = log_prior_ratio(torch.tensor([20.0, 10.0, 0.0]), torch.tensor([20.0, 20.0, 20.0]))
    gradients_of_bias = []
    for prior in (None, ratio):
        step = Step([Trainee(network, 0.1)], Rows(), TrainingSettings(), Correction(), prior)
        step.begin(Correction(), prior)
        _, (gradients,) = step.differentiate(torch.arange(3))
        gradients_of_bias.append(float(gradients[1][2]))
    assert 0 < gradients_of_bias[1] < gradients_of_bias[0] / 5


def test_the_federations_counts_come_from_digests_and_from_replies_of_silos_without_one() -> None:
    moderator = paper_moderator(digests=[digest_of(1, 2.0, 2.0)], prior_correction=True)
    first, second = moderator.push(0)
    assert first.class_counts is not None
    assert first.class_counts.tolist() == [8, 0]
    assert first.wants_class_counts
    assert not second.wants_class_counts
    moderator.aggregate(0, [replace(reply_of(0, 0.1), class_counts=torch.tensor([1.0, 5.0]))])
    first, _ = moderator.push(1)
    assert first.class_counts is not None
    assert first.class_counts.tolist() == [9, 5]
    assert not first.wants_class_counts


def test_without_the_setting_no_counts_are_sent_or_asked_for() -> None:
    for request in paper_moderator(digests=[digest_of(1, 2.0)]).push(0):
        assert request.class_counts is None
        assert not request.wants_class_counts


# --- votes


def votes(weight: float) -> ModeratorSettings:
    return ModeratorSettings(votes=weight)


def test_an_absent_silo_votes_with_the_last_model_it_returned() -> None:
    """From w = 0 the silos return .2 and -.6, so w = -.2. Then silo 0 returns -.2 + .5 = .3: w = (.3 - .6) / 2 = -.15.

    The vote follows: half of the silos are present, and it has missed half of silo 0's two rounds and nothing of silo
    1's, a quarter on average. So it goes .5 * .25^2 of the way from -.6 to -.15.
    """
    moderator = paper_moderator(settings=votes(1.0))
    moderator.aggregate(0, [reply_of(0, 0.2), reply_of(1, -0.6)])
    assert moderator.weights.tolist() == pytest.approx([-0.2])
    moderator.aggregate(1, [reply_of(0, 0.5)])
    assert moderator.weights.tolist() == pytest.approx([-0.15])
    for _ in range(2):  # no silo is present, so the votes do not change
        moderator.aggregate(2, [])
        assert moderator.weights.tolist() == pytest.approx([(0.3 - 0.6 + 0.45 / 32) / 2])


def test_a_vote_that_has_missed_more_training_follows_faster() -> None:
    """The model stays at 1; return how far a vote of 0 moves in one round."""

    def moved(*, rounds: int, silos: int, present: int) -> float:
        votes, model = Votes(silos, keep=True), torch.ones(1)
        for _ in range(rounds):
            votes.take([reply_of(silo, -1.0) for silo in range(silos)], model)
        later = [reply_of(silo, 0.0) for silo in range(present)]
        votes.take(later, model)
        votes.follow(later, model)
        return float(votes.of_absent(later, torch.zeros(1))[silos - 1].update)

    # it missed one of the `rounds + 1` rounds of the present silos
    assert moved(rounds=1, silos=2, present=1) == pytest.approx(1 / 2 * (1 / 2 / 2) ** 2)
    assert moved(rounds=9, silos=2, present=1) == pytest.approx(1 / 2 * (1 / 2 / 10) ** 2)
    assert moved(rounds=1, silos=4, present=3) == pytest.approx(3 / 4 * (3 / 4 / 2) ** 2)
    assert moved(rounds=1, silos=4, present=1) == pytest.approx(1 / 4 * (1 / 4 / 2) ** 2)


def test_a_vote_from_before_others_joined_soon_follows() -> None:
    votes, model = Votes(2, keep=True), torch.ones(1)
    for _ in range(100):
        votes.take([reply_of(0, -1.0)], model)
    for _ in range(20):
        votes.take([reply_of(1, 0.0)], model)
        votes.follow([reply_of(1, 0.0)], model)
    assert float(votes.of_absent([reply_of(1, 0.0)], torch.zeros(1))[0].update) > 0.5


def test_a_vote_of_half_the_weight_counts_half_a_silo() -> None:
    """As above, but silo 1 has half the weight: w = (.3 - .5 * .6) / 1.5 = 0."""
    moderator = paper_moderator(settings=votes(0.5))
    moderator.aggregate(0, [reply_of(0, 0.2), reply_of(1, -0.6)])
    moderator.aggregate(1, [reply_of(0, 0.5)])
    assert moderator.weights.tolist() == pytest.approx([0.0], abs=1e-7)


def test_a_recalled_silos_update_is_mixed_with_its_vote() -> None:
    """Silo 1 returned -.6 and is recalled with +1 from w = -.2; the mean of both is (1 - .4) / 2 = .3."""
    moderator = paper_moderator(settings=votes(0.5))
    moderator.aggregate(0, [reply_of(0, 0.2), reply_of(1, -0.6)])
    moderator.aggregate(1, [reply_of(0, 0.5)], [reply_of(1, 1.0)])
    assert moderator.weights.tolist() == pytest.approx([-0.2 + (0.5 + 0.3) / 2])


def test_a_recall_models_update_is_no_vote() -> None:
    moderator = paper_moderator(settings=votes(1.0))
    moderator.aggregate(0, [reply_of(0, 0.2)], [reply_of(1, 1.0)])
    moderator.aggregate(1, [reply_of(0, 0.2)])
    assert moderator.weights.tolist() == pytest.approx([0.6 + 0.2])


def test_votes_go_through_the_base_algorithm() -> None:
    """With FedDyn and alpha .1, lambda = (.2, -.6) and w = -.2 - .2 = -.4; then both votes count like replies."""
    moderator = paper_moderator(FedDyn(alpha=0.1), settings=votes(1.0))
    moderator.aggregate(0, [reply_of(0, 0.2), reply_of(1, -0.6)])
    assert moderator.weights.tolist() == pytest.approx([-0.4])
    moderator.aggregate(1, [])
    # the updates are .2 + .4 = .6 and -.6 + .4 = -.2, so the mean model is -.2 and the duals are .8 and -.8
    assert moderator.weights.tolist() == pytest.approx([-0.2])


def test_a_checkpoint_keeps_votes_and_counts() -> None:
    moderator = paper_moderator(settings=votes(1.0), prior_correction=True)
    counts = torch.tensor([1.0, 2.0])
    moderator.aggregate(0, [reply_of(0, 0.2), replace(reply_of(1, -0.6), class_counts=counts)])
    again = paper_moderator(settings=votes(1.0), prior_correction=True)
    again.restore(moderator.state())
    for one in (moderator, again):
        for round in (1, 2, 3):  # a vote's rounds are counted from the second round on
            one.aggregate(round, [reply_of(0, 0.5)])
    assert torch.equal(moderator.weights, again.weights)
    assert torch.equal(moderator.push(2)[0].class_counts, again.push(4)[0].class_counts)  # type: ignore[arg-type]


# --- whole runs


@pytest.mark.parametrize(
    "name", ["fedavg", "feddig", "feddig+feddyn", "adabest", "fednova-large", "feddig-plus+fedprox"]
)
def test_a_resumed_run_gives_what_an_uninterrupted_one_gives(
    name: str, tmp_path: Path, tiny_dataset: Dataset, tiny_experiment: Callable[..., Experiment]
) -> None:
    experiment = tiny_experiment(algorithm={"name": name, "prior_correction": True}, moderator={"votes": 0.5})
    whole = run(experiment, tmp_path / "whole", dataset=tiny_dataset, device="cpu")
    run(experiment, tmp_path / "parts", dataset=tiny_dataset, device="cpu", until=3)
    parts = resume(tmp_path / "parts", dataset=tiny_dataset, device="cpu")
    assert parts["accuracy"] == whole["accuracy"]
    assert rows_of(tmp_path / "parts") == rows_of(tmp_path / "whole")


def rows_of(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [{key: value for key, value in row.items() if not key.startswith("seconds")} for row in rows]


def test_silos_train_with_the_corrected_loss(
    tiny_dataset: Dataset, tiny_experiment: Callable[..., Experiment]
) -> None:
    updates = []
    for corrected in (False, True):
        experiment = tiny_experiment(algorithm={"name": "fedavg", "prior_correction": corrected})
        simulation = build_simulation(experiment, dataset=tiny_dataset, device="cpu")
        engine = simulation.engine(simulation.make_digest)
        counts = torch.full((tiny_dataset.classes,), 10.0)
        request = replace(simulation.moderator.push(0)[0], class_counts=counts)
        updates.append(engine.exchange([request])[0].update)
    assert not torch.equal(*updates)
