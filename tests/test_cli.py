"""The command line: what it prints where, what it writes, and how it says that something is wrong."""

import itertools
import json
import logging
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.main import get_command

from conftest import draw_tiny_dataset, make_tiny_experiment
from documented import ROOT
from feddig import FedDigError, grid, read_digest, run, run_grid
from feddig._version import __version__
from feddig.advise.try_setting import ShortRun, shorten_experiment
from feddig.cli import app, main
from feddig.commands import completion
from feddig.commands.options import whole_numbers
from feddig.core.absence import SCENARIOS
from feddig.core.recipe import names as algorithms
from feddig.data.load import NAMES
from feddig.experiment.setup import choose_device
from feddig.experiment.toml import keys, read_experiment, write_experiment
from feddig.files import path_fingerprint
from feddig.privacy.ledger import Ledger
from feddig.privacy.mechanisms import MECHANISMS
from feddig.report.paper.figures import FIGURES
from feddig.runs.release import ledger_of, remember_ledger
from folders import contents, rows_without_times, snapshot, start_feddig
from test_natural_silos import make_hospitals

COMMANDS = [
    [],
    ["init"],
    ["check"],
    ["run"],
    ["compare"],
    ["predict"],
    ["evaluate"],
    ["privacy"],
    ["figures"],
    ["digest"],
    ["digest", "make"],
    ["digest", "show"],
    ["ledger"],
    ["ledger", "show"],
    ["ledger", "verify"],
    ["ledger", "resend"],
    ["encoder"],
    ["encoder", "make"],
    ["encoder", "import"],
    ["report"],
    ["watch"],
]


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    code: int
    out: str
    err: str


Give = Callable[..., Said]


@pytest.fixture
def give(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Give]:
    """Give commands in this process, which starts faster than a new one; tmp_path is the working folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("FEDDIG_DATA", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def command(*words: object) -> Said:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        return Said(int(ended.value.code or 0), said.out, said.err)

    yield command
    # the log writes to the standard error of the test that is over
    logging.getLogger("feddig").handlers.clear()


@pytest.fixture(scope="session")
def tiny_npz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny data set as a file."""
    path = tmp_path_factory.mktemp("data") / "tiny.npz"
    dataset = draw_tiny_dataset(120, 40)
    np.savez(
        path,
        x_train=dataset.train.pixels,
        y_train=dataset.train.labels,
        x_test=dataset.test.pixels,
        y_test=dataset.test.labels,
    )
    return path


@pytest.fixture
def tiny(tiny_npz: Path, tmp_path: Path) -> Path:
    """The tiny experiment as a file in the working folder: four rounds, a silo fewer in each after the first."""
    experiment = make_tiny_experiment(
        data={"name": "npz", "path": str(tiny_npz)}, training={"rounds": 4, "batch": 32}
    )
    (tmp_path / "tiny.toml").write_text(write_experiment(experiment), encoding="utf-8")
    return tmp_path / "tiny.toml"


# --- before anything runs


