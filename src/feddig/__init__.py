"""FedDig: federated learning that remembers silos after they leave.

Names are imported when they are first used, so that `feddig --help` need not wait for torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from feddig._version import __version__

if TYPE_CHECKING:
    from feddig.core.absence import Absence, draw_absence
    from feddig.data.dataset import Dataset
    from feddig.data.given import dataset_from, dataset_from_arrays
    from feddig.data.load import load_dataset
    from feddig.data.natural import partition_from
    from feddig.data.partition import Partition, draw_partition
    from feddig.digest.digest import Digest, make_digest
    from feddig.digest.digest_file import read_digest, write_digest
    from feddig.errors import FedDigError
    from feddig.experiment.experiment import Experiment
    from feddig.experiment.setup import Networks
    from feddig.experiment.toml import demo_experiment, read_experiment, write_experiment
    from feddig.runs.compare import Comparison, compare, grid, run_grid
    from feddig.runs.result import Result, read_result
    from feddig.runs.run import resume, run

_HOMES = {
    "Absence": "core.absence",
    "Comparison": "runs.compare",
    "Dataset": "data.dataset",
    "Digest": "digest.digest",
    "Experiment": "experiment.experiment",
    "FedDigError": "errors",
    "Networks": "experiment.setup",
    "Partition": "data.partition",
    "Result": "runs.result",
    "compare": "runs.compare",
    "dataset_from": "data.given",
    "dataset_from_arrays": "data.given",
    "demo_experiment": "experiment.toml",
    "draw_absence": "core.absence",
    "draw_partition": "data.partition",
    "grid": "runs.compare",
    "load_dataset": "data.load",
    "make_digest": "digest.digest",
    "partition_from": "data.natural",
    "read_digest": "digest.digest_file",
    "read_experiment": "experiment.toml",
    "read_result": "runs.result",
    "resume": "runs.run",
    "run": "runs.run",
    "run_grid": "runs.compare",
    "write_digest": "digest.digest_file",
    "write_experiment": "experiment.toml",
}

__all__ = [
    "Absence", "Comparison", "Dataset", "Digest", "Experiment", "FedDigError", "Networks", "Partition", "Result",
    "__version__", "compare", "dataset_from", "dataset_from_arrays", "demo_experiment", "draw_absence",
    "draw_partition", "grid", "load_dataset", "make_digest", "partition_from", "read_digest", "read_experiment",
    "read_result", "resume", "run", "run_grid", "write_digest", "write_experiment",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'feddig' has no attribute {name!r}")
    return getattr(importlib.import_module(f"feddig.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
