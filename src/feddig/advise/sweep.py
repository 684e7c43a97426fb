"""The folder of a sweep: what it is of, and a file for each finished setting, so that none is tried twice.

A sweep over settings of digests on an experiment's own data, each tried once and kept.

Every finished setting is a file of its own in the sweep's folder, so that a cut-off sweep goes on, and so that other
limits, or more settings, cost nothing for what was tried before.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from feddig.advise.choose import Row, Setting, read_row
from feddig.advise.grid import settle
from feddig.advise.try_setting import Target, gather_target, try_setting
from feddig.audit.findings import Effort
from feddig.data.dataset import Dataset
from feddig.errors import FedDigError, FileFormatError, SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import lay_out, load_data
from feddig.experiment.toml import write_experiment
from feddig.files import FORMAT_VERSION, check_version, content_hash, write_atomically
from feddig.models.encoder import encoder_hash

SWEEP = "sweep.json"


def place_of(out: Path, setting: Setting) -> Path:
    """Give the file of a setting."""
    noise = "" if setting.epsilon is None else f"_{setting.epsilon!r}"
    name = f"spd-{setting.samples_per_digest}_{setting.mixing}_{setting.mechanism}{noise}"
    return out / "settings" / f"{name}.json"


def keep(path: Path, row: Row) -> None:
    """Write what trying a setting found."""
    _write(path, row.as_json())


def claim(out: Path, facts: Mapping[str, Any]) -> None:
    """Make the folder, or see that it is of the same sweep."""
    path = out / SWEEP
    if not path.exists():
        entries = sorted(out.iterdir()) if out.is_dir() else [out] if out.exists() else []
        if entries:
            raise FedDigError(f"{out}: holds {entries[0].name!r}, which is not ours; choose another --out")
        _write(path, facts)
        return
    found = _load(path)
    for name, wanted in facts.items():
        if found.get(name) != wanted:
            raise FedDigError(
                f"{out}: was swept with {name} = {found.get(name)!r}, now {wanted!r}; choose another --out"
            )


def read_kept(path: Path) -> Row:
    """Read what trying a setting found before."""
    try:
        row = read_row(_load(path))
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(f"{path}: lacks or garbles {error}; remove it to try it again") from None
    if math.isnan(row.accuracy):
        raise FileFormatError(f"{path}: its accuracy is no number; remove it to try it again")
    return row


def _load(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path}: cannot be read as JSON ({error}); remove it") from None
    if not isinstance(table, dict):
        raise FileFormatError(f"{path}: holds no table; remove it")
    check_version(path, table.get("format_version"))
    return table


def _write(path: Path, table: Mapping[str, Any]) -> None:
    spelled = json.dumps({"format_version": FORMAT_VERSION, **table}, indent=2, allow_nan=False)
    write_atomically(path, spelled + "\n")


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
