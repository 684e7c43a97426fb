"""The encoder P_R: its size, its shipped files, its training, and its errors."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from feddig.errors import DivergenceError, FileFormatError, SettingError
from feddig.files import read_tensors, write_tensors
from feddig.models import encoder as encoder_file
from feddig.models.encoder import (
    EVEN,
    LENGTH,
    LEVEL_SIDE,
    SHIPPED,
    ConvEncoder,
    EvenEncoder,
    check_codes,
    encoder_hash,
    feature_shape,
    load_encoder,
    load_encoder_file,
    save_encoder,
)
from feddig.models.train_encoder import (
    BATCH,
    LARGEST_VALUE,
    SHIPPED_TRAINING,
    STEPS,
    EncoderTraining,
    generate_images,
    levelling_kernel,
    make_encoder,
    make_even_encoder,
)
from feddig.seeds import torch_stream

SHIPPED_FOLDER = Path(encoder_file.__file__).parent / "encoders"


def noise(count: int, channels: int, generator: torch.Generator) -> Tensor:
    """Draw random images, which is faster than generating images."""
    return torch.rand(count, channels, 16, 16, generator=generator)


def test_it_is_as_small_as_in_the_paper() -> None:
    sizes = {channels: sum(p.numel() for p in ConvEncoder(channels).parameters()) for channels in (1, 3)}
    assert sizes == {1: 740, 3: 1028}


@pytest.mark.parametrize("channels", [1, 3])
def test_the_shipped_encoder_is_fixed_and_every_channel_is_active(channels: int) -> None:
    state = torch.get_rng_state()
    encoder = load_encoder("default", channels)
    assert torch.equal(torch.get_rng_state(), state)
    assert not encoder.training
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert feature_shape(encoder, (channels, 32, 32)) == (4, 8, 8)

    codes = encoder(generate_images(200, channels, torch_stream(5, "test")))
    assert codes.shape == (200, 4, 8, 8)
    assert (codes >= 0).all()
    assert ((codes > 0).float().mean(dim=(0, 2, 3)) > 0.02).all()
    largest = torch.full((4,), LARGEST_VALUE)
    torch.testing.assert_close(codes.amax(dim=(0, 2, 3)), largest, atol=0, rtol=0.25)
    assert (codes.std(dim=(0, 2, 3)) > LARGEST_VALUE / 13).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_the_shipped_file_says_how_it_was_made(channels: int) -> None:
    _, facts = read_tensors(SHIPPED_FOLDER / SHIPPED[channels], "encoder")
    stated = {name: facts[name] for name in ("channels", "seed", "steps", "batch", "recipe")}
    assert stated == {
        "channels": str(channels),
        "seed": "0",
        "steps": str(STEPS),
        "batch": str(BATCH),
        "recipe": SHIPPED_TRAINING.name,
    }
    assert facts["hash"] == encoder_hash(load_encoder("default", channels))


@pytest.mark.slow
@pytest.mark.parametrize("channels", [1, 3])
def test_training_again_gives_the_shipped_encoder(channels: int) -> None:
    losses: list[float] = []
    again = make_encoder(channels, seed=0, report=lambda _, loss: losses.append(loss))
    assert len(losses) >= STEPS
    assert sum(losses[-20:]) < 0.25 * sum(losses[:20])

    shipped = load_encoder("default", channels)
    # processors round differently and training amplifies that, so codes agree only roughly
    images = generate_images(100, channels, torch_stream(6, "test"))
    with torch.no_grad():
        difference = (again(images) - shipped(images)).abs().mean()
    assert difference < LARGEST_VALUE / 80


def test_same_seed_same_bytes() -> None:
    training = EncoderTraining("noise", noise)
    first, again, other = (make_encoder(1, seed, 3, 8, training=training) for seed in (4, 4, 5))
    assert encoder_hash(first) == encoder_hash(again)
    assert encoder_hash(first) != encoder_hash(other)


def test_training_learns_and_leaves_the_threads_and_the_global_stream_alone() -> None:
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    losses: list[float] = []
    make_encoder(1, seed=0, steps=40, batch=16, report=lambda _, loss: losses.append(loss))
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_an_encoder_with_an_inactive_channel_is_refused() -> None:
    def black(count: int, channels: int, _: torch.Generator) -> Tensor:
        return torch.zeros(count, channels, 32, 32)

    with pytest.raises(DivergenceError, match="another seed"):
        make_encoder(1, seed=0, steps=1, batch=4, training=EncoderTraining("black", black))


@pytest.mark.parametrize("channels", [1, 3])
def test_generated_images_are_varied_and_in_range(channels: int) -> None:
    images = generate_images(100, channels, torch_stream(1, "test"))
    assert images.shape == (100, channels, 32, 32)
    assert images.min() == 0
    assert images.max() <= 1
    assert images.std(0).mean() > 0.15
    assert torch.equal(images, generate_images(100, channels, torch_stream(1, "test")))
    assert not torch.equal(images, generate_images(100, channels, torch_stream(2, "test")))


def test_a_saved_encoder_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "mine.safetensors"
    encoder = ConvEncoder(3)
    save_encoder(path, encoder, {"seed": "7"})
    assert encoder_hash(load_encoder(str(path), 3)) == encoder_hash(encoder)
    assert read_tensors(path, "encoder")[1]["seed"] == "7"
    with pytest.raises(SettingError, match=r"digest\.encoder: .*3 channel\(s\), but these have 1"):
        load_encoder(str(path), 1)


def test_every_number_counts_in_the_hash() -> None:
    encoder = ConvEncoder(1)
    before = encoder_hash(encoder)
    with torch.no_grad():
        encoder.edges.weight[0, 0, 0, 0] += 1e-3
    assert encoder_hash(encoder) != before
    assert encoder_hash(nn.Identity()) != encoder_hash(nn.ReLU())


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    whole = (SHIPPED_FOLDER / SHIPPED[1]).read_bytes()
    path = tmp_path / "bad.safetensors"

    path.write_bytes(whole[:-100])
    with pytest.raises(FileFormatError, match="not a readable safetensors file"):
        load_encoder(str(path), 1)

    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FileFormatError, match="does not match its hash"):
        load_encoder(str(path), 1)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    tensors, facts = read_tensors(SHIPPED_FOLDER / SHIPPED[1], "encoder")
    stated = {name: fact for name, fact in facts.items() if not name.startswith("format")}

    write_tensors(path, "digest", tensors, stated)
    with pytest.raises(FileFormatError, match="not a FedDig encoder file"):
        load_encoder(str(path), 1)

    write_tensors(path, "encoder", {"weight": tensors["edges.weight"]}, stated)
    with pytest.raises(FileFormatError, match="another network"):
        load_encoder(str(path), 1)


@pytest.mark.parametrize(
    ("spec", "channels", "message"),
    [
        ("default", 2, "default encoder for 1 or 3 channels, but the images have 2"),
        ("defualt", 1, "'defualt' names no encoder"),
        ("", 1, "names no encoder"),
        ("nowhere/none.safetensors", 1, "no file at"),
        ("no_such_module_here:make", 1, "cannot be imported"),
        ("feddig.errors:no_such_function", 1, "cannot be imported"),
        (":make", 1, "cannot be imported"),
    ],
)
def test_a_wrong_setting_is_named(spec: str, channels: int, message: str) -> None:
    with pytest.raises(SettingError, match=rf"^digest\.encoder: .*{message}"):
        load_encoder(spec, channels)


def test_your_own_encoder_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_encoder_for_test.py").write_text(
        "from torch import nn\n"
        "def average(channels):\n    return nn.Sequential(nn.Conv2d(channels, 2, 1), nn.AvgPool2d(4))\n"
        "def nothing(channels):\n    return None\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    try:
        encoder = load_encoder("own_encoder_for_test:average", 3)
        assert not any(parameter.requires_grad for parameter in encoder.parameters())
        assert feature_shape(encoder, (3, 32, 32)) == (2, 8, 8)
        with pytest.raises(SettingError, match="returned NoneType"):
            load_encoder("own_encoder_for_test:nothing", 3)
    finally:
        sys.modules.pop("own_encoder_for_test", None)


class Returning(nn.Module):
    """An encoder that returns a given tensor."""

    def __init__(self, output: Tensor) -> None:
        super().__init__()
        self.output = output

    def forward(self, images: Tensor) -> Tensor:
        return self.output


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (torch.ones(2, 4, dtype=torch.int64), "floating-point"),
        (torch.full((2, 4), torch.nan), "not finite"),
        (torch.ones(4, 2), "first dimension must be the batch"),
        (torch.ones(2), "first dimension must be the batch"),
    ],
)
def test_an_encoder_that_breaks_the_rules_is_named(output: Tensor, message: str) -> None:
    with pytest.raises(SettingError, match=rf"^digest\.encoder: .*{message}"):
        feature_shape(Returning(output), (1, 32, 32))


def test_an_encoder_for_other_images_is_named() -> None:
    with pytest.raises(
        SettingError, match=r"^digest\.encoder: .*cannot encode an image of shape \(3, 32, 32\)"
    ):
        feature_shape(load_encoder("default", 1), (3, 32, 32))


# --- the code of an image depends on that image alone


class BatchEncoder(nn.Module):
    """An encoder that computes codes from the whole batch with a given function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, images: Tensor) -> Tensor:
        return self.function(images.flatten(1))


