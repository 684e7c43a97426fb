"""The same work on pfl's SimulatedBackend: `python -m peers.with_pfl FOLDER` writes its result to the folder."""

import itertools
import sys
import time
from functools import partial
from importlib.metadata import version
from pathlib import Path

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from peers.plain import (
    BATCH,
    LEARNING_RATE,
    MOMENTUM,
    SILOS,
    THREADS,
    Work,
    build_model,
    load,
    read_work,
    write_result,
)


class Model(nn.Module):
    """The plain model with the two methods that pfl calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = build_model()

    def loss(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return the loss that a step minimises."""
        return cross_entropy(self.layers(images), labels)

    @torch.no_grad()
    def metrics(self, images: Tensor, labels: Tensor) -> dict[str, Weighted]:
        """Return the metrics that pfl always computes before and after the first round."""
        return {"loss": Weighted(float(self.loss(images, labels)) * len(images), len(images))}


class Clock(TrainingProcessCallback):
    """A callback that measures the time of each round."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Start the clock."""
        self._since = time.perf_counter()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Record the seconds of the round and continue training."""
        now = time.perf_counter()
        self.seconds.append(now - self._since)
        self._since = now
        return False, Metrics()


def datasets(work: Work) -> FederatedDataset:
    """Return the silos in turn, each with its images in the order of the round."""
    visits = itertools.count()

    def dataset_of(silo: int) -> PyTorchTensorDataset:
        order = work.orders[next(visits) // SILOS, silo]
        return PyTorchTensorDataset((work.images[silo][order], work.labels[silo][order]), user_id=str(silo))

    return FederatedDataset(dataset_of, get_user_sampler("minimize_reuse", list(range(SILOS))))


def main(folder: Path) -> None:
    """Train all rounds."""
    torch.set_num_threads(THREADS)
    work = read_work(folder)
    model, clock, silos = Model(), Clock(), datasets(work)
    load(model, work.initial)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=work.rounds,
            evaluation_frequency=work.rounds,
            train_cohort_size=SILOS,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=silos, val_data=silos),
        model=PyTorchModel(
            model,
            local_optimizer_create=partial(torch.optim.SGD, momentum=MOMENTUM),
            central_optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=LEARNING_RATE
        ),
        callbacks=[clock],
        send_metrics_to_platform=False,
    )
    write_result(folder, "pfl", clock.seconds, list(model.state_dict().values()), version("pfl"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
