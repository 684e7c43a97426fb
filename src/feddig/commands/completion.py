"""What the shell offers when Tab is pressed: names, keys and values, found without importing torch."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from io import StringIO

SPLITTING = "=:"
"""Bash splits words at these characters, and replaces only what comes after them."""
DEVICES = ("auto", "cpu", "cuda", "cuda:0")

Offer = Callable[[str], list[str]]
"""From a word that is not complete to the values that it may become; typer drops those that do not fit."""


@contextmanager
def whole_words() -> Iterator[None]:
    """If bash asks what to offer, join the words that it has split, and print only what it replaces."""
    if os.environ.get("_FEDDIG_COMPLETE") != "complete_bash":
        yield
        return
    begin = _join_words()
    text = StringIO()
    try:
        with redirect_stdout(text):
            yield
    finally:
        for line in text.getvalue().splitlines():
            print(_without(line, begin))


def _join_words() -> str:
    """Join the words of the command line again, and return what bash keeps of the last one."""
    given = os.environ.get("COMP_WORDS", "")
    words = given.split("\n") if "\n" in given else given.split(" ")
    joined: list[str] = []
    kept = ""
    for number, word in enumerate(words[: int(os.environ.get("COMP_CWORD", "0")) + 1]):
        before = words[number - 1] if number else ""
        if joined and word and (_splits(word) or _splits(before)):
            kept = joined[-1] + (word if _splits(word) else "")
            joined[-1] += word
        else:
            kept = ""
            joined.append(word)
    os.environ["COMP_WORDS"], os.environ["COMP_CWORD"] = "\n".join(joined), str(len(joined) - 1)
    return kept


def _splits(word: str) -> bool:
    return bool(word) and not word.strip(SPLITTING)


def _without(line: str, begin: str) -> str:
    """Return the line without the beginning that stays; an option's own name before a value is not in the line."""
    while begin and not line.startswith(begin):
        ends = [begin.index(mark) for mark in SPLITTING if mark in begin]
        begin = begin[min(ends) + 1 :] if ends else ""
    return line.removeprefix(begin)


def one_of(names: Callable[[], Iterable[str]]) -> Offer:
    """Offer one of these names."""
    return lambda incomplete: list(names())


def list_of(names: Callable[[], Iterable[str]]) -> Offer:
    """Offer names with commas between; those that are there already are not offered again."""

    def offer(incomplete: str) -> list[str]:
        before, comma, _ = incomplete.rpartition(",")
        there = before.split(",")
        return [f"{before}{comma}{name}" for name in names() if name not in there]

    return offer


def algorithms() -> Iterable[str]:
    """Return all names of algorithms."""
    from feddig.core.recipe import names

    return names()


def algorithms_with_joint_update() -> Iterable[str]:
    """Return the names of algorithms whose moderator trains on digests."""
    from feddig.core.recipe import names, read_recipe

    recipes = [read_recipe(name) for name in names()]
    return [recipe.name for recipe in recipes if recipe.collects_digests and recipe.joint]


def scenarios() -> Iterable[str]:
    """Return all absence scenarios."""
    from feddig.settings import AbsenceSettings

    choices: Iterable[str] = AbsenceSettings.__dataclass_fields__["scenario"].metadata["choices"]
    return choices


def mechanisms() -> Iterable[str]:
    """Return all privacy mechanisms."""
    from feddig.privacy.mechanisms import MECHANISMS

    return MECHANISMS


def figures() -> Iterable[str]:
    """Return all kinds of figures, and `list`."""
    from feddig.report.paper.figures import FIGURES

    return ["list", *FIGURES]


def settings(incomplete: str) -> list[str]:
    """Offer keys of an experiment, and the values of the key that is meant.

    A key without certain values is offered with its default, so that the shell adds no space after the equals sign.
    """
    from feddig.experiment.toml import keys

    name, equals, _ = incomplete.partition("=")
    fields = {key: field for key, field in keys().items() if key.startswith(name)}
    if equals:
        fields = {key: field for key, field in fields.items() if key == name}
    elif len(fields) > 1:
        return [f"{key}=" for key in fields]
    found = []
    for key, field in fields.items():
        values = _values(key) or ["", *([] if field.default is None else [str(field.default)])]
        found += [f"{key}={value}" for value in values]
    return found


def _values(key: str) -> list[str]:
    """Return the values that a key may have, if they can be listed."""
    from feddig.experiment.fields import choices_of
    from feddig.experiment.toml import keys

    if key == "algorithm.name":
        return list(algorithms())
    if key == "data.name":
        from feddig.data.load import NAMES

        return list(NAMES)
    field = keys()[key]
    if "bool" in str(field.type):
        return ["true", "false"]
    return list(choices_of(key, field.metadata))
