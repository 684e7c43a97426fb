"""Runs: the same seed gives the same bytes, and a results folder has the documented files."""

import itertools
import json
import re
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig import (
    Dataset,
    Experiment,
    FedDigError,
    Networks,
    demo_experiment,
    grid,
    read_experiment,
    resume,
    run,
    run_grid,
)
from feddig.core.recipe import names, read_recipe
from feddig.core.silo import Silo
from feddig.core.training import run_rounds
from feddig.digest.digest import Digest
from feddig.digest.digest_file import read_digest
from feddig.experiment.toml import experiment_from_table, keys
from feddig.files import write_tensors
from feddig.report.measures import MEASURES, wilson_interval
from feddig.runs.build import build_simulation
from feddig.runs.forecast import count_steps
from feddig.runs.results_folder import ResultsFolder
from folders import contents, header, network_tensors, rows, rows_without_times

ALGORITHMS = (
    "fedavg", "feddig", "feddig+feddyn", "feddig+adabest", "feddig-plus", "frozen", "centralised", "digests-only",
)  # fmt: skip
GOLDEN_ALGORITHMS = ("fedavg", "feddig", "feddig-plus")

GOLDEN = Path(__file__).parent / "golden" / "fashion_mini.json"


@pytest.fixture(scope="module")
def feddig_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finish one run of FedDig, with its picture; tests must not change it."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    run(make_tiny_experiment(), folder, dataset=draw_tiny_dataset())
    return folder


# --- what a run will do


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_steps_of_a_run_are_known_before(algorithm: str, tiny_dataset: Dataset) -> None:
    """`feddig check` multiplies them by the time that one takes."""
    experiment = make_tiny_experiment(algorithm={"name": algorithm}, moderator={"digest_budget": 30})
    simulation = build_simulation(experiment, dataset=tiny_dataset)
    digests: dict[int, Digest] = {}

    def keep(silo: Silo) -> Digest:
        return digests.setdefault(silo.index, simulation.make_digest(silo))

    recipe, rounds = simulation.experiment.recipe, range(8)
    results = list(
        run_rounds(
            simulation.moderator, simulation.engine(keep), recipe, rounds, simulation.absence.first_leave()
        )
    )
    steps = count_steps(simulation, digests)
    assert steps.local == sum(reply.steps for each in results for reply in (*each.replies, *each.stand_ins))
    assert steps.joint + steps.expert == sum(each.joint.steps for each in results if each.joint)
    assert steps.all > 0
    assert (steps.expert > 0) == recipe.expert


def test_every_algorithm_says_what_it_does_in_a_sentence() -> None:
    said = {name: read_recipe(name).say() for name in names()}
    assert all(re.fullmatch(r"[A-Z][^.]+\.", sentence) for sentence in said.values())
    apart = [name for name in said if "+" not in name or name.endswith("+fednova")]
    assert len({said[name] for name in apart}) == len(apart)


