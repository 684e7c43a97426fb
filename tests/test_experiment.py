"""Experiments: the paper's defaults, one clear line for each mistake, and TOML that comes back as it went."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddig import Experiment, demo_experiment, read_experiment, write_experiment
from feddig.core.algorithms import AdaBest, FedAvg, FedDyn, FedProx
from feddig.errors import FedDigError, FileFormatError, SettingError
from feddig.experiment.toml import experiment_from_table, keys
from feddig.files import write_atomically

PAPER_FILE = Path(__file__).parent.parent / "experiments" / "paper.toml"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "experiment.toml"
    path.write_text(text, encoding="utf-8")
    return path


def refused(*overrides: str) -> str:
    """Give the one line in which an override is refused."""
    with pytest.raises(SettingError) as error:
        read_experiment(None, overrides)
    assert "\n" not in str(error.value)
    return str(error.value)


# --- what can be set

EVERY_KEY: dict[str, Any] = {
    "seed": 7,
    "data.name": "folder",
    "data.path": "some/where",
    "data.limit": 100,
    "data.image_size": 64,
    "data.channels": 3,
    "data.silos": 6,
    "data.partition": "file",
    "data.partition_file": "silos.csv",
    "data.skew": 0.5,
    "data.split": [0.6, 0.2, 0.2],
    "data.min_samples": 8,
    "data.min_share": 0.1,
    "data.seed": 1,
    "absence.scenario": "file",
    "absence.order": "size",
    "absence.leave": 0.1,
    "absence.return": 0.3,
    "absence.file": "table.csv",
    "absence.rounds": 40,
    "absence.seed": 2,
    "algorithm.name": "feddig+fednova",
    "algorithm.weighting": "samples",
    "algorithm.fedprox.mu": 0.1,
    "algorithm.feddyn.alpha": 0.2,
    "algorithm.adabest.mu": 0.3,
    "algorithm.adabest.beta": 0.4,
    "algorithm.prior_correction": True,
    "digest.samples_per_digest": 2,
    "digest.mixing": "random",
    "digest.weights": [0.5, 0.5],
    "digest.encoder": "mine:encoder",
    "digest.seed": 3,
    "privacy.mechanism": "discrete-gaussian",
    "privacy.epsilon": 0.05,
    "privacy.scale_size": 10_000,
    "privacy.delta": 1e-6,
    "privacy.adjacency": "replace-one",
    "privacy.unit": "group",
    "privacy.group_limit": 3,
    "privacy.clip_norm": "box",
    "privacy.clip_bound": 2.5,
    "privacy.label_epsilon": 0.5,
    "privacy.budget_epsilon": 4.0,
    "privacy.budget_delta": 1e-5,
    "privacy.random": "system",
    "model.classifier": "small",
    "model.guidance": "mine:guidance",
    "training.rounds": 10,
    "training.batch": 32,
    "training.lr": 0.01,
    "training.momentum": 0.5,
    "training.weight_decay": 0.001,
    "training.clip_norm": 1.0,
    "training.local_epochs": 2,
    "training.precision": "bf16",
    "training.threads": 2,
    "moderator.recall_epochs": 3,
    "moderator.votes": 0.5,
    "moderator.joint_epochs": 2,
    "moderator.joint_steps": 5,
    "moderator.joint_lr": 0.1,
    "moderator.guidance_lr": 0.2,
    "moderator.digest_budget": 50,
    "moderator.noise_aware": False,
    "logging.tensorboard": True,
    "logging.mlflow": True,
}


def value_of(experiment: Experiment, key: str) -> object:
    *section, name = key.split(".")
    if len(section) == 2:
        return experiment.algorithm.bases[section[1]][name]
    place = getattr(experiment, section[0]) if section else experiment
    return getattr(place, "return_" if name == "return" else name)


def test_every_key_can_be_set_and_none_is_forgotten_here() -> None:
    assert set(EVERY_KEY) == set(keys())
    experiment = read_experiment(None, defaults=EVERY_KEY)
    for key, value in EVERY_KEY.items():
        assert value_of(experiment, key) == (tuple(value) if isinstance(value, list) else value), key


def test_every_key_says_what_it_means() -> None:
    for key, field in keys().items():
        if key.count(".") < 2:
            assert len(field.metadata["means"]) > 10, key


def test_an_empty_file_no_file_and_the_api_are_the_same_experiment(tmp_path: Path) -> None:
    assert read_experiment(written(tmp_path, "")) == Experiment() == demo_experiment() == read_experiment()


def test_the_papers_file_has_the_papers_values() -> None:
    experiment = read_experiment(PAPER_FILE)
    data, training, privacy, digest = (
        experiment.data, experiment.training, experiment.privacy, experiment.digest,
    )  # fmt: skip
    assert (experiment.resolved().data.silos, data.partition) == (4, "dirichlet")
    assert (data.skew, data.split) == (0.1, (0.8, 0.1, 0.1))
    assert (training.rounds, training.batch, training.lr, training.momentum) == (300, 256, 0.001, 0.9)
    assert (training.local_epochs, training.weight_decay, training.clip_norm) == (1, 0.0, 0.0)
    assert (privacy.mechanism, privacy.epsilon, privacy.scale_size) == ("paper-laplace", 0.005, 20_000)
    assert (privacy.adjacency, privacy.clip_norm, privacy.clip_bound) == ("same-label", "l2", None)
    assert (privacy.delta, privacy.label_epsilon) == (0.0, None)
    assert (privacy.budget_epsilon, privacy.budget_delta) == (None, None)
    assert (digest.samples_per_digest, digest.mixing, digest.weights) == (4, "random", ())
    assert (experiment.algorithm.name, experiment.algorithm.weighting) == ("feddig", None)
    assert experiment.model.classifier == "size-matched"
    assert (experiment.moderator.joint_epochs, experiment.moderator.joint_steps) == (1, 0)
    assert experiment.moderator.noise_aware
    assert experiment.absence.scenario == "sequential"


@pytest.mark.parametrize(("classifier", "threads"), [("small", 1), ("size-matched", 0)])
def test_the_small_classifier_takes_one_thread_unless_told_otherwise(classifier: str, threads: int) -> None:
    model = f"model.classifier={classifier}"
    assert demo_experiment(model).resolved().training.threads == threads
    assert demo_experiment([model, "training.threads=3"]).resolved().training.threads == 3
    assert demo_experiment([model, "training.threads=0"]).resolved().training.threads == 0


def test_the_defaults_are_the_demo() -> None:
    demo = demo_experiment()
    assert (demo.data.name, demo.resolved().data.silos, demo.data.skew) == ("fashion-mini", 4, 0.1)
    assert (demo.training.rounds, demo.training.batch, demo.training.lr) == (40, 32, 0.01)
    assert (demo.algorithm.name, demo.absence.scenario, demo.model.classifier) == (
        "feddig-plus", "sequential", "small",
    )  # fmt: skip
    assert demo_experiment(["training.rounds=5"]).training.rounds == 5
    assert demo_experiment("training.rounds=5") == demo_experiment(["training.rounds=5"])


# --- unknown keys


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("training.lrr=1", "training.lrr: unknown key; did you mean 'training.lr'?"),
        ("training.learning_rate=1", "training.learning_rate: unknown key; did you mean 'training.lr'?"),
        ("training.bacth=1", "training.bacth: unknown key; did you mean 'training.batch'?"),
        ("trainin.lr=1", "[trainin]: unknown section; did you mean 'training'?"),
        ("dta.silos=3", "[dta]: unknown section; did you mean 'data'?"),
        ("silos=3", "silos: unknown key; did you mean 'data.silos'?"),
        ("algorithm.fedprox.nu=1", "algorithm.fedprox.nu: unknown key; did you mean 'algorithm.fedprox.mu'?"),
        ("algorithm.fedavg.mu=1", "algorithm.fedavg.mu: unknown key; did you mean 'algorithm.fedprox.mu'?"),
        ("algorithm.feddin.alpha=1", "algorithm.feddin: unknown key; did you mean 'algorithm.feddyn.alpha'?"),
        ("absence.return_=0.5", "absence.return_: unknown key; did you mean 'absence.return'?"),
        ("sed=1", "sed: unknown key; did you mean 'seed'?"),
        ("algorithm.bases=1", "algorithm.bases: unknown key; did you mean 'algorithm.name'?"),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(wrong: str, complaint: str) -> None:
    assert refused(wrong) == complaint


def test_a_key_like_no_other_is_answered_with_the_sections() -> None:
    assert refused("zzz=1").startswith("zzz: unknown key; choose from absence.KEY, algorithm.KEY,")


def test_a_mistake_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "[training]\nlrr = 0.1\n")
    with pytest.raises(SettingError) as error:
        read_experiment(path)
    assert str(error.value) == f"{path}: training.lrr: unknown key; did you mean 'training.lr'?"


# --- values that cannot be


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("training.rounds=1.5", "training.rounds: 1.5 is not a whole number"),
        ("training.rounds=true", "training.rounds: True is not a whole number"),
        ('training.rounds="10"', "training.rounds: '10' is not a whole number"),
        ("training.rounds=ten", "training.rounds: 'ten' is not a whole number"),
        ("training.rounds=0", "training.rounds: 0 is out of range; it must be at least 1"),
        ("training.lr=fast", "training.lr: 'fast' is not a number"),
        ("training.lr=true", "training.lr: True is not a number"),
        ("training.lr=0", "training.lr: 0 is out of range; it must be above 0"),
        ("training.lr=-0.1", "training.lr: -0.1 is out of range; it must be above 0"),
        ("training.lr=1001", "training.lr: 1001 is out of range; it must be at most 1000"),
        ("training.lr=nan", "training.lr: nan is not a finite number"),
        ("training.lr=inf", "training.lr: inf is not a finite number"),
        ("training.momentum=1", "training.momentum: 1 is out of range; it must be below 1"),
        ("training.momentum=-0.5", "training.momentum: -0.5 is out of range; it must be at least 0"),
        ("privacy.epsilon=0", "privacy.epsilon: 0 is out of range; it must be above 0"),
        ("privacy.epsilon=-inf", "privacy.epsilon: -inf is not a finite number"),
        ("privacy.delta=1", "privacy.delta: 1 is out of range; it must be below 1"),
        ("privacy.delta=-1e-9", "privacy.delta: -1e-09 is out of range; it must be at least 0"),
        ("privacy.clip_bound=0", "privacy.clip_bound: 0 is out of range; it must be above 0"),
        ("privacy.label_epsilon=0", "privacy.label_epsilon: 0 is out of range; it must be above 0"),
        ("privacy.budget_epsilon=0", "privacy.budget_epsilon: 0 is out of range; it must be above 0"),
        ("privacy.budget_delta=1", "privacy.budget_delta: 1 is out of range; it must be below 1"),
        ("privacy.clip_norm=l3", "privacy.clip_norm: 'l3' is not known; did you mean 'l2'?"),
        ("privacy.adjacency=same", "privacy.adjacency: 'same' is not known; did you mean 'same-label'?"),
        (
            "privacy.mechanism=gaussian",
            "privacy.mechanism: 'gaussian' is not known; did you mean 'discrete-gaussian'?",
        ),
        ("absence.leave=1.5", "absence.leave: 1.5 is out of range; it must be at most 1"),
        ("absence.return=-1", "absence.return: -1 is out of range; it must be at least 0"),
        ("data.skew=0", "data.skew: 0 is out of range; it must be above 0"),
        ("data.silos=-1", "data.silos: -1 is out of range; it must be at least 0"),
        ("seed=-1", "seed: -1 is out of range; it must be at least 0"),
        ("data.seed=-1", "data.seed: -1 is out of range; it must be at least 0"),
        ("moderator.joint_lr=0", "moderator.joint_lr: 0 is out of range; it must be above 0"),
        ("moderator.noise_aware=1", "moderator.noise_aware: 1 is not true or false"),
        ("moderator.noise_aware=yes", "moderator.noise_aware: 'yes' is not true or false"),
        ("data.name=3", "data.name: 3 is not a text"),
        ("data.path=[1]", "data.path: [1] is not a text"),
        ("data.partition=dirichelt", "data.partition: 'dirichelt' is not known; did you mean 'dirichlet'?"),
        ("absence.scenario=sequental", "absence.scenario: 'sequental' is not known; did you mean 'sequential'?"),
        ("training.precision=fp8", "training.precision: 'fp8' is not known; did you mean 'fp32'?"),
        ("privacy.random=dice", "privacy.random: 'dice' is not known; choose from seeded, system"),
        ("algorithm.name=fedavgg", "algorithm.name: unknown algorithm 'fedavgg'; did you mean 'fedavg'?"),
        (
            "algorithm.name=feddig+fedporx",
            "algorithm.name: unknown algorithm 'feddig+fedporx'; did you mean 'feddig+fedprox'?",
        ),
        ("algorithm.fedprox.mu=-1", "algorithm.fedprox.mu: -1 is out of range; it must be at least 0"),
        ("algorithm.fedprox.mu=much", "algorithm.fedprox.mu: 'much' is not a number"),
        ("algorithm.feddyn.alpha=nan", "algorithm.feddyn.alpha: nan is not a finite number"),
        ("data.split=0.8", "data.split: 0.8 is not a list of numbers; write it as [0.5, 0.5]"),
        ("data.split=[0.8, true, 0.1]", "data.split: True is not a number"),
        ("data.split=[0.9, 0.2, -0.1]", "data.split: -0.1 is out of range; it must be at least 0"),
        ("digest.weights=[nan]", "digest.weights: nan is not a finite number"),
        (
            "training=3",
            "training: 3 stands where the section [training] should; write training.KEY = VALUE",
        ),
        (
            "algorithm=fedavg",
            "algorithm: 'fedavg' stands where the section [algorithm] should; write algorithm.KEY = VALUE",
        ),
        (
            "algorithm.fedprox=3",
            (
                "algorithm.fedprox: 3 stands where the section [algorithm.fedprox] should; "
                "write algorithm.fedprox.KEY = VALUE"
            ),
        ),
    ],
)  # fmt: skip
def test_a_wrong_value_is_named_with_what_is_wrong(wrong: str, complaint: str) -> None:
    assert refused(wrong) == complaint


SHARES = "must be three shares that sum to 1, the first above 0"


@pytest.mark.parametrize(
    "split", ["[0.8, 0.2]", "[0.8, 0.1, 0.2]", "[0, 0.5, 0.5]", "[]", "[0.4, 0.3, 0.2, 0.1]"]
)
def test_a_split_is_three_shares_of_the_whole(split: str) -> None:
    assert refused(f"data.split={split}").endswith(SHARES)
    assert read_experiment(None, ["data.split=[1, 0, 0]"]).data.split == (1.0, 0.0, 0.0)


@pytest.mark.parametrize("weights", ["[0.5, 0.5]", "[0.25, 0.25, 0.25, 0.26]", "[1, 1, 1, 1]", "[1]"])
def test_weights_are_as_many_as_samples_a_digest_and_sum_to_one(weights: str) -> None:
    assert refused(f"digest.weights={weights}").endswith(
        "must be 4 numbers (digest.samples_per_digest) that sum to 1"
    )
    experiment = read_experiment(None, ["digest.weights=[0.9, 0.1]", "digest.samples_per_digest=2"])
    assert experiment.digest.weights == (0.9, 0.1)


def test_a_file_of_absences_goes_with_its_scenario_and_only_with_it() -> None:
    assert refused("absence.file=table.csv").endswith('is read only with absence.scenario = "file"')
    assert refused("absence.scenario=file").startswith('absence.file: the scenario "file" needs a CSV')
    both = read_experiment(None, ["absence.file=table.csv", "absence.scenario=file"])
    assert both.absence.file == "table.csv"


LAPLACE = ("privacy.mechanism=discrete-laplace", "privacy.clip_bound=60", "privacy.epsilon=1")
GAUSSIAN = ("privacy.mechanism=discrete-gaussian", *LAPLACE[1:], "privacy.delta=1e-6")


def test_a_discrete_mechanism_needs_a_public_bound_and_gaussian_noise_a_delta() -> None:
    for mechanism in ("discrete-laplace", "discrete-gaussian"):
        assert refused(f"privacy.mechanism={mechanism}").startswith(
            f"privacy.clip_bound: {mechanism} needs a public bound"
        )
    assert refused(*GAUSSIAN[:-1]).startswith("privacy.delta: discrete-gaussian needs one above 0")
    assert read_experiment(None, LAPLACE).privacy.clip_bound == 60
    assert read_experiment(None, GAUSSIAN).privacy.delta == 1e-6


def test_integer_sums_weigh_all_samples_alike() -> None:
    uneven = "digest.weights=[0.4, 0.2, 0.2, 0.2]"
    assert refused(*LAPLACE, uneven).startswith("digest.weights: discrete-laplace sends sums of integers")
    assert read_experiment(None, [uneven]).digest.weights == (0.4, 0.2, 0.2, 0.2)
    assert read_experiment(None, [*LAPLACE, "digest.weights=[0.25, 0.25, 0.25, 0.25]"]).digest.weights


def test_replace_one_needs_label_noise_and_same_label_has_none() -> None:
    other = "privacy.adjacency=replace-one"
    assert refused(*LAPLACE, other).startswith("privacy.label_epsilon: replace-one adjacency needs noise")
    assert read_experiment(None, [*LAPLACE, other, "privacy.label_epsilon=2"]).privacy.label_epsilon == 2
    assert refused(*LAPLACE, "privacy.label_epsilon=2").startswith(
        "privacy.label_epsilon: under same-label adjacency labels are public"
    )


def test_replace_one_goes_with_groups_that_randomised_labels_decide() -> None:
    within, other = "digest.mixing=within-class", ("privacy.adjacency=replace-one", "privacy.label_epsilon=2")
    assert read_experiment(None, [*LAPLACE, *other, within]).privacy.adjacency == "replace-one"
    assert read_experiment(None, [*LAPLACE, within]).digest.mixing == "within-class"


def test_laplace_noise_has_no_use_for_a_delta() -> None:
    assert refused(*LAPLACE, "privacy.delta=1e-6").endswith("or set privacy.mechanism to discrete-gaussian")


@pytest.mark.parametrize(
    "asked", ["delta=1e-6", "adjacency=replace-one", "clip_bound=60", "label_epsilon=1", "budget_epsilon=8",
              "budget_delta=0.1"],
)  # fmt: skip
def test_the_papers_mechanism_is_not_asked_for_what_it_does_not_do(asked: str) -> None:
    key = asked.partition("=")[0]
    complaint = refused(f"privacy.{asked}")
    assert complaint.startswith(f"privacy.{key}: ")
    assert "paper-laplace" in complaint
    users = "discrete-gaussian" if key == "delta" else "discrete-laplace or discrete-gaussian"
    assert complaint.endswith(f"or set privacy.mechanism to {users}")
    assert read_experiment(None, [f"privacy.{asked}", "privacy.mechanism=none"]).privacy.mechanism == "none"


def test_a_budget_must_cover_one_release() -> None:
    assert refused(*LAPLACE, "privacy.budget_epsilon=0.5").startswith(
        "privacy.budget_epsilon: 0.5 does not cover a single release, which costs 1;"
    )
    labels = ("privacy.adjacency=replace-one", "privacy.label_epsilon=2")
    assert "which costs 3;" in refused(*LAPLACE, *labels, "privacy.budget_epsilon=2.9")
    assert refused(*GAUSSIAN, "privacy.budget_delta=1e-7").startswith(
        "privacy.budget_delta: 1e-07 does not cover a single release, which costs 1e-06;"
    )
    enough = ("privacy.budget_epsilon=1", "privacy.budget_delta=1e-6")
    assert read_experiment(None, [*GAUSSIAN, *enough]).privacy.budget_epsilon == 1
    assert read_experiment(None, [*LAPLACE, *enough]).privacy.budget_delta == 1e-6


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        (f"seed={2**63}", "seed: the number is too large"),
        ("training.lr=1" + "0" * 400, "training.lr: the number is too large"),
        ("seed=1" + "0" * 5000, "seed: '1000"),
    ],
)
def test_a_number_beyond_all_bounds_is_refused(wrong: str, complaint: str, tmp_path: Path) -> None:
    assert refused(wrong).startswith(complaint)
    with pytest.raises(FedDigError):
        read_experiment(written(tmp_path, wrong))
    assert read_experiment(None, [f"seed={2**63 - 1}"]).seed == 2**63 - 1


# --- --set


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("training.rounds=7", "training.rounds", 7),
        ("training.lr=1e-3", "training.lr", 0.001),
        ("training.lr=1", "training.lr", 1.0),
        (" training.lr = 0.5 ", "training.lr", 0.5),
        ("algorithm.name=feddig+fedprox", "algorithm.name", "feddig+fedprox"),
        ('algorithm.name="fedavg"', "algorithm.name", "fedavg"),
        ("data.path=/some where/x=y.npz", "data.path", "/some where/x=y.npz"),
        ("data.path='C:\\data'", "data.path", "C:\\data"),
        ("data.path=C:\\data", "data.path", "C:\\data"),
        ("data.path=~/numbers#1.npz", "data.path", "~/numbers#1.npz"),
        ('data.path="a \\"quoted\\" word"', "data.path", 'a "quoted" word'),
        ("data.split=[0.6, 0.2, 0.2]", "data.split", (0.6, 0.2, 0.2)),
        ("moderator.noise_aware=false", "moderator.noise_aware", False),
        ("absence.return=0.5", "absence.return", 0.5),
        ("algorithm.fedprox.mu=1", "algorithm.fedprox.mu", 1.0),
        ("seed=3", "seed", 3),
    ],
)
def test_an_override_is_read_as_toml_and_else_as_a_bare_word(text: str, key: str, value: object) -> None:
    found = value_of(read_experiment(None, [text]), key)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["training.lr", "", "=3", " = 3"])
def test_an_override_without_a_key_or_equals_sign_is_refused(text: str) -> None:
    assert refused(text) == f"--set {text}: write it as section.key=value, for example training.lr=0.01"


def test_defaults_lie_beneath_the_file_and_the_file_beneath_overrides(tmp_path: Path) -> None:
    path = written(tmp_path, "[training]\nbatch = 2\nrounds = 2\n")
    found = read_experiment(
        path,
        ["training.rounds=3", "training.rounds=4"],
        {"training.batch": 1, "training.rounds": 1, "training.threads": 1},
    ).training
    assert (found.threads, found.batch, found.rounds) == (1, 2, 4)


# --- the file


@pytest.mark.parametrize(
    ("text", "place"),
    [("seed = 1\n[training\nlr = 1\n", "line 2"), ("seed = 1\nseed = 2\n", "line 2"), ("a = = 1", "line 1")],
)
def test_a_file_that_is_no_toml_is_named_with_the_line(tmp_path: Path, text: str, place: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(FileFormatError) as error:
        read_experiment(path)
    assert str(error.value).startswith(f"{path}: not valid TOML: ")
    assert place in str(error.value)


def test_a_missing_file_a_folder_and_a_picture_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"missing.toml: no such experiment file"):
        read_experiment(tmp_path / "missing.toml")
    with pytest.raises(SettingError, match="is a folder; give an experiment's TOML file"):
        read_experiment(tmp_path)
    (tmp_path / "picture.toml").write_bytes(b"\x89PNG\xff")
    with pytest.raises(FileFormatError, match=r"picture.toml: cannot be read"):
        read_experiment(tmp_path / "picture.toml")


@pytest.mark.parametrize("version", ["0", "2", '"x"'])
def test_a_file_of_another_version_is_refused_by_name(tmp_path: Path, version: str) -> None:
    path = written(tmp_path, f"format_version = {version}\nsome_old_key = 3\n")
    complaint = f"format_version {version.strip(chr(34))}, but this FedDig reads 1"
    with pytest.raises(FileFormatError, match=complaint) as error:
        read_experiment(path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_file_that_says_its_version_is_read(tmp_path: Path) -> None:
    assert read_experiment(written(tmp_path, "format_version = 1\nseed = 4\n")).seed == 4


def test_return_is_a_key_though_it_is_no_python_name(tmp_path: Path) -> None:
    experiment = read_experiment(written(tmp_path, "[absence]\nreturn = 0.75\n"))
    assert experiment.absence.return_ == 0.75
    assert "\nreturn = 0.75\n" in write_experiment(experiment)


def numbers(least: float = 0, most: float = 1e300, **open_ends: bool) -> st.SearchStrategy[float]:
    return st.floats(least, most, allow_nan=False, allow_infinity=False, **open_ends)  # type: ignore[arg-type]


words = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        '"',
        "\\",
        'a "b" c',
        "C:\\new\\table",
        "\t\n\r\x00\x1f\x7f",
        "Grüße",
        "猫🐈",
        "'''",
        '"""',
        "#",
        "\u2028",
    ]
)
counts = st.integers(0, 2**63 - 1)


