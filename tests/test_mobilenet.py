"""MobileNetV2: its arithmetic, the import of weights, and its use as P_R and as F_R."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import batch_norm, conv2d, cross_entropy, interpolate, relu6

from conftest import make_tiny_experiment
from feddig import Dataset, dataset_from_arrays, run
from feddig.errors import FileFormatError, SettingError
from feddig.experiment.toml import write_experiment
from feddig.files import read_tensors, write_tensors
from feddig.models import encoder as encoder_file
from feddig.models.encoder import (
    ConvEncoder,
    check_codes,
    encoder_hash,
    feature_shape,
    load_encoder,
    save_encoder,
)
from feddig.models.mobilenet import Filter, MobileNetV2, import_mobilenet, new_mobilenet
from feddig.models.networks import Classifier, build_classifier, build_guidance, check_networks
from folders import run_feddig

COLOUR, CODE, MOBILE_CODE = (3, 32, 32), (4, 8, 8), (1280, 1, 1)
FEATURE_PARAMETERS = 2_206_816
BLOCKS = 17


def parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


# --- its arithmetic


@pytest.mark.parametrize(("side", "zeros_before"), [(8, 0), (2, 0), (5, 1), (1, 1)])
def test_same_padding_is_that_of_tensorflow(side: int, zeros_before: int) -> None:
    """At stride 2 an even side is padded with one zero at its end, an odd side with one zero at each end."""
    torch.manual_seed(0)
    layer = Filter(2, 3, 2, "same")
    images = torch.rand(1, 2, side, side)
    made = layer(images)
    places = (side + 1) // 2
    assert made.shape == (1, 3, places, places)
    assert layer.bias is not None
    for down, across in itertools.product(range(places), range(places)):
        total = layer.bias
        for row, column in itertools.product(range(3), range(3)):
            y, x = 2 * down + row - zeros_before, 2 * across + column - zeros_before
            if 0 <= y < side and 0 <= x < side:
                total = total + layer.weight[:, :, row, column] @ images[0, :, y, x]
        torch.testing.assert_close(made[0, :, down, across], total)


def test_symmetric_padding_is_one_zero_at_each_end_and_equals_same_padding_at_stride_one() -> None:
    torch.manual_seed(0)
    images = torch.rand(2, 4, 8, 8)
    layer = Filter(4, 4, 2, "symmetric", groups=4)
    expected = conv2d(images, layer.weight, layer.bias, stride=2, padding=1, groups=4)
    assert torch.equal(layer(images), expected)
    same, symmetric = Filter(4, 4, 1, "same"), Filter(4, 4, 1, "symmetric")
    same.load_state_dict(symmetric.state_dict())
    assert torch.equal(same(images), symmetric(images))


def test_it_has_the_size_of_the_published_network() -> None:
    """The published network has 3,504,872 parameters, 1,281,000 of them in its head for 1000 classes.

    BatchNorm has a scale and a shift for each of its 17,056 channels; folded, a bias is left for each:
    3,504,872 - 17,056 = 3,487,816, and without the head 2,206,816.
    """
    network = MobileNetV2()
    channels = sum(layer.out_channels for layer in network.modules() if isinstance(layer, nn.Conv2d))
    assert channels == 17_056
    assert parameters(network) == 3_504_872 - channels - (1280 * 1000 + 1000) == FEATURE_PARAMETERS
    assert len(network.blocks) == BLOCKS


@pytest.mark.parametrize(
    ("padding", "image"), [("same", COLOUR), ("symmetric", (3, 16, 16)), ("same", (3, 72, 40))]
)
def test_the_code_is_1280_numbers_not_below_zero(padding: str, image: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    network = new_mobilenet()
    shaped = MobileNetV2(padding, "imagenet").eval()
    shaped.load_state_dict(network.state_dict())
    assert feature_shape(shaped, image) == MOBILE_CODE
    with torch.no_grad():
        codes = shaped(torch.rand(4, *image))
    assert 0 == codes.min() < codes.max() <= 6
    assert codes.std(0).mean() > 0.01


def test_enlarging_is_part_of_the_network() -> None:
    torch.manual_seed(0)
    plain = new_mobilenet().eval()
    threefold = MobileNetV2(plain.padding, plain.normalisation, 3).eval()
    threefold.load_state_dict(plain.state_dict())
    images = torch.rand(2, *COLOUR)
    larger = interpolate(images, size=96, mode="bilinear")
    with torch.no_grad():
        assert torch.equal(threefold(images), plain(larger))
    assert encoder_hash(threefold) != encoder_hash(plain)


def test_only_known_kinds_exist() -> None:
    for odd in (("valid", "centred", 1), ("same", "none", 1), ("same", "centred", 0)):
        with pytest.raises(ValueError, match="no such kind of MobileNetV2"):
            MobileNetV2(*odd)


# --- weights from torchvision, whose names are written out here because it is no dependency


def torchvision_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name every array of torchvision's mobilenet_v2 state dict, with its shape."""

    def unit(convolution: str, norm: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield f"{convolution}.weight", shape
        for part in ("weight", "bias", "running_mean", "running_var"):
            yield f"{norm}.{part}", shape[:1]
        yield f"{norm}.num_batches_tracked", ()

    yield from unit("features.0.0", "features.0.1", (32, 3, 3, 3))
    yield from unit("features.1.conv.0.0", "features.1.conv.0.1", (32, 1, 3, 3))
    yield from unit("features.1.conv.1", "features.1.conv.2", (16, 32, 1, 1))
    outputs = [16, *[24] * 2, *[32] * 3, *[64] * 4, *[96] * 3, *[160] * 3, 320]
    for number, (before, after) in enumerate(itertools.pairwise(outputs), start=2):
        place, wide = f"features.{number}.conv", 6 * before
        yield from unit(f"{place}.0.0", f"{place}.0.1", (wide, before, 1, 1))
        yield from unit(f"{place}.1.0", f"{place}.1.1", (wide, 1, 3, 3))
        yield from unit(f"{place}.2", f"{place}.3", (after, wide, 1, 1))
    yield from unit("features.18.0", "features.18.1", (1280, 320, 1, 1))
    yield "classifier.1.weight", (1000, 1280)
    yield "classifier.1.bias", (1000,)


def draw_torchvision_weights() -> dict[str, np.ndarray]:
    """Draw weights with running statistics as if it had been trained."""
    stream = np.random.default_rng(0)

    def draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
        if name.endswith("num_batches_tracked"):
            return np.array(7)
        if len(shape) > 1:
            return stream.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
        spread = name.endswith((".weight", "running_var"))
        return stream.uniform(0.5, 1.5, shape) if spread else stream.normal(0, 0.1, shape)

    return {
        name: draw(name, shape).astype(np.int64 if shape == () else np.float32)
        for name, shape in torchvision_shapes()
    }


TORCHVISION = draw_torchvision_weights()


def unfolded(weights: dict[str, np.ndarray], images: Tensor) -> Tensor:
    """Compute the features as torchvision's network does in eval mode, with BatchNorm."""
    state = {name: torch.from_numpy(array) for name, array in weights.items()}

    def unit(seen: Tensor, convolution: str, norm: str, stride: int = 1, groups: int = 1) -> Tensor:
        kernel = state[f"{convolution}.weight"]
        seen = conv2d(seen, kernel, stride=stride, padding=kernel.shape[-1] // 2, groups=groups)
        mean, variance = state[f"{norm}.running_mean"], state[f"{norm}.running_var"]
        return batch_norm(seen, mean, variance, state[f"{norm}.weight"], state[f"{norm}.bias"], eps=1e-5)

    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    seen = relu6(
        unit((images - mean.view(3, 1, 1)) / deviation.view(3, 1, 1), "features.0.0", "features.0.1", 2)
    )
    seen = relu6(unit(seen, "features.1.conv.0.0", "features.1.conv.0.1", groups=32))
    seen = unit(seen, "features.1.conv.1", "features.1.conv.2")
    for number in range(2, 18):
        place, stride = f"features.{number}.conv", 2 if number in (2, 4, 7, 14) else 1
        wide = relu6(unit(seen, f"{place}.0.0", f"{place}.0.1"))
        wide = relu6(unit(wide, f"{place}.1.0", f"{place}.1.1", stride, groups=wide.shape[1]))
        narrow = unit(wide, f"{place}.2", f"{place}.3")
        seen = seen + narrow if stride == 1 and seen.shape == narrow.shape else narrow
    return relu6(unit(seen, "features.18.0", "features.18.1")).mean((2, 3), keepdim=True)


def test_the_generator_above_names_the_published_network() -> None:
    trained = [n for n in TORCHVISION if "running" not in n and "tracked" not in n]
    assert sum(TORCHVISION[name].size for name in trained) == 3_504_872


@pytest.fixture
def torchvision_file(tmp_path: Path) -> Path:
    path = tmp_path / "torchvision.safetensors"
    save_file(TORCHVISION, path)
    return path


@pytest.mark.parametrize("side", [32, 72])
def test_folding_batch_norm_changes_nothing(torchvision_file: Path, side: int) -> None:
    torch.manual_seed(0)
    images = torch.rand(3, 3, side, side)
    network = import_mobilenet(torchvision_file).eval()
    assert network.facts["padding"] == "symmetric"
    assert network.facts["normalisation"] == "imagenet"
    with torch.no_grad():
        expected, found = unfolded(TORCHVISION, images), network(images)
    assert expected.std() > 0.1
    assert (found - expected).norm() < 1e-4 * expected.norm()


# --- weights with TensorFlow's names, already folded


def tensorflow_layers() -> list[str]:
    blocks = [f"block_{n}_{part}" for n in range(1, BLOCKS) for part in ("expand", "depthwise", "project")]
    return ["Conv1", "expanded_conv_depthwise", "expanded_conv_project", *blocks, "Conv_1"]


def draw_tensorflow_weights() -> dict[str, np.ndarray]:
    torch.manual_seed(0)
    names = [f"{layer}.{part}" for layer in tensorflow_layers() for part in ("weight", "bias")]
    values = new_mobilenet().state_dict().values()
    arrays = {n: v.half().numpy() for n, v in zip(names, values, strict=True)}
    return arrays | {
        "classifier.weight": np.zeros((1001, 1280), np.float16),
        "classifier.bias": np.zeros(1001, np.float16),
    }


TENSORFLOW = draw_tensorflow_weights()


@pytest.fixture
def tensorflow_file(tmp_path: Path) -> Path:
    path = tmp_path / "tensorflow.npz"
    np.savez(path, **TENSORFLOW)  # type: ignore[arg-type]
    return path


def test_folded_weights_are_not_changed(tensorflow_file: Path) -> None:
    network = import_mobilenet(tensorflow_file)
    assert network.facts == {
        "network": "mobilenet-v2",
        "padding": "same",
        "normalisation": "centred",
        "enlarge": "1",
    }
    found = [value for name, value in network.state_dict().items()]
    given = [array for name, array in TENSORFLOW.items() if not name.startswith("classifier")]
    for value, array in zip(found, given, strict=True):
        assert np.array_equal(value.numpy(), array)
    # these weights expect inputs in [-1, 1], so a grey of one half is 0
    first = relu6(network.stem(torch.zeros(1, *COLOUR)))
    expected = relu6(network.top(network.blocks(first))).mean((2, 3), keepdim=True)
    assert torch.equal(network(torch.full((1, *COLOUR), 0.5)), expected)


def test_an_imported_network_codes_each_image_by_itself(
    tensorflow_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_file, "ROUNDING", 1e-4)
    encoder = import_mobilenet(tensorflow_file, enlarge=2)
    check_codes(encoder, torch.rand(16, *COLOUR, generator=torch.Generator().manual_seed(0)))


def test_names_of_arrays_decide_and_not_the_file_format(tmp_path: Path, tensorflow_file: Path) -> None:
    path = tmp_path / "folded.safetensors"
    save_file(TENSORFLOW, path)
    assert encoder_hash(import_mobilenet(path)) == encoder_hash(import_mobilenet(tensorflow_file))


# --- files that are refused


def without(name: str) -> dict[str, np.ndarray]:
    return {each: array for each, array in TORCHVISION.items() if each != name}


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        (without("features.5.conv.1.1.running_var"), "features.5.conv.1.1.running_var: no such array"),
        (
            TORCHVISION | {"features.0.0.weight": np.zeros((48, 3, 3, 3), np.float32)},
            r"features.0.0.weight: has shape \(48, 3, 3, 3\), but MobileNetV2 .* has \(32, 3, 3, 3\)",
        ),
        (
            TORCHVISION | {"features.18.1.bias": np.full(1280, np.nan, np.float32)},
            "features.18.1.bias: holds numbers that are not finite",
        ),
        (
            TORCHVISION | {"features.0.1.running_var": np.full(32, -1, np.float32)},
            "features.0.1.running_var: holds variances below zero",
        ),
        (
            TORCHVISION | {"features.0.1.weight": np.full(32, 3e38, np.float32)},
            "stem.weight: numbers are too large once BatchNorm is folded",
        ),
        (
            TORCHVISION | {"features.0.0.weight": np.zeros((32, 3, 3, 3), np.int8)},
            "features.0.0.weight: holds int8, .* not quantised",
        ),
        (
            TORCHVISION | {"features.19.0.weight": np.zeros(3, np.float32)},
            "features.19.0.weight: MobileNetV2 has no such array",
        ),
        ({"weight": np.zeros(3, np.float32)}, "holds no array of MobileNetV2; names must be torchvision's"),
        ({"block_1_expand.weight": np.zeros(3, np.float32)}, "Conv1.weight: no such array"),
    ],
    ids=itertools.count(),
)
def test_a_wrong_array_is_named_with_its_file(
    tmp_path: Path, arrays: dict[str, np.ndarray], complaint: str
) -> None:
    path = tmp_path / "odd.safetensors"
    save_file(arrays, path)
    with pytest.raises(FileFormatError, match=rf"odd.safetensors: {complaint}"):
        import_mobilenet(path)


