"""The local training loop, compared with torch's optimiser and with results computed by hand."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from feddig.core.algorithms import Algorithm, Correction, FedAvg, FedDyn
from feddig.core.local import Effort, Trained, Trainee, passes, train_locally
from feddig.core.messages import Request
from feddig.core.samples import DigestSource, ImageSource, RawSamples, Samples, Source
from feddig.core.silo import Silo
from feddig.core.workers import Worker
from feddig.data.dataset import Images
from feddig.digest.digest import Digest
from feddig.errors import DivergenceError, SettingError
from feddig.models.flat import FlatNetwork
from feddig.seeds import torch_stream
from feddig.settings import TrainingSettings
from pen_and_paper import NumberSamples, OneWeight, Scale, digest_of

PLAIN = TrainingSettings(batch=8, lr=0.1, momentum=0.0)


def seeded(build: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def small_network(seed: int = 0) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4)), seed)


def network_with_dropout() -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4)))


def batches(count: int, size: int, effort: Effort, stream: torch.Generator) -> list[Tensor]:
    """Split the passes into batches, as a step does."""
    return [batch for order in passes(count, size, effort, stream) for batch in torch.split(order, size)]


class Points:
    """Fixed points of four classes."""

    def __init__(self, count: int = 21) -> None:
        self.places = torch.randn(count, 3, generator=torch_stream(1, "points"))
        self.classes = torch.arange(count) % 4

    def __len__(self) -> int:
        return len(self.classes)

    def inputs(self, indices: Tensor) -> tuple[Tensor, ...]:
        return (self.places[indices],)

    def targets(self, indices: Tensor) -> Tensor:
        return self.classes[indices]


def train(
    module: nn.Module,
    samples: Samples | Source | None = None,
    training: TrainingSettings = PLAIN,
    *,
    effort: Effort | None = None,
    stream: int = 0,
    correction: Correction | None = None,
) -> tuple[Tensor, Trained]:
    """Train a network as a silo does and return its weights."""
    network = FlatNetwork(module, bf16=training.precision == "bf16")
    trained = train_locally(
        Trainee(network, training.lr),
        samples if isinstance(samples, Samples) else Samples(samples or Points()),
        training,
        effort=effort or Effort(),
        stream=(0, "test", stream),
        correction=correction,
        who="silo 3, round 7",
    )
    return network.weights(), trained


# --- batches


@settings(max_examples=100, deadline=None)
@given(
    count=st.integers(1, 70), size=st.integers(1, 30), epochs=st.integers(1, 4), seed=st.integers(0, 2**31)
)
def test_every_pass_takes_each_sample_once_and_drops_no_short_batch(
    count: int, size: int, epochs: int, seed: int
) -> None:
    drawn = list(batches(count, size, Effort(epochs), torch_stream(seed)))
    a_pass = -(-count // size)
    assert len(drawn) == epochs * a_pass
    for start in range(0, len(drawn), a_pass):
        one = drawn[start : start + a_pass]
        assert sorted(torch.cat(one).tolist()) == list(range(count))
        assert [len(batch) for batch in one[:-1]] == [size] * (a_pass - 1)
        assert len(one[-1]) == count - size * (a_pass - 1)


def test_each_pass_has_its_own_order() -> None:
    first, second = batches(50, 50, Effort(epochs=2), torch_stream(0))
    assert first.tolist() != list(range(50))
    assert first.tolist() != second.tolist()


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
def test_steps_count_instead_of_epochs_when_given(steps: int) -> None:
    """Ten samples in batches of four are batches of 4, 4, 2, then again."""
    drawn = list(batches(10, 4, Effort(epochs=5, steps=steps), torch_stream(0)))
    assert [len(batch) for batch in drawn] == [4, 4, 2, 4, 4, 2, 4][:steps]


def test_a_pass_takes_what_is_drawn_for_it() -> None:
    def draw(stream: torch.Generator) -> Tensor:
        return torch.randperm(100, generator=stream)[:10]

    drawn = batches(100, 4, Effort(epochs=2, draw=draw), torch_stream(0))
    assert [len(batch) for batch in drawn] == [4, 4, 2, 4, 4, 2]
    first, second = (set(torch.cat(part).tolist()) for part in (drawn[:3], drawn[3:]))
    assert len(first) == len(second) == 10
    assert first != second


def test_a_silo_smaller_than_a_batch_takes_one_step() -> None:
    _, trained = train(small_network(), Points(3), replace(PLAIN, batch=256))
    assert trained.steps == 1


# --- the optimiser


def train_with_torch(
    training: TrainingSettings, effort: Effort, around: Callable[[nn.Module], object] = lambda module: None
) -> Tensor:
    """Train the small network on the same batches with torch.optim.SGD; `around` runs before each step."""
    module, samples = small_network(), Points()
    optimiser = torch.optim.SGD(
        module.parameters(), training.lr, training.momentum, weight_decay=training.weight_decay
    )
    for batch in batches(len(samples), training.batch, effort, torch_stream(0, "test", 0)):
        optimiser.zero_grad()
        cross_entropy(module(*samples.inputs(batch)), samples.targets(batch)).backward()
        around(module)
        optimiser.step()
    return nn.utils.parameters_to_vector(module.parameters()).detach()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.05])
def test_it_is_torchs_sgd(momentum: float, weight_decay: float) -> None:
    training = replace(PLAIN, momentum=momentum, weight_decay=weight_decay)
    weights, trained = train(small_network(), training=training, effort=Effort(epochs=3))
    assert trained.steps == 9
    torch.testing.assert_close(weights, train_with_torch(training, Effort(epochs=3)), rtol=0, atol=1e-6)


@pytest.mark.parametrize("clip_norm", [0.05, 0.5, 100.0])
def test_long_gradients_are_clipped_as_torch_clips_them(clip_norm: float) -> None:
    training = replace(PLAIN, momentum=0.9, clip_norm=clip_norm)
    weights, _ = train(small_network(), training=training, effort=Effort(epochs=3))
    expected = train_with_torch(
        training, Effort(epochs=3), lambda module: nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
    )
    torch.testing.assert_close(weights, expected, rtol=0, atol=2e-6)
    unclipped, _ = train(small_network(), training=replace(training, clip_norm=0.0), effort=Effort(epochs=3))
    assert torch.equal(weights, unclipped) == (clip_norm == 100.0)


def test_weight_decay_is_added_after_clipping_as_torch_does() -> None:
    training = replace(PLAIN, weight_decay=0.5, clip_norm=0.2)
    weights, _ = train(small_network(), training=training, effort=Effort(epochs=3))
    expected = train_with_torch(
        training, Effort(epochs=3), lambda module: nn.utils.clip_grad_norm_(module.parameters(), 0.2)
    )
    torch.testing.assert_close(weights, expected, rtol=0, atol=2e-6)


def test_the_algorithms_correction_is_clipped_with_the_gradient() -> None:
    """With w = 0 and x = 1 the gradient is -1; the shift makes it -5, and the norm is clipped to 2."""
    training = replace(PLAIN, clip_norm=2.0)
    weights, _ = train(
        OneWeight(), NumberSamples(1.0), training, correction=Correction(shift=torch.tensor([-4.0]))
    )
    assert weights.tolist() == pytest.approx([0.2])


def test_momentum_starts_at_zero_in_every_call() -> None:
    def two_calls(momentum: float) -> Tensor:
        module = small_network()
        for stream in (0, 1):
            weights, _ = train(
                module,
                training=replace(PLAIN, momentum=momentum),
                effort=Effort(steps=1),
                stream=stream,
            )
        return weights

    assert torch.equal(two_calls(0.9), two_calls(0.0))
    assert not torch.equal(
        train(small_network(), training=replace(PLAIN, momentum=0.9), effort=Effort(steps=2))[0],
        train(small_network(), effort=Effort(steps=2))[0],
    )


def test_the_loss_is_the_mean_over_the_steps() -> None:
    """From w = 0, each step goes half the way to x = 1: (w - x)^2 / 2 is 1/2, then 1/8, then 1/32."""
    weights, trained = train(OneWeight(), NumberSamples(1.0), replace(PLAIN, lr=0.5), effort=Effort(epochs=3))
    assert weights.tolist() == pytest.approx([0.875])
    assert trained == Trained(steps=3, loss=pytest.approx((1 / 2 + 1 / 8 + 1 / 32) / 3))


def test_a_pull_is_towards_the_weights_the_call_began_with() -> None:
    """From w = 0 with x = 1, pull 1 and rate .5: w reaches .5, where gradient and pull cancel."""
    weights, _ = train(
        OneWeight(),
        NumberSamples(1.0),
        replace(PLAIN, lr=0.5),
        effort=Effort(epochs=3),
        correction=Correction(pull=1.0),
    )
    assert weights.tolist() == pytest.approx([0.5])


# --- same stream, same bytes


def test_the_stream_decides_the_bytes() -> None:
    first, _ = train(small_network(), stream=1)
    assert torch.equal(train(small_network(), stream=1)[0], first)
    assert not torch.equal(train(small_network(), stream=2)[0], first)


def test_a_network_that_draws_while_it_trains_is_repeated_too() -> None:
    torch.manual_seed(11)
    first, _ = train(network_with_dropout(), stream=1)
    torch.manual_seed(22)
    assert torch.equal(train(network_with_dropout(), stream=1)[0], first)


def test_dropout_is_the_same_when_several_threads_train_at_once() -> None:
    def trained(stream: int, network: nn.Module) -> Tensor:
        return train(network, stream=stream)[0]

    streams, networks = range(8), [network_with_dropout() for _ in range(16)]
    alone = list(map(trained, streams, networks[:8]))
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(trained, streams, networks[8:]))
    assert all(map(torch.equal, together, alone))


def test_dropout_differs_in_every_round() -> None:
    """With a single sample only dropout can differ, not the batch order."""
    assert torch.equal(
        train(small_network(), Points(1), stream=1)[0], train(small_network(), Points(1), stream=2)[0]
    )
    first, _ = train(network_with_dropout(), Points(1), stream=1)
    second, _ = train(network_with_dropout(), Points(1), stream=2)
    assert not torch.equal(first, second)


def test_training_leaves_the_global_random_state_as_it_was() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    train(network_with_dropout())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_network_left_in_evaluation_mode_is_trained_in_training_mode() -> None:
    assert torch.equal(train(network_with_dropout().eval())[0], train(network_with_dropout().train())[0])


# --- divergence


@pytest.mark.parametrize("lr", [5.0, float("nan")])
def test_divergence_is_an_error_that_names_the_silo(lr: float) -> None:
    """With a rate of 5 every step makes |w - x| four times as large."""
    with pytest.raises(
        DivergenceError, match=r"^silo 3, round 7: .*lower the learning rate or set training\.clip_norm"
    ):
        train(OneWeight(), NumberSamples(1.0), replace(PLAIN, lr=lr), effort=Effort(steps=100))


def test_a_last_step_to_infinity_is_divergence_although_the_loss_was_fine() -> None:
    with pytest.raises(DivergenceError, match=r"^silo 3, round 7: .*loss 500000"):
        train(OneWeight(), NumberSamples(1000.0), replace(PLAIN, lr=3e38), effort=Effort(steps=1))


def test_a_pixel_that_is_no_number_is_divergence() -> None:
    samples = Points()
    samples.places[5, 1] = float("nan")
    with pytest.raises(DivergenceError, match="silo 3, round 7"):
        train(small_network(), samples)


# --- companions: the guidance producer in the joint update


def train_jointly(
    *digests: Digest,
    lr: float = 0.1,
    guidance_lr: float = 0.1,
    training: TrainingSettings = PLAIN,
    correction: Correction | None = None,
) -> tuple[float, float]:
    """Train w = 0 and g = 1 for one pass and return both."""
    classifier, producer = FlatNetwork(OneWeight()), FlatNetwork(Scale())
    train_locally(
        Trainee(classifier, lr),
        Samples(DigestSource(digests, producer.module, train_guidance=True)),
        training,
        effort=Effort(),
        stream=(0, "joint"),
        correction=correction,
        companions=[Trainee(producer, guidance_lr)],
        who="joint update, round 7",
    )
    return float(classifier.vector), float(producer.vector)


def test_joint_training_moves_each_network_by_its_own_rate() -> None:
    """Loss (w - g x)^2 / 2 at w = 0, g = 1, x = 3: the gradients are w - g x = -3 and -(w - g x) x = 9."""
    assert train_jointly(digest_of(0, 3.0)) == pytest.approx((0.3, 0.1))
    assert train_jointly(digest_of(0, 3.0), lr=0.2, guidance_lr=0.01) == pytest.approx((0.6, 0.91))


def test_each_network_keeps_its_own_momentum() -> None:
    """Two steps from w = 0, g = 1 on x = 3: at (.3, .91) the gradients are -2.43 and 7.29."""
    training = replace(PLAIN, batch=1, momentum=0.5)
    weight, factor = train_jointly(digest_of(0, 3.0, 3.0), guidance_lr=0.01, training=training)
    assert weight == pytest.approx(0.3 + 0.1 * (0.5 * 3 + 2.43))
    assert factor == pytest.approx(0.91 - 0.01 * (0.5 * 9 + 7.29))


def test_each_networks_gradient_is_clipped_by_itself() -> None:
    """The gradients -3 and 9 become -1 and 1."""
    weights = train_jointly(digest_of(0, 3.0), training=replace(PLAIN, clip_norm=1.0))
    assert weights == pytest.approx((0.1, 0.9))


def test_a_correction_is_for_the_classifier_alone() -> None:
    shifted = train_jointly(digest_of(0, 3.0), correction=Correction(shift=torch.tensor([1.0])))
    assert shifted == pytest.approx((0.2, 0.1))


def test_a_guidance_producer_that_diverges_is_an_error_too() -> None:
    with pytest.raises(DivergenceError, match="joint update, round 7"):
        train_jointly(digest_of(0, 3.0), guidance_lr=3e38)


def test_recall_leaves_the_guidance_producer_untouched() -> None:
    classifier, producer = FlatNetwork(OneWeight()), FlatNetwork(Scale())
    before = producer.weights()
    train_locally(
        Trainee(classifier, 0.1),
        Samples(DigestSource([digest_of(0, 1.0, 2.0, 3.0)], producer.module)),
        PLAIN,
        effort=Effort(epochs=3),
        stream=(0, "recall"),
        who="recall of silo 0, round 7",
    )
    assert float(classifier.vector) != 0
    assert torch.equal(producer.vector, before)
    assert not producer.gradient.any()


# --- bf16


def test_bf16_comes_near_to_fp32_and_is_not_the_same() -> None:
    exact, _ = train(small_network(), training=replace(PLAIN, momentum=0.9), effort=Effort(epochs=3))
    rough, trained = train(
        small_network(), training=replace(PLAIN, momentum=0.9, precision="bf16"), effort=Effort(epochs=3)
    )
    assert rough.dtype == torch.float32
    assert not torch.equal(rough, exact)
    torch.testing.assert_close(rough, exact, rtol=0, atol=0.02)
    assert isinstance(trained.loss, float)


def test_features_are_encoded_in_full_precision_whatever_the_training() -> None:
    pixels = np.random.default_rng(0).random((20, 1, 8, 8), dtype=np.float32)
    images = Images(pixels, np.arange(20) % 4)
    encoder = seeded(lambda: nn.Conv2d(1, 2, 3)).requires_grad_(False)

    class SeesFeatures(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(72, 4)

        def forward(self, pixels: Tensor, features: Tensor) -> Tensor:
            return self.head(features.flatten(1))

    def samples() -> RawSamples:
        return RawSamples(ImageSource(images, encoder, torch.device("cpu")), np.arange(20))

    in_training = samples()
    train(SeesFeatures(), in_training, replace(PLAIN, precision="bf16"))
    untouched = samples().features
    assert untouched is not None
    assert in_training.features is not None
    assert in_training.features.dtype == torch.float32
    assert torch.equal(in_training.features, untouched)


# --- training at a silo


def silo_with(samples: RawSamples, algorithm: Algorithm | None = None, index: int = 2) -> Silo:
    return Silo(index, samples, algorithm or FedAvg(), replace(PLAIN, batch=8, local_epochs=2), seed=0)


def raw_samples(count: int = 20) -> RawSamples:
    pixels = np.random.default_rng(1).random((count, 1, 8, 8), dtype=np.float32)
    source = ImageSource(Images(pixels, np.arange(count) % 4), None, torch.device("cpu"))
    return RawSamples(source, np.arange(count))


def worker() -> Worker:
    return Worker(FlatNetwork(seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 4)))))


def test_a_silo_replies_with_its_update_steps_and_samples() -> None:
    """Twenty samples in batches of 8, two passes: six steps, starting from the weights that were sent."""
    own, weights = worker(), torch.linspace(-1, 1, 260)
    reply = silo_with(raw_samples()).train(Request(2, 7, weights, {}), own)
    assert (reply.silo, reply.round, reply.steps, reply.samples) == (2, 7, 6, 20)
    assert torch.equal(reply.update, own.network.vector - weights)
    assert 0 < reply.update.abs().max() < 1
    assert weights.tolist() == torch.linspace(-1, 1, 260).tolist()


def test_a_silos_batch_order_is_its_own_in_every_round() -> None:
    def update(silo: int, round: int) -> Tensor:
        request = Request(silo, round, torch.zeros(260), {})
        return silo_with(raw_samples(), index=silo).train(request, worker()).update

    assert torch.equal(update(2, 7), update(2, 7))
    assert not torch.equal(update(2, 7), update(2, 8))
    assert not torch.equal(update(2, 7), update(1, 7))


def test_a_silo_corrects_with_the_state_it_was_sent() -> None:
    """FedDyn adds alpha lambda_i to each of six steps of .1; with a tiny alpha the pull is negligible."""
    algorithm = FedDyn(alpha=1e-6)

    def update(dual: float) -> Tensor:
        request = Request(2, 7, torch.zeros(260), {"dual": torch.full((260,), dual)})
        return silo_with(raw_samples(), algorithm).train(request, worker()).update

    difference = update(1e4) - update(0.0)
    assert difference.mean().item() == pytest.approx(-6 * 0.1 * 1e-2, rel=0.05)


def test_a_silo_that_diverges_says_who_and_when() -> None:
    request = Request(2, 7, torch.full((260,), float("inf")), {})
    with pytest.raises(DivergenceError, match=r"^silo 2, round 8: "):
        silo_with(raw_samples()).train(request, worker())


# --- the network as one vector


def test_writing_to_the_vector_changes_the_module() -> None:
    module = nn.Linear(2, 2)
    network = FlatNetwork(module)
    network.load(torch.arange(6.0))
    assert module.weight.tolist() == [[0, 1], [2, 3]]
    assert module.bias.tolist() == [4, 5]
    with torch.no_grad():
        module.bias[1] = 7
    assert network.vector.tolist() == [0, 1, 2, 3, 4, 7]


def test_the_vector_starts_with_the_modules_own_weights() -> None:
    module = small_network()
    before = nn.utils.parameters_to_vector(module.parameters()).detach()
    assert torch.equal(FlatNetwork(module).vector, before)


def test_weights_are_a_copy() -> None:
    network = FlatNetwork(nn.Linear(1, 1))
    network.load(torch.tensor([1.0, 2.0]))
    copied = network.weights()
    network.load(torch.tensor([3.0, 4.0]))
    assert copied.tolist() == [1, 2]


def test_parameters_are_views_of_the_vector_and_gradients_are_in_its_order() -> None:
    module = small_network()
    network = FlatNetwork(module)
    loss = cross_entropy(module(torch.ones(1, 3)), torch.tensor([2]))
    gradients = torch.autograd.grad(loss, network.parameters)
    network.collect(gradients)
    start = 0
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        end = start + parameter.numel()
        assert parameter.data_ptr() == network.vector[start:end].data_ptr()
        assert torch.equal(gradient.flatten(), network.gradient[start:end])
        start = end
    assert start == len(network.vector)
    assert network.gradient.any()


def test_frozen_parameters_are_left_alone() -> None:
    module = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    module[0].requires_grad_(False)
    before = module[0].weight.clone()
    weights, _ = train(module)
    assert len(weights) == 5 * 4 + 4
    assert len(FlatNetwork(module).vector) == sum(parameter.numel() for parameter in module[2].parameters())
    assert set(FlatNetwork(module).tensors()) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert torch.equal(module[0].weight, before)
    assert module[0].weight.grad is None


def test_a_parameter_used_twice_is_one_stretch_of_the_vector() -> None:
    shared = nn.Linear(3, 3)
    weights, _ = train(nn.Sequential(shared, nn.Tanh(), shared, nn.Linear(3, 4)))
    assert len(weights) == 12 + 16


def test_a_network_without_parameters_is_refused() -> None:
    with pytest.raises(SettingError, match="Tanh: has no parameter to train"):
        FlatNetwork(nn.Tanh())


def test_what_is_saved_of_a_network_is_its_state_dict() -> None:
    network = FlatNetwork(nn.Linear(2, 1))
    network.load(torch.tensor([1.0, 2.0, 3.0]))
    saved = {name: tensor.tolist() for name, tensor in network.tensors().items()}
    assert saved == {"weight": [[1, 2]], "bias": [3]}