@st.composite
def experiments(draw: st.DrawFn) -> Experiment:
    """Draw an experiment that could be: any of the keys set, the rest left as they are."""
    values: dict[str, st.SearchStrategy[Any]] = {
        "seed": counts,
        "data.name": words,
        "data.path": words,
        "data.limit": counts,
        "data.skew": numbers(exclude_min=True),
        "data.split": st.sampled_from([[0.8, 0.1, 0.1], [1, 0, 0], [1 / 3, 1 / 3, 1 / 3]]),
        "data.seed": counts,
        "absence.order": st.sampled_from(["auto", "index", "size", "random"]),
        "absence.leave": numbers(most=1),
        "absence.return": numbers(most=1),
        "algorithm.name": st.sampled_from(["fedavg", "feddig+adabest", "frozen", "fedprox-large"]),
        "algorithm.feddyn.alpha": numbers(),
        "algorithm.adabest.beta": numbers(),
        "algorithm.adabest.mu": numbers(),
        "digest.encoder": words,
        "privacy.epsilon": numbers(exclude_min=True),
        "privacy.random": st.sampled_from(["seeded", "system"]),
        "model.classifier": words,
        "training.lr": numbers(most=1000, exclude_min=True),
        "training.momentum": numbers(most=1, exclude_max=True),
        "moderator.noise_aware": st.booleans(),
        "moderator.joint_lr": numbers(exclude_min=True),
        "moderator.digest_budget": counts,
        "logging.tensorboard": st.booleans(),
        "logging.mlflow": st.booleans(),
    }
    chosen = draw(st.lists(st.sampled_from(sorted(values)), unique=True))
    flat = {key: draw(values[key]) for key in chosen}
    if draw(st.booleans()):
        flat |= {"absence.scenario": "file", "absence.file": draw(words)}
    parts = draw(st.lists(st.integers(1, 9), max_size=6))
    if parts:
        flat |= {
            "digest.samples_per_digest": len(parts),
            "digest.weights": [part / sum(parts) for part in parts],
        }
    return read_experiment(None, defaults=flat)


