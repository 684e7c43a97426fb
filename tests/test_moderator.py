"""The moderator and the round loop: recall, aggregation, joint update and state; most results are computed by hand."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from feddig.core.algorithms import BASES, AdaBest, Algorithm, FedDyn, FedNova
from feddig.core.messages import Reply, Request
from feddig.core.moderator import Moderator
from feddig.core.recipe import Recipe, read_recipe
from feddig.core.training import RoundResult, run_rounds
from feddig.digest.digest import Digest
from feddig.errors import DivergenceError, FileFormatError
from feddig.settings import ModeratorSettings
from pen_and_paper import HALF_WAY, ScriptedEngine, digest_of, numbers, paper_moderator, reply_of

BY_ONES = replace(HALF_WAY, batch=1, lr=0.01)
"""One digest per step, so that the number of steps is the number of digests."""


def ready(name: str) -> Algorithm:
    return BASES[name]().planned(300).prepared(steps=5, lr=0.1, momentum=0.9)


def snapshot(moderator: Moderator) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in moderator.state().items()}


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def factor(moderator: Moderator) -> float:
    """Return g, the only weight of the guidance producer."""
    assert moderator.guidance_producer is not None
    return float(moderator.guidance_producer.vector)


# --- recall


def test_the_model_is_addressed_to_every_silo() -> None:
    moderator = paper_moderator(silos=3, weight=0.7)
    requests = moderator.push(5)
    assert [(request.silo, request.round) for request in requests] == [(0, 5), (1, 5), (2, 5)]
    assert all(request.weights.tolist() == pytest.approx([0.7]) for request in requests)


def test_absent_silos_with_a_digest_are_recalled_and_no_others() -> None:
    """Silo 0 is present, 1 and 3 are absent, 2 has never joined."""
    moderator = paper_moderator(silos=4, digests=[digest_of(0, 1.0), digest_of(1, 1.0), digest_of(3, 1.0)])
    stand_ins = moderator.recall(moderator.push(5), [reply_of(0, 0.1, round=5)])
    assert [(reply.silo, reply.round) for reply in stand_ins] == [(1, 5), (3, 5)]


def test_a_recall_model_replies_as_a_silo_would() -> None:
    """From w = 0, three digests of 4 samples with features 1, 2, 3, in batches of 2 and two epochs: 4 steps."""
    training = replace(HALF_WAY, batch=2, local_epochs=2)
    moderator = paper_moderator(training=training, digests=[digest_of(1, 1.0, 2.0, 3.0)])
    (reply,) = moderator.recall(moderator.push(0), [reply_of(0, 0.1)])
    assert (reply.samples, reply.steps) == (12, 4)
    assert 1 < float(reply.update) < 3
    assert 0 < reply.loss < 4.5


def test_a_recall_model_starts_from_the_model_and_steps_by_the_training_rate() -> None:
    """From w = 1, half the way to the mean 3 is +1; the guidance doubles the features of the digest."""
    moderator = paper_moderator(
        weight=1.0, settings=ModeratorSettings(joint_lr=0.01), digests=[digest_of(1, 2.0, 4.0)]
    )
    (reply,) = moderator.recall(moderator.push(0), [reply_of(0, 0.1)])
    assert reply.update.tolist() == pytest.approx([1.0])
    assert reply.loss == pytest.approx((1 / 2 + 9 / 2) / 2)
    assert moderator.guidance_producer is not None
    moderator.guidance_producer.load(torch.tensor([2.0]))
    (reply,) = moderator.recall(moderator.push(0), [reply_of(0, 0.1)])
    assert reply.update.tolist() == pytest.approx([2.5])


def test_recall_changes_neither_the_model_nor_the_guidance_producer() -> None:
    moderator = paper_moderator(digests=[digest_of(0, 1.0), digest_of(1, 2.0, 3.0)])
    before = snapshot(moderator)
    moderator.recall(moderator.push(0), [])
    assert same(snapshot(moderator), before)
    assert moderator.guidance_producer is not None
    assert not moderator.guidance_producer.gradient.any()


def test_a_recall_model_is_aggregated_as_its_silo_would_be() -> None:
    """Half the way to 2 is 1; silo 0 moves by .5; FedNova receives the steps of the recall model."""
    moderator = paper_moderator(digests=[digest_of(1, 2.0)])
    replies = [reply_of(0, 0.5)]
    moderator.aggregate(0, [*replies, *moderator.recall(moderator.push(0), replies)])
    assert moderator.weights.tolist() == pytest.approx([0.75])

    moderator = paper_moderator(FedNova(), digests=[digest_of(1, 2.0)])
    replies = [reply_of(0, 0.5, steps=4)]
    moderator.aggregate(0, [*replies, *moderator.recall(moderator.push(0), replies)])
    assert moderator.weights.tolist() == pytest.approx([2.5 * (0.5 / 4 + 1 / 1) / 2])


def test_a_recall_model_weighs_its_digests_times_their_samples() -> None:
    """Weighted by samples: silo 0 has 24, the recall model of silo 1 has 2 digests of 4: 3/4 and 1/4."""
    moderator = paper_moderator(weighting="samples", digests=[digest_of(1, 2.0, 2.0)])
    replies = [reply_of(0, 0.4, samples=24)]
    moderator.aggregate(0, [*replies, *moderator.recall(moderator.push(0), replies)])
    assert moderator.samples == [24, 8]
    assert moderator.weights.tolist() == pytest.approx([0.75 * 0.4 + 0.25 * 1.0])


# --- aggregation


@pytest.mark.parametrize(
    ("weighting", "expected"), [("equal", (0.4 - 0.2) / 2), ("samples", 0.75 * 0.4 - 0.25 * 0.2)]
)
def test_silos_weigh_the_same_or_by_their_samples(weighting: str, expected: float) -> None:
    moderator = paper_moderator(weighting=weighting)
    moderator.aggregate(0, [reply_of(0, 0.4, samples=30), reply_of(1, -0.2, samples=10)])
    assert moderator.weights.tolist() == pytest.approx([expected])


@pytest.mark.parametrize(("weighting", "expected"), [(None, -0.3671875), ("equal", -0.50625)])
def test_fednova_weighs_by_samples_unless_it_is_told_otherwise(
    weighting: str | None, expected: float
) -> None:
    """p = 3/4, 1/4; a = 2.5, 4.25: tau_eff = 2.9375, and sum p D / a = 3/4 * -.1 + 1/4 * -.2 = -.125."""
    training = replace(HALF_WAY, momentum=0.5)
    moderator = paper_moderator(FedNova(), training=training, weighting=weighting)
    replies = [reply_of(0, -0.25, samples=30, steps=2), reply_of(1, -0.85, samples=10, steps=3)]
    moderator.aggregate(0, replies)
    assert moderator.weights.tolist() == pytest.approx([expected])


def test_a_model_that_adabest_lets_grow_is_warned_of_once(caplog: pytest.LogCaptureFixture) -> None:
    """From 1 the mean moves to 2.5, and beta .5 takes it to 3.25, more than three times the first norm."""
    moderator = paper_moderator(AdaBest(beta=0.5), weight=1.0)
    for number in range(2):
        moderator.aggregate(number, [reply_of(0, 1.5), reply_of(1, 1.5)])
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "round 1: the model's norm is 3.25, more than 3 times its first 1; lower algorithm.adabest.beta (now 0.5)"
    )


def test_a_model_that_grows_under_another_algorithm_is_not_warned_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    paper_moderator(weight=1.0).aggregate(0, [reply_of(0, 9.0)])
    assert caplog.records == []


def test_a_silo_that_left_keeps_its_sample_weight_for_its_dual() -> None:
    """FedDyn averages the duals of all silos: silo 1 is absent, but its 10 samples still count beside 30."""
    moderator = paper_moderator(FedDyn(alpha=0.1), silos=3, weighting="samples")
    moderator.aggregate(0, [reply_of(0, 0.4, samples=30), reply_of(1, -0.2, samples=10)])
    assert moderator.weights.tolist() == pytest.approx([0.25 + 0.25])
    moderator.aggregate(1, [reply_of(0, 0.1, samples=30)])
    assert moderator.samples == [30, 10, 0]
    assert moderator.weights.tolist() == pytest.approx([0.5 + 0.1 + 0.75 * 0.5 - 0.25 * 0.2])


@pytest.mark.parametrize("name", BASES)
def test_the_order_of_the_replies_does_not_change_a_bit(name: str) -> None:
    """The updates differ so much in size that their float32 sum depends on the order."""
    replies = [reply_of(silo, update, steps=silo + 1) for silo, update in enumerate([1e8, 1.0, -1e8, 0.5])]

    def outcome(order: Sequence[Reply]) -> dict[str, Tensor]:
        moderator = paper_moderator(
            ready(name), silos=4, weighting="samples", training=replace(HALF_WAY, momentum=0.9)
        )
        for round in range(3):
            moderator.aggregate(round, order)
        return snapshot(moderator)

    expected = outcome(replies)
    assert same(outcome(replies[::-1]), expected)
    assert same(outcome([replies[2], replies[0], replies[3], replies[1]]), expected)


def test_the_local_momentum_reaches_the_algorithm() -> None:
    """FedNova's own example: rho .5, two steps of gradient 1 and three of gradient 2."""
    moderator = paper_moderator(FedNova(), training=replace(HALF_WAY, momentum=0.5))
    moderator.aggregate(0, [reply_of(0, -0.25, steps=2), reply_of(1, -0.85, steps=3)])
    assert moderator.weights.tolist() == pytest.approx([-0.50625])