# --- same seed, same bytes


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_does_not(
    algorithm: str, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    experiment = make_tiny_experiment(algorithm={"name": algorithm}, training={"rounds": 5})
    for name, seed in (("first", 0), ("second", 0), ("other", 1)):
        run(replace(experiment, seed=seed), tmp_path / name, dataset=tiny_dataset)

    first, second, other = (contents(tmp_path / name) for name in ("first", "second", "other"))
    assert first == second
    expected = {"experiment.toml", "partition.csv", "availability.csv", "model.safetensors", "metrics.jsonl"}
    recipe = read_recipe(algorithm)
    if recipe.collects_digests:
        expected |= {f"digests/silo-{silo}.safetensors" for silo in range(3)}
    if recipe.recall or recipe.joint:
        expected |= {"guidance.safetensors"}
    assert set(first) == set(other) == expected
    # a preset's absence does not depend on the seed; everything else does
    assert {name for name in expected if first[name] == other[name]} == {"availability.csv"}


def test_the_same_tensors_and_facts_give_the_same_file(tmp_path: Path) -> None:
    """safetensors writes several keys of a header in random order, so ours are stored under one key."""
    facts = {"algorithm": "feddig", "seed": "0", "feddig": "0.1.0"}
    written = set()
    for _ in range(20):
        write_tensors(tmp_path / "model.safetensors", "model", {"weights": np.zeros(3, np.float32)}, facts)
        written.add((tmp_path / "model.safetensors").read_bytes())
    assert len(written) == 1


def test_other_random_numbers_in_the_process_have_no_effect(tiny_dataset: Dataset, tmp_path: Path) -> None:
    experiment = make_tiny_experiment(training={"rounds": 3})
    for name, seed in (("calm", 1), ("stormy", 2)):
        torch.manual_seed(seed)
        np.random.seed(seed)
        before = torch.get_rng_state()
        run(experiment, tmp_path / name, dataset=tiny_dataset)
        assert torch.equal(torch.get_rng_state(), before), "a run does not change the global random state"
    assert contents(tmp_path / "calm") == contents(tmp_path / "stormy")


def test_a_run_from_the_saved_experiment_gives_the_same_bytes(tiny_dataset: Dataset, tmp_path: Path) -> None:
    experiment = make_tiny_experiment(algorithm={"name": "feddig+feddyn"}, training={"rounds": 4})
    run(experiment, tmp_path / "first", dataset=tiny_dataset)
    run(read_experiment(tmp_path / "first" / "experiment.toml"), tmp_path / "again", dataset=tiny_dataset)
    assert contents(tmp_path / "first") == contents(tmp_path / "again")


@pytest.mark.usefixtures("pictures")
def test_the_same_run_draws_the_same_picture(feddig_run: Path, tiny_dataset: Dataset, tmp_path: Path) -> None:
    run(make_tiny_experiment(), tmp_path / "again", dataset=tiny_dataset)
    assert (feddig_run / "curves.png").read_bytes() == (tmp_path / "again" / "curves.png").read_bytes()


# --- each seed has its own stream


def drawn(dataset: Dataset, seed: int = 0, **sections: dict[str, object]) -> dict[str, object]:
    """Return everything that seeds decide before the first round."""
    absence = {"scenario": "random", "leave": 0.3, **sections.pop("absence", {})}
    experiment = replace(make_tiny_experiment(absence=absence, **sections), seed=seed)
    simulation = build_simulation(experiment, dataset=dataset)
    digest = simulation.make_digest(simulation.silos[1])
    assert simulation.moderator.guidance_producer is not None
    return {
        "partition": simulation.partition.to_csv(),
        "absence": simulation.absence.to_csv(),
        "first model": simulation.moderator.weights.numpy().tobytes(),
        "first guidance": simulation.moderator.guidance_producer.weights().numpy().tobytes(),
        "digest": digest.hash,
    }


def changed(before: dict[str, object], after: dict[str, object]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_data_seed_changes_the_partition_and_what_is_made_of_it(tiny_dataset: Dataset) -> None:
    assert changed(drawn(tiny_dataset), drawn(tiny_dataset, data={"seed": 1})) == {"partition", "digest"}


def test_absence_seed_changes_the_absence_alone(tiny_dataset: Dataset) -> None:
    assert changed(drawn(tiny_dataset), drawn(tiny_dataset, absence={"seed": 1})) == {"absence"}


def test_digest_seed_changes_the_digest_alone(tiny_dataset: Dataset) -> None:
    assert changed(drawn(tiny_dataset), drawn(tiny_dataset, digest={"seed": 1})) == {"digest"}


def test_the_top_level_seed_changes_all_that_has_no_seed_of_its_own(tiny_dataset: Dataset) -> None:
    everything = {"partition", "absence", "digest", "first model", "first guidance"}
    assert changed(drawn(tiny_dataset), drawn(tiny_dataset, seed=1)) == everything
    own = {"data": {"seed": 0}, "absence": {"seed": 0}, "digest": {"seed": 0}}
    assert changed(drawn(tiny_dataset), drawn(tiny_dataset, seed=1, **own)) == {
        "first model",
        "first guidance",
    }


def test_digest_seed_leaves_the_batches_of_the_silos_alone(tiny_dataset: Dataset, tmp_path: Path) -> None:
    for seed in (0, 1):
        experiment = make_tiny_experiment(digest={"seed": seed}, training={"rounds": 1})
        run(experiment, tmp_path / str(seed), dataset=tiny_dataset)
    (one,), (other,) = (rows_without_times(tmp_path / str(seed)) for seed in (0, 1))
    assert one["losses"]["silos"] == other["losses"]["silos"]
    assert one["losses"]["joint"] != other["losses"]["joint"]


def test_the_top_level_seed_changes_the_batches_too(tiny_dataset: Dataset, tmp_path: Path) -> None:
    """A user's own network starts from the same weights, and all other streams have their own seeds."""
    own = {"data": {"seed": 0}, "absence": {"seed": 0}, "digest": {"seed": 0}, "training": {"rounds": 1}}
    network = Networks(classifier=nn.Sequential(nn.Flatten(), nn.Linear(256, 4)))
    losses = []
    for seed in (0, 1):
        experiment = replace(make_tiny_experiment(algorithm={"name": "fedavg"}, **own), seed=seed)
        run(experiment, tmp_path / str(seed), dataset=tiny_dataset, networks=network)
        losses.append(rows(tmp_path / str(seed))[0]["losses"]["silos"])
    assert losses[0] != losses[1]
    assert losses[0] == pytest.approx(losses[1], rel=0.5), "the same data in another order"


@pytest.mark.parametrize("algorithm", ["fedavg", "feddig", "feddig+adabest"])
@pytest.mark.parametrize(("scenario", "first_leave"), [("sequential", 3), ("temporary", 1), ("forever", 1)])
def test_absence_never_changes_the_batch_order(
    algorithm: str, scenario: str, first_leave: int, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    for name in ("none", scenario):
        experiment = make_tiny_experiment(algorithm={"name": algorithm}, absence={"scenario": name})
        run(experiment, tmp_path / name, dataset=tiny_dataset, until=first_leave + 1)
    without_absence, with_absence = (
        rows_without_times(tmp_path / "none"),
        rows_without_times(tmp_path / scenario),
    )
    assert without_absence[:first_leave] == with_absence[:first_leave]
    # silos that are present in the first round of absence train on the same batches
    still_present = with_absence[first_leave]["losses"]["silos"]
    assert 0 < len(still_present) < 3
    losses_without_absence = without_absence[first_leave]["losses"]["silos"]
    assert still_present == {silo: losses_without_absence[silo] for silo in still_present}
    assert without_absence[first_leave]["parameter_norm"] != with_absence[first_leave]["parameter_norm"]


# --- the results folder


def test_a_feddig_run_leaves_every_file_of_the_contract(feddig_run: Path) -> None:
    assert sorted(str(path.relative_to(feddig_run)) for path in feddig_run.rglob("*") if path.is_file()) == [
        "availability.csv",
        "checkpoint/state.safetensors",
        "class_means.safetensors",
        "classes.json",
        "curves.png",
        "digests/silo-0.safetensors",
        "digests/silo-1.safetensors",
        "digests/silo-2.safetensors",
        "experiment.toml",
        "guidance.safetensors",
        "log.txt",
        "metrics.jsonl",
        "model.safetensors",
        "partition.csv",
        "report.html",
        "summary.json",
    ]


@pytest.mark.usefixtures("pictures")
def test_a_run_without_digests_leaves_neither_digests_nor_guidance(
    tiny_dataset: Dataset, tmp_path: Path
) -> None:
    run(
        make_tiny_experiment(algorithm={"name": "fedavg"}, training={"rounds": 2}),
        tmp_path / "run",
        dataset=tiny_dataset,
    )
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "availability.csv",
        "checkpoint",
        "class_means.safetensors",
        "classes.json",
        "curves.png",
        "experiment.toml",
        "log.txt",
        "metrics.jsonl",
        "model.safetensors",
        "partition.csv",
        "report.html",
        "summary.json",
    ]


def test_the_picture_is_a_complete_png(feddig_run: Path) -> None:
    with Image.open(feddig_run / "curves.png") as picture:
        picture.load()
        assert picture.format == "PNG"
        assert picture.info["Software"] == "feddig, format_version 1"
        assert min(picture.size) >= 400
        assert len(picture.convert("L").getcolors()) > 10, "something is drawn"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("experiment.toml", "format_version = 1\n"),
        ("partition.csv", "# feddig partition, format_version 1\n"),
        ("availability.csv", "# feddig availability, format_version 1\n"),
        ("metrics.jsonl", '{"format_version": 1, '),
        ("summary.json", '{\n  "format_version": 1,\n'),
    ],
)
def test_text_files_start_with_their_format_version(feddig_run: Path, name: str, says: str) -> None:
    assert (feddig_run / name).read_text(encoding="utf-8").startswith(says)