@settings(max_examples=80, deadline=None)
@given(experiment=experiments())
def test_what_is_written_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, experiment: Experiment
) -> None:
    path = tmp_path_factory.getbasetemp() / "round-trip.toml"
    write_atomically(path, write_experiment(experiment))
    assert read_experiment(path) == experiment


@pytest.mark.parametrize(
    "text",
    ["a\x7fb", 'a "b"', "C:\\new", "\t\n\r\x00\x1f", "Grüße, 猫🐈", "\u2028", "'''", '"""', "# no comment"],
)
def test_awkward_texts_are_read_back(tmp_path: Path, text: str) -> None:
    experiment = experiment_from_table({"data": {"path": text}})
    assert read_experiment(written(tmp_path, write_experiment(experiment))).data.path == text


def test_an_experiment_in_full(tmp_path: Path) -> None:
    text = write_experiment(read_experiment(None, ["algorithm.fedprox.mu=0.5", "seed=3"]))
    assert text.startswith('format_version = 1\nseed = 3\n\n[data]\nname = "fashion-mini"\nlimit = 0\n')
    assert "split = [0.8, 0.1, 0.1]\n" in text
    assert "path" not in text
    assert text.endswith("[logging]\ntensorboard = false\nmlflow = false\n\n[algorithm.fedprox]\nmu = 0.5\n")


