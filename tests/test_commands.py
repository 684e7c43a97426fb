"""Run every command of README and the documents if it takes seconds; otherwise let the real program parse it.

A page's commands run in order in a separate folder, with fewer rounds, images and seeds, set by public options.
RUN_APART names commands that take long or need processes, with the test that runs them. ONLY_PARSED names commands
that cannot be run, with the reason. All other commands are run here.
"""

import argparse
import itertools
import json
import logging
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
import warnings
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import feddig.cli
from conftest import draw_tiny_dataset
from documented import ROOT, Command, commands_of, hidden_commands, pages, quoted_commands
from feddig.experiment.starter import starter
from feddig.experiment.toml import demo_experiment, read_experiment
from feddig.report.live_server import LiveServer
from public_sets import write_all
from report_folders import write_folder
from test_audit_page import write_known_audit
from test_examples import load_example
from test_mobilenet import draw_tensorflow_weights

ONLY_PARSED = {
    "make": "installs from the package index, which tests cannot reach; CI runs `make test`, a test below runs the "
    "demo's recipe, and test_site.py builds the site as the recipe of docs does",
    ".venv/bin/python -m pip": "installs from the package index; CI runs the same words in the Makefile's recipes",
    "pip install": "installs from the package index; a test below lets pip read the words and looks the extras up",
}
"""Prefixes of commands that are parsed and not run, and the reason."""

RUN_APART = {
    "python benchmarks/": "test_documented_benchmarks.py",
    "feddig federation up": "test_documented_federation.py",
    "feddig federation status": "test_documented_federation.py",
    "feddig federation moderator": "test_documented_federation.py",
    "feddig federation silo": "test_documented_federation.py",
    "feddig federation check": "test_documented_federation.py",
    "feddig digest make .": "test_documented_federation.py",
    "feddig audit .": "test_documented_federation.py",
    "flwr run": "test_flower.py",
}
"""Prefixes of commands that another test runs, and its file."""

SMALL = "--set data.limit=400 --set data.min_samples=24 --set model.classifier=small"
PAPER = (
    "--set data.limit=600 --set data.min_samples=8 --set training.rounds=2 --scenarios sequential --seeds 0"
)
ATTACKS = "--quick --digests-at-most 12 --pool 100 --canaries 20"
FEWER = {
    "feddig compare experiments/paper.toml": f"{PAPER} --set model.classifier=small",
    "feddig paper run": "--seeds 0 --limit-minutes 0.02",
    "feddig paper figure": f"--results {ROOT}/benchmarks/results/paper",
    "feddig run --resume results/four --rounds": "--rounds 3",
    "feddig run": f"{SMALL} --set training.rounds=2",
    "feddig compare": f"{SMALL} --set training.rounds=2 --seeds 0",
    "feddig digest make": "--set digest.samples_per_digest=4",
    "feddig advise": f"{SMALL} --rounds 1 --joint-steps 2 --samples-per-digest 4 --mixing random "
    "--mechanisms discrete-gaussian --epsilons 8 --quick",
    "feddig audit --digests d.safetensors": f"--public fashion-mnist:0-499 {ATTACKS}",  # all that the small set has
    "feddig audit": ATTACKS,
    "feddig encoder make": "--steps 100",
    "feddig watch": "--port 0 --no-open",
    "python -m venv": "--without-pip",
    "python examples/own_data.py": "--rounds 2",
    "python examples/tabular.py": "--rounds 2 --seeds 1",
}
"""Options that are added to a command so that it takes seconds."""

TRAINS = (
    "feddig run", "feddig compare", "feddig paper run", "feddig advise", "feddig audit", "feddig encoder make",
    "python examples/",
)  # fmt: skip
"""Prefixes of commands that take long; of the pages that show them, `make test` runs only README."""


def reason_not_run(command: Command) -> str | None:
    """Return why a command is not run with the others of its page; None if it is."""
    apart = {**ONLY_PARSED, **RUN_APART}
    return next((why for begin, why in apart.items() if _begins(command, begin)), None)


def _begins(command: Command, begin: str) -> bool:
    # "python benchmarks/" matches all scripts in the folder
    return str(command).startswith(begin) if begin.endswith("/") else command.starts_with(begin)


BLOCKS = [command for page in pages() for command in commands_of(page)]
QUOTED = [command for page in pages() for command in quoted_commands(page)]
PARSED = [command for command in BLOCKS if reason_not_run(command)]


# --- the table


