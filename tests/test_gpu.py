"""On a GPU: compare our kernels with torch's, recorded steps with plain steps, and parallel workers with one."""

import copy
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d, relu

from feddig import demo_experiment, run
from feddig.core.algorithms import Correction
from feddig.core.cuda_graphs import RecordedStep, Recorder
from feddig.core.local import Effort, Trained, Trainee, train_locally
from feddig.core.plus import build_expert, train_expert
from feddig.core.samples import DigestSource, ImageSource, RawSamples, Samples
from feddig.core.workers import Worker, WorkerPool
from feddig.data.dataset import Images
from feddig.digest.digest import Digest
from feddig.experiment.setup import prepare_device
from feddig.gpu.fused import ConvPool, use_kernels
from feddig.models.flat import FlatNetwork
from feddig.models.networks import build_classifier, build_guidance
from feddig.runs.build import build_simulation
from feddig.settings import TrainingSettings

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CUDA = torch.device("cuda")
CODE, SHAPE, CLASSES = (4, 8, 8), (1, 32, 32), 10


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    prepare_device("fp32", CUDA)
    use_kernels(True)
    yield
    use_kernels(False)


def error(found: Tensor, wanted: Tensor) -> float:
    found, wanted = found.detach().double(), wanted.detach().double()
    return float((found - wanted).norm() / wanted.norm())


# --- kernels


@pytest.mark.parametrize("size", [(3, 8, 32), (257, 16, 16)])
@pytest.mark.parametrize(("inputs", "outputs"), [(1, 64), (1, 16), (3, 64), (3, 16), (4, 32), (64, 128)])
@pytest.mark.parametrize("bf16", [False, True])
def test_the_stage_and_its_gradients_are_torchs(
    size: tuple[int, int, int], inputs: int, outputs: int, bf16: bool
) -> None:
    torch.manual_seed(0)
    count, height, width = size
    stage = ConvPool(inputs, outputs).to(CUDA).to(memory_format=torch.channels_last)
    images = torch.rand(count, inputs, height, width, device=CUDA, requires_grad=True)
    toward = torch.randn(count, outputs, height // 2, width // 2, device=CUDA)
    if bf16:  # both get the same rounded numbers, so that the maxima and ties are the same
        stage, toward = stage.bfloat16(), toward.bfloat16()
        images = images.detach().bfloat16().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        found = stage(images)
    gradients = torch.autograd.grad(found, [images, stage.weight, stage.bias], toward)
    exact = copy.deepcopy(stage).double()
    there = images.detach().double().requires_grad_()
    wanted = relu(max_pool2d(nn.Conv2d.forward(exact, there), 2))
    expected = torch.autograd.grad(wanted, [there, exact.weight, exact.bias], toward.double())
    assert found.dtype == (torch.bfloat16 if bf16 else torch.float32)
    limit = 1e-2 if bf16 else 1e-5
    assert error(found, wanted) < limit
    # where two pixels are equal up to rounding, either may be the maximum that receives the gradient
    for gradient, one in zip(gradients, expected, strict=True):
        assert error(gradient, one) < (0.12 if bf16 else 0.01)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("bf16", [False, True])
def test_painting_and_its_gradients_are_torchs(channels: int, bf16: bool) -> None:
    torch.manual_seed(0)
    producer = build_guidance("deconvolution", CODE, (channels, 32, 32)).to(CUDA)
    if bf16:
        producer = producer.bfloat16()
    features = 3 * torch.rand(37, *CODE, device=CUDA)
    with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
        found = producer(features)
    toward = torch.randn_like(found)
    gradients = torch.autograd.grad(found, list(producer.parameters()), toward)
    exact = copy.deepcopy(producer).double()
    wanted = exact.layers(features.double())
    expected = torch.autograd.grad(wanted, list(exact.parameters()), toward.double())
    assert error(found, wanted) < (1e-2 if bf16 else 1e-5)
    for gradient, one in zip(gradients, expected, strict=True):
        assert error(gradient, one) < (3e-2 if bf16 else 1e-4)


def test_sizes_that_do_not_fit_the_kernels_use_torch() -> None:
    stage = ConvPool(1, 12).to(CUDA)
    assert stage(torch.rand(2, 1, 9, 9, device=CUDA)).shape == (2, 12, 4, 4)


# --- recorded steps


def image_source(count: int = 700) -> ImageSource:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, CLASSES, count)
    pixels = draw.integers(0, 120, (count, 1, 28, 28)) + 10 * labels[:, None, None, None]
    encoder = nn.Sequential(nn.AvgPool2d(4), nn.Conv2d(1, 4, 1)).to(CUDA).requires_grad_(False)
    return ImageSource(Images(pixels.astype(np.uint8), labels), encoder, CUDA)


def classifier(*, bf16: bool = False) -> FlatNetwork:
    torch.manual_seed(1)
    return FlatNetwork(build_classifier("size-matched", SHAPE, CLASSES, CODE), CUDA, bf16=bf16)