def test_the_version_is_printed_whichever_way_the_command_is_given() -> None:
    for command in ([sys.executable, "-m", "feddig"], [Path(sys.executable).parent / "feddig"]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (0, f"feddig {__version__}\n"), done.stderr


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_explains_itself(command: list[str], flag: str, give: Give) -> None:
    said = give(*command, flag)
    assert (said.code, said.err) == (0, "")
    assert " ".join(["Usage: feddig", *command]) in said.out


def test_help_names_every_option(give: Give) -> None:
    options = {
        "init": ["--data", "--data-dir"],
        "check": ["--set", "--device", "--data-dir", "--json", "--log-level"],
        "run": [
            "--set",
            "--out",
            "--resume",
            "--rounds",
            "--device",
            "--data-dir",
            "--quiet",
            "--json",
            "--log-level",
        ],
        "compare": ["--set", "--algorithms", "--scenarios", "--seeds", "--out", "--json"],
        "predict": ["--out", "--own-code", "--device", "--quiet", "--json"],
        "evaluate": ["--out", "--own-code", "--device", "--data-dir", "--quiet", "--json"],
        "privacy": ["--set", "--elements", "--channels", "--classes", "--samples", "--json"],
        "digest make": [
            "--set",
            "--silo",
            "--all-data",
            "--classes",
            "--out",
            "--ledger",
            "--recipient",
            "--json",
        ],
        "digest show": ["--json"],
        "ledger show": ["--json"],
        "encoder make": [
            "--out",
            "--channels",
            "--data",
            "--data-path",
            "--data-dir",
            "--seed",
            "--steps",
            "--json",
        ],
        "encoder import": ["--out", "--enlarge", "--json"],
    }
    for command, names in options.items():
        text = give(*command.split(), "--help").out
        assert [name for name in names if name not in text] == []


def test_a_command_alone_shows_its_help(give: Give) -> None:
    said = give()
    assert said.code in (0, 2)
    assert "compare" in said.out + said.err


def test_help_does_not_wait_for_torch() -> None:
    program = (
        "import sys\nfrom feddig.cli import main\n"
        "try: main(['run', '--help'])\nexcept SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[-1] == "False", done.stderr


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_completion_can_be_shown() -> None:
    # bash must stay the parent, because the shell is found by looking at the processes above
    script = f"{sys.executable} -m feddig --show-completion; exit $?"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "_FEDDIG_COMPLETE=complete_bash" in done.stdout


def offered(give: Give, monkeypatch: pytest.MonkeyPatch, *words: str) -> list[str]:
    """Return what is offered in bash for the last of the words, as bash splits them."""
    monkeypatch.setenv("_FEDDIG_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "\n".join(["feddig", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    said = give()
    assert (said.code, said.err) == (0, "")
    return said.out.split()


ABSENCE = [key for key in keys() if key.startswith("absence.")]
TABLES = sorted(path.stem for path in (ROOT / "experiments" / "paper").glob("*.toml"))
WITH_JOINT = [
    name
    for name in algorithms()
    if name.startswith(("feddig", "digests")) and "plus" not in name and "no-joint" not in name
]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["compare", "--algorithms", ""], algorithms()),
        (["compare", "--algorithms", "fedavg,fedp"], ["fedavg,fedprox", "fedavg,fedprox-large"]),
        (["compare", "--algorithms", "centralised,centr"], []),
        (["compare", "--scenarios", ""], list(SCENARIOS)),
        (["compare", "--scenarios", "none,gr"], ["none,groups"]),
        (["run", "--device", ""], list(completion.DEVICES)),
        (["run", "--device", "cuda", ":"], ["0"]),
        (["run", "--set", "absence."], [f"{key}=" for key in ABSENCE]),
        (["run", "--set", "training.rou"], ["training.rounds=", "training.rounds=40"]),
        (["run", "--set", "absence.sc"], [f"absence.scenario={name}" for name in SCENARIOS]),
        (["run", "--set", "absence.scenario", "="], list(SCENARIOS)),
        (["compare", "--set", "absence.scenario", "=", "se"], ["sequential"]),
        (["federation", "init", "x", "--set", "=", "absence.scenario", "=", "se"], ["sequential"]),
        (["run", "--set", "privacy.mechanism", "="], list(MECHANISMS)),
        (["run", "--set", "algorithm.name", "=", "fr"], [name for name in algorithms() if name[:2] == "fr"]),
        (["run", "--set", "algorithm.prior_correction", "="], ["true", "false"]),
        (["run", "--set", "data.name", "="], list(NAMES)),
        (["run", "--set", "no.such", "="], []),
        (
            ["run", "--set", "seed", "=", "7", "--set", "algorithm.fedprox.m"],
            [f"algorithm.fedprox.mu={part}" for part in ("", "0.01")],
        ),
        (["figures", ""], ["list", *FIGURES]),
        (["run", "--log-level", ""], ["debug", "info", "warning", "error"]),
        (["run", "--log-level", "=", "w"], ["warning"]),
        (["paper", "table", ""], TABLES),
        (["paper", "run", "table"], ["table-1", "table-2"]),
        (["advise", "--mechanisms", "none,discrete-g"], ["none,discrete-gaussian"]),
        (["advise", "--mixing", "w"], ["within-class"]),
        (["advise", "--algorithm", ""], WITH_JOINT),
    ],
    ids=lambda part: " ".join(part) if isinstance(part, list) and len(part) < 8 else "",
)
def test_completion_offers_values(
    words: list[str], values: list[str], give: Give, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert sorted(offered(give, monkeypatch, *words)) == sorted(values)


def test_what_is_offered_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    for name in completion.DEVICES:
        assert choose_device(name).type in ("cpu", "cuda")
    for name in completion.algorithms_with_joint_update():
        shorten_experiment(read_experiment(), ShortRun(name))


def test_completion_does_not_wait_for_torch() -> None:
    words = [["run", "--set", "privacy."], ["run", "--set", "data.name", "=", ""], ["figures", "s"],
             ["compare", "--algorithms", "f"], ["advise", "--mechanisms", "n"], ["advise", "--algorithm", "f"],
             ["paper", "run", "s"], ["run", "--device", "c"]]  # fmt: skip
    program = (
        "import os, sys\nfrom feddig.cli import main\nos.environ['_FEDDIG_COMPLETE'] = 'complete_bash'\n"
        f"for words in {words}:\n"
        "    os.environ['COMP_WORDS'] = '\\n'.join(['feddig', *words])\n"
        "    os.environ['COMP_CWORD'] = str(len(words))\n"
        "    try: main([])\n    except SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.count("False") == len(words), done.stderr
    assert "True" not in done.stdout
    assert len(done.stdout.splitlines()) > 30, "and something was offered"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_itself_completes() -> None:
    """The shell's own function runs the program; what it offers replaces only the end of the word."""
    script = "\n".join(
        [
            f'eval "$({sys.executable} -m feddig --show-completion)"',
            "COMP_WORDS=(feddig run --set absence.scenario = seq); COMP_CWORD=5",
            f"_feddig_completion {Path(sys.executable).parent / 'feddig'}",
            'echo "${COMPREPLY[@]}"',
            "COMP_WORDS=(feddig compare --algorithms fedavg,cen); COMP_CWORD=3",
            f"_feddig_completion {Path(sys.executable).parent / 'feddig'}",
            'echo "${COMPREPLY[@]}"',
        ]
    )
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["sequential", "fedavg,centralised"], done.stderr


# --- mistakes are one line


def complaint(said: Said) -> str:
    """Check that this is one line, exit code 2 and nothing else; give the line."""
    assert said.code == 2
    assert said.out == ""
    lines = said.err.splitlines()
    assert len(lines) == 1, said.err
    assert lines[0].startswith("feddig: error: ")
    return lines[0].removeprefix("feddig: error: ")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--set", "training.learning=1"], "training.learning: unknown key; did you mean"),
        (["--set", "trainin.lr=1"], "[trainin]: unknown section; did you mean 'training'?"),
        (
            ["--set", "data.image_size=16"],
            "data.image_size: fashion-mini images keep their size; leave it out",
        ),
        (
            ["--algorithm", "fedavg"],
            "--algorithm: no such option; a key of the experiment is set with --set algorithm.name=",
        ),
        (
            ["--learning-rate=3"],
            "--learning-rate: no such option; a key of the experiment is set with --set training.lr=",
        ),
        (["--seeds", "0-4"], "--seeds: no such option; `feddig compare` has it, for several runs"),
        (
            ["--data", "photos"],
            "--data: no such option; `feddig init FILE.toml --data PATH` writes an experiment",
        ),
        (["--set", "learning_rate=1"], "learning_rate: unknown key; did you mean 'training.lr'?"),
        (["--set", "model.lr=1"], "model.lr: unknown key; did you mean 'training.lr'?"),
        (["--set", "rounds=1"], "rounds: unknown key; did you mean 'training.rounds'?"),
        (
            ["--set", "a=b"],
            "a: unknown key; choose from absence.KEY, algorithm.KEY, data.KEY, digest.KEY, logging.KEY,",
        ),
        (
            ["--round", "3"],
            "--round: no such option; a key of the experiment is set with --set training.rounds=",
        ),
        (["--lr=3"], "--lr: no such option; a key of the experiment is set with --set training.lr=VALUE"),
        (["--set", "training.lr=fast"], "training.lr: 'fast' is not a number"),
        (["--set", "training.lr=-1"], "training.lr: -1 is out of range; it must be above 0"),
        (["--set", "training.lr=nan"], "training.lr: nan is not a finite number"),
        (["--set", "training.rounds=1.5"], "training.rounds: 1.5 is not a whole number"),
        (["--set", "training=3"], "training: 3 stands where the section [training] should"),
        (["--set", "training.lr"], "--set training.lr: write it as section.key=value"),
        (["--set", "=3"], "--set =3: write it as section.key=value"),
        (
            ["--set", "algorithm.name=fedvag"],
            "algorithm.name: unknown algorithm 'fedvag'; did you mean 'fedavg'?",
        ),
        (["--set", "algorithm.fedprox.nu=1"], "algorithm.fedprox.nu: unknown key; did you mean"),
        (
            ["--set", "absence.scenario=sequentiel"],
            "absence.scenario: 'sequentiel' is not known; did you mean",
        ),
        (["--set", "absence.scenario=file"], 'absence.file: the scenario "file" needs a CSV'),
        (["--set", "data.name=mnist"], "data.name: unknown data set 'mnist'"),
        (["--set", "data.name=npz"], "data.path: the data set 'npz' needs a path"),
        (["--set", "data.name=npz", "--set", "data.path=no.npz"], "data.path: "),
        (["--set", "data.path=here"], "data.path: fashion-mini comes with FedDig and takes no path"),
        (["--set", "data.limit=99999"], "data.limit: 99999 images wanted"),
        (["--set", "data.name=tensors"], 'data.name: "tensors" stands for arrays given in Python'),
        (["--set", "model.classifier=huge"], "model.classifier: 'huge' is not known"),
        (["--set", "digest.encoder=mine"], "digest.encoder: 'mine' names no encoder"),
        (["--set", "digest.encoder=mine.safetensors"], "digest.encoder: no file at "),
        (["--device", "tpu"], "--device: 'tpu' is not known; choose auto, cpu, cuda or cuda:N"),
        (["--device", "cpu:1"], "--device: 'cpu:1' is not known"),
        (["--device", "cuda:99"], "--device: 'cuda:99' asked for, but"),
        (["missing.toml"], "missing.toml: no such experiment file; `feddig init missing.toml` writes one"),
        (["two\nlines.toml"], "two lines.toml: no such experiment file"),
        (
            ["--resume", "nowhere"],
            "nowhere: holds no experiment.toml, so there is nothing to resume here; give a run's folder",
        ),
    ],
)
def test_a_mistake_in_a_run_is_one_line_and_nothing_is_written(
    words: list[str], line: str, give: Give, tmp_path: Path
) -> None:
    said = complaint(give("run", *words))
    assert said.startswith(line)
    if "--resume" not in words:
        assert complaint(give("check", *words)) == said, "check stops where run stops, with the same line"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"[training\nlr = 1", "bad.toml: not valid TOML: "),
        (b"[training]\nlr = 1\nlr = 2\n", "bad.toml: not valid TOML: "),
        (b'[data]\nname = "\xe9"\n', "bad.toml: cannot be read"),
        (b"format_version = 7\n", "bad.toml: format_version 7, but this FedDig reads 1"),
        (b"[trainig]\nlr = 1\n", "bad.toml: [trainig]: unknown section; did you mean 'training'?"),
        (b"[dta]\nsilos = 3\n", "bad.toml: [dta]: unknown section; did you mean 'data'?"),
        (b"\x89PNG", "bad.toml: cannot be read as a text in UTF-8 (byte 0); give a TOML file"),
        (b"training = 3\n", "bad.toml: training: 3 stands where the section [training] should"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(content: bytes, line: str, give: Give, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_bytes(content)
    assert complaint(give("run", "bad.toml")).startswith(line)


def test_a_folder_in_the_files_place_is_one_line(give: Give) -> None:
    assert complaint(give("run", ".")) == (
        ".: is a folder; give an experiment's TOML file (for images in it, `feddig init FILE.toml --data .` writes one)"
    )


def test_a_missing_file_names_the_one_that_is_meant(give: Give, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").touch()
    meant = "no such experiment file; did you mean mine.toml?"
    assert complaint(give("run", "mine.tml")) == f"mine.tml: {meant}"
    assert complaint(give("run", "min.toml")) == f"min.toml: {meant} `feddig init min.toml` writes one"
    assert (
        complaint(give("run", "z.toml")) == "z.toml: no such experiment file; `feddig init z.toml` writes one"
    )


def test_a_results_folder_in_the_files_place_names_resume(give: Give, tmp_path: Path) -> None:
    (tmp_path / "r1").mkdir()
    (tmp_path / "r1" / "experiment.toml").write_text("seed = 0\n", encoding="utf-8")
    said = complaint(give("run", "r1"))
    assert said.startswith("r1: is a results folder; continue it with `feddig run --resume r1`, or give r1")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "base.toml", "--out", "base.toml"], "--out: base.toml is a file; give a new folder"),
        (["compare", "base.toml", "--out", "base.toml"], "--out: base.toml is a file; give a new folder"),
        (
            [
                "advise",
                "base.toml",
                "--max-link-rate",
                "0.1",
                "--max-record-epsilon",
                "8",
                "--out",
                "base.toml",
            ],
            "--out: base.toml is a file; give a new folder",
        ),
        (["audit", "--out", "base.toml"], "--out: base.toml is a file; give a new folder"),
        (["watch", "base.toml"], "base.toml: is a file; give the results folder of a run"),
        (
            ["report", "base.toml"],
            "base.toml: is a file; give a folder that feddig run or feddig compare wrote",
        ),
        (["report", ".", "--out", "base.toml"], "--out: base.toml: name the page NAME.html; the folders of"),
        (["figures", "element-noise", "--out", "base.toml"], "--out: base.toml is a file; give a new folder"),
        (["privacy", "."], ".: is a folder; give an experiment's TOML file"),
        (
            ["predict", "base.toml", "."],
            "base.toml: not a readable safetensors file (Error while deserializing",
        ),
        (
            ["paper", "run", "table-1"],
            "experiments/paper: no such folder; run this in a copy of the repository",
        ),
        (
            ["audit", "--out", "a", "--digests", "base.toml", "--members", "m", "--holdout", "h"],
            "base.toml: is no digest file, or its header is damaged; give the .safetensors file that `feddig",
        ),
    ],
)
def test_an_experiments_file_in_another_place_is_one_line(
    words: list[str], line: str, give: Give, tmp_path: Path
) -> None:
    (tmp_path / "base.toml").write_text("seed = 0\n", encoding="utf-8")
    assert complaint(give(*words)).startswith(line)
    assert [path.name for path in tmp_path.iterdir()] == ["base.toml"]
    assert (tmp_path / "base.toml").read_text(encoding="utf-8") == "seed = 0\n"