def test_the_number_of_the_round_reaches_the_algorithm() -> None:
    moderator = paper_moderator(AdaBest(beta=0.98))
    moderator.aggregate(41, [reply_of(1, 0.5)])
    assert numbers(moderator.memory, "last") == [-1, 41]


@pytest.mark.parametrize("recipe", ["base", "feddig"])
@pytest.mark.parametrize("name", BASES)
def test_without_replies_and_digests_nothing_changes(name: str, recipe: str) -> None:
    moderator = paper_moderator(ready(name))
    moderator.aggregate(0, [reply_of(0, 0.5), reply_of(1, -0.2)])
    before = snapshot(moderator)
    what = read_recipe(name if recipe == "base" else f"feddig+{name}")
    results = list(run_rounds(moderator, ScriptedEngine([], [{}] * 4), what, range(1, 4)))
    assert same(snapshot(moderator), before)
    assert all(not result.replies and not result.stand_ins and not result.joint for result in results)


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_weights_that_are_not_finite_are_an_error_that_names_the_round(bad: float) -> None:
    moderator = paper_moderator()
    with pytest.raises(DivergenceError, match=r"^round 18: .*not finite"):
        moderator.aggregate(17, [reply_of(0, 0.1), reply_of(1, bad)])


def test_training_at_the_moderator_that_diverges_says_which_and_when() -> None:
    moderator = paper_moderator(
        training=replace(HALF_WAY, lr=5.0, local_epochs=100),
        settings=ModeratorSettings(joint_steps=100),
        digests=[digest_of(1, 1.0)],
    )
    with pytest.raises(DivergenceError, match=r"^recall of silo 1, round 7: "):
        moderator.recall(moderator.push(6), [])
    with pytest.raises(DivergenceError, match=r"^joint update, round 7: "):
        moderator.joint_update(6)


