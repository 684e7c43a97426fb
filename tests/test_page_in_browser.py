"""The report page in a real browser: it opens from disk without requests, shows the right values, and can be used."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

from browser import ACCURACY, VALIDATION, Browser, read_curves, read_pages
from feddig.report.measures import MEASURES
from feddig.report.page import write_report
from report_folders import write_folder, write_grid

pytestmark = pytest.mark.browser
HOSTILE = """</script><script>globalThis.hacked = 1</script><img src=x onerror="globalThis.hacked = 1">"'&"""
WHITE, DARK = "rgb(255, 255, 255)", "rgb(20, 23, 27)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a comparison over two seeds: FedDig 50.5 + 2 per round, FedAvg 52.5 - 1 per round, frozen 51.5."""
    return write_report([write_grid(tmp_path_factory.mktemp("runs") / "grid")])[0]


@pytest.fixture
def opened(browser: Browser, page: Path) -> Browser:
    browser.open(page)
    return browser


def background(browser: Browser) -> str:
    return str(browser.evaluate("getComputedStyle(document.body).backgroundColor"))


@pytest.mark.parametrize(
    ("width", "theme", "colour"), [(1100, "light", WHITE), (1100, "dark", DARK), (360, "light", WHITE)]
)
def test_it_opens_from_disk_without_requests_and_errors(
    width: int, theme: str, colour: str, browser: Browser, page: Path
) -> None:
    browser.open(page, width=width, height=740, theme=theme)
    assert [each for each in browser.requests if not each.startswith("data:")] == [page.resolve().as_uri()]
    assert browser.errors == []
    assert background(browser) == colour
    assert browser.evaluate("document.documentElement.scrollWidth") == width, (
        "nothing is wider than the window"
    )


def test_curves_are_drawn_where_their_values_are(opened: Browser) -> None:
    curves = read_curves(opened, ACCURACY)
    assert list(curves) == ["feddig", "fedavg", "frozen"]
    for name, start, step in (("feddig", 50.5, 2), ("fedavg", 52.5, -1), ("frozen", 51.5, 0)):
        assert [round for round, _ in curves[name]] == list(range(10))
        assert [value for _, value in curves[name]] == pytest.approx(
            [start + step * round for round in range(10)], abs=0.01
        )
    silos = read_curves(opened, VALIDATION)
    assert list(silos) == ["0", "1", "2"]
    assert [value for _, value in silos["2"]] == pytest.approx(
        [round + 2.25 for round in range(10)], abs=0.01
    )


def test_points_are_drawn_with_their_names_and_values(opened: Browser) -> None:
    """Every method took the moderator 3.75 seconds."""
    found = opened.evaluate(
        """[...document.querySelectorAll('figure[data-chart="cost"] circle')].map((dot) => ({
            name: dot.dataset.point, x: Number(dot.getAttribute("cx")), y: Number(dot.getAttribute("cy")),
            colour: getComputedStyle(dot).fill, says: dot.textContent}))"""
    )
    assert [each["says"] for each in found] == [
        "feddig: 68.5 % (68.0–69.0) after 3.8 s",
        "fedavg: 43.5 % (43.0–44.0) after 3.8 s",
        "frozen: 51.5 % (51.0–52.0) after 3.8 s",
    ]
    assert found[0]["y"] < found[2]["y"] < found[1]["y"], "a higher accuracy is higher"
    assert len({each["x"] for each in found}) == 1
    assert found[0]["colour"] == "rgb(0, 114, 178)", "the blue of FedDig"
    label = opened.evaluate(
        "document.querySelector('figure[data-chart=\"cost\"] svg').getAttribute('aria-label')"
    )
    assert label == "; ".join(each["says"] for each in found), "and can be heard"


def test_the_name_of_the_highest_point_is_below_the_title_of_its_chart(
    browser: Browser, tmp_path: Path
) -> None:
    for algorithm, accuracy in (("feddig", 100.0), ("fedavg", 40.0)):
        for seed in range(2):
            folder = tmp_path / algorithm / str(seed)
            write_folder(folder, [accuracy], ["1"], algorithm=algorithm, seed=seed, seconds_joint=1.0 + seed)
    browser.open(write_report([tmp_path])[0], width=390, height=740)
    gap = browser.evaluate(
        """(() => { const svg = document.querySelector('figure[data-chart="cost"] svg');
            const title = svg.querySelector("text").getBoundingClientRect();
            return svg.querySelector(".label").getBoundingClientRect().top - title.bottom; })()"""
    )
    assert gap >= 0


