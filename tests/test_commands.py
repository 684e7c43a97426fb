"""Every command in README and the documents: run where it can be run in seconds, else parsed by the real program.

A page's commands are run in order in a folder of their own, with fewer rounds, images and seeds, set by options that
anybody may give. What lasts or needs processes of its own is named in RUN_APART, with the test that runs it; what
cannot be run at all in ONLY_PARSED, with the reason. A new command that is neither is run here, or fails.
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

import feddig.cli
from conftest import draw_tiny_dataset
from documented import ROOT, Command, commands_of, hidden_commands, pages, quoted_commands
from feddig.experiment.toml import demo_experiment, read_experiment
from feddig.report.live_server import LiveServer
from public_sets import write_all
from report_folders import write_folder
from test_audit_page import write_known_audit
from test_examples import load_example
from test_mobilenet import draw_tensorflow_weights

ONLY_PARSED = {
    "make": "makes an environment out of the package index, which a test has not; CI runs `make test`, a test below "
    "the demo's recipe, and test_site.py builds the site as the recipe of docs does",
    ".venv/bin/python -m pip": "installs from the package index; CI runs the same words in the Makefile's recipes",
    "pip install": "installs from the package index; a test below lets pip read the words and looks the extras up",
}
"""Beginnings of commands that are parsed and not run, and what runs them instead."""

RUN_APART = {
    "python benchmarks/": "test_documented_benchmarks.py",
    "feddig federation up": "test_documented_federation.py",
    "feddig federation status": "test_documented_federation.py",
    "feddig federation moderator": "test_documented_federation.py",
    "feddig federation silo": "test_documented_federation.py",
    "feddig digest make .": "test_documented_federation.py",
    "feddig audit .": "test_documented_federation.py",
    "flwr run": "test_flower.py",
}
"""Beginnings of commands that are run by a test of their own, and which."""

SMALL = "--set data.limit=400 --set data.min_samples=24 --set model.classifier=small"
PAPER = (
    "--set data.limit=600 --set data.min_samples=8 --set training.rounds=2 --scenarios sequential --seeds 0"
)
ATTACKS = "--quick --digests-at-most 12 --pool 100 --canaries 20"
FEWER = {
    "feddig compare experiments/paper.toml": f"{PAPER} --set model.classifier=small",
    "feddig paper run": "--seeds 0 --limit-minutes 0.02",
    "feddig run": f"{SMALL} --set training.rounds=2",
    "feddig compare": f"{SMALL} --set training.rounds=2 --seeds 0",
    "feddig digest make": "--set digest.samples_per_digest=4",
    "feddig advise": f"{SMALL} --rounds 1 --joint-steps 2 --samples-per-digest 4 --mixing random "
    "--mechanisms discrete-gaussian --epsilons 8 --quick",
    "feddig audit --digests d.safetensors": f"--public fashion-mnist:0-499 {ATTACKS}",  # as far as the small set goes
    "feddig audit": ATTACKS,
    "feddig encoder make": "--steps 100",
    "feddig watch": "--port 0 --no-open",
    "python -m venv": "--without-pip",
    "python examples/own_data.py": "--rounds 2",
    "python examples/tabular.py": "--rounds 2 --seeds 1",
}
"""What is added to a command that is run, so that it takes seconds."""

TRAINS = (
    "feddig run", "feddig compare", "feddig paper run", "feddig advise", "feddig audit", "feddig encoder make",
    "python examples/",
)  # fmt: skip
"""Beginnings of commands that take long; of the pages that show them, `make test` runs README alone."""


def elsewhere(command: Command) -> str | None:
    """Say why a command is not run with its page's others, if it is not."""
    apart = {**ONLY_PARSED, **RUN_APART}
    return next((why for begin, why in apart.items() if _begins(command, begin)), None)


def _begins(command: Command, begin: str) -> bool:
    # "python benchmarks/" names all scripts there
    return str(command).startswith(begin) if begin.endswith("/") else command.starts_with(begin)


BLOCKS = [command for page in pages() for command in commands_of(page)]
QUOTED = [command for page in pages() for command in quoted_commands(page)]
PARSED = [command for command in BLOCKS if elsewhere(command)]


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
    assert hidden_commands(page) == [], "its commands are not found, and not run: write ```sh"


def test_a_command_in_another_block_is_noticed() -> None:
    assert hidden_commands("page", "```\nmodel.x: wrong\npython a.py\n```\n") == ["python a.py"]