def conv(last: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 4, stride=4), last, nn.ReLU()).eval()


def try_codes(encoder: nn.Module, channels: int = 1) -> None:
    check_codes(encoder, generate_images(16, channels, torch_stream(5, "test")))


def are_codes_fine(encoder: nn.Module, channels: int = 1) -> bool:
    try:
        try_codes(encoder, channels)
    except SettingError:
        return False
    return True


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("spec", ["default", "even"])
def test_the_shipped_encoders_code_each_image_by_itself(
    spec: str, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_file, "ROUNDING", 1e-5)
    assert are_codes_fine(load_encoder(spec, channels), channels)


def test_fixed_batch_norm_codes_each_image_by_itself() -> None:
    assert are_codes_fine(conv(nn.BatchNorm2d(4)))
    assert are_codes_fine(conv(nn.GroupNorm(2, 4)))


@pytest.mark.parametrize(
    "encoder",
    [
        conv(nn.BatchNorm2d(4, track_running_stats=False)),
        conv(nn.BatchNorm2d(4)).train(),
        BatchEncoder(lambda rows: torch.relu(rows - rows.mean(0))),
        BatchEncoder(lambda rows: rows / rows.sum()),
        BatchEncoder(lambda rows: rows + rows.roll(1, 0)),
        BatchEncoder(lambda rows: rows + 0.1 * torch.linspace(0, 1, len(rows))[:, None]),
        BatchEncoder(lambda rows: rows / (rows - rows.mean(0)).abs().max()),
    ],
    ids=["batch norm", "in training", "mean", "sum", "neighbour", "place", "spread"],
)
def test_an_encoder_that_mixes_the_images_of_a_batch_is_refused(encoder: nn.Module) -> None:
    with pytest.raises(SettingError, match=r"^digest\.encoder: .* another code when it is encoded alone"):
        try_codes(encoder)


