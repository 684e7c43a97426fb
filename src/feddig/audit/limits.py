"""The limits that decide an audit's lights: written down in every report, and settable by a TOML file."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from feddig.errors import SettingError, nearest
from feddig.settings import setting


@dataclass(frozen=True)
class Limits:
    """From where on something is amber or red.

    Where chance is known, a check is amber as soon as a figure is beyond chance, and red if besides the low end of its
    interval lies above the limit.
    """

    interval_level: float = setting(0.95, "level of intervals and of the canaries' bound", above=0, below=1)
    family_level: float = setting(
        0.99, "how sure it must be that nothing is called beyond chance by accident", above=0, below=1
    )
    record_epsilon_amber: float = setting(1.0, "record epsilon above this is amber", least=0)
    record_epsilon_red: float = setting(10.0, "record epsilon above this is red", least=0)
    seeded_is_red: bool = setting(True, "noise from a seed is red: whoever knows the seed takes it off")
    canary_epsilon_amber: float = setting(1.0, "epsilon proved by canaries above this is amber", least=0)
    canary_epsilon_red: float = setting(
        3.0,
        "epsilon proved by canaries above this is red where none is claimed; above a claim it always is",
        least=0,
    )
    membership_auc_red: float = setting(0.6, "area under a membership curve", least=0.5, most=1)
    true_positives_1_red: float = setting(0.05, "members found at 1 % false positives", least=0, most=1)
    true_positives_01_red: float = setting(0.01, "members found at 0.1 % false positives", least=0, most=1)
    linked_red: float = setting(0.05, "records linked to their digest", least=0, most=1)
    unmixed_digests_red: float = setting(0.01, "digests unmixed whole", least=0, most=1)
    unmixed_members_red: float = setting(0.05, "single members found by unmixing", least=0, most=1)
    inversion_red: float = setting(
        0.75, "digests whose recovered image is liker to a member than to strangers", least=0.5, most=1
    )
    label_records_red: float = setting(0.9, "records whose class the labels give away", least=0, most=1)


def read_limits(path: Path | None) -> Limits:
    """Read limits from a TOML file; those that it leaves out keep their defaults."""
    if path is None:
        return Limits()
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise SettingError(f"--thresholds: {path} cannot be read as TOML ({error})") from None
    known = {each.name: each for each in fields(Limits)}
    for key, value in table.items():
        if key not in known:
            raise SettingError(f"{path}: {key}: no such limit; {nearest(key, known)}")
        _check(path, key, value, known[key].metadata, is_flag=isinstance(known[key].default, bool))
    return replace(Limits(), **table)


def _check(path: Path, key: str, value: object, limits: Mapping[str, Any], *, is_flag: bool) -> None:
    if is_flag:
        if not isinstance(value, bool):
            raise SettingError(f"{path}: {key}: must be true or false, not {value!r}")
        return
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingError(f"{path}: {key}: must be a number, not {value!r}")
    # written so that NaN, which compares false with everything, is refused
    if not (limits["least"] <= value <= limits["most"] and limits["above"] < value < limits["below"]):
        raise SettingError(f"{path}: {key}: {value} is out of range; it means: {limits['means']}")
