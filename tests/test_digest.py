"""Digests: which samples are mixed, what a digest reveals, and which digest files are refused."""

import json
import math
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save
from safetensors.torch import save as save_torch
from torch import Tensor

from feddig import Digest, Experiment, demo_experiment, make_digest, read_digest, write_digest
from feddig.digest.digest import check_digest, mix_groups
from feddig.digest.digest_file import LARGEST_HEADER
from feddig.errors import DataError, FileFormatError, SettingError
from feddig.files import write_tensors
from feddig.privacy.mechanisms.paper_laplace import laplace_noise
from feddig.runs.build import build_simulation, build_site
from feddig.runs.release import describe_digest, digest_of_silo
from feddig.seeds import seeded_uniforms
from feddig.settings import DigestSettings, PrivacySettings

QUIET = PrivacySettings(mechanism="none")
LOUD = PrivacySettings()


def mix(
    features: Tensor, labels: Tensor, *, silo: int = 0, privacy: PrivacySettings = QUIET, **keys: object
) -> Digest:
    """Make a digest of three classes, by default with seed 0."""
    how = DigestSettings(**{"seed": 0, **keys})  # type: ignore[arg-type]
    return make_digest(silo, features, labels, 3, settings=how, privacy=privacy, encoder="an encoder's hash")


def numbered(count: int) -> Tensor:
    """Return features that identify their sample: sample k is [k, k / 4]."""
    return torch.stack([torch.arange(count) * 1.0, torch.arange(count) / 4], dim=1)


def cycling(count: int) -> Tensor:
    """Return the labels 0 1 2 0 1 2 ..."""
    return torch.arange(count) % 3


# --- encode and mix: no sample twice, the given weights, leftovers counted

silos = st.lists(st.integers(0, 2), min_size=1, max_size=60)


@settings(max_examples=100, deadline=None)
@given(
    classes=silos,
    spd=st.integers(1, 7),
    mixing=st.sampled_from(["random", "within-class"]),
    seed=st.integers(0, 2**31),
)
def test_no_sample_is_mixed_twice(classes: list[int], spd: int, mixing: str, seed: int) -> None:
    groups = mix_groups(torch.tensor(classes), spd, mixing, seeded_uniforms(seed))
    used = groups.flatten().tolist()
    assert groups.shape[1] == spd
    assert len(set(used)) == len(used)
    assert set(used) <= set(range(len(classes)))


@settings(max_examples=100, deadline=None)
@given(classes=silos, spd=st.integers(1, 7), seed=st.integers(0, 2**31))
def test_random_mixing_leaves_out_at_most_one_less_than_a_digest_takes(
    classes: list[int], spd: int, seed: int
) -> None:
    labels = torch.tensor(classes)
    left_out = len(labels) - mix_groups(labels, spd, "random", seeded_uniforms(seed)).numel()
    assert left_out == len(labels) % spd
    if len(labels) >= spd:
        digest = mix(numbered(len(labels)), labels, samples_per_digest=spd, seed=seed)
        assert digest.facts["left_out"] == left_out
        assert digest.samples == len(labels) - left_out


@settings(max_examples=100, deadline=None)
@given(classes=silos, spd=st.integers(1, 5), seed=st.integers(0, 2**31))
def test_mixing_within_classes_leaves_out_what_each_class_has_too_much(
    classes: list[int], spd: int, seed: int
) -> None:
    labels = torch.tensor(classes)
    left_out = sum(classes.count(label) % spd for label in set(classes))
    groups = mix_groups(labels, spd, "within-class", seeded_uniforms(seed))
    assert len(labels) - groups.numel() == left_out
    assert all(len(set(row.tolist())) == 1 for row in labels[groups])
    if len(groups):
        digest = mix(numbered(len(labels)), labels, samples_per_digest=spd, mixing="within-class", seed=seed)
        assert digest.facts["left_out"] == left_out
        assert torch.allclose(digest.labels.max(1).values, torch.ones(len(digest)))
        assert torch.equal((digest.labels > 0).sum(1), torch.ones(len(digest), dtype=torch.long))


def weight_lists() -> st.SearchStrategy[tuple[float, ...]]:
    """Draw one to six weights that sum to 1; some may be 0."""
    raw = st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any)
    return raw.map(lambda values: tuple(value / sum(values) for value in values))