def test_the_parameter_norm_is_the_length_of_the_weights() -> None:
    assert paper_moderator(weight=-3.0).parameter_norm() == pytest.approx(3)


# --- digests


@pytest.mark.parametrize("part", ["features", "labels"])
def test_a_digest_that_holds_no_number_is_refused(part: str) -> None:
    digest = digest_of(1, 1.0, 2.0)
    getattr(digest, part)[1, 0] = float("nan")
    moderator = paper_moderator()
    with pytest.raises(FileFormatError, match=f"digest of silo 1: {part}"):
        moderator.hold([digest])
    assert not moderator.digests


def test_labels_that_are_no_shares_are_refused() -> None:
    digest = digest_of(1, 1.0)
    digest.labels[0, 0] = 0.5
    with pytest.raises(FileFormatError, match="digest of silo 1"):
        paper_moderator().hold([digest])


# --- the joint update


def test_without_digests_there_is_no_joint_update() -> None:
    moderator = paper_moderator()
    before = snapshot(moderator)
    assert moderator.joint_update(0) is None
    assert same(snapshot(moderator), before)


def test_the_joint_update_trains_both_networks_on_every_digest_held() -> None:
    """With w = 0, g = 1 and digests 1 and 3, the mean gradients are mean(w - g x) = -2 and mean(-(w - g x) x) = 5."""
    moderator = paper_moderator(
        training=replace(HALF_WAY, lr=0.1), digests=[digest_of(1, 3.0), digest_of(0, 1.0)]
    )
    moderator.aggregate(0, [reply_of(0, 0.0)])  # silo 1 is absent, but its digest is held
    trained = moderator.joint_update(0)
    assert trained is not None
    assert trained.steps == 1
    assert trained.loss == pytest.approx((1 / 2 + 9 / 2) / 2)
    assert moderator.weights.tolist() == pytest.approx([0.2])
    assert factor(moderator) == pytest.approx(0.5)


