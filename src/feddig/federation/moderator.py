"""The moderator's run of a real federation.

The loop is the one of every run. Silos come and go, and the moderator may be killed at any moment: its next process
resumes after the last finished round. After the last round, and between rounds if the contract says so, the trained
model is sent to the silos.
"""

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
from feddig.core.training import RoundResult
from feddig.digest.digest import Digest
from feddig.errors import FedDigError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import describe_device
from feddig.federation.contract import Contract, read_contract
from feddig.federation.engine import DeploymentEngine
from feddig.federation.folders import ModeratorFolder
from feddig.federation.moderator_setup import ModeratorSetup, set_up_moderator
from feddig.federation.status import (
    FINISHED,
    PAUSED_BY_OPERATOR,
    SENDING,
    StatusFile,
    read_status,
    say_paused,
)
from feddig.federation.wire import SentModel
from feddig.files import pack_tensors
from feddig.report.measures import accuracy_measures, class_summary
from feddig.runs.loggers.base import check_logs
from feddig.runs.model_file import MODEL, pack_model
from feddig.runs.outcome import count_classes, describe_round, describe_run, describe_test, write_class_names
from feddig.runs.results_folder import ResultsFolder, open_log
from feddig.runs.run import record_rounds, restore

log = logging.getLogger("feddig")

SUCCESSION_SECONDS = 60.0
"""How long a new moderator process waits for the last one to end; Flower notices a dead SuperLink late."""
LOOK_SECONDS = 0.5
"""How often it looks whether the operator lets it go on, and which silos still lack the model."""


def moderate_federation(
    grid: Grid,
    path: Path,
    *,
    device: str = "auto",
    until: int | None = None,
    write: Callable[..., Message] = Message,
) -> dict[str, Any]:
    """Run or resume the federation of this moderator's folder, and return its summary.

    `until` stops after this many rounds, to be resumed.
    """
    folder, results = ModeratorFolder(path), ResultsFolder(ModeratorFolder(path).run)
    contract = read_contract(folder.contract)
    status = StatusFile(folder.status, contract)
    if results.finished and len(results.metrics()) >= contract.experiment.training.rounds:
        last = read_status(folder.status)
        status.received = set() if last is None else last.received
        return _send_again(grid, contract, results, status, write)
    setup = set_up_moderator(contract, folder.test_set, device=device)
    check_logs(setup.experiment)
    resumed = results.started
    if not resumed:
        results.create()
        results.write_setup(setup.experiment, None, _attendance(setup, []).to_csv())
    with open_log(results.path, wait_seconds=SUCCESSION_SECONDS):
        try:
            return _Moderating(grid, setup, folder, status, write, resumed=resumed).go_on(until)
        except BaseException as error:
            if status.state != FINISHED:
                status.note("stopped")
            if isinstance(error, Exception) and not isinstance(error, FedDigError):
                log.error(
                    "the moderator's app fails, which is a fault of the program; report it", exc_info=error
                )
            raise


def _send_again(
    grid: Grid, contract: Contract, results: ResultsFolder, status: StatusFile, write: Callable[..., Message]
) -> dict[str, Any]:
    """Send the model of a finished run to the silos that lack it, and return the run's summary."""
    digests = _kept_digests(results, len(contract.members))
    status.note(SENDING, rows=results.metrics(), digests=digests)
    with open_log(results.path, wait_seconds=SUCCESSION_SECONDS):
        engine = DeploymentEngine(grid, contract, results, terms=None, write=write)
        send_result(engine, contract, results, status)
    return results.summary()


