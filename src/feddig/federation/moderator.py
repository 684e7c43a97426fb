"""The rounds of a real federation: the same loop as anywhere, around silos that come and go and a moderator that may
be killed at any moment and goes on from the last finished round."""

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from feddig._version import __version__
from feddig.core.absence import Absence
from feddig.core.samples import accuracy
from feddig.core.training import RoundResult, run_rounds
from feddig.digest.digest import Digest
from feddig.experiment.setup import describe_device
from feddig.federation.contract import read_contract
from feddig.federation.desk import Desk, build_desk
from feddig.federation.engine import DeploymentEngine
from feddig.federation.folders import ModeratorFolder
from feddig.federation.status import StatusFile
from feddig.report.measures import accuracy_measures
from feddig.runs.loggers.opening import Logs, check_logs, open_logs
from feddig.runs.outcome import describe_round, summarise, write_outcome
from feddig.runs.results_folder import ResultsFolder, open_log
from feddig.runs.run import restore

log = logging.getLogger("feddig")

LOOK_SECONDS = 0.5
SUCCESSION_SECONDS = 60.0
"""How long a moderator waits for the one before it to end: Flower notices a dead SuperLink only after a while."""


def moderate_federation(
    grid: Grid,
    path: Path,
    *,
    device: str = "auto",
    until: int | None = None,
    write: Callable[..., Message] = Message,
) -> dict[str, Any]:
    """Run the federation of this moderator's folder, or go on with it, and give its summary.

    `until` stops after so many rounds, to be gone on with.
    """
    folder, results = ModeratorFolder(path), ResultsFolder(ModeratorFolder(path).run)
    contract = read_contract(folder.contract)
    standing = StatusFile(folder.status, contract)
    if results.finished:
        standing.note(
            "finished", rows=results.metrics(), digests=_kept_digests(results, len(contract.members))
        )
        return results.summary()
    desk = build_desk(contract, folder.test_set, device=device)
    check_logs(desk.experiment)
    if not results.started:
        results.claim()
        results.write_setting(desk.experiment, None, _attendance(desk, []).to_csv())
    with open_log(results.path, patience=SUCCESSION_SECONDS):
        try:
            return _Moderating(grid, desk, results, standing, write).go_on(until)
        except BaseException:
            standing.note("stopped")
            raise


