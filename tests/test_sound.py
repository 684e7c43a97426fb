"""Digests with integer noise: a record changes them at most as promised, and the noise is as the facts state."""

import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from feddig import Digest, demo_experiment, make_digest, read_digest, run, write_digest
from feddig.digest.digest import limit_groups
from feddig.errors import DataError, FileFormatError, SettingError
from feddig.files import read_tensors, write_tensors
from feddig.privacy.clipping import (
    NORMS,
    clip_for,
    keep_fraction,
    likely_labels,
    randomise_labels,
    received_features,
    sent_sums,
    sum_records,
)
from feddig.privacy.mechanisms import public_facts
from feddig.privacy.mechanisms.discrete_gaussian import smallest_sigma
from feddig.privacy.samplers import SeededSource
from feddig.report.pictures import read_digests
from feddig.runs.release import describe_digest
from feddig.seeds import seeded_uniforms
from feddig.settings import DigestSettings, PrivacySettings

LAPLACE = PrivacySettings(mechanism="discrete-laplace", epsilon=2.0, clip_bound=4.0)
GAUSSIAN = PrivacySettings(mechanism="discrete-gaussian", epsilon=2.0, delta=1e-6, clip_bound=4.0)
SOUND = {"laplace": LAPLACE, "gaussian": GAUSSIAN}
REPLACING = replace(GAUSSIAN, adjacency="replace-one", label_epsilon=1.5)


def make(
    features: Tensor,
    labels: Tensor,
    privacy: PrivacySettings,
    *,
    silo: int = 0,
    classes: int = 3,
    groups: Tensor | None = None,
    **keys: object,
) -> Digest:
    how = DigestSettings(**{"seed": 0, "samples_per_digest": 2, **keys})  # type: ignore[arg-type]
    return make_digest(
        silo, features, labels, classes, settings=how, privacy=privacy, encoder="a hash", groups=groups
    )


def draw(count: int, *shape: int, seed: int = 0, scale: float = 1.5) -> tuple[Tensor, Tensor]:
    stream = np.random.default_rng(seed)
    features = torch.from_numpy(stream.exponential(scale, (count, *shape)).astype(np.float32))
    return features, torch.from_numpy(stream.integers(0, 3, count))


def sums_of(digest: Digest) -> np.ndarray:
    """Return the integers that were sent, computed from the receiver's features."""
    part = float(str(digest.facts["step"])) / int(str(digest.facts["samples_per_digest"]))
    return np.rint(digest.features.flatten(1).double().numpy() / part).astype(np.int64)


def bytes_of(digest: Digest) -> bytes:
    return digest.features.numpy().tobytes() + digest.labels.numpy().tobytes()


# --- how much one record changes a digest


@pytest.mark.parametrize("spd", [1, 2, 5])
@pytest.mark.parametrize("norm", NORMS)
def test_what_the_noise_promises_is_what_was_asked_for(norm: str, spd: int) -> None:
    """Compute epsilon from the noise and the sensitivity in integers."""
    settings, clip = DigestSettings(samples_per_digest=spd), clip_for(norm, 4.0)
    scale = Fraction(str(public_facts(replace(LAPLACE, clip_norm=norm), settings, 6, 3)["noise_scale"]))
    assert 1.999 < clip.l1_sensitivity(6) / scale <= 2
    variance = Fraction(
        str(public_facts(replace(GAUSSIAN, clip_norm=norm), settings, 6, 3)["noise_variance"])
    )
    sigma = math.sqrt(variance / clip.squared_l2_sensitivity(6))
    assert 1 <= sigma / smallest_sigma(2.0, 1e-6) < 1.001


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("norm", NORMS)
def test_the_promise_says_what_the_facts_say(name: str, norm: str) -> None:
    digest = make(*draw(8, 2, 3), replace(SOUND[name], clip_norm=norm))
    promise, facts = digest.promise, digest.facts
    assert (facts["sensitivity"], facts["sensitivity_norm"]) == (promise.sensitivity, promise.norm)
    assert (facts["delta"], facts["label_epsilon"]) == (promise.delta, promise.label_epsilon)
    # a Laplace draw of scale b has a variance of 2 b^2
    spread = math.sqrt(2) if name == "laplace" else 1
    assert facts["noise_deviation"] == pytest.approx(spread * promise.noise_scale)
    assert digest.mechanism.noise_deviation(facts) == facts["noise_deviation"]