class _Moderating:
    """The rounds that one moderator process runs; it also hears of each finished round, as a Progress."""

    def __init__(
        self,
        grid: Grid,
        setup: ModeratorSetup,
        folder: ModeratorFolder,
        status: StatusFile,
        write: Callable[..., Message],
        *,
        resumed: bool,
    ) -> None:
        results = ResultsFolder(folder.run)
        self._setup, self._folder, self._results, self._status = setup, folder, results, status
        contract = setup.contract
        self._round = restore(
            setup.moderator,
            results,
            setup.inputs(),
            new_releases=contract.new_release,
            gone=contract.gone,
        )
        for silo in contract.gone:
            setup.moderator.forget(silo)
            results.delete_digest(silo)
        results.reopen()
        # also digests that arrived in a round that did not finish
        kept = _kept_digests(results, setup.moderator.silos)
        setup.moderator.hold(digest for silo, digest in kept.items() if silo not in setup.moderator.digests)
        self._rows = results.metrics()
        # a later version of the contract may have more rounds and silos
        results.write_setup(setup.experiment, None, _attendance(setup, self._rows).to_csv())
        names = [member.name for member in contract.members]
        write_class_names(results.path, contract.classes, names, _test_images(setup))
        self._engine = DeploymentEngine(
            grid,
            setup.contract,
            results,
            terms=setup.terms,
            schedule=setup.schedule,
            needed=self._needed,
            resumed=self._round if resumed else None,
            tell=self._note,
            write=write,
        )

    def go_on(self, until: int | None) -> dict[str, Any]:
        """Train from the last finished round to the end, recording each round."""
        rounds = self._setup.experiment.training.rounds
        due = range(self._round, rounds if until is None else min(until, rounds))
        self._announce()
        summary = record_rounds(
            self._setup,
            self._engine,
            self._results,
            due,
            due=self._due(due),
            measure=self._measure,
            summarise=self._summary,
            progress=self,
        )
        if summary:
            send_result(self._engine, self._setup.contract, self._results, self._status)
        else:
            self._note("stopped")
        return summary

    def start(self, experiment: Experiment, done: int, rounds: int, events: Sequence[str]) -> None:
        """Do nothing: the rounds begin when silos are connected."""

    def round(self, row: Mapping[str, Any]) -> None:
        """Keep a finished round's row, and write and log who was present."""
        self._rows.append(dict(row))
        self._results.write_availability(_attendance(self._setup, self._rows).to_csv())
        self._note("training")
        log.info("%s", self._status.describe())
        send_checkpoint(self._engine, self._setup, len(self._rows))

    def stop(self) -> None:
        """Do nothing: `go_on` notes how it ended."""

    def _due(self, rounds: range) -> Iterator[int]:
        """Yield the rounds, each when it may begin."""
        for round in rounds:
            self._round = round
            if round == rounds.start:
                self._gather(round)
            self._await_silos(round)
            while self._folder.pause.exists():
                self._await_operator(round)
                self._await_silos(round)
            if self._setup.terms is not None:
                self._setup.moderator.hold(self._engine.collect_digests(self._everybody, round))
            yield round

    def _await_silos(self, round: int) -> None:
        """Wait until there are as many silos as the round needs."""
        self._engine.wait(round, lambda here: len(here) >= self._needed(round))

    def _await_operator(self, round: int) -> None:
        """Wait until the operator lets the federation go on."""
        log.warning("round %d: %s", round + 1, say_paused(self._folder))
        while self._folder.pause.exists():
            self._note(PAUSED_BY_OPERATOR)
            time.sleep(LOOK_SECONDS)
            self._engine.look()
        log.info("round %d: the operator lets it go on", round + 1)

    def _gather(self, round: int) -> None:
        """Wait for as many silos as the contract says; after a restart, a while for those of the last round."""
        contract, deadline = self._setup.contract, self._setup.contract.digest_deadline
        self._note("waiting")
        if self._rows:
            awaited = {silo for silo in self._rows[-1]["present"] if self._engine.expected(silo, round)}
            self._engine.wait(round, awaited.issubset, "waiting", silent=deadline, longest=deadline)
            return
        start = contract.silos_to_start(self._expected(round))
        # silos that do not train have done their part when their digests are held
        digests = () if self._setup.experiment.recipe.silos_train else self._setup.moderator.digests
        held = [silo for silo in digests if self._engine.expected(silo, round)]
        self._engine.wait(round, lambda here: len(here) >= start, "waiting", counted=held, silent=deadline)

    def _needed(self, round: int) -> int:
        """Return how many silos a round needs: fewer than the contract's minimum in the rounds that it allows alone."""
        contract, recipe, expected = (
            self._setup.contract,
            self._setup.experiment.recipe,
            self._expected(round),
        )
        alone = 0
        for row in reversed(self._rows):
            if len(row["present"]) >= contract.needed_silos(self._expected(row["round"])):
                break
            alone += 1
        if recipe.silos_train and alone >= (contract.rounds_alone or 0):
            return contract.needed_silos(expected)
        # a round without silos needs digests that it trains on
        digests_suffice = recipe.recall or recipe.joint or not recipe.silos_train
        return 0 if digests_suffice and self._setup.moderator.digests else min(1, expected)

    def _expected(self, round: int) -> int:
        return sum(self._engine.expected(silo, round) for silo in self._everybody)

    @property
    def _everybody(self) -> range:
        return range(self._setup.moderator.silos)

    def _measure(self, result: RoundResult) -> dict[str, Any]:
        """Return a round's row of metrics.jsonl, apart from its total time."""
        setup, moderator = self._setup, self._setup.moderator
        here = [reply.silo for reply in result.replies]
        if not setup.experiment.recipe.silos_train:
            here = self._engine.here(result.round)
        validation: list[float | None] = [None] * moderator.silos
        tested: dict[str, Any] = {"test_accuracy": None}
        if setup.test is not None:
            setup.network.load(moderator.model())
            tested = describe_test(setup.network, setup.test, len(setup.contract.classes))
            measured = tested["test_accuracy"]
        else:
            scores = self._engine.evaluate(moderator.model(), here, result.round)
            for silo, score in scores.items():
                validation[silo] = score.accuracy if score.samples else None
            images = sum(score.samples for score in scores.values())
            right = math.fsum(score.accuracy * score.samples for score in scores.values())
            measured = right / images if images else None
        return {
            "round": result.round,
            **tested,
            "accuracy": measured,
            "accuracy_of": "test" if setup.test is not None else "validation",
            "present": here,
            "recalled": [reply.silo for reply in result.stand_ins],
            "validation_accuracy": validation,
            **describe_round(result, moderator),
        }

    def _note(self, state: str, missing: Sequence[int] = ()) -> None:
        here = self._engine.here(min(self._round, self._setup.experiment.training.rounds - 1))
        digests = {**self._setup.moderator.digests, **self._engine.arrived}
        self._status.note(
            state, rows=self._rows, here=here, broken=self._engine.broken, digests=digests, missing=missing
        )

    def _announce(self) -> None:
        """Log which federation runs, and on what."""
        contract, experiment = self._setup.contract, self._setup.experiment
        log.info(
            "FedDig %s, %s, process %d", __version__, describe_device(self._setup.network.device), os.getpid()
        )
        log.info(
            "federation %s, contract %s, version %d: %s, seed %d",
            contract.name,
            contract.hash[:12],
            contract.version,
            experiment.algorithm.name,
            experiment.seed,
        )
        if self._round:
            log.info("resumed after %d rounds", self._round)

    def _summary(self) -> dict[str, Any]:
        setup, rows = self._setup, self._rows
        images, attendance = _test_images(setup), _attendance(setup, rows)
        return {
            **describe_run(setup.experiment, setup.moderator, setup.network, rows),
            "federation": setup.contract.name,
            "silo_names": [member.name for member in setup.contract.members],
            "data": {"name": "of the silos' own", "test": sum(images)},
            "accuracy": _measures([row["accuracy"] for row in rows], attendance),
            **class_summary(rows, images, attendance.first_leave()),
            "accuracy_of": rows[-1]["accuracy_of"],
        }


