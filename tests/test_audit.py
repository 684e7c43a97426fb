"""The audit: it fails loudly where nothing protects, is quiet where noise hides all, and says what it is about."""

import json
import math
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from feddig import load_dataset
from feddig.attacks.canaries import draw_pairs, evaluate_coins, guess_coins
from feddig.attacks.candidates import AgreedEncoder, Noise, clip_as_agreed
from feddig.attacks.inversion import denoise, imitate_digests, train_denoiser
from feddig.attacks.membership import roc_curve
from feddig.attacks.statistics import (
    Estimate,
    Rate,
    canary_epsilon,
    chance_of_mean,
    chance_of_ranks,
    chance_of_rate,
)
from feddig.audit import audit as running
from feddig.audit.attack_checks import check_membership, check_unmixing
from feddig.audit.audit import Audit, run_audit
from feddig.audit.findings import Effort, Figure, Finding, Limits, judge, read_limits
from feddig.audit.inputs import load_guidance, load_images, load_inputs
from feddig.audit.promise_checks import check_accountant, check_canaries, check_numbers
from feddig.audit.rehearsal import mix_without_noise
from feddig.audit.subject import Subject, match_classes, prepare_subject
from feddig.cli import main
from feddig.core.samples import ImageSource
from feddig.data.dataset import Images
from feddig.digest.denoising import denoise as denoise_digests
from feddig.digest.digest import Digest, make_digest, make_digest_by_facts
from feddig.digest.digest_file import write_digest
from feddig.errors import FedDigError
from feddig.files import write_tensors
from feddig.models.encoder import encoder_hash, load_encoder
from feddig.models.guidance import build_guidance
from feddig.privacy.integer_noise import IntegerNoise
from feddig.report.audit import audit_page
from feddig.report.page import rebuild_run_page, write_report
from feddig.runs.build import learn_guidance
from feddig.seeds import torch_stream
from feddig.settings import DigestSettings, PrivacySettings
from report_folders import write_folder
from test_audit_page import write_known_audit

SMALL = Effort(
    digests=60, pool=500, records=200, canaries=120, public=500, inverted=24, training_steps=60, changes=40
)
MEMBERS = 480
UNPROTECTED = PrivacySettings(mechanism="none")
STRONG = PrivacySettings(epsilon=1e-7)
SOUND = PrivacySettings(mechanism="discrete-gaussian", epsilon=1.0, delta=1e-6, clip_bound=60.0)


class Bench:
    """Images of Fashion-MNIST, and digests of the first of them."""

    def __init__(self) -> None:
        fashion, self.encoder = load_dataset("fashion-mini"), load_encoder("default", 1)

        def source(images: Images, rows: np.ndarray) -> ImageSource:
            return ImageSource(
                Images(images.pixels[rows], images.labels[rows]), self.encoder, torch.device("cpu")
            )

        self.members = source(fashion.train, np.arange(MEMBERS))
        self.holdout = source(fashion.test, np.arange(500))
        self.public = source(fashion.train, np.arange(2000, 2500))

    def digest(self, privacy: PrivacySettings, spd: int, mixing: str = "random", seed: int = 7) -> Digest:
        features = self.members.features
        assert features is not None
        return make_digest(
            0,
            features,
            self.members.labels,
            10,
            settings=DigestSettings(samples_per_digest=spd, mixing=mixing, seed=seed),
            privacy=privacy,
            encoder=encoder_hash(self.encoder),
        )

    def subject(self, digest: Digest, *, mixing_seed: int | None = None, effort: Effort = SMALL) -> Subject:
        return prepare_subject(
            digest, self.members, self.holdout, self.public, self.encoder, effort,
            seed=0, mixing_seed=mixing_seed,
        )  # fmt: skip

    def audit(self, digest: Digest, *, mixing_seed: int | None = None) -> Audit:
        subject = self.subject(digest, mixing_seed=mixing_seed)
        self.heard: list[str] = []
        return run_audit(subject, Limits(), names={}, say=self.heard.append)


