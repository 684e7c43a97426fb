"""The base algorithms, checked against pen and paper: tiny numbers, the exact answer.

In the examples w is the global weight, D_i = w_i - w a silo's update; silos count from 0.
"""

import copy
import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from feddig import Dataset, Experiment
from feddig.core.algorithms import BASES, AdaBest, Algorithm, FedAvg, FedDyn, FedNova, FedProx, Memory
from feddig.core.algorithms.fednova import effective_steps
from feddig.core.local import Effort, Trainee, train_locally
from feddig.core.messages import State
from feddig.core.moderator import Moderator
from feddig.core.recipe import Recipe, names, read_recipe
from feddig.core.samples import Samples
from feddig.core.training import run_rounds
from feddig.errors import SettingError
from feddig.models.flat import FlatNetwork
from feddig.runs.build import build_simulation
from feddig.settings import TrainingSettings
from pen_and_paper import HALF_WAY, digest_of, numbers, paper_moderator, reply_of, round_of

NOTHING = Memory({}, ({}, {}))


def stream(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def ready(name: str) -> Algorithm:
    """Build a base algorithm with its default settings."""
    return BASES[name]().planned(300).prepared(steps=5, lr=0.1, momentum=0.9)


# --- FedAvg


def test_fedavg_adds_the_mean_update() -> None:
    weights, _ = FedAvg().aggregate(round_of(1.0, [reply_of(0, 0.5), reply_of(1, -0.1)]), NOTHING)
    assert weights.tolist() == pytest.approx([1.2])


def test_fedavg_weighs_by_importance() -> None:
    replies = [reply_of(0, 0.5), reply_of(1, -0.1)]
    weights, _ = FedAvg().aggregate(round_of(1.0, replies, importance=[30, 10]), NOTHING)
    assert weights.tolist() == pytest.approx([1 + 0.75 * 0.5 - 0.25 * 0.1])


def test_the_weights_of_those_who_replied_sum_to_one() -> None:
    """Of silos with 10, 20 and 70 samples the last stays away: the others count 1/3 and 2/3."""
    replies = [reply_of(0, 0.3), reply_of(1, 0.6)]
    facts = round_of(0.0, replies, importance=[10, 20, 70])
    assert facts.shares() == pytest.approx([1 / 3, 2 / 3])
    weights, _ = FedAvg().aggregate(facts, NOTHING)
    assert weights.tolist() == pytest.approx([0.5])


# --- FedProx


def test_fedprox_aggregates_as_fedavg_does() -> None:
    facts = round_of(1.0, [reply_of(0, 0.5), reply_of(1, -0.1)], importance=[3, 1])
    assert torch.equal(FedProx(mu=1.0).aggregate(facts, NOTHING)[0], FedAvg().aggregate(facts, NOTHING)[0])


def test_fedprox_with_mu_0_is_fedavg_to_the_bit(
    tiny_dataset: Dataset, tiny_experiment: Callable[..., Experiment]
) -> None:
    """Silos train, leave and are recalled, the model is updated jointly: nothing may differ."""

    def train(name: str, **bases: dict[str, float]) -> Moderator:
        experiment = tiny_experiment(algorithm={"name": name, **bases}, training={"rounds": 4})
        simulation = build_simulation(experiment, dataset=tiny_dataset, device="cpu")
        engine = simulation.engine(simulation.make_digest)
        results = list(run_rounds(simulation.moderator, engine, experiment.recipe, range(4)))
        assert any(result.replies for result in results)
        assert any(result.stand_ins for result in results) == experiment.recipe.recall
        return simulation.moderator

    for plain, proximal in [("fedavg", "fedprox"), ("feddig", "feddig+fedprox")]:
        expected = train(plain).weights
        assert torch.equal(train(proximal, fedprox={"mu": 0.0}).weights, expected)
        assert not torch.equal(train(proximal, fedprox={"mu": 0.1}).weights, expected)


# --- FedNova


def test_fednova_divides_updates_by_their_steps() -> None:
    """rho .5, eta .1: silo 0 takes two steps of gradient 1, silo 1 three steps of gradient 2."""
    assert [effective_steps(2, 0.5), effective_steps(3, 0.5)] == pytest.approx([2.5, 4.25])
    facts = round_of(0.0, [reply_of(0, -0.25, steps=2), reply_of(1, -0.85, steps=3)], momentum=0.5)
    weights, _ = FedNova().aggregate(facts, NOTHING)
    assert weights.tolist() == pytest.approx([-0.50625])
    weights, _ = FedAvg().aggregate(facts, NOTHING)
    assert weights.tolist() == pytest.approx([-0.55])


def test_effective_steps_of_plain_sgd_are_its_steps() -> None:
    assert [effective_steps(steps, 0.0) for steps in (1, 2, 7)] == [1, 2, 7]


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 5, 30])
def test_effective_steps_are_how_far_a_constant_gradient_carries(steps: int, momentum: float) -> None:
    place = buffer = 0.0
    for _ in range(steps):
        buffer = momentum * buffer + 1
        place += buffer
    assert effective_steps(steps, momentum) == pytest.approx(place)