def test_an_encoder_that_depends_on_the_order_of_a_batch_is_refused() -> None:
    falling = BatchEncoder(lambda rows: rows + (rows[0].mean() > rows[-1].mean()))
    images = torch.linspace(0, 1, 16)[:, None, None, None].expand(16, 1, 8, 8)
    with pytest.raises(SettingError, match="another code when it is encoded in another order"):
        check_codes(falling, images)


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        (
            nn.Sequential(nn.Conv2d(1, 4, 32), nn.BatchNorm2d(4, track_running_stats=False)),
            "cannot encode an image alone",
        ),
        (BatchEncoder(lambda rows: rows.squeeze()), "another code when it is encoded alone"),
    ],
)
def test_an_encoder_that_needs_a_batch_is_refused(encoder: nn.Module, message: str) -> None:
    with pytest.raises(SettingError, match=rf"^digest\.encoder: .*{message}"):
        try_codes(encoder)


# --- the even encoder


@pytest.mark.parametrize("channels", [1, 3])
def test_even_codes_are_not_negative_and_of_one_length(channels: int) -> None:
    encoder = load_encoder("even", channels)
    codes = encoder(generate_images(50, channels, torch_stream(5, "test")))
    assert codes.shape == (50, 4, 8, 8)
    assert (codes >= 0).all()
    assert torch.allclose(codes.flatten(1).norm(dim=1), torch.full((50,), LENGTH), rtol=1e-5)
    assert ((codes > 0).float().mean(dim=(0, 2, 3)) > 0.3).all()


