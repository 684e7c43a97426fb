"""Algorithms in whole runs: which silos train and are recalled, what is learned, and unusual data."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import make_tiny_experiment
from feddig import Dataset, Experiment, FedDigError, Networks, dataset_from_arrays, run
from feddig.core.recipe import names, read_recipe
from feddig.errors import DataError, DivergenceError, SettingError
from feddig.experiment.toml import experiment_from_table
from feddig.runs.build import build_simulation
from folders import network_tensors, rows, rows_without_times, tensors

Trained = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def trained(tiny_dataset: Dataset, tmp_path: Path) -> Trained:
    """Return a function that runs the tiny experiment into tmp_path/NAME and returns its rows."""

    def train(
        algorithm: str,
        /,
        name: str = "",
        dataset: Dataset = tiny_dataset,
        networks: Networks | None = None,
        **sections: dict[str, object],
    ) -> list[dict[str, Any]]:
        own = {"name": algorithm, **sections.pop("algorithm", {})}
        folder = tmp_path / (name or algorithm)
        run(make_tiny_experiment(algorithm=own, **sections), folder, dataset=dataset, networks=networks)
        return rows_without_times(folder)

    return train


def curve(found: list[dict[str, Any]]) -> list[float]:
    return [row["test_accuracy"] for row in found]


def norms(found: list[dict[str, Any]]) -> list[float]:
    return [row["parameter_norm"] for row in found]


# --- every algorithm


@pytest.mark.parametrize("algorithm", names())
def test_every_algorithm_runs_and_does_what_its_name_says(
    algorithm: str, trained: Trained, tmp_path: Path
) -> None:
    # three rounds of sequential leaving: all silos are present, then silo 0 is absent, then all are
    found = trained(algorithm, name="run", training={"rounds": 3})
    recipe = read_recipe(algorithm)
    assert all(math.isfinite(norm) and norm > 0 for norm in norms(found))
    assert all(0 <= accuracy <= 100 for accuracy in curve(found))

    all_silos = [0, 1, 2]
    here = [all_silos] * 3 if recipe.centralised else [all_silos, [1, 2], []]
    assert [row["present"] for row in found] == here
    away = [[], [0], all_silos]
    assert [row["recalled"] for row in found] == (away if recipe.recall else [[]] * 3)
    # the expert trains when digests arrive
    joint = [True, False, False] if recipe.expert else [recipe.joint] * 3
    assert [row["losses"]["joint"] is not None for row in found] == joint
    silos_that_train = [["0"]] * 3 if recipe.centralised else [["0", "1", "2"], ["1", "2"], []]
    if recipe.frozen:
        silos_that_train = [["0", "1", "2"], [], []]
    if not recipe.silos_train:
        silos_that_train = [[]] * 3
    assert [list(row["losses"]["silos"]) for row in found] == silos_that_train

    assert (tmp_path / "run" / "digests").exists() == recipe.collects_digests
    assert (tmp_path / "run" / "guidance.safetensors").exists() == (recipe.recall or recipe.joint)
    model = tmp_path / "run" / "model.safetensors"
    parts = {name.partition(".")[0] for name in network_tensors(model)}
    expected = {"raw", "digest", "head"} if recipe.sees_features else {"raw", "head"}
    assert parts == ({"classifier", "expert", "coverage"} if recipe.expert else expected)
    sees_codes = recipe.sees_features or recipe.expert
    assert (len(tensors(model)) > len(network_tensors(model))) == sees_codes, (
        "it receives the encoder's features"
    )


def test_feddig_remembers_what_fedavg_forgets(trained: Trained) -> None:
    """Check the paper's claim on a small run: after all silos have left, FedDig still knows all four classes."""
    fedavg, feddig = curve(trained("fedavg")), curve(trained("feddig"))
    assert fedavg[-1] < 60
    assert feddig[-1] > 90


def test_plain_feddig_is_feddig_over_fedavg(trained: Trained) -> None:
    assert trained("feddig") == trained("feddig+fedavg")


def test_fedprox_without_its_penalty_is_fedavg_to_the_bit(trained: Trained) -> None:
    assert trained("fedprox", algorithm={"fedprox": {"mu": 0}}) == trained("fedavg")
    assert trained("fedprox", name="with", algorithm={"fedprox": {"mu": 1.0}}) != trained("fedavg", name="b")