@pytest.mark.parametrize("mixing", ["random", "within-class"])
@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("norm", NORMS)
def test_replacing_a_record_by_another_of_its_class_moves_one_digest_by_the_sensitivity_at_most(
    norm: str, name: str, mixing: str
) -> None:
    """The same seed draws the same noise, so two digests differ only by the record's effect."""
    privacy = replace(SOUND[name], clip_norm=norm)
    features, labels = draw(7, 2)
    clip = clip_for(norm, 4.0)
    corners = torch.tensor(list(itertools.product((-3.0, 0.0, 1.7, 4.0, 900.0), repeat=2)))
    farthest = 0.0
    for record in range(len(features)):
        digests = []
        for corner in corners:
            changed = features.clone()
            changed[record] = corner
            digests.append(make(changed, labels, privacy, mixing=mixing))
        assert len({digest.labels.numpy().tobytes() for digest in digests}) == 1
        assert len({json.dumps(digest.facts) for digest in digests}) == 1
        for one, other in itertools.combinations([sums_of(digest) for digest in digests], 2):
            moved = np.abs(one - other)
            assert (moved.any(1)).sum() <= 1
            far = moved.sum() if name == "laplace" else math.sqrt((moved**2).sum())
            farthest = max(farthest, float(far))
    allowed = clip.l1_sensitivity(2) if name == "laplace" else math.sqrt(clip.squared_l2_sensitivity(2))
    assert 0.99 * allowed < farthest <= allowed


@pytest.mark.parametrize("mixing", ["random", "within-class"])
def test_given_the_randomised_labels_a_true_label_changes_nothing_else(mixing: str) -> None:
    """With replace-one, features and groups depend only on randomised labels, not on the true ones."""
    features, labels = draw(40, 2)
    keep = keep_fraction(1.5, 3)
    noisy = randomise_labels(labels.numpy(), 3, keep, SeededSource(0, "labels", 0))
    first = make(features, labels, REPLACING, mixing=mixing)
    # public labels that equal the randomised ones
    public = make(features, torch.from_numpy(noisy), GAUSSIAN, mixing=mixing)
    assert np.array_equal(sums_of(first), sums_of(public))
    assert first.facts["left_out"] == public.facts["left_out"]


# --- the noise


@pytest.mark.parametrize("name", SOUND)
def test_what_is_received_is_the_mean_and_noise_of_the_promised_variance(name: str) -> None:
    """Features are constant and within the clip, so differences are noise, or rounding by half a step."""
    count = 40_000
    features = torch.full((2 * count, 4), 1.25)
    digest = make(features, torch.zeros(2 * count, dtype=torch.long), SOUND[name])
    noise = (digest.features - 1.25).double().numpy()
    deviation = float(str(digest.facts["noise_deviation"]))
    # the fourth moment is 6 squared variances for Laplace, 3 for Gaussian draws; allow six standard deviations
    kurtosis = 6 if name == "laplace" else 3
    slack = 6 * math.sqrt((kurtosis - 1) / noise.size)
    assert np.mean(noise**2) / deviation**2 == pytest.approx(1, abs=slack)
    assert abs(noise.mean()) < 6 * deviation / math.sqrt(noise.size)
    assert abs(np.corrcoef(noise[:, 0], noise[:, 1])[0, 1]) < 6 / math.sqrt(count)


def test_mixed_means_come_through_little_noise() -> None:
    features, labels = draw(9, 2, 3)
    quiet = make(features, labels, PrivacySettings(mechanism="none"), samples_per_digest=4)
    sound = make(features, labels, replace(GAUSSIAN, epsilon=1e9, clip_bound=64.0), samples_per_digest=4)
    assert torch.allclose(quiet.features, sound.features, atol=0.02)
    assert torch.equal(quiet.labels, sound.labels)
    assert quiet.facts["left_out"] == sound.facts["left_out"] == 1
    assert sound.samples == 8


def test_records_beyond_the_clip_are_held_to_it() -> None:
    features, labels = draw(8, 2, 3, scale=1000.0)
    digest = make(features, labels, replace(GAUSSIAN, epsilon=1e9), samples_per_digest=1)
    assert digest.features.flatten(1).norm(dim=1).tolist() == pytest.approx([4.0] * 8, abs=0.01)


