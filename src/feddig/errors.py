"""The errors that a user can cause and correct."""

import difflib
from collections.abc import Iterable, Sequence


class FedDigError(Exception):
    """An error that the user can correct; its text is one line that names the place and the remedy."""


class SettingError(FedDigError):
    """A key or value of an experiment that cannot be used."""


class DataError(FedDigError):
    """A data set, image file or partition that cannot be used."""


class FileFormatError(FedDigError):
    """A FedDig file (digest, encoder, checkpoint, results) that is damaged or of another version."""


class BudgetError(FedDigError):
    """A release that would cost a record more than its privacy budget."""


class DivergenceError(FedDigError):
    """Training produced weights or losses that are not finite numbers."""


def first_line(error: Exception) -> str:
    """Return an exception's type and the first line of its text."""
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the known word that is nearest to a wrong one, or list all known words."""
    choices = sorted(known)
    close = difflib.get_close_matches(word, choices, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else "choose from " + ", ".join(choices)


def shorten(names: Sequence[str], most: int) -> str:
    """Join names by commas; of many, the first."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")