def test_long_names_of_points_stay_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    for rate in (0.125, 0.25):
        write_folder(
            tmp_path / str(rate),
            [50.0],
            ["1"],
            algorithm="feddig-no-recall+adabest",
            settings=f"lr = {rate}\n",
        )
    browser.open(write_report([tmp_path])[0], width=360, height=740)
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    names = browser.evaluate(
        "[...document.querySelectorAll('figure[data-chart=\"cost\"] .label')].map((each) => each.textContent)"
    )
    assert [name.startswith("…") for name in names] == [True, True]
    assert sorted(name[-13:] for name in names) == [" lr 0.25 50.0", "lr 0.125 50.0"]


@pytest.mark.slow
@pytest.mark.parametrize("width", [1100, 360])
def test_accuracy_against_epsilon_is_drawn(width: int, browser: Browser, tmp_path: Path) -> None:
    """Epsilons 1, 10 and 100 are equally far apart; no noise comes last and is not on the line."""
    for place, (mechanism, epsilon) in enumerate(
        [("discrete-gaussian", 1.0), ("discrete-gaussian", 10.0), ("discrete-gaussian", 100.0), ("none", 1.0)]
    ):
        for seed in range(2):
            write_folder(
                tmp_path / f"{place}" / f"{seed}", [40.0, 50.0 + 10 * place + 2 * seed], ["11"], seed=seed,
                settings=f'[privacy]\nmechanism = "{mechanism}"\nepsilon = {epsilon}\n',
            )  # fmt: skip
    browser.open(write_report([tmp_path])[0], width=width, height=740)
    assert browser.errors == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    chart = 'figure[data-chart="epsilon"]'
    places = browser.evaluate(
        f"[...document.querySelectorAll('{chart} circle')].map((dot) => Number(dot.getAttribute('cx')))"
    )
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.1)
    assert places[3] > places[2]
    line = browser.evaluate(f"document.querySelector('{chart} path.curve').getAttribute('d')")
    assert line.count("L") == 2
    assert browser.evaluate(f"document.querySelectorAll('{chart} path.band').length") == 1
    ticks = browser.evaluate(
        f"[...document.querySelectorAll('{chart} svg text')].map((each) => each.textContent)"
    )
    assert {"1", "10", "100", "no noise"} <= set(ticks)


@pytest.mark.slow
def test_the_strip_shows_which_silos_were_present_and_recalled(opened: Browser) -> None:
    found = opened.evaluate(
        f"""[...document.querySelectorAll('{ACCURACY} svg rect[data-silo]')]
            .map((bar) => [bar.dataset.silo, bar.getAttribute("class")])"""
    )
    assert found == [[silo, state] for silo in "012" for state in ("here", "recalled")]
    keys = opened.evaluate(
        f"[...document.querySelectorAll('{ACCURACY} .key li')].map((each) => each.textContent)"
    )
    assert keys == ["here", "away, recalled"]


@pytest.mark.slow
def test_the_pointer_shows_the_values_of_its_round(opened: Browser) -> None:
    tip = f"{ACCURACY} .tip"
    assert opened.evaluate(f"document.querySelector('{tip}').hidden") is True
    box = opened.evaluate(
        f"""(() => {{ const svg = document.querySelector('{ACCURACY} .plot svg');
        svg.scrollIntoView({{block: "center"}});
        const box = svg.getBoundingClientRect(), scale = box.width / svg.viewBox.baseVal.width;
        return [box.x + (Number(svg.dataset.left) + Number(svg.dataset.width) * 4 / 9) * scale, box.y + 100]; }})()"""
    )
    opened.move(*box)
    text = opened.text(tip)
    assert text.startswith("round 4")
    assert "feddig58.5 % (58.0–59.0)" in text
    assert "fedavg48.5 %" in text
    assert text.endswith("2 here; 1 away, recalled")
    opened.move(1, 1)
    assert opened.evaluate(f"document.querySelector('{tip}').hidden") is True


