"""Say what an experiment would do, without training it: silos, absences, cost, promise, and what to look at before.

All parties are built and all digests made, as at the start of a run, so what would stop a run stops this too. The time
is estimated from steps with a learning rate of zero.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from feddig.core.absence import PAPER_ROUNDS, PRESETS, draw_absence
from feddig.core.local import Effort, Trainee, train_locally
from feddig.core.plus import expert_steps, train_expert
from feddig.core.samples import RawSamples, accuracy
from feddig.data.load import OWN
from feddig.digest.digest import Digest, check_digest
from feddig.errors import shorten
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import describe_device
from feddig.runs.build import Simulation, build_simulation
from feddig.runs.loggers.base import check_logs
from feddig.runs.outcome import update_bytes
from feddig.runs.progress import describe_events
from feddig.runs.results_folder import ResultsFolder
from feddig.runs.run import own_threads, space_needed

ENOUGH = 0.2
"""Seconds of steps from which their mean is taken."""
NO_RATE = 1e-30
"""A learning rate that changes nothing, where zero stands for another."""
LEFT_OUT = 0.1
"""Share of a silo's images that may be in no digest."""
LITTLE_EPSILON = 0.1
"""A record's epsilon below which it is probably the default, which is meant for the paper's noise."""
SHOWN = 3
"""How many silos or classes a warning names."""


@dataclass(frozen=True)
class Steps:
    """How many training steps a run takes."""

    local: int
    """Of silos and recall models."""
    joint: int
    expert: int
    """Of the classifier of digests in FedDig+."""

    @property
    def all(self) -> int:
        """The steps of everybody."""
        return self.local + self.joint + self.expert


@own_threads()
def forecast(experiment: Experiment, out: Path, *, device: str = "auto") -> dict[str, Any]:
    """Return what would run into the folder `out`, under names for JSON."""
    started = time.perf_counter()
    simulation = build_simulation(experiment, device=device)
    check_logs(simulation.experiment)
    disk = space_needed(simulation)
    ResultsFolder(out).check_space(disk)
    digests = _make_digests(simulation)
    experiment, absence, dataset = simulation.experiment, simulation.absence, simulation.dataset
    update = update_bytes(experiment, simulation.moderator)
    updates = int(absence.present[:, : _rounds_with_silos(simulation)].sum())
    sizes = [digests[silo].size if silo in digests else 0 for silo in range(absence.silos)]
    steps = count_steps(simulation, digests)
    seconds = _estimate(simulation, digests, steps, time.perf_counter() - started)
    channels, height, width = dataset.train.pixels.shape[1:]
    return {
        "data": {
            "name": dataset.name,
            "path": experiment.data.path,
            "train": len(dataset.train),
            "test": len(dataset.test),
            "shape": [channels, height, width],
            "classes": list(dataset.class_names),
        },
        "partition": experiment.data.partition,
        "silos": [_describe_silo(simulation, silo, digests.get(silo)) for silo in range(absence.silos)],
        "scenario": experiment.absence.scenario,
        "rounds": experiment.training.rounds,
        "events": absence.events(simulation.partition.names),
        "algorithm": experiment.algorithm.name,
        "does": experiment.recipe.say(),
        "bytes": {
            "digest": sizes,
            "update": update,
            "all": sum(sizes) + updates * update,
            "disk": disk,
        },
        "steps": steps.all,
        "seconds": seconds,
        "device": describe_device(simulation.network.device),
        "promise": experiment.say_promise(),
        "warnings": _warn(simulation, digests),
    }


def _make_digests(simulation: Simulation) -> dict[int, Digest]:
    """Make the digests of all silos that ever join; they go nowhere."""
    if not simulation.experiment.recipe.collects_digests:
        return {}
    gone = simulation.absence.never_there()
    digests = {
        silo.index: simulation.make_digest(silo) for silo in simulation.silos if silo.index not in gone
    }
    for silo, digest in digests.items():
        check_digest(digest, f"digest of silo {silo}")
    return digests


def _rounds_with_silos(simulation: Simulation) -> int:
    """Return the number of rounds until nothing is trained any more."""
    leave = simulation.absence.first_leave() if simulation.experiment.recipe.frozen else None
    return simulation.absence.rounds if leave is None else leave


