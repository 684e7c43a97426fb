"""Workers that train: one on a CPU, several at a time on a GPU.

A worker holds a network that a silo or a recall model loads, trains and reads its update from. One training does not
fill a GPU, so several run there at a time, each on its own CUDA stream. A moderator whose silos are elsewhere trains in
the background while it waits for their replies.
"""

import copy
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from feddig.core.cuda_graphs import Recorder
from feddig.gpu.fused import use_kernels
from feddig.models.flat import FlatNetwork

Result = TypeVar("Result")

GPU_WORKERS = 4
"""More gain nothing on an H200, and each takes memory."""


@dataclass(frozen=True)
class Worker:
    """A network to train; on a GPU also its recorded steps and its stream."""

    network: FlatNetwork
    recorder: Recorder | None = None
    stream: torch.cuda.Stream | None = None


@dataclass(frozen=True)
class Done(Generic[Result]):
    """The result of a job and the seconds it took."""

    result: Result
    seconds: float


class WorkerPool:
    """Runs each job on a free worker."""

    def __init__(self, workers: Sequence[Worker], *, background: bool = False) -> None:
        self.first = workers[0]
        self.count = len(workers)
        self._recorders = [worker.recorder for worker in workers if worker.recorder is not None]
        self._free: queue.SimpleQueue[Worker] = queue.SimpleQueue()
        for worker in workers:
            self._free.put(worker)
        background = background or self.first.stream is not None
        self._threads = ThreadPoolExecutor(len(workers), "worker") if background else None

    @property
    def seconds_preparing(self) -> float:
        """Seconds spent on compiling and recording so far; each kind of step is prepared once per process."""
        return sum(recorder.seconds for recorder in self._recorders)

    def submit(self, job: Callable[[Worker], Result]) -> Future[Done[Result]]:
        """Start a job; without background threads it is done when this returns."""
        if self._threads is not None:
            return self._threads.submit(self._run, job)
        future: Future[Done[Result]] = Future()
        future.set_result(self._run(job))
        return future

    def run_alone(self, job: Callable[[Worker], Result]) -> Result:
        """Run a job on the first worker while no other runs, so that its step is recorded once."""
        return self._run_on(self.first, job).result

    def _run(self, job: Callable[[Worker], Result]) -> Done[Result]:
        worker = self._free.get()
        try:
            return self._run_on(worker, job)
        finally:
            self._free.put(worker)

    def _run_on(self, worker: Worker, job: Callable[[Worker], Result]) -> Done[Result]:
        started = time.perf_counter()
        if worker.stream is None:
            return Done(job(worker), time.perf_counter() - started)
        # earlier work comes first, because it may read memory that this worker reuses
        worker.stream.wait_stream(torch.cuda.default_stream(worker.network.device))
        with torch.cuda.stream(worker.stream):
            result = job(worker)
            worker.stream.synchronize()
        return Done(result, time.perf_counter() - started)


def build_workers(network: FlatNetwork, *, bf16: bool, record: bool, background: bool = False) -> WorkerPool:
    """Build the workers of a network: on a CPU one that trains it, on a GPU several that train copies of it.

    `record`: replay steps from CUDA graphs. `background`: run jobs in a thread on a CPU too.
    """
    device = network.device
    use_kernels(record and device.type == "cuda")
    if device.type == "cpu":
        alone = FlatNetwork(copy.deepcopy(network.module), bf16=True) if bf16 else network
        return WorkerPool([Worker(alone)], background=background)
    return WorkerPool(
        [
            Worker(
                FlatNetwork(copy.deepcopy(network.module), device, bf16=bf16),
                Recorder() if record else None,
                torch.cuda.Stream(device),  # type: ignore[no-untyped-call]
            )
            for _ in range(GPU_WORKERS)
        ]
    )