def test_the_joint_update_goes_on_from_the_aggregated_model() -> None:
    moderator = paper_moderator(digests=[digest_of(0, 3.0)])
    moderator.aggregate(0, [reply_of(0, 2.0)])
    moderator.joint_update(0)
    assert moderator.weights.tolist() == pytest.approx([2.5])


def test_the_joint_update_does_not_depend_on_which_digest_came_first() -> None:
    outcomes = []
    for order in ((0, 1, 2), (2, 0, 1)):
        moderator = paper_moderator(silos=3, training=BY_ONES)
        moderator.hold([digest_of(silo, silo + 1.0, silo + 1.5) for silo in order])
        moderator.joint_update(0)
        outcomes.append(snapshot(moderator))
    assert same(*outcomes)


def test_each_rounds_joint_update_has_its_own_order() -> None:
    def after(round: int) -> Tensor:
        moderator = paper_moderator(training=BY_ONES, digests=[digest_of(0, *map(float, range(1, 9)))])
        moderator.joint_update(round)
        return moderator.weights

    assert torch.equal(after(0), after(0))
    assert not torch.equal(after(0), after(1))


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        (ModeratorSettings(), 5),
        (ModeratorSettings(joint_epochs=3), 15),
        (ModeratorSettings(joint_steps=7), 7),
        (ModeratorSettings(joint_epochs=3, joint_steps=2), 2),
        (ModeratorSettings(digest_budget=4), 4),
        (ModeratorSettings(digest_budget=4, joint_epochs=2), 8),
        (ModeratorSettings(digest_budget=99), 5),
    ],
)
def test_a_joint_update_takes_the_steps_of_its_setting(settings: ModeratorSettings, steps: int) -> None:
    """Five digests, one per step."""
    moderator = paper_moderator(
        training=BY_ONES, settings=settings, digests=[digest_of(0, 1.0, 2.0, 3.0), digest_of(1, 4.0, 5.0)]
    )
    trained = moderator.joint_update(0)
    assert trained is not None
    assert trained.steps == steps


@pytest.mark.parametrize(
    ("local_epochs", "settings", "steps"),
    [
        (1, ModeratorSettings(), 3),
        (2, ModeratorSettings(), 6),
        (2, ModeratorSettings(recall_epochs=1), 3),
        (1, ModeratorSettings(recall_epochs=4), 12),
    ],
)
def test_a_recall_model_takes_the_steps_of_its_setting(
    local_epochs: int, settings: ModeratorSettings, steps: int
) -> None:
    """Three digests, one per step; by default as many passes as a silo makes over its data."""
    moderator = paper_moderator(
        training=replace(BY_ONES, local_epochs=local_epochs),
        settings=settings,
        digests=[digest_of(0, 1.0, 2.0, 3.0)],
    )
    (reply,) = moderator.recall(moderator.push(0), [])
    assert reply.steps == steps


@pytest.mark.parametrize(
    ("settings", "weight", "guidance"),
    [
        (ModeratorSettings(), 0.3, 0.1),
        (ModeratorSettings(joint_lr=0.01), 0.03, 0.91),
        (ModeratorSettings(guidance_lr=0.01), 0.3, 0.91),
        (ModeratorSettings(joint_lr=0.2, guidance_lr=0.05), 0.6, 0.55),
        (ModeratorSettings(guidance_lr=1e-9), 0.3, 1.0),
    ],
)
def test_each_network_has_its_learning_rate(
    settings: ModeratorSettings, weight: float, guidance: float
) -> None:
    """training.lr is .1; with w = 0 and g = 1, a digest of 3 gives w the gradient -3 and g the gradient 9."""
    moderator = paper_moderator(
        training=replace(HALF_WAY, lr=0.1), settings=settings, digests=[digest_of(0, 3.0)]
    )
    moderator.joint_update(0)
    assert moderator.weights.tolist() == pytest.approx([weight])
    assert factor(moderator) == pytest.approx(guidance)