@settings(max_examples=150, deadline=None)
@given(
    samples=st.lists(st.integers(1, 10_000), min_size=1, max_size=9),
    equal=st.booleans(),
    steps=st.integers(1, 300),
    momentum=st.floats(0, 0.999),
    seed=st.integers(0, 2**31),
)
def test_fednova_with_equal_steps_is_fedavg_to_the_bit(
    samples: list[int], equal: bool, steps: int, momentum: float, seed: int
) -> None:
    """In double precision, because single precision would hide a difference in the last bit of a weight."""
    source = stream(seed)
    start, *updates = torch.randn(1 + len(samples), 17, generator=source, dtype=torch.double)
    facts = round_of(
        start,
        [reply_of(silo, update, steps=steps) for silo, update in enumerate(updates)],
        importance=[1] * len(samples) if equal else samples,
        momentum=momentum,
    )
    assert torch.equal(FedNova().aggregate(facts, NOTHING)[0], FedAvg().aggregate(facts, NOTHING)[0])


# --- FedDyn


def test_feddyn_adds_the_mean_dual_of_all_silos_to_the_mean_model() -> None:
    algorithm = FedDyn(alpha=0.1)
    before = algorithm.start(torch.zeros(1), 2)
    weights, memory = algorithm.aggregate(round_of(0.0, [reply_of(0, 0.2), reply_of(1, -0.6)]), before)
    assert weights.tolist() == pytest.approx([-0.4])
    assert numbers(memory, "dual") == pytest.approx([0.2, -0.6])


def test_feddyn_counts_the_duals_of_the_absent_too() -> None:
    """Only silo 0 of two is there: mean w_i = .2, mean dual = (.2 + 0) / 2."""
    algorithm = FedDyn(alpha=0.1)
    weights, memory = algorithm.aggregate(
        round_of(0.0, [reply_of(0, 0.2)]), algorithm.start(torch.zeros(1), 2)
    )
    assert weights.tolist() == pytest.approx([0.3])
    assert numbers(memory, "dual") == pytest.approx([0.2, 0])


def test_feddyn_weighs_duals_as_it_weighs_models() -> None:
    """Silos with 30 and 10 samples; a third has not joined and weighs nothing."""
    algorithm = FedDyn(alpha=0.1)
    facts = round_of(0.0, [reply_of(0, 0.2), reply_of(1, -0.6)], importance=[30, 10, 0])
    weights, _ = algorithm.aggregate(facts, algorithm.start(torch.zeros(1), 3))
    mean_update = mean_dual = 0.75 * 0.2 - 0.25 * 0.6
    assert weights.tolist() == pytest.approx([mean_update + mean_dual], abs=1e-7)


def test_feddyn_rests_when_every_silo_rests() -> None:
    """A well-known mis-reading turns 1 into 1.5 here, and overflows after some tens of rounds."""
    algorithm = FedDyn(alpha=0.1)
    weights, memory = torch.ones(1), algorithm.start(torch.ones(1), 2)
    for number in range(100):
        replies = [reply_of(0, 0.0), reply_of(1, 0.0)]
        weights, memory = algorithm.aggregate(round_of(weights, replies, number=number), memory)
    assert weights.tolist() == [1]