def count_steps(simulation: Simulation, digests: Mapping[int, Digest]) -> Steps:
    """Count the training steps of the whole run."""
    experiment, absence, recipe = simulation.experiment, simulation.absence, simulation.experiment.recipe
    training, settings = experiment.training, experiment.moderator

    def passes(samples: int, epochs: int) -> int:
        return -(-samples // training.batch) * epochs

    local = joint = expert = known = 0
    for round in range(_rounds_with_silos(simulation)):
        held = [silo for silo in digests if absence.joined[silo, round]]
        here = [0] if recipe.centralised else absence.here(round)
        if recipe.silos_train:
            local += sum(passes(len(simulation.silos[silo].samples), training.local_epochs) for silo in here)
        if recipe.recall:
            epochs = settings.recall_epochs or training.local_epochs
            local += sum(passes(len(digests[silo]), epochs) for silo in held if silo not in here)
        if recipe.joint and held:
            count = sum(len(digests[silo]) for silo in held)
            count = min(count, settings.digest_budget or count)
            joint += settings.joint_steps or passes(count, settings.joint_epochs)
        if recipe.expert and len(held) > known:  # it is trained again whenever a digest arrives
            known = len(held)
            expert += math.prod(expert_steps(sum(len(digests[silo]) for silo in held)))
    return Steps(local, joint, expert)


def _estimate(
    simulation: Simulation, digests: Mapping[int, Digest], steps: Steps, spent: float
) -> dict[str, float]:
    """Estimate the seconds of a run: until the first round, of a local step, of a round, of all."""
    experiment, count = simulation.experiment, len(simulation.silos)
    started = time.perf_counter()
    some = RawSamples(simulation.test.source, np.arange(min(len(simulation.test), 1024)))
    accuracy(simulation.network, some)
    spent += time.perf_counter() - started
    largest = max((silo.samples for silo in simulation.silos), key=len)

    def train(times: int) -> None:
        simulation.workers.run_alone(
            lambda worker: train_locally(
                Trainee(worker.network, lr=0.0),
                largest,
                experiment.training,
                effort=Effort(steps=times),
                stream=(experiment.seed, "forecast"),
                recorder=worker.recorder,
                who="forecast",
            )
        )

    def train_jointly(times: int) -> None:
        settings = replace(experiment.moderator, joint_steps=times, joint_lr=NO_RATE, guidance_lr=NO_RATE)
        party = replace(simulation.party, experiment=replace(experiment, moderator=settings))
        moderator = party.moderator(count)
        moderator.hold(digests.values())
        moderator.joint_update(0)

    def train_expert_for(times: int) -> None:
        expert, noise_aware = simulation.moderator.expert, experiment.moderator.noise_aware
        assert expert is not None
        train_expert(
            expert, list(digests.values()), noise_aware=noise_aware, seed=experiment.seed, passes=times
        )

    step = _time(train) if steps.local else 0.0
    joint = _time(train_jointly) if steps.joint else 0.0
    per_pass = expert_steps(sum(map(len, digests.values())))[0] if steps.expert else 1
    advised = _time(train_expert_for) / per_pass if steps.expert else 0.0
    tested = len(simulation.test) + sum(map(len, simulation.validation))
    once = _time(lambda times: [accuracy(simulation.network, some) for _ in range(times)])
    rounds = experiment.training.rounds
    total = (
        spent
        + steps.local * step
        + steps.joint * joint
        + steps.expert * advised
        + rounds * once * tested / len(some)
    )
    return {"first": spent, "step": step, "round": (total - spent) / rounds, "all": total}


def _time(work: Callable[[int], object]) -> float:
    """Return the seconds that one more piece of this work takes; the first time warms up."""
    work(1)

    def seconds(pieces: int) -> float:
        started = time.perf_counter()
        work(pieces)
        return time.perf_counter() - started

    alone, more = seconds(1), 1
    while (passed := seconds(1 + more) - alone) < ENOUGH:
        more *= 2
    return passed / more


def _describe_silo(simulation: Simulation, silo: int, digest: Digest | None) -> dict[str, Any]:
    share, names = simulation.partition.shares[silo], simulation.partition.names
    counts = _class_counts(simulation, silo)
    return {
        "name": names[silo] if names else f"silo {silo}",
        "train": len(share.train),
        "validation": len(share.validation),
        "test": len(share.test),
        "classes": {
            name: int(count)
            for name, count in zip(simulation.dataset.class_names, counts, strict=True)
            if count
        },
        "digests": 0 if digest is None else len(digest),
    }


def _class_counts(simulation: Simulation, silo: int) -> np.ndarray:
    rows = simulation.partition.shares[silo].train
    return np.bincount(simulation.dataset.train.labels[rows], minlength=simulation.dataset.classes)


def _warn(simulation: Simulation, digests: Mapping[int, Digest]) -> list[str]:
    """Say what is allowed and probably not meant, each in one line with its remedy."""
    experiment, absence, shares = simulation.experiment, simulation.absence, simulation.partition.shares
    privacy, batch = experiment.privacy, experiment.training.batch
    names = simulation.partition.names or [f"silo {silo}" for silo in range(len(shares))]
    warnings = []
    own = experiment.data.name in OWN
    if own and experiment.recipe.collects_digests and not experiment.promises_privacy:
        remedy = (
            'set privacy.random = "system"'
            if privacy.random != "system" and privacy.clip_bound is not None
            else 'set privacy.mechanism = "discrete-gaussian", as `feddig init` writes it'
        )
        warnings.append(f"privacy: the data is your own, and a record of it is promised nothing; {remedy}")
    images = len(simulation.dataset.train)
    if experiment.promises_privacy and privacy.delta * images >= 1:
        warnings.append(
            f"privacy.delta: {privacy.delta:g} is not below 1 / {images:,} images, so a whole image may be revealed; "
            "make it at least ten times smaller"
        )
    if experiment.promises_privacy and privacy.epsilon < LITTLE_EPSILON:
        warnings.append(
            f"privacy.epsilon: {privacy.epsilon:g} for a record takes noise that hides nearly everything; 1 to 10 are "
            "usual"
        )
    if small := [silo for silo, share in enumerate(shares) if len(share.train) < batch]:
        warnings.append(
            f"training.batch: {batch} is more than the training images of {_list(names, small)}, which then take one "
            "step in a pass; make it smaller"
        )
    if blind := [silo for silo, share in enumerate(shares) if not len(share.validation)]:
        warnings.append(
            f"data.split: leaves {_list(names, blind)} without validation images; give them a larger share"
        )
    warnings += _warn_of_digests(simulation, digests, names)
    if experiment.recipe.centralised:
        return warnings
    events, scenario = absence.events(), experiment.absence.scenario
    if not events and scenario != "none":
        warnings.append(f"absence: {describe_events(events, experiment)}")
    elif scenario in PRESETS and scenario != "round-robin":
        planned = draw_absence(
            scenario,
            sizes=[len(share.train) for share in shares],
            rounds=PAPER_ROUNDS,
            order=experiment.absence.order,
            seed=experiment.absence.seed or 0,
        ).events()
        if len(events) < len(planned):
            warnings.append(
                f"training.rounds: of the {len(planned)} events that {scenario} has in {PAPER_ROUNDS} rounds, "
                f"{absence.rounds} leaves {len(events)}; use more"
            )
    return warnings


def _warn_of_digests(
    simulation: Simulation, digests: Mapping[int, Digest], names: Sequence[str]
) -> list[str]:
    """Say which silos have many images that are in no digest, because too few others can be mixed with them."""
    left_out = {
        silo: int(str(digest.facts["left_out"])) / len(simulation.silos[silo].samples)
        for silo, digest in digests.items()
    }
    many = [silo for silo, share in left_out.items() if share > LEFT_OUT]
    if not many:
        return []
    mixed = simulation.experiment.digest.samples_per_digest
    most = f"up to {max(left_out.values()):.0%} of the silo's images"
    return [
        f"digest.samples_per_digest: with {mixed}, {most} are in no digest of {_list(names, many)}; make it smaller"
    ]


def _list(names: Sequence[str], chosen: Sequence[int]) -> str:
    return shorten([names[each] for each in chosen], SHOWN)
