"""The page of an audit: it is rebuilt from its folder, and it works in a real browser like a run's page."""

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from browser import Browser, read_pages
from feddig.report.audit import rebuild_audit_page, write_audit, write_verdict
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
        "number": number, "name": name, "title": f"Check of {name}", "light": rating, "sentence": f"Planted {HOSTILE}",
        "beyond_chance": [each["name"] for each in figures[:1]], "figures": figures,
        "details": {"weights": [0.5, 0.5]}, "limits": {"linked_red": 0.05},
    }  # fmt: skip


def accountant(epsilon: float | str, *, seeded: bool = False, rating: str = "green") -> dict[str, Any]:
    promise = figure("record epsilon", epsilon, None, None)
    randomness = "a seed, for simulation only" if seeded else "the system's entropy"
    return {
        **check(1, "accountant", rating, [promise]), "sentence": "This is promised.",
        "details": {"randomness": randomness},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("lights", "promise", "title", "first"),
    [
        (
            {"unmixing": "red", "membership": "amber"}, accountant(8.0, rating="amber"),
            "Red: 1 of 2 attacks found more than the limits allow; epsilon 8 is promised to a record", "unmixing: red",
        ),
        (
            {"membership": "red", "unmixing": "red", "labels": "public"}, accountant("inf", rating="red"),
            "Red: 2 of 2 attacks found more than the limits allow; no epsilon is promised to a record", "unmixing: red",
        ),
        (
            {"membership": "amber", "unmixing": "green"}, accountant(1.0),
            "Amber: 1 of 2 attacks found more than chance; epsilon 1 is promised to a record", "membership: amber",
        ),
        (
            {"membership": "green", "unmixing": "amber"}, accountant(8.0, seeded=True, rating="red"),
            "Red: the noise comes from a seed; epsilon 8 is promised to a record",
            "1 of 2 attacks found more than chance, none more than the limits allow. This is promised.",
        ),
        (
            {"membership": "green"}, accountant(20.0, rating="red"),
            "Red: the promise is too weak; epsilon 20 is promised to a record",
            "No attack found more than chance. This is promised.",
        ),
        (
            {"membership": "green", "lattice": "red"}, accountant(1.0),
            "Red: the numbers are not as agreed; epsilon 1 is promised to a record",
            "No attack found more than chance. lattice: red",
        ),
        (
            {"membership": "not run", "unmixing": "green"}, accountant(1.0),
            "Amber: 1 of 3 checks was not run; epsilon 1 is promised to a record", "membership: not run",
        ),
        (
            {"membership": "green", "unmixing": "green"}, accountant(0.5),
            "Green: no attack found more than chance; epsilon 0.5 is promised to a record", "Nothing was found.",
        ),
    ],
)  # fmt: skip
def test_a_verdict_says_what_was_found_and_against_which_promise(
    lights: dict[str, str], promise: dict[str, Any], title: str, first: str
) -> None:
    checks = [{**check(2, name, light, []), "sentence": f"{name}: {light}"} for name, light in lights.items()]
    every = [promise["light"], *lights.values()]
    light = "red" if "red" in every else "amber" if {"amber", "not run"} & set(every) else "green"
    report = {
        "light": light, "checks": [promise, *checks], "reason": "Nothing was found.", "bound_to": {"facts": {}}
    }  # fmt: skip
    verdict = write_verdict(report)
    assert verdict.title == title
    assert verdict.sentences[0] == first
    assert " ".join(verdict.sentences).count("This is promised.") == 1


def test_a_promise_to_a_group_is_called_that() -> None:
    report = {"light": "green", "checks": [accountant(0.5)], "bound_to": {"facts": {"group_limit": 5}}}
    assert write_verdict(report).title.endswith("epsilon 0.5 is promised to a group")


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
        "<title>Red: 1 of 3 attacks found more than the limits allow: audit of silo",
        ">Red: 1 of 3 attacks found more than the limits allow</h1>",
        "Planted &lt;/script&gt;",
        '<nav aria-label="checks">',
        "A pass means that these attacks failed.",
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
    assert HOSTILE in browser.text(".about")
    assert browser.evaluate("document.querySelector('main').innerText").startswith("Red: 1 of 3 attacks")
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


@pytest.mark.browser
@pytest.mark.parametrize("paper", [(8.5, 11.0), pytest.param((8.27, 11.69), marks=pytest.mark.slow)])
def test_the_first_sheet_has_the_verdict_the_checks_and_what_to_do(
    paper: tuple[float, float], browser: Browser, page: Path
) -> None:
    browser.open(page)
    first, *others = read_pages(browser.print(*paper))
    wanted = (
        "Red:1of3attacksfoundmorethanthelimitsallow", "■red1.Checkofmembership", "○notrun4.Checkoflattice",
        "epsilon=4.0#was8.0", "feddigdigestmakemine.toml",
    )  # fmt: skip
    places = [first.index(text) for text in wanted]
    assert places == sorted(places)
    printed = first + "".join(others)
    assert "Detailsweights" not in printed, "folded details are left out"
    assert printed.count("epsilon=4.0#was8.0") == 1


@pytest.mark.browser
@pytest.mark.parametrize("paper", [(8.5, 11.0), (8.27, 11.69)])
def test_settings_that_do_not_fit_take_nothing_else_to_the_next_sheet(
    paper: tuple[float, float], browser: Browser, tmp_path: Path
) -> None:
    write_known_audit(tmp_path)
    report = json.loads((tmp_path / "audit.json").read_text(encoding="utf-8"))
    report["next_steps"]["settings"] = "\n".join(f"key_{number} = {number}" for number in range(40))
    (tmp_path / "audit.json").write_text(json.dumps(report), encoding="utf-8")
    browser.open(rebuild_audit_page(tmp_path))
    first, second, *_ = read_pages(browser.print(*paper))
    assert "Apassmeansthattheseattacksfailed" in first
    assert "key_39=39" in second