@settings(max_examples=60, deadline=None)
@given(
    attendance=st.lists(st.sets(st.integers(0, 3), min_size=1), min_size=2, max_size=8),
    alpha=st.floats(0.01, 10),
    seed=st.integers(0, 2**31),
)
def test_feddyn_is_the_same_written_with_the_servers_state_h(
    attendance: list[set[int]], alpha: float, seed: int
) -> None:
    """h -= (alpha / n) sum_A D_i; w = mean_A w_i - h / alpha, whoever is there."""
    source, algorithm = stream(seed), FedDyn(alpha=alpha)
    start = torch.randn(5, generator=source, dtype=torch.double)
    weights, memory = start, algorithm.start(start, 4)
    other, h = start, torch.zeros_like(start)
    for number, present in enumerate(attendance):
        updates = {silo: torch.randn(5, generator=source, dtype=torch.double) for silo in sorted(present)}
        replies = [reply_of(silo, update) for silo, update in updates.items()]
        weights, memory = algorithm.aggregate(
            round_of(weights, replies, number=number, importance=[1] * 4), memory
        )
        together = torch.stack([*updates.values()]).sum(0)
        h = h - alpha / 4 * together
        other = other + together / len(updates) - h / alpha
        torch.testing.assert_close(weights, other, rtol=1e-10, atol=1e-10)


def test_feddyn_chooses_alpha_by_the_local_movement_unless_it_is_set() -> None:
    """(1 - rho) / (K eta) with rho .9, K 5, eta .1."""
    assert FedDyn().prepared(steps=5, lr=0.1, momentum=0.9).alpha == pytest.approx(0.2)
    assert FedDyn(alpha=0.01).prepared(steps=5, lr=0.1, momentum=0.9).alpha == 0.01


def test_feddyn_without_alpha_refuses_to_correct() -> None:
    state = FedDyn().start(torch.zeros(1), 1).silos[0]
    with pytest.raises(ValueError, match="prepared"):
        FedDyn().correction(torch.zeros(1), state)


def test_feddyn_by_hand_through_leave_recall_and_return() -> None:
    algorithm = FedDyn(alpha=0.1)
    weights, memory = torch.zeros(1), algorithm.start(torch.zeros(1), 2)
    script = [
        # updates of silo 0 and 1, their duals, w + mean update + mean dual
        ({0: 0.2, 1: -0.6}, [0.2, -0.6], 0.0 - 0.2 - 0.2),  # both there
        ({0: 0.4}, [0.6, -0.6], -0.4 + 0.4 + 0.0),  # silo 1 leaves: its dual stays and counts
        ({0: 0.1, 1: -0.2}, [0.7, -0.8], 0.0 - 0.05 - 0.05),  # a recall model goes on with its dual
        ({0: 0.1, 1: 0.3}, [0.8, -0.5], -0.1 + 0.2 + 0.15),  # it returns
    ]
    for number, (updates, duals, expected) in enumerate(script):
        replies = [reply_of(silo, update, round=number) for silo, update in updates.items()]
        weights, memory = algorithm.aggregate(round_of(weights, replies, number=number), memory)
        assert numbers(memory, "dual") == pytest.approx(duals, abs=1e-6)
        assert weights.tolist() == pytest.approx([expected], abs=1e-6)


def test_feddyn_by_hand_through_a_real_recall() -> None:
    """Silo 1's digest wants w to be 2; alpha .5, eta .5, one step."""
    moderator = paper_moderator(FedDyn(alpha=0.5), digests=[digest_of(1, 2.0)])
    play(moderator, 0, {0: 0.2, 1: -0.6})
    assert moderator.weights.tolist() == pytest.approx([-0.4])

    # gradient w - x + alpha lambda = -.4 - 2 + .5 * -.6 = -2.7, so the recall model moves by 1.35
    assert play(moderator, 1, {0: 0.25}) == pytest.approx([1.35])
    assert numbers(moderator.memory, "dual") == pytest.approx([0.45, 0.75])
    assert moderator.weights.tolist() == pytest.approx([-0.4 + 0.8 + 0.6])

    # silo 1 returns and is sent the dual that its stand-in left
    assert float(moderator.push(2)[1].state["dual"]) == pytest.approx(0.75)
    assert play(moderator, 2, {0: 0.05, 1: -0.15}) == []
    assert numbers(moderator.memory, "dual") == pytest.approx([0.5, 0.6])
    assert moderator.weights.tolist() == pytest.approx([1.0 - 0.05 + 0.55])