def test_a_run_from_python_takes_a_file_and_refuses_one_as_its_folder(tiny: Path, tmp_path: Path) -> None:
    assert run(str(tiny), tmp_path / "run")["algorithm"] == "feddig"
    assert run_grid(grid(tiny, ["fedavg"], ["none"], [0], tmp_path / "grid"))[0].summary is not None
    with pytest.raises(FedDigError, match=r"is a file; choose another --out"):
        run(tiny, tiny)


def test_no_help_loses_words_in_brackets() -> None:
    """Rich takes [word] for markup and drops it."""

    def texts(command: Any) -> Iterator[str]:
        yield from (str(each.help) for each in command.params if getattr(each, "help", None))
        for each in getattr(command, "commands", {}).values():
            yield from texts(each)

    found = list(texts(get_command(app)))
    assert len(found) > 100
    assert [text for text in found if re.search(r"\[[a-z]", text)] == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ["--algorithms", "fedavg,fedvag"],
            "algorithm.name: unknown algorithm 'fedvag'; did you mean 'fedavg'?",
        ),
        (["--algorithms", " , "], "--algorithms: give at least one name"),
        (["--scenarios", "nowhere"], "--scenarios: 'nowhere' is not known; "),
        (["--seeds", "0,one"], "--seeds: 'one' is not a whole number"),
        (["--seeds", "0,-1"], "--seeds: '-1' is not a whole number"),
        (["--seeds", ""], "--seeds: give at least one name"),
        (["--seeds", "4-0"], "--seeds: '4-0' is no range of at most 10,000 numbers; write the smaller first"),
        (["--seeds", "0-99999999"], "--seeds: '0-99999999' is no range of at most 10,000 numbers"),
        (["--seeds", "0-"], "--seeds: '0-' is not a whole number below 10^18; several are written as 0-4,7"),
        (
            ["--seeds", "0:4"],
            "--seeds: '0:4' is not a whole number below 10^18; several are written as 0-4,7",
        ),
        (
            ["--seed", "3"],
            "No such option: --seed (Possible options: --seeds, --set). See feddig compare --help.",
        ),
        (
            ["--algorithm", "x"],
            "No such option: --algorithm. Did you mean --algorithms? See feddig compare --help.",
        ),
        (["--scenarios", "file"], 'absence.file: the scenario "file" needs a CSV'),
    ],
)
def test_a_mistake_in_a_comparison_is_one_line(
    words: list[str], line: str, give: Give, tmp_path: Path
) -> None:
    assert complaint(give("compare", *words)).startswith(line)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["digest", "show", "no.safetensors"], "no.safetensors: cannot be read (No such file or directory)"),
        (["digest", "show", "mine.txt"], "mine.txt: "),
        (["digest", "make", "--silo", "4"], "--silo: 4 asked for, but data.silos is 4; they count from 0"),
        (["digest", "make", "--classes", "3"], "--classes: 3 given, but the data has labels up to 9"),
        (
            ["digest", "make", "--out", "mine.txt"],
            "mine.txt: exists already; a second digest of the same data",
        ),
        (["encoder", "make", "--out", "mine.txt"], "mine.txt: exists already; choose another --out"),
    ],
)
def test_a_mistake_with_digests_or_encoders_is_one_line(
    words: list[str], line: str, give: Give, tmp_path: Path
) -> None:
    (tmp_path / "mine.txt").write_text("years of work", encoding="utf-8")
    assert complaint(give(*words)).startswith(line)
    assert (tmp_path / "mine.txt").read_text(encoding="utf-8") == "years of work"
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    "words",
    [["run", "a=1", "--sett"], ["run", "--log-level", "loud"], ["digest", "make", "--silo", "-1"], ["rum"]],
)
def test_a_mistake_in_the_options_is_one_line_too(words: list[str], give: Give) -> None:
    assert words[-1] in complaint(give(*words))


def test_a_mistake_in_the_options_is_no_traceback(give: Give) -> None:
    said = give("run", "--sett", "a=1")
    assert (said.code, said.out) == (2, "")
    assert "Traceback" not in said.err
    assert "--sett" in said.err


@pytest.mark.parametrize("mechanism", ["discrete-laplace", "discrete-gaussian"])
def test_digests_with_integer_noise_are_made_and_tell_their_promise(
    mechanism: str, give: Give, tiny: Path
) -> None:
    delta = ["delta=1e-6"] if mechanism == "discrete-gaussian" else []
    keys = [f"mechanism={mechanism}", "epsilon=8", "clip_bound=60", *delta]
    sets = [word for key in keys for word in ("--set", f"privacy.{key}")]
    assert give("run", tiny, "--quiet", "--out", "run", *sets).code == 0
    said = json.loads(Path("run/summary.json").read_text(encoding="utf-8"))["privacy"]
    assert said.startswith("record epsilon is 8")
    facts = made(
        give, tiny, "--all-data", "--out", "mine.safetensors", *sets, "--set", "privacy.random=system"
    )
    assert str(facts["promise"]).startswith(
        f"record epsilon is 8 and delta {'1e-06' if delta else 0} under same-label adjacency (labels are public)"
    )
    assert facts["random"] == "the system's entropy"


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (
            ["mechanism=discrete-laplace"],
            "privacy.clip_bound: discrete-laplace needs a public bound on a sample's features; set 350.0 with",
        ),
        (["mechanism=discrete-laplace", "clip_bound=0"], "privacy.clip_bound: 0 is out of range"),
        (["mechanism=discrete-laplace", "clip_bound=60", "delta=1e-6"], "privacy.delta: discrete-laplace"),
        (["mechanism=discrete-gaussian", "clip_bound=60"], "privacy.delta: discrete-gaussian needs one above 0"),
        (["mechanism=discrete-laplace", "clip_bound=60", "epsilon=0"], "privacy.epsilon: 0 is out of range"),
        (["mechanism=discrete-laplace", "clip_bound=60", "epsilon=1e-12"], "privacy.epsilon: 1e-12 with discrete"),
    ],
)  # fmt: skip
def test_settings_that_integer_noise_cannot_be_made_with_are_one_line(
    keys: list[str], line: str, give: Give, tiny: Path
) -> None:
    sets = [word for key in keys for word in ("--set", f"privacy.{key}")]
    for command in (["run", tiny, "--quiet"], ["digest", "make", tiny, "--no-privacy"]):
        assert complaint(give(*command, *sets)).startswith(line)


def test_what_goes_wrong_in_a_run_is_one_line_too(give: Give, tiny: Path) -> None:
    diverging = ["--set", "training.weight_decay=1e12", "--set", "training.lr=100"]
    assert "training diverged" in complaint(give("run", tiny, *diverging, "--quiet"))


def test_what_goes_wrong_in_a_run_is_no_traceback(give: Give, tiny: Path) -> None:
    said = give("run", tiny, "--set", "training.weight_decay=1e12", "--set", "training.lr=100", "--quiet")
    assert said.code == 2
    assert "training diverged" in said.err.splitlines()[-1]
    assert said.err.splitlines()[-1].startswith("feddig: error: ")
    assert "Traceback" not in said.err


# --- a first experiment