class _Moderating:
    """One process's part of a federation's life."""

    def __init__(
        self,
        grid: Grid,
        desk: Desk,
        results: ResultsFolder,
        standing: StatusFile,
        write: Callable[..., Message],
    ) -> None:
        self._desk, self._results, self._standing = desk, results, standing
        self._inputs = desk.inputs()
        self._round = restore(desk.moderator, results, self._inputs, new_releases=desk.contract.new_release)
        # also those that came in a round that was cut off
        kept = _kept_digests(results, desk.moderator.silos)
        desk.moderator.hold(digest for silo, digest in kept.items() if silo not in desk.moderator.digests)
        self._rows = results.metrics()
        self._results.write_availability(_attendance(desk, self._rows).to_csv())
        self._engine = DeploymentEngine(
            grid,
            desk.contract,
            results,
            terms=desk.terms,
            schedule=desk.schedule,
            tell=self._note,
            write=write,
        )

    def go_on(self, until: int | None) -> dict[str, Any]:
        """Train from the last finished round to the end, recording each round."""
        desk, rounds = self._desk, self._desk.experiment.training.rounds
        last = rounds if until is None else min(until, rounds)
        self._announce()
        with open_logs(desk.experiment, self._results.path, self._rows) as logs:
            self._train(last, logs)
            if last < rounds:
                self._note("stopped")
                return {}
            summary = self._summary()
            write_outcome(self._results, desk.experiment, desk.moderator, desk.network, summary)
            logs.finish(summary)
        self._note("finished")
        return summary

    def _train(self, last: int, logs: Logs) -> None:
        desk, moderator = self._desk, self._desk.moderator
        started, prepared = time.perf_counter(), 0.0
        for result in run_rounds(
            moderator, self._engine, desk.experiment.recipe, self._due(range(self._round, last))
        ):
            row = self._measure(result)
            row["seconds"], started = time.perf_counter() - started, time.perf_counter()
            row["seconds_preparing"] = desk.lanes.seconds_preparing - prepared
            prepared = desk.lanes.seconds_preparing
            self._results.append_metrics(row)
            self._results.write_checkpoint(
                result.round + 1, moderator.state(), moderator.digests, self._inputs
            )
            self._rows.append(row)
            self._results.write_availability(_attendance(desk, self._rows).to_csv())
            logs.round(row)
            log.info("round %d: %s", result.round, json.dumps(row))

    def _due(self, rounds: range) -> Iterator[int]:
        """Give the rounds, each when it may begin."""
        for round in rounds:
            self._round = round
            if round == rounds.start:
                self._gather(round)
            self._wait_for_somebody(round)
            yield round

    def _gather(self, round: int) -> None:
        """Give those who are expected time to come: at first everybody, later who was there when it was cut off."""
        everybody = range(self._desk.moderator.silos)
        awaited = self._rows[-1]["present"] if self._rows else everybody
        expected = {silo for silo in awaited if self._engine.expected(silo, round)}
        until = time.monotonic() + self._desk.contract.digest_deadline
        self._note("waiting")
        self._engine.look()
        while not expected <= set(self._engine.here(round)) and time.monotonic() < until:
            self._collect_digests(round)
            time.sleep(LOOK_SECONDS)
            self._engine.look()

    def _collect_digests(self, round: int) -> None:
        """Ask who came for their digests, where the algorithm has any."""
        if self._desk.terms is not None:
            moderator = self._desk.moderator
            moderator.hold(self._engine.collect_digests(range(moderator.silos), round))

    def _wait_for_somebody(self, round: int) -> None:
        """Burn no round before there is anything to train on: a silo that is here, or digests to recall."""
        moderator, collects = self._desk.moderator, self._desk.terms is not None
        if not any(self._engine.expected(silo, round) for silo in range(moderator.silos)):
            return  # a rehearsal's table has nobody there
        while not moderator.digests:
            self._collect_digests(round)
            if moderator.digests or (not collects and self._engine.here(round)):
                return
            self._note("waiting")
            time.sleep(LOOK_SECONDS)
            self._engine.look()

    def _measure(self, result: RoundResult) -> dict[str, Any]:
        """Measure the model after a round: everything a row of metrics.jsonl holds but the whole time."""
        desk, moderator = self._desk, self._desk.moderator
        here = [reply.silo for reply in result.replies]
        if not desk.experiment.recipe.silos_train:
            here = self._engine.here(result.round)
        validation: list[float | None] = [None] * moderator.silos
        tested: float | None = None
        if desk.test is not None:
            desk.network.load(moderator.weights)
            measured = tested = accuracy(desk.network, desk.test)
        else:
            scores = self._engine.evaluate(moderator.weights, here, result.round)
            for silo, score in scores.items():
                validation[silo] = score.accuracy if score.samples else None
            images = sum(score.samples for score in scores.values())
            right = math.fsum(score.accuracy * score.samples for score in scores.values())
            measured = right / images if images else None
        return {
            "round": result.round,
            "test_accuracy": tested,
            "accuracy": measured,
            "accuracy_of": "test" if desk.test is not None else "validation",
            "present": here,
            "recalled": [reply.silo for reply in result.stand_ins],
            "validation_accuracy": validation,
            **describe_round(result, moderator),
        }

    def _note(self, state: str) -> None:
        here = self._engine.here(min(self._round, self._desk.experiment.training.rounds - 1))
        self._standing.note(state, rows=self._rows, here=here, digests=self._desk.moderator.digests)

    def _announce(self) -> None:
        """Write into the log what the numbers below it are of."""
        contract, experiment = self._desk.contract, self._desk.experiment
        log.info(
            "FedDig %s, %s, process %d", __version__, describe_device(self._desk.network.device), os.getpid()
        )
        log.info(
            "federation %s, contract %s: %s, seed %d",
            contract.name,
            contract.hash[:12],
            experiment.algorithm.name,
            experiment.seed,
        )
        if self._round:
            log.info("resumed after %d rounds", self._round)

    def _summary(self) -> dict[str, Any]:
        desk, rows = self._desk, self._rows
        images = len(desk.test) if desk.test is not None else 0
        return {
            **summarise(desk.experiment, desk.moderator, desk.network, rows),
            "federation": desk.contract.name,
            "silo_names": [member.name for member in desk.contract.members],
            "data": {"name": "of the silos' own", "test": images},
            "accuracy": _measures([row["accuracy"] for row in rows], _attendance(desk, rows)),
            "accuracy_of": rows[-1]["accuracy_of"],
        }


def _kept_digests(results: ResultsFolder, silos: int) -> dict[int, Digest]:
    """Read all digests that ever came."""
    kept = {silo: results.kept_digest(silo) for silo in range(silos)}
    return {silo: digest for silo, digest in kept.items() if digest is not None}


def _attendance(desk: Desk, rows: Sequence[Mapping[str, Any]]) -> Absence:
    """Make the availability table of what really happened; a simulation can replay it."""
    present = np.zeros((desk.moderator.silos, len(rows)), dtype=bool)
    for place, row in enumerate(rows):
        present[row["present"], place] = True
    return Absence(present)


def _measures(accuracies: Sequence[float | None], attendance: Absence) -> dict[str, float | None]:
    """Compute the measures of a curve that may have gaps: rounds in which nobody could measure anything."""
    curve = [math.nan if value is None else value for value in accuracies]
    measures = accuracy_measures(curve, attendance)
    known = [value for value in accuracies if value is not None]
    found = {name: None if value is None or math.isnan(value) else value for name, value in measures.items()}
    return {**found, "best": max(known, default=None)}