# --- what follows from what is set


def test_seeds_follow_from_the_first_unless_they_are_set() -> None:
    found = read_experiment(None, ["seed=5", "absence.seed=0"]).resolved()
    assert (found.data.seed, found.absence.seed, found.digest.seed) == (5, 0, 5)
    found = read_experiment(None, ["seed=5", "data.seed=0", "digest.seed=9"]).resolved()
    assert (found.data.seed, found.absence.seed, found.digest.seed) == (0, 5, 9)


def test_learning_rates_follow_from_each_other() -> None:
    def rates(*overrides: str) -> tuple[float | None, float | None]:
        moderator = read_experiment(None, ["training.lr=0.5", *overrides]).resolved().moderator
        return moderator.joint_lr, moderator.guidance_lr

    assert rates() == (0.5, 0.5)
    assert rates("moderator.joint_lr=0.25") == (0.25, 0.25)
    assert rates("moderator.guidance_lr=0.125") == (0.5, 0.125)
    assert rates("moderator.joint_lr=0.25", "moderator.guidance_lr=0.125") == (0.25, 0.125)


@pytest.mark.parametrize(("silos", "order"), [(1, "index"), (4, "index"), (5, "random"), (40, "random")])
def test_few_silos_leave_by_index_many_at_random(silos: int, order: str) -> None:
    assert read_experiment(None, [f"data.silos={silos}"]).resolved().absence.order == order
    told = read_experiment(None, [f"data.silos={silos}", "absence.order=size"])
    assert told.resolved().absence.order == "size"


