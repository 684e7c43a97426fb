"""Two branches of a network side by side in a recorded step: a GPU has room for F_D while it computes F_R."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


@contextmanager
def beside(given: Tensor) -> Iterator[Callable[[], None]]:
    """Compute the block beside what follows, until the function that comes with it is called.

    Only while a step is recorded: there it becomes a branch of the graph, and its memory is the graph's own.
    """
    if not given.is_cuda or not torch.cuda.is_current_stream_capturing():
        yield lambda: None
        return
    here, side = torch.cuda.current_stream(given.device), _side_stream(given.device)
    side.wait_stream(here)
    with torch.cuda.stream(side):
        yield lambda: here.wait_stream(side)


@cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    # one is enough: steps are recorded one at a time, and a graph keeps no stream
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
