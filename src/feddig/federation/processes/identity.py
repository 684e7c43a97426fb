"""Who a process is: its number and the moment it began, as a number alone is given again to somebody else."""

import os
import time
from pathlib import Path

PROC = Path("/proc")
STATE, BEGAN = 0, 19
"""Where these stand in /proc/NUMBER/stat, counted after the name."""


def identity(process: int) -> str:
    """Name a process as no other one is ever named; one that has ended, or cannot be seen, has no name."""
    facts = _facts(process)
    if facts is not None:
        return f"{process}@{facts[BEGAN]}" if facts[STATE] not in "ZX" else ""
    return "" if PROC.is_dir() else f"{process}@"


def number(name: str) -> int:
    """Give the number in a process's name, or 0 where it holds none."""
    digits = name.partition("@")[0]
    return int(digits) if digits.isdecimal() else 0


def lives(name: str) -> bool:
    """Tell whether the process of this name still runs."""
    process = number(name)
    return process > 0 and identity(process) == name and is_alive(process)


def is_alive(process: int) -> bool:
    """Tell whether a process runs; one that ended and was not yet noticed by its parent does not."""
    if PROC.is_dir():
        return identity(process) != ""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def is_stopped(process: int) -> bool:
    """Tell whether a process was told to pause (Ctrl-Z, SIGSTOP) and not yet to go on."""
    facts = _facts(process)
    return facts is not None and facts[STATE] in "Tt"


def age(process: int) -> float:
    """Give the seconds since a process began; 0 where that cannot be seen."""
    facts = _facts(process)
    if facts is None:
        return 0.0
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(facts[BEGAN]) / os.sysconf("SC_CLK_TCK")


def _facts(process: int) -> list[str] | None:
    try:
        # the name before them may hold anything, brackets and spaces too
        return (PROC / str(process) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