@settings(max_examples=100, deadline=None)
@given(
    classes=st.lists(st.integers(0, 2), min_size=6, max_size=40),
    weights=weight_lists(),
    seed=st.integers(0, 99),
)
def test_features_and_labels_are_mixed_with_the_same_weights(
    classes: list[int], weights: tuple[float, ...], seed: int
) -> None:
    """Compute each digest again from the groups of the silo's seed."""
    labels, features = torch.tensor(classes), numbered(len(classes))
    digest = mix(features, labels, silo=2, samples_per_digest=len(weights), weights=weights, seed=seed)
    groups = mix_groups(labels, len(weights), "random", seeded_uniforms(seed, "mixing", 2))
    assert len(digest) == len(groups)
    for row, group in enumerate(groups.tolist()):
        feature, soft = [0.0, 0.0], [0.0, 0.0, 0.0]
        for weight, sample in zip(weights, group, strict=True):
            feature[0] += weight * sample
            feature[1] += weight * sample / 4
            soft[classes[sample]] += weight
        assert digest.features[row].tolist() == pytest.approx(feature, rel=1e-5, abs=1e-5)
        assert digest.labels[row].tolist() == pytest.approx(soft, abs=1e-6)


@settings(max_examples=100, deadline=None)
@given(
    classes=st.lists(st.integers(0, 2), min_size=6, max_size=60),
    weights=weight_lists(),
    seed=st.integers(0, 99),
)
def test_soft_labels_are_shares(classes: list[int], weights: tuple[float, ...], seed: int) -> None:
    labels = torch.tensor(classes)
    digest = mix(
        numbered(len(labels)),
        labels,
        samples_per_digest=len(weights),
        weights=weights,
        seed=seed,
        privacy=LOUD,
    )
    assert bool((digest.labels >= 0).all())
    assert digest.labels.sum(1).tolist() == pytest.approx([1.0] * len(digest), abs=1e-6)
    assert digest.labels.dtype == digest.features.dtype == torch.float32
    check_digest(digest, "here")


def test_left_out_weights_are_equal() -> None:
    digest = mix(torch.tensor([[1.0], [2.0], [3.0], [6.0]]), torch.tensor([0, 0, 0, 2]))
    assert digest.features.tolist() == [[3.0]]
    assert digest.labels.tolist() == [[0.75, 0.0, 0.25]]
    assert digest.facts["weights"] == [0.25, 0.25, 0.25, 0.25]


def test_one_sample_a_digest_without_noise_only_shuffles() -> None:
    features = torch.rand(20, 2, 3, generator=torch.Generator().manual_seed(0))
    digest = mix(features, cycling(20), samples_per_digest=1)
    order = torch.cdist(digest.features.flatten(1), features.flatten(1)).argmin(1)
    assert sorted(order.tolist()) == list(range(20))
    assert order.tolist() != list(range(20))
    assert torch.equal(digest.features, features[order])
    assert torch.equal(digest.labels.argmax(1), cycling(20)[order])


def test_a_silo_of_one_class_can_make_a_digest() -> None:
    for mixing in ("random", "within-class"):
        digest = mix(numbered(8), torch.full((8,), 1), mixing=mixing)
        assert digest.labels.tolist() == [[0.0, 1.0, 0.0]] * 2


# --- perturb: the same seed gives the same bytes, and the noise is the promised one


def test_the_same_seed_gives_the_same_bytes() -> None:
    first, again = (mix(numbered(20), cycling(20), privacy=LOUD) for _ in range(2))
    assert first.features.numpy().tobytes() == again.features.numpy().tobytes()
    assert first.labels.numpy().tobytes() == again.labels.numpy().tobytes()
    assert first.hash == again.hash


def test_another_seed_gives_another_digest() -> None:
    first, other = (mix(numbered(20), cycling(20), seed=seed) for seed in (0, 1))
    assert not torch.equal(first.features, other.features)


def test_every_silo_mixes_and_perturbs_in_its_own_way() -> None:
    """Otherwise the noise of two digests of the same samples would cancel."""
    plain, noisy = (
        [mix(numbered(20), cycling(20), silo=silo, privacy=privacy).features for silo in (0, 1)]
        for privacy in (QUIET, LOUD)
    )
    assert not torch.equal(plain[0], plain[1])
    assert not torch.allclose(noisy[0] - plain[0], noisy[1] - plain[1])