@pytest.mark.parametrize("mixing", ["random", "within-class"])
@pytest.mark.parametrize("privacy", [LAPLACE, GAUSSIAN, REPLACING], ids=["laplace", "gaussian", "replacing"])
def test_the_same_seed_gives_the_same_bytes_whatever_the_threads(
    privacy: PrivacySettings, mixing: str
) -> None:
    features, labels = draw(3000, 4, 4, 4)
    threads = torch.get_num_threads()
    made = []
    try:
        for count in (1, 3, 1):
            torch.set_num_threads(count)
            made.append(make(features, labels, privacy, mixing=mixing, samples_per_digest=3))
    finally:
        torch.set_num_threads(threads)
    assert len({bytes_of(digest) for digest in made}) == len({digest.hash for digest in made}) == 1
    other = make(features, labels, privacy, mixing=mixing, samples_per_digest=3, seed=1)
    assert bytes_of(other) != bytes_of(made[0])


def test_every_silo_has_noise_of_its_own() -> None:
    same = torch.ones(8, 3), torch.zeros(8, dtype=torch.long)
    one, other = (make(*same, GAUSSIAN, silo=silo) for silo in (0, 1))
    assert not torch.equal(one.features, other.features)


@pytest.mark.parametrize("privacy", [LAPLACE, GAUSSIAN, REPLACING], ids=["laplace", "gaussian", "replacing"])
def test_the_systems_entropy_never_repeats(privacy: PrivacySettings) -> None:
    same = torch.ones(60, 3), torch.arange(60) % 3
    one, other = (make(*same, replace(privacy, random="system")) for _ in range(2))
    assert not torch.equal(one.features, other.features)
    assert one.facts["random"] == "system"


# --- labels


def test_public_labels_are_exact_and_randomised_ones_are_not() -> None:
    features, labels = draw(400, 2)
    public, noisy = (
        make(features, labels, privacy, samples_per_digest=4) for privacy in (GAUSSIAN, REPLACING)
    )
    quiet = make(features, labels, PrivacySettings(mechanism="none"), samples_per_digest=4)
    assert torch.equal(public.labels, quiet.labels)
    assert not torch.equal(noisy.labels, quiet.labels)
    for digest in (public, noisy):
        assert bool((digest.labels >= 0).all())
        assert digest.labels.sum(1).tolist() == pytest.approx([1.0] * len(digest), abs=1e-5)
    assert noisy.facts["label_epsilon"] == 1.5
    assert Fraction(str(noisy.facts["label_keep"])) == keep_fraction(1.5, 3)


def test_groups_of_one_randomised_label_are_likely_of_it_and_maybe_of_others() -> None:
    """Randomised labels have shares 5/8, 3/8 and 0 and are kept with 4/5: by s = p 7/10 + 1/10 the true shares are 3/4,
    11/28 and a negative number, which is projected to (19/28, 9/28, 0)."""
    counts = np.array([[10, 0, 0]] * 10 + [[0, 10, 0]] * 6)
    shares = likely_labels(counts, Fraction(4, 5))
    assert shares.dtype == np.float32
    assert shares.sum(1) == pytest.approx(np.ones(16))
    # by Bayes: 8/10 of 19/28 against 1/10 of 9/28, and vice versa
    assert shares[0] == pytest.approx([152 / 161, 9 / 161, 0])
    assert shares[-1] == pytest.approx([19 / 91, 72 / 91, 0])


def test_likely_labels_are_right_on_average() -> None:
    """In a large sample of uneven classes, grouped by randomised label, the shares are those of the true labels."""
    stream = np.random.default_rng(0)
    labels = stream.choice(4, 60_000, p=[0.5, 0.3, 0.15, 0.05])
    keep = Fraction(1, 2)
    noisy = randomise_labels(labels, 4, keep, SeededSource(0))
    counts = np.diag(np.bincount(noisy, minlength=4))
    shares = likely_labels(counts, keep)
    for label in range(4):
        true = np.bincount(labels[noisy == label], minlength=4) / (noisy == label).sum()
        assert shares[label] == pytest.approx(true, abs=0.03)


def test_public_labels_are_used_unchanged() -> None:
    assert likely_labels(np.array([[2, 0], [0, 2]]), Fraction(1)).tolist() == [[1, 0], [0, 1]]


