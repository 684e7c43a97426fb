"""A sweep over settings of digests on an experiment's own data, each tried once and kept.

Every finished setting is a file of its own in the sweep's folder, so that a cut-off sweep goes on, and so that other
limits, or more settings, cost nothing for what was tried before.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from feddig.advise.advice_folder import claim, keep, place_of, read_kept
from feddig.advise.choose import Row, Setting
from feddig.advise.grid import settle
from feddig.advise.try_setting import Target, gather_target, try_setting
from feddig.audit.effort import Effort
from feddig.data.datasets import Dataset
from feddig.errors import FedDigError, FileFormatError, SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.layout import lay_out, load_data
from feddig.experiment.toml import write_experiment
from feddig.files import content_hash
from feddig.models.encoder import encoder_hash

log = logging.getLogger("feddig")

Heard = Callable[[int, int, Setting, Row | str, float], None]
"""Hears of a setting that is done: its number, of how many, what came out or why nothing did, seconds left."""


@dataclass(frozen=True)
class Swept:
    """All that a sweep found."""

    rows: Sequence[Row]
    failures: Mapping[str, str]
    """Why a setting gave nothing, by its name."""
    facts: Mapping[str, Any]


def sweep(
    shared: Experiment,
    settings: Sequence[Setting],
    out: Path,
    *,
    effort: Effort,
    silo: int | None = None,
    device: str = "auto",
    dataset: Dataset | None = None,
    heard: Heard = lambda number, total, setting, outcome, left: None,
) -> Swept:
    """Try all settings, those that are finished excepted; one that fails does not stop the others."""
    experiments = [settle(shared, setting) for setting in settings]
    given, dataset = shared, dataset or load_data(shared.resolved())
    # what was loaded is limited already
    shared = replace(shared, data=replace(shared.data, limit=0))
    layout = lay_out(shared, dataset)
    sizes = [len(share.train) for share in layout.partition.shares]
    silo = max(range(len(sizes)), key=sizes.__getitem__) if silo is None else silo
    if silo not in range(len(sizes)):
        raise SettingError(f"--silo: {silo} is not one of the {len(sizes)} silos, counted from 0")
    target = gather_target(layout, silo, effort)
    facts = _facts(given, dataset, target)
    claim(out, facts)
    rows, failures, begun, tried = [], {}, time.perf_counter(), 0
    for number, (setting, experiment) in enumerate(zip(settings, experiments, strict=True), 1):
        path = place_of(out, setting)
        outcome: Row | str
        try:
            if path.exists():
                outcome = read_kept(path)
            else:
                tried += 1
                limited = replace(experiment, data=shared.data)
                outcome = try_setting(limited, setting, target, dataset, device)
                keep(path, outcome)
            rows.append(outcome)
        except FileFormatError:
            raise
        except FedDigError as error:
            log.info("%s: %s", setting, error)
            failures[str(setting)] = outcome = str(error)
        left = (time.perf_counter() - begun) / max(tried, 1) * (len(settings) - number)
        heard(number, len(settings), setting, outcome, left)
    return Swept(rows, failures, facts)


def _facts(shared: Experiment, dataset: Dataset, target: Target) -> dict[str, Any]:
    """Gather what every setting of a sweep has in common, by names that a refusal can use."""
    plain = replace(shared.resolved(), logging=type(shared.logging)())
    return {
        "algorithm": shared.algorithm.name,
        "rounds": shared.training.rounds,
        "joint_steps": shared.moderator.joint_steps,
        "seed": shared.seed,
        "clip_bound": shared.privacy.clip_bound,
        "delta": shared.privacy.delta,
        "silo": target.silo,
        "members": len(target.members),
        "strangers": len(target.holdout),
        "public": len(target.public),
        "test_images": len(dataset.test),
        "effort": asdict(target.effort),
        "data set": dataset.fingerprint(),
        "encoder": encoder_hash(target.encoder),
        "experiment": content_hash(write_experiment(plain).encode()),
    }
