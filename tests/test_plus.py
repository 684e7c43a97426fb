"""FedDig+: the committee's formula by hand, the digest expert, and runs in which silos rarely or never train."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from feddig import Dataset, Experiment, demo_experiment, run
from feddig.core.plus import Committee, build_expert, coverage, train_expert
from feddig.digest.digest import Digest, denoise
from feddig.models.flat import FlatNetwork
from feddig.runs.build import build_simulation
from feddig.settings import ModeratorSettings


class ConstantLogits(nn.Module):
    """A network that returns the same logits for every input."""

    def __init__(self, *logits: float) -> None:
        super().__init__()
        self.logits = torch.tensor(logits, dtype=torch.float32)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.logits.expand(len(inputs), -1)


def probabilities(
    classifier: list[float], expert: list[float], covered: list[float], samples_per_digest: int = 4
) -> list[float]:
    committee = Committee(
        ConstantLogits(*classifier), ConstantLogits(*expert), len(covered), samples_per_digest
    )
    committee.coverage.data = torch.tensor(covered)
    with torch.no_grad():
        found: list[float] = committee(torch.zeros(1, 1), torch.zeros(1, 1)).exp()[0].tolist()
    return found


# --- the committee


def test_where_all_is_covered_the_expert_advises() -> None:
    """M's odds are 1 : 1 and E's 4 : 1; half of E's logarithm is the square root, 2 : 1."""
    four = torch.tensor(4.0).log().item()
    assert probabilities([0, 0], [four, 0], [1.0, 1.0]) == pytest.approx([2 / 3, 1 / 3], rel=1e-4)


def test_an_expert_that_learned_from_large_mixtures_advises_less() -> None:
    """With 16 samples an eighth of E's logarithm counts: 16 : 1 becomes the square root of 2. With one, half counts."""
    sixteen = torch.tensor(16.0).log().item()
    root = 2**0.5
    assert probabilities([0, 0], [sixteen, 0], [1.0, 1.0], 16)[0] == pytest.approx(
        root / (1 + root), rel=1e-4
    )
    assert probabilities([0, 0], [sixteen, 0], [1.0, 1.0], 1)[0] == pytest.approx(4 / 5, rel=1e-4)


def test_where_nothing_is_covered_the_expert_decides() -> None:
    three = torch.tensor(3.0).log().item()
    assert probabilities([100, -100], [0, three], [0.0, 0.0]) == pytest.approx([1 / 4, 3 / 4], rel=1e-3)


def test_a_class_that_m_never_saw_is_the_experts() -> None:
    """E gives 1/4, 1/4, 1/2; M knows the first two classes and gives 3 : 1; E does not distinguish them."""
    three, two = torch.tensor(3.0).log().item(), torch.tensor(2.0).log().item()
    found = probabilities([three, 0, 0], [0, 0, two], [1.0, 1.0, 0.0])
    assert found == pytest.approx([3 / 8, 1 / 8, 1 / 2], rel=1e-3)


@given(
    st.lists(st.floats(-20, 20), min_size=3, max_size=3),
    st.lists(st.floats(-20, 20), min_size=3, max_size=3),
    st.lists(st.floats(0, 1), min_size=3, max_size=3),
)
def test_chances_sum_to_one(classifier: list[float], expert: list[float], covered: list[float]) -> None:
    found = probabilities(classifier, expert, covered)
    assert sum(found) == pytest.approx(1, abs=1e-4)
    assert min(found) >= 0


def test_coverage_is_the_share_of_a_classs_samples_that_silos_have_trained_on_long_enough() -> None:
    """Silo 0 has 8 samples of class 0; its 20 rounds count half. Silo 1 has 8 of each class and never trained."""
    one = Digest(0, torch.zeros(2, 1), torch.tensor([[1.0, 0, 0]] * 2), {"samples_per_digest": 4})
    two = Digest(1, torch.zeros(4, 1), torch.tensor([[0.5, 0.5, 0]] * 4), {"samples_per_digest": 4})
    assert coverage([one, two], [20, 0]).tolist() == pytest.approx([0.25, 0, 1])
    assert coverage([one, two], [20, 60]).tolist() == pytest.approx([0.5 * (0.5 + 0.75), 0.75, 1])


# --- the expert


def digests_of(*silos: int, seed: int = 0) -> list[Digest]:
    """Draw digests of three classes; features are far apart and far from zero, and two samples are mixed."""
    stream = torch.Generator().manual_seed(seed)
    drawn = []
    for silo in silos:
        labels = torch.nn.functional.one_hot(torch.randint(3, (60, 2), generator=stream), 3).float()
        centres = 100 + 10 * labels @ torch.tensor([[1.0, 0, 0, 0], [0, 1.0, 0, 0], [0, 0, 1.0, 0]])
        features = (centres + torch.randn(60, 2, 4, generator=stream)).mean(1)
        drawn.append(Digest(silo, features.view(60, 4, 1, 1), labels.mean(1), {"samples_per_digest": 2}))
    return drawn


