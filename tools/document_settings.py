"""Write docs/reference/settings.md from the settings themselves, so that the page and the program cannot disagree."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from feddig.experiment.fields import choices_of
from feddig.experiment.toml import keys

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "settings.md"

HEAD = """# Settings: every key of an experiment

One experiment is one TOML file. A key that is left out has the default below. The defaults are those of the demo: an
empty file, `feddig run` without a file and `feddig.Experiment()` are the same experiment. The paper's values are in
[experiments/paper.toml](../../experiments/paper.toml). `--set section.key=value` changes a key on the command line. The
`experiment.toml` of a results folder holds every key of its run, and can be run again.

`tools/document_settings.py` writes this page; a test keeps it current.

<div class="keys" markdown>
"""

TABLE = """
## {title}

| key | default | meaning |
|---|---|---|
"""

_WORDS = {"least": "at least", "above": "above", "most": "at most", "below": "below"}


def page() -> str:
    """Spell the whole page: a table for each section, those of the base algorithms after [algorithm]."""
    sections: dict[str, list[str]] = {}
    tops = list(dict.fromkeys(key.split(".")[0] for key in keys()))
    for key, field in sorted(keys().items(), key=lambda item: tops.index(item[0].split(".")[0])):
        section = key.rpartition(".")[0]
        rows = sections.setdefault(f"`[{section}]`" if section else "Before the first section", [])
        rows.append(f"| `{key}` | {_default(field)} | {_meaning(key, field)} |\n")
    tables = (TABLE.format(title=title) + "".join(rows) for title, rows in sections.items())
    return f"{HEAD}{''.join(tables)}\n</div>\n"


def _default(field: dataclasses.Field[Any]) -> str:
    value = field.default
    if value is None:
        return "left out"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{list(value)}`" if value else "left out"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value}`"


def _meaning(key: str, field: dataclasses.Field[Any]) -> str:
    limits = field.metadata
    if not limits:
        return "see [algorithms](algorithms.md)"
    words = str(limits["means"]).replace("|", "\\|")
    if choices := choices_of(key, limits):
        words += ": " + ", ".join(f"`{choice}`" for choice in choices)
    edges = [f"{_WORDS[name]} {limits[name]:g}" for name in _WORDS if math.isfinite(limits[name])]
    return words + (f" ({', '.join(edges)})" if edges else "")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