@pytest.mark.parametrize("begin", [*ONLY_PARSED, *RUN_APART])
def test_every_exception_is_still_needed(begin: str) -> None:
    assert any(_begins(command, begin) for command in BLOCKS), "no document has such a command any more"


# --- run


@pytest.fixture(scope="session")
def furniture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the documents take for granted: an experiment `mine.toml`, images, and some results."""
    folder = tmp_path_factory.mktemp("furniture")
    texts = [(ROOT / page).read_text("utf-8") for page in pages()]
    shown = next(text for text in texts if "```toml\n" in text)
    (folder / "mine.toml").write_text(shown.split("```toml\n")[1].split("```")[0], encoding="utf-8")
    draw = load_example("own_data").draw_folder
    draw(folder / "photos")
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


def provide(command: Command) -> None:
    """Write what a command reads and no command of its page has made."""
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
        elif option == "watch":  # a run may begin in it
            path.mkdir()
        elif option == "--keys":
            path.mkdir()
            for silo in ("north", "south"):
                run_command(commands_of(command.page, f"    feddig federation key made/{silo}\n")[0])
                shutil.copy(Path("made", silo, "key.pub"), path / f"{silo}.pub")


def run_here(page: str) -> list[Command]:
    """Return the commands of a page that its own test runs."""
    return [command for command in commands_of(page) if elsewhere(command) is None]


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
def test_a_pages_commands_run(
    page: str, furniture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for what, package, extra in (
        ("feddig federation", "flwr", "flower"),
        ("tensorboard=true", "tensorboard", "logging"),
        ("mlflow=true", "mlflow", "mlflow"),
    ):
        if any(what in str(command) for command in run_here(page)):
            pytest.importorskip(package, reason=f"the extra {extra} is not there")
    if any("mlflow" in str(command) for command in run_here(page)):
        warnings.simplefilter("ignore")  # MLflow's own, of which there are several
        monkeypatch.setattr("os.environ", os.environ.copy())  # MLflow is told its manners by variables
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FEDDIG_DATA", raising=False)
    for thing in furniture.iterdir():
        (tmp_path / thing.name).symlink_to(thing)
    monkeypatch.setattr("feddig.report.live_server.LiveServer.serve_forever", end_at_once)
    # where sets are found by their name alone
    monkeypatch.setattr("feddig.data.download.DEBIAN_FOLDER", tmp_path / "FOLDER")
    for command in run_here(page):
        provide(command)
        run_command(command)
        if "--out" in command.words:
            out = command.words[command.words.index("--out") + 1]
            assert Path(out).exists(), f"{page}: {command}: made no {out}"
    logging.getLogger("feddig").handlers.clear()  # they write to a standard error that is over


def end_at_once(server: LiveServer) -> None:
    """Listen, and end as by Ctrl-C; how it answers is test_watch.py's subject."""
    assert server.server_port > 0
    raise KeyboardInterrupt


