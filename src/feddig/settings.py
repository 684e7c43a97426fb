"""The sections of an experiment: what can be set, what it means, what it may be.

The defaults are those of the demo: `feddig run` without a file, an empty file and `Experiment()` are the same
experiment. The paper's values are in experiments/paper.toml. Each field carries its meaning and its limits, so that
reading a file, complaining about it and documenting it all come from this one place.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any

REQUIRED: Any = MISSING


def setting(
    default: Any,
    means: str,
    *,
    choices: Sequence[str] = (),
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    check: Callable[[str, Any], object] | None = None,
) -> Any:
    """Declare a field with its default, its meaning and its limits.

    Without a default (REQUIRED) it must be in the file. `check` is given the field's name and value, and raises.
    """
    limits = {
        "means": means,
        "choices": choices,
        "least": least,
        "most": most,
        "above": above,
        "below": below,
        "check": check,
    }
    return field(default=default, metadata=limits)


DRAWN = ("dirichlet", "iid", "shards")
"""Values of data.partition by which silos are drawn."""


@dataclass(frozen=True)
class DataSettings:
    """[data]: the images and how silos hold them."""

    name: str = setting(
        "fashion-mini",
        "data set: fashion-mini (bundled), fashion-mnist, emnist-byclass, cifar10, cifar100, idx, npz, folder, tensors",
    )
    path: str | None = setting(None, "where idx, npz or folder data lies; a public set is also searched for")
    limit: int = setting(0, "use only this many training images; 0: all", least=0)
    image_size: int = setting(32, "folder data is resized to this many pixels square; 0: as it is", least=0)
    channels: int | None = setting(
        None,
        "folder data is read as grey (1) or in colour (3), npz data of three equal channels as grey (1); left out: as "
        "all files have it",
    )
    silos: int = setting(
        0,
        "number of silos n; 0: as many as folders, file or program name, and 4 where silos are drawn",
        least=0,
    )
    partition: str = setting(
        "dirichlet",
        "who holds which samples: drawn by one of three methods, or as the folders of folder data, data.partition_file "
        "or a program say",
        choices=(*DRAWN, "folders", "file", "given"),
    )
    partition_file: str | None = setting(
        None, "file: a CSV with the columns file or row, silo, and perhaps group and split"
    )
    skew: float = setting(0.1, "Dirichlet parameter mu: smaller is more uneven", above=0)
    split: tuple[float, ...] = setting(
        (0.8, 0.1, 0.1), "a silo's training, validation and test share", least=0
    )
    min_samples: int = setting(64, "redraw until each silo has this many samples", least=1)
    min_share: float = setting(
        0.0, "redraw until each silo has this share of all samples; 0: any", least=0, most=1
    )
    seed: int | None = setting(None, "seed of the partition; left out: from the top-level seed", least=0)


@dataclass(frozen=True)
class AbsenceSettings:
    """[absence]: which silos are absent, and when."""

    scenario: str = setting(
        "sequential", "who is away when",
        choices=("none", "temporary", "forever", "never", "early", "sequential", "groups", "arrival",
                 "departure", "round-robin", "random", "file"),
    )  # fmt: skip
    order: str = setting(
        "auto", "in which order silos leave; auto: index up to 4 silos, random above",
        choices=("auto", "index", "size", "random"),
    )  # fmt: skip
    leave: float = setting(0.05, "random: chance that a present silo leaves before a round", least=0, most=1)
    return_: float = setting(
        0.2, "random: chance that an absent silo returns before a round", least=0, most=1
    )
    file: str | None = setting(
        None, "file: a CSV, silo x round, 0, 1 or d (sends its digest, does not train)"
    )
    rounds: int | None = setting(
        None,
        "draw the scenario for this many rounds; later rounds are as the last of them; left out: training.rounds",
        least=1,
    )
    seed: int | None = setting(None, "seed of the absence; left out: from the top-level seed", least=0)


@dataclass(frozen=True)
class AlgorithmSettings:
    """[algorithm]: how the silos' updates become one model; [algorithm.BASE] holds a base's own keys."""

    name: str = setting(
        "feddig-plus", "algorithm, as feddig, feddig+fednova, fedavg-large, frozen, centralised"
    )
    weighting: str | None = setting(
        None,
        "a silo's weight: 1/n, or by samples; left out: samples where FedNova is the base, else equal",
        choices=("equal", "samples"),
    )
    prior_correction: bool | None = setting(
        None,
        "correct the loss of silos and recall models for their class shares; left out: only in feddig-plus",
    )
    bases: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class DigestSettings:
    """[digest]: how a silo's samples become its digest."""

    samples_per_digest: int = setting(4, "SpD: how many samples are mixed into one digest", least=1)
    mixing: str = setting(
        "random", "mix any samples, or those of one class", choices=("random", "within-class")
    )
    weights: tuple[float, ...] = setting(
        (), "mixing weights, SpD numbers that sum to 1; left out: equal", least=0
    )
    encoder: str = setting(
        "default",
        "P_R: default, even (its codes all of L2 length 350, for sound noise), a .safetensors file (feddig encoder "
        "make, import), or package.module:function",
    )
    seed: int | None = setting(None, "seed of mixing and noise; left out: from the top-level seed", least=0)


