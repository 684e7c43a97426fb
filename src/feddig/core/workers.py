"""Where local training takes place: one lane on a CPU, several side by side on a GPU.

A lane is a network that a silo or a recall model loads, trains and reads its update from. One training does not
fill a GPU, so there several run at a time, each on a stream of its own. A moderator whose silos are elsewhere trains
beside them: its lane works while it waits for their replies.
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

SIDE_BY_SIDE = 4
"""Lanes on a GPU: more gain nothing on an H200, and each takes memory."""


@dataclass(frozen=True)
class Lane:
    """A network to train, and on a GPU what makes it fast."""

    network: FlatNetwork
    recorder: Recorder | None = None
    stream: torch.cuda.Stream | None = None


@dataclass(frozen=True)
class Done(Generic[Result]):
    """What a job gave, and the seconds it took."""

    result: Result
    seconds: float


class Lanes:
    """Takes jobs and gives each a lane."""

    def __init__(self, lanes: Sequence[Lane], *, beside: bool = False) -> None:
        self.first = lanes[0]
        self.count = len(lanes)
        self._recorders = [lane.recorder for lane in lanes if lane.recorder is not None]
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for lane in lanes:
            self._free.put(lane)
        beside = beside or self.first.stream is not None
        self._threads = ThreadPoolExecutor(len(lanes), "lane") if beside else None

    @property
    def seconds_preparing(self) -> float:
        """What compiling and recording took so far: paid once in a process, before a kind of step is first taken."""
        return sum(recorder.seconds for recorder in self._recorders)

    def submit(self, job: Callable[[Lane], Result]) -> Future[Done[Result]]:
        """Start a job; on a CPU it is done when this returns, unless the lanes work beside."""
        if self._threads is not None:
            return self._threads.submit(self._run, job)
        future: Future[Done[Result]] = Future()
        future.set_result(self._run(job))
        return future

    def run_alone(self, job: Callable[[Lane], Result]) -> Result:
        """Run a job on the first lane while no other runs, so that its step is recorded once."""
        return self._run_on(self.first, job).result

    def _run(self, job: Callable[[Lane], Result]) -> Done[Result]:
        lane = self._free.get()
        try:
            return self._run_on(lane, job)
        finally:
            self._free.put(lane)

    def _run_on(self, lane: Lane, job: Callable[[Lane], Result]) -> Done[Result]:
        started = time.perf_counter()
        if lane.stream is None:
            return Done(job(lane), time.perf_counter() - started)
        # what was asked of the GPU before comes first, also where it reads memory that this lane may use anew
        lane.stream.wait_stream(torch.cuda.default_stream(lane.network.device))
        with torch.cuda.stream(lane.stream):
            result = job(lane)
            lane.stream.synchronize()
        return Done(result, time.perf_counter() - started)


def build_lanes(network: FlatNetwork, *, bf16: bool, record: bool, beside: bool = False) -> Lanes:
    """Build the lanes for a network: itself on a CPU; on a GPU copies of it, with recorded steps if they pay back.

    `beside`: also on a CPU, jobs run while whoever gave them does something else.
    """
    device = network.device
    use_kernels(record and device.type == "cuda")
    if device.type == "cpu":
        alone = FlatNetwork(copy.deepcopy(network.module), bf16=True) if bf16 else network
        return Lanes([Lane(alone)], beside=beside)
    return Lanes(
        [
            Lane(
                FlatNetwork(copy.deepcopy(network.module), device, bf16=bf16),
                Recorder() if record else None,
                torch.cuda.Stream(device),  # type: ignore[no-untyped-call]
            )
            for _ in range(SIDE_BY_SIDE)
        ]
    )