def train(
    source: ImageSource, training: TrainingSettings, correction: Correction | None, recorder: Recorder | None
) -> tuple[Tensor, Trained]:
    network = classifier(bf16=training.precision == "bf16")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for silo in (0, 1):  # the second call uses the recording of the first
            trained = train_locally(
                Trainee(network, training.lr),
                RawSamples(source, np.arange(silo, len(source), 2)),
                training,
                effort=Effort(2),
                stream=(0, "test", silo),
                correction=correction,
                recorder=recorder,
                who="test",
            )
        stream.synchronize()
    return network.weights(), trained


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["plain", "corrected", "clipped"])
def test_recorded_and_plain_steps_give_the_same_weights(precision: str, kind: str) -> None:
    training = TrainingSettings(batch=64, lr=0.01, precision=precision)
    correction = None
    if kind == "corrected":
        shift = 0.001 * torch.randn(len(classifier().vector), device=CUDA)
        correction = Correction(pull=0.1, shift=shift)
    if kind == "clipped":
        training = replace(training, clip_norm=0.5, weight_decay=1e-3)
    source = image_source()
    plain, one = train(source, training, correction, None)
    recorded, other = train(source, training, correction, Recorder())
    moved = error(classifier().vector, plain)
    # 350 samples in batches of 64: five full batches and a short one, twice
    assert one.steps == other.steps == 12
    assert other.loss == pytest.approx(one.loss, rel=1e-3)
    assert moved > 1e-3
    # the last batch of a pass is a masked mean, which rounds differently from a mean over all samples
    assert error(recorded, plain) < moved * (0.05 if precision == "bf16" else 0.02)


def digests() -> list[Digest]:
    draw = torch.Generator().manual_seed(0)
    labels = torch.rand(90, CLASSES, generator=draw)
    facts = {"samples_per_digest": 4}
    return [
        Digest(silo, torch.rand(90, *CODE, generator=draw), labels / labels.sum(1, keepdim=True), facts).to(
            CUDA
        )
        for silo in (0, 1)
    ]


def test_a_recorded_joint_update_trains_both_networks_as_a_plain_one() -> None:
    found = []
    for recorder in (None, Recorder()):
        network = classifier()
        torch.manual_seed(2)
        producer = FlatNetwork(build_guidance("deconvolution", CODE, SHAPE), CUDA)
        before = producer.weights()
        with torch.cuda.stream(torch.cuda.Stream()):
            train_locally(
                Trainee(network, 0.01),
                Samples(DigestSource(digests(), producer.module, train_guidance=True)),
                TrainingSettings(batch=64, precision="fp32"),
                effort=Effort(3),
                stream=(0, "joint"),
                companions=[Trainee(producer, 0.1)],
                recorder=recorder,
                who="test",
            )
            torch.cuda.synchronize()
        found.append((network.weights(), producer.weights() - before))
    assert float(found[0][1].norm()) > 0
    assert error(found[1][0], found[0][0]) < 1e-5
    assert error(found[1][1], found[0][1]) < 1e-2


def test_a_network_that_cannot_be_recorded_is_trained_step_by_step(caplog: pytest.LogCaptureFixture) -> None:
    class Synchronises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(1024, CLASSES)

        def forward(self, images: Tensor, features: Tensor) -> Tensor:
            scale = 1.0 if float(images.mean()) > 0 else 2.0  # waits for the GPU during the step
            return scale * self.head(images.flatten(1))

    source, recorder = image_source(), Recorder()
    network = FlatNetwork(Synchronises(), CUDA)
    before = network.weights()
    with torch.cuda.stream(torch.cuda.Stream()):
        trained = train_locally(
            Trainee(network, 0.01), RawSamples(source, np.arange(100)), TrainingSettings(batch=64),
            effort=Effort(), stream=(0, "test"), recorder=recorder, who="test",
        )  # fmt: skip
        torch.cuda.synchronize()
    assert trained.steps == 2
    assert not torch.equal(network.vector, before)
    assert "cannot be recorded" in caplog.text