def test_the_documents_commands_are_found() -> None:
    assert len(BLOCKS) > 80
    shell = "```sh\nfeddig run a && make x  # why\n```\n"
    indented = "    python b \\\n      --c d\n    not one\n"
    text = f"# T\n\n{shell}\n{indented}\n```text\nmake y\n```\n"
    found = [command.words for command in commands_of("page", text)]
    assert found == [("feddig", "run", "a"), ("make", "x"), ("python", "b", "--c", "d")]


@pytest.mark.parametrize("page", pages())
def test_no_command_stands_in_a_block_that_is_not_a_shells(page: str) -> None:
    assert hidden_commands(page) == [], "these commands are not found and not run: write ```sh"


def test_a_command_in_another_block_is_noticed() -> None:
    assert hidden_commands("page", "```\nmodel.x: wrong\npython a.py\n```\n") == ["python a.py"]


@pytest.mark.parametrize("begin", [*ONLY_PARSED, *RUN_APART])
def test_every_exception_is_still_needed(begin: str) -> None:
    assert any(_begins(command, begin) for command in BLOCKS), "no document shows such a command"


# --- run


@pytest.fixture(scope="session")
def provided_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files that the documents assume: images, the experiment that `feddig init` writes, and some results."""
    folder = tmp_path_factory.mktemp("provided_files")
    draw = load_example("own_data").draw_folder
    draw(folder / "photos")
    (folder / "mine.toml").write_text(starter(Path("mine.toml"), "photos", folder)[0], encoding="utf-8")
    shutil.copytree(folder / "photos" / "test", folder / "images" / "never-used")
    scans = draw_tiny_dataset(120, 40)
    parts = {"train": scans.train, "test": scans.test}
    arrays = {f"x_{name}": part.pixels for name, part in parts.items()}
    np.savez(folder / "scans.npz", **arrays, **{f"y_{name}": part.labels for name, part in parts.items()})
    write_all(folder / "FOLDER", {"train": 2400, "test": 200})
    np.savez(folder / "weights.npz", **draw_tensorflow_weights())  # type: ignore[arg-type]
    for name in ("experiments", "examples", "src", "constraints.txt"):
        (folder / name).symlink_to(ROOT / name)
    return folder


SKEWS = {"skew-01": 0.1, "skew-05": 0.5, "skew-1": 1.0}


def write_missing_inputs(command: Command) -> None:
    """Write the files that a command reads and that no earlier command of its page has made."""
    for option, word in itertools.pairwise(command.words):
        path = Path(word)
        if option == "--out" or path.exists():
            continue
        if path.parts[:1] == ("results",):
            data = f"skew = {SKEWS[path.name]}\n" if path.name in SKEWS else ""
            write_folder(path, [50.0, 60.0], ["11", "10"], data=data, measures={"absence_mean": 60.0})
        elif (option, word) == ("report", "audit"):
            write_known_audit(path)
        elif word == "mine.safetensors":
            text = "    feddig digest make mine.toml --all-data --out mine.safetensors\n"
            run_command(commands_of(command.page, text)[0])
        elif option == "watch":  # a run may start in it
            path.mkdir()
        elif option == "--keys":
            path.mkdir()
            for silo in ("north", "south"):
                run_command(commands_of(command.page, f"    feddig federation key made/{silo}\n")[0])
                shutil.copy(Path("made", silo, "key.pub"), path / f"{silo}.pub")


def run_here(page: str) -> list[Command]:
    """Return the commands of a page that its own test runs."""
    return [command for command in commands_of(page) if reason_not_run(command) is None]


def takes_long(page: str) -> bool:
    return page != "README.md" and any(
        _begins(command, begin) for command in run_here(page) for begin in TRAINS
    )


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if takes_long(page) else [])
        for page in pages()
        if run_here(page)
    ],
)
def test_the_commands_of_a_page_run(
    page: str, provided_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what, package, extra in (
        ("feddig federation", "flwr", "flower"),
        ("tensorboard=true", "tensorboard", "logging"),
        ("mlflow=true", "mlflow", "mlflow"),
    ):
        if any(what in str(command) for command in run_here(page)):
            pytest.importorskip(package, reason=f"the extra {extra} is not installed")
    if any("mlflow" in str(command) for command in run_here(page)):
        warnings.simplefilter("ignore")  # MLflow itself warns
        monkeypatch.setattr("os.environ", os.environ.copy())  # the MLflow log sets variables
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDDIG_DATA", raising=False)
    written = [command.words[2] for command in run_here(page) if command.starts_with("feddig init")]
    for thing in provided_files.iterdir():
        if thing.name not in written:
            (tmp_path / thing.name).symlink_to(thing)
    monkeypatch.setattr("feddig.report.live_server.LiveServer.serve_forever", stop_at_once)
    # where data sets are found by name
    monkeypatch.setattr("feddig.data.download.DEBIAN_FOLDER", tmp_path / "FOLDER")
    for command in run_here(page):
        write_missing_inputs(command)
        run_command(command)
        if "--out" in command.words:
            out = command.words[command.words.index("--out") + 1]
            assert Path(out).exists(), f"{page}: {command}: {out} is missing"
    logging.getLogger("feddig").handlers.clear()  # they write to a closed standard error


def stop_at_once(server: LiveServer) -> None:
    """Listen and stop as by Ctrl-C; test_watch.py tests the answers."""
    assert server.server_port > 0
    raise KeyboardInterrupt


def run_command(command: Command) -> None:
    """Run a command with smaller inputs; run feddig in this process, so that torch is loaded once."""
    if command.words[0] == "tensorboard":
        check_tensorboard(command)
        return
    words = feddig_arguments(command.words)
    known = command if words is None else Command(command.page, ("feddig", *words))
    added = next((more.split() for begin, more in FEWER.items() if known.starts_with(begin)), [])
    if words is None:
        assert command.words[0] == "python", (
            f"{command.page}: {command}: neither run here nor listed as an exception"
        )
        done = subprocess.run(
            [sys.executable, *command.words[1:], *added], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command.page}: {command}\n{done.stderr}"
        return
    is_whole = "--resume" in words and "--rounds" not in words
    with pytest.raises(SystemExit) as ended:
        feddig.cli.main(words if is_whole else [*words, *added])
    assert not ended.value.code, f"{command.page}: {command}"


def check_tensorboard(command: Command) -> None:
    """Start TensorBoard on a free port, check that it lists runs, and end it."""
    started = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", *command.words[1:], "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    try:
        printed = []
        for line in started.stderr:  # ends with the process
            printed.append(line)
            if found := re.search(r" at (http://localhost:\d+/)", line):
                assert "feddig" in str(wait_for_runs(f"{found[1]}data/runs"))
                return
        raise AssertionError(f"{command}: {''.join(printed)}")
    finally:
        started.kill()
        started.communicate()


def wait_for_runs(address: str) -> list[str]:
    """Request the list of runs until it is not empty; TensorBoard reads runs after it has started."""
    for _ in range(120):
        with urllib.request.urlopen(address, timeout=30) as answer:
            if found := json.load(answer):
                return list(found)
        time.sleep(0.5)
    raise AssertionError(f"{address}: no runs in a minute")


def feddig_arguments(words: Sequence[str]) -> list[str] | None:
    """Return the arguments of a feddig command, also of `python -m feddig`; None for other programs."""
    if words[0] == "feddig":
        return list(words[1:])
    return list(words[3:]) if list(words[1:3]) == ["-m", "feddig"] else None


# --- parse


def find_command(words: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the subcommand that the words name, and the remaining words."""
    command: Any = typer.main.get_command(feddig.cli.app)
    left = list(words)
    while hasattr(command, "commands") and left and not left[0].startswith("-"):
        assert left[0] in command.commands, f"no command {left[0]!r}"
        command = command.commands[left.pop(0)]
    return command, left


