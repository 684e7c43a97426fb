"""The page of an audit: it is rebuilt from its folder, and it works in a real browser like a run's page."""

import csv
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import Browser
from feddig.report.audit import rebuild_audit_page, write_audit
from feddig.report.page import write_report
from feddig.report.pictures import draw_membership, draw_recovered

HOSTILE = """</script><script>globalThis.hacked = 1</script><img src=x onerror="globalThis.hacked = 1">"'&"""
COMMAND = "feddig audit --digests 'my file.safetensors' --members mine.toml --holdout images --out again"


def figure(name: str, value: Any, interval: list[float] | None, p_value: float | None) -> dict[str, Any]:
    return {
        "name": name, "value": value, "interval": interval, "chance": 0.5, "p_value": p_value,
        "is_share": interval is not None, "baseline": 0.004 if name == "linked" else None,
    }  # fmt: skip


def check(number: int, name: str, rating: str, figures: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "number": number, "name": name, "title": f"Check of {name}", "light": rating, "sentence": HOSTILE,
        "beyond_chance": [each["name"] for each in figures[:1]], "figures": figures,
        "details": {"weights": [0.5, 0.5]}, "limits": {"linked_red": 0.05},
    }  # fmt: skip


def write_known_audit(folder: Path) -> Path:
    """Write an audit with a check of each rating, and pictures; return its page."""
    figures = [
        figure("linked", 0.9, [0.8, 0.95], 1e-9),
        figure("named", 0.55, [0.4, 0.7], 0.2),
        figure("record epsilon", "inf", None, None),
    ]
    report = {
        "format_version": 1, "meaning": "A pass means that these attacks failed.", "light": "red",
        "reason": f"Records were linked. {HOSTILE}",
        "next_steps": {
            "said": "Change this.", "settings": "[privacy]\nepsilon = 4.0  # was 8.0",
            "next": "feddig digest make mine.toml", "advise": "feddig advise mine.toml",
        },
        "attacked": "the file", "tests": {"one_sided_tests": 2}, "hash": "0" * 64, "made": "today",
        "command": COMMAND, "bound_to": {"silo": HOSTILE, "digest_hash": "abc", "data": {"given": HOSTILE}},
        "checks": [
            check(1, "membership", "red", figures), check(2, "inversion", "amber", figures[1:2]),
            check(3, "labels", "green", []), check(4, "lattice", "not run", []),
        ],
    }  # fmt: skip
    pictures = {
        "membership": draw_membership({"score": np.array([[0.0, 0.0], [0.1, 0.6], [1.0, 1.0]])}),
        "inversion": draw_recovered(
            {"members": np.ones((2, 3, 1, 8, 8)), "found": np.zeros((2, 1, 1, 8, 8))}
        ),
    }
    return write_audit(folder, report, pictures)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_known_audit(tmp_path_factory.mktemp("audits") / "audit")


def test_the_page_is_rebuilt_from_the_folder(page: Path, tmp_path: Path) -> None:
    written = page.read_text(encoding="utf-8")
    assert written.count("data:image/png;base64,") == 2
    assert "80.0 % to 95.0 %" in written
    assert "50.0 % (0.40 % for non-members)" in written
    first = (
        "Red: 1 of 4 checks",
        "Records were linked.",
        "epsilon = 4.0  # was 8.0",
        "1. Check of membership <",
    )
    places = [written.index(text) for text in first]
    assert places == sorted(places), "the verdict and its reason come first"
    assert "no epsilon covers this report" in written
    assert "members’ own images" in written
    folder = tmp_path / "audit"
    shutil.copytree(page.parent, folder)
    (folder / page.name).unlink()
    assert write_report([folder]) == (folder / page.name, [])
    assert (folder / page.name).read_text(encoding="utf-8") == written
    (folder / "recovered.png").unlink()
    text = rebuild_audit_page(folder, tmp_path / "other.html").read_text(encoding="utf-8")
    assert text.count("data:image/png;base64,") == 1
    assert "members’ own images" not in text, "the warning is shown only if there are such pictures"


@pytest.mark.browser
def test_it_opens_without_errors_and_no_name_becomes_markup(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert [each for each in browser.requests if not each.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.errors == []
    assert browser.evaluate("globalThis.hacked") is None
    assert HOSTILE in browser.text(".eyebrow")
    assert browser.text("h1") == "Red: 1 of 4 checks is red"
    marks = browser.evaluate("[...document.querySelectorAll('nav .rating')].map((each) => each.textContent)")
    assert marks == ["■ red", "▲ amber", "● green", "○ not run"]


@pytest.mark.slow
@pytest.mark.browser
def test_its_tables_and_its_command_can_be_copied(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.evaluate(
        "navigator.clipboard.writeText = (text) => { globalThis.caught = text; return Promise.resolve(); }"
    )
    browser.click("[data-table=membership] th:nth-child(2) button")
    browser.click("[data-table=membership] [data-copy=CSV]")
    rows = list(csv.DictReader(io.StringIO(browser.evaluate("globalThis.caught"))))
    assert [(row["figure"], row["value"]) for row in rows] == [
        ("record epsilon", "Infinity"), ("linked", "0.9"), ("named", "0.55"),
    ]  # fmt: skip
    browser.click(".settings .copy")
    assert browser.evaluate("globalThis.caught") == "[privacy]\nepsilon = 4.0  # was 8.0"
    browser.click("section:last-of-type .command .copy")
    assert browser.evaluate("globalThis.caught") == COMMAND


@pytest.mark.slow
@pytest.mark.browser
def test_it_fits_a_phone(browser: Browser, page: Path) -> None:
    browser.open(page, width=360, height=740)
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    narrowest = "Math.min(...[...document.querySelectorAll('tbody th')].map((cell) => cell.clientWidth))"
    assert browser.evaluate(narrowest) > 60, "names are not broken within words"
    assert browser.errors == []