def play(moderator: Moderator, number: int, updates: dict[int, float]) -> list[float]:
    """Play a round in which these silos reply, and give the updates of the recall models."""
    replies = [reply_of(silo, update, round=number) for silo, update in updates.items()]
    stand_ins = moderator.recall(moderator.push(number), replies)
    moderator.aggregate(number, [*replies, *stand_ins])
    return [float(reply.update) for reply in stand_ins]


# --- AdaBest


def test_adabest_steps_on_by_its_drift() -> None:
    """beta .8, previous mean 1, mean .7: h = .24."""
    algorithm = AdaBest(beta=0.8)
    before = algorithm.start(torch.ones(1), 2)
    weights, memory = algorithm.aggregate(round_of(1.0, [reply_of(0, -0.2), reply_of(1, -0.4)]), before)
    assert float(memory.shared["mean"]) == pytest.approx(0.7)
    assert weights.tolist() == pytest.approx([0.46])


def test_adabest_takes_a_silos_first_drift_as_it_is() -> None:
    algorithm = AdaBest(beta=0.98)
    before = algorithm.start(torch.ones(1), 2)
    _, memory = algorithm.aggregate(round_of(1.0, [reply_of(0, -0.4)], number=7), before)
    assert numbers(memory, "drift") == pytest.approx([0.4, 0])
    assert numbers(memory, "last") == [7, -1]


def test_adabest_divides_an_old_drift_by_its_age() -> None:
    """h_i .3, two rounds old; the new g_i is .4: .3 / 2 + .4."""
    algorithm = AdaBest(beta=0.98)
    old = {"drift": torch.tensor([0.3]), "last": torch.tensor(5)}
    before = Memory({"mean": torch.ones(1)}, (old, old))
    _, memory = algorithm.aggregate(round_of(1.0, [reply_of(0, -0.4)], number=7), before)
    assert numbers(memory, "drift") == pytest.approx([0.55, 0.3])
    assert numbers(memory, "last") == [7, 5]


def test_adabest_chooses_beta_by_the_number_of_rounds_unless_it_is_set() -> None:
    """Half is left after one round in 200 rounds or fewer, after 1.5 rounds in 300, after 5 in 1,000."""
    assert AdaBest().planned(40).beta == AdaBest().planned(200).beta == 0.5
    assert AdaBest().planned(300).beta == pytest.approx(0.63, abs=1e-3)
    assert AdaBest().planned(1000).beta == pytest.approx(0.8706, abs=1e-4)
    assert AdaBest(beta=0.98).planned(40) == AdaBest(beta=0.98)
    with pytest.raises(ValueError, match="planned"):
        AdaBest().aggregate(round_of(1.0, [reply_of(0, -0.2)]), AdaBest().start(torch.ones(1), 1))


def test_adabest_weighs_the_mean_by_importance() -> None:
    algorithm = AdaBest(beta=0.5)
    facts = round_of(1.0, [reply_of(0, -0.2), reply_of(1, -0.4)], importance=[30, 10])
    weights, _ = algorithm.aggregate(facts, algorithm.start(torch.ones(1), 2))
    assert weights.tolist() == pytest.approx([0.75 - 0.5 * (1 - 0.75)])


def test_when_silos_leave_adabest_steps_on_by_the_jump_of_the_mean() -> None:
    """Two silos that rest at -1 and 1 have the mean 0; silo 1 alone has 1, and AdaBest overshoots to 1.5."""
    algorithm = AdaBest(beta=0.5)
    weights, memory = torch.zeros(1), algorithm.start(torch.zeros(1), 2)
    both = [reply_of(0, -1.0), reply_of(1, 1.0)]
    weights, memory = algorithm.aggregate(round_of(weights, both, number=0), memory)
    assert weights.tolist() == [0]
    weights, memory = algorithm.aggregate(round_of(weights, both[1:], number=1), memory)
    assert weights.tolist() == pytest.approx([1 + 0.5 * 1])


