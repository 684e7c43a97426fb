"""What is set up from an experiment before training: device, precision, networks, data, partition, absence."""

import copy
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from feddig.core.absence import Absence, draw_absence
from feddig.core.plus import ImageClassifier, build_expert
from feddig.data.dataset import Dataset
from feddig.data.load import load_dataset
from feddig.data.natural import (
    Silos,
    SiloTable,
    check_groups,
    check_whole,
    divide,
    keep_groups_whole,
    read_silo_table,
)
from feddig.data.partition import Partition, draw_partition
from feddig.errors import DataError, SettingError
from feddig.experiment.experiment import Experiment, algorithm_settings
from feddig.models.encoder import feature_shape, load_encoder
from feddig.models.networks import SIZES, build_classifier, build_guidance, check_networks
from feddig.seeds import derive
from feddig.settings import DRAWN, DataSettings


def choose_device(name: str) -> torch.device:
    """Return the device named auto, cpu, cuda or cuda:N; auto is the first GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdigit()) or (kind == "cpu" and number):
        raise SettingError(f"--device: {name!r} is not known; choose auto, cpu, cuda or cuda:N")
    if kind == "cuda":
        found = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(number or 0) >= found:
            raise SettingError(
                f"--device: {name!r} asked for, but {found} CUDA devices are there; use --device auto"
            )
    return torch.device(name)


def describe_device(device: torch.device) -> str:
    """Return the device's name for reports."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} ({device})"
    threads = torch.get_num_threads()
    return f"{platform.machine()} CPU, {threads} thread{'' if threads == 1 else 's'}"


AMPERE = (8, 0)
"""The first NVIDIA GPUs with tf32 and bf16 units."""


def choose_precision(asked: str | None, device: torch.device) -> str:
    """Return the number format: the given one, else bf16 on a GPU that supports it and fp32 elsewhere."""
    has_units = device.type == "cuda" and torch.cuda.get_device_capability(device) >= AMPERE
    if asked is None:
        return "bf16" if has_units else "fp32"
    if asked == "tf32" and not has_units:
        raise SettingError("training.precision: tf32 needs an NVIDIA GPU of 2020 or later; use fp32")
    return asked


def prepare_device(precision: str | None, device: torch.device) -> None:
    """Set torch's rounding for the whole process; with training in bf16, evaluation may use tf32."""
    if device.type != "cuda":
        return
    tf32 = precision != "fp32"
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True  # shapes repeat, so the search for the fastest kernel pays


@dataclass(frozen=True)
class Networks:
    """A user's own networks, in place of those the experiment names. They are copied, never changed."""

    encoder: nn.Module | None = None
    """P_R: image to non-negative feature; fixed."""
    guidance: nn.Module | None = None
    """P_G: feature to something shaped like an image."""
    classifier: nn.Module | None = None
    """M: called with (image) or (image, feature), gives logits."""
    raw_extractor: nn.Module | None = None
    """F_R inside the named classifier."""


def build_networks(
    experiment: Experiment, image_shape: tuple[int, int, int], classes: int, given: Networks
) -> tuple[nn.Module | None, nn.Module, nn.Module | None, nn.Module | None]:
    """Build P_R, M, P_G and E as far as the algorithm needs them, and check that they fit together."""
    recipe, model = experiment.recipe, experiment.model
    given = copy.deepcopy(given)
    encoder, guidance, code = None, None, None
    if recipe.sees_features or recipe.collects_digests:
        encoder = given.encoder
        if encoder is None:
            encoder = load_encoder(experiment.digest.encoder, image_shape[0])
        encoder = encoder.eval().requires_grad_(False)
        code = feature_shape(encoder, image_shape)
    classifier = given.classifier
    if given.raw_extractor is not None and (classifier is not None or model.classifier not in SIZES):
        raise SettingError(
            "Networks.raw_extractor: goes into a named classifier; a classifier of your own has its own"
        )
    if classifier is None:
        with _initial_weights(experiment, "classifier"):
            classifier = build_classifier(
                model.classifier,
                image_shape,
                classes,
                code if recipe.sees_features else None,
                given.raw_extractor,
            )
    if (recipe.recall or recipe.joint) and code is not None:
        guidance = given.guidance
        if guidance is None:
            with _initial_weights(experiment, "guidance"):
                guidance = build_guidance(model.guidance, code, image_shape)
    expert = None
    if recipe.expert and code is not None:
        with _initial_weights(experiment, "expert"):
            expert = build_expert(code, classes)
        classifier = ImageClassifier(classifier)
    check_networks(classifier, guidance, image_shape=image_shape, feature_shape=code, classes=classes)
    return encoder, classifier, guidance, expert