def test_every_row_of_metrics_carries_its_format_version(feddig_run: Path) -> None:
    assert [row["format_version"] for row in rows(feddig_run)] == [1] * 8


def test_the_log_names_its_format_version_the_release_and_the_absence(feddig_run: Path) -> None:
    log = (feddig_run / "log.txt").read_text(encoding="utf-8")
    assert "log, format_version 1" in log.splitlines()[0]
    for line in (
        "FedDig 0.",
        "feddig, sequential, seed 0",
        "round 4: silo 0 leaves",
        "round 6: silo 2 leaves",
    ):
        assert line in log.replace("scenario ", "")
    assert "round 8: silo" not in log, "with three silos the last quarter of four is empty"
    assert "finished: " in log.splitlines()[-1]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("model.safetensors", "model"),
        ("guidance.safetensors", "guidance"),
        ("digests/silo-0.safetensors", "digest"),
        ("checkpoint/state.safetensors", "checkpoint"),
    ],
)
def test_tensor_files_say_what_they_are(feddig_run: Path, name: str, kind: str) -> None:
    facts = header(feddig_run / name)
    assert (facts["format"], facts["format_version"]) == (f"feddig-{kind}", "1")


def test_the_checkpoint_refers_to_the_digests_by_hash_and_holds_none(feddig_run: Path) -> None:
    facts = header(feddig_run / "checkpoint" / "state.safetensors")
    assert facts["rounds"] == "8"
    assert json.loads(facts["digests"]) == {
        str(silo): read_digest(feddig_run / "digests" / f"silo-{silo}.safetensors").hash for silo in range(3)
    }
    size = (feddig_run / "checkpoint" / "state.safetensors").stat().st_size
    models = [(feddig_run / f"{name}.safetensors").stat().st_size for name in ("model", "guidance")]
    assert size < 1.1 * sum(models)


