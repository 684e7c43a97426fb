"""The even encoder: codes of one length, levelled by what generated images show."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import conv2d

from feddig.models.encoder import (
    EVEN,
    LENGTH,
    SIDE,
    EvenEncoder,
    encoder_hash,
    load_encoder,
    load_encoder_file,
    save_encoder,
)
from feddig.models.train_encoder import generate_images
from feddig.models.train_even_encoder import levelling, make_even
from feddig.seeds import torch_stream


@pytest.mark.parametrize("channels", [1, 3])
def test_codes_are_not_negative_and_of_one_length(channels: int) -> None:
    encoder = load_encoder("even", channels)
    codes = encoder(generate_images(50, channels, torch_stream(5, "test")))
    assert codes.shape == (50, 4, 8, 8)
    assert (codes >= 0).all()
    assert torch.allclose(codes.flatten(1).norm(dim=1), torch.full((50,), LENGTH), rtol=1e-5)
    assert ((codes > 0).float().mean(dim=(0, 2, 3)) > 0.3).all()


def test_images_of_other_sizes_and_codes_of_zeros_pass() -> None:
    assert load_encoder("even", 1)(torch.rand(2, 1, 16, 24)).shape == (2, 4, 4, 6)
    empty = EvenEncoder(nn.Identity(), 4)
    assert not empty(torch.zeros(2, 4, 8, 8)).any()


def test_length_mean_and_convolution_are_in_the_hash() -> None:
    hashes = {encoder_hash(load_encoder("even", 1))}
    for name in ("length", "mean", "level.weight"):
        changed = load_encoder("even", 1)
        changed.get_buffer(name).add_(1) if "." not in name else changed.get_parameter(name).data.add_(1)
        hashes.add(encoder_hash(changed))
    assert len(hashes) == 4


def test_a_saved_one_comes_back(tmp_path: Path) -> None:
    encoder = load_encoder("even", 1)
    assert isinstance(encoder, EvenEncoder)
    save_encoder(tmp_path / "mine.safetensors", encoder, {})
    again = load_encoder_file(tmp_path / "mine.safetensors", 1)
    assert isinstance(again, EvenEncoder)
    assert encoder_hash(again) == encoder_hash(encoder)


@pytest.mark.parametrize("channels", EVEN)
def test_making_it_again_gives_the_shipped_one(channels: int) -> None:
    """From a quarter of the images, so a little off."""
    shipped, state = load_encoder("even", channels), torch.get_rng_state()
    again = make_even(load_encoder("default", channels), images=2000)  # type: ignore[arg-type]
    assert torch.equal(torch.get_rng_state(), state)
    images = generate_images(100, channels, torch_stream(6, "test"))
    alike = nn.functional.cosine_similarity(again(images).flatten(1), shipped(images).flatten(1))
    assert alike.min() > 0.98


def unevenness(codes: Tensor) -> float:
    """The largest variance of a code over the average, along any direction; away from edges, where padding shows."""
    inner = codes[..., 2:-2, 2:-2].flatten(1)
    variances = torch.linalg.eigvalsh(torch.cov(inner.T))
    return float(variances.max() / variances.mean())


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.double)


def test_levelling_evens_out_what_neighbours_share() -> None:
    codes = conv2d(drawn(4000, 1, 12, 12, seed=0), torch.ones(1, 1, 5, 5, dtype=torch.double))
    codes = codes + 0.5 * drawn(*codes.shape, seed=1)
    kernel = levelling(codes)
    assert kernel.shape == (1, 1, SIDE, SIDE)
    assert unevenness(conv2d(codes, kernel, padding=SIDE // 2)) < 0.5 * unevenness(codes)


def test_levelling_evens_out_what_channels_share() -> None:
    """The second channel is the first one place further on: a kernel the wrong way round makes it worse."""
    first = drawn(4000, 1, 8, 9, seed=0)
    codes = torch.cat([first[..., :-1], first[..., 1:]], dim=1) + 0.3 * drawn(4000, 2, 8, 8, seed=1)
    kernel = levelling(codes)
    levelled, turned = (
        conv2d(codes, weight, padding=SIDE // 2) for weight in (kernel, kernel.transpose(0, 1))
    )
    assert unevenness(levelled) < 0.9 * unevenness(codes) < 0.9 * unevenness(turned)