def test_damaged_files_are_named(tmp_path: Path, tensorflow_file: Path, torchvision_file: Path) -> None:
    path = tmp_path / "cut.npz"
    for content in (tensorflow_file.read_bytes()[:-100], b"", b"PK\x03\x04", b"no archive"):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=r"cut.npz: not a whole .npz file"):
            import_mobilenet(path)
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "one.npy").rename(tmp_path / "one.npz")
    with pytest.raises(FileFormatError, match=r"one.npz: holds one array"):
        import_mobilenet(tmp_path / "one.npz")

    changed = bytearray(tensorflow_file.read_bytes())
    changed[len(changed) // 2] ^= 1
    path.write_bytes(changed)
    with pytest.raises(FileFormatError, match=r"cut.npz: \w+\.\w+: cannot be read .*BadZipFile"):
        import_mobilenet(path)
    np.savez(path, **{"Conv1.weight": np.array([None])})  # type: ignore[arg-type]
    with pytest.raises(FileFormatError, match=r"cut.npz: Conv1.weight: cannot be read"):
        import_mobilenet(path)

    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(torchvision_file.read_bytes()[:-100])
    with pytest.raises(FileFormatError, match=r"cut.safetensors: not a whole safetensors file"):
        import_mobilenet(cut)


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"none.npz: no such file"):
        import_mobilenet(tmp_path / "none.npz")
    for name in ("weights.pth", "weights.pt"):
        (tmp_path / name).write_bytes(b"anything")
        with pytest.raises(SettingError, match=rf"{name}: a pickle, which is never opened") as refused:
            import_mobilenet(tmp_path / name)
        assert f"torch.load('{name}', weights_only=True), 'weights.safetensors')" in str(refused.value)
    (tmp_path / "weights.h5").write_bytes(b"anything")
    with pytest.raises(SettingError, match=r"weights.h5: its name must end in .npz or .safetensors"):
        import_mobilenet(tmp_path / "weights.h5")