def test_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    experiment = read_experiment(
        None, ["data.path=images", "absence.scenario=file", "absence.file=sub/table.csv"]
    )
    found = experiment.located(tmp_path).resolved()
    assert found.data.path == str(tmp_path / "images")
    assert found.absence.file == str(Path.cwd() / "sub" / "table.csv"), "only data lies in the data folder"
    monkeypatch.chdir(tmp_path)
    found = experiment.located(tmp_path).resolved()
    assert experiment.resolved() == found
    for home in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(home, str(tmp_path))
    assert read_experiment(None, ["data.path=~/x"]).resolved().data.path == str(tmp_path / "x")
    assert Experiment().resolved().data.path is None


def test_the_path_of_an_encoder_file_is_made_absolute_too(tmp_path: Path) -> None:
    """But not the name of a function, or of the default."""

    def encoder(told: str) -> str:
        return read_experiment(None, [f"digest.encoder={told}"]).located(tmp_path).digest.encoder

    assert encoder("mine.safetensors") == str(Path.cwd() / "mine.safetensors")
    assert encoder("mine.encoders:make") == "mine.encoders:make"
    assert encoder("default") == "default"


def test_resolving_leaves_nothing_open_and_is_done_once(tmp_path: Path) -> None:
    found = read_experiment(None, ["seed=2"]).resolved()
    assert found.resolved() == found
    assert read_experiment(written(tmp_path, write_experiment(found))) == found
    assert found.absence.order != "auto"