def _kept_digests(results: ResultsFolder, silos: int) -> dict[int, Digest]:
    """Read all digests that ever arrived."""
    kept = {silo: results.kept_digest(silo) for silo in range(silos)}
    return {silo: digest for silo, digest in kept.items() if digest is not None}


def _test_images(setup: ModeratorSetup) -> list[int]:
    """Count the test images of each class; none without a test set."""
    labels = np.zeros(0, np.int64) if setup.test is None else setup.test.labels.cpu().numpy()
    return count_classes(labels, len(setup.contract.classes))


def _attendance(setup: ModeratorSetup, rows: Sequence[Mapping[str, Any]]) -> Absence:
    """Return the availability table of what happened; a simulation can replay it."""
    present = np.zeros((setup.moderator.silos, len(rows)), dtype=bool)
    for place, row in enumerate(rows):
        present[row["present"], place] = True
    schedule = setup.schedule
    handed_in = None if schedule is None or schedule.hands_in is None else schedule.hands_in[:, : len(rows)]
    return Absence(present, handed_in)


def _measures(accuracies: Sequence[float | None], attendance: Absence) -> dict[str, float | None]:
    """Return the measures of a curve with gaps: rounds in which no silo could measure accuracy."""
    curve = [math.nan if value is None else value for value in accuracies]
    measures = accuracy_measures(curve, attendance)
    known = [value for value in accuracies if value is not None]
    found = {name: None if value is None or math.isnan(value) else value for name, value in measures.items()}
    return {**found, "best": max(known, default=None)}


def send_checkpoint(engine: DeploymentEngine, setup: ModeratorSetup, rounds: int) -> None:
    """Send the model to the silos that are here, if the contract says so after this number of rounds."""
    every = setup.contract.model_every
    if every is None or rounds % every or rounds == setup.experiment.training.rounds:
        return
    setup.network.load(setup.moderator.model())
    packed = pack_tensors("model", *pack_model(setup.party, *setup.task()))
    engine.send_model(SentModel(packed, rounds), setup.contract.active)


def send_result(
    engine: DeploymentEngine, contract: Contract, results: ResultsFolder, status: StatusFile
) -> None:
    """Send the final model to every silo, until all have it, the time is up, or somebody stops the moderator."""
    until = time.monotonic() + contract.longest_stay
    model = SentModel((results.path / MODEL).read_bytes(), contract.experiment.training.rounds)
    missing = [silo for silo in contract.active if silo not in status.received]
    try:
        while True:
            status.note(SENDING, here=engine.here(None), broken=engine.broken, missing=missing)
            engine.look()
            for silo in engine.send_model(model, missing):
                status.received.add(silo)
                log.info("silo %d (%s) has the final model", silo, contract.members[silo].name)
            missing = [silo for silo in contract.active if silo not in status.received]
            if not missing or time.monotonic() >= until:
                break
            time.sleep(LOOK_SECONDS)
    finally:
        if missing:
            log.warning(
                "the final model did not reach %s; start the moderator again to send it when they are back",
                engine.names(missing),
            )
        status.note(FINISHED, here=engine.here(None), broken=engine.broken)