def test_a_row_of_metrics_has_the_fields_of_the_contract(feddig_run: Path) -> None:
    found = rows(feddig_run)
    for number, row in enumerate(found):
        assert list(row) == [
            "format_version",
            "round",
            "test_accuracy",
            "class_accuracy",
            "macro_f1",
            "balanced_accuracy",
            "intervals",
            "present",
            "recalled",
            "validation_accuracy",
            "losses",
            "parameter_norm",
            "seconds",
            "seconds_silos",
            "seconds_recall",
            "seconds_joint",
            "seconds_preparing",
        ]
        assert row["round"] == number
        assert 0 <= row["test_accuracy"] <= 100
        # the tiny data set has as many test images of each of its four classes
        assert fmean(row["class_accuracy"]) == pytest.approx(row["test_accuracy"], abs=1e-3)
        assert row["balanced_accuracy"] == pytest.approx(row["test_accuracy"])
        assert len(row["class_accuracy"]) == 4
        assert len(row["validation_accuracy"]) == 3
        assert set(row["losses"]) == {"silos", "recall", "joint"}
        assert [int(silo) for silo in row["losses"]["silos"]] == row["present"]
        assert [int(silo) for silo in row["losses"]["recall"]] == row["recalled"]
        assert row["seconds"] >= row["seconds_silos"] + row["seconds_recall"] + row["seconds_joint"] > 0
    # sequential leaving at round(100 * 8/300) = 3, 4, 5, with three silos
    here = [[0, 1, 2]] * 3 + [[1, 2], [2], [], [], []]
    assert [row["present"] for row in found] == here
    assert [row["recalled"] for row in found] == [[s for s in range(3) if s not in row] for row in here]


def test_the_summary_has_the_keys_of_the_contract_and_no_others(feddig_run: Path) -> None:
    summary = json.loads((feddig_run / "summary.json").read_text(encoding="utf-8"))
    contract = {
        "algorithm",
        "scenario",
        "seed",
        "accuracy",
        "bytes",
        "seconds_per_round",
        "device",
        "versions",
    }
    besides = {
        "format_version", "rounds", "data", "silo_test_accuracy", "digests", "privacy", "promise", "partition_redraws",
        "precision", "macro_f1", "balanced_accuracy", "auc", "class_accuracy", "intervals",
    }  # fmt: skip
    assert set(summary) == contract | besides
    assert list(summary["accuracy"]) == [
        "final",
        "best",
        "absence_mean",
        "absence_auc",
        "mean_251_259",
        "mean_250_299",
        "after_9",
        "after_50",
        "after_200",
        "frozen_own",
        "frozen_own_mean_10",
    ]
    assert set(summary["bytes"]) == {"digest", "update"}
    assert set(summary["versions"]) == {"feddig", "torch", "numpy", "python"}
    assert (summary["algorithm"], summary["scenario"], summary["seed"]) == ("feddig", "sequential", 0)