def test_the_joint_update_leaves_what_the_algorithm_remembers_alone() -> None:
    moderator = paper_moderator(FedDyn(alpha=0.1), digests=[digest_of(0, 3.0)])
    moderator.aggregate(0, [reply_of(0, 0.5), reply_of(1, -0.2)])
    moderator.joint_update(0)
    assert numbers(moderator.memory, "dual") == pytest.approx([0.5, -0.2])


# --- the mirror of the silos' states


@pytest.mark.parametrize(("algorithm", "sign"), [(FedDyn(alpha=0.1), 1), (AdaBest(mu=0.1, beta=0.98), -1)])
def test_a_silo_that_returns_is_sent_the_state_that_its_recall_model_continued(
    algorithm: Algorithm, sign: int
) -> None:
    """Silo 1 is present in round 0, recalled in 1 and 2, and back in 3; both states are sums of its updates."""
    engine = ScriptedEngine(
        [digest_of(0, 1.0), digest_of(1, 2.0)],
        [{0: 0.1, 1: 0.3}, {0: 0.1}, {0: 0.1}, {0: 0.1, 1: 0.1}],
    )
    recipe = replace(read_recipe("feddig"), joint=False)
    results = list(run_rounds(paper_moderator(algorithm), engine, recipe, range(4)))
    recalled = [float(reply.update) for result in results for reply in result.stand_ins]
    assert [reply.silo for result in results for reply in result.stand_ins] == [1, 1]

    name = "dual" if sign == 1 else "drift"
    sent = [float(requests[1].state[name]) for requests in engine.requests]
    expected = [0, 0.3, 0.3 + recalled[0], 0.3 + recalled[0] + recalled[1]]
    assert sent == pytest.approx([sign * value for value in expected])


def test_each_silo_is_sent_its_own_state() -> None:
    moderator = paper_moderator(FedDyn(alpha=0.1), silos=3)
    moderator.aggregate(0, [reply_of(2, 0.3), reply_of(1, 0.2)])
    assert [float(request.state["dual"]) for request in moderator.push(1)] == pytest.approx([0, 0.2, 0.3])


# --- the state as a whole

ROUNDS: list[dict[int, float]] = [{0: 0.2, 1: -0.1}, {0: 0.1}, {1: 0.3}, {0: -0.1}, {}, {0: 0.2, 1: 0.1}]
DIGESTS = (digest_of(0, 0.5, 1.0, 1.5), digest_of(1, 2.0, 2.5), digest_of(2, 3.0))


def moderator_for_rounds(name: str, weight: float) -> Moderator:
    return paper_moderator(
        BASES[name]().planned(300).prepared(steps=2, lr=0.02, momentum=0.5),
        silos=3,
        weight=weight,
        weighting="samples",
        training=replace(HALF_WAY, batch=2, lr=0.02, momentum=0.5),
        digests=DIGESTS[:2],
    )


@pytest.mark.parametrize("name", BASES)
def test_training_from_a_restored_state_equals_uninterrupted_training(name: str) -> None:
    moderator, recipe = moderator_for_rounds(name, 0.3), read_recipe(f"feddig+{name}")
    rounds = run_rounds(moderator, ScriptedEngine(DIGESTS, ROUNDS), recipe, range(6))
    for _ in range(3):
        next(rounds)
    saved = snapshot(moderator)
    assert len(list(rounds)) == 3

    other = moderator_for_rounds(name, 9.9)
    other.restore(saved)
    assert same(snapshot(other), saved)
    assert len(list(run_rounds(other, ScriptedEngine(DIGESTS, ROUNDS), recipe, range(3, 6)))) == 3
    assert same(snapshot(other), snapshot(moderator))
    assert not same(snapshot(other), saved)


def test_the_state_names_all_that_the_next_round_depends_on() -> None:
    common = {"weights", "samples", "guidance"}
    assert paper_moderator().state().keys() == common
    assert paper_moderator(FedDyn(alpha=0.1)).state().keys() == common | {"silo.0.dual", "silo.1.dual"}
    assert paper_moderator(AdaBest(beta=0.98)).state().keys() == common | {
        "shared.mean", "silo.0.drift", "silo.0.last", "silo.1.drift", "silo.1.last",
    }  # fmt: skip


