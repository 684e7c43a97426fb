"""Extract the commands that README and the documents show."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

PROGRAMS = ("feddig", "make", "python", "pip", "flwr", ".venv/bin/python")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
INDENTED = re.compile(r"(?:(?<=\n\n)|\A)(?: {4}.*\n(?:[ \t]*\n(?= {4}))?)+")
SHELLS = ("sh", "bash", "console")

PLACEHOLDERS = {
    "SPD": "4",
    "MIXING": "within-class",
    "AWARE": "true",
    "SEED": "0",
    "EPSILON": "8",
    "NAME": "fashion-mnist",
    "WEIGHTS": "weights.npz",
}
"""Placeholders and the values to use; other words in capitals are names of files or folders and are not replaced."""


@dataclass(frozen=True)
class Command:
    """A command that a document shows, split into words."""

    page: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return shlex.join(self.words)

    def starts_with(self, beginning: str) -> bool:
        """Return whether the command starts with these words."""
        words = tuple(shlex.split(beginning))
        return self.words[: len(words)] == words


def pages() -> list[str]:
    """List the documents that are searched for commands."""
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    return [path.relative_to(ROOT).as_posix() for path in [*found, *sorted((ROOT / "docs").rglob("*.md"))]]


def commands_of(page: str, text: str | None = None) -> list[Command]:
    """Return the commands in a document's code blocks, in order.

    Every line of a shell block is a command; in an indented block, only lines that begin with one of PROGRAMS.
    """
    text = (ROOT / page).read_text("utf-8") if text is None else text
    found = []
    for _, block, is_shell in sorted([*_fenced(text), *_indented(text)]):
        for line in _joined(block):
            if is_shell or line.split()[0] in PROGRAMS:
                found += [Command(page, words) for words in _split(line)]
    return found


def hidden_commands(page: str, text: str | None = None) -> list[str]:
    """Return lines that begin with one of PROGRAMS, from fenced blocks that are not marked as shell."""
    text = (ROOT / page).read_text("utf-8") if text is None else text
    blocks = [block[2] for block in FENCED.finditer(text) if block[1] not in SHELLS]
    return [line for block in blocks for line in block.splitlines() if line.split(" ")[0] in PROGRAMS]


def quoted_commands(page: str) -> list[Command]:
    """Return the commands that a document quotes within a sentence; their values may be missing."""
    text = FENCED.sub("", (ROOT / page).read_text("utf-8"))
    begin = "|".join(re.escape(program) for program in PROGRAMS)
    found = re.findall(rf"`((?:{begin}) [^`]+)`", text)
    return [Command(page, words) for quoted in found for words in _split(" ".join(quoted.split()))]


def _fenced(text: str) -> Iterator[tuple[int, str, bool]]:
    for block in FENCED.finditer(text):
        if block[1] in SHELLS:
            yield block.start(), block[2], True


def _indented(text: str) -> Iterator[tuple[int, str, bool]]:
    outside = FENCED.sub(lambda block: re.sub(r"[^\n]", "~", block[0]), text)
    for block in INDENTED.finditer(outside):
        yield block.start(), block[0], False


def _joined(block: str) -> list[str]:
    """Return the lines of a block; join lines that end with a backslash."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def _split(line: str) -> Iterator[tuple[str, ...]]:
    """Split a line into commands and words, without its comment."""
    words = [_filled(word) for word in shlex.split(line, comments=True)]
    while "&&" in words:
        yield tuple(words[: words.index("&&")])
        words = words[words.index("&&") + 1 :]
    yield tuple(words)


def _filled(word: str) -> str:
    name, equals, value = word.rpartition("=")
    return name + equals + PLACEHOLDERS.get(value, value)
