"""Experiments as TOML: reading with one clear line for each mistake, and writing."""

import dataclasses
import difflib
import json
import math
import tomllib
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from feddig.core.algorithms import BASES
from feddig.core.recipe import read_recipe
from feddig.errors import SettingError, nearest
from feddig.experiment.experiment import Experiment
from feddig.experiment.fields import check_value, read_fields
from feddig.files import FORMAT_VERSION, check_version, read_toml
from feddig.privacy.mechanisms import check_privacy
from feddig.settings import DataSettings

REMOVED = {"recall", "joint"}
"""Former keys of [moderator]; an algorithm's name says the same."""
SYNONYMS = {
    "algorithm": "algorithm.name",
    "batch_size": "training.batch",
    "clients": "data.silos",
    "epochs": "training.local_epochs",
    "learning_rate": "training.lr",
    "num_clients": "data.silos",
}
"""What keys are called elsewhere."""


def demo_experiment(overrides: str | Sequence[str] = ()) -> Experiment:
    """Return the demo's experiment, in which all keys have their defaults, with overrides as in `read_experiment`."""
    return read_experiment(None, overrides)


def read_experiment(
    path: str | Path | None = None,
    overrides: str | Sequence[str] = (),
    defaults: Mapping[str, Any] | None = None,
) -> Experiment:
    """Read an experiment file, then apply `section.key=value` overrides, one or several; both override the defaults."""
    overrides = [overrides] if isinstance(overrides, str) else overrides
    table = _nest(defaults or {})
    if path is not None:
        _merge(table, _read_toml(Path(path)))
    for text in overrides:
        _merge(table, _read_override(text))
    source = f"{path}: " if path is not None and not overrides else ""
    try:
        return experiment_from_table(table)
    except SettingError as error:
        raise SettingError(f"{source}{error}") from None


def experiment_from_table(table: Mapping[str, Any]) -> Experiment:
    """Build an experiment from nested mappings, checking each key and value."""
    table = {key: value for key, value in table.items() if key != "format_version"}
    table = _without_removed(table)
    algorithm = dict(_section(table.get("algorithm", {}), "algorithm"))
    bases = {name: algorithm.pop(name) for name in BASES if name in algorithm}
    experiment = _build({**table, "algorithm": algorithm})
    checked = {name: _build_base(name, settings) for name, settings in bases.items()}
    experiment = replace(experiment, algorithm=replace(experiment.algorithm, bases=checked))
    _check_whole(experiment)
    return experiment


def _without_removed(table: Mapping[str, Any]) -> Mapping[str, Any]:
    """Drop removed keys, which older files hold as true; refuse other values."""
    moderator = table.get("moderator")
    if not isinstance(moderator, Mapping):
        return table
    for key in REMOVED & moderator.keys():
        if moderator[key] is not True:
            raise SettingError(
                f'moderator.{key}: is no longer a setting; use algorithm.name = "feddig-no-{key}"'
            )
    return {**table, "moderator": {key: value for key, value in moderator.items() if key not in REMOVED}}


def write_experiment(experiment: Experiment, without: Collection[str] = ()) -> str:
    """Return an experiment as TOML, without some sections; settings that are None do not appear."""
    lines = [f"format_version = {FORMAT_VERSION}", f"seed = {experiment.seed}"]
    for part in dataclasses.fields(experiment)[1:]:
        if part.name in without:
            continue
        section = getattr(experiment, part.name)
        lines += ["", f"[{part.name}]", *spell_table(_plain(section))]
    for base, settings in experiment.algorithm.bases.items():
        lines += ["", f"[algorithm.{base}]", *spell_table(settings)]
    return "\n".join(lines) + "\n"


def keys() -> dict[str, dataclasses.Field[Any]]:
    """Return every key of an experiment file with its field."""
    listed: dict[str, dataclasses.Field[Any]] = {}
    for part in dataclasses.fields(Experiment):
        if not isinstance(part.default_factory, type):
            listed[part.name] = part
            continue
        for inner in dataclasses.fields(part.default_factory):
            if inner.metadata:
                listed[f"{part.name}.{inner.name.rstrip('_')}"] = inner
    for base, algorithm in BASES.items():
        for inner in dataclasses.fields(algorithm):  # type: ignore[arg-type]
            listed[f"algorithm.{base}.{inner.name}"] = inner
    return listed


def _read_toml(path: Path) -> dict[str, Any]:
    if (path / "experiment.toml").is_file():
        raise SettingError(
            f"{path}: is a results folder; continue it with `feddig run --resume {path}`, or give "
            f"{path / 'experiment.toml'} to run it again"
        )
    if path.is_dir():
        raise SettingError(
            f"{path}: is a folder; give an experiment's TOML file (for images in it, "
            f"`feddig init FILE.toml --data {path}` writes one)"
        )
    table = read_toml(path, f"no such experiment file; {_instead_of(path)}")
    if "format_version" in table:
        check_version(path, table["format_version"])
    return table


def _instead_of(missing: Path) -> str:
    """Name the file beside a missing one that is probably meant, and the command that writes a new one."""
    new = missing.with_suffix(".toml")
    close = difflib.get_close_matches(
        missing.stem, [path.stem for path in missing.parent.glob("*.toml")], n=1
    )
    meant = f"did you mean {missing.with_name(close[0])}.toml? " if close else ""
    return meant + ("" if new.exists() else f"`feddig init {new}` writes one")


