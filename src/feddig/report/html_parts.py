"""The frame of a page: head, style, scripts, and the policy by which nothing else runs and nothing else is fetched."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from feddig._version import __version__
from feddig.files import FORMAT_VERSION
from feddig.report.page_data import as_json_block


@dataclass(frozen=True)
class Frame:
    """A kind of page: of which files each of its scripts is made, and whether they may ask the page's server."""

    scripts: Sequence[Sequence[str]]
    asks: bool = False

    @cached_property
    def policy(self) -> str:
        """What the page's browser is told to forbid: all but the page's own style, scripts and pictures."""
        hashes = " ".join(f"'sha256-{_hash(_script(names))}'" for names in self.scripts)
        forbids = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {hashes}"
        return f"{forbids}; connect-src 'self'" if self.asks else forbids

    def around(self, title: str, about: str, main: str, data: Mapping[str, Any]) -> str:
        """Make a page of its main part (markup), its title and subject (words) and the numbers of its charts."""
        scripts = "".join(f"<script>{_script(names)}</script>\n" for names in self.scripts)
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
            # nothing may be fetched, and no script may run but these, whatever a name holds
            f'<meta http-equiv="Content-Security-Policy" content="{self.policy}">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f'<meta name="generator" content="feddig {__version__}, format_version {FORMAT_VERSION}">\n'
            '<link rel="icon" href="data:,">\n'
            f"<title>{escape(title)}</title>\n<style>{_asset('report.css')}</style></head>\n<body>\n"
            '<a class="skip" href="#main">Skip to the report</a><header><p class="brand">FedDig report</p>'
            f'<p class="about">{escape(about)}</p>'
            '<button type="button" id="theme" aria-live="polite">Theme</button></header>'
            '<noscript><p class="notes">The charts of this page are drawn by a script that is switched off here; '
            f'all else can be read.</p></noscript><main id="main">{main}</main>'
            f'<script type="application/json" id="data">{as_json_block(data)}</script>\n'
            f"{scripts}</body></html>\n"
        )


REPORT = (
    "elements.js", "scales.js", "strip.js", "marker.js", "curves.js", "panels.js", "figures.js",
    "sorting.js", "copying.js", "theme.js", "page.js",
)  # fmt: skip
"""The script that draws a report and lets it be used, a file for each duty; the last one begins."""
OFFLINE = Frame((REPORT,))
"""A page that is one file and needs nobody."""
LIVE_FRAME = Frame((REPORT, ("live.js",)), asks=True)
"""The same page, and a script that asks the server for news."""


def _script(names: Sequence[str]) -> str:
    """Join files into one script: they know each other's names, and nobody else does."""
    return f'(() => {{\n"use strict";\n{"".join(map(_asset, names))}}})();\n'


def _asset(name: str) -> str:
    return (files("feddig.report") / "assets" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return b64encode(sha256(text.encode()).digest()).decode()
