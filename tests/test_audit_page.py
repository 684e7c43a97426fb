"""The page of an audit in a real browser: it is of the same kind as a run's, and names in it stay names."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import Browser, find_chromium
from feddig.report.audit import rebuild_audit_page, write_audit
from feddig.report.page import write_report
from feddig.report.pictures import draw_membership, draw_recovered

CHROMIUM = find_chromium()
HOSTILE = """</script><script>globalThis.hacked = 1</script><img src=x onerror="globalThis.hacked = 1">"'&"""
COMMAND = "feddig audit --digests 'my file.safetensors' --members mine.toml --holdout images --out again"


def figure(name: str, value: Any, interval: list[float] | None, p_value: float | None) -> dict[str, Any]:
    return {"name": name, "value": value, "interval": interval, "chance": 0.5, "p_value": p_value}


def check(number: int, name: str, light: str, figures: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "number": number, "name": name, "title": f"Check of {name}", "light": light, "sentence": HOSTILE,
        "beyond_chance": [each["name"] for each in figures[:1]], "figures": figures,
        "details": {"weights": [0.5, 0.5]}, "limits": {"linked_red": 0.05},
    }  # fmt: skip


def write_known_audit(folder: Path) -> Path:
    """Write an audit with a check of each light, and pictures; give its page."""
    figures = [
        figure("linked", 0.9, [0.8, 0.95], 1e-9),
        figure("named", 0.55, [0.4, 0.7], 0.2),
        figure("record epsilon", "inf", None, None),
    ]
    report = {
        "format_version": 1, "meaning": "A pass means that these attacks failed.", "light": "red",
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


def test_the_page_is_made_again_from_the_folder(tmp_path: Path) -> None:
    page = write_known_audit(tmp_path / "audit")
    before = page.read_text(encoding="utf-8")
    assert before.count("data:image/png;base64,") == 2
    page.unlink()
    assert write_report([tmp_path / "audit"]) == (page, [])
    assert page.read_text(encoding="utf-8") == before
    (tmp_path / "audit" / "recovered.png").unlink()
    text = rebuild_audit_page(tmp_path / "audit", tmp_path / "other.html").read_text(encoding="utf-8")
    assert text.count("data:image/png;base64,") == 1
    assert "members’ own images" in before
    assert "members’ own images" not in text, "it warns of pictures only where there are any"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not there (Debian: apt-get install chromium)")
    with Browser(CHROMIUM, tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_known_audit(tmp_path_factory.mktemp("audits") / "audit")


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    browser.open(page)
    browser.do("localStorage.clear()")
    browser.open(page)
    return browser


@pytest.mark.browser
def test_it_loads_from_disk_and_no_name_becomes_markup(opened: Browser, page: Path) -> None:
    assert [each for each in opened.requests if not each.startswith("data:")] == [page.resolve().as_uri()]
    assert opened.complaints == []
    assert opened.do("globalThis.hacked") is None
    assert HOSTILE in opened.text(".eyebrow")
    assert opened.text("h1") == "Red: 1 of 4 checks is red"
    marks = opened.do("[...document.querySelectorAll('nav .rating')].map((each) => each.textContent)")
    assert marks == ["■ red", "▲ amber", "● green", "○ not run"]


@pytest.mark.browser
def test_its_tables_sort_and_are_copied_and_so_is_its_command(opened: Browser) -> None:
    opened.do(
        "navigator.clipboard.writeText = (text) => { globalThis.caught = text; return Promise.resolve(); }"
    )
    opened.click("[data-table=membership] th:nth-child(2) button")
    opened.click("[data-table=membership] [data-copy=CSV]")
    rows = list(csv.DictReader(io.StringIO(opened.do("globalThis.caught"))))
    assert [(row["figure"], row["value"]) for row in rows] == [
        ("record epsilon", "Infinity"), ("linked", "0.9"), ("named", "0.55"),
    ]  # fmt: skip
    opened.click(".command .copy")
    assert opened.do("globalThis.caught") == COMMAND


@pytest.mark.browser
def test_the_theme_can_be_switched_and_a_phone_is_wide_enough(opened: Browser, page: Path) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    assert opened.do(paper) == "rgb(255, 255, 255)"
    opened.click("#theme")
    assert opened.do(paper) == "rgb(20, 23, 27)"
    opened.do("localStorage.clear()")
    opened.open(page, width=360, height=740)
    assert opened.do("document.documentElement.scrollWidth") == 360
    narrowest = "Math.min(...[...document.querySelectorAll('tbody th')].map((cell) => cell.clientWidth))"
    assert opened.do(narrowest) > 60, "words of names are not broken into letters"
    assert opened.complaints == []


def test_what_is_shown_is_what_audit_json_says(page: Path) -> None:
    report = json.loads((page.parent / "audit.json").read_text(encoding="utf-8"))
    assert report["command"] == COMMAND
    assert "0.8 to 0.95" in page.read_text(encoding="utf-8")
