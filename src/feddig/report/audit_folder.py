"""An audit's folder: its figures in audit.json, its pictures, and the page that is made of both."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feddig.errors import FedDigError
from feddig.files import write_atomically
from feddig.report.audit_page import audit_page
from feddig.report.run_files import read_object

FIGURES = "audit.json"
PAGE = "report.html"
PICTURES = {"membership": "membership.png", "inversion": "recovered.png"}
"""By the check that a picture belongs to: its file. The second shows members' own images."""


def is_audit(folder: Path) -> bool:
    """Say whether a folder is an audit's."""
    return (folder / FIGURES).is_file()


def write_audit(folder: Path, report: Mapping[str, Any], pictures: Mapping[str, bytes]) -> Path:
    """Write an audit's files, audit.json last: with it the audit is there. Give the page's place."""
    for name, png in pictures.items():
        write_atomically(folder / PICTURES[name], png)
    write_atomically(folder / PAGE, audit_page(report, pictures))
    write_atomically(folder / FIGURES, json.dumps(report, indent=2, allow_nan=False) + "\n")
    return folder / PAGE


def rebuild_page(folder: Path, out: Path | None = None) -> Path:
    """Make an audit's page again from its figures and pictures; pictures that are gone are left out."""
    report = read_object(folder / FIGURES)
    if isinstance(report, str):
        raise FedDigError(f"{folder}: {report}")
    files = {name: folder / file for name, file in PICTURES.items()}
    try:
        page = audit_page(report, {name: file.read_bytes() for name, file in files.items() if file.is_file()})
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FedDigError(f"{folder}: {FIGURES} is damaged ({error!r}); make the audit again") from error
    place = out or folder / PAGE
    write_atomically(place, page)
    return place