def test_the_summary_follows_from_the_files_next_to_it(feddig_run: Path) -> None:
    summary = json.loads((feddig_run / "summary.json").read_text(encoding="utf-8"))
    curve = [row["test_accuracy"] for row in rows(feddig_run)]
    trapezoids = [(left + right) / 2 for left, right in itertools.pairwise(curve[3:])]
    assert summary["accuracy"] == {
        "final": curve[7],
        "best": max(curve),
        "absence_mean": pytest.approx(fmean(curve[3:])),
        "absence_auc": pytest.approx(fmean(trapezoids)),
        "mean_251_259": None,
        "mean_250_299": None,
        "after_9": None,
        "after_50": None,
        "after_200": None,
        "frozen_own": curve[2],
        "frozen_own_mean_10": curve[2],
    }
    last, before = rows(feddig_run)[7], rows(feddig_run)[2]
    assert summary["class_accuracy"] == {
        "final": last["class_accuracy"],
        "frozen_own": before["class_accuracy"],
    }
    assert [summary[name] for name in ("macro_f1", "balanced_accuracy")] == [
        last[name] for name in ("macro_f1", "balanced_accuracy")
    ]
    assert summary["auc"] is None
    assert summary["intervals"] == {
        **last["intervals"],
        "accuracy": pytest.approx(wilson_interval(curve[7], 60), abs=5e-4),
        "class_accuracy": [
            pytest.approx(wilson_interval(each, 15), abs=5e-4) for each in last["class_accuracy"]
        ],
        "auc": None,
    }
    parameters = sum(array.size for array in network_tensors(feddig_run / "model.safetensors").values())
    digests = [read_digest(feddig_run / "digests" / f"silo-{silo}.safetensors") for silo in range(3)]
    # an update is a float32 for each parameter; a digest 4x4x4 features and 4 labels
    assert summary["bytes"]["update"] == [4 * parameters] * 3
    assert summary["bytes"]["digest"] == [4 * len(digest) * (4 * 4 * 4 + 4) for digest in digests]
    seconds = [row["seconds"] for row in rows(feddig_run)]
    assert summary["seconds_per_round"] == pytest.approx(fmean(seconds))
    assert summary["device"].endswith(" CPU, 1 thread")
    assert summary["versions"]["torch"] == torch.__version__


def test_a_run_of_an_older_release_is_resumed_although_its_rows_lack_classes(
    tiny_dataset: Dataset, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    run(make_tiny_experiment(), folder, dataset=tiny_dataset, until=5)
    older = [
        {
            key: value
            for key, value in row.items()
            if key not in ("class_accuracy", "macro_f1", "balanced_accuracy")
        }
        for row in rows(folder)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in older), encoding="utf-8")
    summary = resume(folder, dataset=tiny_dataset)
    assert summary["class_accuracy"]["frozen_own"] is None
    assert len(summary["class_accuracy"]["final"]) == 4
    assert "Accuracy of each class" in (folder / "report.html").read_text(encoding="utf-8")


def test_long_runs_have_the_measures_of_late_rounds(tiny_dataset: Dataset, tmp_path: Path) -> None:
    experiment = make_tiny_experiment(
        algorithm={"name": "frozen"}, absence={"scenario": "temporary"}, training={"rounds": 66}
    )
    summary = run(experiment, tmp_path / "run", dataset=tiny_dataset)
    curve = [row["test_accuracy"] for row in rows(tmp_path / "run")]
    assert summary["accuracy"]["after_9"] == curve[11 + 9]
    assert summary["accuracy"]["after_50"] == curve[11 + 50]
    assert [name for name in MEASURES if summary["accuracy"][name] is None] == [
        "mean_251_259",
        "mean_250_299",
        "after_200",
    ]


@pytest.mark.parametrize("algorithm", ["feddig", "feddyn"])
def test_the_saved_experiment_has_every_key(algorithm: str, tiny_dataset: Dataset, tmp_path: Path) -> None:
    experiment = make_tiny_experiment(algorithm={"name": algorithm}, training={"rounds": 1})
    run(experiment, tmp_path / "run", dataset=tiny_dataset)
    table = tomllib.loads((tmp_path / "run" / "experiment.toml").read_text(encoding="utf-8"))
    written = {key for key in keys() if _has(table, key)}
    others = {key for key in keys() if key.count(".") == 2 and not key.startswith(f"algorithm.{algorithm}.")}
    # except the path of data given in Python, channels of image files, the file and the rounds of a scenario, and keys
    # of a sound mechanism
    sound = {f"privacy.{key}" for key in ("clip_bound", "label_epsilon", "budget_epsilon", "budget_delta")}
    assert set(keys()) - written - others == {
        "data.path",
        "data.channels",
        "data.partition_file",
        "absence.file",
        "absence.rounds",
        *sound,
    }
    assert table["absence"]["order"] == "index"
    assert table["moderator"]["joint_lr"] == table["moderator"]["guidance_lr"] == 0.05
    assert (table["data"]["seed"], table["absence"]["seed"], table["digest"]["seed"]) == (0, 0, 0)
    if algorithm == "feddyn":
        assert table["algorithm"]["feddyn"]["alpha"] > 0


