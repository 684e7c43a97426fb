"""The networks: their sizes, users' own ones, and the checks before the first round."""

import copy
import importlib
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from conftest import draw_tiny_dataset
from feddig import Dataset, Experiment, Networks, dataset_from_arrays
from feddig.errors import SettingError
from feddig.models.encoder import encoder_hash
from feddig.models.networks import Classifier, build_classifier, build_guidance, check_networks
from feddig.runs.build import build_simulation
from feddig.runs.run import run

GREY, COLOUR, CODE = (1, 32, 32), (3, 32, 32), (4, 8, 8)


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


def weights_of(network: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in network.parameters()])


# --- the built-in networks


@pytest.mark.parametrize(
    ("code", "count", "megabytes"), [(None, 1_192_318, "4.77"), (CODE, 1_443_614, "5.77")]
)
def test_the_size_matched_classifier_is_as_large_as_the_papers(
    code: tuple[int, ...] | None, count: int, megabytes: str
) -> None:
    """For 62 classes of grey 32x32 images the paper states 4.77 MB without F_D and 5.77 MB with it."""
    network = build_classifier("size-matched", GREY, 62, code)
    assert parameters(network) == count
    assert f"{count * 4 / 1e6:.2f}" == megabytes


def test_the_extractors_give_2048_and_128_numbers() -> None:
    network = build_classifier("size-matched", GREY, 62, CODE)
    assert isinstance(network, Classifier)
    assert network.digest is not None
    assert network.raw(torch.zeros(2, *GREY)).flatten(1).shape == (2, 2048)
    assert network.digest(torch.zeros(2, *CODE)).flatten(1).shape == (2, 128)


@pytest.mark.parametrize("name", ["size-matched", "small"])
@pytest.mark.parametrize("image", [GREY, (3, 40, 24)])
@pytest.mark.parametrize("code", [None, CODE, (4, 4, 4), (1280, 1, 1), (10,)])
def test_it_is_built_for_the_images_and_the_code(
    name: str, image: tuple[int, int, int], code: tuple[int, ...] | None
) -> None:
    network = build_classifier(name, image, 5, code)
    inputs = [torch.rand(2, *shape) for shape in (image, code) if shape is not None]
    assert network(*inputs).shape == (2, 5)
    check_networks(network, None, image_shape=image, feature_shape=code, classes=5)


def test_small_is_small() -> None:
    assert parameters(build_classifier("small", GREY, 10, CODE)) < 80_000


def test_image_and_feature_both_count() -> None:
    torch.manual_seed(0)
    network = build_classifier("small", GREY, 5, CODE)
    images, features = torch.rand(2, *GREY), torch.rand(2, *CODE)
    logits = network(images, features)
    assert not torch.allclose(network(1 - images, features), logits)
    assert not torch.allclose(network(images, 1 - features), logits)
    with pytest.raises(ValueError, match="needs features next to the images"):
        network(images)


def test_the_plain_classifier_takes_images_alone() -> None:
    network = build_classifier("small", GREY, 5, None)
    images = torch.rand(2, *GREY)
    assert torch.equal(network(images), network(images, torch.rand(2, *CODE)))


