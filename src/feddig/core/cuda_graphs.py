"""Training steps recorded once as a CUDA graph and replayed, so that a GPU does not wait for Python.

A recorded step finds its batch by itself: the order of a whole pass lies on the GPU, and each replay takes the
next batch of it. One recording serves every silo that trains on the same source with the same settings.
"""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from feddig.core.algorithms.base import Correction
from feddig.core.local import Step, Trainee
from feddig.core.samples import Source
from feddig.errors import first_line
from feddig.gpu.fused import use_kernels, uses_kernels
from feddig.settings import TrainingSettings

log = logging.getLogger("feddig")

WARM_UP = 3
"""Steps before recording, in which libraries choose kernels and allocate memory."""
LARGEST_ERROR, LARGEST_ERROR_BF16 = 0.02, 0.2
"""Largest relative difference from torch's gradients; ties between pixels are broken differently."""
LARGEST_ERROR_OF_COMPANIONS = 0.9
"""The same for a guidance producer, whose gradients in bf16 are half rounding error. On generated images torch's
differed from exact ones by 18 to 50 %, ours by 24 to 50 %. A wrong gradient differs by 100 % or more."""
MOST_KEPT = 6
"""Recordings a worker keeps; digests that arrive later make a new source, and the oldest recording goes."""

_one_at_a_time = threading.Lock()


class Recorder:
    """A worker's recorded steps."""

    def __init__(self) -> None:
        self._steps: dict[tuple[object, ...], Step] = {}
        self._memory = torch.cuda.graph_pool_handle()
        self.seconds = 0.0
        """Spent on compiling and recording so far."""

    def step(
        self,
        trainees: Sequence[Trainee],
        source: Source,
        training: TrainingSettings,
        correction: Correction,
        prior: Tensor | None = None,
    ) -> Step:
        """Return the recorded step for this training, or a plain step where recording is impossible."""
        networks = tuple((id(trainee.network), trainee.lr) for trainee in trainees)
        key = (id(source), networks, training, correction.pull, correction.shift is not None, prior is None)
        if key not in self._steps:
            while len(self._steps) >= MOST_KEPT:
                self._steps.pop(next(iter(self._steps)))
            self._steps[key] = self._recorded(trainees, source, training, correction, prior)
        return self._steps[key]

    def _recorded(
        self,
        trainees: Sequence[Trainee],
        source: Source,
        training: TrainingSettings,
        correction: Correction,
        prior: Tensor | None = None,
    ) -> Step:
        if not getattr(source, "resident", False):
            return Step(trainees, source, training, correction, prior)
        step = RecordedStep(trainees, source, training, correction, prior)
        with _one_at_a_time:
            started = time.perf_counter()
            try:
                step.check_kernels()
                step.record(self._memory)
            except RuntimeError as error:
                # torch raises no narrower error when a network needs the CPU within a step
                log.warning(
                    "a network cannot be recorded (%s); it is trained step by step", first_line(error)
                )
                return Step(trainees, source, training, correction, prior)
            finally:
                self.seconds += time.perf_counter() - started
        return step


class RecordedStep(Step):
    """A step that is replayed from a CUDA graph."""

    def __init__(
        self,
        trainees: Sequence[Trainee],
        source: Source,
        training: TrainingSettings,
        correction: Correction,
        prior: Tensor | None = None,
    ) -> None:
        super().__init__(trainees, source, training, correction, prior)
        device = self.total.device
        size = training.batch
        self._order = torch.arange(-(-len(source) // size) * size, device=device) % len(source)
        self._place = torch.zeros((), dtype=torch.long, device=device)
        self._count = torch.full((), size, dtype=torch.long, device=device)
        self._within = torch.arange(size, device=device)
        self._graph = torch.cuda.CUDAGraph()
        self._mixes = any(_mixes(trainee.network.module) for trainee in trainees)

    def check_kernels(self) -> None:
        """Compare our kernels' gradients with torch's on a batch; use torch's where ours fail or differ."""
        if not uses_kernels():
            return
        try:
            ours = self._gradients()
        except Exception as error:  # a compiler may fail in any way
            reason = first_line(error)
        else:
            use_kernels(False)
            gaps = [
                float((own - other).norm() / (other.norm() + 1e-12))
                for own, other in zip(ours, self._gradients(), strict=True)
            ]
            if all(gap <= limit for gap, limit in zip(gaps, self._limits(), strict=True)):
                use_kernels(True)
                return
            reason = "gradients differ by " + ", ".join(f"{gap:.1%}" for gap in gaps)
        use_kernels(False)
        log.warning("our kernels do not work here (%s); torch's are used, which is slower", reason)

    def _limits(self) -> list[float]:
        """Return the largest allowed difference from torch's gradients, for each network."""
        bf16 = self.trainees[0].network.gradient.dtype == torch.bfloat16
        companions = [LARGEST_ERROR_OF_COMPANIONS] * (len(self.trainees) - 1)
        return [LARGEST_ERROR_BF16 if bf16 else LARGEST_ERROR, *companions]

    def _gradients(self) -> list[Tensor]:
        """Return the gradients of each network on the first batch; no step is taken."""
        with torch.random.fork_rng(devices=[self.total.device]):
            torch.cuda.manual_seed(0)
            _, every = self.differentiate(self._order[: len(self._within)])
            return [torch.cat([gradient.float().reshape(-1) for gradient in own]) for own in every]

    @contextmanager
    def _weights_kept(self) -> Iterator[None]:
        before = [trainee.network.weights() for trainee in self.trainees]
        try:
            yield
        finally:
            for trainee, weights in zip(self.trainees, before, strict=True):
                trainee.network.load(weights)

    def record(self, memory: Any) -> None:
        """Record the step; the networks' weights stay as they are."""
        with self._weights_kept():
            for _ in range(WARM_UP):
                self._place.zero_()
                self._take_next()
            torch.cuda.synchronize()
            stream = torch.cuda.current_stream()
            # other workers replay meanwhile, which the strictest mode forbids
            with torch.cuda.graph(self._graph, pool=memory, stream=stream, capture_error_mode="thread_local"):
                self._take_next()

    def run(self, rows: Tensor, size: int) -> int:
        """Replay the step for each batch of a pass."""
        steps = -(-len(rows) // size)
        # filling the last batch up is right only if samples of a batch do not interact
        replayed = len(rows) // size if self._mixes else steps
        self._order[: len(rows)] = rows
        self._place.zero_()
        self._count.fill_(len(rows))
        for _ in range(replayed):
            self._graph.replay()
        if replayed < steps:
            self.take(rows[replayed * size :])
        return steps

    def _take_next(self) -> None:
        places = self._within + self._place
        self.take(self._order.index_select(0, places), places < self._count)
        self._place += len(self._within)


def _mixes(module: nn.Module) -> bool:
    """Return whether samples of a batch interact in this network."""
    return any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in module.modules())