# --- one-line errors


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"clip_bound": None}, "privacy.clip_bound: discrete-gaussian needs a public bound"),
        ({"delta": 0.0}, "privacy.delta: discrete-gaussian needs one above 0"),
        ({"mechanism": "discrete-laplace"}, "privacy.delta: discrete-laplace does not use it"),
        ({"adjacency": "replace-one"}, "privacy.label_epsilon: replace-one adjacency needs noise"),
        (
            {"adjacency": "same-lable"},
            "privacy.adjacency: 'same-lable' is not known; did you mean 'same-label'?",
        ),
        ({"label_epsilon": 1.0}, "privacy.label_epsilon: under same-label adjacency labels are public"),
        ({"epsilon": 0.0}, "privacy.epsilon: must be a finite number above 0"),
        ({"epsilon": math.inf}, "privacy.epsilon: must be a finite number above 0"),
        (
            {"epsilon": 1e-30, "delta": 1e-300},
            "privacy.epsilon: 1e-30 with discrete-gaussian takes noise that",
        ),
        ({"clip_bound": math.inf}, "privacy.clip_bound: must be a finite number above 0"),
        ({"budget_epsilon": 1.0}, "privacy.budget_epsilon: 1 does not cover a single release"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, object], line: str) -> None:
    with pytest.raises(SettingError) as error:
        make(*draw(8, 2), replace(GAUSSIAN, **changes))  # type: ignore[arg-type]
    assert str(error.value).startswith(line)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("privacy", [LAPLACE, GAUSSIAN], ids=["laplace", "gaussian"])
def test_weights_that_differ_are_refused(privacy: PrivacySettings) -> None:
    with pytest.raises(SettingError, match=r"digest\.weights: .* weigh all samples equally"):
        make(*draw(8, 2), privacy, weights=(0.6, 0.4))
    assert make(*draw(8, 2), privacy, weights=(0.5, 0.5)).facts["weights"] == [0.5, 0.5]


def test_too_few_randomised_labels_to_mix_is_an_error() -> None:
    with pytest.raises(DataError, match="silo 0: no 9 training samples of one class"):
        make(*draw(12, 2), REPLACING, mixing="within-class", samples_per_digest=9)


# --- the file and the summary


@pytest.mark.parametrize("spd", [1, 2, 3, 7])
@pytest.mark.parametrize("name", SOUND)
def test_integers_leave_and_the_receiver_divides(name: str, spd: int, tmp_path: Path) -> None:
    digest = make(*draw(60, 2, 4), SOUND[name], samples_per_digest=spd)
    write_digest(tmp_path / "d.safetensors", digest)
    sent, _ = read_tensors(tmp_path / "d.safetensors", "digest")
    assert sent["features"].dtype == np.int32
    assert np.array_equal(sent["features"].reshape(len(digest), -1), sums_of(digest))
    received = read_digest(tmp_path / "d.safetensors")
    assert bytes_of(received) == bytes_of(digest)
    assert received.hash == digest.hash


@pytest.mark.parametrize("spd", [1, 3, 10, 64, 1000])
def test_sums_of_any_size_come_back_as_the_same_features(spd: int) -> None:
    stream = np.random.default_rng(spd)
    for bits in range(2, 48, 5):
        sums = stream.integers(-(2**bits), 2**bits, (50, 20))
        features = received_features(sums, 2.0**-7, spd)
        sent = sent_sums(features, 2.0**-7, spd)
        assert sent is not None
        assert sent.dtype == (np.int32 if bits < 31 else np.int64)
        assert np.array_equal(received_features(sent, 2.0**-7, spd), features)
        if bits <= 22:
            assert np.array_equal(sent, sums)


def test_a_report_divides_as_receivers_do(tmp_path: Path) -> None:
    digest = make(*draw(60, 2, 4), GAUSSIAN, samples_per_digest=3)
    write_digest(tmp_path / "silo-0.safetensors", digest)
    ((features, labels),) = read_digests(tmp_path)
    assert np.array_equal(features, digest.features.numpy())
    assert np.array_equal(labels, digest.labels.numpy())


def test_numbers_that_are_no_integers_are_sent_as_they_are(tmp_path: Path) -> None:
    digest = make(*draw(60, 2, 4), GAUSSIAN)
    off = replace(digest, features=digest.features + 1e-4)
    write_digest(tmp_path / "d.safetensors", off)
    assert bytes_of(read_digest(tmp_path / "d.safetensors")) == bytes_of(off)
    assert sent_sums(np.full((1, 1), np.float32(1e30)), 2.0**-7, 1) is None
    assert sent_sums(np.ones((1, 1), np.float32), 0.0, 1) is None