def test_a_base_gets_its_own_settings() -> None:
    def base(*overrides: str) -> object:
        return read_experiment(None, overrides).base_algorithm()

    assert base("algorithm.name=fedavg") == FedAvg()
    assert base("algorithm.name=feddyn", "algorithm.feddyn.alpha=0.25") == FedDyn(alpha=0.25)
    assert base("algorithm.name=feddig+feddyn") == FedDyn(alpha=None)
    assert base("algorithm.name=feddig+fedprox", "algorithm.feddyn.alpha=0.25") == FedProx(mu=0.01)
    assert base("algorithm.name=fedprox-large", "algorithm.fedprox.mu=3") == FedProx(mu=3.0)
    assert base("algorithm.name=adabest", "algorithm.adabest.beta=0.5") == AdaBest(mu=0.02, beta=0.5)


@pytest.mark.parametrize(
    ("name", "given", "weighting"),
    [
        ("fednova", [], "samples"),
        ("feddig+fednova", [], "samples"),
        ("feddig+fednova", ["algorithm.weighting=equal"], "equal"),
        ("feddig", [], "equal"),
        ("fedavg", ["algorithm.weighting=samples"], "samples"),
    ],
)
def test_the_weighting_that_is_left_out_is_the_bases_own(name: str, given: list[str], weighting: str) -> None:
    experiment = read_experiment(None, [f"algorithm.name={name}", *given])
    assert experiment.resolved().algorithm.weighting == weighting