@pytest.mark.parametrize("image", [GREY, COLOUR])
def test_guidance_has_the_shape_of_an_image_and_its_range(image: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    guidance = build_guidance("deconvolution", CODE, image)
    made = guidance(torch.randn(3, *CODE) * 100)
    assert made.shape == (3, *image)
    assert 0 <= made.min() < 0.1
    assert 0.9 < made.max() <= 1
    assert parameters(guidance) == 4 * 16 * 4 + 16 + 16 * image[0] * 4 + image[0]


def test_deconvolution_needs_a_code_in_three_dimensions() -> None:
    with pytest.raises(
        SettingError, match=r"model.guidance: 'deconvolution' needs .* the encoder gives \(10,\)"
    ):
        build_guidance("deconvolution", (10,), GREY)


# --- whether the networks fit together


def check(classifier: nn.Module, guidance: nn.Module | None = None, **shapes: object) -> None:
    fit: dict[str, object] = {"image_shape": GREY, "feature_shape": CODE, "classes": 5, **shapes}
    check_networks(classifier, guidance, **fit)  # type: ignore[arg-type]


class Lambda(nn.Module):
    """A network that calls a given function."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function, self.scale = function, nn.Parameter(torch.ones(()))

    def forward(self, *inputs: Tensor) -> object:
        return self.function(*inputs)


def raising(error: Exception) -> Callable[..., object]:
    def forward(*inputs: Tensor) -> object:
        raise error

    return forward


FITTING = Lambda(lambda images, features: torch.zeros(len(images), 5))


def test_networks_that_fit_pass() -> None:
    guidance = build_guidance("deconvolution", CODE, GREY)
    before = copy.deepcopy(guidance.state_dict())
    check(FITTING, guidance)
    assert all(torch.equal(tensor, before[name]) for name, tensor in guidance.state_dict().items())


@pytest.mark.parametrize(
    ("function", "complaint"),
    [
        (
            lambda images, features: torch.zeros(len(images), 4),
            r"model.classifier: gives \(4,\) for an image, but there are 5 classes; make its last layer 5 wide",
        ),
        (lambda images, features: torch.zeros(1, 5), r"model.classifier: gives \(5,\) for an image"),
        (lambda images, features: torch.zeros(len(images), 5, 1), r"model.classifier: gives \(5, 1\)"),
        (
            lambda images, features: torch.zeros(len(images), 5).long(),
            r"model.classifier: gives Tensor, not a tensor of floats",
        ),
        (
            lambda images, features: (torch.zeros(len(images), 5),),
            r"model.classifier: gives tuple, not a tensor of floats",
        ),
        (
            lambda images: torch.zeros(2, 5),
            r"model.classifier: fails on a batch of two zero samples: .* takes 1",
        ),
    ],
)
def test_a_classifier_that_does_not_fit_is_refused(function: Callable[..., object], complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        check(Lambda(function))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RuntimeError("odd\nlong story"), "RuntimeError: odd"),
        (ValueError(), "ValueError"),
        (AssertionError("odd"), "AssertionError: odd"),
        (KeyError("odd"), "KeyError: 'odd'"),
        (AttributeError("odd"), "AttributeError: odd"),
    ],
)
def test_any_error_of_a_forward_is_one_line_that_names_the_setting(error: Exception, reason: str) -> None:
    with pytest.raises(SettingError) as refused:
        check(Lambda(raising(error)))
    assert str(refused.value) == f"model.classifier: fails on a batch of two zero samples: {reason}"
    with pytest.raises(SettingError) as refused:
        build_classifier("small", GREY, 5, None, raw=Lambda(raising(error)))
    assert str(refused.value) == f"model.classifier: F_R does not take inputs of shape (1, 32, 32): {reason}"


def test_guidance_of_another_shape_is_refused_with_both_shapes() -> None:
    with pytest.raises(
        SettingError,
        match=r"model.guidance: gives \(1, 32, 32\) for a code of \(4, 8, 8\), but images are \(3, 32, 32\)",
    ):
        check(FITTING, build_guidance("deconvolution", CODE, GREY), image_shape=COLOUR)
    with pytest.raises(
        SettingError, match=r"model.guidance: fails on a batch of two zero samples: RuntimeError: odd"
    ):
        check(FITTING, Lambda(raising(RuntimeError("odd"))))


def with_norm(norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Flatten(), nn.LazyLinear(5))


def test_running_averages_are_refused_with_a_remedy() -> None:
    with pytest.raises(
        SettingError,
        match=r"buffer '1.running_mean' changes in training.*use GroupNorm, or BatchNorm with track_",
    ):
        check(with_norm(nn.BatchNorm2d(4)), feature_shape=None)


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.BatchNorm2d(4, track_running_stats=False)])
def test_the_remedies_help(norm: nn.Module) -> None:
    network = with_norm(norm)
    check(network, feature_shape=None)
    assert not dict(network.named_buffers())  # no buffer is left that training could change


def test_a_guidance_producer_with_running_averages_is_refused_too() -> None:
    guidance = nn.Sequential(build_guidance("deconvolution", CODE, GREY), nn.BatchNorm2d(1))
    with pytest.raises(SettingError, match=r"model.guidance: its buffer '1.running_mean'"):
        check(FITTING, guidance)


# --- a user's own networks, by name

OWN = """
import torch
from torch import nn

calls = []

class Both(nn.Module):
    def __init__(self, image_shape, classes, feature_shape):
        super().__init__()
        self.linear = nn.LazyLinear(classes)

    def forward(self, images, features=None):
        parts = [images] if features is None else [images, features]
        return self.linear(torch.cat([part.flatten(1) for part in parts], 1))

def classifier(*arguments):
    calls.append(arguments)
    network = Both(*arguments)
    network(*[torch.zeros(1, *shape) for shape in (arguments[0], arguments[2]) if shape])
    return network

def guidance(feature_shape, image_shape):
    calls.append((feature_shape, image_shape))
    size = torch.Size(image_shape).numel()
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(feature_shape).numel(), size), nn.Unflatten(1, image_shape))

