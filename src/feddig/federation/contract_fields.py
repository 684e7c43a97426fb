"""Reading a contract's fields: each fault is one line that names the field."""

import math
import re
from collections.abc import Mapping
from typing import Any

from feddig.errors import SettingError, nearest

HASH = re.compile(r"[0-9a-f]{64}")


def take_table(table: dict[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    """Take a table out of a contract; it must be there, and have no unknown keys."""
    found = table.pop(name, None)
    if not isinstance(found, Mapping):
        raise SettingError(f"{name}: there must be a table [{name}]")
    return check_keys(found, name, known)


def check_keys(table: Mapping[str, Any], name: str, known: tuple[str, ...]) -> Mapping[str, Any]:
    """Check that a table has no unknown keys."""
    for key in table:
        if key not in known:
            raise SettingError(f"{name}.{key}: unknown key; {nearest(key, known)}")
    return table


def read_text(table: Mapping[str, Any], where: str, key: str) -> str:
    """Read a text, which must be there and not empty."""
    value = table.get(key)
    if not isinstance(value, str) or not value:
        fault = f"{value!r} is not a text" if key in table else "missing; it must be there"
        raise SettingError(f"{where}.{key}: {fault}")
    return value


def read_hash(table: Mapping[str, Any], where: str, key: str) -> str:
    """Read a SHA-256 hash."""
    value = read_text(table, where, key)
    if not HASH.fullmatch(value):
        raise SettingError(f"{where}.{key}: {value!r} is not a SHA-256 hash, 64 digits of 0-9 and a-f")
    return value


def read_shape(value: object) -> tuple[int, int, int]:
    """Read channels, height and width."""
    if (
        not isinstance(value, list)
        or len(value) != 3
        or not all(
            isinstance(length, int) and not isinstance(length, bool) and length > 0 for length in value
        )
    ):
        raise SettingError(
            f"federation.image_shape: {value!r} is not [channels, height, width], three whole numbers above 0"
        )
    channels, height, width = value
    return channels, height, width


def read_classes(value: object) -> tuple[str, ...]:
    """Read the names of the classes."""
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(name, str) for name in value):
        raise SettingError("federation.classes: must be a list of at least two names")
    if len(set(value)) != len(value):
        twice = next(name for name in value if value.count(name) > 1)
        raise SettingError(f"federation.classes: {twice!r} stands there twice")
    return tuple(value)


def read_positive(table: Mapping[str, Any], where: str, key: str, what: str) -> float:
    """Read a number above 0."""
    value = table.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise SettingError(f"{where}.{key}: {value!r} is not a {what} above 0")
    return float(value)


def read_flag(value: object) -> bool:
    """Read whether a silo may replace its digest."""
    if not isinstance(value, bool):
        raise SettingError(f"federation.new_release: {value!r} is not true or false")
    return value
