"""Run an experiment into a results folder, or resume one that was interrupted."""

import json
import logging
import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from feddig._version import __version__
from feddig.core.engine import Engine
from feddig.core.moderator import Moderator
from feddig.core.samples import accuracy
from feddig.core.silo import Silo
from feddig.core.training import RoundResult, run_rounds
from feddig.data.dataset import Dataset
from feddig.data.partition import Partition
from feddig.digest.digest import Digest, check_digest
from feddig.errors import FileFormatError, first_line
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import Networks, describe_device
from feddig.experiment.toml import read_experiment
from feddig.report.html_parts import PAGE
from feddig.report.measures import accuracy_measures
from feddig.runs.build import Moderated, Simulation, build_simulation
from feddig.runs.loggers.base import check_logs, open_logs
from feddig.runs.outcome import describe_round, describe_run, write_class_facts, write_outcome, write_page
from feddig.runs.progress import Progress, Silent, name_silos
from feddig.runs.result import Result
from feddig.runs.results_folder import ResultsFolder, open_log

log = logging.getLogger("feddig")

Connect = Callable[[Simulation, ResultsFolder], Engine]
"""Builds the engine that reaches a simulation's silos and keeps their digests in the folder."""


@contextmanager
def _own_threads() -> Iterator[None]:
    """Give the caller its number of torch's threads back, which a run sets for the whole process."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)


@_own_threads()
def run(
    experiment: Experiment | str | Path,
    out: str | Path,
    *,
    device: str = "auto",
    dataset: Dataset | None = None,
    networks: Networks | None = None,
    partition: Partition | None = None,
    progress: Progress | None = None,
    until: int | None = None,
    connect: Connect | None = None,
) -> Result:
    """Run an experiment, or the file of one, into the new folder `out` and return its result.

    `dataset`, `networks` and `partition` replace what the experiment names; `until` stops after this many rounds, to be
    resumed; `connect` builds another engine than the one that runs the silos in this process.
    """
    if not isinstance(experiment, Experiment):
        experiment = read_experiment(experiment)
    simulation = build_simulation(
        experiment, device=device, dataset=dataset, networks=networks, partition=partition
    )
    folder = ResultsFolder(Path(out))
    check_logs(simulation.experiment)
    folder.check_space(_space(simulation))
    folder.create()
    folder.write_setup(simulation.experiment, simulation.partition.to_csv(), simulation.absence.to_csv())
    _go_on(simulation, folder, progress or Silent(), until, connect or _in_process)
    return Result(folder.path)


@_own_threads()
def resume(
    out: str | Path,
    *,
    device: str = "auto",
    dataset: Dataset | None = None,
    networks: Networks | None = None,
    progress: Progress | None = None,
    until: int | None = None,
    connect: Connect | None = None,
) -> Result:
    """Resume the run in `out` from its last checkpoint; of a finished run, return the result."""
    folder = ResultsFolder(Path(out))
    if folder.finished:
        if not (folder.path / PAGE).exists():
            write_page(folder.path)
        return Result(folder.path)
    experiment = folder.experiment()
    # a partition that was given in Python is in the folder
    given = folder.read_partition() if experiment.data.partition == "given" else None
    simulation = build_simulation(
        experiment, device=device, dataset=dataset, networks=networks, partition=given
    )
    folder.check_setup(simulation.partition.to_csv(), simulation.absence.to_csv())
    check_logs(simulation.experiment)
    folder.check_space(_space(simulation))
    _go_on(simulation, folder, progress or Silent(), until, connect or _in_process)
    return Result(folder.path)


def _go_on(
    simulation: Simulation, folder: ResultsFolder, progress: Progress, until: int | None, connect: Connect
) -> None:
    """Train from the checkpoint (or from the start) to the end."""
    with open_log(folder.path):
        done = restore(simulation.moderator, folder, simulation.inputs())
        write_class_facts(folder.path, simulation.dataset, simulation.partition)
        _announce(simulation, done)
        rounds = simulation.experiment.training.rounds
        last = rounds if until is None else min(until, rounds)
        record_rounds(
            simulation,
            connect(simulation, folder),
            folder,
            range(done, last),
            events=simulation.absence.events(simulation.partition.names),
            names=simulation.partition.names,
            frozen_from=simulation.absence.first_leave(),
            measure=lambda result: _measure(simulation, result),
            summarise=lambda: _summary(simulation, folder),
            progress=progress,
        )


def record_rounds(
    moderated: Moderated,
    engine: Engine,
    folder: ResultsFolder,
    rounds: range,
    *,
    due: Iterable[int] | None = None,
    events: Sequence[str] = (),
    names: Sequence[str] = (),
    frozen_from: int | None = None,
    measure: Callable[[RoundResult], dict[str, Any]],
    summarise: Callable[[], dict[str, Any]],
    progress: Progress,
) -> dict[str, Any]:
    """Train these rounds and record each: its row of metrics, then the checkpoint.

    `due` gives the same rounds, each when it may begin. After the experiment's last round, write the outcome and
    return the summary; before it, return an empty one. `names` of silos are shown in place of their numbers.
    """
    experiment, moderator, inputs = moderated.experiment, moderated.moderator, moderated.inputs()
    with open_logs(experiment, folder.path, folder.metrics()) as logs:
        progress.start(experiment, rounds.start, rounds.stop, events)
        started, prepared = time.perf_counter(), 0.0
        try:
            for result in run_rounds(moderator, engine, experiment.recipe, due or rounds, frozen_from):
                row = measure(result)
                row["seconds"], started = time.perf_counter() - started, time.perf_counter()
                row["seconds_preparing"] = moderated.workers.seconds_preparing - prepared
                prepared = moderated.workers.seconds_preparing
                folder.append_metrics(row)
                folder.write_checkpoint(result.round + 1, moderator.state(), moderator.digests, inputs)
                progress.round(name_silos(row, names))
                logs.round(row)
                log.debug("round %d: %s", result.round + 1, json.dumps(row))
        finally:
            progress.stop()
        if rounds.stop < experiment.training.rounds:
            return {}
        summary = summarise()
        write_outcome(folder, moderated, summary)
        logs.finish(summary)
        return summary


def restore(
    moderator: Moderator,
    folder: ResultsFolder,
    inputs: Mapping[str, str],
    *,
    new_releases: bool = False,
    gone: Collection[int] = (),
) -> int:
    """Load the checkpoint if there is one, and return the number of finished rounds.

    With `new_releases`, a digest that arrived after the checkpoint and replaced an older one is accepted. Digests of
    silos that are `gone` are not loaded.
    """
    folder.remove_partial_files()
    checkpoint = folder.read_checkpoint(new_releases=new_releases, without=gone)
    if checkpoint is None:
        folder.drop_rows_after(0)
        return 0
    for name, wanted in inputs.items():
        if checkpoint.inputs.get(name) != wanted:
            raise FileFormatError(f"{folder.path}: was begun with another {name} than it is given now")
    moderator.hold(checkpoint.digests.values())
    try:
        moderator.restore(checkpoint.state)
        moderator.hold(checkpoint.digests[silo] for silo in checkpoint.newer)
    except (KeyError, RuntimeError) as error:
        raise FileFormatError(
            f"{folder.checkpoint_path}: does not fit experiment.toml, which was changed ({first_line(error)})"
        ) from None
    folder.drop_rows_after(checkpoint.rounds)
    return checkpoint.rounds


def _in_process(simulation: Simulation, folder: ResultsFolder) -> Engine:
    return simulation.engine(_digest_keeper(simulation, folder))


def _digest_keeper(simulation: Simulation, folder: ResultsFolder) -> Callable[[Silo], Digest]:
    """Return a function that makes a silo's digest once and keeps it in the folder."""

    def digest_of(silo: Silo) -> Digest:
        digest = folder.kept_digest(silo.index)
        if digest is None:
            digest = simulation.make_digest(silo)
            check_digest(digest, f"digest of silo {silo.index}")
            folder.keep_digest(digest)
        return digest

    return digest_of