@pytest.mark.parametrize("seed", range(6))
def test_noise_is_the_largest_feature_over_s_epsilon(seed: int) -> None:
    """Tau is 10, the largest feature of the silo, even if that sample is left out of the digests."""
    features, privacy = torch.tensor([[10.0], [0.0], [0.0]]), PrivacySettings(epsilon=0.01, scale_size=50)
    quiet, loud = (
        mix(features, torch.tensor([0, 1, 2]), silo=3, samples_per_digest=2, privacy=each, seed=seed)
        for each in (QUIET, privacy)
    )
    noise = laplace_noise((1, 1), 10 / (50 * 0.01), seeded_uniforms(seed, "noise", 3))
    assert torch.equal(loud.features, quiet.features + torch.from_numpy(noise))


def test_labels_carry_no_noise() -> None:
    quiet, loud = (mix(numbered(20), cycling(20), privacy=privacy) for privacy in (QUIET, LOUD))
    assert torch.equal(quiet.labels, loud.labels)
    assert not torch.equal(quiet.features, loud.features)


def test_the_systems_entropy_never_repeats() -> None:
    entropy = replace(LOUD, random="system")
    first, again = (mix(torch.ones(20, 2), cycling(20), privacy=entropy) for _ in range(2))
    assert not torch.equal(first.features, again.features)
    assert first.facts["random"] == "system"
    unmixed = [
        mix(numbered(20), cycling(20), samples_per_digest=1, privacy=replace(QUIET, random="system")).features
        for _ in range(2)
    ]
    assert not torch.equal(unmixed[0], unmixed[1])
    assert sorted(unmixed[0][:, 0].tolist()) == list(range(20))


# --- errors of a silo that cannot make a digest


def test_a_silo_smaller_than_a_digest_is_named_with_the_setting() -> None:
    with pytest.raises(
        DataError, match=r"silo 7: no 4 training samples to mix among its 3; .*samples_per_digest"
    ):
        mix(numbered(3), cycling(3), silo=7)


def test_classes_smaller_than_a_digest_are_named_too() -> None:
    with pytest.raises(DataError, match=r"silo 7: no 4 training samples of one class .* its 9"):
        mix(numbered(9), cycling(9), silo=7, mixing="within-class")


@pytest.mark.parametrize("mixing", ["random", "within-class"])
def test_an_empty_silo_is_named(mixing: str) -> None:
    with pytest.raises(DataError, match="silo 7: no 4 training samples"):
        mix(numbered(0), cycling(0), silo=7, mixing=mixing)


@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_features_that_are_not_numbers_are_named(broken: float) -> None:
    features = numbered(8)
    features[5, 1] = broken
    with pytest.raises(DataError, match=r"silo 7: .* not finite numbers"):
        mix(features, cycling(8), silo=7)


# --- what a digest reveals


def test_a_digest_file_holds_neither_seed_nor_indices_nor_the_largest_feature(tmp_path: Path) -> None:
    """Anyone who knows the seed can remove the noise; tau is the silo's largest value."""
    seed, largest = 987_654_321, 0.123_456_789
    features = torch.full((18, 2), 0.1)
    features[3, 0] = largest
    path = tmp_path / "digest.safetensors"
    write_digest(path, mix(features, cycling(18), seed=seed, privacy=LOUD))
    with safe_open(path, framework="numpy") as opened:
        whole, names = opened.metadata(), set(opened.keys())
    assert set(whole) == {"feddig"}
    head = json.loads(whole["feddig"])
    facts = json.loads(head["facts"])
    assert names == {"features", "labels"}
    assert set(head) == {"format", "format_version", "content", "silo", "facts", "hash"}
    assert facts == {
        "samples_per_digest": 4,
        "mixing": "random",
        "weights": [0.25] * 4,
        "left_out": 2,
        "mechanism": "paper-laplace",
        "epsilon": 0.005,
        "scale_size": 20_000,
        "random": "seeded",
        "encoder": "an encoder's hash",
    }
    text = path.read_bytes()
    for secret in (str(seed), "0.1234", "0.00123"):
        assert secret.encode() not in text
    assert np.float32(largest).tobytes() not in text


# --- the hash identifies the content


