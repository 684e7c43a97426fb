"""The audit: it is red without protection, green under sound noise, and its report names its inputs."""

import json
import math
import re
import shlex
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from feddig import load_dataset
from feddig.attacks.candidates import ClippedEncoder, apply_public_clip
from feddig.attacks.statistics import SuccessRate
from feddig.audit.attack_checks import check_membership, check_unmixing
from feddig.audit.audit import Audit, run_audit, settings_block, suggest_settings
from feddig.audit.audited import (
    AuditedDigests,
    AuditImages,
    features_of,
    groups_from_seed,
    match_classes,
    mix_without_noise,
    prepare_audit,
)
from feddig.audit.findings import (
    AttackBudget,
    Figure,
    Finding,
    Limits,
    figure_of_rate,
    judge,
    overall_verdict,
    read_limits,
)
from feddig.audit.inputs import load_guidance, load_images, load_inputs
from feddig.audit.promise_checks import check_accountant, check_canaries, check_numbers
from feddig.core.samples import ImageSource
from feddig.data.dataset import Images
from feddig.digest.digest import Digest, denoise, make_digest, make_digest_by_facts
from feddig.digest.digest_file import write_digest
from feddig.errors import FedDigError
from feddig.experiment.toml import experiment_from_table
from feddig.files import read_tensors, write_tensors
from feddig.models.encoder import encoder_hash, load_encoder
from feddig.models.networks import build_guidance
from feddig.privacy.integer_noise import IntegerNoise
from feddig.report.audit import audit_page
from feddig.report.page import rebuild_run_page, write_report
from feddig.runs.build import learn_guidance
from feddig.seeds import torch_stream
from feddig.settings import DigestSettings, PrivacySettings
from folders import error_line, run_feddig
from report_folders import write_folder
from test_audit_page import write_known_audit

MEMBERS, OTHERS = 240, 400
SMALL = AttackBudget(
    digests=50, pool=400, records=200, canaries=120, public=OTHERS, inverted=24, training_steps=25, changes=20
)
TINY = replace(SMALL, digests=20, canaries=20, records=20, inverted=8, training_steps=2, changes=2)
UNPROTECTED = PrivacySettings(mechanism="none")
STRONG = PrivacySettings(epsilon=1e-7)
SOUND = PrivacySettings(mechanism="discrete-gaussian", epsilon=1.0, delta=1e-6, clip_bound=60.0)


class Bench:
    """Images of Fashion-MNIST and digests of the first images."""

    def __init__(self, members: int = MEMBERS) -> None:
        fashion, self.encoder = load_dataset("fashion-mini"), load_encoder("default", 1)

        def source(images: Images, first: int, count: int) -> ImageSource:
            rows = np.arange(first, first + count)
            some = Images(images.pixels[rows], images.labels[rows])
            return ImageSource(some, self.encoder, torch.device("cpu"))

        self.images = AuditImages(
            source(fashion.train, 0, members),
            source(fashion.test, 0, OTHERS),
            source(fashion.train, len(fashion.train) - OTHERS, OTHERS),
            self.encoder,
        )

    def digest(
        self,
        privacy: PrivacySettings,
        spd: int,
        mixing: str = "random",
        weights: tuple[float, ...] = (),
        seed: int = 7,
    ) -> Digest:
        members = self.images.members
        settings = DigestSettings(samples_per_digest=spd, mixing=mixing, weights=weights, seed=seed)
        return make_digest(
            0, features_of(members), members.labels, 10, settings=settings, privacy=privacy,
            encoder=encoder_hash(self.encoder),
        )  # fmt: skip

    def audited(
        self, digest: Digest, *, mixing_seed: int | None = None, budget: AttackBudget = SMALL, seed: int = 0
    ) -> AuditedDigests:
        return prepare_audit(digest, self.images, budget, seed=seed, mixing_seed=mixing_seed)

    def audit(self, digest: Digest, budget: AttackBudget = SMALL, seed: int = 0) -> Audit:
        self.progress: list[str] = []
        audited = self.audited(digest, budget=budget, seed=seed)
        return run_audit(audited, Limits(), names={}, report=self.progress.append)