@pytest.mark.parametrize("name", BASES)
def test_a_returned_state_does_not_change_in_later_rounds(name: str) -> None:
    moderator = paper_moderator(ready(name), training=replace(HALF_WAY, momentum=0.9))
    moderator.aggregate(0, [reply_of(0, 0.2), reply_of(1, 0.1)])
    given = moderator.state()
    before = {key: tensor.clone() for key, tensor in given.items()}
    moderator.aggregate(1, [reply_of(0, 0.2)])
    assert same(given, before)


def test_a_returned_state_does_not_change_in_a_joint_update() -> None:
    moderator = paper_moderator(digests=[digest_of(0, 3.0)])
    given = moderator.state()
    before = {key: tensor.clone() for key, tensor in given.items()}
    moderator.joint_update(0)
    assert same(given, before)


# --- the round loop


def run_recipe(
    recipe: str | Recipe,
    engine: ScriptedEngine,
    rounds: int,
    moderator: Moderator,
    frozen_from: int | None = None,
) -> list[RoundResult]:
    what = read_recipe(recipe) if isinstance(recipe, str) else recipe
    return list(run_rounds(moderator, engine, what, range(rounds), frozen_from))


def test_a_round_is_push_reply_recall_aggregate_and_joint_update() -> None:
    """From w = 0 with rate .5, silo 0 moves by .5, silo 1's recall model half the way to 2; then on towards 3/2."""
    engine = ScriptedEngine([digest_of(0, 1.0)], [{0: 0.5}])
    moderator = paper_moderator(digests=[digest_of(1, 2.0)])
    (result,) = run_recipe("feddig", engine, 1, moderator)
    assert [reply.silo for reply in result.replies] == [0]
    assert [reply.silo for reply in result.stand_ins] == [1]
    assert float(result.stand_ins[0].update) == pytest.approx(1.0)
    assert result.joint is not None
    aggregated = (0.5 + 1.0) / 2
    assert moderator.weights.tolist() == pytest.approx([aggregated + 0.5 * (1.5 - aggregated)])
    assert all(second >= 0 for second in (result.seconds_silos, result.seconds_recall, result.seconds_joint))


def test_a_silo_is_asked_for_its_digest_until_it_joins_and_then_never_again() -> None:
    """Silo 0 is present from the start and leaves, silo 1 joins in round 2, silo 2 never joins."""
    digests = [digest_of(silo, silo + 1.0) for silo in range(3)]
    engine = ScriptedEngine(digests, [{0: 0.1}, {0: 0.1}, {0: 0.1, 1: 0.1}, {1: 0.1}, {0: 0.1}])
    moderator = paper_moderator(silos=3)
    results = run_recipe("feddig", engine, 5, moderator)
    assert engine.asked == [[0, 1, 2], [1, 2], [1, 2], [2], [2]]
    assert sorted(moderator.digests) == [0, 1]
    recalled = [[reply.silo for reply in result.stand_ins] for result in results]
    assert recalled == [[], [], [], [0], [1]]


def test_a_late_joiners_digest_is_in_the_joint_update_from_the_round_it_joins() -> None:
    """Silo 0 has two digests, silo 1 three; one per step."""
    engine = ScriptedEngine(
        [digest_of(0, 1.0, 2.0), digest_of(1, 1.0, 2.0, 3.0)], [{0: 0.1}, {0: 0.1}, {1: 0.1}, {0: 0.1}]
    )
    results = run_recipe("feddig", engine, 4, paper_moderator(training=BY_ONES))
    assert [result.joint and result.joint.steps for result in results] == [2, 2, 5, 5]


def test_the_frozen_control_never_trains_again_also_when_the_silo_returns() -> None:
    engine = ScriptedEngine([], [{0: 0.1, 1: 0.3}, {0: 0.1, 1: 0.3}, {0: 0.5}, {0: 0.5, 1: 0.5}])
    moderator = paper_moderator()
    results = run_recipe("frozen", engine, 4, moderator, frozen_from=2)
    assert [len(result.replies) for result in results] == [2, 2, 0, 0]
    assert len(engine.requests) == 2
    assert moderator.weights.tolist() == pytest.approx([0.4])


