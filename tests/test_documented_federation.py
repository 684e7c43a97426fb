"""The documented commands of a federation, run in the guide's order as real processes, with few rounds.

What they add to the documented words are options that anybody may give; where the page names a machine, it is this one.
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
    """Return the first command of the documents that begins so; none is a failure."""
    found = [command for command in COMMANDS if command.starts_with(beginning)]
    assert found, f"no document has a command `{beginning}` any more"
    return found[0]


def words(command: Command, more: str = "") -> list[str]:
    """Spell a command for this machine."""
    assert command.words[0] == "feddig"
    given = [word.replace("moderator.example", "localhost") for word in command.words[1:]]
    return [sys.executable, "-m", "feddig", *given, *more.split()]


def do(command: Command, more: str = "", folder: Path | None = None) -> str:
    """Run a command to its end, and give what it said."""
    done = subprocess.run(words(command, more), cwd=folder, capture_output=True, text=True, timeout=WAIT)
    assert done.returncode == 0, f"{command}\n{done.stderr}"
    return done.stdout


@contextmanager
def going_on(
    commands: Sequence[tuple[Command, Path]], parties: Path
) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start commands, each in its folder, and leave none of the processes of any party behind."""
    started = []
    try:
        for place, (command, folder) in enumerate(commands):
            with Path(f"said-{place}.txt").open("wb") as said:
                started.append(
                    subprocess.Popen(words(command), cwd=folder, stdout=said, stderr=subprocess.STDOUT)
                )
        yield started
    finally:
        stop(started, [party.resolve() for party in (parties / "moderator", *(parties / "silos").iterdir())])


def until(holds: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait for something to hold while a process goes on."""
    last = time.monotonic() + WAIT
    while not holds():
        assert process.poll() is None, Path("said-0.txt").read_text(encoding="utf-8")
        assert time.monotonic() < last, Path("said-0.txt").read_text(encoding="utf-8")
        time.sleep(0.5)


def present(run: Path) -> list[list[int]]:
    return [row["present"] for row in rows(run)]


def test_a_rehearsal_goes_as_the_page_says() -> None:
    do(
        documented("feddig federation init trial"),
        f"{SMALL} --set data.limit=400 --digest-deadline 90 --port {free_port()}",
    )
    up, status = documented("feddig federation up"), documented("feddig federation status")
    as_json = Command(status.page, (*status.words, "--json"))
    assert as_json in COMMANDS
    with going_on([(up, Path())], Path("trial")) as (process,):
        until(Path("trial/moderator/status.json").exists, process)
        said = do(status)
        assert "the moderator runs" in said
        assert [f"silo-{silo}" in said for silo in range(4)] == [True] * 4
        found = json.loads(do(as_json))
        assert (found["running"], len(found["silos"])) == (True, 4)
        assert process.wait(WAIT) == 0, Path("said-0.txt").read_text(encoding="utf-8")
    assert present(Path("trial/moderator/run")) == [[0, 1, 2, 3]] * ROUNDS
    assert "the moderator does not run" in do(status)
    assert Path("trial/moderator/run/report.html").is_file()


def test_organisations_with_keys_of_their_own_go_as_page_and_run_sheets_say() -> None:
    make_keys(("north", "south"))
    init = documented("feddig federation init hospitals-2")
    do(init, f"{SMALL} --set data.min_samples=8 --digest-deadline 90 --port {free_port()}")
    whole = Path(init.words[3])
    moderator, silos = whole / "moderator", [whole / "silos" / name for name in ("north", "south")]
    for number, silo in enumerate(silos):
        shutil.copy(Path(silo.name, "key"), silo / "key")
        draw_images(Path("xrays", silo.name), number)
        point_to(silo / "silo.toml", Path("xrays", silo.name))
    of_moderator, of_silo = documented("feddig federation moderator"), documented("feddig federation silo")
    on_sheets = [commands_of("sheet", sheet_of(party)) for party in (moderator, *silos)]
    assert on_sheets[0][0].words == of_moderator.words
    for sheet in on_sheets[1:]:
        assert [command.words[1] for command in sheet[:2]] == ["digest", "audit"]
        assert sheet[2].words == of_silo.words
    do(on_sheets[1][0], folder=silos[0])  # the other silo makes its digest when it is asked for it
    do(on_sheets[1][1], "--quick --digests-at-most 12 --pool 40 --canaries 20 --no-pictures", folder=silos[0])
    begun = [(of_moderator, moderator), *((of_silo, silo) for silo in silos)]
    with going_on(begun, whole) as (first, *others):
        until((moderator / "status.json").exists, first)
        assert "the moderator runs" in do(on_sheets[0][1], folder=moderator)
        assert first.wait(WAIT) == 0, Path("said-0.txt").read_text(encoding="utf-8")
        assert [process.poll() for process in others] == [None, None]  # silos wait for their moderator
    assert present(moderator / "run")[-1] == [0, 1]
    ledgers = [silo / "released" for silo in silos]
    assert all(any(ledger.iterdir()) for ledger in ledgers)


def make_keys(names: Sequence[str]) -> None:
    """Let each silo make its key, and collect the public halves."""
    key = documented("feddig federation key")
    Path("keys").mkdir()
    for name in names:
        do(Command(key.page, (*key.words[:3], name)))
        shutil.copy(Path(name, "key.pub"), Path("keys", f"{name}.pub"))


def sheet_of(party: Path) -> str:
    """Give a run sheet's text with its commands where a document has them: they stand in a list there."""
    text = (party / "RUN-SHEET.md").read_text(encoding="utf-8")
    return re.sub(r"^ {7}", "    ", text, flags=re.MULTILINE)


def draw_images(folder: Path, seed: int) -> None:
    """Write images of two classes as an archive: the ill are brighter."""
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


def point_to(silo_file: Path, folder: Path) -> None:
    """Say in silo.toml where the images are, as the run sheet asks."""
    text = silo_file.read_text(encoding="utf-8")
    data = os.path.relpath(folder / "images.npz", silo_file.parent)
    silo_file.write_text(re.sub(r'path = ".*"', f'path = "{data}"', text), encoding="utf-8")