@pytest.mark.slow
def test_keys_move_the_marker_too(opened: Browser) -> None:
    opened.evaluate(f"document.querySelector('{ACCURACY} .plot').focus()")
    opened.press("ArrowRight")
    opened.press("ArrowRight")
    assert opened.text(f"{ACCURACY} .tip").startswith("round 1")
    opened.press("End")
    value = opened.evaluate(f"document.querySelector('{ACCURACY} .plot').getAttribute('aria-valuetext')")
    assert value.startswith("round 9: feddig 68.5 %, frozen 51.5 %, fedavg 43.5 %.")
    opened.press("Escape")
    assert opened.evaluate(f"document.querySelector('{ACCURACY} .tip').hidden") is True


@pytest.mark.slow
def test_all_controls_can_be_reached_by_tab(opened: Browser) -> None:
    opened.evaluate("document.activeElement.blur()")
    reached = set()
    for _ in range(60):
        opened.press("Tab")
        reached.add(
            opened.evaluate(
                "document.activeElement.id || document.activeElement.className || document.activeElement.tagName"
            )
        )
    assert {"skip", "theme", "plot", "sort", "copy", "tool", "scroll", "panels", "SUMMARY"} <= reached


@pytest.mark.slow
def test_a_curve_can_be_switched_off_and_on(opened: Browser) -> None:
    opened.click(f"{ACCURACY} .legend button:nth-of-type(2)")
    assert list(read_curves(opened, ACCURACY)) == ["feddig", "frozen"]
    opened.click(f"{ACCURACY} .legend button:nth-of-type(2)")
    assert list(read_curves(opened, ACCURACY)) == ["feddig", "fedavg", "frozen"]


def order(browser: Browser) -> list[str]:
    script = "[...document.querySelectorAll('[data-table=figures] tbody tr')].map((row) => row.cells[0].textContent)"
    return [str(name) for name in browser.evaluate(script)]


@pytest.mark.slow
def test_tables_sort_by_any_column_both_ways(opened: Browser) -> None:
    assert order(opened) == ["feddig", "fedavg", "frozen"]
    final = "[data-table=figures] th:nth-child(4) button"
    opened.click(final)
    assert order(opened) == ["feddig", "frozen", "fedavg"]
    opened.click(final)
    assert order(opened) == ["fedavg", "frozen", "feddig"]
    assert (
        opened.evaluate("document.querySelector('[data-table=figures] th:nth-child(4)').ariaSort")
        == "ascending"
    )
    opened.click("[data-table=figures] th:nth-child(1) button")
    assert order(opened) == ["fedavg", "feddig", "frozen"]


def copied(browser: Browser, button: str) -> str:
    """Click a copy button and return the content of the clipboard."""
    browser.evaluate(
        "navigator.clipboard.writeText = (text) => { globalThis.caught = text; return Promise.resolve(); }"
    )
    browser.click(button)
    return str(browser.evaluate("globalThis.caught"))


@pytest.mark.slow
def test_the_table_is_copied_as_csv_markdown_and_latex(opened: Browser) -> None:
    opened.click("[data-table=figures] th:nth-child(4) button")
    rows = list(csv.DictReader(io.StringIO(copied(opened, "[data-table=figures] [data-copy=CSV]"))))
    assert [(row["algorithm"], row["final mean"], row["final sd"]) for row in rows] == [
        ("feddig", "68.5000", "0.7071"),
        ("frozen", "51.5000", "0.7071"),
        ("fedavg", "43.5000", "0.7071"),
    ]
    assert opened.text("[data-table=figures] .copy-status") == "copied"
    lines = copied(opened, "[data-table=figures] [data-copy=Markdown]").splitlines()
    assert lines[0].startswith("| algorithm | scenario | seeds | final |")
    assert lines[2].startswith("| feddig | sequential | 2 | 68.5 ± 0.7 |")
    latex = copied(opened, "[data-table=figures] [data-copy=LaTeX]")
    assert "feddig & sequential & 2 & 68.5 $\\pm$ 0.7" in latex
    assert latex.rstrip().endswith("\\end{tabular}")