@pytest.mark.parametrize(
    "setting",
    [
        {"feddyn": {"alpha": 2.0}},
        {"adabest": {"mu": 0.2}},
        {"adabest": {"beta": 0.9}},
        {"fedprox": {"mu": 2.0}},
    ],
)
def test_an_algorithms_own_settings_have_an_effect(
    setting: dict[str, dict[str, float]], trained: Trained
) -> None:
    (base,) = setting
    sections = {"training": {"rounds": 3}, "absence": {"scenario": "none"}}
    assert trained(base, **sections) != trained(base, name="set", algorithm=setting, **sections)


# --- controls


@pytest.mark.parametrize("base", ["fedavg", "feddyn"])
@pytest.mark.parametrize(("scenario", "first_leave"), [("sequential", 3), ("temporary", 1), ("groups", 3)])
def test_frozen_stays_as_its_base_was_in_the_round_before_the_first_leave(
    base: str, scenario: str, first_leave: int, trained: Trained
) -> None:
    frozen = trained(f"frozen+{base}", absence={"scenario": scenario})
    moving = trained(base, absence={"scenario": scenario})
    assert frozen[:first_leave] == moving[:first_leave]
    for measured in (curve, norms):
        assert measured(frozen)[first_leave:] == [measured(moving)[first_leave - 1]] * (8 - first_leave)
    assert norms(moving)[first_leave] != norms(moving)[first_leave - 1], "its base continues to train"


def test_frozen_without_absence_is_its_base(trained: Trained) -> None:
    assert trained("frozen", absence={"scenario": "none"}) == trained("fedavg", absence={"scenario": "none"})


def test_frozen_own_in_the_summary_is_the_runs_own_model_of_that_round(
    tiny_dataset: Dataset, tmp_path: Path
) -> None:
    for algorithm in ("frozen", "feddig"):
        experiment = make_tiny_experiment(algorithm={"name": algorithm})
        summary = run(experiment, tmp_path / algorithm, dataset=tiny_dataset)
        assert summary["accuracy"]["frozen_own"] == curve(rows(tmp_path / algorithm))[2]


def test_the_centralised_control_knows_no_absence(trained: Trained) -> None:
    with_absence = trained("centralised")
    assert with_absence == trained("centralised", name="none", absence={"scenario": "none"})
    assert curve(with_absence)[-1] > 90


def test_digests_only_trains_no_silo_and_yet_learns(trained: Trained) -> None:
    found = trained("digests-only", training={"rounds": 12})
    assert all(row["losses"]["silos"] == {} for row in found)
    assert found[-1]["losses"]["joint"] < found[0]["losses"]["joint"]


def test_without_recall_nobody_is_recalled(trained: Trained) -> None:
    found = trained("feddig-no-recall")
    assert [row["recalled"] for row in found] == [[]] * 8
    assert [row["losses"]["recall"] for row in found] == [{}] * 8