@dataclass(frozen=True)
class PrivacySettings:
    """[privacy]: the noise on a digest and what it promises."""

    mechanism: str = setting("paper-laplace", "noise on the mixed features")
    epsilon: float = setting(
        0.005,
        "paper-laplace: the paper's epsilon, which bounds nothing by itself (docs/explanation/privacy.md); "
        "discrete mechanisms: what the features promise a record",
        above=0,
    )
    scale_size: int = setting(20_000, "S in paper-laplace's noise scale tau / (S epsilon)", least=1)
    delta: float = setting(0.0, "delta of discrete-gaussian, which needs one above 0", least=0, below=1)
    adjacency: str = setting(
        "same-label", "what a record may be replaced by without showing: one of its class, or any other",
        choices=("same-label", "replace-one"),
    )  # fmt: skip
    unit: str = setting(
        "record", "what epsilon is promised to: an image, or a group of images, such as those of one patient",
        choices=("record", "group"),
    )  # fmt: skip
    group_limit: int = setting(
        1,
        "unit group: at most this many images of a group go into the digest; the noise grows with it",
        least=1,
    )
    clip_norm: str = setting(
        "l2", "discrete mechanisms: how a sample's features are bounded, by a norm or each by itself",
        choices=("l1", "l2", "box"),
    )  # fmt: skip
    clip_bound: float | None = setting(
        None, "discrete mechanisms: that bound, agreed on in public and not computed from data", above=0
    )
    label_epsilon: float | None = setting(
        None, "replace-one: what noise on the labels costs a record, on top of epsilon", above=0
    )
    budget_epsilon: float | None = setting(
        None, "the most epsilon that a record may be charged; left out: no limit", above=0
    )
    budget_delta: float | None = setting(
        None, "the most delta that a record may be charged; left out: no limit", least=0, below=1
    )
    random: str = setting(
        "seeded", "source of mixing and noise: the system's entropy, or a seed (simulation only)",
        choices=("seeded", "system"),
    )  # fmt: skip


@dataclass(frozen=True)
class ModelSettings:
    """[model]: the networks that are trained."""

    classifier: str = setting(
        "small",
        "M: small, size-matched, mobilenet-v2, a .safetensors file (feddig encoder import) to start from, "
        "or package.module:function",
    )
    guidance: str = setting("deconvolution", "P_G: deconvolution, or package.module:function")


@dataclass(frozen=True)
class TrainingSettings:
    """[training]: the local loop that silos, recall models and the joint update share."""

    rounds: int = setting(40, "number of rounds", least=1)
    batch: int = setting(32, "samples in a step", least=1)
    lr: float = setting(0.01, "learning rate eta of SGD", above=0, most=1000)
    momentum: float = setting(0.9, "momentum rho; its buffer starts at zero each round", least=0, below=1)
    weight_decay: float = setting(0.0, "added to the gradient: this much times the weights", least=0)
    clip_norm: float = setting(0.0, "longest gradient that is not scaled down; 0: never", least=0)
    local_epochs: int = setting(1, "passes over a silo's data in a round", least=1)
    precision: str | None = setting(
        None,
        "number format; left out: bf16 on a GPU that has it, else fp32",
        choices=("fp32", "tf32", "bf16"),
    )
    threads: int | None = setting(
        None,
        "CPU threads; 0: as torch chooses; left out: 1 with the small classifier, which needs no more, else 0",
        least=0,
    )


@dataclass(frozen=True)
class ModeratorSettings:
    """[moderator]: what FedDig adds at the moderator."""

    recall_epochs: int = setting(
        0, "passes of a recall model over its silo's digest; 0: training.local_epochs", least=0
    )
    votes: float | None = setting(
        None,
        "weight of the last model that an absent silo returned; left out: 1 in feddig-plus, else 0",
        least=0,
        most=1,
    )
    joint_epochs: int = setting(1, "passes over the held digests in a joint update", least=1)
    joint_steps: int = setting(0, "steps of a joint update, instead of epochs; 0: by epochs", least=0)
    joint_lr: float | None = setting(None, "learning rate of M there; left out: training.lr", above=0)
    guidance_lr: float | None = setting(None, "learning rate of P_G there; left out: joint_lr", above=0)
    digest_budget: int = setting(
        0, "digests in a pass of a joint update, drawn fairly over silos and classes; 0: all", least=0
    )
    noise_aware: bool = setting(
        True, "train on digests with the noise taken off, where its level is public (discrete mechanisms)"
    )


@dataclass(frozen=True)
class LoggingSettings:
    """[logging]: extra records of a run."""

    tensorboard: bool = setting(False, "also write TensorBoard events (extra `logging`)")
    mlflow: bool = setting(False, "also log to MLflow, where its own variables say (extra `mlflow`)")