@pytest.mark.slow
def test_copying_works_without_the_clipboard_interface(opened: Browser) -> None:
    """Old and strict browsers refuse navigator.clipboard to pages from disk."""
    opened.evaluate("navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); 1")
    opened.evaluate(
        "document.addEventListener('copy', () => { globalThis.caught = document.activeElement.value; }); 1"
    )
    opened.click("main > section:last-child .source .copy")
    assert opened.evaluate("globalThis.caught").startswith(
        "feddig compare experiment.toml --algorithms feddig,fedavg,frozen"
    )


@pytest.mark.slow
def test_the_values_of_a_chart_are_copied(opened: Browser) -> None:
    rows = list(csv.reader(io.StringIO(copied(opened, f"{ACCURACY} .tool"))))
    assert rows[0][:4] == ["round", "feddig", "feddig lowest", "feddig highest"]
    assert rows[10][:4] == ["9", "68.5", "68", "69"]


@pytest.mark.slow
def test_light_and_dark_follow_the_system_until_the_switch_is_used(opened: Browser, page: Path) -> None:
    assert background(opened) == WHITE
    opened.open(page, theme="dark")
    assert background(opened) == DARK
    opened.click("#theme")
    assert background(opened) == WHITE
    opened.open(page, theme="dark")
    assert background(opened) == WHITE, "the choice is kept"
    opened.click("#theme")
    assert background(opened) == DARK
    opened.evaluate("localStorage.clear()")


@pytest.mark.slow
def test_a_folded_run_is_drawn_when_it_is_unfolded(opened: Browser) -> None:
    drawn = "document.querySelectorAll('details.run')[1].querySelectorAll('svg path.curve').length"
    assert opened.evaluate(drawn) == 0
    opened.click("details.run:nth-of-type(2) > summary")
    assert opened.evaluate(drawn) == 3


@pytest.mark.slow
def test_it_prints_on_white_with_settings_unfolded(browser: Browser, page: Path) -> None:
    """Print from a dark window, at the width of a sheet between its margins."""
    browser.open(page, theme="dark")
    opened = "[...document.querySelectorAll('details[data-print]')].filter((each) => each.open).length"
    assert browser.evaluate(opened) == 0
    wide = browser.evaluate(f"document.querySelector('{ACCURACY} .plot svg').viewBox.baseVal.width")
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.resize(695, 980)
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    browser.settle()
    assert background(browser) == WHITE
    assert browser.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    assert (
        browser.evaluate(opened)
        == browser.evaluate("document.querySelectorAll('details[data-print]').length")
        > 1
    )
    assert browser.evaluate("document.documentElement.scrollWidth") == 695
    cut = browser.evaluate(
        """[...document.querySelectorAll(".tiles b, table, pre")]
            .filter((each) => each.scrollWidth > each.clientWidth + 1).map((each) => each.outerHTML.slice(0, 80))"""
    )
    assert cut == []
    drawn = browser.evaluate(f"document.querySelector('{ACCURACY} .plot svg').viewBox.baseVal.width")
    assert 600 < drawn < 720 < wide, "letters in charts are as large as on the screen"
    assert browser.evaluate("getComputedStyle(document.querySelector('.tools')).display") == "none"
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert browser.evaluate(opened) == 0


def texts(browser: Browser, selector: str) -> list[str]:
    """Return the texts of elements, without spaces."""
    script = f"[...document.querySelectorAll('{selector}')].map((each) => each.textContent)"
    return ["".join(str(text).split()) for text in browser.evaluate(script)]


PAPERS = {"Letter": (8.5, 11.0), "A4": (8.27, 11.69)}
"""Width and height in inches."""