def test_the_hash_changes_with_every_part_of_a_digest() -> None:
    digest = mix(numbered(9), cycling(9))
    others = [replace(digest, silo=1)]
    for name in ("features", "labels"):
        changed = getattr(digest, name).clone()
        changed.view(torch.uint8).flatten()[-4] ^= 1
        others.append(replace(digest, **{name: changed}))
    others.append(replace(digest, features=digest.features.reshape(2, 1, 2)))
    for key, value in digest.facts.items():
        other: object = value
        if isinstance(value, str):
            other = value + "x"
        elif isinstance(value, list):
            other = [*value[:-1], 0.3]
        else:
            other = value + 1
        others.append(replace(digest, facts={**digest.facts, key: other}))  # type: ignore[dict-item]
    others.append(replace(digest, facts={**digest.facts, "more": 1}))
    assert len({digest.hash, *(other.hash for other in others)}) == 1 + len(others)


def test_the_hash_does_not_depend_on_how_the_facts_are_ordered() -> None:
    digest = mix(numbered(8), cycling(8))
    assert replace(digest, facts=dict(reversed(digest.facts.items()))).hash == digest.hash


def test_the_size_is_what_is_sent() -> None:
    digest = mix(numbered(9), cycling(9))
    assert len(digest) == 2
    assert digest.size == 2 * 2 * 4 + 2 * 3 * 4
    assert digest.samples == 8


# --- the file


@pytest.fixture
def digest() -> Digest:
    return mix(numbered(8), cycling(8), silo=5, privacy=LOUD)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "digest.safetensors"


def refuse(path: Path, message: str | None = None) -> None:
    with pytest.raises(FileFormatError, match=message) as refused:
        read_digest(path)
    text = str(refused.value)
    assert text.startswith(str(path))
    assert "\n" not in text


def test_a_digest_comes_back_from_its_file(digest: Digest, path: Path) -> None:
    write_digest(path, digest)
    back = read_digest(path)
    assert back.silo == 5
    assert torch.equal(back.features, digest.features)
    assert torch.equal(back.labels, digest.labels)
    assert back.facts == digest.facts
    assert back.hash == digest.hash
    assert back.samples == 8


def test_the_same_digest_makes_the_same_file(digest: Digest, tmp_path: Path) -> None:
    files = [tmp_path / f"{number}.safetensors" for number in range(8)]
    for file in files:
        write_digest(file, digest)
    assert len({file.read_bytes() for file in files}) == 1


def test_a_digest_cut_off_anywhere_is_refused(digest: Digest, path: Path, tmp_path: Path) -> None:
    write_digest(path, digest)
    whole, cut = path.read_bytes(), tmp_path / "cut.safetensors"
    for length in [*range(0, len(whole), 7), len(whole) - 1]:
        cut.write_bytes(whole[:length])
        refuse(cut)


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_one_wrong_byte_anywhere_is_noticed(digest: Digest, path: Path, tmp_path: Path, flip: int) -> None:
    """Change each byte of the length, the header with its facts, the features and the labels."""
    write_digest(path, digest)
    whole, damaged = path.read_bytes(), tmp_path / "damaged.safetensors"
    for place in range(len(whole)):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
        refuse(damaged)


def test_bytes_after_the_end_are_noticed(digest: Digest, path: Path) -> None:
    write_digest(path, digest)
    path.write_bytes(path.read_bytes() + b"more")
    refuse(path)


def test_a_digest_under_another_silos_number_is_noticed(digest: Digest, path: Path) -> None:
    write_changed(path, digest, head={"silo": "6"})
    refuse(path, "does not match its hash")


def write_changed(
    path: Path,
    digest: Digest,
    *,
    head: dict[str, str | None] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
) -> None:
    """Write a digest file with a changed header or changed tensors; None leaves an entry out."""
    arrays = {"features": digest.features.numpy(), "labels": digest.labels.numpy(), **(tensors or {})}
    kept = {name: array for name, array in arrays.items() if array is not None}
    facts = {"silo": str(digest.silo), "facts": json.dumps(digest.facts), "hash": digest.hash}
    write_tensors(path, "digest", kept, facts)
    with safe_open(path, framework="numpy") as opened:
        changed = {**json.loads(opened.metadata()["feddig"]), **(head or {})}
    text = json.dumps({name: fact for name, fact in changed.items() if fact is not None})
    path.write_bytes(save(kept, metadata={"feddig": text}))


def test_an_untouched_file_of_this_kind_is_read(digest: Digest, path: Path) -> None:
    """Show that the files below are refused for their one change."""
    write_changed(path, digest)
    assert read_digest(path).hash == digest.hash