def test_adabest_by_hand_through_leave_recall_and_return() -> None:
    algorithm = AdaBest(beta=0.5)
    weights, memory = torch.ones(1), algorithm.start(torch.ones(1), 2)
    script = [
        # updates of silo 0 and 1, their drifts, mean model, mean - beta (previous mean - mean)
        ({0: -0.2, 1: -0.4}, [0.2, 0.4], 0.7, 0.7 - 0.5 * 0.3),  # both there
        ({0: -0.15}, [0.35, 0.4], 0.4, 0.4 - 0.5 * 0.3),  # silo 1 leaves
        ({0: 0.05, 1: -0.05}, [0.3, 0.4 / 2 + 0.05], 0.25, 0.25 - 0.5 * 0.15),  # recalled, two rounds later
        ({0: 0.0, 1: -0.1}, [0.3, 0.25 + 0.1], 0.125, 0.125 - 0.5 * 0.125),  # returns after its stand-in
    ]
    for number, (updates, drifts, mean, expected) in enumerate(script):
        replies = [reply_of(silo, update, round=number) for silo, update in updates.items()]
        weights, memory = algorithm.aggregate(round_of(weights, replies, number=number), memory)
        assert numbers(memory, "drift") == pytest.approx(drifts, abs=1e-6)
        assert float(memory.shared["mean"]) == pytest.approx(mean, abs=1e-6)
        assert weights.tolist() == pytest.approx([expected], abs=1e-6)


def test_adabest_by_hand_through_a_real_recall() -> None:
    """Silo 1's digest wants w to be .15; mu .5, beta .5, eta .5, one step."""
    moderator = paper_moderator(AdaBest(mu=0.5, beta=0.5), weight=1.0, digests=[digest_of(1, 0.15)])
    play(moderator, 0, {0: -0.2, 1: -0.4})
    assert moderator.weights.tolist() == pytest.approx([0.55])

    # gradient w - x - mu h_1 = .55 - .15 - .5 * .4 = .2, so the recall model moves by -.1
    assert play(moderator, 1, {0: -0.1}) == pytest.approx([-0.1])
    assert numbers(moderator.memory, "drift") == pytest.approx([0.3, 0.5])
    assert moderator.weights.tolist() == pytest.approx([0.45 - 0.5 * (0.7 - 0.45)])

    # silo 1 returns, is sent what its stand-in left, and its drift is one round old
    state = moderator.push(2)[1].state
    assert (float(state["drift"]), int(state["last"])) == (pytest.approx(0.5), 1)
    assert play(moderator, 2, {0: 0.025, 1: -0.05}) == []
    assert numbers(moderator.memory, "drift") == pytest.approx([0.275, 0.55])
    assert moderator.weights.tolist() == pytest.approx([0.3125 - 0.5 * (0.45 - 0.3125)])


# --- penalties: what the local loop really applies, against finite differences

Penalty = Callable[[Tensor, Tensor, State], Tensor]

PENALTIES: dict[str, tuple[Algorithm, Penalty]] = {
    "fedavg": (FedAvg(), lambda local, start, state: local.new_zeros(())),
    "fednova": (FedNova(), lambda local, start, state: local.new_zeros(())),
    "fedprox": (FedProx(mu=0.7), lambda local, start, state: 0.7 / 2 * (local - start).square().sum()),
    "feddyn": (
        FedDyn(alpha=0.3),
        lambda local, start, state: (
            0.3 / 2 * (local - start).square().sum() + 0.3 * state["dual"].double() @ local
        ),
    ),
    "adabest": (AdaBest(mu=0.4), lambda local, start, state: -0.4 * state["drift"].double() @ local),
}


class Blobs:
    """Ten fixed points in the plane, in two classes."""

    def __init__(self) -> None:
        self.points = torch.randn(10, 2, generator=stream(4))

    def __len__(self) -> int:
        return 10

    def inputs(self, indices: Tensor) -> tuple[Tensor, ...]:
        return (self.points[indices],)

    def targets(self, indices: Tensor) -> Tensor:
        return (self.points[indices, 0] > 0).long()


LR = 0.25


def steps_from(weights: Tensor, count: int, algorithm: Algorithm, state: State) -> Tensor:
    """Take so many plain steps on all ten points and give the weights."""
    network = FlatNetwork(nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)))
    network.load(weights)
    train_locally(
        Trainee(network, LR),
        Samples(Blobs()),
        TrainingSettings(batch=10, lr=LR, momentum=0.0),
        effort=Effort(steps=count),
        stream=(0, "test"),
        correction=algorithm.correction(weights, state),
        who="test",
    )
    return network.weights()


