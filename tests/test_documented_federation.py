"""Run the documented commands of a federation in the guide's order as real processes, with few rounds.

Public options make them smaller, and host names in the documents are replaced by localhost.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from documented import Command, commands_of, pages
from feddig.federation.processes.processes import free_port
from folders import rows
from real_parties import stop

pytestmark = [
    pytest.mark.flower,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]

ROUNDS = 2
SMALL = f"--set model.classifier=small --set training.rounds={ROUNDS} --set training.threads=1 --training-deadline 90"
WAIT = 240.0
COMMANDS = [command for page in pages() for command in commands_of(page)]


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))


def documented(beginning: str) -> Command:
    """Return the first documented command that starts with these words; fail if there is none."""
    found = [command for command in COMMANDS if command.starts_with(beginning)]
    assert found, f"no document has a command `{beginning}`"
    return found[0]


def command_line(command: Command, more: str = "") -> list[str]:
    """Return a command line that runs on this machine."""
    assert command.words[0] == "feddig"
    given = [word.replace("moderator.example", "localhost") for word in command.words[1:]]
    return [sys.executable, "-m", "feddig", *given, *more.split()]


def run_to_end(command: Command, more: str = "", folder: Path | None = None, code: int = 0) -> str:
    """Run a command, which must end with this code, and return its output."""
    done = subprocess.run(
        command_line(command, more), cwd=folder, capture_output=True, text=True, timeout=WAIT
    )
    assert done.returncode == code, f"{command}\n{done.stderr}"
    return done.stdout


@contextmanager
def running_commands(
    commands: Sequence[tuple[Command, Path]], parties: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start commands, each in its folder; end the processes of all parties afterwards."""
    started = []
    try:
        for place, (command, folder) in enumerate(commands):
            with Path(f"output-{place}.txt").open("wb") as output:
                started.append(
                    subprocess.Popen(
                        command_line(command), cwd=folder, stdout=output, stderr=subprocess.STDOUT
                    )
                )
        yield started
    finally:
        stop(started, [party.resolve() for party in (parties / "moderator", *(parties / "silos").iterdir())])


def wait_until(holds: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait for a condition while a process runs."""
    last = time.monotonic() + WAIT
    while not holds():
        assert process.poll() is None, Path("output-0.txt").read_text(encoding="utf-8")
        assert time.monotonic() < last, Path("output-0.txt").read_text(encoding="utf-8")
        time.sleep(0.5)


def present(run: Path) -> list[list[int]]:
    return [row["present"] for row in rows(run)]


def test_a_rehearsal_works_as_documented() -> None:
    run_to_end(
        documented("feddig federation init trial"),
        f"{SMALL} --set data.limit=400 --digest-deadline 90 --port {free_port()}",
    )
    up, status = documented("feddig federation up"), documented("feddig federation status trial")
    as_json = Command(status.page, (*status.words, "--json"))
    assert as_json in COMMANDS
    with running_commands([(up, Path())], Path("trial")) as (process,):
        wait_until(Path("trial/moderator/status.json").exists, process)
        output = run_to_end(status)
        assert "the moderator runs" in output
        assert [f"silo-{silo}" in output for silo in range(4)] == [True] * 4
        found = json.loads(run_to_end(as_json))
        assert (found["running"], len(found["silos"])) == (True, 4)
        assert process.wait(WAIT) == 0, Path("output-0.txt").read_text(encoding="utf-8")
    assert present(Path("trial/moderator/run")) == [[0, 1, 2, 3]] * ROUNDS
    assert "the moderator does not run" in run_to_end(status)
    assert Path("trial/moderator/run/report.html").is_file()


def test_a_federation_with_own_keys_works_as_the_page_and_run_sheets_say() -> None:
    make_keys(("north", "south"))
    init = documented("feddig federation init hospitals-2")
    run_to_end(init, f"{SMALL} --set data.min_samples=8 --digest-deadline 90 --port {free_port()}")
    whole = Path(init.words[3])
    moderator, silos = whole / "moderator", [whole / "silos" / name for name in ("north", "south")]
    for number, silo in enumerate(silos):
        shutil.copy(Path(silo.name, "key"), silo / "key")
        draw_images(Path("xrays", silo.name), number)
        set_data_path(silo / "silo.toml", Path("xrays", silo.name))
    of_moderator, of_silo = documented("feddig federation moderator"), documented("feddig federation silo")
    on_sheets = [commands_of("sheet", sheet_of(party)) for party in (moderator, *silos)]
    check = documented("feddig federation check")
    assert [sheet[0].words for sheet in on_sheets] == [check.words] * 3
    assert on_sheets[0][1].words == of_moderator.words
    for sheet in on_sheets[1:]:
        assert [command.words[1] for command in sheet[1:3]] == ["digest", "audit"]
        assert sheet[3].words == of_silo.words
    assert "silos measure accuracy" in run_to_end(check, folder=moderator)
    run_to_end(on_sheets[1][1], folder=silos[0])  # the other silo makes its digest when it is asked for one
    run_to_end(
        on_sheets[1][2], "--quick --digests-at-most 12 --pool 40 --canaries 20 --no-pictures", folder=silos[0]
    )
    assert "72 images to train on" in run_to_end(check, "", silos[0], code=2)
    begun = [(of_moderator, moderator), *((of_silo, silo) for silo in silos)]
    with running_commands(begun, whole) as (first, *others):
        wait_until((moderator / "status.json").exists, first)
        assert "the moderator runs" in run_to_end(on_sheets[0][2], folder=moderator)
        assert first.wait(WAIT) == 0, Path("output-0.txt").read_text(encoding="utf-8")
        assert [process.wait(WAIT) for process in others] == [0, 0]
    model = (moderator / "run" / "model.safetensors").read_bytes()
    assert [(silo / "model.safetensors").read_bytes() == model for silo in silos] == [True, True]
    assert present(moderator / "run")[-1] == [0, 1]
    ledgers = [silo / "released" for silo in silos]
    assert all(any(ledger.iterdir()) for ledger in ledgers)


def make_keys(names: Sequence[str]) -> None:
    """Make each silo's key and collect the public keys."""
    key = documented("feddig federation key")
    Path("keys").mkdir()
    for name in names:
        run_to_end(Command(key.page, (*key.words[:3], name)))
        shutil.copy(Path(name, "key.pub"), Path("keys", f"{name}.pub"))


def sheet_of(party: Path) -> str:
    """Return a run sheet with the commands of its list indented like a document's code block."""
    text = (party / "RUN-SHEET.md").read_text(encoding="utf-8")
    return re.sub(r"^ {7}", "    ", text, flags=re.MULTILINE)


def draw_images(folder: Path, seed: int) -> None:
    """Write images of two classes as an archive; one class is brighter."""
    folder.mkdir(parents=True)
    labels = np.arange(96) % 2
    pixels = np.random.default_rng(seed).integers(0, 128, (96, 1, 28, 28), dtype=np.uint8)
    pixels += (100 * labels[:, None, None, None]).astype(np.uint8)
    train, test = slice(0, 80), slice(80, 96)
    np.savez(
        folder / "images.npz",
        x_train=pixels[train],
        y_train=labels[train],
        x_test=pixels[test],
        y_test=labels[test],
    )


def set_data_path(silo_file: Path, folder: Path) -> None:
    """Set the path of the images in silo.toml, as the run sheet says."""
    text = silo_file.read_text(encoding="utf-8")
    data = os.path.relpath(folder / "images.npz", silo_file.parent)
    silo_file.write_text(re.sub(r'path = ".*"', f'path = "{data}"', text), encoding="utf-8")
