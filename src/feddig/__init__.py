"""FedDig: federated learning that remembers silos after they leave.

Names are imported when they are first used, so that `feddig --help` need not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from feddig._version import __version__

if TYPE_CHECKING:
    from feddig.absence import Absence, draw_absence
    from feddig.comparison import grid, run_grid
    from feddig.data.datasets import Dataset, dataset_from_arrays, load_dataset
    from feddig.data.partition import Partition, draw_partition
    from feddig.digest import Digest, make_digest, read_digest, write_digest
    from feddig.errors import FedDigError
    from feddig.experiment import Experiment
    from feddig.experiment_file import demo_experiment, read_experiment, write_experiment
    from feddig.networks import Networks
    from feddig.running import resume, run

_HOMES = {
    "Absence": "absence",
    "Dataset": "data.datasets",
    "Digest": "digest",
    "Experiment": "experiment",
    "FedDigError": "errors",
    "Networks": "networks",
    "Partition": "data.partition",
    "dataset_from_arrays": "data.datasets",
    "demo_experiment": "experiment_file",
    "draw_absence": "absence",
    "draw_partition": "data.partition",
    "grid": "comparison",
    "load_dataset": "data.datasets",
    "make_digest": "digest",
    "read_digest": "digest",
    "read_experiment": "experiment_file",
    "resume": "running",
    "run": "running",
    "run_grid": "comparison",
    "write_digest": "digest",
    "write_experiment": "experiment_file",
}

__all__ = [
    "Absence", "Dataset", "Digest", "Experiment", "FedDigError", "Networks", "Partition", "__version__",
    "dataset_from_arrays", "demo_experiment", "draw_absence", "draw_partition", "grid", "load_dataset",
    "make_digest", "read_digest", "read_experiment", "resume", "run", "run_grid", "write_digest",
    "write_experiment",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'feddig' has no attribute {name!r}")
    return getattr(importlib.import_module(f"feddig.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