def _read_override(text: str) -> dict[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise SettingError(f"--set {text}: write it as section.key=value, for example training.lr=0.01")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except (ValueError, RecursionError):
        parsed = value.strip()  # a bare word is a string
    return _nest({key.strip(): parsed})


def _nest(flat: Mapping[str, Any]) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in flat.items():
        inner = table
        *outer, last = key.split(".")
        for part in outer:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return table


def _merge(table: dict[str, Any], changes: Mapping[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(table.get(key), dict):
            _merge(table[key], value)
        else:
            table[key] = value


def _build(table: Mapping[str, Any]) -> Experiment:
    sections = {each.name: each.default_factory for each in dataclasses.fields(Experiment)[1:]}
    for key, value in table.items():
        if key not in sections and isinstance(value, Mapping):
            raise SettingError(f"[{key}]: unknown section; {nearest(key, sections)}")
    values = read_fields(
        Experiment,
        {key: value for key, value in table.items() if key not in sections},
        unknown=_unknown_key,
    )
    for name, default in sections.items():
        if name in table:
            section = typing.cast(type[Any], default)
            values[name] = section(
                **read_fields(section, _section(table[name], name), f"{name}.", _unknown_key)
            )
    return Experiment(**values)


def _build_base(base: str, table: object) -> dict[str, float]:
    settings = _section(table, f"algorithm.{base}")
    known = {f.name for f in dataclasses.fields(BASES[base])}  # type: ignore[arg-type]
    for key in settings:
        if key not in known:
            raise _unknown_key(f"algorithm.{base}.{key}")
    return {
        key: check_value(f"algorithm.{base}.{key}", value, float, {"least": 0})
        for key, value in settings.items()
    }


def names_of_keys() -> dict[str, str]:
    """Return keys by their names without the section; of several with one name, such as rounds, that of [training]."""
    names = dict(SYNONYMS)
    for key in sorted(keys(), key=lambda key: not key.startswith("training.")):
        names.setdefault(key.rpartition(".")[2], key)
    return names


def _unknown_key(name: str) -> SettingError:
    """Suggest the key that is probably meant, or list the sections."""
    if meant := names_of_keys().get(name.rpartition(".")[2]):
        return SettingError(f"{name}: unknown key; did you mean {meant!r}?")
    known: Collection[str] = keys()
    if not difflib.get_close_matches(name, known, n=1, cutoff=0.5):
        known = {key.partition(".")[0] + (".KEY" if "." in key else "") for key in known}
    return SettingError(f"{name}: unknown key; {nearest(name, known)}")


def _section(value: object, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingError(
            f"{name}: {value!r} stands where the section [{name}] should; write {name}.KEY = VALUE"
        )
    return value


def _check_whole(experiment: Experiment) -> None:
    """Check settings that depend on each other."""
    read_recipe(experiment.algorithm.name)
    split, weights = experiment.data.split, experiment.digest.weights
    if len(split) != 3 or not math.isclose(sum(split), 1, abs_tol=1e-6) or split[0] <= 0:
        raise SettingError(f"data.split: {list(split)} must be three shares that sum to 1, the first above 0")
    mixed = experiment.digest.samples_per_digest
    if weights and (len(weights) != mixed or not math.isclose(sum(weights), 1, abs_tol=1e-6)):
        raise SettingError(
            f"digest.weights: {list(weights)} must be {mixed} numbers (digest.samples_per_digest) that sum to 1"
        )
    check_privacy(experiment.privacy, experiment.digest)
    _check_data(experiment.data)
    by_file, file = experiment.absence.scenario == "file", experiment.absence.file
    if by_file and file is None:
        raise SettingError('absence.file: the scenario "file" needs a CSV, silo x round, 0, 1 or d')
    if file is not None and not by_file:
        raise SettingError(f'absence.file: {file!r} is read only with absence.scenario = "file"')


def _check_data(data: DataSettings) -> None:
    """Check that no key of [data] is set which the data set does not use."""
    if data.image_size != DataSettings().image_size and data.name != "folder":
        raise SettingError(
            f"data.image_size: {data.name} images keep their size; leave it out, or resize them and give a folder"
        )
    if (data.partition == "file") != (data.partition_file is not None):
        raise SettingError(
            f'data.partition_file: {data.partition_file!r} is read only with data.partition = "file"'
            if data.partition_file is not None
            else 'data.partition_file: the partition "file" needs a CSV with the columns file or row, and silo'
        )


def _plain(section: Any) -> dict[str, Any]:
    values = {
        f.name.rstrip("_"): getattr(section, f.name) for f in dataclasses.fields(section) if f.name != "bases"
    }
    return {key: value for key, value in values.items() if value is not None}


def spell_table(table: Mapping[str, Any]) -> list[str]:
    """Return a table of plain values as lines of TOML; None does not appear."""
    return [f"{key} = {spell_value(value)}" for key, value in table.items() if value is not None]


def spell_value(value: Any) -> str:
    """Return a plain value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, except for one character
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, tuple):
        return "[" + ", ".join(spell_value(item) for item in value) + "]"
    return repr(value)