def test_other_algorithms_continue_when_the_frozen_control_stops() -> None:
    engine = ScriptedEngine([], [{0: 0.1}, {0: 0.1}])
    moderator = paper_moderator()
    run_recipe("fedavg", engine, 2, moderator, frozen_from=1)
    assert moderator.weights.tolist() == pytest.approx([0.2])


def test_the_frozen_control_trains_to_the_end_when_nobody_leaves() -> None:
    moderator = paper_moderator()
    run_recipe("frozen", ScriptedEngine([], [{0: 0.1}, {0: 0.1}]), 2, moderator, frozen_from=None)
    assert moderator.weights.tolist() == pytest.approx([0.2])


def test_digests_only_never_trains_at_the_silos() -> None:
    engine = ScriptedEngine([digest_of(0, 3.0), digest_of(1, 3.0)], [{0: 9.0}, {0: 9.0, 1: 9.0}])
    moderator = paper_moderator(settings=ModeratorSettings(guidance_lr=1e-12))
    results = run_recipe("digests-only", engine, 2, moderator)
    assert engine.requests == []
    assert engine.asked == [[0, 1], [1]]
    assert not any(result.replies or result.stand_ins for result in results)
    assert moderator.weights.tolist() == pytest.approx([3 * 3 / 4])


def test_a_plain_algorithm_asks_for_no_digest() -> None:
    engine = ScriptedEngine([digest_of(0, 3.0)], [{0: 0.1}, {1: 0.1}])
    moderator = paper_moderator()
    results = run_recipe("fedavg", engine, 2, moderator)
    assert engine.asked == []
    assert not moderator.digests
    assert not any(result.stand_ins or result.joint for result in results)


@pytest.mark.parametrize(
    ("name", "recalled", "joint"),
    [("feddig", 1, True), ("feddig-no-recall", 0, True), ("feddig-no-joint", 1, False)],
)
def test_each_half_of_feddig_can_be_left_out(name: str, recalled: int, joint: bool) -> None:
    engine = ScriptedEngine([digest_of(0, 1.0), digest_of(1, 2.0)], [{0: 0.1, 1: 0.1}, {0: 0.1}])
    last = run_recipe(name, engine, 2, paper_moderator())[-1]
    assert len(last.stand_ins) == recalled
    assert (last.joint is not None) == joint


def test_rounds_are_numbered_as_asked_and_every_request_says_which() -> None:
    engine = ScriptedEngine([], [{}] * 5 + [{0: 0.1}] * 2)
    results = list(run_rounds(paper_moderator(), engine, read_recipe("fedavg"), range(5, 7)))
    assert [result.round for result in results] == [5, 6]
    rounds: list[list[int]] = [[request.round for request in sent] for sent in engine.requests]
    assert rounds == [[5, 5], [6, 6]]


def test_after_each_round_the_moderator_holds_that_rounds_model() -> None:
    engine, moderator = ScriptedEngine([], [{0: 0.1}] * 3), paper_moderator()
    weights = [
        float(moderator.weights) for _ in run_rounds(moderator, engine, read_recipe("fedavg"), range(3))
    ]
    assert weights == pytest.approx([0.1, 0.2, 0.3])


def test_recall_does_not_depend_on_other_silos() -> None:
    """Absence never changes other silos' batch order: silo 1's recall is the same with silo 0 present or recalled."""

    def recall_update(replies: Sequence[Reply]) -> Tensor:
        digests: list[Digest] = [digest_of(0, 1.0, 5.0), digest_of(1, 1.0, 2.0, 3.0, 4.0)]
        moderator = paper_moderator(training=replace(BY_ONES, lr=0.1), digests=digests)
        requests: list[Request] = moderator.push(3)
        return moderator.recall(requests, replies)[-1].update

    assert torch.equal(recall_update([]), recall_update([reply_of(0, 0.1, round=3)]))


def test_silos_and_rounds_have_batch_orders_of_their_own() -> None:
    digests = [digest_of(silo, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0) for silo in (0, 1)]
    moderator = paper_moderator(training=replace(BY_ONES, lr=0.1), digests=digests)
    orders = [
        float(reply.update) for round in (0, 1) for reply in moderator.recall(moderator.push(round), [])
    ]
    assert len(set(orders)) == 4
