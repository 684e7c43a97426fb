"""The live page in a real browser: rounds appear when they finish, and the reader's changes to the page are kept."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from browser import ACCURACY, VALIDATION, Browser, read_curves
from feddig.report.live import LivePage
from feddig.report.live_server import LiveServer
from folders import rows, start_feddig, wait_until
from report_folders import write_folder, write_grid

pytestmark = pytest.mark.browser
SMALL = ["--set", "data.limit=400", "--set", "training.rounds=500", "--set", "training.threads=1",
         "--set", "data.skew=1.0", "--set", "training.batch=64", "--device", "cpu", "--quiet"]  # fmt: skip
TIMEOUT_SECONDS = 90.0


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[LiveServer]:
    server = LiveServer(LivePage(folder), "127.0.0.1", port)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def points(browser: Browser) -> list[float]:
    return [value for _, value in next(iter(read_curves(browser, ACCURACY).values()), [])]


def state_line(browser: Browser) -> str:
    return browser.text(".live") if browser.evaluate("document.querySelector('.live') !== null") else ""


def add_round(run: Path, accuracy: float) -> None:
    """Append a round to metrics.jsonl, as a run does."""
    last = rows(run)[-1]
    row = {**last, "round": last["round"] + 1, "test_accuracy": accuracy}
    with (run / "metrics.jsonl").open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(row) + "\n")


@pytest.mark.slow
def test_rounds_appear_while_a_run_is_active(browser: Browser, tmp_path: Path) -> None:
    """Start a real `feddig watch`, then a real `feddig run`; the page is loaded once."""
    folder = tmp_path / "run"
    folder.mkdir()
    watch = start_feddig(["watch", folder, "--port", 0])
    assert watch.stdout is not None
    address = watch.stdout.readline().strip()
    run = None
    try:
        browser.open(address)
        browser.evaluate("globalThis.loaded = 'once'")
        wait_until(lambda: "no run has begun" in state_line(browser), TIMEOUT_SECONDS)
        assert browser.text("h1") == "Waiting for a run"
        run = start_feddig(["run", *SMALL, "--out", folder])
        wait_until(lambda: len(points(browser)) >= 2, TIMEOUT_SECONDS)
        first = len(points(browser))
        wait_until(lambda: len(points(browser)) > first, TIMEOUT_SECONDS)
        assert run.poll() is None, "the run is still active"
        assert f"live, round {len(points(browser))} of 500, updated " in state_line(browser)
        assert state_line(browser).endswith(" s ago")
        run.kill()
        run.communicate()
        wait_until(lambda: "no process is working on it" in state_line(browser), TIMEOUT_SECONDS)
        known = [row["test_accuracy"] for row in rows(folder)]
        wait_until(lambda: len(points(browser)) == len(known), TIMEOUT_SECONDS)
        assert points(browser) == pytest.approx(known, abs=0.02)
        drawn = {
            name: [value for _, value in curve] for name, curve in read_curves(browser, VALIDATION).items()
        }
        for silo in range(4):
            wanted = [row["validation_accuracy"][silo] for row in rows(folder)]
            assert drawn[str(silo)] == pytest.approx(wanted, abs=0.1)
        assert f"after {len(known)} of 500 rounds" in browser.text("h1")
        assert browser.evaluate("globalThis.loaded") == "once"
        assert browser.errors == []
        asked = {each for each in browser.requests if not each.startswith("data:")}
        assert asked == {address, f"{address}state"}
    finally:
        for process in (run, watch):
            if process is not None:
                process.kill()
                process.communicate()


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """Write a comparison of six runs; the first has three rounds left."""
    grid = write_grid(tmp_path / "grid")
    run = grid / "feddig" / "sequential" / "seed-0"
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:7]), encoding="utf-8")
    (run / "summary.json").unlink()
    return grid


def test_a_new_round_appears_and_keeps_what_the_reader_has_done(browser: Browser, growing: Path) -> None:
    run = growing / "feddig" / "sequential" / "seed-0"
    with served(growing) as server:
        browser.open(server.address, width=900, height=700)
        browser.evaluate("localStorage.clear()")
        wait_until(lambda: state_line(browser), TIMEOUT_SECONDS)
        browser.click("#theme")
        browser.click("[data-table=figures] th:nth-child(1) button")
        browser.click(f"{ACCURACY} .legend button:nth-of-type(3)")
        browser.click("details.run:nth-of-type(1) > summary")
        browser.click("details.run:nth-of-type(4) > summary")
        browser.evaluate("document.querySelector('details.run:nth-of-type(4) .table .scroll').focus()")
        browser.evaluate("document.querySelector('details.run:nth-of-type(4) .panels').scrollIntoView()")
        assert browser.evaluate("scrollY") > 500
        # the visible part does not move, also if a sentence far above it grows by a line
        place = "document.querySelector('details.run:nth-of-type(4) .panels').getBoundingClientRect().top"
        was = browser.evaluate(place)
        before = {"open": folds(browser), "order": order(browser)}
        assert before["open"] == [False, False, False, True, False, False]
        assert before["order"] == ["fedavg", "feddig", "frozen"]
        browser.evaluate("globalThis.element = document.activeElement")
        add_round(run, 99.0)
        wait_until(
            lambda: "after 8 rounds, unfinished" in browser.text("details.run > summary"), TIMEOUT_SECONDS
        )
        browser.settle()
        assert browser.evaluate(place) == pytest.approx(was, abs=2)
        assert {"open": folds(browser), "order": order(browser)} == before
        assert browser.evaluate("document.activeElement === element") is True
        assert browser.evaluate("document.documentElement.dataset.theme") == "dark"
        assert browser.evaluate("document.querySelector('th[aria-sort]').cellIndex") == 0
        assert list(read_curves(browser, ACCURACY)) == ["feddig", "fedavg"]
        assert points(browser)[7] == pytest.approx((99 + 65) / 2, abs=0.05)
        browser.resize(360, 740)
        browser.settle()
        assert browser.evaluate("document.documentElement.scrollWidth") == 360, (
            "nothing is wider than a phone"
        )
        assert browser.errors == []
        browser.evaluate("localStorage.clear()")


def folds(browser: Browser) -> list[bool]:
    return [
        bool(each)
        for each in browser.evaluate("[...document.querySelectorAll('details.run')].map((run) => run.open)")
    ]


def order(browser: Browser) -> list[str]:
    script = "[...document.querySelectorAll('[data-table=figures] tbody tr')].map((row) => row.cells[0].textContent)"
    return [str(name) for name in browser.evaluate(script)]


@pytest.mark.slow
def test_classes_get_a_new_column_and_keep_what_the_reader_has_done(browser: Browser, tmp_path: Path) -> None:
    """Silo 0 holds class 1 and leaves at round 2, which comes while the page is open."""
    names = list("abcdef")
    curve = [[10.0 * number + round for number in range(6)] for round in range(3)]
    counts = [[0, 9, 0, 0, 0, 0], [5, 1, 5, 5, 5, 5]]
    run = write_folder(
        tmp_path / "run", [10, 20, 30], ["110", "111"], finished=False, class_names=names, class_accuracy=curve,
        class_counts=counts, class_tests=[50] * 6,
    )  # fmt: skip
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]), encoding="utf-8")
    marks = "document.querySelectorAll('figure[data-chart=classes] svg .holder-leaves').length"
    table = "[...document.querySelectorAll('[data-table=classes] tbody tr')].map((row) => row.textContent)"
    with served(run) as server:
        browser.open(server.address)
        wait_until(lambda: state_line(browser), TIMEOUT_SECONDS)
        assert browser.evaluate(marks) == 0
        assert "left at" not in browser.text("[data-table=classes] thead")
        browser.click("[data-table=classes] th:first-child button")
        browser.click("[data-table=classes] th:first-child button")
        assert browser.evaluate(table)[0].startswith("f")
        with (run / "metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(lines[2])
        wait_until(lambda: browser.evaluate(marks) == 1, TIMEOUT_SECONDS)
        assert "left at" in browser.text("[data-table=classes] thead")
        found = browser.evaluate(table)
        assert [row[0] for row in found] == names[::-1], "the reader's order"
        assert found[4].startswith("bsilo 090 %211.012.0")
        assert browser.errors == []


@pytest.mark.slow
def test_sorted_rows_move_when_values_change(browser: Browser, growing: Path) -> None:
    run = growing / "feddig" / "sequential" / "seed-0"
    with served(growing) as server:
        browser.open(server.address)
        wait_until(lambda: state_line(browser), TIMEOUT_SECONDS)
        browser.click("[data-table=figures] th:nth-child(4) button")
        assert order(browser) == ["feddig", "frozen", "fedavg"]
        # feddig's mean over two seeds falls to 34.5, below the others
        add_round(run, 0.0)
        wait_until(lambda: order(browser) == ["frozen", "fedavg", "feddig"], TIMEOUT_SECONDS)
        assert browser.evaluate("document.querySelector('th[aria-sort]').cellIndex") == 3


@pytest.mark.slow
def test_the_marker_stays_when_a_round_appears(browser: Browser, tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [10, 20, 30, 40], ["1111", "1111"], finished=False)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]), encoding="utf-8")
    with served(run) as server:
        browser.open(server.address)
        wait_until(lambda: state_line(browser), TIMEOUT_SECONDS)
        browser.evaluate(f"document.querySelector('{ACCURACY} .plot').focus()")
        browser.press("Home")
        browser.press("ArrowRight")
        assert browser.text(f"{ACCURACY} .tip").startswith("round 1feddig20.0 %")
        browser.press("End")
        assert browser.text(f"{ACCURACY} .tip").startswith("round 1feddig"), (
            "the marker stops at the last finished round"
        )
        add_round(run, 33.0)
        wait_until(lambda: len(points(browser)) == 3, TIMEOUT_SECONDS)
        assert browser.evaluate(f"document.querySelector('{ACCURACY} .tip').hidden") is False
        assert browser.text(f"{ACCURACY} .tip").startswith("round 1feddig20.0 %")
        assert (
            browser.evaluate(f"document.activeElement === document.querySelector('{ACCURACY} .plot')") is True
        )
        browser.press("ArrowRight")
        assert browser.text(f"{ACCURACY} .tip").startswith("round 2feddig33.0 %")
        browser.press("Escape")
        left, y = browser.evaluate(
            f"""(() => {{ const box = document.querySelector('{ACCURACY} .plot svg').getBoundingClientRect();
            return [box.x + 60, box.y + 100]; }})()"""
        )
        browser.move(left, y)
        assert browser.text(f"{ACCURACY} .tip").startswith("round 0feddig10.0 %")
        add_round(run, 44.0)
        wait_until(lambda: len(points(browser)) == 4, TIMEOUT_SECONDS)
        assert browser.evaluate(f"document.querySelector('{ACCURACY} .tip').hidden") is False
        assert browser.text(f"{ACCURACY} .tip").startswith("round 0feddig10.0 %")
        browser.move(1, 1)
        assert browser.evaluate(f"document.querySelector('{ACCURACY} .tip').hidden") is True, (
            "it disappears with the pointer"
        )
        assert browser.errors == []


@pytest.mark.slow
def test_a_stopped_server_is_reported_and_updates_continue_when_it_is_back(
    browser: Browser, tmp_path: Path
) -> None:
    run = write_folder(tmp_path / "run", [10, 20, 30, 40], ["1111", "1111"], finished=False)
    (run / "metrics.jsonl").write_text(
        (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[0], encoding="utf-8"
    )
    with served(run) as server:
        port = server.server_port
        browser.open(server.address)
        wait_until(lambda: "stopped at round 1 of 4" in state_line(browser), TIMEOUT_SECONDS)
    wait_until(lambda: "feddig watch does not answer" in state_line(browser), TIMEOUT_SECONDS)
    assert points(browser) == pytest.approx([10], abs=0.05), "known values are still shown"
    add_round(run, 25.0)
    with served(run, port):
        wait_until(lambda: len(points(browser)) == 2, TIMEOUT_SECONDS)
        wait_until(lambda: "stopped at round 2 of 4" in state_line(browser), TIMEOUT_SECONDS)


@pytest.mark.slow
def test_the_end_of_a_run_is_shown(browser: Browser, growing: Path) -> None:
    run = growing / "feddig" / "sequential" / "seed-0"
    with served(run) as server:
        browser.open(server.address)
        wait_until(lambda: "stopped at round 7" in state_line(browser), TIMEOUT_SECONDS)
        other = growing / "feddig" / "sequential" / "seed-1" / "summary.json"
        for accuracy in (64.0, 66.0, 68.0):
            add_round(run, accuracy)
        (run / "summary.json").write_bytes(other.read_bytes())
        wait_until(lambda: "ended: all 10 rounds are done" in state_line(browser), TIMEOUT_SECONDS)
        assert "after every silo had left" in browser.text("h1")
        assert browser.evaluate("document.querySelector('.live').dataset.state") == "ended"
        assert browser.errors == []
