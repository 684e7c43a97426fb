"""Check that the documents agree with the program."""

import importlib.util
import inspect
import pkgutil
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import feddig
from feddig.core.algorithms import BASES
from feddig.core.recipe import EXPERT, FEDDIG, PLUS
from feddig.experiment.starter import starter
from feddig.experiment.toml import keys, read_experiment

ROOT = Path(__file__).parent.parent


def load_tool(name: str) -> Any:
    """Load a script of tools/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


def test_the_page_of_settings_agrees_with_the_settings() -> None:
    tool = load_tool("document_settings")
    found = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    assert found == tool.page(), "run tools/document_settings.py"


def test_the_tables_of_the_reproduction_agree_with_the_result_files() -> None:
    tool = load_tool("document_paper")
    found = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    assert found == tool.page(found), "run tools/document_paper.py"
    named = re.findall(r"^<!-- ([\w-]+) -->$", found, flags=re.MULTILINE)
    tables = [path.stem for path in (ROOT / "experiments" / "paper").glob("*.toml")]
    assert sorted(name for name in named if name != "end") == sorted(tables)


PARTS = {
    "FedDig+": "plus",
    "its own model, stopped at the first leave": "plus, stopped",
    "M alone: votes without digests": "plus, model",
    "the expert alone": "plus, expert",
    "FedDig+ without votes": "plus-no-votes",
    "FedDig": "feddig",
    "FedDig, stopped at the first leave": "feddig, stopped",
    "FedAvg": "fedavg",
    "FedAvg, stopped at the first leave": "fedavg, stopped",
    "digests-only": "digests-only",
    "FedDig+ with the plain loss": "plus-no-prior",
    "FedDig+ with noise, record epsilon 8 (three seeds)": "plus-epsilon-8",
}
"""By its name on the page, what benchmarks/feddig_plus.py calls it."""


def test_the_tables_of_feddig_plus_agree_with_the_result_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    benchmark = importlib.import_module("feddig_plus")
    results = ROOT / "benchmarks" / "results" / "feddig-plus"
    cells = {
        name: benchmark.read_cells(results / f"{name}.jsonl") for name in ("emnist-byclass", "fashion-mnist")
    }

    def say(name: str, scenario: str, method: str, *, above: bool = False) -> str:
        found = benchmark.scores(cells[name], scenario)
        values = found.get(method, {})
        if above:
            ours = found["plus"]
            values = {seed: ours[seed] - value for seed, value in values.items() if method != "plus"}
        return str(benchmark.say([*values.values()])) if values else ""

    page = (ROOT / "docs" / "research.md").read_text(encoding="utf-8").partition("## Test data")[2]
    compared, name = 0, ""
    for line in page.splitlines():
        label, *found = (cell.strip(" *") for cell in line.strip("|").split("|"))
        for title, each in (("EMNIST: ", "emnist-byclass"), ("Fashion-MNIST: ", "fashion-mnist")):
            if label.startswith(title):  # the rows of one data set begin here
                label, name = label.removeprefix(title), each
        if label not in PARTS:
            continue
        if name:
            scenarios = ("temporary", "forever", "groups", "early", "never")
            wanted = [say(name, scenario, PARTS[label]) for scenario in scenarios]
        else:
            wanted = [
                say(each, "sequential", PARTS[label], above=it) for each in cells for it in (False, True)
            ]
        assert ["" if cell == "-" else cell for cell in found] == wanted, line
        compared += 1
    assert compared == 24
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for method in ("feddig", "fedavg, stopped", "plus", "plus, stopped"):
        assert say("emnist-byclass", "sequential", method) in readme


def test_every_key_in_our_experiment_files_exists() -> None:
    for path in (ROOT / "experiments").glob("*.toml"):
        assert read_experiment(path).training.rounds > 0


def test_links_between_documents_lead_somewhere() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    broken = []
    for page in pages:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            if not target.startswith(("http://", "https://")) and not (page.parent / target).exists():
                broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert broken == []


def test_keys_that_documents_quote_exist() -> None:
    known = set(keys())
    sections = {key.split(".")[0] for key in known if "." in key}
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = page.read_text(encoding="utf-8")
        objects = named_objects(text) if page.name == "symbols.md" else []
        for quoted in re.findall(r"`((?:{})\.[a-z_.]+)(?: = [^`]*)?`".format("|".join(sections)), text):
            known_otherwise = quoted in objects or quoted.endswith((".py", ".toml", ".safetensors"))
            assert quoted.rstrip(".") in known or known_otherwise, f"{page.name}: {quoted}"


def test_the_readme_fits_in_90_lines() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 90


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "guide").glob("*.md")), ids=lambda page: page.stem)
def test_a_guide_fits_on_two_screens(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 900


def test_the_architecture_names_the_files_of_a_round_and_they_exist() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.split("## Follow one round")[1].split("\n## ")[0]
    named = re.findall(r"^\| \[`([^`]+)`\]", table, flags=re.MULTILINE)
    assert named[0] == "training.py"
    assert 6 <= len(named) <= 8
    for name in [*named, *re.findall(r"`([\w/]+\.py)`", table)]:
        assert (ROOT / "src" / "feddig" / "core" / name).is_file(), name
    folders = {path.parent.name for path in (ROOT / "src" / "feddig").glob("*/__init__.py")}
    assert {
        name for row in re.findall(r"^\| (`.*?/`) \|", text, re.MULTILINE) for name in re.findall(r"\w+", row)
    } == folders


def test_the_architectures_layers_are_the_contracts() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = [contract["layers"] for contract in contracts["contracts"] if contract["type"] == "layers"]
    assert "```text\n" + "\n".join(layers) + "\n```" in text


def test_the_readmes_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec(program, found)
    (result,) = (value for value in found.values() if isinstance(value, feddig.Result))
    assert result.accuracy is not None
    assert result.accuracy > 90
    assert (tmp_path / "results" / "from-python" / "summary.json").exists()


def test_what_the_documents_python_imports_exists() -> None:
    blocks = [
        block
        for page in (ROOT / "docs").rglob("*.md")
        for block in re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    ]
    assert blocks
    for block in blocks:
        exec("\n".join(re.findall(r"^(?:from|import) .*$", block, flags=re.MULTILINE)), {})


def test_the_lines_of_the_first_experiment_are_those_that_init_writes() -> None:
    text = (ROOT / "docs" / "guide" / "first-experiment.md").read_text(encoding="utf-8")
    (toml,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    written = starter(Path("mine.toml"), None)[0].splitlines()
    assert [line for line in toml.splitlines() if line not in written] == []


def named_objects(text: str) -> list[str]:
    """Return the objects in the last column of tables of symbols."""
    rows = re.findall(r"^\|(?:[^|]*\|){3}([^|]*)\|$", text, flags=re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def look_up(name: str) -> Any:
    """Return module.object.attribute of feddig, or the parameter in module.object(parameter)."""
    path, _, parameter = name.removesuffix(")").partition("(")
    home, _, last = f"feddig.{path}".rpartition(".")
    owner = pkgutil.resolve_name(home)
    # a dataclass field without a default is only an annotation
    declared = getattr(owner, "__annotations__", {})
    found = declared[last] if last in declared else getattr(owner, last)
    return inspect.signature(found).parameters[parameter] if parameter else found


def test_every_object_that_the_symbols_name_exists() -> None:
    names = named_objects((ROOT / "docs" / "reference" / "symbols.md").read_text(encoding="utf-8"))
    assert len(names) > 50
    for name in names:
        assert look_up(name) is not None, name


@pytest.mark.parametrize(
    "name", ["core.silo.Sillo", "core.messages.Reply.updates", "digest.digest.make_digest(featuress)"]
)
def test_an_object_that_does_not_exist_is_noticed(name: str) -> None:
    with pytest.raises((AttributeError, KeyError)):
        look_up(name)


def test_the_round_in_a_drawing_names_methods_that_exist() -> None:
    text = (ROOT / "docs" / "explanation" / "one-round.md").read_text(encoding="utf-8")
    drawn = (ROOT / "docs" / "images" / "one-round.svg").read_text(encoding="utf-8")
    homes = {
        "Silo": "core.silo",
        "Moderator": "core.moderator",
        "Algorithm": "core.algorithms.base",
        "Engine": "core.engine",
    }
    names = re.findall(r"\b([A-Z][A-Za-z]+)\.([a-z_]+)\b", " ".join(re.findall(r"`([^`]+)`", text)) + drawn)
    assert len(names) > 15
    for home, method in names:
        assert callable(look_up(f"{homes[home]}.{home}.{method}"))


def test_the_page_of_the_api_has_every_public_name() -> None:
    text = (ROOT / "docs" / "reference" / "api.md").read_text(encoding="utf-8")
    shown = re.findall(r"^::: feddig\.(\w+)$", text, flags=re.MULTILINE)
    assert sorted(shown) == [name for name in feddig.__all__ if name != "__version__"]


def test_every_algorithm_has_a_section_that_says_where_it_differs() -> None:
    text = (ROOT / "docs" / "reference" / "algorithms.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## (.+)\n((?:(?!## ).*\n)*)", text, flags=re.MULTILINE))
    del sections["What all of them share"]
    controls = {"frozen", "centralised", "digests-only", EXPERT}
    assert {title.lower() for title in sections} >= {*BASES, *FEDDIG, PLUS, *controls}
    for title, section in sections.items():
        assert re.search(r"Names?: `", section), f"{title}: says no name"
        assert "**Where it differs from the paper" in section, f"{title}: does not say where it differs"