def slope(function: Callable[[Tensor], Tensor], place: Tensor, width: float = 1e-5) -> Tensor:
    """Give the gradient by central differences."""
    sides = [
        function(place + width * row) - function(place - width * row)
        for row in torch.eye(len(place), dtype=place.dtype)
    ]
    return torch.stack(sides) / (2 * width)


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("step", [1, 2, 3])
def test_each_local_step_applies_the_gradient_of_the_penalty(name: str, step: int) -> None:
    algorithm, penalty = PENALTIES[name]
    start = torch.randn(17, generator=stream(1))
    fresh = algorithm.start(start, 1).silos[0]
    state = {
        key: torch.randn(tensor.shape, generator=stream(2)) if tensor.is_floating_point() else tensor
        for key, tensor in fresh.items()
    }
    here = steps_from(start, step - 1, algorithm, state) if step > 1 else start
    corrected = steps_from(start, step, algorithm, state)
    uncorrected = steps_from(here, 1, FedAvg(), {})
    applied = (uncorrected - corrected).double() / LR
    expected = slope(lambda local: penalty(local, start.double(), state), here.double())
    torch.testing.assert_close(applied, expected, rtol=0, atol=1e-5)
    if step > 1 and name not in ("fedavg", "fednova"):
        assert expected.abs().max() > 0.05


def test_every_base_has_its_penalty_here() -> None:
    assert set(PENALTIES) == set(BASES)


# --- what holds for every base, those to come included