def _has(table: dict[str, Any], key: str) -> bool:
    for part in key.split("."):
        if part not in table:
            return False
        table = table[part]
    return True


# --- older files are refused by name


def _age_text(path: Path, now: str, then: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert now in text
    path.write_text(text.replace(now, then), encoding="utf-8")


def _age_tensors(path: Path) -> None:
    data, now = path.read_bytes(), rb"\"format_version\": \"1\""
    assert data.count(now) == 1
    path.write_bytes(data.replace(now, now.replace(b"1", b"0")))


@pytest.mark.parametrize(
    ("name", "age"),
    [
        ("experiment.toml", lambda path: _age_text(path, "format_version = 1", "format_version = 0")),
        ("metrics.jsonl", lambda path: _age_text(path, '"format_version": 1', '"format_version": 0')),
        ("partition.csv", lambda path: _age_text(path, "format_version 1", "format_version 0")),
        ("availability.csv", lambda path: _age_text(path, "format_version 1", "format_version 0")),
        ("digests/silo-1.safetensors", _age_tensors),
        ("checkpoint/state.safetensors", _age_tensors),
    ],
)
def test_a_file_of_an_older_format_is_refused_by_name(
    name: str, age: Callable[[Path], None], tiny_dataset: Dataset, tmp_path: Path
) -> None:
    run(make_tiny_experiment(training={"rounds": 4}), tmp_path / "run", dataset=tiny_dataset, until=2)
    age(tmp_path / "run" / name)
    with pytest.raises(FedDigError) as caught:
        resume(tmp_path / "run", dataset=tiny_dataset)
    assert str(tmp_path / "run" / name) in str(caught.value)


def test_a_summary_of_an_older_format_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"format_version": 0}', encoding="utf-8")
    with pytest.raises(FedDigError, match=r"summary\.json: format_version 0"):
        ResultsFolder(tmp_path).summary()


# --- compared with committed numbers


def golden_experiment(algorithm: str) -> Experiment:
    """Return a small demo: a quarter of its images, six rounds."""
    return experiment_from_table(
        {
            "data": {"name": "fashion-mini", "limit": 1500, "skew": 1.0},
            "absence": {"scenario": "sequential"},
            "algorithm": {"name": algorithm},
            "model": {"classifier": "small"},
            "training": {"rounds": 6, "batch": 16, "lr": 0.003, "threads": 1},
        }
    )


@pytest.mark.parametrize("algorithm", GOLDEN_ALGORITHMS)
def test_a_small_demo_gives_the_committed_accuracies_and_the_same_bytes_twice(
    algorithm: str, tmp_path: Path
) -> None:
    """If a change is meant to change these numbers, run `python tests/test_runs.py` and add a line to CHANGELOG.md."""
    for name in ("first", "second"):
        run(golden_experiment(algorithm), tmp_path / name, device="cpu")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))["accuracies"][algorithm]
    found = [row["test_accuracy"] for row in rows(tmp_path / "first")]
    assert found == pytest.approx(golden, abs=1.0)


@pytest.mark.slow
def test_in_the_demo_feddig_and_feddig_plus_end_far_above_fedavg(tmp_path: Path) -> None:
    """Run the demo of `make demo` without two controls."""
    cells = grid(demo_experiment(), ["fedavg", "feddig", "feddig-plus"], ["sequential"], [0], tmp_path)
    summaries = [outcome.summary for outcome in run_grid(cells, device="cpu")]
    fedavg, feddig, plus = (summary["accuracy"]["final"] for summary in summaries if summary is not None)
    assert feddig - fedavg >= 15
    assert plus - fedavg >= 20


def write_golden(folder: Path) -> None:
    """Run the small demo and write its results, which are then committed."""
    curves = {}
    for algorithm in GOLDEN_ALGORITHMS:
        run(golden_experiment(algorithm), folder / algorithm, device="cpu")
        curves[algorithm] = [row["test_accuracy"] for row in rows(folder / algorithm)]
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(
        json.dumps({"format_version": 1, "accuracies": curves}, indent=2) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        write_golden(Path(scratch))
