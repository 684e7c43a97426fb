"""The one validator of tables: experiment files, contracts, silo.toml and the audit's limits.

A table is described by a dataclass whose fields are declared by `setting`: their meaning, type and limits.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from feddig.errors import SettingError, nearest
from feddig.privacy.mechanisms import MECHANISMS
from feddig.settings import REQUIRED


def read_fields(
    kind: type[Any],
    table: Mapping[str, Any],
    where: str = "",
    unknown: Callable[[str], SettingError] | None = None,
) -> dict[str, Any]:
    """Return a table's values, checked against those fields of a dataclass that are declared by `setting`.

    `where` stands before each key in errors. `unknown` returns the error for an unknown key, which otherwise suggests
    a field.
    """
    declared = {each.name.rstrip("_"): each for each in dataclasses.fields(kind) if each.metadata}
    kinds = typing.get_type_hints(kind)
    for key in table:
        if key not in declared:
            name = f"{where}{key}"
            suggestion = nearest(name, [f"{where}{each}" for each in declared])
            raise unknown(name) if unknown else SettingError(f"{name}: unknown key; {suggestion}")
    for key, each in declared.items():
        if each.default is REQUIRED and key not in table:
            raise SettingError(f"{where}{key}: is missing; it is the {each.metadata['means']}")
    return {
        declared[key].name: check_value(
            f"{where}{key}", value, kinds[declared[key].name], declared[key].metadata
        )
        for key, value in table.items()
    }


def choices_of(name: str, limits: Mapping[str, Any]) -> Sequence[str]:
    """Return the values that a key may have; none where any value may be right."""
    return tuple(MECHANISMS) if name == "privacy.mechanism" else limits.get("choices", ())


TOO_LARGE = 2**63
_WANTED: dict[type, str] = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    Path: "a path",
}
_LISTS: dict[type, str] = {int: "[1, 28, 28]", float: "[0.5, 0.5]", str: '["one", "two"]'}


def check_value(name: str, value: Any, kind: Any, limits: Mapping[str, Any]) -> Any:
    """Return the value in its field's type, or say what is wrong with it."""
    if isinstance(kind, types.UnionType):
        kind = next(part for part in kind.__args__ if part is not type(None))
    if typing.get_origin(kind) is tuple:
        value = _check_list(name, value, kind.__args__, limits)
    else:
        value = _check_one(name, value, kind, limits)
    if check := limits.get("check"):
        check(name, value)
    return value


def _check_list(name: str, value: Any, kinds: Sequence[Any], limits: Mapping[str, Any]) -> tuple[Any, ...]:
    wanted = kinds[0]
    count = "" if kinds[-1] is Ellipsis else f"{len(kinds)} "
    if not isinstance(value, list | tuple) or (count and len(value) != len(kinds)):
        what = "texts" if wanted is str else "numbers"
        raise SettingError(f"{name}: {value!r} is not a list of {count}{what}; write it as {_LISTS[wanted]}")
    return tuple(_check_one(name, item, wanted, limits) for item in value)


def _check_one(name: str, value: Any, kind: Any, limits: Mapping[str, Any]) -> Any:
    if isinstance(value, int) and abs(value) >= TOO_LARGE:
        raise SettingError(f"{name}: the number is too large; it must be below 2^63")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if kind is Path and isinstance(value, str) and value:
        value = Path(value).expanduser()
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise SettingError(f"{name}: {value!r} is not {_WANTED[kind]}")
    choices = choices_of(name, limits)
    if choices and value not in choices:
        raise SettingError(f"{name}: {value!r} is not known; {nearest(value, choices)}")
    if kind in (int, float):
        _check_range(name, value, limits)
    return value


def _check_range(name: str, value: float, limits: Mapping[str, Any]) -> None:
    tests: list[tuple[str, str, Callable[[float, float], bool]]] = [
        ("least", "at least", lambda number, limit: number >= limit),
        ("most", "at most", lambda number, limit: number <= limit),
        ("above", "above", lambda number, limit: number > limit),
        ("below", "below", lambda number, limit: number < limit),
    ]
    if not math.isfinite(value):
        raise SettingError(f"{name}: {value} is not a finite number")
    for key, words, holds in tests:
        if key in limits and not holds(value, limits[key]):
            raise SettingError(f"{name}: {value:g} is out of range; it must be {words} {limits[key]:g}")
