"""The parts of the page that tell one run, in their order."""

from collections.abc import Sequence
from html import escape
from typing import Any

from feddig.report.cost_section import cost_section
from feddig.report.guidance_section import guidance_section
from feddig.report.privacy_box import privacy_box
from feddig.report.repeating import repeat_one
from feddig.report.runs import Run
from feddig.report.silo_sections import partition_section, silos_section, validation_section


def run_sections(run: Run, number: int) -> str:
    """Tell one run; `number` is its place in the page's JSON block."""
    parts = (
        ("Validation accuracy of each silo", validation_section(run, number)),
        ("Who was away, who was recalled", silos_section(run)),
        ("Which silo holds which class", partition_section(run)),
        ("Guidance", guidance_section(run)),
        ("Privacy", privacy_box(run)),
        ("Bytes sent and time spent", cost_section(run)),
        ("Settings, and how to repeat the run", _settings(run)),
    )
    # by its key a live page knows a part again when another appears before it
    shown = "".join(
        f'<section data-key="{title}"><h3>{title}</h3>{body}</section>' for title, body in parts if body
    )
    return f"{notes(run.notes)}{shown}"


def notes(sentences: Sequence[str]) -> str:
    """Show what is missing."""
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
    return (
        f'<div class="notes" role="note" data-key="notes"><b>What is missing</b><ul>{items}</ul></div>'
        if items
        else ""
    )


def _settings(run: Run) -> str:
    if not run.settings:
        return '<p class="faint">experiment.toml is not there.</p>'
    return repeat(*repeat_one(run), versions=_versions(run))


def repeat(settings: str, command: str, versions: str = "") -> str:
    """Show settings to be saved as experiment.toml, and the command that repeats what they gave."""
    return (
        "<p>Save these settings as <code>experiment.toml</code>, then:</p>"
        f"{copied(command, 'command')}"
        f"<details data-print><summary>Settings</summary>{copied(settings, 'settings')}</details>"
        + (f'<p class="caption">{escape(versions)}</p>' if versions else "")
    )


def copied(text: str, what: str) -> str:
    """Show text as it is typed, with a button that copies it."""
    # a command is broken between its words, never within an option
    shown = (
        " ".join(f"<span>{escape(word)}</span>" for word in text.split(" "))
        if what == "command"
        else escape(text)
    )
    return (
        f'<div class="source {what}"><pre tabindex="0">{shown}</pre><button type="button" class="copy" '
        f'data-copy="text" aria-label="copy the {what}">Copy</button><span role="status" class="said"></span></div>'
    )


def _versions(run: Run) -> str:
    versions: Any = run.summary.get("versions")
    if not isinstance(versions, dict):
        return ""
    return f"Made with {', '.join(f'{name} {version}' for name, version in versions.items())}."