def test_adabests_beta_is_settled_with_the_number_of_rounds() -> None:
    chosen = read_experiment(None, ["algorithm.name=feddig+adabest", "training.rounds=400"]).resolved()
    assert chosen.algorithm.bases == {"adabest": {"mu": 0.02, "beta": pytest.approx(0.5**0.5)}}
    given = read_experiment(None, ["algorithm.name=adabest", "algorithm.adabest.beta=0.9"]).resolved()
    assert given.algorithm.bases == {"adabest": {"beta": 0.9}}


def test_a_base_section_in_a_file(tmp_path: Path) -> None:
    path = written(tmp_path, '[algorithm]\nname = "feddyn"\n\n[algorithm.feddyn]\nalpha = 0.125\n')
    assert read_experiment(path).base_algorithm() == FedDyn(alpha=0.125)
    assert read_experiment(path).algorithm.bases == {"feddyn": {"alpha": 0.125}}


def test_the_name_says_whether_there_is_recall_and_a_joint_update() -> None:
    def halves(*overrides: str) -> tuple[bool, bool]:
        recipe = read_experiment(None, overrides).recipe
        return recipe.recall, recipe.joint

    assert halves("algorithm.name=feddig") == (True, True)
    assert halves("algorithm.name=feddig-plus") == (False, False)
    assert halves("algorithm.name=feddig-no-recall") == (False, True)
    assert halves("algorithm.name=feddig-no-joint") == (True, False)
    assert halves("algorithm.name=fedavg") == (False, False)
    assert halves("algorithm.name=digests-only") == (False, True)


@pytest.mark.parametrize("key", ["recall", "joint"])
def test_files_of_the_last_release_with_removed_keys_are_read(tmp_path: Path, key: str) -> None:
    path = written(tmp_path, f"[moderator]\n{key} = true\n{key}_epochs = 2\n")
    assert getattr(read_experiment(path).moderator, f"{key}_epochs") == 2
    assert f"\n{key} = " not in write_experiment(read_experiment(path))
    with pytest.raises(SettingError, match=f'moderator.{key}: .* use algorithm.name = "feddig-no-{key}"'):
        read_experiment(path, [f"moderator.{key}=false"])


def test_infinity_never_slips_through_a_table() -> None:
    with pytest.raises(SettingError, match=r"training.clip_norm: inf is not a finite number"):
        experiment_from_table({"training": {"clip_norm": math.inf}})