@pytest.mark.parametrize(
    "facts", [{"step": math.inf}, {"step": 1e300}, {"step": "x"}, {"samples_per_digest": 0}]
)
def test_integers_that_cannot_be_divided_are_refused(facts: dict[str, object], tmp_path: Path) -> None:
    digest = make(*draw(60, 2, 4), GAUSSIAN)
    path = tmp_path / "d.safetensors"
    write_digest(path, digest)
    tensors, head = read_tensors(path, "digest")
    changed = {"silo": head["silo"], "hash": head["hash"], "facts": json.dumps({**digest.facts, **facts})}
    write_tensors(path, "digest", tensors, changed)
    with pytest.raises(FileFormatError, match=r"d\.safetensors"):
        read_digest(path)


def test_integers_without_a_discrete_mechanism_are_refused(tmp_path: Path) -> None:
    digest = make(*draw(60, 2, 4), PrivacySettings())
    facts = {"silo": "0", "hash": digest.hash, "facts": json.dumps(digest.facts)}
    tensors = {"features": digest.features.numpy().astype(np.int32), "labels": digest.labels.numpy()}
    write_tensors(tmp_path / "d.safetensors", "digest", tensors, facts)
    with pytest.raises(FileFormatError, match="features is int32, not float32"):
        read_digest(tmp_path / "d.safetensors")


def test_a_file_tells_the_contract(tmp_path: Path) -> None:
    path = tmp_path / "digest.safetensors"
    digest = make(*draw(9, 2, 3), REPLACING)
    write_digest(path, digest)
    again = read_digest(path)
    assert again.hash == digest.hash
    assert again.facts == json.loads(json.dumps(digest.facts)) == digest.facts
    assert digest.mechanism.fact_types.keys() <= digest.facts.keys()
    described = describe_digest(path)
    assert described["adjacency"] == "replace-one"
    assert described["clip_bound"] == 4.0
    assert described["promise"] == (
        "not private: record epsilon is 3.5 and delta 1e-06 under replace-one adjacency (2 for features and 1.5 for "
        "labels); it covers this one release of the digest and not the updates of the model; nothing is promised "
        "against anyone who knows the seed"
    )


@pytest.mark.parametrize(
    ("fact", "value", "text"),
    [
        ("noise_deviation", math.nan, "its noise_deviation is nan"),
        ("noise_deviation", -1.0, "its noise_deviation is -1"),
        ("delta", math.inf, "its delta is inf"),
        ("step", "1", "does not say its step"),
        ("adjacency", 1, "does not say its adjacency"),
    ],
)
def test_a_file_that_garbles_its_contract_is_refused(
    fact: str, value: object, text: str, tmp_path: Path
) -> None:
    digest = make(*draw(9, 2, 3), GAUSSIAN)
    path = tmp_path / "digest.safetensors"
    write_digest(path, replace(digest, facts={**digest.facts, fact: value}))  # type: ignore[dict-item]
    with pytest.raises(FileFormatError, match=text):
        read_digest(path)


@pytest.mark.parametrize(
    ("fact", "value"),
    [
        ("noise_variance", "x"),
        ("noise_variance", "0"),
        ("noise_variance", None),
        ("clip_norm", "l3"),
        ("label_keep", "1/0"),
    ],
)
def test_facts_that_make_no_promise_are_refused(fact: str, value: object) -> None:
    digest = make(*draw(60, 2, 3), REPLACING)
    with pytest.raises(FileFormatError, match="the digest's facts lack or garble"):
        _ = replace(digest, facts={**digest.facts, fact: value}).promise  # type: ignore[dict-item]


@pytest.mark.parametrize("mechanism", ["discrete-laplace", "discrete-gaussian"])
def test_a_run_with_sound_noise_ends_and_its_summary_tells_the_guarantee(
    mechanism: str, tmp_path: Path
) -> None:
    keys = ["data.limit=400", "data.min_samples=20", "training.rounds=4", f"privacy.mechanism={mechanism}"]
    sound = ["privacy.epsilon=8", "privacy.clip_bound=400", "digest.samples_per_digest=8"]
    delta = ["privacy.delta=1e-6"] if mechanism == "discrete-gaussian" else []
    summary = run(demo_experiment([*keys, *sound, *delta]), tmp_path / "run", device="cpu")
    assert summary["privacy"].startswith("record epsilon is 8")
    assert "not the updates" in summary["privacy"]
    for facts in summary["digests"].values():
        assert facts["mechanism"] == mechanism
        assert (facts["epsilon"], facts["adjacency"]) == (8.0, "same-label")
        assert facts["delta"] == (1e-6 if delta else 0.0)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["privacy"] == summary["privacy"]