def test_without_the_joint_update_the_guidance_producer_stays_as_it_was(
    trained: Trained, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    first = build_simulation(make_tiny_experiment(), dataset=tiny_dataset).moderator.guidance_producer
    assert first is not None
    for algorithm, stays in (("feddig-no-joint", True), ("feddig", False)):
        trained(algorithm, training={"rounds": 4})
        now = tensors(tmp_path / algorithm / "guidance.safetensors")
        assert all(np.array_equal(now[name], array) for name, array in first.tensors().items()) == stays


# --- absent silos


def test_a_late_joiner_is_unknown_before_it_joins(
    tiny_dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups: silos 0 and 1 are present for three rounds, then silo 2 alone; its digest arrives only then."""
    experiment = make_tiny_experiment(absence={"scenario": "groups"})
    run(experiment, tmp_path / "run", dataset=tiny_dataset, until=3)
    found = rows(tmp_path / "run")
    assert [row["present"] for row in found] == [[0, 1]] * 3
    assert [row["recalled"] for row in found] == [[]] * 3
    assert sorted(path.name for path in (tmp_path / "run" / "digests").iterdir()) == [
        "silo-0.safetensors",
        "silo-1.safetensors",
    ]
    run(experiment, tmp_path / "whole", dataset=tiny_dataset)
    found = rows(tmp_path / "whole")
    assert [row["present"] for row in found[3:]] == [[2]] * 5
    assert [row["recalled"] for row in found[3:]] == [[0, 1]] * 5
    assert (tmp_path / "whole" / "digests" / "silo-2.safetensors").exists()


def test_a_silo_that_returns_trains_itself_again(trained: Trained) -> None:
    found = trained("feddig", absence={"scenario": "temporary"})
    # silo 1 is the largest: absent in rounds round(50 * 8/300) = 1 and 2, back in round 3
    assert [row["recalled"] for row in found] == [[], [1], [1]] + [[]] * 5
    assert [list(row["losses"]["silos"]) for row in found[2:4]] == [["0", "2"], ["0", "1", "2"]]


def availability(path: Path, *silos: str) -> dict[str, object]:
    """Write a scenario file from a string of 0 and 1 for each silo."""
    path.write_text("\n".join(",".join(word) for word in silos) + "\n", encoding="utf-8")
    return {"scenario": "file", "file": str(path)}


def test_a_scenario_without_any_silo_is_an_error_before_anything_is_written(
    tiny_dataset: Dataset, tmp_path: Path
) -> None:
    absence = availability(tmp_path / "a.csv", "00", "00", "00")
    with pytest.raises(DataError, match="nobody is ever there"):
        run(
            make_tiny_experiment(absence=absence, training={"rounds": 2}),
            tmp_path / "run",
            dataset=tiny_dataset,
        )
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("algorithm", ["fedavg", "fednova", "feddyn", "adabest", "feddig", "feddig+feddyn"])
def test_rounds_before_the_first_silo_joins_change_nothing(
    algorithm: str, trained: Trained, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    absence = availability(tmp_path / "a.csv", "0011", "0011", "0011")
    found = trained(algorithm, absence=absence, training={"rounds": 4})
    own = {"name": algorithm}
    first = build_simulation(make_tiny_experiment(algorithm=own), dataset=tiny_dataset).moderator
    assert norms(found)[:2] == [first.parameter_norm()] * 2
    assert norms(found)[2] != norms(found)[1]
    assert all(row["recalled"] == [] for row in found)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "fednova", "feddyn", "adabest"])
def test_a_round_without_silos_does_not_change_the_model(
    algorithm: str, trained: Trained, tmp_path: Path
) -> None:
    absence = availability(tmp_path / "a.csv", "1100110", "1100110", "1100110")
    found = norms(trained(algorithm, absence=absence, training={"rounds": 7}))
    assert found[1] == found[2] == found[3] != found[4]
    assert found[5] == found[6]


@pytest.mark.parametrize("weighting", ["equal", "samples"])
@pytest.mark.parametrize("algorithm", ["feddyn", "feddig+feddyn", "feddig+adabest", "feddig+fednova"])
def test_a_silo_that_never_joins_takes_no_part(
    algorithm: str, weighting: str, trained: Trained, tmp_path: Path
) -> None:
    absence = availability(tmp_path / "a.csv", "1101", "0000", "1011")
    own = {"weighting": weighting}
    found = trained(algorithm, name="run", absence=absence, training={"rounds": 4}, algorithm=own)
    assert all(1 not in row["recalled"] and "1" not in row["losses"]["silos"] for row in found)
    assert not (tmp_path / "run" / "digests" / "silo-1.safetensors").exists()
    assert all(math.isfinite(norm) for norm in norms(found))


# --- learning


def fashion(algorithm: str, scenario: str, rounds: int) -> Experiment:
    """Run on 1,500 of the bundled images with the demo's training settings."""
    return experiment_from_table(
        {
            "data": {"name": "fashion-mini", "limit": 1500, "skew": 0.5},
            "absence": {"scenario": scenario},
            "algorithm": {"name": algorithm},
            "model": {"classifier": "small"},
            "training": {"rounds": rounds, "batch": 32, "lr": 0.01, "threads": 1},
        }
    )


@pytest.mark.parametrize("scenario", [pytest.param("none", marks=pytest.mark.slow), "sequential"])
def test_feddyn_trains_and_stays_bounded(scenario: str, tmp_path: Path) -> None:
    run(fashion("feddyn", scenario, 20), tmp_path / "run")
    found = rows(tmp_path / "run")
    losses = [list(row["losses"]["silos"].values()) for row in found]
    # under sequential leaving the last silo leaves at round(250 * 20/300) = 17
    assert np.mean(losses[16]) < 0.5 * np.mean(losses[0])
    assert curve(found)[16] > 40, "ten classes: chance is 10"
    first, last = norms(found)[0], norms(found)[19]
    assert last < 2 * first
    assert max(abs(np.diff(norms(found)))) < 0.1 * first, "the norm never jumps"


@pytest.mark.slow
def test_feddig_over_feddyn_learns_under_sequential_leaving(tmp_path: Path) -> None:
    run(fashion("feddig+feddyn", "sequential", 20), tmp_path / "run")
    found = rows(tmp_path / "run")
    assert curve(found)[19] > 45
    assert norms(found)[19] < 2 * norms(found)[0]


@pytest.mark.slow
def test_feddig_over_adabest_learns_with_the_beta_that_follows_from_the_rounds(tmp_path: Path) -> None:
    """AdaBest with a beta of 0.98 collapses: docs/measurements/comparison.md."""
    run(fashion("feddig+adabest", "sequential", 20), tmp_path / "run")
    found = rows(tmp_path / "run")
    assert curve(found)[19] > 45
    assert norms(found)[19] < 3 * norms(found)[0]


def test_base_large_sees_the_encoded_features_and_its_base_does_not(
    trained: Trained, tiny_dataset: Dataset
) -> None:
    class ConstantEncoder(nn.Module):
        """An encoder that returns the same code for every image."""

        def forward(self, images: Tensor) -> Tensor:
            return torch.ones(len(images), 4, 4, 4)

    blind = Networks(encoder=ConstantEncoder())
    few = {"training": {"rounds": 2}}
    assert trained("fedavg-large", **few) != trained("fedavg-large", name="blind", networks=blind, **few)
    assert trained("fedavg", **few) == trained("fedavg", name="b", networks=blind, **few)


def test_weighting_by_samples_differs_from_equal_weights_when_silos_differ_in_size(trained: Trained) -> None:
    few = {"training": {"rounds": 2}, "absence": {"scenario": "none"}}
    equal = trained("fedavg", **few)
    by_samples = trained("fedavg", name="s", algorithm={"weighting": "samples"}, **few)
    assert equal[0]["losses"] == by_samples[0]["losses"], "the silos train alike in the first round"
    assert equal[0]["parameter_norm"] != by_samples[0]["parameter_norm"]


def test_weighting_by_samples_is_equal_weighting_when_silos_are_of_one_size(trained: Trained) -> None:
    few = {"training": {"rounds": 2}, "absence": {"scenario": "none"}, "data": {"partition": "iid"}}
    equal = trained("fedavg", **few)
    by_samples = trained("fedavg", name="s", algorithm={"weighting": "samples"}, **few)
    assert norms(equal) == pytest.approx(norms(by_samples), rel=1e-6)


def test_bf16_trains_nearly_but_not_exactly_as_fp32(trained: Trained) -> None:
    full = trained("feddig")
    half = trained("feddig", name="bf16", training={"precision": "bf16"})
    assert norms(half) != norms(full)
    assert norms(half) == pytest.approx(norms(full), rel=0.1)
    assert curve(half)[-1] > 60


def test_a_training_that_diverges_is_an_error_that_says_where(trained: Trained) -> None:
    with pytest.raises(DivergenceError, match=r"^silo \d, round \d: training diverged .*; lower "):
        trained("fedavg", training={"lr": 1000.0, "weight_decay": 1e12})


# --- unusual data


def test_silos_of_a_single_class_train_and_are_recalled(
    trained: Trained, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    # so uneven that each class is at one silo
    data = {"silos": 4, "skew": 1e-3, "min_samples": 20, "seed": 4}
    experiment = make_tiny_experiment(data=data)
    shares = build_simulation(experiment, dataset=tiny_dataset).partition.shares
    classes = [set(tiny_dataset.train.labels[share.train].tolist()) for share in shares]
    assert sorted(map(len, classes)) == [1, 1, 1, 1]
    long = {"rounds": 24}
    fedavg, feddig = (trained(name, data=data, training=long) for name in ("fedavg", "feddig"))
    assert curve(fedavg)[-1] <= 50
    assert curve(feddig)[-1] > curve(fedavg)[-1] + 20


def test_a_silo_smaller_than_a_batch_takes_one_step(trained: Trained) -> None:
    found = trained("feddig+fednova", training={"batch": 512, "rounds": 2})
    assert all(math.isfinite(norm) for norm in norms(found))
    assert found[0]["losses"]["silos"].keys() == {"0", "1", "2"}


def test_a_silo_with_nothing_to_validate_on_has_no_validation_accuracy(trained: Trained) -> None:
    found = trained("fedavg", data={"split": [1.0, 0.0, 0.0]}, training={"rounds": 1})
    assert found[0]["validation_accuracy"] == [None, None, None]


def test_an_image_that_is_not_a_number_is_named() -> None:
    images = np.zeros((20, 8, 8), np.float32)
    images[7, 3, 3] = np.nan
    good, labels = np.zeros((20, 8, 8), np.float32), np.arange(20) % 2
    with pytest.raises(DataError, match=r"x_train: image 7 has a value that is not a finite number"):
        dataset_from_arrays(images, labels, good, labels)


def one_line(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"data": {"silos": 241}}, "240 samples are too few for 241 silos"),
        ({"data": {"silos": 20}}, "at most 12 each, not 16"),
        ({"data": {"silos": 12, "skew": 0.01}}, "after 100 redraws"),
    ],
)
def test_more_silos_than_the_samples_allow_is_one_clear_error(
    sections: dict[str, dict[str, object]], message: str, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        run(make_tiny_experiment(**sections), tmp_path / "run", dataset=tiny_dataset)
    assert message in one_line(caught.value)
    assert "data.silos" in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mixing", ["random", "within-class"])
def test_a_silo_too_small_for_a_single_digest_is_one_clear_error(
    mixing: str, trained: Trained, tmp_path: Path
) -> None:
    with pytest.raises(DataError) as caught:
        trained("feddig", digest={"samples_per_digest": 60, "mixing": mixing})
    message = one_line(caught.value)
    assert message.startswith("silo 0: no 60 training samples")
    assert "digest.samples_per_digest" in message


def test_a_late_joiner_too_small_for_a_digest_costs_no_training(
    tiny_dataset: Dataset, tmp_path: Path
) -> None:
    # silo 0 is the smallest and joins last
    absence = availability(tmp_path / "a.csv", "0001", "1111", "1111")
    sections = {"absence": absence, "digest": {"samples_per_digest": 60}, "training": {"rounds": 4}}
    with pytest.raises(DataError, match="silo 0: no 60 training samples"):
        run(make_tiny_experiment(**sections), tmp_path / "run", dataset=tiny_dataset)
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


# --- a user's own data and networks


def test_a_users_own_tensors_in_colour_and_float(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % 3
    images = 0.2 * torch.rand(120, 3, 24, 20, generator=generator)
    images[torch.arange(120), labels] += 0.7  # the class is the brightest colour
    dataset = dataset_from_arrays(images, labels, images[:30], labels[:30], name="mine")
    summary = run(make_tiny_experiment(training={"rounds": 12}), tmp_path / "run", dataset=dataset)
    assert summary["accuracy"]["final"] > 80


def test_images_have_one_memory_layout_whatever_their_source(tiny_dataset: Dataset) -> None:
    pixels, labels = tiny_dataset.train.pixels, tiny_dataset.train.labels
    with_channel = dataset_from_arrays(pixels.copy(), labels, pixels.copy(), labels)
    without = dataset_from_arrays(pixels[:, 0].copy(), labels, pixels[:, 0].copy(), labels)
    strides = {
        build_simulation(make_tiny_experiment(), dataset=each)
        .silos[0]
        .samples.images(torch.arange(2))
        .stride()
        for each in (with_channel, without)
    }
    assert len(strides) == 1


def small_classifier(width: int = 4 + 16 * 16, classes: int = 4) -> nn.Module:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(width, classes)

        def forward(self, images: Tensor, features: Tensor) -> Tensor:
            return self.head(torch.cat([images.flatten(1), features.mean((2, 3))], dim=1))

    return Own()


class OwnGuidance(nn.Module):
    def __init__(self, side: int = 16) -> None:
        super().__init__()
        self.side = side
        self.paint = nn.Linear(4 * 4 * 4, side * side)

    def forward(self, features: Tensor) -> Tensor:
        return torch.sigmoid(self.paint(features.flatten(1))).view(-1, 1, self.side, self.side)


def test_a_users_own_networks_are_trained_as_copies(trained: Trained, tmp_path: Path) -> None:
    torch.manual_seed(0)
    networks = Networks(classifier=small_classifier(), guidance=OwnGuidance())
    before = {name: value.clone() for name, value in networks.classifier.state_dict().items()}
    first = trained("feddig", name="one", networks=networks)
    second = trained("feddig", name="two", networks=networks)
    assert first == second, "the first run must not have moved the networks that the second starts from"
    after = networks.classifier.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    saved = network_tensors(tmp_path / "one" / "model.safetensors")
    assert saved.keys() == before.keys()
    assert not any(np.array_equal(saved[name], before[name].numpy()) for name in before)
    assert tensors(tmp_path / "one" / "guidance.safetensors").keys() == {"paint.weight", "paint.bias"}
    assert first[-1]["losses"]["joint"] < first[0]["losses"]["joint"]


def test_a_users_own_encoder_and_extractor_are_used_and_not_changed(trained: Trained, tmp_path: Path) -> None:
    class OwnEncoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(1))

        def forward(self, images: Tensor) -> Tensor:
            return self.scale * nn.functional.avg_pool2d(images, 4)

    torch.manual_seed(0)
    raw = nn.Sequential(nn.AvgPool2d(4), nn.Flatten(), nn.Linear(16, 8), nn.ReLU())
    encoder = OwnEncoder().train()
    trained(
        "feddig", name="run", networks=Networks(encoder=encoder, raw_extractor=raw), training={"rounds": 2}
    )
    assert encoder.training
    assert encoder.scale.requires_grad, "the user's own encoder is neither frozen nor switched"
    model = tensors(tmp_path / "run" / "model.safetensors")
    assert model["raw.2.weight"].shape == (8, 16)
    digest = tensors(tmp_path / "run" / "digests" / "silo-0.safetensors")
    assert digest["features"].shape[1:] == (1, 4, 4)


@pytest.mark.parametrize(
    ("networks", "message"),
    [
        (Networks(classifier=small_classifier(classes=3)), r"model\.classifier: gives \(3,\) .* 4 classes"),
        (Networks(classifier=small_classifier(width=9)), r"model\.classifier: fails on a batch"),
        (Networks(guidance=OwnGuidance(side=8)), r"model\.guidance: gives \(1, 8, 8\) .* images are"),
        (
            Networks(raw_extractor=nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))),
            r"buffer 'raw\.1\.\w+' changes in training",
        ),
    ],
)
def test_networks_that_do_not_fit_are_refused_before_anything_is_written(
    networks: Networks, message: str, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=message):
        run(make_tiny_experiment(), tmp_path / "run", dataset=tiny_dataset, networks=networks)
    assert not (tmp_path / "run").exists()


def test_a_network_without_randomness_of_its_own_may_still_use_dropout(trained: Trained) -> None:
    raw = nn.Sequential(nn.Flatten(), nn.Linear(256, 16), nn.ReLU(), nn.Dropout(0.5))
    networks = Networks(raw_extractor=raw)
    first = trained("fedavg", name="one", networks=networks, training={"rounds": 3})
    torch.manual_seed(99)
    assert first == trained("fedavg", name="two", networks=networks, training={"rounds": 3})


def test_data_given_in_python_is_asked_for_in_python(tmp_path: Path) -> None:
    with pytest.raises(FedDigError, match="dataset="):
        run(make_tiny_experiment(), tmp_path / "run")