@contextmanager
def _initial_weights(experiment: Experiment, name: str) -> Iterator[None]:
    """Seed torch for a network's initial weights, and restore torch's global stream afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(experiment.seed, "initial weights", name))
        yield


@dataclass(frozen=True)
class Layout:
    """An experiment with its data partitioned and its absence drawn."""

    experiment: Experiment
    """Resolved: nothing is left open."""
    dataset: Dataset
    partition: Partition
    absence: Absence

    def training_rows(self) -> list[np.ndarray]:
        """Return the rows that each silo trains on; the centralised control is one silo that holds all."""
        rows = [share.train for share in self.partition.shares]
        return [np.sort(np.concatenate(rows))] if self.experiment.recipe.centralised else rows


def lay_out(
    experiment: Experiment,
    dataset: Dataset | None = None,
    device: str = "cpu",
    partition: Partition | None = None,
) -> Layout:
    """Load the data set and partition it unless they are given, draw the absence, resolve every setting."""
    if partition is not None:
        experiment = replace(
            experiment, data=replace(experiment.data, partition="given", partition_file=None)
        )
    experiment = with_precision(experiment.resolved(), choose_device(device))
    if dataset is not None and experiment.data.limit:
        raise SettingError("data.limit: does not apply to a data set given in Python; give fewer images")
    if dataset is None:
        dataset = load_data(experiment)
    elif isinstance(silos := _read_silos(experiment.data), SiloTable):
        dataset = silos.name_rows(dataset)
    _check_classes(experiment.data, dataset)
    dealt = _partition(experiment.data, dataset, partition)
    experiment = _with_silos(experiment, dealt)
    layout = Layout(experiment, dataset, dealt, _absence(experiment, dealt))
    return replace(layout, experiment=_prepared(experiment, layout.training_rows()))


def with_precision(experiment: Experiment, device: torch.device) -> Experiment:
    """Fill in the number format if it is left open."""
    precision = choose_precision(experiment.training.precision, device)
    return replace(experiment, training=replace(experiment.training, precision=precision))


def load_data(experiment: Experiment) -> Dataset:
    """Load the data set that an experiment names."""
    data = experiment.data
    if data.name == "tensors":
        raise SettingError(
            'data.name: "tensors" stands for arrays given in Python; run or resume it there with dataset=...'
        )
    seed = data.seed or 0
    return load_dataset(
        data.name,
        Path(data.path) if data.path else None,
        limit=data.limit,
        seed=seed,
        image_size=data.image_size,
        channels=data.channels,
        silos=_read_silos(data),
    )


def _read_silos(data: DataSettings) -> Silos:
    """Return where the silos of a folder's or an array's images are named."""
    if data.partition == "folders":
        return "folders"
    table = read_silo_table(Path(data.partition_file)) if data.partition_file else None
    return table if isinstance(table, SiloTable) else None


def _check_classes(data: DataSettings, dataset: Dataset) -> None:
    """Refuse classes that no image has, and a single class."""
    if dataset.classes < 2:
        hint = "give at least two"
        if dataset.name == "folder" and data.path:
            inner = Path(data.path) / dataset.class_names[0]
            if inner.is_dir() and any(map(Path.is_dir, inner.iterdir())):
                hint = f"if the folders in it are the classes, give {inner} instead"
        raise DataError(f"{dataset.name}: there is only one class, {dataset.class_names[0]}; {hint}")
    if dataset.class_names != tuple(map(str, range(dataset.classes))):
        return  # public sets, and folders, which have images of each class
    present = np.union1d(dataset.train.labels, dataset.test.labels)
    missing = np.setdiff1d(np.arange(dataset.classes), present)
    if missing.size:
        raise DataError(
            f"{dataset.name}: labels are {present.min()} to {present.max()}, and no image has the label {missing[0]}; "
            "number the classes from 0 without gaps"
            + (f", for example by subtracting {present.min()}" if present.min() else "")
        )


def _with_silos(experiment: Experiment, dealt: Partition) -> Experiment:
    """Fill in the number of silos that the data or the caller names; another number is an error."""
    data, found = experiment.data, len(dealt.shares)
    if data.silos and data.silos != found:
        names = f" ({', '.join(dealt.names[:8])}{', ...' if found > 8 else ''})" if dealt.names else ""
        raise SettingError(
            f"data.silos: {data.silos}, but by data.partition = {data.partition!r} there are {found} silos{names}; "
            "leave data.silos out"
        )
    return replace(experiment, data=replace(data, silos=found)).resolved()


def _partition(data: DataSettings, dataset: Dataset, given: Partition | None) -> Partition:
    """Return who holds which training image: as it is given, as the data says, or drawn."""
    first, second, third = data.split
    split, groups = (first, second, third), dataset.train.groups
    if data.partition == "given" and given is None:
        raise SettingError(
            'data.partition: "given" stands for a partition given in Python: run it there with partition=..., or set '
            '"file" and data.partition_file to the partition.csv of a run'
        )
    if data.partition_file and given is None:
        table = read_silo_table(Path(data.partition_file))
        given = table if isinstance(table, Partition) else None
    if given is not None:
        check_whole(given, len(dataset.train))
    elif dataset.natural is not None:
        given = divide(dataset.natural, split, data.seed or 0)
    elif data.partition in DRAWN:
        drawn = _draw(data, dataset, split)
        return drawn if groups is None else keep_groups_whole(drawn, groups, split, data.seed or 0)
    else:
        raise SettingError(
            f"data.partition: {data.partition!r} needs data that is read here; give partition=... in Python"
        )
    if groups is not None:
        check_groups(given, groups, f"data.partition = {data.partition!r}")
    return given


def _draw(data: DataSettings, dataset: Dataset, split: tuple[float, float, float]) -> Partition:
    return draw_partition(
        dataset.train.labels,
        silos=data.silos,
        method=data.partition,
        skew=data.skew,
        split=split,
        min_samples=data.min_samples,
        min_share=data.min_share,
        seed=data.seed or 0,
    )


def _absence(experiment: Experiment, dealt: Partition) -> Absence:
    settings = experiment.absence
    absence = draw_absence(
        settings.scenario,
        sizes=[len(share.train) for share in dealt.shares],
        rounds=experiment.scenario_rounds,
        order=settings.order,
        leave=settings.leave,
        return_=settings.return_,
        file=Path(settings.file) if settings.file else None,
        seed=settings.seed or 0,
    ).until(experiment.training.rounds)
    if not absence.present.any():
        key = (
            "absence.file" if settings.scenario == "file" else "absence.scenario, or use more training.rounds"
        )
        raise DataError(f"absence: nobody is ever there, so nothing can be trained; change {key}")
    return absence


def _prepared(experiment: Experiment, rows: list[np.ndarray]) -> Experiment:
    """Fill in the base algorithm's settings that follow from the number of local steps."""
    training, base = experiment.training, experiment.recipe.base
    steps = [-(-len(part) // training.batch) * training.local_epochs for part in rows]
    prepared = experiment.base_algorithm().prepared(
        steps=sum(steps) / len(steps), lr=training.lr, momentum=training.momentum
    )
    settings = algorithm_settings(prepared)
    if not settings:
        return experiment
    bases = {**experiment.algorithm.bases, base: settings}
    return replace(experiment, algorithm=replace(experiment.algorithm, bases=bases))