@pytest.fixture(scope="module")
def bench() -> Bench:
    torch.set_num_threads(1)
    return Bench()


@pytest.fixture(scope="module")
def unprotected(bench: Bench) -> Audit:
    return bench.audit(bench.digest(UNPROTECTED, spd=1))


def verdicts(audit: Audit) -> dict[str, str]:
    return {check["name"]: check["light"] for check in audit.report["checks"]}


def beyond_chance(audit: Audit) -> set[str]:
    return {check["name"] for check in audit.report["checks"] if check["beyond_chance"]}


def figure(audit: Audit, check: str, name: str) -> dict[str, float]:
    (found,) = [each for each in audit.report["checks"] if each["name"] == check]
    return next(each for each in found["figures"] if each["name"] == name)


# the whole audit


def test_every_check_of_unprotected_digests_is_red(unprotected: Audit) -> None:
    assert set(verdicts(unprotected).values()) == {"red"}
    assert unprotected.report["light"] == "red"
    assert figure(unprotected, "unmixing", "digests unmixed whole")["value"] == 1
    assert figure(unprotected, "membership", "linked (trial digests, likelihood ratio)")["value"] > 0.9
    assert figure(unprotected, "canaries", "planted records guessed right (all)")["value"] == 1


def test_strong_noise_leaves_nothing_beyond_chance_but_labels(bench: Bench) -> None:
    audit = bench.audit(bench.digest(STRONG, spd=2))
    assert beyond_chance(audit) == {"labels"}
    assert audit.report["tests"]["family_level"] == 0.99
    found = verdicts(audit)
    # the paper's mechanism promises nothing and has no lattice, however strong its noise is
    assert found["accountant"] == found["lattice"] == "red"
    assert {found[name] for name in ("canaries", "membership", "unmixing", "inversion")} == {"green"}


def test_sound_noise_at_epsilon_1_leaves_nothing_beyond_chance_but_labels(bench: Bench) -> None:
    digest = bench.digest(SOUND, spd=4)
    audit = bench.audit(digest)
    assert beyond_chance(audit) == {"labels"}
    found = verdicts(audit)
    checked = ("canaries", "membership", "unmixing", "inversion", "lattice")
    assert {found[name] for name in checked} == {"green"}
    sentences = {check["name"]: check["sentence"] for check in audit.report["checks"]}
    assert "treats labels as public" in sentences["labels"]
    # progress is reported
    assert [text for text in bench.progress if text.count(" ") == 3] == [
        f"{number} of 7, {name}" for number, name in enumerate(found, 1)
    ]
    assert "4 of 7, unmixing 50 of 50" in bench.progress
    details = audit.report["checks"][0]["details"]
    assert details["record_epsilon"] == details["claimed_epsilon"] == 1
    assert found["accountant"] == "red", "seeded digests must not be sent"
    drawn = replace(digest, facts={**digest.facts, "random": "system"})
    sound = check_accountant(drawn, Limits())
    assert sound.minimum == "green"
    assert "come from a seed" in sentences["accountant"]
    assert "come from the system's entropy" in sound.sentence


def test_the_same_audit_notices_what_epsilon_32_leaves(bench: Bench) -> None:
    audited = bench.audited(bench.digest(replace(SOUND, epsilon=32.0), spd=4))
    findings = [check_membership(audited, Limits())[0], check_unmixing(audited, Limits())[0]]
    membership, unmixing = judge(findings, Limits())
    assert "linked (trial digests, likelihood ratio)" in membership["beyond_chance"]
    assert unmixing["beyond_chance"] == ["members found"]


