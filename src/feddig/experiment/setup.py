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
from feddig.data.dataset import Dataset
from feddig.data.load import load_dataset
from feddig.data.partition import Partition, draw_partition
from feddig.errors import DataError, SettingError
from feddig.experiment.experiment import Experiment, algorithm_settings
from feddig.models.classifier import SIZES, build_classifier
from feddig.models.committee import ImageClassifier, build_expert
from feddig.models.custom import check_networks
from feddig.models.encoder import feature_shape, load_encoder
from feddig.models.guidance import build_guidance
from feddig.seeds import derive


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


def lay_out(experiment: Experiment, dataset: Dataset | None = None, device: str = "cpu") -> Layout:
    """Load the data set unless it is given, partition it, draw the absence, resolve every setting."""
    experiment = with_precision(experiment.resolved(), choose_device(device))
    if dataset is not None and experiment.data.limit:
        raise SettingError("data.limit: does not apply to a data set given in Python; give fewer images")
    dataset = dataset if dataset is not None else load_data(experiment)
    dealt = _partition(experiment, dataset)
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
    )


def _partition(experiment: Experiment, dataset: Dataset) -> Partition:
    data = experiment.data
    first, second, third = data.split
    return draw_partition(
        dataset.train.labels,
        silos=data.silos,
        method=data.partition,
        skew=data.skew,
        split=(first, second, third),
        min_samples=data.min_samples,
        min_share=data.min_share,
        seed=data.seed or 0,
    )


def _absence(experiment: Experiment, dealt: Partition) -> Absence:
    settings = experiment.absence
    absence = draw_absence(
        settings.scenario,
        sizes=[len(share.train) for share in dealt.shares],
        rounds=experiment.training.rounds,
        order=settings.order,
        leave=settings.leave,
        return_=settings.return_,
        file=Path(settings.file) if settings.file else None,
        seed=settings.seed or 0,
    )
    if not absence.present.any():
        raise DataError("absence: nobody is ever there, so nothing can be trained; change absence.file")
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