@pytest.fixture(scope="module")
def bench() -> Bench:
    torch.set_num_threads(1)
    return Bench()


@pytest.fixture(scope="module")
def unprotected(bench: Bench) -> Audit:
    return bench.audit(bench.digest(UNPROTECTED, spd=1))


@pytest.fixture(scope="module")
def strong(bench: Bench) -> Audit:
    return bench.audit(bench.digest(STRONG, spd=4))


def lights(audit: Audit) -> dict[str, str]:
    return {check["name"]: check["light"] for check in audit.report["checks"]}


def figure(audit: Audit, check: str, name: str) -> dict[str, float]:
    (found,) = [each for each in audit.report["checks"] if each["name"] == check]
    return next(each for each in found["figures"] if each["name"] == name)


# what the whole audit says


def test_unprotected_digests_fail_loudly(unprotected: Audit) -> None:
    assert set(lights(unprotected).values()) == {"red"}
    assert unprotected.report["light"] == "red"
    assert figure(unprotected, "unmixing", "digests unmixed whole")["value"] == 1
    assert figure(unprotected, "membership", "linked (rehearsal, likelihood ratio)")["value"] > 0.9
    assert figure(unprotected, "canaries", "canaries told right")["value"] == 1


@pytest.mark.slow
def test_strong_noise_leaves_nothing_beyond_chance_but_labels(strong: Audit) -> None:
    beyond = {check["name"] for check in strong.report["checks"] if check["beyond_chance"]}
    assert beyond == {"labels"}
    assert strong.report["tests"]["family_level"] == 0.99
    found = lights(strong)
    # the paper's mechanism promises nothing and is no lattice, however strong its noise
    assert found["accountant"] == found["lattice"] == "red"
    assert {found[name] for name in ("canaries", "membership", "unmixing", "inversion")} == {"green"}


def test_sound_noise_at_epsilon_1_leaves_nothing_beyond_chance_but_labels(bench: Bench) -> None:
    digest = bench.digest(SOUND, spd=4)
    audit = bench.audit(digest)
    beyond = {check["name"] for check in audit.report["checks"] if check["beyond_chance"]}
    assert beyond == {"labels"}
    found = lights(audit)
    assert {found[name] for name in ("canaries", "membership", "unmixing", "inversion", "lattice")} == {
        "green"
    }
    assert "takes labels as public" in next(
        check["sentence"] for check in audit.report["checks"] if check["name"] == "labels"
    )
    # whoever waits is told how far it is
    assert [text for text in bench.heard if text.count(" ") == 3] == [
        f"{number} of 7, {name}" for number, name in enumerate(found, 1)
    ]
    assert any(text.startswith("4 of 7, unmixing 50 of ") for text in bench.heard)
    accountant = audit.report["checks"][0]
    assert accountant["details"]["record_epsilon"] == accountant["details"]["claimed_epsilon"] == 1
    assert accountant["light"] == "red", "it is seeded, which nobody may send"
    drawn = replace(digest, facts={**digest.facts, "random": "system"})
    sound = check_accountant(drawn, Limits())
    assert sound.least == "green"
    assert "come from a seed" in accountant["sentence"]
    assert "come from the system's entropy" in sound.sentence


def test_the_same_audit_notices_what_epsilon_32_leaves(bench: Bench) -> None:
    subject = bench.subject(bench.digest(replace(SOUND, epsilon=32.0), spd=4))
    findings = [check_membership(subject, Limits())[0], check_unmixing(subject, Limits())[0]]
    membership, unmixing = judge(findings, Limits())
    assert "linked (rehearsal, likelihood ratio)" in membership["beyond_chance"]
    assert unmixing["beyond_chance"] == ["members found"]