def trained(digests: list[Digest], seed: int = 0) -> FlatNetwork:
    expert = FlatNetwork(build_expert((4, 1, 1), 3))
    train_expert(expert, digests, noise_aware=True, seed=seed)
    return expert


def test_an_expert_of_mixed_digests_knows_single_samples() -> None:
    centres = 100 + 10 * torch.eye(3, 4)
    expert = trained(digests_of(0, 1))
    assert expert.module(centres.view(3, 4, 1, 1)).argmax(1).tolist() == [0, 1, 2]


def test_an_expert_follows_from_digests_and_seed_alone() -> None:
    first, again = trained(digests_of(0, 1)), trained(digests_of(0, 1))
    assert torch.equal(first.vector, again.vector)
    assert not torch.equal(first.vector, trained(digests_of(0, 1), seed=1).vector)
    assert not torch.equal(first.vector, trained(digests_of(0)).vector)


def test_an_expert_learns_from_the_mean_of_noisy_digests_and_the_same_without_noise() -> None:
    noisy = digests_of(0)[0]
    facts = {**noisy.facts, "mechanism": "discrete-gaussian", "mixing": "random", "noise_deviation": 2.0}
    noisy = replace(noisy, facts=facts)
    clear = denoise([noisy], noisy.features)
    mean = replace(noisy, features=(noisy.features + clear) / 2, facts={"samples_per_digest": 2})
    assert not torch.equal(clear, noisy.features)
    assert torch.equal(trained([noisy]).vector, trained([mean]).vector)


def test_the_expert_is_trained_when_a_digest_arrives_and_not_again(
    tiny_dataset: Dataset, tiny_experiment: Callable[..., Experiment]
) -> None:
    experiment = tiny_experiment(algorithm={"name": "feddig-plus"})
    simulation = build_simulation(experiment, dataset=tiny_dataset, device="cpu")
    moderator = simulation.moderator
    first, second, *_ = (simulation.make_digest(silo) for silo in simulation.silos)
    alone = moderator.model()
    assert moderator.update_expert() is None
    moderator.hold([first])
    assert moderator.update_expert() is not None
    assert moderator.update_expert() is None
    of_one = moderator.model()
    moderator.hold([second])
    assert moderator.update_expert() is not None
    assert not torch.equal(of_one, moderator.model())
    assert len(alone) == len(of_one) == len(simulation.network.vector)


def test_without_digests_m_decides_alone(
    tiny_dataset: Dataset, tiny_experiment: Callable[..., Experiment]
) -> None:
    experiment = tiny_experiment(algorithm={"name": "feddig-plus"})
    simulation = build_simulation(experiment, dataset=tiny_dataset, device="cpu")
    simulation.network.load(simulation.moderator.model())
    worker = simulation.workers.first.network
    worker.load(simulation.moderator.weights)
    inputs = simulation.test.inputs(torch.arange(20))
    with torch.no_grad():
        found, wanted = simulation.network.module(*inputs), worker.module(*inputs).log_softmax(1)
    assert torch.allclose(found, wanted, atol=1e-5)


# --- whole runs


def demo(**sections: dict[str, object]) -> Experiment:
    experiment = demo_experiment("algorithm.name=feddig")
    for section, settings in {"data": {"limit": 1500}, "training": {"rounds": 12}, **sections}.items():
        experiment = replace(experiment, **{section: replace(getattr(experiment, section), **settings)})
    return experiment


def final(experiment: Experiment, out: Path) -> float:
    return float(run(experiment, out, device="cpu")["accuracy"]["final"])


def test_a_silo_that_never_trains_is_known_from_its_digest(tmp_path: Path) -> None:
    """The largest silo only sends its digest; the other silos have few samples of its classes."""
    without = {"name": "fedavg", "prior_correction": True}
    votes = demo(absence={"scenario": "never"}, algorithm=without, moderator={"votes": 1.0})
    plus = demo(absence={"scenario": "never"}, algorithm={"name": "feddig-plus"})
    assert final(plus, tmp_path / "plus") > final(votes, tmp_path / "votes") + 5


def test_names_and_settings_decide_together() -> None:
    plus, plain = demo(algorithm={"name": "feddig-plus"}).resolved(), demo().resolved()
    assert plus.algorithm.prior_correction
    assert plus.moderator.votes == 1
    assert not plain.algorithm.prior_correction
    assert plain.moderator.votes == 0
    own = demo(
        algorithm={"name": "feddig-plus", "prior_correction": False}, moderator={"votes": 0.5}
    ).resolved()
    assert not own.algorithm.prior_correction
    assert own.moderator == replace(plus.moderator, votes=0.5)
    assert ModeratorSettings().votes is None


def test_equal_digests_make_no_expert_that_is_sure_of_other_images() -> None:
    same = Digest(
        0, torch.full((1, 4, 1, 1), 5.0), torch.tensor([[0.5, 0.5, 0.0]]), {"samples_per_digest": 2}
    )
    expert = trained([same])
    assert float(expert.module(torch.rand(20, 4, 1, 1) * 10).softmax(1).detach().max()) < 0.99