@pytest.mark.parametrize("fault", ["wrong", "broken"])
def test_kernels_that_do_not_work_here_are_noticed_and_not_used(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from feddig.gpu.kernels import conv_pool

    true = conv_pool.convolve_pool_gradients

    def faulty(*arguments: Tensor, **options: bool) -> tuple[Tensor | None, Tensor, Tensor]:
        if fault == "broken":
            raise ValueError("no such instruction")
        of_images, of_weight, of_bias = true(*arguments, **options)
        return of_images, of_weight.flip(0), of_bias

    monkeypatch.setattr(conv_pool, "convolve_pool_gradients", faulty)
    source, training = image_source(), TrainingSettings(batch=64, lr=0.01, precision="fp32")
    recorded, _ = train(source, training, None, Recorder())
    assert "our kernels do not work here" in caplog.text
    use_kernels(False)
    plain, _ = train(source, training, None, None)
    assert error(recorded, plain) < 1e-3


def test_a_network_whose_samples_see_each_other_takes_its_short_batch_alone() -> None:
    def build() -> FlatNetwork:
        torch.manual_seed(3)
        norm = nn.BatchNorm1d(1024, track_running_stats=False)
        return FlatNetwork(OfImages(nn.Sequential(nn.Flatten(), norm, nn.Linear(1024, CLASSES))), CUDA)

    class OfImages(nn.Module):
        def __init__(self, layers: nn.Module) -> None:
            super().__init__()
            self.layers = layers

        def forward(self, images: Tensor, features: Tensor) -> Tensor:
            return self.layers(images)

    source, weights = image_source(), []
    for recorder in (None, Recorder()):
        network = build()
        with torch.cuda.stream(torch.cuda.Stream()):
            train_locally(
                Trainee(network, 0.1), RawSamples(source, np.arange(70)), TrainingSettings(batch=64),
                effort=Effort(), stream=(0, "test"), recorder=recorder, who="test",
            )  # fmt: skip
            torch.cuda.synchronize()
        weights.append(network.weights())
    assert error(weights[1], weights[0]) < 1e-5


def test_parallel_workers_give_what_one_worker_gives() -> None:
    source, training = image_source(), TrainingSettings(batch=64, lr=0.01, precision="fp32")
    start = classifier().weights()

    def updates(count: int) -> list[Tensor]:
        workers = WorkerPool([Worker(classifier(), Recorder(), torch.cuda.Stream()) for _ in range(count)])

        def job(silo: int, worker: Worker) -> Tensor:
            worker.network.load(start)
            train_locally(
                Trainee(worker.network, training.lr), RawSamples(source, np.arange(silo, 700, 8)), training,
                effort=Effort(3), stream=(0, "test", silo), recorder=worker.recorder, who="test",
            )  # fmt: skip
            return worker.network.vector - start

        jobs = [workers.submit(lambda worker, silo=silo: job(silo, worker)) for silo in range(8)]  # type: ignore[misc]
        return [future.result().result for future in jobs]

    for alone, beside in zip(updates(1), updates(4), strict=True):
        assert error(beside, alone) < 1e-3


def test_an_image_set_too_large_for_the_gpu_is_read_from_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    held = image_source()
    monkeypatch.setattr("feddig.core.samples.LARGEST_SHARE", 0.0)
    read = image_source()
    assert held.resident
    assert not read.resident
    rows = torch.tensor([5, 1, 699], device=CUDA)
    assert torch.equal(held.images(rows), read.images(rows))
    step = Recorder().step(
        [Trainee(classifier(), 0.1)], read, TrainingSettings(precision="fp32"), Correction()
    )
    assert not isinstance(step, RecordedStep)


@pytest.mark.parametrize("algorithm", ["feddig+feddyn", "feddig-plus"])
def test_a_silo_on_a_gpu_trains_a_model_that_came_over_the_wire(algorithm: str) -> None:
    experiment = demo_experiment([f"algorithm.name={algorithm}", "data.limit=1200"])
    simulation = build_simulation(experiment, device="cuda")
    moderator, silo = simulation.moderator, simulation.silos[0]
    moderator.hold([simulation.make_digest(silo)])
    request = moderator.push(0)[0]
    counts = request.class_counts
    sent = replace(
        request,
        weights=request.weights.cpu(),
        state={name: one.cpu() for name, one in request.state.items()},
        class_counts=None if counts is None else counts.cpu(),
    )
    here, there = (silo.train(each, simulation.party.workers.first) for each in (request, sent))
    assert torch.equal(here.update, there.update)


# --- FedDig+


def test_the_digest_expert_learns_the_same_on_a_gpu_as_on_a_cpu() -> None:
    stream = torch.Generator().manual_seed(0)
    labels = nn.functional.one_hot(torch.randint(3, (300, 2), generator=stream), 3).float()
    features = 100 + 10 * labels.mean(1) @ torch.eye(3, 4) + torch.randn(300, 4, generator=stream)
    digest = Digest(0, features.view(300, 4, 1, 1), labels.mean(1), {"samples_per_digest": 2})
    centres = (100 + 10 * torch.eye(3, 4)).view(3, 4, 1, 1)
    found = []
    for device in (torch.device("cpu"), CUDA):
        expert = FlatNetwork(build_expert((4, 1, 1), 3), device)
        train_expert(expert, [digest.to(device)], noise_aware=True, seed=0)
        found.append(expert.module(centres.to(device)).softmax(1).detach().cpu())
    assert found[0].argmax(1).tolist() == [0, 1, 2]
    assert float((found[0] - found[1]).abs().max()) < 0.05


def test_feddig_plus_runs_on_a_gpu(tmp_path: Path) -> None:
    experiment = demo_experiment(["algorithm.name=feddig-plus", "training.rounds=4", "data.limit=1200"])
    on_gpu, on_cpu = (run(experiment, tmp_path / device, device=device) for device in ("cuda", "cpu"))
    assert on_gpu["accuracy"]["final"] == pytest.approx(on_cpu["accuracy"]["final"], abs=3)
