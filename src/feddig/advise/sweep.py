"""Try every setting of a grid on the data of an experiment, and keep each result in a file.

Results are kept in the sweep's folder, so that an interrupted sweep continues, and other limits or more settings cost
nothing for what was tried before.
"""

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from feddig.advise.choose import Setting, SettingResult, result_from_json
from feddig.advise.try_setting import AttackedSilo, apply_setting, load_attacked_silo, try_setting
from feddig.audit.findings import AttackBudget
from feddig.data.dataset import Dataset
from feddig.errors import FedDigError, FileFormatError, SettingError
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import lay_out, load_data
from feddig.experiment.toml import write_experiment
from feddig.files import FORMAT_VERSION, check_version, content_hash, write_atomically
from feddig.models.encoder import encoder_hash

log = logging.getLogger("feddig")

OnDone = Callable[[int, int, Setting, SettingResult | str, float], None]
"""Receives the number of a finished setting, of how many, the setting, its result or error, and the seconds left."""


@dataclass(frozen=True)
class SweepResult:
    """Everything that a sweep found."""

    results: Sequence[SettingResult]
    failures: Mapping[str, str]
    """The error of each setting that failed, by the setting's name."""
    facts: Mapping[str, Any]
    """What all settings have in common."""


def sweep(
    shared: Experiment,
    settings: Sequence[Setting],
    out: Path,
    *,
    budget: AttackBudget,
    silo: int | None = None,
    device: str = "auto",
    dataset: Dataset | None = None,
    on_done: OnDone = lambda number, total, setting, outcome, left: None,
) -> SweepResult:
    """Try all settings that are not finished; one that fails does not stop the others."""
    experiments = [apply_setting(shared, setting) for setting in settings]
    given, dataset = shared, dataset or load_data(shared.resolved())
    # data.limit was applied when the data were loaded
    shared = replace(shared, data=replace(shared.data, limit=0))
    layout = lay_out(shared, dataset)
    sizes = [len(share.train) for share in layout.partition.shares]
    silo = max(range(len(sizes)), key=sizes.__getitem__) if silo is None else silo
    if silo not in range(len(sizes)):
        raise SettingError(f"--silo: {silo} is not one of the {len(sizes)} silos, counted from 0")
    target = load_attacked_silo(layout, silo, budget)
    facts = _facts(given, dataset, target)
    _open_folder(out, facts)
    results, failures, begun, tried = [], {}, time.perf_counter(), 0
    for number, (setting, experiment) in enumerate(zip(settings, experiments, strict=True), 1):
        path = _result_path(out, setting)
        outcome: SettingResult | str
        try:
            if path.exists():
                outcome = _read_result(path)
            else:
                tried += 1
                limited = replace(experiment, data=shared.data)
                outcome = try_setting(limited, setting, target, dataset, device)
                _write(path, outcome.as_json())
            results.append(outcome)
        except FileFormatError:
            raise
        except FedDigError as error:
            log.info("%s: %s", setting, error)
            failures[str(setting)] = outcome = str(error)
        left = (time.perf_counter() - begun) / max(tried, 1) * (len(settings) - number)
        on_done(number, len(settings), setting, outcome, left)
    return SweepResult(results, failures, facts)


def _facts(shared: Experiment, dataset: Dataset, target: AttackedSilo) -> dict[str, Any]:
    """Return what all settings of a sweep have in common; error messages use these names."""
    plain = replace(shared.resolved(), logging=type(shared.logging)())
    images = target.images
    return {
        "algorithm": shared.algorithm.name,
        "rounds": shared.training.rounds,
        "joint_steps": shared.moderator.joint_steps,
        "seed": shared.seed,
        "clip_bound": shared.privacy.clip_bound,
        "delta": shared.privacy.delta,
        "silo": target.silo,
        "members": len(images.members),
        "strangers": len(images.holdout),
        "public": len(images.public),
        "test_images": len(dataset.test),
        "effort": asdict(target.budget),
        "data set": dataset.fingerprint(),
        "encoder": encoder_hash(images.encoder),
        "experiment": content_hash(write_experiment(plain).encode()),
    }


def _open_folder(out: Path, facts: Mapping[str, Any]) -> None:
    """Create the folder, or check that it belongs to the same sweep."""
    path = out / "sweep.json"
    if not path.exists():
        entries = sorted(out.iterdir()) if out.is_dir() else [out] if out.exists() else []
        if entries:
            raise FedDigError(
                f"{out}: contains {entries[0].name!r}, which is not of a sweep; choose another --out"
            )
        _write(path, facts)
        return
    found = _load(path)
    for name, value in facts.items():
        if found.get(name) != value:
            raise FedDigError(
                f"{out}: was swept with {name} = {found.get(name)!r}, now {value!r}; choose another --out"
            )


def _result_path(out: Path, setting: Setting) -> Path:
    noise = "" if setting.epsilon is None else f"_{setting.epsilon!r}"
    name = f"spd-{setting.samples_per_digest}_{setting.mixing}_{setting.mechanism}{noise}"
    return out / "settings" / f"{name}.json"


def _read_result(path: Path) -> SettingResult:
    try:
        result = result_from_json(_load(path))
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(
            f"{path}: {error} is missing or damaged; remove the file to try it again"
        ) from None
    if math.isnan(result.accuracy):
        raise FileFormatError(f"{path}: its accuracy is no number; remove the file to try it again")
    return result


def _load(path: Path) -> dict[str, Any]:
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FileFormatError(f"{path}: cannot be read as JSON ({error}); remove it") from None
    if not isinstance(table, dict):
        raise FileFormatError(f"{path}: contains no table; remove it")
    check_version(path, table.get("format_version"))
    return table


def _write(path: Path, table: Mapping[str, Any]) -> None:
    text = json.dumps({"format_version": FORMAT_VERSION, **table}, indent=2, allow_nan=False)
    write_atomically(path, text + "\n")