def parse(words: Sequence[str]) -> Any:
    """Parse a command without running it."""
    command, left = find_command(words)
    return command.make_context(words[0], left)


def overrides_of(words: Sequence[str]) -> list[str]:
    """Return the values of --set."""
    return [value for option, value in itertools.pairwise(words) if option == "--set"]


@pytest.mark.parametrize("command", [c for c in PARSED if feddig_arguments(c.words) is not None], ids=str)
def test_a_command_of_ours_that_is_not_run_is_accepted(
    command: Command, provided_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(provided_files)
    words = feddig_arguments(command.words)
    assert words is not None
    context = parse(words)
    if overrides_of(words):
        file = context.params.get("file")
        read_experiment(Path(file), overrides_of(words)) if file else demo_experiment(overrides_of(words))


@pytest.mark.parametrize(
    "wrong", ["feddig compair x.toml", "feddig run --epochs 3", "feddig federation init --silos x"]
)
def test_a_command_that_does_not_exist_is_not_accepted(wrong: str) -> None:
    with pytest.raises((AssertionError, feddig.cli.UsageError)):
        parse(wrong.split()[1:])


@pytest.mark.parametrize("command", [c for c in QUOTED if c.words[0] == "feddig"], ids=str)
def test_a_command_within_a_sentence_has_options_that_exist(command: Command) -> None:
    words = [word.strip("[]") for word in command.words[1:]]
    last, left = find_command(words)
    known = {name for option in last.params for name in option.opts} | {"--help"}
    assert [word for word in left if word.startswith("--") and word not in known] == []
    if overrides_of(left) and "..." not in left:
        demo_experiment(overrides_of(left))


@pytest.mark.parametrize("command", [c for c in [*BLOCKS, *QUOTED] if c.words[0] == "make"], ids=str)
def test_documented_make_targets_exist(command: Command) -> None:
    make = shutil.which("make")
    if make is None:
        pytest.skip("no make")
    done = subprocess.run([make, "-n", *command.words[1:]], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_recipe_of_the_demo_ends_with_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = (ROOT / "Makefile").read_text("utf-8").split("\ndemo: ")[1].split("\n\n")[0].splitlines()[1:]
    (words,) = [shlex.split(line.strip()) for line in recipe]
    assert words[0] == "$(BIN)/feddig"
    monkeypatch.chdir(tmp_path)
    run_command(Command("Makefile", ("feddig", *words[1:])))
    assert (tmp_path / "results" / "demo" / "report.html").is_file()
    logging.getLogger("feddig").handlers.clear()


@pytest.mark.parametrize("command", [c for c in [*PARSED, *QUOTED] if "pip" in c.words[:3]], ids=str)
def test_pip_accepts_the_documented_options(command: Command) -> None:
    install = pytest.importorskip("pip._internal.commands").create_command("install")
    assert command.words[command.words.index("pip") + 1] == "install"
    options, names = install.parse_args(list(command.words[command.words.index("pip") + 2 :]))
    assert all((ROOT / name).is_file() for name in options.constraints)
    assert names or options.editables
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert all(f"\n{name.split('[')[1].rstrip(']')} = [" in text for name in names if "[" in name)


@pytest.mark.slow
def test_the_wheel_has_all_that_a_run_needs(tmp_path: Path) -> None:
    words = ["-m", "pip", "wheel", str(ROOT), "--no-deps", "--wheel-dir", str(tmp_path)]
    built = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=300)
    if built.returncode and "No matching distribution found for hatchling" in built.stderr:
        pytest.skip("the build needs hatchling from the package index, which cannot be reached")
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"feddig-{feddig.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    source = ROOT / "src" / "feddig"
    files = {
        path.relative_to(source) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"
    }
    installed = tmp_path / "installed" / "feddig"
    assert {path.relative_to(installed) for path in installed.rglob("*") if path.is_file()} == files
    program = "import feddig; print(feddig.__file__); from feddig.cli import main; main()"
    small = [*shlex.split(SMALL), "--set", "training.rounds=1", "--out", str(tmp_path / "run"), "--quiet"]
    done = subprocess.run(
        [sys.executable, "-c", program, "run", *small],
        env={**os.environ, "PYTHONPATH": str(installed.parent)}, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [str(installed / "__init__.py"), str(tmp_path / "run")], done.stderr
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.flower
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own options warn
@pytest.mark.parametrize("command", [c for c in BLOCKS if c.words[0] == "flwr"], ids=str)
def test_flower_accepts_the_documented_options(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="the extra flower is not installed")
    from flwr.cli.app import app

    monkeypatch.chdir(ROOT)
    flower: Any = typer.main.get_command(app)
    run = flower.commands[command.words[1]]
    context = run.make_context("run", list(command.words[2:]))
    assert (Path(context.params["app"]) / "pyproject.toml").is_file()


SCRIPTS = [
    c for c in dict.fromkeys([*BLOCKS, *QUOTED]) if c.words[0] == "python" and c.words[1].endswith(".py")
]


class Parsed(Exception):  # noqa: N818
    """Raised to end a script after it has parsed its options."""


def read_options(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script in this process until it has parsed its options."""
    parse = argparse.ArgumentParser.parse_args

    def parse_and_end(parser: argparse.ArgumentParser, *given: Any) -> None:
        parse(parser, *given)
        raise Parsed

    with monkeypatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_end)
        patch.setattr(sys, "argv", list(words))
        patch.syspath_prepend(str((ROOT / words[0]).parent))
        with pytest.raises(Parsed):
            runpy.run_path(str(ROOT / words[0]), run_name="__main__")


def test_scripts_accept_the_documented_options(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in SCRIPTS:
        try:
            read_options(command.words[1:], monkeypatch)
        except ModuleNotFoundError as missing:
            if missing.name not in ("flwr", "sklearn"):  # packages of extras that may not be installed
                raise
        except SystemExit as refused:
            raise AssertionError(f"{command.page}: {command}") from refused


@pytest.mark.parametrize("wrong", [["--digest", "x"], ["--no-such"]])
def test_scripts_refuse_unknown_options(wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        read_options(["benchmarks/unmixing.py", *wrong], monkeypatch)