def test_the_advice_for_a_pickle_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mobilenet_v2.pth"
    torch.save({name: torch.from_numpy(array) for name, array in TORCHVISION.items()}, path)
    with pytest.raises(SettingError) as refused:
        import_mobilenet(path)
    monkeypatch.chdir(tmp_path)
    lines = str(refused.value).split("`")[1::2]
    assert len(lines) == 2
    exec("\n".join(lines))
    assert import_mobilenet(path.with_suffix(".safetensors")).facts["padding"] == "symmetric"


# --- the encoder file


def test_the_command_writes_an_encoder(
    tmp_path: Path, tensorflow_file: Path, torchvision_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {tensorflow_file: ("same", "centred", 1), torchvision_file: ("symmetric", "imagenet", 2)}
    sizes = []
    for weights, (padding, normalisation, enlarge) in expected.items():
        out = tmp_path / f"from-{weights.stem}.safetensors"
        assert run_feddig("encoder", "import", weights, "--out", out, "--enlarge", enlarge, "--json") == 0
        report = json.loads(capsys.readouterr().out)
        encoder = load_encoder(str(out), 3)
        assert not any(parameter.requires_grad for parameter in encoder.parameters())
        assert report == {
            "path": str(out), "hash": encoder_hash(encoder), "network": "mobilenet-v2",
            "padding": padding, "normalisation": normalisation, "enlarge": str(enlarge),
        }  # fmt: skip
        again = import_mobilenet(weights, enlarge).eval()
        images = torch.rand(2, *COLOUR)
        with torch.no_grad():
            torch.testing.assert_close(encoder(images), again(images), rtol=1e-4, atol=1e-4)
        assert read_tensors(out, "encoder")[1]["source"] == weights.name
        sizes.append(out.stat().st_size)
    assert sizes[0] < 0.51 * sizes[1], "float16 stays float16"

    assert run_feddig("encoder", "import", tensorflow_file, "--out", out) == 2
    assert "exists already; choose another --out" in capsys.readouterr().err
    (tmp_path / "w.pth").write_bytes(b"anything")
    assert run_feddig("encoder", "import", tmp_path / "w.pth", "--out", tmp_path / "none.safetensors") == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert not (tmp_path / "none.safetensors").exists()


def test_padding_and_normalisation_count_in_the_hash() -> None:
    network = MobileNetV2("same", "centred")
    hashes = {encoder_hash(network)}
    for kind in (("symmetric", "centred"), ("same", "imagenet"), ("symmetric", "imagenet")):
        other = MobileNetV2(*kind)
        other.load_state_dict(network.state_dict())
        hashes.add(encoder_hash(other))
    assert len(hashes) == 4


def test_loading_leaves_the_random_stream_alone(tmp_path: Path, torchvision_file: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_encoder(path, new_mobilenet(), {})
    state = torch.get_rng_state()
    load_encoder(str(path), 3)
    import_mobilenet(torchvision_file)
    assert torch.equal(torch.get_rng_state(), state)


def test_files_that_name_no_network_stay_readable(tmp_path: Path) -> None:
    shipped = Path(encoder_file.__file__).parent / "encoders" / "colour.safetensors"
    assert "network" not in read_tensors(shipped, "encoder")[1]
    assert isinstance(load_encoder(str(shipped), 3), ConvEncoder)
    save_encoder(tmp_path / "new.safetensors", ConvEncoder(3), {})
    assert "network" not in read_tensors(tmp_path / "new.safetensors", "encoder")[1]


def test_a_file_with_changed_facts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    save_encoder(path, MobileNetV2(), {})
    tensors, facts = read_tensors(path, "encoder")
    for changed, complaint in (
        ({"padding": "valid"}, "holds 'mobilenet-v2' of a kind that this FedDig does not know"),
        ({"enlarge": "a lot"}, "holds 'mobilenet-v2' of a kind"),
        ({"network": "mobilenet-v9"}, "holds 'mobilenet-v9' of a kind"),
        ({"padding": "same"}, "the weights do not match their hash"),
    ):
        write_tensors(path, "encoder", tensors, facts | changed)
        with pytest.raises(FileFormatError, match=complaint):
            load_encoder(str(path), 3)
    write_tensors(path, "encoder", tensors, facts)
    with pytest.raises(SettingError, match=r"digest.encoder: .* for images with 3 channel\(s\)"):
        load_encoder(str(path), 1)


# --- P_G and F_D for its code


def test_guidance_grows_from_one_pixel_in_three_steps() -> None:
    torch.manual_seed(0)
    guidance = build_guidance("deconvolution", MOBILE_CODE, COLOUR)
    seen = torch.rand(2, *MOBILE_CODE) * 6
    sides = []
    for layer in guidance.layers:  # type: ignore[union-attr]
        seen = layer(seen)
        if isinstance(layer, nn.ConvTranspose2d):
            sides.append(seen.shape[-1])
    assert sides == [4, 16, 32]
    assert seen.shape == (2, *COLOUR)
    assert 0 <= seen.min() < seen.max() <= 1
    # 1280-64 by 4x4, 64-16 by 4x4, 16-3 by 2x2, and biases
    assert parameters(guidance) == 1280 * 64 * 16 + 64 + 64 * 16 * 16 + 16 + 16 * 3 * 4 + 3
    classifier = build_classifier("small", COLOUR, 5, MOBILE_CODE)
    check_networks(classifier, guidance, image_shape=COLOUR, feature_shape=MOBILE_CODE, classes=5)


@pytest.mark.parametrize(("code", "image"), [(MOBILE_CODE, (3, 64, 64)), (CODE, (3, 64, 64))])
def test_guidance_for_other_sizes_is_refused_in_a_line(
    code: tuple[int, int, int], image: tuple[int, int, int]
) -> None:
    with pytest.raises(
        SettingError, match=r"^model.guidance: .* not \(3, 64, 64\) from .*; give your own"
    ) as refused:
        build_guidance("deconvolution", code, image)
    assert "\n" not in str(refused.value)


def test_f_d_for_its_code_is_linear_from_1280_to_128() -> None:
    network = build_classifier("size-matched", COLOUR, 10, MOBILE_CODE)
    assert isinstance(network, Classifier)
    assert network.digest is not None
    assert [type(layer) for layer in network.digest.children()] == [nn.Flatten, nn.Linear, nn.ReLU]
    assert parameters(network.digest) == 1280 * 128 + 128


# --- as a classifier, and colour images for the other networks


@pytest.mark.parametrize(
    ("name", "code", "count"),
    [
        # F_R 3-64-64-128: 1,792 + 36,928 + 73,856 = 112,576; C 2048-512-10: 1,049,088 + 5,130
        ("size-matched", None, 112_576 + 1_054_218),
        # F_D 4-32-128-128: 1,184 + 36,992 + 147,584 = 185,760; its 128 numbers enter C: 65,536
        ("size-matched", CODE, 112_576 + 1_054_218 + 185_760 + 65_536),
        # F_D 1280-128: 163,968
        ("size-matched", MOBILE_CODE, 112_576 + 1_054_218 + 163_968 + 65_536),
        # C 1280-512-10: 655,872 + 5,130
        ("mobilenet-v2", None, FEATURE_PARAMETERS + 661_002),
        ("mobilenet-v2", MOBILE_CODE, FEATURE_PARAMETERS + 661_002 + 163_968 + 65_536),
    ],
)
def test_the_colour_networks_have_the_sizes_that_follow(
    name: str, code: tuple[int, ...] | None, count: int
) -> None:
    network = build_classifier(name, COLOUR, 10, code)
    assert parameters(network) == count
    check_networks(network, None, image_shape=COLOUR, feature_shape=code, classes=10)


def test_new_weights_learn_without_batch_norm() -> None:
    """Train on two classes, one with more red; 15 steps are enough."""
    torch.manual_seed(0)
    images, labels = torch.rand(8, *COLOUR) * 0.3, torch.arange(8) % 2
    images[labels == 1, 0] += 0.5
    network = build_classifier("mobilenet-v2", COLOUR, 2, None)
    optimiser = torch.optim.SGD(network.parameters(), lr=0.005, momentum=0.9)
    for _ in range(15):
        loss = cross_entropy(network(images), labels)
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    assert loss < 0.05


def test_new_weights_keep_the_scale_of_activations_and_follow_the_seed() -> None:
    torch.manual_seed(0)
    network = new_mobilenet()
    torch.manual_seed(0)
    assert encoder_hash(new_mobilenet()) == encoder_hash(network)
    assert encoder_hash(new_mobilenet()) != encoder_hash(network)
    with torch.no_grad():
        seen = relu6(
            network.stem(torch.rand(32, 3, 4, 4).repeat_interleave(8, 2).repeat_interleave(8, 3) * 2 - 1)
        )
        for block in network.blocks:
            seen = block(seen)
            assert 0.5 < seen.std() < 2
    assert not any(module._forward_hooks for module in network.modules())


def test_a_classifier_starts_from_an_imported_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    torch.manual_seed(5)
    start = new_mobilenet()
    save_encoder(path, start, {})
    network = build_classifier(str(path), COLOUR, 7, MOBILE_CODE)
    assert isinstance(network, Classifier)
    assert encoder_hash(network.raw) == encoder_hash(start)
    assert all(parameter.requires_grad for parameter in network.parameters())
    assert network(torch.zeros(2, *COLOUR), torch.zeros(2, *MOBILE_CODE)).shape == (2, 7)


def test_files_and_images_that_do_not_suit_a_classifier_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "conv.safetensors"
    save_encoder(path, ConvEncoder(3), {})
    for name, image, complaint in (
        (
            str(path),
            COLOUR,
            "conv.safetensors does not hold mobilenet-v2; give a file that `feddig encoder import`",
        ),
        (str(path), (1, 32, 32), r"is for images with 3 channel\(s\), but these have 1"),
        (str(tmp_path / "no.safetensors"), COLOUR, "no file at .*no.safetensors"),
        ("mobilenet-v2", (1, 32, 32), r"mobilenet-v2 takes colour images, but these have 1 channel\(s\)"),
    ):
        with pytest.raises(SettingError, match=rf"^model.classifier: .*{complaint}"):
            build_classifier(name, image, 5, None)


# --- whole runs


def draw_colours(count: int, stream: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw 32x32 images whose class is their strongest colour."""
    labels = np.arange(count) % 3
    images = stream.integers(0, 80, (count, 3, 32, 32), dtype=np.uint8)
    images[np.arange(count), labels] += np.uint8(120)
    return images, labels


@pytest.fixture
def colours() -> Dataset:
    stream = np.random.default_rng(0)
    return dataset_from_arrays(*draw_colours(96, stream), *draw_colours(30, stream))


def test_a_run_with_a_mobilenet_encoder(
    tmp_path: Path, colours: Dataset, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder, data, file = tmp_path / "mine.safetensors", tmp_path / "colours.npz", tmp_path / "mine.toml"
    torch.manual_seed(0)
    save_encoder(encoder, new_mobilenet(), {})
    arrays = zip(("train", "test"), (colours.train, colours.test), strict=True)
    np.savez(
        data, **{f"{letter}_{part}": array for part, images in arrays
                 for letter, array in (("x", images.pixels), ("y", images.labels))},
    )  # fmt: skip
    experiment = make_tiny_experiment(
        data={"name": "npz", "path": str(data), "silos": 2, "partition": "iid"},
        digest={"encoder": str(encoder)}, training={"rounds": 3, "batch": 4, "lr": 0.05},
    )  # fmt: skip
    file.write_text(write_experiment(experiment), encoding="utf-8")
    assert run_feddig("run", file, "--out", tmp_path / "run", "--device", "cpu", "--json") == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["accuracy"]["final"] > 50
    for silo in range(2):
        digest, _ = read_tensors(tmp_path / "run" / "digests" / f"silo-{silo}.safetensors", "digest")
        assert digest["features"].shape[1:] == MOBILE_CODE


def test_a_run_with_a_mobilenet_classifier_from_a_file(
    tmp_path: Path, colours: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    start = new_mobilenet()
    save_encoder(tmp_path / "mine.safetensors", start, {})
    experiment = make_tiny_experiment(
        data={"silos": 2, "partition": "iid"}, absence={"scenario": "none"}, algorithm={"name": "feddig"},
        model={"classifier": "mine.safetensors"}, training={"rounds": 1, "lr": 0.005},
    )  # fmt: skip
    summary = run(experiment, tmp_path / "run", device="cpu", dataset=colours)
    # C 1280-512-3, F_D of the shipped code, and its 128 numbers in C
    count = FEATURE_PARAMETERS + 655_872 + 1_539 + 185_760 + 65_536
    assert summary["bytes"]["update"] == [4 * count] * 2
    model = load_file(tmp_path / "run" / "model.safetensors")
    moved = np.abs(model["raw.top.weight"] - start.top.weight.detach().numpy()).mean()
    assert 0 < moved < 0.01, "training continues from the file's weights"
    kept = (tmp_path / "run" / "experiment.toml").read_text(encoding="utf-8")
    assert str(tmp_path / "mine.safetensors") in kept, "a relative path would be wrong in another folder"