def nothing(*arguments):
    return "a network"

def broken(*arguments):
    raise KeyError("depth")
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write the module above under a new name and return the name."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_classifier_and_a_guidance_producer_by_name_train(
    own: str, tiny_experiment: Callable[..., Experiment], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    experiment = tiny_experiment(
        model={"classifier": f"{own}:classifier", "guidance": f"{own}:guidance"}, training={"rounds": 5}
    )
    summary = run(experiment, tmp_path / "run", device="cpu", dataset=tiny_dataset)
    calls = importlib.import_module(own).calls
    assert calls == [((1, 16, 16), 4, (4, 4, 4)), ((4, 4, 4), (1, 16, 16))]
    assert summary["bytes"]["update"] == [4 * (4 * (256 + 64) + 4)] * 3
    assert math.isfinite(summary["accuracy"]["final"])


def test_the_plain_model_gets_no_code_shape(
    own: str, tiny_experiment: Callable[..., Experiment], tiny_dataset: Dataset
) -> None:
    experiment = tiny_experiment(model={"classifier": f"{own}:classifier"}, algorithm={"name": "fedavg"})
    simulation = build_simulation(experiment, device="cpu", dataset=tiny_dataset)
    assert importlib.import_module(own).calls == [((1, 16, 16), 4, None)]
    assert simulation.moderator.guidance_producer is None


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        (
            "large",
            r"model.classifier: 'large' is not known; choose size-matched, small, mobilenet-v2 or a .safetensors",
        ),
        (
            "no_such_module:network",
            r"model.classifier: 'no_such_module:network' cannot be imported \(No module",
        ),
        (
            "math:network",
            r"model.classifier: 'math:network' cannot be imported .*; check the name and PYTHONPATH",
        ),
        (":network", r"model.classifier: ':network' cannot be imported"),
        ("OWN:broken", r"model.classifier: 'own_\w+:broken' failed: KeyError: 'depth'"),
        ("OWN:nothing", r"model.classifier: 'own_\w+:nothing' returned str, not a torch.nn.Module"),
    ],
)
def test_a_name_that_cannot_be_used_is_refused(own: str, name: str, complaint: str) -> None:
    with pytest.raises(SettingError, match=complaint):
        build_classifier(name.replace("OWN", own), GREY, 5, None)
    with pytest.raises(
        SettingError, match=r"model.guidance: 'x' is not known; choose deconvolution, or write"
    ):
        build_guidance("x", CODE, GREY)


# --- a user's own networks, as modules


def own_extractor() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(1, 3, 4, stride=4), nn.ReLU())


def test_a_users_raw_extractor_replaces_f_r(
    tiny_experiment: Callable[..., Experiment], tiny_dataset: Dataset
) -> None:
    mine = own_extractor()
    simulation = build_simulation(
        tiny_experiment(), device="cpu", dataset=tiny_dataset, networks=Networks(raw_extractor=mine)
    )
    used = simulation.network.module.raw
    assert isinstance(used, nn.Sequential)
    assert used is not mine
    assert torch.equal(weights_of(used), weights_of(mine))
    # the head takes 3 x 4 x 4 numbers of this extractor and 32 of F_D
    assert simulation.network.module.head[0].in_features == 3 * 4 * 4 + 32


def test_a_raw_extractor_for_other_images_is_refused(
    tiny_experiment: Callable[..., Experiment], tiny_dataset: Dataset
) -> None:
    with pytest.raises(
        SettingError, match=r"model.classifier: F_R does not take inputs of shape \(1, 16, 16\)"
    ):
        build_simulation(
            tiny_experiment(), device="cpu", dataset=tiny_dataset,
            networks=Networks(raw_extractor=nn.Conv2d(3, 1, 3)),
        )  # fmt: skip


class OwnClassifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(256 + 64, 4)

    def forward(self, images: Tensor, features: Tensor) -> Tensor:
        logits: Tensor = self.linear(torch.cat([images.flatten(1), features.flatten(1)], 1))
        return logits


def test_a_run_trains_copies_of_a_users_modules(
    tiny_experiment: Callable[..., Experiment], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    mine = Networks(
        encoder=nn.Sequential(nn.Conv2d(1, 4, 4, stride=4), nn.ReLU()),
        guidance=nn.Sequential(nn.ConvTranspose2d(4, 1, 4, stride=4), nn.Sigmoid()),
        classifier=OwnClassifier(),
    )
    modules = [module for module in (mine.encoder, mine.guidance, mine.classifier) if module is not None]
    before = [weights_of(module) for module in modules]
    run(tiny_experiment(training={"rounds": 4}), tmp_path, device="cpu", dataset=tiny_dataset, networks=mine)
    for module, weights in zip(modules, before, strict=True):
        assert torch.equal(weights_of(module), weights)
        assert module.training
        assert all(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())


def test_a_users_modules_are_used(tiny_experiment: Callable[..., Experiment], tiny_dataset: Dataset) -> None:
    mine = Networks(
        encoder=nn.Sequential(nn.Conv2d(1, 4, 4, stride=4), nn.ReLU()),
        guidance=nn.Sequential(nn.ConvTranspose2d(4, 1, 4, stride=4), nn.Sigmoid()),
        classifier=OwnClassifier(),
    )
    assert mine.encoder is not None
    assert mine.guidance is not None
    assert mine.classifier is not None
    simulation = build_simulation(tiny_experiment(), device="cpu", dataset=tiny_dataset, networks=mine)
    assert torch.equal(simulation.moderator.weights, weights_of(mine.classifier))
    assert simulation.moderator.guidance_producer is not None
    assert torch.equal(simulation.moderator.guidance_producer.vector, weights_of(mine.guidance))
    assert simulation.make_digest(simulation.silos[0]).facts["encoder"] == encoder_hash(mine.encoder)


def test_an_encoder_that_returns_the_images_is_used(
    tiny_experiment: Callable[..., Experiment], tiny_dataset: Dataset
) -> None:
    simulation = build_simulation(
        tiny_experiment(algorithm={"name": "fedavg-large"}), device="cpu", dataset=tiny_dataset,
        networks=Networks(encoder=nn.Sequential()),
    )  # fmt: skip
    assert simulation.test.features is not None
    assert simulation.test.features.shape == (60, 1, 16, 16)


def test_colour_images_pass_through_all_networks(tiny_experiment: Callable[..., Experiment]) -> None:
    grey = draw_tiny_dataset()
    colour = dataset_from_arrays(
        grey.train.pixels.repeat(3, axis=1),
        grey.train.labels,
        grey.test.pixels.repeat(3, axis=1),
        grey.test.labels,
    )
    simulation = build_simulation(tiny_experiment(), device="cpu", dataset=colour)
    digest = simulation.make_digest(simulation.silos[0])
    assert simulation.moderator.guidance_producer is not None
    guidance = simulation.moderator.guidance_producer.module(digest.features)
    assert guidance.shape[1:] == (3, 16, 16)
    assert simulation.network.module(guidance, digest.features).shape == (len(digest), 4)


# --- initial weights


def test_the_seed_alone_decides_the_initial_weights(
    tiny_experiment: Callable[..., Experiment], tiny_dataset: Dataset
) -> None:
    def build(**sections: object) -> tuple[Tensor, Tensor]:
        torch.rand(7)  # draws before must not matter
        moderator = build_simulation(
            tiny_experiment(**sections), device="cpu", dataset=tiny_dataset  # type: ignore[arg-type]
        ).moderator  # fmt: skip
        assert moderator.guidance_producer is not None
        return moderator.weights, moderator.guidance_producer.weights()

    first, again, other = build(), build(), build(seed=1)
    for part in (0, 1):
        assert torch.equal(first[part], again[part])
        assert not torch.equal(first[part], other[part])


def test_building_leaves_the_global_stream_alone(
    tiny_experiment: Callable[..., Experiment], tiny_dataset: Dataset
) -> None:
    before = torch.random.get_rng_state()
    build_simulation(tiny_experiment(), device="cpu", dataset=tiny_dataset)
    assert torch.equal(torch.random.get_rng_state(), before)