@pytest.fixture
def quick_check(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time fewer steps, and train the digest expert for fewer."""
    monkeypatch.setattr("feddig.runs.forecast.ENOUGH", 0.0)
    monkeypatch.setattr("feddig.core.plus.LEAST_STEPS", 1)


@pytest.mark.usefixtures("quick_check")
@pytest.mark.parametrize(
    ("data", "found"),
    [
        (None, {"name": "fashion-mini", "silos": 4}),
        (
            "pictures",
            {"name": "folder", "image_size": 32, "channels": 1, "silos": 2, "partition": "dirichlet"},
        ),
        ("hospitals", {"name": "folder", "image_size": 32, "silos": 0, "partition": "folders"}),
        ("tiny.npz", {"name": "npz", "silos": 2}),
        ("idx", {"name": "idx", "silos": 2}),
    ],
)
def test_a_starter_file_is_checked_and_run_as_it_is(
    data: str | None, found: dict[str, object], give: Give, shelf: Path
) -> None:
    make_hospitals(shelf / "hospitals")
    options = ["--data", data, "--data-dir", shelf] if data else []
    said = give("init", "mine.toml", *options)
    assert said.code == 0, said.err
    assert said.out.splitlines()[-1] == "mine.toml: written; look at it, then: feddig check mine.toml"
    experiment, text = read_experiment("mine.toml"), Path("mine.toml").read_text(encoding="utf-8")
    assert found.items() <= vars(experiment.data).items()
    assert experiment.data.path == data
    assert experiment.algorithm.name == "feddig-plus"
    assert experiment.promises_privacy
    assert (experiment.privacy.mechanism, experiment.privacy.epsilon) == ("discrete-gaussian", 8.0)
    assert (experiment.digest.encoder, experiment.privacy.clip_bound) == ("even", 350.0)
    facts = said.out.splitlines()[0]
    images = int(facts.split(": ")[1].split(" ")[0].replace(",", ""))
    assert text.startswith(f"# {facts}\n")
    assert experiment.privacy.delta <= 0.1 / images
    assert "nobody can repeat the noise, so two runs differ" in text
    words = ["mine.toml", *options[2:]]
    told = json.loads(give("check", *words, "--json").out)
    assert told["warnings"] == []
    assert told["promise"].startswith("A record is promised epsilon 8 and delta")
    assert give("run", *words, "--set", "training.rounds=2", "--out", "run", "--quiet").code == 0


def test_a_starter_file_leaves_no_key_of_a_run_to_its_default(give: Give) -> None:
    """Keys of other kinds of data or algorithms, and those that follow from others, are left out."""
    give("init", "mine.toml")
    text = Path("mine.toml").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 70
    table = tomllib.loads(text)
    assert list(table["privacy"]) == [
        "mechanism", "epsilon", "delta", "clip_norm", "clip_bound", "adjacency", "unit", "random"
    ]  # fmt: skip
    assert list(table["training"]) == ["rounds", "batch", "lr", "momentum", "local_epochs", "threads"]
    assert list(table["data"]) == ["name", "partition", "silos", "skew", "min_samples", "split"]
    uncommented = text.replace("# budget_epsilon", "budget_epsilon").replace("# budget_delta", "budget_delta")
    Path("mine.toml").write_text(uncommented, encoding="utf-8")
    assert read_experiment("mine.toml").privacy.budget_epsilon == 16.0
    for line in text.splitlines():
        assert "#" in line or not line or line.startswith(("[", "clip_norm", "momentum")), line


def test_groups_in_the_data_are_promised_privacy_as_a_whole(give: Give, tiny_npz: Path) -> None:
    with np.load(tiny_npz) as opened:
        groups = {"g_train": np.arange(120) // 3, "g_test": 1000 + np.arange(40)}
        np.savez("groups.npz", **opened, **groups)
    said = give("init", "mine.toml", "--data", "groups.npz")
    assert "40 groups of images, such as patients" in said.out
    privacy = read_experiment("mine.toml").privacy
    assert (privacy.unit, privacy.group_limit) == ("group", 3)
    assert give("check", "mine.toml").code == 0


def test_awkward_names_stay_within_comments_and_quotes(give: Give, shelf: Path) -> None:
    os.rename(shelf / "pictures", shelf / 'my "pictures"  # 1')
    os.rename(
        shelf / 'my "pictures"  # 1' / "train" / "class-0", shelf / 'my "pictures"  # 1' / "train" / "a\nb"
    )
    os.rename(
        shelf / 'my "pictures"  # 1' / "test" / "class-0", shelf / 'my "pictures"  # 1' / "test" / "a\nb"
    )
    assert give("init", "mine.toml", "--data", 'shelf/my "pictures"  # 1').code == 0
    assert read_experiment("mine.toml").data.path == 'shelf/my "pictures"  # 1'
    assert "# 4 classes: a b, class-1, class-2, class-3" in Path("mine.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["kept.toml"], "kept.toml: exists already, and is not replaced; give another name"),
        (["pictures"], "pictures: name the new file as NAME.toml; your images are given by --data"),
        (["m.toml", "--data", "fashon-mnist"], "--data: 'fashon-mnist' is no file or folder here, and no public set"),
        (["m.toml", "--data", ""], "--data: '' is no file or folder here"),
        (["m.toml", "--data", "kept.toml"], "--data: kept.toml: is no .npz file; give one, or a folder with a folder"),
        (["m.toml", "--data", "arrays"], "--data: arrays: holds no folders of images; give arrays/tiny.npz itself"),
        (["m.toml", "--data", "arrays/sub"], "arrays/sub: holds no folders; put the images into one folder per class"),
        (["m.toml", "--data", "four"], "--data: four: 4 images to train are too few; give at least 16"),
    ],
)  # fmt: skip
def test_what_no_starter_can_be_written_for_is_one_line(
    words: list[str], line: str, give: Give, tiny_npz: Path, tmp_path: Path
) -> None:
    (tmp_path / "kept.toml").write_text("years of work", encoding="utf-8")
    (tmp_path / "arrays").mkdir()
    if words[-1].endswith("sub"):
        (tmp_path / "arrays" / "sub").mkdir()
    elif words[-1] == "four":
        for number in range(6):
            folder = tmp_path / "four" / ("train" if number < 4 else "test") / str(number % 2)
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("L", (32, 32)).save(folder / f"{number}.png")
    else:
        shutil.copy(tiny_npz, tmp_path / "arrays" / "tiny.npz")
    said = complaint(give("init", *words)).replace(f"{tmp_path}/", "")
    assert said.startswith(line)
    assert (tmp_path / "kept.toml").read_text(encoding="utf-8") == "years of work"
    assert not (tmp_path / "m.toml").exists()


@pytest.mark.usefixtures("quick_check")
@pytest.mark.parametrize(
    "algorithm", ["fedavg", "frozen", "feddig", "feddig-plus", "centralised", "digests-only"]
)
def test_a_check_tells_what_a_run_then_sends_and_writes_nothing(
    algorithm: str, give: Give, tiny: Path, tmp_path: Path
) -> None:
    before = snapshot(tmp_path)
    words = [tiny, "--set", f"algorithm.name={algorithm}", "--json"]
    told = json.loads(give("check", *words).out)
    assert snapshot(tmp_path) == before
    summary = json.loads(give("run", *words, "--out", "run", "--quiet").out)
    assert told["bytes"]["digest"] == summary["bytes"]["digest"]
    assert [told["bytes"]["update"]] * 3 == summary["bytes"]["update"]
    assert told["promise"] == summary["promise"]
    assert told["events"] == ["round 2: silo 0 leaves", "round 3: silo 1 leaves", "round 4: silo 2 leaves"]
    rounds = {"centralised": 4, "frozen": 1}.get(algorithm, 4)
    there = sum(len(row["present"]) for row in rows_without_times(Path("run"))[:rounds])
    sent = sum(told["bytes"]["digest"]) + there * told["bytes"]["update"]
    assert told["bytes"]["all"] == sent
    partition = (tmp_path / "run" / "partition.csv").read_text(encoding="utf-8")
    assert [silo["train"] for silo in told["silos"]] == [
        partition.count(f",{silo},train") for silo in range(3)
    ]


@pytest.mark.usefixtures("quick_check")
def test_a_check_is_told_in_words(give: Give, tiny: Path) -> None:
    said = give("check", tiny, "--set", "training.rounds=40", "--set", "algorithm.name=feddig-plus")
    assert (said.code, said.err) == (0, "")
    lines = {line[:17].strip(): line[17:] for line in said.out.splitlines() if line[:17].strip()}
    assert "tiny.npz: 120 images to train and 40 to test, 16 x 16, grey" in " ".join(said.out.split())
    assert lines["classes"] == "4: 0, 1, 2, 3"
    assert lines["silos"] == "3, by data.partition = 'dirichlet'"
    assert "silo 0" in said.out
    assert lines["absence"].startswith("sequential, training.rounds = 40: round 14: silo 0 leaves; ")
    assert lines["algorithm"].startswith("feddig-plus: Silos train, and fedavg aggregates their updates")
    assert re.fullmatch(r"a digest of \d+ kB to \d+ kB by each silo", lines["sent once"])
    assert re.match(
        r"about [\d.e+-]+ (s|min): .* before the first round, then .* a round; an estimate", lines["time"]
    )
    assert lines["promise"].startswith(
        "A record is promised nothing: paper-laplace bounds no record's epsilon."
    )
    assert all(len(line) <= 110 for line in said.out.splitlines())


WARNINGS = {
    "privacy: the data is your own, and a record of it is promised nothing; set privacy.mechanism = ": [],
    'privacy: the data is your own, and a record of it is promised nothing; set privacy.random = "system"': [
        "privacy.mechanism=discrete-gaussian", "privacy.delta=1e-6", "privacy.clip_bound=350",
    ],
    "privacy.delta: 0.1 is not below 1 / 120 images": [
        "privacy.mechanism=discrete-gaussian", "privacy.delta=0.1", "privacy.clip_bound=350", "privacy.random=system",
    ],
    "privacy.epsilon: 0.005 for a record takes noise that hides": [
        "privacy.mechanism=discrete-gaussian", "privacy.delta=1e-6", "privacy.clip_bound=350", "privacy.random=system",
    ],
    "training.batch: 100 is more than the training images of silo ": ["training.batch=100"],
    "data.split: leaves silo 0, silo 1, silo 2 without validation images": ["data.split=[0.9, 0, 0.1]"],
    "absence: every silo stays: temporary has no absence in 1 round; use more training.rounds": [
        "training.rounds=1", "absence.scenario=temporary",
    ],
    "training.rounds: of the 4 events that sequential has in 300 rounds, 2 leaves 3; use more": [
        "training.rounds=2", "data.silos=4", "data.min_samples=8",
    ],
    "digest.samples_per_digest: with 16, up to ": ["digest.samples_per_digest=16"],
}  # fmt: skip


@pytest.mark.usefixtures("quick_check")
@pytest.mark.parametrize("warning", WARNINGS)
def test_a_check_warns_of_what_is_probably_not_meant(warning: str, give: Give, tiny: Path) -> None:
    sets = [word for change in WARNINGS[warning] for word in ("--set", change)]
    told = json.loads(give("check", tiny, *sets, "--json").out)["warnings"]
    assert [line for line in told if line.startswith(warning)], told


def test_what_stops_a_run_with_its_data_stops_a_check_with_the_same_line(give: Give, tiny: Path) -> None:
    for change in (
        "digest.samples_per_digest=500",
        "data.silos=40",
        "data.path=no.npz",
        "model.classifier=mobilenet-v2",
    ):
        said = complaint(give("check", tiny, "--set", change))
        assert said == complaint(give("run", tiny, "--set", change, "--out", "run"))
        assert not Path("run").exists()


@pytest.mark.parametrize("command", ["check", "run", "compare"])
@pytest.mark.parametrize("given", ["fed", "fed/moderator", "fed/moderator/federation.toml"])
def test_a_federation_in_an_experiments_place_names_its_own_check(
    command: str, given: str, give: Give, tmp_path: Path
) -> None:
    (tmp_path / "fed" / "moderator").mkdir(parents=True)
    (tmp_path / "fed" / "moderator" / "federation.toml").write_text("[federation]\n", encoding="utf-8")
    folder = given.removesuffix("/federation.toml")
    assert complaint(give(command, given)).startswith(
        f"{given}: is of a federation and no experiment; check it with `feddig federation check {folder}`"
    )


# --- where results go


def test_a_run_prints_its_measures_and_its_folder(give: Give, tiny: Path) -> None:
    said = give("run", tiny, "--out", "mine")
    assert said.code == 0
    sentence, final, balanced, f1, *measures, privacy, page, folder = said.out.splitlines()
    assert re.match(
        r"feddig ended at \d+\.\d %: .* its own model before the first leave \(\d+\.\d %\)\.", sentence
    )
    assert (page, folder) == ("page     mine/report.html", "mine")
    assert re.fullmatch(r"privacy {12}record epsilon is infinite .*", privacy)
    names = [re.fullmatch(r"(.{18}) [ \d]{3}\.\d %", line).group(1).strip() for line in measures]
    assert names == ["best", "absence mean", "absence auc", "frozen own", "frozen own mean 10"]
    summary = json.loads(Path("mine", "summary.json").read_text(encoding="utf-8"))
    for line, title, key in (
        (final, "accuracy", "accuracy"),
        (balanced, "balanced accuracy", "balanced_accuracy"),
        (f1, "macro F1", "macro_f1"),
    ):
        value = summary["accuracy"]["final"] if key == "accuracy" else summary[key]
        ends = summary["intervals"][key]  # where all images are right, that of macro F1 is not known
        around = " (95 % interval {:.1f} to {:.1f})".format(*ends) if ends else ""
        assert line == f"{title:<18} {value:5.1f} %{around}"


def test_outside_a_terminal_each_round_is_a_plain_line(give: Give, tiny: Path) -> None:
    said = give("run", tiny, "--out", "mine")
    first, second, *rounds = said.err.splitlines()
    assert first == "feddig, sequential, seed 0: rounds 1 to 4"
    assert second == "round 2: silo 0 leaves; round 3: silo 1 leaves; round 4: silo 2 leaves"
    here = [
        "here: 0 1 2",
        "here: 1 2  recalled: 0",
        "here: 2  recalled: 0 1",
        "here: nobody  recalled: 0 1 2",
    ]
    assert len(rounds) == 4
    for number, (line, attendance) in enumerate(zip(rounds, here, strict=True), 1):
        shape = rf"round   {number} of 4  accuracy [ \d]{{3}}\.\d %  {attendance}  \d+ s left"
        assert re.fullmatch(shape, line), line
    assert "\x1b" not in said.err + said.out


def test_a_resumed_run_says_where_it_goes_on(give: Give, tiny: Path, tmp_path: Path) -> None:
    whole = give("run", tiny, "--out", "mine", "--json")
    (tmp_path / "mine" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "mine" / "checkpoint")
    said = give("run", "--resume", "mine", "--json")
    assert said.err.splitlines()[0] == "feddig, sequential, seed 0: rounds 1 to 4"
    assert json.loads(said.out)["accuracy"] == json.loads(whole.out)["accuracy"]


def test_a_finished_run_is_resumed_by_saying_so(give: Give, tiny: Path) -> None:
    whole = give("run", tiny, "--out", "mine")
    said = give("run", "--resume", "mine")
    assert said == Said(0, whole.out, "mine: is finished already; --rounds N lets it go on to N rounds\n")


def test_quiet_prints_the_folder_and_nothing_else(give: Give, tiny: Path) -> None:
    assert give("run", tiny, "--out", "mine", "--quiet") == Said(0, "mine\n", "")
    assert give("run", "--resume", "mine", "-q") == Said(0, "mine\n", "")


def test_json_on_standard_output_is_json_alone(give: Give, tiny: Path, tmp_path: Path) -> None:
    said = give("run", tiny, "--out", "mine", "--json")
    told = json.loads(said.out)
    written = json.loads((tmp_path / "mine" / "summary.json").read_text(encoding="utf-8"))
    assert (told.pop("path"), told.pop("page")) == ("mine", "mine/report.html")
    assert told == written
    assert len(said.err.splitlines()) == 6, "progress goes elsewhere"


def test_json_of_a_comparison(give: Give, tiny: Path, tmp_path: Path) -> None:
    words = [
        "--algorithms",
        "fedavg,feddig",
        "--scenarios",
        "none",
        "--seeds",
        "0,0",
        "--set",
        "training.rounds=2",
    ]
    told = json.loads(give("compare", tiny, *words, "--out", "mine", "--json", "--quiet").out)
    assert (told["path"], told["page"]) == ("mine", "mine/report.html")
    assert [(run["algorithm"], run["scenario"]) for run in told["runs"]] == [
        ("fedavg", "none"),
        ("feddig", "none"),
    ]
    assert told["runs"][1]["summary"]["rounds"] == 2
    files = ["curves-none.png", "fedavg", "feddig", "report.html", "table.csv", "table.md"]
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == files


def test_a_comparison_prints_a_table_and_where_to_look(give: Give, tiny: Path) -> None:
    said = give("compare", tiny, "--algorithms", "fedavg", "--set", "training.rounds=2", "--out", "mine")
    assert said.code == 0
    assert "fedavg" in said.out
    assert said.out.splitlines()[-4].startswith("fedavg ended at ")
    assert said.out.splitlines()[-3:] == [
        "picture  mine/curves-sequential.png",
        "page     mine/report.html",
        "results  mine",
    ]
    assert said.err.splitlines()[0] == "run 1 of 1: fedavg, sequential, seed 0: started; 2 rounds in all"
    again = give("compare", tiny, "--algorithms", "fedavg", "--set", "training.rounds=2", "--out", "mine")
    assert again == Said(0, said.out, ""), "what is finished is not run again"
    assert complaint(give("run", tiny, "--out", "mine")).startswith("mine: is not empty (it holds 'curves-")


def test_a_comparison_begun_with_other_settings_is_refused_by_the_key(give: Give, tiny: Path) -> None:
    words = [
        "compare",
        tiny,
        "--algorithms",
        "fedavg",
        "--set",
        "training.rounds=1",
        "--out",
        "mine",
        "--quiet",
    ]
    assert give(*words).code == 0
    line = complaint(give(*words, "--set", "training.lr=0.01"))
    assert "training.lr = 0.05, now 0.01; choose another --out" in line


def test_seeds_may_be_ranges() -> None:
    assert whole_numbers("--seeds", "3, 0-2 ,2,7-7") == [3, 0, 1, 2, 7]


def test_a_seed_written_twice_counts_once(give: Give, tiny: Path) -> None:
    words = [
        "--algorithms",
        "fedavg",
        "--seeds",
        "0,00",
        "--set",
        "training.rounds=1",
        "--out",
        "mine",
        "--json",
    ]
    assert len(json.loads(give("compare", tiny, *words, "--quiet").out)["runs"]) == 1


def test_without_out_each_run_has_a_folder_of_its_own(give: Give, tiny: Path, tmp_path: Path) -> None:
    words = ["run", tiny, "--set", "algorithm.name=fedavg", "--set", "training.rounds=1", "--quiet"]
    printed = [give(*words, *more).out.strip() for more in ([], [], ["--set", "seed=3"], [])]
    assert printed == [
        "results/fedavg-sequential-seed-0",
        "results/fedavg-sequential-seed-0-2",
        "results/fedavg-sequential-seed-3",
        "results/fedavg-sequential-seed-0-3",
    ]
    assert contents(tmp_path / printed[0]) == contents(tmp_path / printed[3])


def test_without_a_file_the_demo_is_run_and_set_changes_it(give: Give) -> None:
    words = [
        "--set",
        "data.limit=400",
        "--set",
        "data.skew=10",
        "--set",
        "training.rounds=1",
        "--set",
        "seed=5",
    ]
    told = json.loads(give("run", *words, "--quiet", "--json").out)
    assert (told["algorithm"], told["scenario"], told["seed"], told["rounds"]) == (
        "feddig-plus",
        "sequential",
        5,
        1,
    )


def test_a_later_set_wins_and_strings_need_no_quotes(give: Give, tiny: Path) -> None:
    words = [
        "--set",
        "algorithm.name=feddyn",
        "--set",
        'algorithm.name="fedavg"',
        "--set",
        "training.rounds=1",
    ]
    assert json.loads(give("run", tiny, *words, "--json", "-q").out)["algorithm"] == "fedavg"


# --- the log


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", {"INFO", "DEBUG"}), ("info", {"INFO"}), ("warning", set()), ("error", set())],
)
def test_the_log_on_standard_error_is_as_loud_as_asked(
    level: str, shown: set[str], give: Give, tiny: Path, tmp_path: Path
) -> None:
    said = give("run", tiny, "--out", "mine", "--quiet", "--log-level", level, "--set", "training.rounds=1")
    assert {line.split(": ")[1] for line in said.err.splitlines()} == shown
    log = (tmp_path / "mine" / "log.txt").read_text(encoding="utf-8")
    assert "INFO feddig, scenario sequential, seed 0" in log, "the file hears it whatever the terminal does"
    assert ("DEBUG" in log) == (level == "debug")


# --- data


def write_idx(folder: Path, values: dict[str, np.ndarray]) -> None:
    """Write the tiny data set as MNIST's files are."""
    names = {"x_train": "train-images-idx3", "y_train": "train-labels-idx1", "x_test": "t10k-images-idx3",
             "y_test": "t10k-labels-idx1"}  # fmt: skip
    folder.mkdir(parents=True)
    for key, name in names.items():
        array = values[key].astype(np.uint8)
        array = array[:, 0] if array.ndim == 4 else array
        head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
        (folder / f"{name}-ubyte").write_bytes(head + array.tobytes())


def write_pictures(folder: Path, values: dict[str, np.ndarray]) -> None:
    """Write the tiny data set as a picture each, in order within each class."""
    for part in ("train", "test"):
        for number, (image, label) in enumerate(zip(values[f"x_{part}"], values[f"y_{part}"], strict=True)):
            path = folder / part / f"class-{label}" / f"{number:03}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0]).save(path)


@pytest.fixture
def shelf(tiny_npz: Path, tmp_path: Path) -> Path:
    """A folder with the tiny data set in three forms."""
    with np.load(tiny_npz) as opened:
        values = dict(opened)
    folder = tmp_path / "shelf"
    write_idx(folder / "idx", values)
    write_pictures(folder / "pictures", values)
    shutil.copy(tiny_npz, folder / "tiny.npz")
    return folder


FORMS = [("npz", "tiny.npz"), ("idx", "idx"), ("folder", "pictures")]


@pytest.mark.parametrize(("name", "path"), FORMS)
def test_ones_own_data_is_found_by_a_relative_path(
    name: str, path: str, give: Give, tiny: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = ["--set", f"data.name={name}", "--set", "training.rounds=2"]
    sets += ["--set", "data.image_size=16"] if name == "folder" else []
    words = ["run", tiny, *sets, "--quiet"]
    assert give(*words, "--set", f"data.path=shelf/{path}", "--out", "a").code == 0
    assert give(*words, "--set", f"data.path={path}", "--data-dir", "shelf", "--out", "b").code == 0
    monkeypatch.setenv("FEDDIG_DATA", str(shelf))
    assert give(*words, "--set", f"data.path={path}", "--out", "c").code == 0
    assert contents(Path("a")) == contents(Path("b")) == contents(Path("c"))
    assert f'path = "{shelf / path}"' in Path("a", "experiment.toml").read_text(encoding="utf-8")


def test_the_same_images_give_the_same_run_from_npz_and_idx(give: Give, tiny: Path, shelf: Path) -> None:
    for name, path in FORMS[:2]:
        sets = ["--set", f"data.name={name}", "--set", f"data.path={path}", "--set", "training.rounds=2"]
        give("run", tiny, *sets, "--data-dir", shelf, "--quiet", "--out", name)
    for one, other in zip(rows_without_times(Path("npz")), rows_without_times(Path("idx")), strict=True):
        assert one["parameter_norm"] == pytest.approx(other["parameter_norm"], rel=1e-5)
        assert one["losses"]["silos"] == pytest.approx(other["losses"]["silos"], rel=1e-4)


def test_a_run_on_relative_data_goes_on_from_another_folder(
    give: Give, tiny: Path, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = ["--set", "data.path=tiny.npz", "--set", "training.rounds=2"]
    give("run", tiny, *sets, "--data-dir", "shelf", "--quiet", "--out", "mine")
    whole = contents(tmp_path / "mine")
    (tmp_path / "mine" / "summary.json").unlink()
    shutil.rmtree(tmp_path / "mine" / "checkpoint")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert give("run", "--resume", "../mine", "--quiet").code == 0
    assert contents(tmp_path / "mine") == whole


# --- the disk


def test_a_disk_that_is_too_full_is_noticed_before_anything_is_written(
    give: Give, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=5_000_000))
    line = complaint(give("run", tiny, "--out", "mine"))
    assert re.match(r"mine: the run needs about \d+ MB, but 5 MB are free; free some space or choose", line)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("words", [["run"], ["compare", "--algorithms", "fedavg"]])
def test_an_out_folder_that_cannot_be_made_is_one_line(
    words: list[str], give: Give, tiny: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("not a folder", encoding="utf-8")
    command, *more = words
    line = complaint(give(command, tiny, *more, "--out", "file/run", "--quiet"))
    assert line.startswith("file/run")
    assert "Not a directory" in line


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_line(give: Give, tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o500)
    assert "Permission denied" in complaint(give("run", tiny, "--out", "locked/run"))


# --- digests and encoders


def made(give: Give, *words: object) -> dict[str, object]:
    said = give("digest", "make", *words, "--no-privacy", "--json")
    assert (said.code, said.err) == (0, "")
    return dict(json.loads(said.out))


def test_a_digest_is_made_from_the_systems_entropy_unless_told_otherwise(
    give: Give, tiny: Path, tmp_path: Path
) -> None:
    """The tiny experiment's file says seeded, as every simulation does."""
    text = tiny.read_text(encoding="utf-8").replace('random = "seeded"\n', "")
    tiny.write_text(text, encoding="utf-8")
    first, second = (made(give, tiny, "--silo", 1, "--out", f"{name}.safetensors") for name in "ab")
    assert first["random"] == "the system's entropy"
    assert first["hash"] != second["hash"]
    seeded = [
        made(give, tiny, "--silo", 1, "--set", "privacy.random=seeded", "--out", f"{name}.safetensors")
        for name in "cd"
    ]
    assert seeded[0]["hash"] == seeded[1]["hash"]
    assert "for simulation only" in str(seeded[0]["random"])


def test_a_seeded_digest_is_the_one_that_the_run_has(give: Give, tiny: Path, tmp_path: Path) -> None:
    give("run", tiny, "--set", "training.rounds=1", "--out", "run", "--quiet")
    made(give, tiny, "--silo", 2, "--out", "mine.safetensors")
    assert (tmp_path / "mine.safetensors").read_bytes() == (
        tmp_path / "run" / "digests" / "silo-2.safetensors"
    ).read_bytes()


def test_a_digest_is_never_overwritten(give: Give, tiny: Path, tmp_path: Path) -> None:
    made(give, tiny, "--out", "mine.safetensors")
    before = snapshot(tmp_path)
    assert "a second digest of the same data reveals more" in complaint(
        give("digest", "make", tiny, "--no-privacy", "--out", "mine.safetensors")
    )
    assert snapshot(tmp_path) == before


SOUND_NPZ = [
    word
    for key in ("mechanism=discrete-gaussian", "epsilon=8", "delta=1e-6", "clip_bound=350", "random=system")
    for word in ("--set", f"privacy.{key}")
]


def test_for_real_data_somebody_must_choose_what_a_record_is_promised(
    give: Give, tiny: Path, tmp_path: Path
) -> None:
    whole = ["digest", "make", tiny, "--all-data"]
    said = complaint(give(*whole))
    assert said.startswith("privacy.random: who knows the seed can remove the noise")
    said = complaint(give(*whole, "--set", "privacy.random=system"))
    assert said.startswith("privacy.mechanism: for real data, choose. A record is promised nothing")
    assert "Not covered: updates of the model, losses and validation accuracies." in said
    assert "one image, not one patient" in said
    for words in ([], ["--no-privacy"]):  # the file would still claim its epsilon
        assert complaint(give("digest", "make", tiny, *SOUND_NPZ, *words)).startswith("--all-data: give it")
    replacing = ["--set", "privacy.adjacency=replace-one", "--set", "privacy.label_epsilon=1"]
    assert complaint(give(*whole, *SOUND_NPZ, *replacing)).startswith(
        "--classes: give the federation's number"
    )
    assert not (tmp_path / "digest.safetensors").exists()
    assert give(*whole, *SOUND_NPZ, "--quiet").code == 0


def test_natural_silos_run_from_the_command_line_and_their_digests_keep_a_promise(
    give: Give, tmp_path: Path
) -> None:
    """Which silo holds an image, and for what, follows from its place and name, so a promise to it holds."""
    for silo, name, number in itertools.product(("north", "south"), ("cat", "dog"), range(24)):
        file = tmp_path / "photos" / silo / name / f"{number}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((16, 16), number, np.uint8)).save(file)
    data = ("name=folder", "path=photos", "partition=folders", "image_size=16")
    words = [word for key in data for word in ("--set", f"data.{key}")]
    said = give("run", *words, "--set", "training.rounds=2", "--set", "algorithm.name=fedavg", "--out", "run")
    assert said.code == 0
    assert "here: north, south" in said.err
    assert 'partition = "folders"' in (tmp_path / "run" / "experiment.toml").read_text(encoding="utf-8")
    facts = made(give, *words, *SOUND_NPZ, "--silo", "1", "--out", "mine.safetensors")
    assert facts["silo"] == 1
    assert facts["random"] == "the system's entropy"


def test_data_of_two_ledgers_is_not_charged_to_either(tmp_path: Path) -> None:
    """What was released from one place lies now where something else was released."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "images").write_text(name)
        ledger = ledger_of(tmp_path / name, None)
        ledger.parent.mkdir(parents=True, exist_ok=True)
        ledger.touch()
        remember_ledger(tmp_path / name, ledger, path_fingerprint(tmp_path / name))
    assert ledger_of(tmp_path / "a", None) != ledger_of(tmp_path / "b", None)
    (tmp_path / "a" / "images").write_text("b")
    with pytest.raises(FedDigError, match="is charged in several ledgers"):
        ledger_of(tmp_path / "a", None)
    # a folder in it, or around it, is the same data
    (tmp_path / "b" / "train").mkdir()
    (tmp_path / "b" / "train" / "more").write_text("c")
    assert ledger_of(tmp_path / "b" / "train", None) == ledger_of(tmp_path / "b", None)


def test_what_a_seeded_file_says_of_itself(give: Give, tiny: Path) -> None:
    assert str(made(give, tiny, *SOUND_NPZ[:-2])["promise"]).startswith("not private: ")


def test_digests_of_ones_own_data_are_charged_to_its_ledger_wherever_it_lies(
    give: Give, tiny: Path, tiny_npz: Path, tmp_path: Path
) -> None:
    """Two releases of epsilon 8 do not fit into a budget of 10, though the data was copied between them."""
    budget = [*SOUND_NPZ, "--set", "privacy.budget_epsilon=10"]
    assert give("digest", "make", tiny, "--all-data", *budget, "--out", "a.safetensors").code == 0
    shutil.copy(tiny_npz, tmp_path / "copy.npz")
    again = ["digest", "make", tiny, "--all-data", *budget, "--out", "b.safetensors"]
    copied = ["--set", f"data.path={tmp_path / 'copy.npz'}"]
    for words in (again, [*again, *copied]):
        assert "a record would then be charged epsilon" in complaint(give(*words))
    assert "is charged in another ledger; give" in complaint(give(*again, "--ledger", "new.jsonl"))
    (ledger,) = Path(os.environ["XDG_STATE_HOME"]).rglob("*.jsonl")
    (entry,) = Ledger(ledger).entries()
    assert (entry.promise.epsilon, len(entry.data)) == (8, 64)
    ledger.unlink()
    ledger.with_name(f"{ledger.name}.head").unlink()
    assert "this data's ledger is gone" in complaint(give(*again))


def test_all_data_is_digested_when_it_is_the_silos_own(give: Give, tiny: Path, tmp_path: Path) -> None:
    share = made(give, tiny, "--out", "share.safetensors")
    everything = made(give, tiny, "--all-data", "--silo", 7, "--out", "all.safetensors")
    assert int(str(share["samples_mixed"])) < 120 == everything["samples_mixed"]
    assert everything["silo"] == 7
    assert everything["label_mass"] == [30, 30, 30, 30]


def test_classes_of_the_federation_that_this_silo_has_not_seen(
    give: Give, tiny: Path, tmp_path: Path
) -> None:
    facts = made(give, tiny, "--classes", 6, "--all-data", "--out", "mine.safetensors")
    assert facts["classes"] == 6
    assert facts["label_mass"] == [30, 30, 30, 30, 0, 0]
    assert read_digest(tmp_path / "mine.safetensors").labels.shape == (30, 6)


def test_show_tells_what_make_told(give: Give, tiny: Path) -> None:
    facts = made(give, tiny, "--out", "mine.safetensors")
    assert json.loads(give("digest", "show", "mine.safetensors", "--json").out) == facts
    lines = give("digest", "show", "mine.safetensors").out.splitlines()
    assert [line[:20].strip() for line in lines] == [name.replace("_", " ") for name in facts]
    assert lines[0] == "silo                 0"
    assert facts["feature_shape"] == [4, 4, 4]
    assert str(facts["promise"]).startswith("not private: record epsilon is infinite")


# --- what is promised

SOUND = [
    word
    for key in ("mechanism=discrete-gaussian", "epsilon=8", "delta=1e-6", "clip_bound=60")
    for word in ("--set", f"privacy.{key}")
]


def test_privacy_at_the_papers_defaults(give: Give) -> None:
    found = json.loads(give("privacy", "--json").out)
    assert (found["mechanism"], found["adjacency"]) == ("paper-laplace", "same-label")
    assert (found["paper_epsilon"], found["record_epsilon"], found["record_delta"]) == (0.005, "inf", 0.0)
    assert found["record_epsilon_if_bound_public"] == 6400
    assert (found["noise_scale"], found["sensitivity"], found["unit"]) == (pytest.approx(0.01), 64, "tau")
    assert found["log10_p_crt_paper"] == pytest.approx(-2118.6118, abs=1e-4)
    assert found["log10_p_crt_ordered"] == pytest.approx(-2543.1014, abs=1e-4)
    assert found["log10_p_crt_uniform"] == pytest.approx(-7243.9858, abs=1e-4)
    assert found["p_crt_values"] == 2**32
    assert found["bytes_per_digest"] == (256 + 10) * 4
    assert "infinite" in found["assumptions"][0]


def test_privacy_of_the_papers_emnist(give: Give) -> None:
    """The 697,932 samples of EMNIST ByClass, 80 % of them mixed by fours: 142.9 MB and 34.6 MB."""
    found = json.loads(give("privacy", "--classes", 62, "--samples", 558_344, "--json").out)
    assert (found["digests"], found["bytes"]) == (139_586, 139_586 * (256 + 62) * 4)
    known = json.loads(give("privacy", "--set", "data.name=emnist-byclass", "--json").out)
    assert known["bytes_per_digest"] == found["bytes_per_digest"]


@pytest.mark.parametrize("spd", [1, 2, 3])
def test_the_papers_bound_is_null_where_it_does_not_hold(spd: int, give: Give) -> None:
    words = ["privacy", "--elements", 256, "--set", f"digest.samples_per_digest={spd}"]
    found = json.loads(give(*words, "--json").out)
    assert (found["log10_p_crt_paper"] is None) == (spd < 3)
    assert ("bound holds from SpD 3" in give(*words).out) == (spd < 3)


def test_privacy_of_the_sound_mechanism(give: Give) -> None:
    found = json.loads(give("privacy", *SOUND, "--json").out)
    assert (found["paper_epsilon"], found["record_epsilon"], found["record_delta"]) == (None, 8.0, 1e-6)
    assert found["sensitivity"] == pytest.approx(60 * 2**0.5 / 4)
    assert found["noise_scale"] == pytest.approx(0.6892920154 * found["sensitivity"])
    other = ["--set", "privacy.adjacency=replace-one", "--set", "privacy.label_epsilon=2"]
    found = json.loads(give("privacy", *SOUND, *other, "--json").out)
    assert (found["record_epsilon"], found["adjacency"]) == (10.0, "replace-one")
    assert found["keep_probability"] == pytest.approx(np.exp(2) / (np.exp(2) + 9))


def test_privacy_without_noise(give: Give) -> None:
    found = json.loads(give("privacy", "--set", "privacy.mechanism=none", "--json").out)
    for key in ("record_epsilon", "record_epsilon_if_bound_public", "sensitivity"):
        assert found[key] == "inf"


def test_privacy_is_told_in_words_with_every_assumption(give: Give) -> None:
    said = give("privacy")
    assert (said.code, said.err) == (0, "")
    for line in (
        "record epsilon     infinite",
        "if bound public    6,400",
        "noise scale        0.01 tau",
        "P_crt, paper       10^-2118.6118 at most",
    ):
        assert line in said.out.splitlines()
    for sentence in json.loads(give("privacy", "--json").out)["assumptions"]:
        assert f"- {sentence}" in said.out


@pytest.mark.parametrize(
    ("source", "words"),
    [("system", "from the system's entropy"), ("seeded", "from a seed, for simulation only")],
)
@pytest.mark.parametrize("mechanism", ["none", "paper-laplace", "discrete-gaussian"])
def test_privacy_says_where_the_randomness_comes_from(
    mechanism: str, source: str, words: str, give: Give
) -> None:
    keys = SOUND if mechanism == "discrete-gaussian" else ["--set", f"privacy.mechanism={mechanism}"]
    asked = [*keys, "--set", f"privacy.random={source}"]
    assert f"randomness         {words}" in give("privacy", *asked).out.splitlines()
    assert json.loads(give("privacy", *asked, "--json").out)["random"] == source


def test_privacy_needs_no_data_and_says_what_it_does_not_know(give: Give) -> None:
    missing = ["--set", "data.name=npz", "--set", "data.path=nowhere.npz"]
    found = json.loads(give("privacy", *missing, "--samples", 100, "--json").out)
    assert (found["classes"], found["bytes_per_digest"], found["bytes"]) == (None, None, None)
    assert found["elements"] == 256
    assert "give --classes" in give("privacy", *missing).out


def test_privacy_takes_the_encoder_for_the_datas_channels(give: Give) -> None:
    assert json.loads(give("privacy", "--set", "data.name=cifar10", "--json").out)["elements"] == 256
    give("encoder", "make", "--steps", 1, "--channels", 3, "--out", "colour.safetensors", "--quiet")
    mine = ["privacy", "--set", "digest.encoder=colour.safetensors", "--json"]
    assert "is for images with 3 channel(s)" in complaint(give(*mine))
    assert json.loads(give(*mine, "--channels", 3).out)["elements"] == 256
    assert json.loads(give(*mine, "--elements", 7).out)["elements"] == 7


def test_an_even_encoder_can_be_made_and_used(give: Give) -> None:
    give("encoder", "make", "--even", "--steps", 1, "--out", "even.safetensors", "--quiet")
    for encoder in ("even", "even.safetensors"):
        clip = ("privacy.mechanism=discrete-gaussian", "privacy.delta=1e-6", "privacy.clip_bound=350")
        words = [word for key in (*clip, f"digest.encoder={encoder}") for word in ("--set", key)]
        give("digest", "make", *words, "--out", f"{encoder}.digest")
        shown = json.loads(give("digest", "show", f"{encoder}.digest", "--json").out)
        assert (shown["clip_bound"], shown["feature_shape"]) == (350, [4, 8, 8])


def test_noise_that_cannot_be_drawn_is_promised_by_no_one(give: Give) -> None:
    for command in (("privacy",), ("digest", "make", "--set", "data.limit=400")):
        said = complaint(give(*command, *SOUND, "--set", "privacy.epsilon=1e-30"))
        assert said.startswith(
            "privacy.epsilon: 1e-30 with discrete-gaussian takes noise that cannot be drawn"
        )


def test_a_mistake_in_the_privacy_keys_is_one_line(give: Give) -> None:
    assert complaint(give("privacy", "--set", "privacy.mechanism=discrete-laplace")).startswith(
        "privacy.clip_bound: discrete-laplace needs a public bound"
    )


def test_the_page_on_privacy_prints_what_the_command_does(give: Give) -> None:
    page = (Path(__file__).parent.parent / "docs" / "reference" / "privacy.md").read_text(encoding="utf-8")

    def told(*keys: str) -> dict[str, float]:
        sets = [word for key in keys for word in ("--set", key)]
        found: dict[str, float] = json.loads(give("privacy", "--elements", 256, *sets, "--json").out)
        return found

    for epsilon in ("0.005", "0.0005"):
        row = [
            told(f"privacy.epsilon={epsilon}", f"digest.samples_per_digest={spd}")[
                "record_epsilon_if_bound_public"
            ]
            for spd in (1, 2, 4, 8)
        ]
        assert f"| epsilon {epsilon} | " + " | ".join(f"{each:,.0f}" for each in row) + " |" in page
    for spd in (1, 2, 4, 8):
        found = told(f"digest.samples_per_digest={spd}")
        bound = "none" if found["log10_p_crt_paper"] is None else f"{found['log10_p_crt_paper']:,.1f}"
        counts = f"{found['log10_p_crt_ordered']:,.1f} | {found['log10_p_crt_uniform']:,.1f}"
        assert f"| {spd} | {bound} | {counts} |" in page
    for spd in (4, 64, 1024):
        keys = (*SOUND[1::2], f"digest.samples_per_digest={spd}")
        scales = [told(*keys, f"privacy.epsilon={epsilon}")["noise_scale"] for epsilon in (1, 2, 4, 8)]
        assert f"| {spd} | " + " | ".join(f"{each:.3g}" for each in scales) + " |" in page
    printed = give("privacy").out.partition("\n\n")[0]
    assert f"```text\n{printed}\n```" in page


def test_an_encoder_is_made_and_used(give: Give, tiny: Path, tmp_path: Path) -> None:
    said = give("encoder", "make", "--out", "mine.safetensors", "--steps", 10, "--seed", 1, "--json")
    assert said.code == 0, said.err
    told = json.loads(said.out)
    assert (told["path"], told["channels"], told["seed"]) == ("mine.safetensors", 1, 1)
    facts = made(give, tiny, "--set", "digest.encoder=mine.safetensors", "--out", "digest.safetensors")
    assert facts["encoder"] == told["hash"]
    before = snapshot(tmp_path)
    assert "exists already" in complaint(give("encoder", "make", "--out", "mine.safetensors"))
    assert snapshot(tmp_path) == before


# --- interrupted by hand


def interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_an_interrupted_comparison_says_how_to_go_on(
    give: Give, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddig.runs.compare.run", interrupt)
    said = give("compare", tiny, "--algorithms", "fedavg", "--out", "mine", "--quiet")
    assert (said.code, said.out) == (130, "")
    assert "finished runs are kept: give the same command again to continue in mine" in said.err


def test_an_interrupted_set_up_does_not_promise_a_resumption(
    give: Give, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddig.runs.run.build_simulation", interrupt)
    said = give("run", tiny, "--out", "mine", "--quiet")
    assert said.code == 130
    assert "--resume" not in said.err


# --- in a terminal


def in_a_terminal(
    words: list[object], folder: Path, until: Callable[[], bool] | None = None
) -> tuple[int, str]:
    """Give a command in a terminal; send Ctrl-C once something has happened; give its code and what it showed."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "140", "LINES": "40"}
    process = start_feddig(words, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=folder)
    os.close(theirs)
    os.set_blocking(ours, False)
    shown = b""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        ended = process.poll() is not None
        try:
            while part := os.read(ours, 65536):
                shown += part
        except (BlockingIOError, OSError):
            pass
        if ended:
            break
        if until is not None and until():
            process.send_signal(signal.SIGINT)
            until = None
        time.sleep(0.01)
    os.close(ours)
    return process.wait(timeout=10), shown.decode()


def test_in_a_terminal_a_bar_shows_round_attendance_and_recall(tiny: Path, tmp_path: Path) -> None:
    code, shown = in_a_terminal(["run", tiny, "--out", "mine"], tmp_path)
    assert code == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", shown)
    assert "feddig, sequential, seed 0" in plain
    assert re.search(r"4/4 +\d+\.\d % here: nobody  recalled: 0 1 2", plain)
    assert "\x1b[?25l" in shown, "the cursor is hidden while the bar moves"
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l"), "and there again at the end"
    assert plain.splitlines()[-1].strip() == "mine"


def test_in_a_terminal_ctrl_c_leaves_a_tidy_screen(tiny: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "mine" / "checkpoint" / "state.safetensors"
    words = ["run", tiny, "--set", "training.rounds=200", "--out", "mine"]
    code, shown = in_a_terminal(words, tmp_path, until=checkpoint.exists)
    assert code == 130
    assert shown.rindex("\x1b[?25h") > shown.rindex("\x1b[?25l")
    assert shown.rstrip().endswith("continue with: feddig run --resume mine")
