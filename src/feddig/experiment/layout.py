"""How an experiment is laid out before anything is trained: which data, who holds it, who is away when."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from feddig.core.absence import Absence, draw_absence
from feddig.data.datasets import Dataset, load_dataset
from feddig.data.partition import Partition, draw_partition
from feddig.errors import DataError, SettingError
from feddig.experiment.device import choose_device
from feddig.experiment.experiment import Experiment
from feddig.experiment.precision import choose_precision


@dataclass(frozen=True)
class Layout:
    """An experiment with its data dealt out and its absence drawn."""

    experiment: Experiment
    """Resolved: nothing is left open."""
    dataset: Dataset
    partition: Partition
    absence: Absence

    def training_rows(self) -> list[np.ndarray]:
        """List the rows each silo trains on; the centralised control is one silo that holds them all."""
        rows = [share.train for share in self.partition.shares]
        return [np.sort(np.concatenate(rows))] if self.experiment.recipe.centralised else rows


def lay_out(experiment: Experiment, dataset: Dataset | None = None, device: str = "cpu") -> Layout:
    """Load the data set (unless it is given), deal it out, draw the absence, resolve every setting."""
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
    settings = {name: value for name, value in vars(prepared).items() if value is not None}
    if not settings:
        return experiment
    bases = {**experiment.algorithm.bases, base: settings}
    return replace(experiment, algorithm=replace(experiment.algorithm, bases=bases))