def run_command(command: Command) -> None:
    """Run a command, smaller, in this process where it is ours: torch is loaded once."""
    if command.words[0] == "tensorboard":
        look_at_tensorboard(command)
        return
    words = as_feddig(command.words)
    known = command if words is None else Command(command.page, ("feddig", *words))
    added = next((more.split() for begin, more in FEWER.items() if known.starts_with(begin)), [])
    if words is None:
        assert command.words[0] == "python", f"{command.page}: {command}: neither run nor excepted"
        done = subprocess.run(
            [sys.executable, *command.words[1:], *added], capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, f"{command.page}: {command}\n{done.stderr}"
        return
    with pytest.raises(SystemExit) as ended:
        feddig.cli.main(words if "--resume" in words else [*words, *added])
    assert not ended.value.code, f"{command.page}: {command}"


def look_at_tensorboard(command: Command) -> None:
    """Start TensorBoard on a free port, ask it once which runs it has found, and end it."""
    started = subprocess.Popen(
        [sys.executable, "-m", "tensorboard.main", *command.words[1:], "--port", "0"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert started.stderr is not None
    try:
        said = []
        for line in started.stderr:  # it ends when the process does
            said.append(line)
            if found := re.search(r" at (http://localhost:\d+/)", line):
                assert "feddig" in str(await_runs(f"{found[1]}data/runs"))
                return
        raise AssertionError(f"{command}: {''.join(said)}")
    finally:
        started.kill()
        started.communicate()


def await_runs(address: str) -> list[str]:
    """Ask for the runs until there are some: they are read after the server has begun."""
    for _ in range(120):
        with urllib.request.urlopen(address, timeout=30) as answer:
            if found := json.load(answer):
                return list(found)
        time.sleep(0.5)
    raise AssertionError(f"{address}: no runs in a minute")


def as_feddig(words: Sequence[str]) -> list[str] | None:
    """Give the words after `feddig`, however it is called; None if another program is."""
    if words[0] == "feddig":
        return list(words[1:])
    return list(words[3:]) if list(words[1:3]) == ["-m", "feddig"] else None


# --- parse


def leaf(words: Sequence[str]) -> tuple[Any, list[str]]:
    """Follow the words down our tree of commands; give the last one, and the words that are left."""
    command: Any = typer.main.get_command(feddig.cli.app)
    left = list(words)
    while hasattr(command, "commands") and left and not left[0].startswith("-"):
        assert left[0] in command.commands, f"no command {left[0]!r}"
        command = command.commands[left.pop(0)]
    return command, left


def parse(words: Sequence[str]) -> Any:
    """Let the program read a command's words, and run nothing."""
    command, left = leaf(words)
    return command.make_context(words[0], left)


def overrides_of(words: Sequence[str]) -> list[str]:
    """Give what --set sets."""
    return [value for option, value in itertools.pairwise(words) if option == "--set"]


@pytest.mark.parametrize("command", [c for c in PARSED if as_feddig(c.words) is not None], ids=str)
def test_a_command_of_ours_that_is_not_run_is_accepted(
    command: Command, furniture: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(furniture)
    words = as_feddig(command.words)
    assert words is not None
    context = parse(words)
    if overrides_of(words):
        file = context.params.get("file")
        read_experiment(Path(file), overrides_of(words)) if file else demo_experiment(overrides_of(words))


@pytest.mark.parametrize(
    "wrong", ["feddig compair x.toml", "feddig run --rounds 3", "feddig federation init --silos x"]
)
def test_a_command_that_does_not_exist_is_not_accepted(wrong: str) -> None:
    with pytest.raises((AssertionError, feddig.cli.UsageError)):
        parse(wrong.split()[1:])


@pytest.mark.parametrize("command", [c for c in QUOTED if c.words[0] == "feddig"], ids=str)
def test_a_command_within_a_sentence_has_options_that_exist(command: Command) -> None:
    words = [word.strip("[]") for word in command.words[1:]]
    last, left = leaf(words)
    known = {name for option in last.params for name in option.opts} | {"--help"}
    assert [word for word in left if word.startswith("--") and word not in known] == []
    if overrides_of(left) and "..." not in left:
        demo_experiment(overrides_of(left))


@pytest.mark.parametrize("command", [c for c in [*BLOCKS, *QUOTED] if c.words[0] == "make"], ids=str)
def test_what_is_made_can_be_made(command: Command) -> None:
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
def test_pip_takes_what_it_is_told(command: Command) -> None:
    install = pytest.importorskip("pip._internal.commands").create_command("install")
    assert command.words[command.words.index("pip") + 1] == "install"
    options, names = install.parse_args(list(command.words[command.words.index("pip") + 2 :]))
    assert all((ROOT / name).is_file() for name in options.constraints)
    assert names or options.editables
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    assert all(f"\n{name.split('[')[1].rstrip(']')} = [" in text for name in names if "[" in name)


@pytest.mark.flower
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Flower's own options
@pytest.mark.parametrize("command", [c for c in BLOCKS if c.words[0] == "flwr"], ids=str)
def test_flower_takes_what_it_is_told(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("flwr", reason="the extra flower is not there")
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
    """Ends a script that has read its options."""


def read_options(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a script until it has read its options, in this process, where torch is loaded."""
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


def test_scripts_take_what_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for command in SCRIPTS:
        try:
            read_options(command.words[1:], monkeypatch)
        except ModuleNotFoundError as missing:
            if missing.name not in ("flwr", "sklearn"):  # of extras that may not be there
                raise
        except SystemExit as refused:
            raise AssertionError(f"{command.page}: {command}") from refused


@pytest.mark.parametrize("wrong", [["--digest", "x"], ["--no-such"]])
def test_scripts_refuse_what_they_do_not_know(wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit):
        read_options(["benchmarks/unmixing.py", *wrong], monkeypatch)
