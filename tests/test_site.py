"""The documentation site: where its pages come from, and that it loads nothing from other servers."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import feddig
from browser import Browser
from feddig.experiment.toml import keys

ROOT = Path(__file__).parent.parent
WITHOUT = "mkdocs, of the extra docs, is not there"


def load_tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


pages = load_tool("site_pages")
checker = load_tool("check_site")


# --- where files are in the site


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("README.md", "index.md"),
        ("SECURITY.md", "security.md"),
        ("docs/privacy.md", "privacy.md"),
        ("docs/images/one-round.svg", "images/one-round.svg"),
        ("benchmarks/results/chaos.png", "files/benchmarks/results/chaos.png"),
        ("src/feddig/core/training.py", "files/src/feddig/core/training.py.md"),
        ("LICENSE", "files/LICENSE.md"),
    ],
)
def test_every_file_has_a_path_in_the_site(path: str, place: str) -> None:
    assert pages.place_in_site(path) == place


def test_links_are_turned_to_these_places() -> None:
    text = "[a](privacy.md#top) [b](../../SECURITY.md) ![c](../../benchmarks/results/chaos.png) [d](https://flower.ai)"
    turned = pages.with_links_of_site("docs/guide/federation.md", text)
    assert turned == (
        "[a](privacy.md#top) [b](../security.md) ![c](../files/benchmarks/results/chaos.png) [d](https://flower.ai)"
    )
    assert pages.with_links_of_site("README.md", "[x](docs/guide/data.md)") == "[x](guide/data.md)"


@pytest.mark.parametrize("code", ["`[a](../x.md)`", "```\n[a](../x.md)\n```"])
def test_code_is_left_as_it_is(code: str) -> None:
    assert pages.with_links_of_site("docs/guide/data.md", f"text\n\n{code}\n") == f"text\n\n{code}\n"


def test_a_file_is_shown_whole_even_if_it_holds_fences() -> None:
    text = (ROOT / "README.md").read_text("utf-8").rstrip()
    assert "```sh" in text
    head, shown = pages.as_page("README.md").split("````text\n")
    assert shown == f"{text}\n````\n"
    assert "exclude: true" in head


def test_a_notebook_is_shown_as_its_cells() -> None:
    text = pages.as_page("examples/notebook.ipynb")
    assert "\n# FedDig in a notebook\n" in text
    assert "```python\nimport time\n" in text
    assert '"cell_type"' not in text


def test_every_document_is_in_the_navigation_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    listed = re.findall(r"([a-z/-]+\.md)$", text[text.index("\nnav:") :], flags=re.MULTILINE)
    assert sorted(listed) == sorted(map(pages.place_in_site, pages.documents()))


# --- what the check finds


@pytest.mark.parametrize(
    "head",
    [
        '<script src="https://elsewhere.example/x.js"></script>',
        '<link rel="stylesheet" href="//elsewhere.example/x.css">',
        '<link rel="preconnect" href="https://elsewhere.example">',
        '<img src="http://elsewhere.example/x.png">',
        "<style>@import url(https://elsewhere.example/x.css);</style>",
        '<p style="background: url(https://elsewhere.example/x.png)">',
        '<img src="missing.png">',
    ],
)
def test_a_page_that_loads_something_is_named(head: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text(f"<html><head>{head}</head></html>")
    (fault,) = checker.faults(tmp_path)
    assert fault.startswith("index.html: ")


def test_external_links_are_allowed(tmp_path: Path) -> None:
    (tmp_path / "x.css").write_text("a { background: url('data:image/svg+xml;,') }")
    page = '<link rel="stylesheet" href="x.css"><a href="https://elsewhere.example">'
    (tmp_path / "index.html").write_text(page)
    assert list(checker.faults(tmp_path)) == []


# --- the site itself


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason=WITHOUT)
    folder = tmp_path_factory.mktemp("documentation") / "site"
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def search(browser: Browser, words: str) -> str:
    """Type words into the search of the open page; return how many pages match."""
    browser.evaluate("document.querySelector('.md-search__input').focus(); 1")
    browser.call("Input.insertText", text=words)
    count = (  # type again, because the page may not handle input yet
        "new Promise((done) => { const look = () => { const found = document.querySelector("
        "'.md-search-result__meta').textContent; if (/matching/.test(found)) return done(found);"
        " document.querySelector('.md-search__input').dispatchEvent(new Event('input')); setTimeout(look, 200); };"
        " look(); })"
    )
    return str(browser.evaluate(count))


@pytest.mark.slow
def test_the_site_is_built_without_a_warning_and_loads_nothing(site: Path) -> None:
    assert list(checker.faults(site)) == []
    assert len(list(site.rglob("*.html"))) > 25


@pytest.mark.slow
def test_a_page_shows_what_it_links_to(site: Path) -> None:
    text = (site / "architecture.html").read_text("utf-8")
    assert 'href="files/src/feddig/core/training.py.html"' in text
    assert "run_rounds" in (site / "files" / "src" / "feddig" / "core" / "training.py.html").read_text(
        "utf-8"
    )
    assert (site / "files" / "benchmarks" / "results" / "chaos.png").stat().st_size > 1000


@pytest.mark.slow
def test_the_api_shows_docstrings(site: Path) -> None:
    text = (site / "reference" / "api.html").read_text("utf-8")
    assert 'id="feddig.run_grid"' in text
    assert "Draw the table of a scenario" in text
    # how a field is declared helps no reader
    assert [word for word in ("class-attribute", "default_factory", "setting(") if word in text] == []


@pytest.mark.slow
def test_the_api_shows_every_public_field(site: Path) -> None:
    text = (site / "reference" / "api.html").read_text("utf-8")
    shown = set(re.findall(r'id="feddig\.([\w.]+)"', text))
    classes = {name: found for name in feddig.__all__ if isinstance(found := getattr(feddig, name), type)}
    assert {"Result", "Comparison", "Experiment"} <= set(classes)
    fields = {
        f"{name}.{each}"
        for name, found in classes.items()
        for each in [*vars(found), *getattr(found, "__annotations__", {})]
        if not each.startswith("_")
    }
    # what has no docstring is not shown
    assert sorted({*feddig.__all__, *fields} - {"__version__"} - shown) == []


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("width", [360, 900])
def test_no_key_is_broken_in_the_page_of_settings(width: int, site: Path, browser: Browser) -> None:
    browser.open(site / "reference" / "settings.html", width=width, height=740)
    code = "[...document.querySelectorAll('.md-typeset td code')]"
    lines = browser.evaluate(f"{code}.map((each) => [each.textContent, each.getClientRects().length])")
    assert {name for name, count in lines if count == 1} >= set(keys())
    assert [name for name, count in lines if count != 1] == []
    # a phone shows each row as a block that is no wider than the screen
    widest = "Math.max(...[...document.querySelectorAll('.keys td')].map((cell) => cell.getBoundingClientRect().right))"
    assert browser.evaluate(widest) <= width


@pytest.mark.slow
def test_each_section_of_the_settings_has_an_anchor_and_a_table(site: Path) -> None:
    text = (site / "reference" / "settings.html").read_text("utf-8")
    for section in ("data", "absence", "algorithm", "algorithmfedprox", "digest", "privacy", "logging"):
        part = text.split(f'<h2 id="{section}">')[1].split("<h2 ")[0]
        assert part.count("<table>") == 1
        assert f"<code>{section.replace('mf', 'm.f')}." in part


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("words", ["differential privacy", "Differential privacy"])
def test_the_search_finds_the_page_for_the_person_who_signs(words: str, site: Path, browser: Browser) -> None:
    browser.open(site / "index.html")
    search(browser, words)
    links = "[...document.querySelectorAll('.md-search-result__item > a')].map((link) => link.pathname)"
    assert browser.evaluate(links)[0].endswith("/site/privacy.html")
    first = browser.text(".md-search-result__item > a")
    assert "Missing" not in first, "the page is found with both words"


@pytest.mark.slow
@pytest.mark.browser
def test_the_search_works_from_disk_without_a_request(site: Path, browser: Browser) -> None:
    browser.open(site / "guide" / "federation.html", theme="dark")
    browser.evaluate("localStorage.clear()")  # the theme keeps the choice of an earlier page
    browser.open(site / "guide" / "federation.html", theme="dark")
    assert browser.evaluate("document.body.dataset.mdColorScheme") == "slate"
    assert re.search(r"[1-9]\d* matching", search(browser, "ledger"))
    assert {address.split(":")[0] for address in browser.requests} <= {"file", "data", "blob"}
    assert browser.errors == []