def test_the_even_encoder_takes_other_sizes_and_codes_of_zeros() -> None:
    assert load_encoder("even", 1)(torch.rand(2, 1, 16, 24)).shape == (2, 4, 4, 6)
    empty = EvenEncoder(nn.Identity(), 4)
    assert not empty(torch.zeros(2, 4, 8, 8)).any()


def test_the_even_encoders_buffers_are_in_its_hash() -> None:
    hashes = {encoder_hash(load_encoder("even", 1))}
    for name in ("length", "mean", "level.weight"):
        changed = load_encoder("even", 1)
        changed.get_buffer(name).add_(1) if "." not in name else changed.get_parameter(name).data.add_(1)
        hashes.add(encoder_hash(changed))
    assert len(hashes) == 4


def test_a_saved_even_encoder_comes_back(tmp_path: Path) -> None:
    encoder = load_encoder("even", 1)
    assert isinstance(encoder, EvenEncoder)
    save_encoder(tmp_path / "mine.safetensors", encoder, {})
    again = load_encoder_file(tmp_path / "mine.safetensors", 1)
    assert isinstance(again, EvenEncoder)
    assert encoder_hash(again) == encoder_hash(encoder)


@pytest.mark.parametrize("channels", EVEN)
def test_building_again_gives_the_shipped_even_encoder(channels: int) -> None:
    """Build from an eighth of the images, so the codes are only similar."""
    shipped, state = load_encoder("even", channels), torch.get_rng_state()
    again = make_even_encoder(load_encoder("default", channels), images=1000)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), state)
    images = generate_images(100, channels, torch_stream(6, "test"))
    alike = nn.functional.cosine_similarity(again(images).flatten(1), shipped(images).flatten(1))
    assert alike.min() > 0.98


def unevenness(codes: Tensor) -> float:
    """Return the largest variance in any direction over the average, away from the padded edges."""
    inner = codes[..., 2:-2, 2:-2].flatten(1)
    variances = torch.linalg.eigvalsh(torch.cov(inner.T))
    return float(variances.max() / variances.mean())


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def test_levelling_evens_out_what_neighbours_share() -> None:
    codes = conv2d(drawn(4000, 1, 12, 12, seed=0), torch.ones(1, 1, 5, 5, dtype=torch.double))
    codes = codes + 0.5 * drawn(*codes.shape, seed=1)
    kernel = levelling_kernel(codes)
    assert kernel.shape == (1, 1, LEVEL_SIDE, LEVEL_SIDE)
    assert unevenness(conv2d(codes, kernel, padding=LEVEL_SIDE // 2)) < 0.5 * unevenness(codes)


def test_levelling_evens_out_what_channels_share() -> None:
    """The second channel is the first, shifted by one pixel; a flipped kernel would increase the unevenness."""
    first = drawn(4000, 1, 8, 9, seed=0)
    codes = torch.cat([first[..., :-1], first[..., 1:]], dim=1) + 0.3 * drawn(4000, 2, 8, 8, seed=1)
    kernel = levelling_kernel(codes)
    levelled, turned = (
        conv2d(codes, weight, padding=LEVEL_SIDE // 2) for weight in (kernel, kernel.transpose(0, 1))
    )
    assert unevenness(levelled) < 0.9 * unevenness(codes) < 0.9 * unevenness(turned)