@pytest.mark.parametrize("name", BASES)
def test_no_movement_leaves_the_weights_alone(name: str) -> None:
    algorithm, start = ready(name), torch.randn(7, generator=stream(3))
    weights, memory = start, algorithm.start(start, 3)
    for number, present in enumerate([[0, 1, 2], [1], [0, 2]]):
        replies = [reply_of(silo, torch.zeros(7), steps=silo + 1) for silo in present]
        facts = round_of(weights, replies, number=number, importance=[1, 2, 3], momentum=0.9)
        weights, memory = algorithm.aggregate(facts, memory)
        torch.testing.assert_close(weights, start, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", BASES)
def test_what_is_remembered_keeps_its_names_and_sizes(name: str) -> None:
    algorithm, start = ready(name), torch.randn(7, generator=stream(3))
    before = algorithm.start(start, 3)
    replies = [reply_of(silo, torch.randn(7, generator=stream(silo))) for silo in (0, 2)]
    weights, after = algorithm.aggregate(round_of(start, replies, importance=[1] * 3, momentum=0.9), before)
    assert weights.shape == start.shape
    assert weights.isfinite().all()
    assert len(before.silos) == len(after.silos) == 3
    for old, new in zip((before.shared, *before.silos), (after.shared, *after.silos), strict=True):
        shapes = {key: (tensor.shape, tensor.dtype) for key, tensor in new.items()}
        assert shapes == {key: (tensor.shape, tensor.dtype) for key, tensor in old.items()}
        assert all(tensor.isfinite().all() for tensor in new.values())
        assert all(tensor.numel() in (1, 7) for tensor in new.values())


@pytest.mark.parametrize("name", BASES)
def test_aggregation_writes_into_nothing_it_was_given(name: str) -> None:
    algorithm, start = ready(name), torch.randn(7, generator=stream(3))
    memory = algorithm.start(start, 3)
    replies = [reply_of(silo, torch.randn(7, generator=stream(silo))) for silo in (0, 2)]
    facts = round_of(start, replies, importance=[1] * 3, momentum=0.9)
    _, memory = algorithm.aggregate(facts, memory)
    facts = replace(facts, number=1)
    untouched = copy.deepcopy((facts.weights, [reply.update for reply in replies], memory))
    first, _ = algorithm.aggregate(facts, memory)
    weights, updates, before = untouched
    assert torch.equal(facts.weights, weights)
    assert all(torch.equal(reply.update, update) for reply, update in zip(replies, updates, strict=True))
    for old, now in zip((before.shared, *before.silos), (memory.shared, *memory.silos), strict=True):
        assert all(torch.equal(old[key], now[key]) for key in old)
    assert torch.equal(algorithm.aggregate(facts, memory)[0], first)


@pytest.mark.parametrize("name", BASES)
def test_what_is_remembered_of_an_absent_silo_stays(name: str) -> None:
    algorithm, start = ready(name), torch.randn(7, generator=stream(3))
    facts = round_of(start, [reply_of(0, torch.ones(7)), reply_of(1, torch.ones(7))], momentum=0.9)
    _, before = algorithm.aggregate(facts, algorithm.start(start, 2))
    _, after = algorithm.aggregate(replace(facts, number=1, replies=facts.replies[:1]), before)
    assert all(torch.equal(before.silos[1][key], after.silos[1][key]) for key in before.silos[1])


@pytest.mark.parametrize("name", BASES)
def test_every_base_goes_under_feddig(name: str) -> None:
    """Three rounds over a recall model and joint updates, with two steps of momentum."""
    training = replace(HALF_WAY, lr=0.05, momentum=0.5, local_epochs=2)
    algorithm = BASES[name]().planned(300).prepared(steps=2, lr=0.05, momentum=0.5)
    moderator = paper_moderator(algorithm, training=training, digests=[digest_of(1, 2.0, 3.0)])
    for number, updates in enumerate([{0: 0.2, 1: -0.1}, {0: 0.1}, {}]):
        play(moderator, number, updates)
        moderator.joint_update(number)
    assert moderator.weights.isfinite().all()
    assert 0 < float(moderator.weights) < 3


# --- names


def test_a_base_alone_is_trained_plainly() -> None:
    assert read_recipe("fednova") == Recipe("fednova", "fednova")


def test_a_large_base_sees_features_but_has_no_digests() -> None:
    assert read_recipe("feddyn-large") == Recipe("feddyn-large", "feddyn", sees_features=True)


def test_feddig_stands_for_feddig_over_fedavg() -> None:
    both_halves = {"sees_features": True, "collects_digests": True, "recall": True, "joint": True}
    assert read_recipe("feddig") == Recipe("feddig", "fedavg", **both_halves)
    assert read_recipe("feddig+adabest") == Recipe("feddig+adabest", "adabest", **both_halves)
    assert replace(read_recipe("feddig+fedavg"), name="feddig") == read_recipe("feddig")


def test_each_half_of_feddig_can_be_left_out() -> None:
    whole = read_recipe("feddig+fedprox")
    assert read_recipe("feddig-no-recall+fedprox") == replace(
        whole, name="feddig-no-recall+fedprox", recall=False
    )
    assert read_recipe("feddig-no-joint+fedprox") == replace(
        whole, name="feddig-no-joint+fedprox", joint=False
    )
    assert read_recipe("feddig-no-recall").base == read_recipe("feddig-no-joint").base == "fedavg"


def test_the_controls_are_what_the_contracts_say() -> None:
    assert read_recipe("frozen") == Recipe("frozen", "fedavg", frozen=True)
    assert read_recipe("frozen+feddyn") == Recipe("frozen+feddyn", "feddyn", frozen=True)
    assert read_recipe("centralised") == Recipe("centralised", centralised=True)
    assert read_recipe("digests-only") == Recipe(
        "digests-only", sees_features=True, collects_digests=True, silos_train=False, joint=True
    )


def test_every_listed_name_can_be_read_and_none_is_listed_twice() -> None:
    assert [read_recipe(name).name for name in names()] == names()
    assert len(set(names())) == len(names())
    bases = [*BASES]
    kinds = ("feddig", "feddig-no-recall", "feddig-no-joint", "feddig-plus", "frozen")
    expected = {
        *bases,
        "centralised",
        "digests-only",
        "digest-expert",
        *kinds,
        *(f"{base}-large" for base in bases),
    }
    expected |= {f"{kind}+{base}" for kind, base in itertools.product(kinds, bases)}
    assert set(names()) == expected


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("fedaverage", "fedavg"),
        ("feddig+fedavgg", "feddig+fedavg"),
        ("feddig+", "feddig"),
        ("fedprox-larg", "fedprox-large"),
        ("centralized", "centralised"),
        ("frozen+fednowa", "frozen+fednova"),
        ("fedavg-large-large", "fedavg-large"),
    ],
)
def test_an_unknown_name_is_told_the_nearest(wrong: str, right: str) -> None:
    with pytest.raises(SettingError, match=r"algorithm\.name") as caught:
        read_recipe(wrong)
    assert repr(wrong) in str(caught.value)
    assert f"did you mean {right!r}?" in str(caught.value)


def test_a_name_near_to_none_is_told_them_all() -> None:
    with pytest.raises(SettingError, match="choose from") as caught:
        read_recipe("42")
    assert all(name in str(caught.value) for name in ("fedavg", "feddig", "centralised"))
