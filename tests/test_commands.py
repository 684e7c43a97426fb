"""Every command in README and the documents: run where it can be run in seconds, else parsed by the real program.

A page's commands are run in order in a folder of their own, with fewer rounds, images and seeds, set by options that
anybody may give. What lasts or needs processes of its own is named in RUN_APART, with the test that runs it; what
cannot be run at all in ONLY_PARSED, with the reason. A new command that is neither is run here, or fails.
"""

import importlib.util
import itertools
import json
import logging
import os
import re
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
    "flwr run": "test_flower.py",
}
"""Beginnings of commands that are run by a test of their own, and which."""

SMALL = "--set data.limit=400 --set data.min_samples=24 --set model.classifier=small"
PAPER = (
    "--set data.limit=600 --set data.min_samples=8 --set training.rounds=2 --scenarios sequential --seeds 0"
)
ATTACKS = "--quick --digests-at-most 12 --pool 100 --canaries 20"
FEWER = {
    "feddig compare experiments/paper.toml --set data.name=cifar100": PAPER,  # whose networks are the point
    "feddig compare experiments/paper.toml --set data.name=emnist-byclass --data-dir FOLDER --set data.silos=64": (
        f"{PAPER} --set data.limit=2400 --set data.skew=1.0 --set model.classifier=small"
    ),
    "feddig compare experiments/paper.toml": f"{PAPER} --set model.classifier=small",
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

SLOW = {
    "docs/guide/audit.md", "docs/guide/encoder.md", "docs/guide/own-data-and-model.md", "docs/measurements/attacks.md",
    "docs/measurements/comparison.md", "docs/measurements/encoder.md", "docs/measurements/reproducing.md",
    "docs/reference/absence.md",
}  # fmt: skip
"""Pages whose commands take longest; `make test-all` runs them."""


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
    text = (ROOT / "docs" / "guide" / "first-experiment.md").read_text("utf-8")
    (folder / "mine.toml").write_text(text.split("```toml\n")[1].split("```")[0], encoding="utf-8")
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


def furnish(page: str, folder: Path, furniture: Path) -> None:
    """Put that into the folder in which a page's commands are run, and what one page alone expects."""
    for thing in furniture.iterdir():
        (folder / thing.name).symlink_to(thing)
    if page == "docs/guide/audit.md":
        run_command(
            commands_of("README.md", "    feddig digest make mine.toml --silo 2 --out silo2.safetensors\n")[0]
        )
    if page == "docs/guide/figures.md":
        write_folder(folder / "results" / "mine", [50.0, 60.0], ["11", "10"])
        for name, skew in (("01", 0.1), ("05", 0.5), ("1", 1.0)):
            write_folder(
                folder / "results" / f"skew-{name}", [50.0, 60.0], ["11", "10"],
                data=f"skew = {skew}\n", measures={"absence_mean": 60.0},
            )  # fmt: skip
    if page == "docs/guide/federation.md":
        (folder / "keys").mkdir()
        for silo in ("north", "south"):
            run_command(commands_of("README.md", f"    feddig federation key made/{silo}\n")[0])
            shutil.copy(folder / "made" / silo / "key.pub", folder / "keys" / f"{silo}.pub")
    if page == "docs/guide/report.md":
        for name in ("demo/feddig/sequential/seed-0", "mine", "a", "b"):
            write_folder(folder / "results" / name, [50.0, 60.0], ["11", "10"])
        write_known_audit(folder / "audit")
        (folder / "trial").mkdir()  # a run may begin in it


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page in SLOW else [])
        for page in pages()
        if any(elsewhere(command) is None for command in commands_of(page))
    ],
)
def test_a_pages_commands_run(
    page: str, furniture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page == "docs/guide/federation.md":
        pytest.importorskip("flwr", reason="the extra flower is not there")
    if page == "docs/guide/logging.md":
        for package, extra in (("tensorboard", "logging"), ("mlflow", "mlflow")):
            pytest.importorskip(package, reason=f"the extra {extra} is not there")
        warnings.simplefilter("ignore")  # MLflow's own, of which there are several
        monkeypatch.setattr("os.environ", os.environ.copy())  # MLflow is told its manners by variables
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.fsync", lambda handle: None)
    monkeypatch.delenv("FEDDIG_DATA", raising=False)
    furnish(page, tmp_path, furniture)
    monkeypatch.setattr("feddig.report.live_server.LiveServer.serve_forever", end_at_once)
    # where sets are found by their name alone
    monkeypatch.setattr("feddig.data.download.DEBIAN_FOLDER", tmp_path / "FOLDER")
    for command in commands_of(page):
        if elsewhere(command) is None:
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
    monkeypatch.setattr("os.fsync", lambda handle: None)
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


SCRIPTS = [c for c in [*BLOCKS, *QUOTED] if c.words[0] == "python" and c.words[1].endswith(".py")]

DRIVER = """
import argparse, json, runpy, sys
class Parsed(Exception): pass
parse = argparse.ArgumentParser.parse_args
def stop(self, *given):
    parse(self, *given)
    raise Parsed
argparse.ArgumentParser.parse_args = stop
for words in json.loads(sys.stdin.read()):
    sys.argv, sys.path[0] = words, words[0].rpartition("/")[0]
    try:
        runpy.run_path(words[0], run_name="__main__")
        print("parsed nothing")
    except Parsed:
        print("accepted")
    except SystemExit as refused:
        print("refused", refused)
    except ModuleNotFoundError as missing:
        print("missing", missing.name)
"""
"""Runs scripts up to where they have read their options; in one process, as torch takes seconds to load."""


def dry_parse(commands: Sequence[Sequence[str]]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", DRIVER],
        input=json.dumps([list(words) for words in commands]),
        cwd=ROOT,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_scripts_take_what_they_are_told() -> None:
    said = dry_parse([command.words[1:] for command in SCRIPTS])
    lacking = {"missing flwr"} if importlib.util.find_spec("flwr") is None else set()
    lacking |= {"missing sklearn"} if importlib.util.find_spec("sklearn") is None else set()
    for command, answer in zip(SCRIPTS, said, strict=True):
        assert answer == "accepted" or answer in lacking, f"{command.page}: {command}: {answer}"


def test_scripts_refuse_what_they_do_not_know() -> None:
    assert dry_parse(
        [["benchmarks/unmixing.py", "--digest", "x"], ["benchmarks/unmixing.py", "--no-such"]]
    ) == [
        "refused 2",
        "refused 2",
    ]