def _announce(simulation: Simulation, done: int) -> None:
    """Log which experiment runs, on what, and who comes and goes."""
    experiment, sizes = simulation.experiment, [len(share.train) for share in simulation.partition.shares]
    log.info("FedDig %s, %s", __version__, describe_device(simulation.network.device))
    log.info(
        "%s, scenario %s, seed %d", experiment.algorithm.name, experiment.absence.scenario, experiment.seed
    )
    if simulation.partition.names:
        log.info("silos: %s", ", ".join(simulation.partition.names))
    log.info(
        "training samples per silo: %s (partition redrawn %d times)", sizes, simulation.partition.redraws
    )
    for settings in experiment.algorithm.bases.items():
        log.info("algorithm.%s: %s", *settings)
    for event in simulation.absence.events(simulation.partition.names):
        log.info(event)
    if done:
        log.info("resumed after %d rounds", done)


def _measure(simulation: Simulation, result: RoundResult) -> dict[str, Any]:
    """Return a round's row of metrics.jsonl, apart from its total time."""
    simulation.network.load(simulation.moderator.model())
    everybody = list(range(simulation.absence.silos))
    centralised = simulation.experiment.recipe.centralised
    return {
        "round": result.round,
        "test_accuracy": accuracy(simulation.network, simulation.test),
        "present": everybody if centralised else simulation.absence.here(result.round),
        "recalled": [reply.silo for reply in result.stand_ins],
        "validation_accuracy": [accuracy(simulation.network, samples) for samples in simulation.validation],
        **describe_round(result, simulation.moderator),
    }


def _summary(simulation: Simulation, folder: ResultsFolder) -> dict[str, Any]:
    rows, network = folder.metrics(), simulation.network
    network.load(simulation.moderator.model())
    return {
        **describe_run(simulation.experiment, simulation.moderator, network, rows),
        "data": {
            "name": simulation.dataset.name,
            "train": len(simulation.dataset.train),
            "test": len(simulation.dataset.test),
            "fingerprint": simulation.dataset.fingerprint(),
        },
        "accuracy": accuracy_measures([row["test_accuracy"] for row in rows], simulation.absence),
        "silo_test_accuracy": [accuracy(network, samples) for samples in simulation.silo_tests],
        "partition_redraws": simulation.partition.redraws,
    }


def _space(simulation: Simulation) -> int:
    """Estimate the bytes a run writes: digests, two checkpoints at a time, models, rows."""
    moderator = simulation.moderator
    state = sum(tensor.numel() * tensor.element_size() for tensor in moderator.state().values())
    if simulation.experiment.moderator.votes:
        state += len(simulation.silos) * 4 * moderator.weights.numel()
    samples = sum(len(silo.samples) for silo in simulation.silos)
    digests = 0
    features = simulation.test.features if simulation.experiment.recipe.collects_digests else None
    if features is not None:
        width = math.prod(features.shape[1:]) + simulation.dataset.classes
        digests = samples // simulation.experiment.digest.samples_per_digest * width * 4
    rows = simulation.experiment.training.rounds * (600 + 60 * simulation.absence.silos)
    return 4 * state + digests + 20 * len(simulation.dataset.train) + rows + 10_000_000