def test_the_same_audit_notices_noise_of_a_tenth_of_the_contracts(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = IntegerNoise.draw
    monkeypatch.setattr(IntegerNoise, "draw", lambda *given: honest(*given) // 10)
    subject = bench.subject(bench.digest(SOUND, spd=4))
    canaries, numbers = judge([check_canaries(subject, Limits()), check_numbers(subject, Limits())], Limits())
    assert canaries["beyond_chance"] == ["canaries told right"]
    assert numbers["beyond_chance"] == ["noise variance over the contract's (rehearsal)"]
    assert canaries["light"] == numbers["light"] == "red"


@pytest.mark.parametrize(
    "privacy",
    [
        replace(SOUND, mechanism="discrete-laplace", delta=0.0, clip_norm="l1"),
        replace(SOUND, adjacency="replace-one", label_epsilon=1.0),
        replace(SOUND, clip_norm="box", clip_bound=4.0),
    ],
)
def test_every_sound_setting_can_be_rehearsed(bench: Bench, privacy: PrivacySettings) -> None:
    digest = bench.digest(privacy, spd=4, mixing="within-class")
    members, labels = bench.members.features, bench.members.labels
    assert members is not None
    assert make_digest_by_facts(0, members, labels, 10, digest.facts, 7).hash == digest.hash
    assert bench.subject(digest, mixing_seed=7).of_file


@pytest.mark.slow
def test_the_same_inputs_give_the_same_report(bench: Bench, unprotected: Audit) -> None:
    again = bench.audit(bench.digest(UNPROTECTED, spd=1))
    assert {**again.report, "made": ""} == {**unprotected.report, "made": ""}
    assert again.report["hash"] == unprotected.report["hash"]


def test_a_report_is_bound_to_digests_settings_and_versions(bench: Bench, unprotected: Audit) -> None:
    bound = unprotected.report["bound_to"]
    assert bound["digest_hash"] == bench.digest(UNPROTECTED, spd=1).hash
    assert bound["versions"]["torch"] == torch.__version__
    assert bound["data"]["members"]["images"] == MEMBERS
    assert bound["effort"]["pool"] == 500
    assert len(bound["settings_hash"]) == 64


@pytest.mark.slow
def test_the_file_itself_is_attacked_where_its_mixing_seed_is_known(bench: Bench) -> None:
    digest = bench.digest(PrivacySettings(), spd=4)
    audit = bench.audit(digest, mixing_seed=7)
    assert "the file itself" in audit.report["attacked"]
    assert figure(audit, "unmixing", "digests unmixed whole")["value"] > 0.9
    assert {"some digests, normalised", "whole file, likelihood ratio"} < set(audit.curves)
    with pytest.raises(FedDigError, match="--mixing-seed: 8 does not make these digests"):
        bench.subject(digest, mixing_seed=8)


def test_a_file_with_less_noise_than_it_says_is_noticed(bench: Bench) -> None:
    honest = bench.digest(STRONG, spd=4)
    bare = bench.digest(UNPROTECTED, spd=4)
    liar = replace(bare, facts=honest.facts)
    (found,) = judge([check_numbers(bench.subject(liar), Limits())], Limits())
    assert found["beyond_chance"] == ["the file's spread over the rehearsal's"]
    (found,) = judge([check_numbers(bench.subject(honest), Limits())], Limits())
    assert found["beyond_chance"] == []


@pytest.mark.slow
def test_unequal_weights_are_audited_as_far_as_they_can_be(bench: Bench) -> None:
    features = bench.members.features
    assert features is not None
    digest = make_digest(
        0, features, bench.members.labels, 10,
        settings=DigestSettings(samples_per_digest=2, weights=(0.9, 0.1), seed=7),
        privacy=UNPROTECTED, encoder="any",
    )  # fmt: skip
    audit = bench.audit(digest)
    found = lights(audit)
    assert [name for name, light in found.items() if light == "not run"] == [
        "membership",
        "unmixing",
        "labels",
    ]
    assert found["canaries"] == "red"
    assert audit_page(audit.report, {})


# what is refused


def test_members_must_be_those_of_the_digests(bench: Bench) -> None:
    digest = bench.digest(UNPROTECTED, spd=4)
    fewer = replace(digest, features=digest.features[:5], labels=digest.labels[:5])
    with pytest.raises(FedDigError, match="--members: 480 images, but the digests were made of 20"):
        bench.subject(fewer)
    rows = torch.nonzero(bench.public.labels != 6)[:, 0].numpy()
    images = Images(np.zeros((len(rows), 1, 32, 32), dtype=np.uint8), bench.public.labels.numpy()[rows])
    public = ImageSource(images, bench.encoder, torch.device("cpu"))
    with pytest.raises(FedDigError, match="--public: has no image of class 6, which digests have"):
        prepare_subject(
            digest, bench.members, bench.holdout, public, bench.encoder, SMALL, seed=0, mixing_seed=None
        )
    narrow = replace(digest, labels=digest.labels[:, :3])
    with pytest.raises(FedDigError, match="--members: has class 9, but the digests have 3 classes"):
        bench.subject(narrow)


# limits and lights


def test_limits_are_read_and_misspelt_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("linked_red = 0.5\nseeded_is_red = false\n")
    assert read_limits(path) == replace(Limits(), linked_red=0.5, seeded_is_red=False)
    assert read_limits(None) == Limits()
    for text, said in (
        ("linked_rd = 0.5", "linked_rd: no such limit; did you mean 'linked_red'"),
        ("linked_red = 1.5", "linked_red: 1.5 is out of range"),
        ("linked_red = nan", "linked_red: nan is out of range"),
        ("linked_red = true", "linked_red: must be a number"),
        ("seeded_is_red = 1", "seeded_is_red: must be true or false"),
        ("linked_red =", "cannot be read as TOML"),
    ):
        path.write_text(text)
        with pytest.raises(FedDigError, match=re.escape(said)):
            read_limits(path)


def test_a_light_follows_from_chance_first_and_the_limit_after() -> None:
    def light(p: float, low: float) -> str:
        found = Figure("f", 0.5, (low, 0.9), 0.1, p, red_above=0.3)
        (judged,) = judge([Finding("n", "t", "s", [found])], Limits())
        return str(judged["light"])

    assert light(0.02, 0.4) == "green"
    assert light(0.009, 0.2) == "amber"
    assert light(0.009, 0.4) == "red"


def test_many_tests_together_need_more_evidence_each() -> None:
    weak = Figure("f", 0.5, (0.4, 0.6), 0.1, 0.004)
    alone, together = (judge([Finding("n", "t", "s", [weak] * count)], Limits()) for count in (1, 4))
    assert alone[0]["beyond_chance"] == ["f"]
    assert together[0]["beyond_chance"] == []


# the attacks that came with the audit


@pytest.mark.parametrize(
    ("right", "canaries", "epsilon"),
    [(100, 100, 3.4930), (900, 1000, 2.0212), (750, 1000, 0.9767), (500, 1000, 0)],
)
def test_canaries_prove_the_epsilons_of_the_design(right: int, canaries: int, epsilon: float) -> None:
    coins = torch.zeros(canaries, dtype=torch.long)
    guesses = (torch.arange(canaries) >= right).long()
    found = evaluate_coins(guesses, coins, 0.5)
    assert found.right == Rate(right, canaries, 0.5)
    assert round(found.epsilon, 4) == epsilon
    assert found.epsilon == canary_epsilon(right, canaries)


def test_canaries_are_halves_that_share_nothing() -> None:
    pairs = draw_pairs(50, 7, 2.0, torch_stream(0, "pairs"))
    assert torch.equal(pairs.sum(1), torch.full((50, 7), 2.0))
    assert set(pairs[:, 0].count_nonzero(1).tolist()) == {3}
    digest = Digest(0, pairs[:, 1].clone(), torch.ones(50, 1), {})
    assert torch.equal(guess_coins(digest, pairs, Noise(1.0)), torch.ones(50, dtype=torch.long))


def test_the_canary_test_is_about_right_where_epsilon_is_known(bench: Bench) -> None:
    sigma = 1.1935  # epsilon 4 at delta 1e-6, in sensitivities
    digest = bench.digest(replace(SOUND, epsilon=4.0), spd=1)
    subject = bench.subject(digest, effort=replace(SMALL, canaries=MEMBERS))
    found = check_canaries(subject, Limits())
    expected = 0.5 * math.erfc(-1 / (2 * sigma) / math.sqrt(2))
    assert found.figures[0].value == pytest.approx(expected, abs=0.07)
    assert found.least in ("green", "amber")


def test_tails_are_known_by_hand() -> None:
    assert chance_of_rate(Rate(2, 2, 0.5)) == pytest.approx(0.25)
    assert chance_of_rate(Rate(0, 9, 0.5)) == 1
    assert chance_of_mean(Estimate(0.5 + 1.6448536, 1.0, 0.5)) == pytest.approx(0.05, abs=1e-6)
    # of 2 members and 2 others in random order, both members come first with probability 1/6, one or more with 1/2
    assert chance_of_ranks(2, 2, 2, 0) == pytest.approx(1 / 6)
    assert chance_of_ranks(1, 2, 2, 0) == pytest.approx(1 / 2)
    assert chance_of_ranks(0, 2, 2, 0) == chance_of_ranks(2, 2, 2, 2) == 1


def test_a_curve_goes_from_none_to_all_and_takes_ties_together() -> None:
    false, true = roc_curve(torch.tensor([3.0, 1.0]), torch.tensor([1.0, 0.0]))
    assert false.tolist() == [0, 0, 0.5, 1]
    assert true.tolist() == [0, 0.5, 1, 1]


def test_a_denoiser_learns_and_leaves_the_global_stream_alone(bench: Bench) -> None:
    images = bench.public.images(torch.arange(200))
    noise = 0.3 * torch.randn(images.shape, generator=torch_stream(0, "spoilt"))
    before = torch.random.get_rng_state()
    denoiser = train_denoiser(images + noise, images, steps=80)
    assert torch.equal(before, torch.random.get_rng_state())
    spoilt = (images + noise).clamp(0, 1)
    cleaned = denoise(denoiser, images + noise)
    assert float((cleaned - images).square().mean()) < 0.5 * float((spoilt - images).square().mean())


@pytest.mark.parametrize("heavy_tails", [False, True])
def test_imitated_digests_have_the_assumed_noise(heavy_tails: bool) -> None:
    codes, images = torch.zeros(40, 2, 4, 4), torch.rand(40, 1, 8, 8)
    features, means = imitate_digests(codes, images, 4, Noise(2.0, heavy_tails), count=64)
    assert features.shape == (64, 2, 4, 4)
    assert means.shape == (64, 1, 8, 8)
    assert float(features.std()) == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize(("norm", "bound"), [("l1", 700.0), ("l2", 60.0), ("box", 4.0)])
def test_attackers_clip_candidates_as_the_silo_does(bench: Bench, norm: str, bound: float) -> None:
    privacy = replace(SOUND, clip_norm=norm, clip_bound=bound)
    digest, features = bench.digest(privacy, spd=1), bench.members.features
    assert features is not None
    exact = mix_without_noise(digest, features, torch.arange(MEMBERS)[:, None])
    clipped = clip_as_agreed(features, digest).flatten(1)
    step = float(str(digest.facts["step"]))
    torch.testing.assert_close(clipped, exact, atol=2 * step, rtol=0)
    assert not torch.allclose(features.flatten(1), exact, atol=2 * step)
    images = bench.members.images(torch.arange(8))
    torch.testing.assert_close(
        AgreedEncoder(bench.encoder, digest)(images).flatten(1), clipped[:8], atol=1e-4, rtol=0
    )


def test_unmixing_knows_the_clip(bench: Bench) -> None:
    subject = bench.subject(bench.digest(replace(SOUND, epsilon=1e5), spd=2))
    finding, _ = check_unmixing(subject, Limits())
    assert finding.figures[0].value > 0.9


def test_strangers_are_drawn_class_by_class() -> None:
    labels, others = torch.tensor([0] * 6 + [1] * 4), torch.tensor([1] * 20 + [0] * 3 + [2] * 9)
    mine, theirs = match_classes(labels, others, 10, torch_stream(0, "match"))
    assert (
        labels[mine].sort().values.tolist() == others[theirs].sort().values.tolist() == [0, 0, 0, 1, 1, 1, 1]
    )
    with pytest.raises(FedDigError, match="no image of any class"):
        match_classes(labels, torch.tensor([5]), 10, torch_stream(0, "match"))


# what a user gives


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Write members as training part and strangers as test part of an archive."""
    fashion = load_dataset("fashion-mini")
    path = tmp_path / "mine.npz"
    np.savez(
        path, x_train=fashion.train.pixels[:160], y_train=fashion.train.labels[:160],
        x_test=fashion.test.pixels[:200], y_test=fashion.test.labels[:200],
    )  # fmt: skip
    return path


def test_images_come_from_names_archives_folders_and_parts(archive: Path, tmp_path: Path) -> None:
    assert len(load_images("--members", "fashion-mini", None)) == 6000
    assert len(load_images("--members", str(archive), None)) == 160
    assert len(load_images("--members", f"{archive}:test", None)) == 200
    assert len(load_images("--members", f"{archive}:all", None)) == 360
    some = load_images("--members", "mine.npz:test:10-19", tmp_path)
    assert some.labels.tolist() == load_dataset("fashion-mini").test.labels[10:20].tolist()
    for label in ("a", "b"):
        (tmp_path / "folder" / label).mkdir(parents=True)
        for number in range(10):
            Image.new("L", (32, 32), number).save(tmp_path / "folder" / label / f"{number}.png")
    assert len(load_images("--holdout", f"{tmp_path / 'folder'}:all", None)) == 20


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("fashion-mni", "did you mean 'fashion-mini'"),
        ("fashion-mini:test:5-99999", "rows 5-99999 asked for"),
        ("fashion-mini:validation", "only a silo of an experiment"),
    ],
)
def test_data_that_is_not_there_is_named(text: str, said: str) -> None:
    with pytest.raises(FedDigError, match=said):
        load_images("--holdout", text, None)


def test_members_may_be_a_silos_share_of_an_experiment(tmp_path: Path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_text('[data]\nname = "fashion-mini"\nsilos = 2\npartition = "iid"\n')
    parts = {
        part: len(load_images("--members", f"{path}:{part}", None, 1))
        for part in ("train", "validation", "all")
    }
    assert parts == {"train": 2400, "validation": 300, "all": 3000}
    with pytest.raises(FedDigError, match="has 2 silos, but the digests are of silo 5"):
        load_images("--members", str(path), None, 5)


def test_members_among_strangers_are_dropped_and_a_wrong_encoder_is_refused(bench: Bench) -> None:
    digest = bench.digest(UNPROTECTED, spd=4)
    given = {"public": None, "encoder": "default", "data_dir": None, "effort": SMALL, "seed": 0}
    both = load_inputs(digest, members="fashion-mini:0-479", holdout="fashion-mini:400-999", **given)
    assert len(both.holdout) + len(both.public) == 520
    with pytest.raises(FedDigError, match="--holdout: all of its images are members"):
        load_inputs(digest, members="fashion-mini:0-479", holdout="fashion-mini:0-99", **given)
    stranger = replace(digest, facts={**digest.facts, "encoder": "0123456789abcdef"})
    with pytest.raises(FedDigError, match="--encoder: default is not the one"):
        load_inputs(stranger, members="fashion-mini:0-479", holdout="fashion-mini:test", **given)


def test_guidance_is_loaded_from_a_runs_file(bench: Bench, tmp_path: Path) -> None:
    digest = bench.digest(UNPROTECTED, spd=4)
    network = build_guidance("deconvolution", (4, 8, 8), (1, 32, 32))
    arrays = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    write_tensors(tmp_path / "guidance.safetensors", "guidance", arrays, {})
    loaded = load_guidance(tmp_path / "guidance.safetensors", digest.features.shape[1:], (1, 32, 32))
    torch.testing.assert_close(loaded(digest.features), network(digest.features))
    with pytest.raises(FedDigError, match="another network"):
        load_guidance(tmp_path / "guidance.safetensors", digest.features.shape[1:], (3, 32, 32))


# the command and the page


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["audit", *arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_command_writes_a_report_and_a_page(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        Effort, "quick", lambda effort: replace(SMALL, training_steps=5, changes=3, inverted=8)
    )
    fashion, encoder = load_dataset("fashion-mini"), load_encoder("default", 1)
    source = ImageSource(
        Images(fashion.train.pixels[np.arange(160)], fashion.train.labels[:160]), encoder, torch.device("cpu")
    )
    assert source.features is not None
    digest = make_digest(
        3, source.features, source.labels, 10, settings=DigestSettings(seed=1), privacy=UNPROTECTED,
        encoder=encoder_hash(encoder),
    )  # fmt: skip
    write_digest(tmp_path / "digest.safetensors", digest)
    network = build_guidance("deconvolution", (4, 8, 8), (1, 32, 32))
    arrays = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    write_tensors(tmp_path / "guidance.safetensors", "guidance", arrays, {})
    odd = tmp_path / "a<b>.npz"
    archive.rename(odd)
    given = [
        "--digests", str(tmp_path / "digest.safetensors"), "--members", str(odd), "--holdout", f"{odd}:test", "--quick",
    ]  # fmt: skip
    more = ["--guidance", str(tmp_path / "guidance.safetensors"), "--fail-on", "red", "--quiet"]
    assert command(*given, *more, "--out", str(tmp_path / "out")) == 1
    said = capsys.readouterr()
    assert "4 red      Unmixing" in said.out
    assert "never that the digests are private" in said.out
    assert "keep it at the silo" in said.err
    report = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert report["bound_to"]["digest_hash"] == digest.hash
    assert [check["number"] for check in report["checks"]] == [1, 2, 3, 4, 5, 6, 7]
    assert report["checks"][0]["details"]["record_epsilon"] == "inf"
    page = (tmp_path / "out" / "report.html").read_text()
    assert "a&lt;b&gt;.npz" in page
    assert "a<b>" not in page
    assert page.count("data:image/png;base64,") == 2
    assert "default-src 'none'; img-src data:;" in page
    for outside in ('src="/', "@import", "url(http", 'src="http', 'href="http'):
        assert outside not in page
    words = shlex.split(report["command"])
    assert (words[:2], words[-2:]) == (["feddig", "audit"], ["--out", "again"])
    assert ["--members", str(odd)] == words[words.index("--members") :][:2]
    assert "--quick" in words
    # an audit within a run's folder shows on the run's page
    run = write_folder(tmp_path / "run", [50.0, 60.0], ["11", "10"])
    write_report([run])
    assert command(*given, "--out", str(run / "audits" / "silo-3")) == 0
    assert "It was learnt here" in (run / "audits" / "silo-3" / "report.html").read_text()
    assert f"the run's page shows it now: {run / 'report.html'}\n" in capsys.readouterr().err
    assert "Audit of silo 3" in (run / "report.html").read_text()
    assert command(*given, "--out", str(tmp_path / "out")) == 2
    assert "has an audit already" in capsys.readouterr().err
    assert command(*given, "--out", str(tmp_path / "more"), "--no-pictures", "--json", "--quiet") == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["hash"] == report["hash"]
    assert (tmp_path / "more" / "report.html").read_text().count("data:image/png;base64,") == 1
    assert not (tmp_path / "more" / "recovered.png").exists(), "members' images are not kept either"
    assert "--no-pictures" in shlex.split(json.loads(said.out)["command"])
    assert "Guidance is what the moderator paints" in page
    assert "learnt here" not in page
    # the page is made again from the folder alone
    (tmp_path / "out" / "report.html").unlink()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path / "out")])
    assert ended.value.code == 0
    assert (tmp_path / "out" / "report.html").read_text() == page


def test_a_runs_folder_keeps_its_own_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").write_text("{}")
    given = ["--digests", "d", "--members", "fashion-mini", "--holdout", "fashion-mini:test"]
    assert command(*given, "--out", str(tmp_path)) == 2
    assert f"choose a folder in it, as {tmp_path / 'audit'}" in capsys.readouterr().err


@pytest.mark.parametrize(("place", "shown"), [("a", True), ("a/b", True), ("a/b/c", False)])
def test_a_runs_page_is_made_anew_where_it_looks_for_audits(place: str, shown: bool, tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [50.0, 60.0], ["11", "10"])
    write_known_audit(run / place)
    assert rebuild_run_page(run / place) is None, "a run that goes on makes its page at its end"
    page, _ = write_report([run])
    page.write_text("old")
    assert rebuild_run_page(run / place) == (page if shown else None)
    assert ("Audit of silo" in page.read_text()) == shown


@pytest.mark.parametrize("content", ["{", "{}", '{"format_version": 1, "checks": 3}'])
def test_a_damaged_audit_is_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "audit.json").write_text(content)
    with pytest.raises(SystemExit) as ended:
        main(["report", str(tmp_path)])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "audit.json" in said
    assert said.count("\n") == 1


def test_guidance_is_learnt_from_the_digests_where_no_run_gave_any(bench: Bench) -> None:
    digest = bench.digest(UNPROTECTED, spd=4)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        before = torch.random.get_rng_state()
        short, long = (
            learn_guidance(replace(digest, silo=3), bench.encoder, (1, 32, 32), seed=0, steps=steps)
            for steps in (1, 30)
        )
        assert torch.equal(torch.random.get_rng_state(), before)
    assert short(digest.features[:2]).shape == (2, 1, 32, 32)
    assert not torch.equal(short(digest.features[:2]), long(digest.features[:2])), "it has learnt something"


@pytest.mark.parametrize("privacy", [UNPROTECTED, SOUND])
def test_guidance_is_painted_from_what_a_moderator_sees(
    bench: Bench, privacy: PrivacySettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    blank = {"any": torch.zeros(SMALL.inverted, 1, 32, 32)}
    finding = Finding("inversion", "", "")
    monkeypatch.setattr(running, "check_inversion", lambda *given: (finding, blank))
    monkeypatch.setattr(running, "check_unmixing", lambda *given: (finding, None))
    subject = bench.subject(bench.digest(privacy, spd=4), effort=replace(SMALL, digests=20))
    given: list[torch.Tensor] = []

    class Producer(torch.nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            given.append(features)
            return torch.full((len(features), 1, 32, 32), 0.25)

    audit = run_audit(subject, Limits(), names={}, guidance={"guidance": Producer()}, say=lambda text: None)
    assert audit.pictures["guidance"].shape == (8, 1, 1, 32, 32)
    assert float(audit.pictures["guidance"].mean()) == 0.25
    whole, (features,) = subject.whole.digest, given
    homes = [subject.whole.groups[:, 0].tolist().index(int(first)) for first in subject.groups[:8, 0]]
    assert torch.equal(features, denoise_digests([whole], whole.features)[homes])
    assert torch.equal(features, subject.digest.features[:8]) == (privacy is UNPROTECTED)


def test_an_audit_keeps_to_one_thread_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--digests", str(tmp_path / "none.safetensors"), "--members", "fashion-mini"]
    given += ["--holdout", "fashion-mini:test", "--out", str(tmp_path / "out")]
    before = torch.get_num_threads()
    try:
        for more, threads in (["--threads", "2"], 2), ([], 1):
            assert command(*given, *more) == 2
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
        capsys.readouterr()


def test_mistakes_are_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--members", "fashion-mini", "--holdout", "fashion-mini:test", "--out", str(tmp_path / "out")]
    assert command("--digests", str(tmp_path / "none.safetensors"), *given) == 2
    said = capsys.readouterr().err
    assert "none.safetensors: cannot be read" in said
    assert len(said.splitlines()) == 1


def test_the_page_needs_no_torch() -> None:
    program = "import sys, feddig.report.audit\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