def test_the_same_audit_notices_a_tenth_of_the_contracts_noise(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = IntegerNoise.draw
    monkeypatch.setattr(IntegerNoise, "draw", lambda *given: honest(*given) // 10)
    audited = bench.audited(bench.digest(SOUND, spd=1))
    canaries, numbers = judge([check_canaries(audited, Limits()), check_numbers(audited, Limits())], Limits())
    assert numbers["beyond_chance"] == [
        "noise variance over the contract's (trial digests)",
        "noise variance over the contract's (file)",
    ]
    assert canaries["light"] == numbers["light"] == "red"


@pytest.mark.parametrize(
    "privacy",
    [
        replace(SOUND, mechanism="discrete-laplace", delta=0.0, clip_norm="l1"),
        replace(SOUND, adjacency="replace-one", label_epsilon=1.0),
        replace(SOUND, clip_norm="box", clip_bound=4.0),
    ],
)
def test_trial_digests_follow_every_sound_setting(bench: Bench, privacy: PrivacySettings) -> None:
    digest = bench.digest(privacy, spd=4, mixing="within-class")
    members = bench.images.members
    again = make_digest_by_facts(0, features_of(members), members.labels, 10, digest.facts, 7)
    assert again.hash == digest.hash
    assert bench.audited(digest, mixing_seed=7).from_file


def test_a_report_names_digests_settings_and_versions(bench: Bench, unprotected: Audit) -> None:
    bound = unprotected.report["bound_to"]
    assert bound["digest_hash"] == bench.digest(UNPROTECTED, spd=1).hash
    assert bound["versions"]["torch"] == torch.__version__
    assert bound["data"]["members"]["images"] == MEMBERS
    assert bound["effort"]["pool"] == 400
    assert len(bound["settings_hash"]) == 64


def test_the_file_itself_is_attacked_if_its_mixing_seed_is_known(bench: Bench) -> None:
    digest = bench.digest(PrivacySettings(), spd=2)
    audited = bench.audited(digest, mixing_seed=7, budget=TINY)
    _, curves = check_membership(audited, Limits())
    assert {"digests of the file, normalised", "whole file, likelihood ratio"} < set(curves)
    unmixing, _ = check_unmixing(audited, Limits())
    assert unmixing.figures[0].value > 0.9
    with pytest.raises(FedDigError, match="--mixing-seed: 8 does not make these digests"):
        bench.audited(digest, mixing_seed=8)


def test_a_file_with_less_noise_than_it_states_is_noticed(bench: Bench) -> None:
    honest = bench.digest(STRONG, spd=4)
    bare = bench.digest(UNPROTECTED, spd=4)
    for digest, beyond in (
        (replace(bare, facts=honest.facts), ["noise variance over the contract's (file)"]),
        (honest, []),
    ):
        (found,) = judge([check_numbers(bench.audited(digest), Limits())], Limits())
        assert found["beyond_chance"] == beyond


@pytest.mark.parametrize(
    ("members", "spd", "mixing"),
    [(MEMBERS, MEMBERS, "random"), (2560, 256, "random"), (5120, 256, "within-class")],
)
def test_a_file_without_the_noise_of_its_claim_is_red_at_every_spd(
    members: int, spd: int, mixing: str
) -> None:
    many = Bench(members)
    honest = many.digest(replace(SOUND, epsilon=8.0), spd=spd, mixing=mixing)
    groups = groups_from_seed(honest, many.images.members.labels, 7)
    clean = mix_without_noise(honest, features_of(many.images.members), groups).view_as(honest.features)
    for share, verdict in ((1, "green"), (0.7, "red"), (0, "red")):
        file = replace(honest, features=clean + share * (honest.features - clean))
        found = check_numbers(many.audited(file), Limits())
        (judged,) = judge([replace(found, minimum="green")], Limits())
        assert judged["light"] == verdict, share
        measured = next(each for each in found.figures if each.name.endswith("(file)"))
        assert measured.value == pytest.approx(share**2, abs=0.15)


def test_unequal_weights_are_audited_as_far_as_possible(bench: Bench) -> None:
    audit = bench.audit(bench.digest(UNPROTECTED, spd=2, weights=(0.9, 0.1)), replace(TINY, canaries=120))
    found = verdicts(audit)
    not_run = [name for name, verdict in found.items() if verdict == "not run"]
    assert not_run == ["membership", "unmixing", "labels"]
    assert found["canaries"] == "red"
    assert audit_page(audit.report, {})


def test_members_must_be_those_of_the_digests(bench: Bench) -> None:
    digest, images = bench.digest(UNPROTECTED, spd=4), bench.images
    fewer = replace(digest, features=digest.features[:5], labels=digest.labels[:5])
    with pytest.raises(FedDigError, match=f"--members: {MEMBERS} images, but the digests were made of 20"):
        bench.audited(fewer)
    rows = torch.nonzero(images.public.labels != 6)[:, 0].numpy()
    blank = Images(np.zeros((len(rows), 1, 32, 32), dtype=np.uint8), images.public.labels.numpy()[rows])
    public = ImageSource(blank, bench.encoder, torch.device("cpu"))
    with pytest.raises(FedDigError, match="--public: has no image of class 6, which digests have"):
        prepare_audit(digest, replace(images, public=public), SMALL, seed=0, mixing_seed=None)
    narrow = replace(digest, labels=digest.labels[:, :3])
    with pytest.raises(FedDigError, match="--members: has class 9, but the digests have 3 classes"):
        bench.audited(narrow)


# limits and verdicts


def test_limits_are_read_and_misspelt_ones_are_named(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text("linked_red = 0.5\nseeded_is_red = false\n")
    assert read_limits(path) == replace(Limits(), linked_red=0.5, seeded_is_red=False)
    assert read_limits(None) == Limits()
    for text, message in (
        ("linked_rd = 0.5", "linked_rd: unknown key; did you mean 'linked_red'"),
        ("linked_red = 1.5", "linked_red: 1.5 is out of range"),
        ("linked_red = nan", "linked_red: nan is not a finite number"),
        ("linked_red = true", "linked_red: True is not a number"),
        ("seeded_is_red = 1", "seeded_is_red: 1 is not true or false"),
        ("linked_red =", "not valid TOML"),
    ):
        path.write_text(text)
        with pytest.raises(FedDigError, match=re.escape(message)):
            read_limits(path)


def test_a_verdict_depends_on_chance_first_and_on_the_limit_second() -> None:
    def verdict(p: float, low: float) -> str:
        found = Figure("f", 0.5, (low, 0.9), 0.1, p, red_above=0.2)
        (judged,) = judge([Finding("n", "t", "s", [found])], Limits())
        return str(judged["light"])

    assert verdict(0.02, 0.4) == "green"
    assert verdict(0.009, 0.2) == "amber"
    assert verdict(0.009, 0.4) == "red"


def test_limits_are_held_against_chance_and_against_non_members_of_the_class() -> None:
    def verdict(share: float, chance: float, baseline: float | None = None) -> str:
        rate = SuccessRate(round(1600 * share), 1600, chance)
        found = replace(figure_of_rate("linked", rate, Limits(), 0.05), baseline=baseline)
        return str(judge([Finding("n", "t", "s", [found])], Limits())[0]["light"])

    assert verdict(0.31, 0.25) == "amber", (
        "six points above chance; the low end of the interval is three above"
    )
    assert verdict(0.35, 0.25) == "red"
    assert verdict(0.35, 0.25, baseline=0.30) == "amber"
    assert verdict(0.10, 0.01) == "red"


def test_what_was_not_run_is_never_green_and_public_labels_decide_nothing() -> None:
    assert overall_verdict(["green", "public", "not run"]) == "amber"
    assert overall_verdict(["green", "public"]) == "green"
    assert overall_verdict(["public", "not run", "red"]) == "red"
    leak = Figure("classes", 1.0, (0.99, 1.0), 0.1, 0.0, red_above=0.5)
    lights = [
        judge([Finding("labels", "t", "s", [leak], is_declared=declared)], Limits())[0]["light"]
        for declared in (True, False)
    ]
    assert lights == ["public", "red"]


def test_many_tests_together_need_more_evidence_each() -> None:
    weak = Figure("f", 0.5, (0.4, 0.6), 0.1, 0.004)
    alone, together = (judge([Finding("n", "t", "s", [weak] * count)], Limits()) for count in (1, 4))
    assert alone[0]["beyond_chance"] == ["f"]
    assert together[0]["beyond_chance"] == []


# single checks


def test_the_canary_test_is_about_right_where_epsilon_is_known(bench: Bench) -> None:
    sigma = 1.1935  # epsilon 4 at delta 1e-6, in sensitivities
    digest = bench.digest(replace(SOUND, epsilon=4.0), spd=4)
    found = check_canaries(bench.audited(digest, budget=replace(SMALL, canaries=10_000)), Limits())
    expected = 0.5 * math.erfc(-1 / (2 * sigma) / math.sqrt(2))
    assert found.figures[0].value == pytest.approx(expected, abs=0.02)
    assert 1 < found.details["lower_bound_epsilon"] < 4
    assert found.minimum == "amber"


@pytest.mark.parametrize(
    ("privacy", "spd", "mixing"),
    [
        (replace(SOUND, epsilon=8.0), 64, "random"),
        (replace(SOUND, mechanism="discrete-laplace", epsilon=8.0, delta=0.0, clip_norm="l1"), 8, "random"),
        (replace(SOUND, mechanism="discrete-laplace", epsilon=8.0, delta=0.0), 2, "random"),
        (replace(SOUND, epsilon=8.0, clip_norm="box", clip_bound=4.0), 4, "within-class"),
        (replace(SOUND, epsilon=7.0, adjacency="replace-one", label_epsilon=1.0), 4, "within-class"),
    ],
)
def test_a_release_without_noise_is_refuted_at_a_claim_of_8(
    bench: Bench, privacy: PrivacySettings, spd: int, mixing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = bench.digest(privacy, spd=spd, mixing=mixing)
    monkeypatch.setattr(IntegerNoise, "draw", lambda noise, count, *rest: np.zeros(count, dtype=np.int64))
    audited = bench.audited(digest, budget=replace(SMALL, canaries=AttackBudget().canaries))
    found = check_canaries(audited, Limits())
    assert found.minimum == "red"
    assert found.details["could_have_refuted"] == found.details["lower_bound_epsilon"] > privacy.epsilon
    assert f"could have refuted claims up to {found.details['could_have_refuted']:.2f}." in found.sentence


def test_a_claim_that_the_canaries_cannot_refute_is_not_green(bench: Bench) -> None:
    audited = bench.audited(bench.digest(SOUND, spd=4), budget=replace(SMALL, canaries=10))
    found = check_canaries(audited, Limits())
    assert found.minimum == "amber"
    assert "raise --canaries" in found.sentence


@pytest.mark.parametrize(
    ("delta", "verdict"), [(1e-6, "green"), (1e-4, "amber"), (5e-3, "red"), (0.1, "red")]
)
def test_delta_is_limited(bench: Bench, delta: float, verdict: str) -> None:
    digest = bench.digest(replace(SOUND, delta=delta), spd=4)
    found = check_accountant(replace(digest, facts={**digest.facts, "random": "system"}), Limits())
    assert found.minimum == verdict
    assert (", more than 0.001." in found.sentence) is (verdict == "red")


@pytest.mark.parametrize(("norm", "bound"), [("l1", 700.0), ("l2", 60.0), ("box", 4.0)])
def test_attackers_clip_candidates_as_the_silo_does(bench: Bench, norm: str, bound: float) -> None:
    digest = bench.digest(replace(SOUND, clip_norm=norm, clip_bound=bound), spd=1)
    features = features_of(bench.images.members)
    exact = mix_without_noise(digest, features, torch.arange(MEMBERS)[:, None])
    clipped = apply_public_clip(features, digest).flatten(1)
    step = float(str(digest.facts["step"]))
    torch.testing.assert_close(clipped, exact, atol=2 * step, rtol=0)
    assert not torch.allclose(features.flatten(1), exact, atol=2 * step)
    encoded = ClippedEncoder(bench.encoder, digest)(bench.images.members.images(torch.arange(8)))
    torch.testing.assert_close(encoded.flatten(1), clipped[:8], atol=1e-4, rtol=0)


def test_unmixing_knows_the_clip(bench: Bench) -> None:
    audited = bench.audited(bench.digest(replace(SOUND, epsilon=1e5), spd=2))
    finding, _ = check_unmixing(audited, Limits())
    assert finding.figures[0].value > 0.9


def test_nonmembers_are_drawn_class_by_class() -> None:
    labels, others = torch.tensor([0] * 6 + [1] * 4), torch.tensor([1] * 20 + [0] * 3 + [2] * 9)
    mine, theirs = match_classes(labels, others, 10, torch_stream(0, "match"))
    assert labels[mine].sort().values.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert others[theirs].sort().values.tolist() == [0, 0, 0, 1, 1, 1, 1]
    with pytest.raises(FedDigError, match="no image of any class"):
        match_classes(labels, torch.tensor([5]), 10, torch_stream(0, "match"))


# what to do


def test_settings_are_changed_where_a_check_is_red_and_nowhere_else(bench: Bench) -> None:
    private = replace(SOUND, epsilon=7.0, adjacency="replace-one", label_epsilon=1.0, random="system")
    digest = bench.digest(private, spd=4)

    def suggested(file: Digest, encoder: str = "default", **lights: str) -> str:
        return settings_block(suggest_settings(file, lights, Limits(), encoder=encoder), file.facts)

    assert suggested(digest, accountant="amber", lattice="red") == ""
    assert "label_epsilon = 0.5  # was 1.0" in suggested(digest, labels="red")
    block = suggested(digest, membership="red")
    assert "samples_per_digest = 16  # was 4" in block
    assert "epsilon = 3.5  # was 7.0\nlabel_epsilon = 0.5  # was 1.0" in block
    assert block.count("# was") == 3
    pasted = experiment_from_table(tomllib.loads(block))
    assert pasted.privacy == replace(private, epsilon=3.5, label_epsilon=0.5)
    weighted = bench.digest(UNPROTECTED, spd=2, weights=(0.9, 0.1))
    assert "weights = []" in suggested(weighted, accountant="red")
    assert "clip_bound = 350.0" in suggested(weighted, accountant="red")
    assert "# clip_bound: choose a public bound" in suggested(weighted, "mine.safetensors", accountant="red")


# inputs


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """Write members as the training part and non-members as the test part of an archive."""
    fashion = load_dataset("fashion-mini")
    path = tmp_path / "mine.npz"
    np.savez(
        path, x_train=fashion.train.pixels[:80], y_train=fashion.train.labels[:80],
        x_test=fashion.test.pixels[:120], y_test=fashion.test.labels[:120],
    )  # fmt: skip
    return path


def test_images_come_from_names_archives_folders_and_parts(archive: Path, tmp_path: Path) -> None:
    assert len(load_images("--members", "fashion-mini", None)) == 6000
    assert len(load_images("--members", str(archive), None)) == 80
    assert len(load_images("--members", f"{archive}:test", None)) == 120
    assert len(load_images("--members", f"{archive}:all", None)) == 200
    some = load_images("--members", "mine.npz:test:10-19", tmp_path)
    assert some.labels.tolist() == load_dataset("fashion-mini").test.labels[10:20].tolist()
    for label in ("a", "b"):
        (tmp_path / "folder" / label).mkdir(parents=True)
        for number in range(10):
            Image.new("L", (32, 32), number).save(tmp_path / "folder" / label / f"{number}.png")
    assert len(load_images("--holdout", f"{tmp_path / 'folder'}:all", None)) == 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fashion-mni", "did you mean 'fashion-mini'"),
        ("fashion-mini:test:5-99999", "rows 5-99999 asked for"),
        ("fashion-mini:validation", "only a silo of an experiment"),
    ],
)
def test_data_that_does_not_exist_is_named(text: str, message: str) -> None:
    with pytest.raises(FedDigError, match=message):
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


def test_members_in_the_holdout_are_dropped_and_a_wrong_encoder_is_refused(bench: Bench) -> None:
    digest = bench.digest(UNPROTECTED, spd=4)
    given = {"public": None, "encoder": "default", "data_dir": None, "budget": SMALL, "seed": 0}
    both = load_inputs(digest, members="fashion-mini:0-239", holdout="fashion-mini:200-599", **given)
    assert len(both.holdout) + len(both.public) == 360
    with pytest.raises(FedDigError, match="--holdout: all of its images are members"):
        load_inputs(digest, members="fashion-mini:0-239", holdout="fashion-mini:0-99", **given)
    other = replace(digest, facts={**digest.facts, "encoder": "0123456789abcdef"})
    with pytest.raises(FedDigError, match="--encoder: default is not the one"):
        load_inputs(other, members="fashion-mini:0-239", holdout="fashion-mini:test", **given)


# guidance


@pytest.fixture(scope="module")
def guidance_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("guidance") / "guidance.safetensors"
    network = build_guidance("deconvolution", (4, 8, 8), (1, 32, 32))
    write_tensors(path, "guidance", {name: each.numpy() for name, each in network.state_dict().items()}, {})
    return path


def test_guidance_is_loaded_from_a_runs_file(guidance_file: Path) -> None:
    loaded = load_guidance(guidance_file, (4, 8, 8), (1, 32, 32))
    assert loaded(torch.rand(2, 4, 8, 8)).shape == (2, 1, 32, 32)
    for name, array in read_tensors(guidance_file, "guidance")[0].items():
        assert torch.equal(loaded.state_dict()[name], torch.from_numpy(array))
    with pytest.raises(FedDigError, match="another network"):
        load_guidance(guidance_file, (4, 8, 8), (3, 32, 32))


def test_guidance_is_trained_on_the_digests_if_no_run_gave_any(bench: Bench) -> None:
    digest = bench.digest(UNPROTECTED, spd=4)
    with torch.random.fork_rng():
        torch.manual_seed(5)
        before = torch.random.get_rng_state()
        short, long = (
            learn_guidance(replace(digest, silo=3), bench.encoder, (1, 32, 32), seed=0, steps=steps)
            for steps in (1, 10)
        )
        assert torch.equal(torch.random.get_rng_state(), before)
    assert short(digest.features[:2]).shape == (2, 1, 32, 32)
    assert not torch.equal(short(digest.features[:2]), long(digest.features[:2])), "training changed it"


@pytest.mark.parametrize("privacy", [UNPROTECTED, SOUND])
def test_guidance_is_drawn_from_what_a_moderator_sees(bench: Bench, privacy: PrivacySettings) -> None:
    audited = bench.audited(bench.digest(privacy, spd=1), budget=TINY)
    given: list[torch.Tensor] = []

    class Producer(torch.nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            given.append(features)
            return torch.full((len(features), 1, 32, 32), 0.25)

    audit = run_audit(
        audited, Limits(), names={}, guidance={"guidance": Producer()}, report=lambda text: None
    )
    assert audit.pictures["guidance"].shape == (8, 1, 1, 32, 32)
    assert float(audit.pictures["guidance"].mean()) == 0.25
    known, (features,) = audited.known, given
    homes = [known.groups[:, 0].tolist().index(int(first)) for first in audited.groups[:8, 0]]
    assert torch.equal(features, denoise([known.digest], known.digest.features)[homes])
    assert torch.equal(features, audited.digest.features[:8]) == (privacy is UNPROTECTED)


# the command and the page


def test_the_command_writes_a_report_and_a_page(
    archive: Path,
    guidance_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(AttackBudget, "quick", lambda budget: TINY)
    odd = tmp_path / "a<b>.npz"
    archive.rename(odd)
    encoder = load_encoder("default", 1)
    source = ImageSource(load_images("--members", str(odd), None), encoder, torch.device("cpu"))
    digest = make_digest(
        3, features_of(source), source.labels, 10, settings=DigestSettings(seed=1), privacy=UNPROTECTED,
        encoder=encoder_hash(encoder),
    )  # fmt: skip
    write_digest(tmp_path / "digest.safetensors", digest)
    given = [
        "--digests", str(tmp_path / "digest.safetensors"), "--members", str(odd), "--holdout", f"{odd}:test", "--quick",
    ]  # fmt: skip
    more = ["--guidance", str(guidance_file), "--fail-on", "red", "--quiet"]
    assert run_feddig("audit", *given, *more, "--out", str(tmp_path / "out")) == 1
    printed = capsys.readouterr()
    assert printed.out.startswith("Verdict: red. ")
    assert 'mechanism = "discrete-gaussian"  # was none\n' in printed.out
    assert "next    feddig digest make experiment.toml --all-data --out digest-2.safetensors\n" in printed.out
    assert "4 red      Unmixing" in printed.out
    assert "never that the digests are private" in printed.out.splitlines()[0]
    assert "keep it at the silo" in printed.err
    report = json.loads((tmp_path / "out" / "audit.json").read_text())
    assert report["bound_to"]["digest_hash"] == digest.hash
    assert [check["number"] for check in report["checks"]] == [1, 2, 3, 4, 5, 6, 7]
    assert report["checks"][0]["details"]["record_epsilon"] == "inf"
    assert report["attacked"].startswith("trial digests")
    page = (tmp_path / "out" / "report.html").read_text()
    assert "a&lt;b&gt;.npz" in page
    assert "a<b>" not in page
    assert page.count("data:image/png;base64,") == 2
    assert "Guidance is what the moderator draws" in page
    assert "was trained here" not in page
    assert "default-src 'none'; img-src data:;" in page
    for outside in ('src="/', "@import", "url(http", 'src="http', 'href="http'):
        assert outside not in page
    words = shlex.split(report["command"])
    assert (words[:2], words[-2:]) == (["feddig", "audit"], ["--out", "again"])
    assert ["--members", str(odd)] == words[words.index("--members") :][:2]
    assert "--quick" in words
    # an audit within a run's folder is shown on the run's page
    run = write_folder(tmp_path / "run", [50.0, 60.0], ["11", "10"])
    write_report([run])
    inside = run / "audits" / "silo-3"
    assert run_feddig("audit", *given, "--mixing-seed", "1", "--out", str(inside)) == 0
    assert "was trained here" in (inside / "report.html").read_text()
    assert json.loads((inside / "audit.json").read_text())["attacked"].startswith(
        "digests of the file itself"
    )
    pages = [inside / "report.html", run / "report.html"]
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if line.startswith("page ")] == [f"page     {page}" for page in pages]
    assert "Audit of silo 3" in (run / "report.html").read_text()
    # an audit is not replaced, and the same inputs give the same report
    assert run_feddig("audit", *given, "--out", str(tmp_path / "out")) == 2
    assert "has an audit already" in capsys.readouterr().err
    assert (
        run_feddig("audit", *given, "--out", str(tmp_path / "more"), "--no-pictures", "--json", "--quiet")
        == 0
    )
    again = json.loads(capsys.readouterr().out)
    assert again["hash"] == report["hash"]
    assert (again["page"], again["run_page"]) == (str(tmp_path / "more" / "report.html"), None)
    assert (tmp_path / "more" / "report.html").read_text().count("data:image/png;base64,") == 1
    assert not (tmp_path / "more" / "recovered.png").exists(), "the images of members are not written either"
    assert "--no-pictures" in shlex.split(again["command"])
    # the page is made again from the folder alone
    (tmp_path / "out" / "report.html").unlink()
    assert run_feddig("report", tmp_path / "out") == 0
    assert (tmp_path / "out" / "report.html").read_text() == page


def test_a_runs_folder_keeps_its_own_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "summary.json").write_text("{}")
    given = ["--digests", "d", "--members", "fashion-mini", "--holdout", "fashion-mini:test"]
    assert run_feddig("audit", *given, "--out", str(tmp_path)) == 2
    assert f"choose a folder in it, as {tmp_path / 'audit'}" in capsys.readouterr().err


def test_a_runs_page_is_rebuilt_for_audits_up_to_two_folders_below(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [50.0, 60.0], ["11", "10"])
    write_known_audit(run / "a")
    assert rebuild_run_page(run / "a") is None, "an unfinished run writes its page at its end"
    page, _ = write_report([run])
    for place, shown in (("a/b/c", False), ("a/b", True), ("a", True)):
        write_known_audit(run / place)
        page.write_text("old")
        assert rebuild_run_page(run / place) == (page if shown else None)
        assert ("Audit of silo" in page.read_text()) == shown


@pytest.mark.parametrize("content", ["{", "{}", '{"format_version": 1, "checks": 3}'])
def test_a_damaged_audit_is_one_line(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "audit.json").write_text(content)
    assert "audit.json" in error_line(capsys, "report", tmp_path)


def test_mistakes_are_one_line_and_an_audit_uses_one_thread_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--digests", str(tmp_path / "none.safetensors"), "--members", "fashion-mini"]
    given += ["--holdout", "fashion-mini:test", "--out", str(tmp_path / "out")]
    before = torch.get_num_threads()
    try:
        for more, threads in (["--threads", "2"], 2), ([], 1):
            assert "none.safetensors: cannot be read" in error_line(capsys, "audit", *given, *more)
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