@pytest.mark.parametrize(
    ("head", "message"),
    [
        ({"format": "feddig-encoder"}, "not a FedDig digest file"),
        ({"format": None}, "not a FedDig digest file"),
        ({"format_version": "0"}, "format_version 0, but this FedDig reads 1"),
        ({"format_version": "2"}, "format_version 2, but this FedDig reads 1"),
        ({"format_version": None}, "format_version None"),
        ({"silo": None}, "header lacks or garbles 'silo'"),
        ({"silo": "five"}, "header lacks or garbles"),
        ({"facts": None}, "header lacks or garbles 'facts'"),
        ({"facts": "not JSON"}, "header lacks or garbles"),
        ({"facts": "[1, 2]"}, "header lacks or garbles"),
        ({"facts": "{}"}, "does not say its samples_per_digest"),
        ({"facts": '{"samples_per_digest": Infinity}'}, "does not say its samples_per_digest"),
        ({"content": None}, "does not match its hash"),
        ({"hash": None}, "does not match its hash"),
        ({"hash": "0" * 64}, "does not match its hash"),
    ],
)
def test_a_wrong_header_is_refused(
    digest: Digest, path: Path, head: dict[str, str | None], message: str
) -> None:
    write_changed(path, digest, head=head)
    refuse(path, message)


def rows(*values: list[float]) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"features": rows([1, 2], [3, math.nan])}, "features hold NaN or infinity"),
        ({"features": rows([1, 2], [math.inf, 4])}, "features hold NaN or infinity"),
        ({"labels": rows([1, 0, 0], [0, math.nan, 1])}, "labels hold NaN or infinity"),
        ({"labels": rows([1, 0, 0], [0.5, 0.4, 0])}, "label row 1 is not a set of shares"),
        ({"labels": rows([1, 0, 0], [0.6, 0.5, 0])}, "label row 1 is not a set of shares"),
        ({"labels": rows([1, 0, 0], [1.5, -0.5, 0])}, "label row 1 is not a set of shares"),
        ({"labels": rows([1, 0, 0])}, "do not fit together"),
        ({"labels": rows([1, 0, 0], [1, 0, 0], [1, 0, 0])}, "do not fit together"),
        ({"labels": np.ones(2, np.float32)}, "do not fit together"),
        ({"labels": np.ones((2, 1, 1), np.float32)}, "do not fit together"),
        ({"features": np.ones(2, np.float32)}, "do not fit together"),
        ({"features": rows([1, 2])[:0], "labels": rows([1, 0, 0])[:0]}, "do not fit together"),
        ({"features": np.ones((2, 2))}, "features is float64, not float32"),
        ({"labels": np.array([[1, 0, 0], [0, 1, 0]])}, "labels is int64, not float32"),
        ({"features": np.ones((2, 2), np.float16)}, "features is float16, not float32"),
        ({"labels": None}, r"holds \['features'\], not features and labels"),
        ({"features": None}, r"holds \['labels'\], not features and labels"),
        ({"indices": np.arange(8)}, "'indices'"),
    ],
)
def test_a_wrong_tensor_is_refused(
    digest: Digest, path: Path, tensors: dict[str, np.ndarray | None], message: str
) -> None:
    write_changed(path, digest, tensors=tensors)
    refuse(path, message)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e4m3fn])
def test_number_formats_that_numpy_lacks_are_refused(digest: Digest, path: Path, kind: torch.dtype) -> None:
    head = {"format": "feddig-digest", "format_version": "1", "silo": "5", "facts": "{}", "hash": ""}
    tensors = {"features": digest.features.to(kind), "labels": digest.labels}
    path.write_bytes(save_torch(tensors, {"feddig": json.dumps(head)}))
    refuse(path)


def test_a_row_that_sums_to_one_within_rounding_is_fine(digest: Digest) -> None:
    check_digest(replace(digest, labels=torch.tensor([[0.5, 0.50001, 0], [1 / 3, 1 / 3, 1 / 3]])), "here")


def test_an_oversize_header_is_refused_before_it_is_parsed(path: Path) -> None:
    path.write_bytes((LARGEST_HEADER + 1).to_bytes(8, "little") + b" " * 64)
    refuse(path, r"is no digest file, or its header is damaged; give the \.safetensors file")


