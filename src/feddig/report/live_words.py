"""How watched runs stand, in a line: going on, stopped, ended, or not yet begun."""

from collections.abc import Sequence
from dataclasses import dataclass

from feddig.report.runs import Run

WAITING, LIVE, STOPPED, ENDED, UNKNOWN = "waiting", "live", "stopped", "ended", "unknown"
PAUSE_SECONDS = 10.0
"""A comparison reads its data between two runs: for so long nothing is concluded from nobody being at work."""


@dataclass(frozen=True)
class State:
    """How it stands, for a program and for people."""

    name: str
    says: str


def tell_state(
    runs: Sequence[Run], working: Sequence[bool | None], age: float | None, federation: str = ""
) -> State:
    """Say how runs stand: whether a process is at work on each, and how many seconds ago anything was written.

    While one is, what a federation's moderator says of itself is added.
    """
    if not runs:
        state = State(WAITING, "waiting: no run has begun here yet")
    elif len(runs) == 1:
        state = _tell_one(runs[0], working[0])
    else:
        state = _tell_many(runs, working, age or 0.0)
    return State(LIVE, f"{state.says}; {federation}") if federation and state.name == LIVE else state


def _tell_one(run: Run, working: bool | None) -> State:
    if run.finished:
        return State(ENDED, f"ended: all {len(run.rows)} rounds are done")
    if working is None:
        return State(UNKNOWN, _place(run))
    if working:
        return State(LIVE, f"live, {_place(run)}")
    return State(STOPPED, f"stopped at {_place(run)}: no process is at work on it now")


def _tell_many(runs: Sequence[Run], working: Sequence[bool | None], age: float) -> State:
    active = [run for run, is_active in zip(runs, working, strict=True) if is_active]
    finished = f"{sum(run.finished for run in runs)} of {len(runs)} runs finished"
    if len(active) == 1:
        (run,) = active
        name = f"{run.algorithm}, {run.scenario}, seed {run.seed}"
        return State(LIVE, f"live, {name}: {_place(run)}; {finished}")
    if active:
        return State(LIVE, f"live, {len(active)} runs are going on; {finished}")
    if None in working:
        return State(UNKNOWN, finished)
    if age < PAUSE_SECONDS:
        return State(WAITING, f"{finished}; the next may be about to begin")
    said = f"{finished}; no process is at work on any now"
    return State(ENDED if all(run.finished for run in runs) else STOPPED, said)


def _place(run: Run) -> str:
    return f"round {len(run.rows)} of {run.planned}"