def write_crowd(folder: Path) -> Path:
    """Write a comparison of the demo's five methods with 20 silos, which all leave."""
    present = ["1" * (2 + silo // 2) + "0" * (10 - silo // 2) for silo in range(20)]
    for place, algorithm in enumerate(("feddig-plus", "feddig", "digests-only", "fedavg", "frozen")):
        for seed in range(2):
            write_folder(
                folder / algorithm / f"seed-{seed}", [80.0 - 10 * place + seed] * 12, present, algorithm=algorithm,
                seed=seed, measures={"frozen_own": 60.0, "absence_mean": 65.0},
            )  # fmt: skip
    return folder


@pytest.mark.parametrize(
    ("kind", "paper"),
    [("comparison", "Letter"), ("run", "A4")]
    + [
        pytest.param(*case, marks=pytest.mark.slow)
        for case in (("comparison", "A4"), ("run", "Letter"), ("crowd", "Letter"), ("crowd", "A4"))
    ],
)
def test_the_first_sheet_has_headline_key_figures_and_the_whole_chart(
    kind: str, paper: str, browser: Browser, page: Path, tmp_path: Path
) -> None:
    if kind == "run":
        page = write_report([page.parent / "feddig" / "sequential" / "seed-0"], tmp_path / "run.html")[0]
    elif kind == "crowd":
        page = write_report([write_crowd(tmp_path / "crowd")])[0]
    browser.open(page)
    shown = {
        "headline": texts(browser, ".scenario h1, .scenario .lede"),
        "key figures": texts(browser, ".tiles b"),
        "chart": texts(
            browser, f"{ACCURACY} .legend button:not(.tool), {ACCURACY} svg text, {ACCURACY} .key li"
        ),
    }
    first, *others = read_pages(browser.print(*PAPERS[paper]))
    assert len(others) <= 10
    for name in ("headline", "key figures"):
        assert shown[name]
        assert [text for text in shown[name] if text not in first] == [], name
    # ticks may differ, because the chart on paper is smaller; the words of its upper and lower end may not
    words = [text for text in shown["chart"] if re.search("[a-z]{3}", text)]
    assert "testaccuracy(%)" in words
    assert "round" in words
    assert [text for text in words if text not in first] == []
    assert "testaccuracy(%)" not in "".join(others), "the chart is not cut in two"
    assert first.index(shown["headline"][0]) < 150, "nothing blank at the top"
    for setting in ('name="fashion-mini"', "rounds=1", "silos=20" if kind == "crowd" else "silos=3"):
        assert "".join([first, *others]).count(setting) == 1, f"{setting} is printed once"


def test_a_wide_table_and_the_word_round_are_printed_whole(browser: Browser, tmp_path: Path) -> None:
    """A comparison in which all is right has the longest numbers: 100.0 ± 0.0."""
    for algorithm in ("feddig-plus", "feddig", "fedavg"):
        for seed in range(2):
            write_folder(
                tmp_path / algorithm / str(seed), [100.0] * 12, ["110000000000", "111100000000"], seed=seed,
                algorithm=algorithm, measures=dict.fromkeys(MEASURES, 100.0),
            )  # fmt: skip
    page = write_report([tmp_path])[0]
    browser.open(page)
    high = browser.evaluate(f"document.querySelector('{ACCURACY} .plot svg').dataset.high")
    assert float(high) == 100, "no scale goes beyond 100 %"
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.resize(658, 980)  # A4 between its margins
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    browser.settle()
    assert browser.evaluate("document.documentElement.scrollWidth") == 658
    outside = browser.evaluate(
        """[...document.querySelectorAll("th, td, svg text")].filter((each) => {
            const box = each.getBoundingClientRect();
            return box.width && (box.left < 0 || box.right > 658);
        }).map((each) => each.textContent)"""
    )
    browser.call("Emulation.setEmulatedMedia", media="")
    assert outside == []


@pytest.mark.slow
def test_it_prints_a_pdf_of_a_few_sheets(opened: Browser) -> None:
    printed = opened.print()
    assert printed.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 12
    assert opened.evaluate("document.querySelectorAll('details[data-folded]').length") == 0
    assert opened.errors == []


@pytest.mark.parametrize(
    ("silos", "rounds"),
    [(2, 4), *(pytest.param(*size, marks=pytest.mark.slow) for size in ((1, 1), (1000, 5), (70, 1)))],
)
def test_any_size_and_any_name_makes_a_page_without_errors(
    silos: int, rounds: int, browser: Browser, tmp_path: Path
) -> None:
    run = write_folder(
        tmp_path / "run", [40.0 + round for round in range(rounds)],
        ["1" * rounds] * (silos - 1) + ["1" + "0" * (rounds - 1)],
        algorithm=HOSTILE, silo_names=[f"{HOSTILE}{silo}" for silo in range(silos)], class_names=[HOSTILE, *"bcdef"],
        class_accuracy=[[round, 10, 20, 30, None, 100] for round in range(rounds)],
    )  # fmt: skip
    place, _ = write_report([run])
    browser.open(place)
    assert browser.errors == []
    assert [each for each in browser.requests if not each.startswith("data:")] == [place.resolve().as_uri()]
    assert browser.evaluate("globalThis.hacked") is None
    assert browser.evaluate("document.querySelectorAll('figure svg path.curve').length") >= 2
    values = next(iter(read_curves(browser, ACCURACY).values()))
    assert [value for _, value in values] == pytest.approx([40 + round for round in range(rounds)], abs=0.01)
    low, high = browser.evaluate(
        f"(({{low, high}}) => [Number(low), Number(high)])(document.querySelector('{ACCURACY} .plot svg').dataset)"
    )
    assert low <= 40 - (rounds == 1), "a single value does not lie on the axis"
    assert high >= 39 + rounds + (rounds == 1)
    browser.open(place, width=360, height=700)
    assert browser.evaluate("document.documentElement.scrollWidth") == 360
    assert browser.errors == []


CLASSES = 'figure[data-chart="classes"]'
FIGURES = f"{CLASSES} .row-figure"
"""The numbers at the right of a heat map's rows."""


def write_many_classes(folder: Path, classes: int) -> Path:
    """Write a run of 20 rounds; silo 0 holds the even classes, leaves at 12, and they fall from 90 to 10 %."""
    curve = [
        [(10 if round >= 12 else 90) if number % 2 == 0 else 50 + round for number in range(classes)]
        for round in range(20)
    ]
    counts = [
        [8 if number % 2 == 0 else 2 for number in range(classes)],
        [2 if number % 2 == 0 else 8 for number in range(classes)],
    ]
    names = [f"class {number} with a long name" for number in range(classes)]
    return write_folder(
        folder, [50.0] * 20, ["1" * 12 + "0" * 8, "1" * 20], class_names=names, silo_names=["Basel", "Chur"],
        class_accuracy=curve, class_counts=counts, class_tests=[100] * classes,
    )  # fmt: skip


def attributes(browser: Browser, elements: str, script: str) -> list[Any]:
    """Evaluate a script for each of these elements, which it calls `it`."""
    return list(browser.evaluate(f"[...document.querySelectorAll('{elements}')].map((it) => {script})"))


@pytest.mark.parametrize(
    ("classes", "width", "theme"),
    [
        (10, 1100, "light"),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in ((62, 1100, "dark"), (62, 360, "light"), (2, 360, "dark"), (10, 360, "light"))
        ),
    ],
)
def test_classes_are_drawn_with_the_leave_of_the_silo_that_held_them(
    classes: int, width: int, theme: str, browser: Browser, tmp_path: Path
) -> None:
    browser.open(write_report([write_many_classes(tmp_path / "run", classes)])[0], width=width, theme=theme)
    assert browser.errors == []
    assert browser.evaluate("document.documentElement.scrollWidth") == width
    edge = attributes(browser, f"{CLASSES} svg .event", "it.x1.baseVal.value")[0]
    if classes <= 4:
        held = [value for _, value in read_curves(browser, CLASSES)["class 0 with a long name"]]
        assert held == pytest.approx([90] * 12 + [10] * 8, abs=0.01)
        marks = attributes(browser, f"{CLASSES} .curve-mark", "it.cx.baseVal.value")
        assert marks == pytest.approx([edge], abs=0.1)
        return
    marks = attributes(browser, f"{CLASSES} svg .holder-leaves", "[it.dataset.class, it.x.baseVal.value + 2]")
    assert [number for number, _ in marks] == [str(number) for number in range(0, classes, 2)]
    assert [x for _, x in marks] == pytest.approx([edge] * len(marks), abs=0.1)
    cells = attributes(browser, f"{CLASSES} .heat-cells", "[it.dataset.level, getComputedStyle(it).fill]")
    colours = dict(cells)
    assert {"90", "10"} <= colours.keys()
    assert len(set(colours.values())) == len(colours), "each level has its own colour"
    assert texts(browser, FIGURES) == ["10", "69"] * (classes // 2)
    browser.evaluate(f"document.querySelector('{CLASSES} .plot').focus()")
    browser.press("Home")
    assert texts(browser, FIGURES) == ["90", "50"] * (classes // 2)
    assert "figures: round 0" in browser.text(f"{CLASSES} .key")
    assert browser.errors == []


@pytest.mark.slow
def test_the_pointer_tells_a_class_its_accuracy_and_who_held_it(browser: Browser, tmp_path: Path) -> None:
    browser.open(write_report([write_many_classes(tmp_path / "run", 10)])[0])
    x, y = browser.evaluate(
        f"""(() => {{ const row = document.querySelectorAll('{CLASSES} .heat-row')[2];
        row.scrollIntoView({{block: "center"}}); const box = row.getBoundingClientRect();
        return [box.x + box.width * 15 / 19, box.y + box.height / 2]; }})()"""
    )
    browser.move(x, y)
    text = browser.text(f"{CLASSES} .tip")
    assert text == "round 15class 2 with a long name: 10 %Basel held 80 %, left at 121 here; 1 away, recalled"
    browser.move(x, y + 20)
    assert "class 3 with a long name: 65 %Chur held 80 %1 here" in browser.text(f"{CLASSES} .tip")
    browser.move(1, 1)
    assert browser.evaluate(f"document.querySelector('{CLASSES} .tip').hidden") is True
    assert texts(browser, FIGURES) == ["10", "69"] * 5


@pytest.mark.slow
def test_classes_are_printed_as_wide_as_the_paper(browser: Browser, tmp_path: Path) -> None:
    browser.open(write_report([write_many_classes(tmp_path / "run", 62)])[0], theme="dark")
    browser.call("Emulation.setEmulatedMedia", media="print")
    browser.resize(695, 980)
    browser.evaluate("dispatchEvent(new Event('beforeprint'))")
    browser.settle()
    section = '[data-key="Accuracy of each class"]'
    assert attributes(browser, section, "it.scrollWidth <= 695") == [True]
    assert 600 < browser.evaluate(f"document.querySelector('{CLASSES} svg').viewBox.baseVal.width") < 720
    high = browser.evaluate(f"document.querySelector('{CLASSES}').getBoundingClientRect().height")
    assert high < 980, "a figure is not broken over sheets"
    assert attributes(browser, "[data-table=classes] table", "it.scrollWidth <= it.clientWidth + 1") == [True]
    browser.evaluate("dispatchEvent(new Event('afterprint'))")
    browser.call("Emulation.setEmulatedMedia", media="")
    assert browser.errors == []


@pytest.mark.slow
def test_classes_are_sorted_by_how_far_they_fell(browser: Browser, tmp_path: Path) -> None:
    browser.open(write_report([write_many_classes(tmp_path / "run", 10)])[0])
    change = "[data-table=classes] th:last-child button"
    browser.click(change)
    browser.click(change)
    rows = attributes(
        browser, "[data-table=classes] tbody tr", "[...it.cells].map((cell) => cell.textContent)"
    )
    assert [row[0].split()[1] for row in rows[:5]] == list("02468")
    assert [rows[0][place] for place in (1, 2, 3, 4, 5, 7)] == [
        "Basel",
        "80 %",
        "12",
        "90.0",
        "10.0",
        "−80.0",
    ]
    assert rows[-1][3] == "stayed"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["experiment.toml", "availability.csv", "metrics.jsonl", "summary.json"])
def test_a_missing_file_makes_a_page_without_errors(name: str, browser: Browser, tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [1, 2, 3, 4], ["1100", "1111"])
    (run / name).unlink()
    browser.open(write_report([run])[0])
    assert browser.errors == []
    assert name in browser.text("main")