def test_files_that_are_no_digests_are_refused(path: Path, tmp_path: Path) -> None:
    path.write_bytes(b"")
    refuse(path)
    path.write_bytes(pickle.dumps({"features": [1.0], "labels": [1.0]}))
    refuse(path, "no digest file")
    path.write_text("silo,features,labels\n")
    refuse(path)
    write_tensors(path, "model", {"features": rows([1, 2]), "labels": rows([1, 0])}, {})
    refuse(path, "not a FedDig digest file")
    refuse(tmp_path / "missing.safetensors", "No such file")
    folder = tmp_path / "folder.safetensors"
    folder.mkdir()
    refuse(folder, "cannot be read")


@pytest.mark.parametrize("count", [0, -4])
def test_fewer_than_one_sample_a_digest_is_refused(digest: Digest, path: Path, count: int) -> None:
    write_digest(path, replace(digest, facts={**digest.facts, "samples_per_digest": count}))
    refuse(path)


@pytest.mark.parametrize("name", ["replace", "fsync", "chmod"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    digest: Digest, path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    write_digest(path, digest)
    old = path.read_bytes()

    def fail(*arguments: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError, match="the disk is full"):
        write_digest(path, replace(digest, silo=6))
    assert path.read_bytes() == old
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_write_that_is_interrupted_cleans_up_too(
    digest: Digest, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_digest(path, digest)
    assert list(path.parent.iterdir()) == []


# --- digests outside a run

SMALL = ("data.limit=300", "data.min_samples=20", "digest.samples_per_digest=3")


def test_a_silo_makes_the_digest_that_it_would_send_in_a_run() -> None:
    experiment = demo_experiment(SMALL)
    simulation = build_simulation(experiment, device="cpu")
    for silo in simulation.silos:
        alone = digest_of_silo(experiment, silo.index)
        assert alone.silo == silo.index
        assert len(alone) == len(silo.samples) // 3
        assert alone.hash == simulation.make_digest(silo).hash


OWN_ENCODERS = """
import torch
from torch import nn

def signed(channels):
    torch.manual_seed(0)
    return nn.Conv2d(channels, 2, 4, stride=4)

def mixing(channels):
    torch.manual_seed(0)
    return nn.Sequential(signed(channels), nn.BatchNorm2d(2, track_running_stats=False), nn.ReLU())
"""
NOISES = {
    "paper-laplace": (),
    "discrete-laplace": ("privacy.epsilon=8", "privacy.clip_bound=2"),
    "discrete-gaussian": ("privacy.epsilon=8", "privacy.clip_bound=2", "privacy.delta=1e-5"),
}


@pytest.fixture
def own_encoders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Write a module with encoders and return its name."""
    (tmp_path / "encoders_for_test.py").write_text(OWN_ENCODERS)
    monkeypatch.syspath_prepend(tmp_path)
    yield "encoders_for_test"
    sys.modules.pop("encoders_for_test", None)


WAYS: dict[str, Callable[[Experiment], Digest]] = {
    "digest make": lambda experiment: digest_of_silo(experiment, 0),
    "a silo": lambda experiment: build_site(experiment, 0, device="cpu").make_digest(),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("noise", NOISES)
def test_codes_below_zero_are_refused_where_the_noise_relies_on_their_sign(
    own_encoders: str, noise: str, way: str
) -> None:
    keys = (f"digest.encoder={own_encoders}:signed", f"privacy.mechanism={noise}", *NOISES[noise])
    with pytest.raises(
        SettingError, match=rf"digest.encoder: gives a code of -.* silo 0, but {noise} relies on"
    ):
        WAYS[way](demo_experiment((*SMALL, *keys)))


@pytest.mark.parametrize("way", WAYS)
def test_an_encoder_that_mixes_the_images_of_a_batch_makes_no_digest(own_encoders: str, way: str) -> None:
    keys = (f"digest.encoder={own_encoders}:mixing", "privacy.mechanism=none")
    with pytest.raises(SettingError, match=r"digest.encoder: .* another code when it is encoded alone"):
        WAYS[way](demo_experiment((*SMALL, *keys)))


def test_without_noise_codes_may_be_below_zero(own_encoders: str) -> None:
    keys = (f"digest.encoder={own_encoders}:signed", "privacy.mechanism=none")
    assert float(digest_of_silo(demo_experiment((*SMALL, *keys)), 0).features.min()) < 0


def test_all_data_as_the_silos_own() -> None:
    digest = digest_of_silo(demo_experiment(SMALL), 9, all_data=True, classes=12)
    assert digest.silo == 9
    assert digest.features.shape == (100, 4, 8, 8)
    assert digest.labels.shape == (100, 12)
    assert digest.labels[:, 10:].sum() == 0


def test_a_silo_that_is_not_there_is_named() -> None:
    with pytest.raises(SettingError, match=r"--silo: 4 asked for, but data.silos is 4; they count from 0"):
        digest_of_silo(demo_experiment(SMALL), 4)


def test_silos_do_not_count_from_the_end() -> None:
    with pytest.raises(SettingError, match="--silo: -1"):
        digest_of_silo(demo_experiment(SMALL), -1)


def test_fewer_classes_than_the_data_has_are_refused() -> None:
    with pytest.raises(SettingError, match=r"--classes: 9 given, but the data has labels up to 9"):
        digest_of_silo(demo_experiment(SMALL), 0, classes=9)


def test_a_digest_file_is_described_in_words(path: Path) -> None:
    features = torch.tensor([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0], [6.0, 7.0], [8.0, 9.0]])
    digest = mix(features, torch.tensor([2, 2, 2, 2, 2]), silo=3, samples_per_digest=2, weights=(0.75, 0.25))
    write_digest(path, digest)
    described = describe_digest(path)
    assert described == {
        "silo": 3,
        "digests": 2,
        "samples_mixed": 4,
        "samples_left_out": 1,
        "feature_shape": [2],
        "feature_range": [round(float(digest.features.min()), 4), round(float(digest.features.max()), 4)],
        "classes": 3,
        "label_mass": [0, 0, 4],
        "bytes": 2 * 2 * 4 + 2 * 3 * 4,
        "samples_per_digest": 2,
        "mixing": "random",
        "weights": [0.75, 0.25],
        "mechanism": "none",
        "epsilon": 0.005,
        "scale_size": 20_000,
        "random": "a seed, for simulation only: anyone who knows it can remove the noise",
        "promise": "not private: no noise: record epsilon is infinite",
        "encoder": "an encoder's hash",
        "hash": digest.hash,
    }


def test_the_promise_of_a_digest_counts_its_elements_and_its_heaviest_weight(path: Path) -> None:
    """The promise is 256 elements x S 20,000 x epsilon .005 x weight .75."""
    entropy = replace(LOUD, random="system")
    features = torch.rand(8, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    write_digest(path, mix(features, cycling(8), samples_per_digest=2, weights=(0.25, 0.75), privacy=entropy))
    described = describe_digest(path)
    assert "infinite" in described["promise"]
    assert described["promise"].endswith("it would be 19,200")
    assert described["random"] == "the system's entropy"


@pytest.mark.parametrize(
    "fact",
    [
        "samples_per_digest",
        "mixing",
        "weights",
        "left_out",
        "mechanism",
        "epsilon",
        "scale_size",
        "random",
        "encoder",
    ],
)
def test_a_digest_without_one_of_its_facts_is_refused(digest: Digest, path: Path, fact: str) -> None:
    """Also with a matching hash, so that readers of a digest can rely on its facts."""
    write_digest(
        path, replace(digest, facts={key: value for key, value in digest.facts.items() if key != fact})
    )
    refuse(path, f"does not say its {fact}")
    write_digest(path, replace(digest, facts={**digest.facts, fact: None}))  # type: ignore[dict-item]
    refuse(path, f"does not say its {fact}")


def test_a_fact_that_was_altered_is_noticed(digest: Digest, path: Path) -> None:
    write_changed(path, digest, head={"facts": json.dumps({**digest.facts, "epsilon": 0.0005})})
    refuse(path, "does not match its hash")


def test_a_header_nested_without_end_is_refused(digest: Digest, path: Path) -> None:
    path.write_bytes(save({"features": digest.features.numpy()}, metadata={"feddig": "[" * 100_000}))
    refuse(path)


@pytest.mark.parametrize("weights", [[], ["heavy"] * 4, [1.0], [0.5] * 4])
def test_weights_that_cannot_be_are_refused(digest: Digest, path: Path, weights: list[float]) -> None:
    write_digest(path, replace(digest, facts={**digest.facts, "weights": weights}))
    refuse(path)


def test_empty_features_are_refused(digest: Digest, path: Path) -> None:
    write_digest(path, replace(digest, features=torch.zeros(2, 0)))
    refuse(path, "do not fit together")


def test_a_digest_of_a_silo_below_zero_is_refused(digest: Digest, path: Path) -> None:
    write_digest(path, replace(digest, silo=-1))
    refuse(path)