# --- groups: the images of one patient


def group_settings(privacy: PrivacySettings, limit: int) -> PrivacySettings:
    return replace(privacy, unit="group", group_limit=limit)


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.parametrize("limit", [1, 3, 8])
def test_the_noise_for_a_group_is_that_for_as_many_records_at_once(name: str, limit: int) -> None:
    """All images of a group may be in one sum, which then changes by the total of their changes."""
    alone = public_facts(SOUND[name], DigestSettings(), 6, 3)
    grouped = public_facts(group_settings(SOUND[name], limit), DigestSettings(), 6, 3)
    assert grouped["sensitivity"] == pytest.approx(limit * float(str(alone["sensitivity"])))
    assert grouped["noise_deviation"] == pytest.approx(limit * float(str(alone["noise_deviation"])), rel=1e-3)
    digest = make(*draw(40, 2, 3), group_settings(SOUND[name], limit), groups=torch.arange(40) // 5)
    assert digest.promise.epsilon == pytest.approx(2.0)
    assert digest.promise.protects == "group"
    assert digest.promise.sentence.startswith("group epsilon is 2 ")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", range(5))
def test_a_group_moves_the_sums_no_farther_than_the_noise_allows_for(norm: str, seed: int) -> None:
    """Replace the three images of a group, wherever they are mixed, by three of any length."""
    facts = public_facts(
        replace(group_settings(GAUSSIAN, 3), clip_norm=norm), DigestSettings(samples_per_digest=4), 6, 3
    )
    stream, clip = np.random.default_rng(seed), clip_for(norm, 4.0)
    features = stream.exponential(2.0, (12, 6)).astype(np.float32)
    other = features.copy()
    features[:3], other[:3] = np.eye(6)[:3] * 100, np.eye(6)[3:] * 100
    groups = np.arange(12).reshape(3, 4) if seed == 0 else stream.permutation(12).reshape(3, 4)
    moved = sum_records(features, groups, clip) - sum_records(other, groups, clip)
    distance = math.sqrt(float((moved.astype(float) ** 2).sum())) * float(clip.step) / 4
    assert 0 < distance <= float(str(facts["sensitivity"])) * (1 + 1e-9)
    if seed == 0 and norm == "l2":  # all in one sum, as different as possible
        assert distance > 0.5 * float(str(facts["sensitivity"]))


def test_the_labels_of_a_group_share_its_epsilon() -> None:
    facts = public_facts(group_settings(REPLACING, 3), DigestSettings(), 6, 4)
    keep = float(Fraction(str(facts["label_keep"])))
    assert keep == pytest.approx(math.exp(0.5) / (math.exp(0.5) + 3))


@settings(max_examples=50, deadline=None)
@given(
    groups=st.lists(st.integers(0, 6), min_size=1, max_size=60),
    limit=st.integers(1, 4),
    seed=st.integers(0, 99),
)
def test_no_group_has_more_members_than_the_limit_and_none_fewer_than_it_could(
    groups: list[int], limit: int, seed: int
) -> None:
    numbers = torch.tensor(groups)
    kept = limit_groups(numbers, limit, seeded_uniforms(seed, "members"))
    assert kept.tolist() == sorted(set(kept.tolist()))
    for group in set(groups):
        assert int((numbers[kept] == group).sum()) == min(limit, groups.count(group))


def test_what_is_over_the_limit_is_left_out_and_counted() -> None:
    features, labels = draw(30, 2, 3)
    digest = make(features, labels, group_settings(GAUSSIAN, 2), groups=torch.arange(30) // 10)
    assert digest.samples == 6
    assert digest.facts["left_out"] == 24


def test_without_groups_no_promise_is_made_to_them() -> None:
    with pytest.raises(DataError, match=r"privacy\.unit is group, but the data names no groups"):
        make(*draw(30, 2, 3), group_settings(GAUSSIAN, 2))
    with pytest.raises(SettingError, match=r"privacy\.unit: paper-laplace does not use it"):
        make(*draw(30, 2, 3), PrivacySettings(unit="group"))
