"""A real federation on this machine: processes with TLS and keys, some of which are killed, stopped or lied to."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig import run
from feddig.digest.digest_file import read_digest, write_digest
from feddig.experiment.toml import read_experiment
from feddig.federation.contract import read_contract
from feddig.federation.flower_1_41.local_app import SILO_PROGRAM, write_programs
from feddig.federation.folders import FederationFolder, SiloFolder
from feddig.federation.processes.processes import free_port, is_alive, running
from feddig.federation.silo import open_silo
from feddig.federation.status import Status, read_status
from feddig.files import write_atomically
from feddig.privacy.ledger import Ledger
from feddig.privacy.ledger_file import RELEASE, RESEND
from folders import rows
from real_parties import stop

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]

SILOS = 2
APP, NODE, LINK = (
    "flwr-serverapp",
    "feddig.federation.flower_1_41.supernode",
    "feddig.federation.flower_1_41.superlink",
)
HUNG = "time.sleep(600)"
AWAY_AND_BACK = "absence.scenario=round-robin"
"""Of two silos: the first is away in the second round and back in the third, with the state that its stand-in left."""
EXPERIMENT = """
[data]
name = "fashion-mini"
limit = 300
[absence]
scenario = "none"
[model]
classifier = "small"
[training]
rounds = 60
batch = 32
lr = 0.003
threads = 1
"""


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flower"))


def init(
    path: Path,
    *settings: str,
    training_deadline: float = 60.0,
    digest_deadline: float = 60.0,
    host: str = "127.0.0.1",
    options: Sequence[str] = (),
) -> FederationFolder:
    """Write the folders of a small federation."""
    file = path.with_suffix(".toml")
    file.write_text(EXPERIMENT, encoding="utf-8")
    command = [
        sys.executable, "-m", "feddig", "federation", "init", path, "--silos", SILOS, "--experiment", file,
        "--rehearse", "fashion-mini", "--host", host, "--port", free_port(),
        "--training-deadline", training_deadline, "--digest-deadline", digest_deadline,
        *(part for setting in settings for part in ("--set", setting)), *options,
    ]  # fmt: skip
    subprocess.run([str(part) for part in command], check=True, capture_output=True, timeout=60)
    return FederationFolder(path)


@contextmanager
def up(folder: FederationFolder) -> Iterator[subprocess.Popen[bytes]]:
    """Run a federation, and leave none of its processes behind."""
    parties = [folder.moderator.path, *(folder.silo(f"silo-{silo}").path for silo in range(SILOS))]
    with (folder.path / "up.log").open("ab") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "feddig", "federation", "up", str(folder.path)],
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        for party in parties:  # one that was stopped could not end
            for left in running(party):
                _send(left, signal.SIGCONT)
        stop([process], parties)


def _send(process: int, number: int) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def until(
    folder: FederationFolder, holds: Callable[[], Any], seconds: float = 200.0, pause: float = 0.2
) -> Any:
    """Wait for something to hold, and give it."""
    last = time.monotonic() + seconds
    while time.monotonic() < last:
        found = holds()
        if found:
            return found
        time.sleep(pause)
    raise AssertionError(f"not in {seconds:g} s; the log's end:\n{log_of(folder)[-3000:]}")


def told(folder: FederationFolder, line: str) -> int:
    """Wait for a line of the moderator's log, and give the round that it names."""
    return int(until(folder, lambda: re.search(line, log_of(folder)))[1])


def log_of(folder: FederationFolder) -> str:
    file = folder.moderator.run / "log.txt"
    return file.read_text(encoding="utf-8") if file.exists() else "none yet"


def done(folder: FederationFolder) -> list[dict[str, Any]]:
    """Read the rows of the rounds so far; the last line may be half written."""
    try:
        return rows(folder.moderator.run)
    except (OSError, ValueError):
        return []


def standing(folder: FederationFolder) -> Status:
    status = read_status(folder.moderator.status)
    assert status is not None
    return status


def in_state(folder: FederationFolder, state: str, rounds: int) -> Callable[[], bool]:
    """Tell whether the moderator is at something, with so many rounds done."""

    def holds() -> bool:
        status = read_status(folder.moderator.status)
        return status is not None and status.content["state"] == state and status.rounds_done >= rounds

    return holds


def kill(party: Path, program: str) -> None:
    """Kill a party's program as nobody can prevent, by process id."""
    found = running(party, program)
    assert found, f"no {program} runs for {party}"
    for process in found:
        _send(process, signal.SIGKILL)


def rounds_of(folder: FederationFolder, silo: int) -> list[int]:
    return [row["round"] for row in done(folder) if silo in row["present"]]


def recalled_in(folder: FederationFolder, silo: int) -> list[int]:
    return [row["round"] for row in done(folder) if silo in row["recalled"]]


def check_nothing_was_lost(folder: FederationFolder) -> None:
    found = done(folder)
    assert [row["round"] for row in found] == list(range(len(found)))
    for silo in range(SILOS):
        sent = read_digest(folder.silo(f"silo-{silo}").digest)
        held = read_digest(folder.moderator.run / "digests" / f"silo-{silo}.safetensors")
        assert held.hash == sent.hash


def compare_with_one_process(folder: FederationFolder, there: Path, *, replay: bool = False) -> float:
    """Run the same experiment in this process, by its schedule or with who was really there.

    Gives the largest difference in any parameter.
    """
    experiment = read_experiment(folder.moderator.run / "experiment.toml")
    data, absence = replace(experiment.data, name="fashion-mini", limit=300), experiment.absence
    if replay:
        happened = str(folder.moderator.run / "availability.csv")
        absence = replace(absence, scenario="file", file=happened)
    run(replace(experiment, data=data, absence=absence), there, device="cpu")
    differences = []
    for file in ("model.safetensors", "guidance.safetensors"):
        here, other = load_file(folder.moderator.run / file), load_file(there / file)
        assert here.keys() == other.keys()
        differences += [float((tensor - other[name]).abs().max()) for name, tensor in here.items()]
    return max(differences)


def test_a_killed_silo_is_recalled_also_by_the_moderator_after_a_killed_one_and_comes_back(
    tmp_path: Path,
) -> None:
    folder = init(tmp_path / "federation", training_deadline=20.0)
    away = folder.silo("silo-1")
    with up(folder):
        until(folder, in_state(folder, "training", rounds=1))
        kill(away.path, NODE)
        until(folder, lambda: recalled_in(folder, 1))
        missed = recalled_in(folder, 1)[0]

        until(folder, in_state(folder, "training", rounds=missed + 1))
        before = list(done(folder))
        kill(folder.moderator.path, APP)
        until(folder, lambda: len(done(folder)) > len(before))
        assert done(folder)[: len(before)] == before
        assert "resumed after" in log_of(folder)
        assert len(before) in recalled_in(folder, 1)

        until(folder, lambda: rounds_of(folder, 1)[-1] > missed)
        assert standing(folder).content["silos"][1]["digest"] == read_digest(away.digest).hash
    check_nothing_was_lost(folder)


def test_a_deployment_gives_what_one_process_gives(tmp_path: Path) -> None:
    folder = init(
        tmp_path / "federation",
        "algorithm.name=feddig+feddyn",
        AWAY_AND_BACK,
        "training.rounds=3",
    )
    with up(folder) as process:
        assert process.wait(240) == 0, log_of(folder)[-3000:]
    assert compare_with_one_process(folder, tmp_path / "here") <= 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("base", ["fedavg", "fedprox", "fednova", "adabest"])
def test_so_does_every_other_algorithm(tmp_path: Path, base: str) -> None:
    folder = init(
        tmp_path / "federation",
        f"algorithm.name=feddig+{base}",
        AWAY_AND_BACK,
        "training.rounds=3",
    )
    with up(folder) as process:
        assert process.wait(240) == 0, log_of(folder)[-3000:]
    assert compare_with_one_process(folder, tmp_path / "here") <= 1e-5


@pytest.mark.slow
def test_a_silo_that_hangs_is_recalled_and_counted_again(tmp_path: Path) -> None:
    folder = init(tmp_path / "federation", training_deadline=30.0)
    silo = folder.silo("silo-0").path
    with up(folder):
        until(folder, lambda: len(rounds_of(folder, 0)) >= 1)
        stopped = running(silo)
        for process in stopped:
            _send(process, signal.SIGSTOP)
        until(folder, lambda: recalled_in(folder, 0))
        missed = recalled_in(folder, 0)[0]
        for process in stopped:
            _send(process, signal.SIGCONT)
        until(folder, lambda: rounds_of(folder, 0)[-1] > missed)
    check_nothing_was_lost(folder)


HANGS = """#!/bin/sh
exec {python} -c "import time; time.sleep(600)" feddig.federation.flower_1_41.local_app "$@"
"""


@pytest.mark.slow
def test_apps_that_hang_are_ended_and_do_not_pile_up(tmp_path: Path) -> None:
    folder = init(tmp_path / "federation", training_deadline=25.0, digest_deadline=25.0)
    silo = folder.silo("silo-0")
    with up(folder):
        until(folder, lambda: len(rounds_of(folder, 0)) >= 1)
        (silo.programs / SILO_PROGRAM).write_text(HANGS.format(python=sys.executable), encoding="utf-8")
        seen: list[int] = []

        def ended() -> bool:
            seen.append(len(running(silo.path, HUNG)))
            said = (silo.logs / "silo.log").read_text(encoding="utf-8")
            return said.count("an app has not answered in 50 s") >= 4

        until(folder, ended, seconds=300, pause=1.0)
        # a request and a ping every two deadlines, for which each is at work two deadlines
        assert max(seen) <= 5
        missed = recalled_in(folder, 0)[-1]
        write_programs(silo.programs)
        until(folder, lambda: rounds_of(folder, 0)[-1] > missed)
        until(folder, lambda: not running(silo.path, HUNG))
    check_nothing_was_lost(folder)


LIAR = Path(__file__).parents[1] / "benchmarks" / "lying_silo.py"
LIES = """#!/bin/sh
exec {python} -P {liar} "{lie}" "$@"
"""
MEGABYTE = 2**20


def make_liar(silo: SiloFolder, lie: str) -> None:
    """Have a silo's node start an app that lies; write_programs makes it honest again."""
    script = LIES.format(python=sys.executable, liar=LIAR, lie=lie)
    (silo.programs / SILO_PROGRAM).write_text(script, encoding="utf-8")


@pytest.mark.slow
def test_an_app_killed_while_it_hands_its_answer_over_costs_its_silo_a_few_rounds(tmp_path: Path) -> None:
    deadline = 25.0
    folder = init(tmp_path / "federation", training_deadline=deadline)
    silo = folder.silo("silo-0")

    def said() -> str:
        return (silo.logs / "supernode.log").read_text(encoding="utf-8")

    with up(folder):
        until(folder, lambda: len(rounds_of(folder, 0)) >= 1)
        node = running(silo.path, NODE)
        make_liar(silo, "dies while it replies")
        pieces = until(folder, lambda: re.search(r"killed with 1 of (\d+) pieces handed over", said()))
        write_programs(silo.programs)
        assert int(pieces[1]) > 2
        missed = told(folder, r"silo 0, round (\d+): no reply to train in 25 s")
        until(folder, lambda: missed in recalled_in(folder, 0))
        until(folder, lambda: rounds_of(folder, 0)[-1] > missed)
        back = next(round for round in rounds_of(folder, 0) if round > missed)
        assert "the app ended before its answer was whole" in said()
        assert running(silo.path, NODE) == node, "it is the same node that goes on"
        # nobody else was kept waiting
        between = done(folder)[missed:back]
        assert all(row["present"] == [1] and row["recalled"] == [0] for row in between)
        assert max(row["seconds"] for row in between) < deadline + 10
    check_nothing_was_lost(folder)


def peak(party: Path, program: str) -> int:
    """Give the most bytes that a program ever had in memory."""
    peaks = []
    for process in running(party, program):
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
        peaks += [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return max(peaks)


def growth(folder: FederationFolder, before: dict[str, int], sent: str) -> dict[str, int]:
    """Give by how much the moderator's programs have grown; added to the file that FEDDIG_PEAKS names, if any."""
    grown = {program: peak(folder.moderator.path, program) - most for program, most in before.items()}
    if "FEDDIG_PEAKS" in os.environ:
        file = Path(os.environ["FEDDIG_PEAKS"])
        noted = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        in_mib = [{name: round(most / MEGABYTE) for name, most in one.items()} for one in (before, grown)]
        noted.append({"sent": sent, "before_mib": in_mib[0], "grown_mib": in_mib[1]})
        write_atomically(file, json.dumps(noted, indent=2) + "\n")
    return grown


REFUSED = {
    "exception": "the silo could not answer; its own log says why",
    "nan": "its reply is refused: its update holds NaN or infinity",
    "too short": r"its reply is refused: its update is float32\(\d+,\)",
    "too large": "its reply is refused: its update is longer than any number can say",
    "no steps": "its reply is refused: it tells of 0 steps",
    "another round": r"its reply is refused: it is of round \d+, not",
    "another silo": "its reply is refused: it is of silo 1, not 0",
    "broken header": "its reply is refused: its update is no numpy array",
}


@pytest.mark.slow
def test_whatever_a_silo_replies_is_refused_and_told_and_the_others_go_on(tmp_path: Path) -> None:
    folder = init(tmp_path / "federation")
    silo = folder.silo("silo-0")
    missed = []
    with up(folder):
        until(folder, lambda: len(rounds_of(folder, 0)) >= 1)
        app = running(folder.moderator.path, APP)
        for lie, said in REFUSED.items():
            make_liar(silo, lie)
            missed.append(told(folder, rf"silo 0, round (\d+): .*{said}"))
        write_programs(silo.programs)
        until(folder, lambda: rounds_of(folder, 0)[-1] > missed[-1])
        for row in (done(folder)[round] for round in missed):
            assert (row["present"], row["recalled"]) == ([1], [0])
        assert running(folder.moderator.path, APP) == app, "it was not ended by any of this"
    check_nothing_was_lost(folder)


def come_back(folder: FederationFolder, silo: SiloFolder) -> None:
    """End a silo's node, and wait for the next one that its supervisor starts."""
    first = set(running(silo.path, NODE))
    for process in first:
        _send(process, signal.SIGTERM)
    until(folder, lambda: set(running(silo.path, NODE)) - first)


@pytest.mark.slow
def test_a_silo_that_returns_with_a_damaged_digest_or_another_one_is_refused_it(tmp_path: Path) -> None:
    folder = init(tmp_path / "federation")
    silo = folder.silo("silo-0")
    held = folder.moderator.run / "digests" / "silo-0.safetensors"
    with up(folder):
        until(folder, lambda: len(rounds_of(folder, 0)) >= 1)
        sent = held.read_bytes()
        assert sent == silo.digest.read_bytes()

        come_back(folder, silo)
        make_liar(silo, "damaged digest")
        missed = told(
            folder, r"silo 0, round (\d+): its digest is refused: its content does not match its hash"
        )
        until(folder, lambda: missed in recalled_in(folder, 0))
        write_programs(silo.programs)
        until(folder, lambda: rounds_of(folder, 0)[-1] > missed)
        assert held.read_bytes() == sent

        digest = read_digest(silo.digest)
        write_digest(silo.digest, replace(digest, features=digest.features + 1))
        come_back(folder, silo)
        until(folder, lambda: "silo 0: sends another digest" in log_of(folder))
        last = len(done(folder))
        until(folder, lambda: rounds_of(folder, 0)[-1] >= last)
        assert "the contract allows no new release; the held one stays" in log_of(folder)
        assert held.read_bytes() == sent
        write_digest(silo.digest, digest)
    check_nothing_was_lost(folder)


@pytest.mark.slow
def test_where_the_contract_allows_it_a_silo_replaces_its_digest_and_pays_for_both(tmp_path: Path) -> None:
    folder = init(tmp_path / "federation", options=["--new-release"])
    silo = folder.silo("silo-0")
    held = folder.moderator.run / "digests" / "silo-0.safetensors"
    with up(folder):
        until(folder, lambda: len(rounds_of(folder, 0)) >= 1)
        first = read_digest(silo.digest)
        write_digest(silo.digest, replace(first, features=first.features + 1))
        second = read_digest(silo.digest)
        come_back(folder, silo)
        until(folder, lambda: read_digest(held).hash == second.hash)
        assert f"silo 0: its digest {second.hash[:12]} is kept" in log_of(folder)
        last = len(done(folder))
        until(folder, lambda: rounds_of(folder, 0)[-1] > last)

        kill(folder.moderator.path, APP)  # its checkpoint may still name the first
        last = len(done(folder))
        until(folder, lambda: rounds_of(folder, 0)[-1] > last)
    noted = [(entry.kind, entry.digest) for entry in Ledger(silo.ledger).entries()]
    assert noted[:2] == [(RELEASE, first.hash), (RELEASE, second.hash)]
    assert set(noted[2:]) == {(RESEND, second.hash)}, "the next moderator's app asked for it again"
    check_nothing_was_lost(folder)


@pytest.mark.slow
def test_with_nobody_there_rounds_go_on_by_recall_until_the_silos_are_back(tmp_path: Path) -> None:
    deadline = 20.0
    # without anybody to wait for a round takes no time
    folder = init(tmp_path / "federation", "training.rounds=2000", training_deadline=deadline)
    with up(folder):
        until(folder, lambda: done(folder) and done(folder)[-1]["present"] == [0, 1])
        stopped = [one for silo in range(SILOS) for one in running(folder.silo(f"silo-{silo}").path)]
        for process in stopped:
            _send(process, signal.SIGSTOP)

        def alone() -> list[dict[str, Any]]:
            return [row for row in done(folder) if not row["present"]]

        until(folder, lambda: len(alone()) >= 3)
        for process in stopped:
            _send(process, signal.SIGCONT)
        assert all(row["recalled"] == [0, 1] for row in alone())
        assert max(row["seconds"] for row in alone()) < deadline + 10
        until(folder, lambda: done(folder)[-1]["present"] == [0, 1])
    check_nothing_was_lost(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "said"),
    [
        ("huge update", "its reply is refused: it comes in 121 pieces"),
        ("huge zeros", "its reply is refused: its arrays unfold to 6"),
        ("huge digest", "its reply is refused: it comes in 119 pieces"),
        ("huge note", "no reply to train in 60 s"),
    ],
)
def test_a_reply_of_600_megabytes_costs_the_moderator_no_memory(tmp_path: Path, lie: str, said: str) -> None:
    folder = init(tmp_path / "federation")
    silo = folder.silo("silo-0")
    with up(folder):
        until(folder, lambda: len(rounds_of(folder, 0)) >= 1)
        before = {program: peak(folder.moderator.path, program) for program in (APP, LINK)}
        if "digest" in lie:  # it is asked for when a silo comes back
            come_back(folder, silo)
        make_liar(silo, lie)
        missed = told(folder, rf"silo 0, round (\d+): {said}")
        until(folder, lambda: missed in recalled_in(folder, 0))
        write_programs(silo.programs)
        until(folder, lambda: len(done(folder)) > missed + 1)
        grown = growth(folder, before, lie)
        assert grown[APP] < 50 * MEGABYTE, (before, grown)
        assert 1 in done(folder)[missed]["present"]
        if lie != "huge note":
            until(folder, lambda: rounds_of(folder, 0)[-1] > missed)
        else:  # its node tries to send that one for longer than we want to wait
            said_at_the_gate = (folder.moderator.logs / "superlink.log").read_text(encoding="utf-8")
            assert re.search(r"push-object: it has 600,\d+,\d+ bytes, more than", said_at_the_gate)
    check_nothing_was_lost(folder)


@pytest.mark.slow
def test_a_moderator_killed_in_the_joint_update_goes_on_from_the_last_finished_round(tmp_path: Path) -> None:
    folder = init(
        tmp_path / "federation",
        "algorithm.name=feddig+feddyn",
        "moderator.joint_epochs=150",
        "training.rounds=4",
    )
    with up(folder) as process:
        until(folder, in_state(folder, "joint", rounds=1), pause=0.02)
        before = done(folder)
        kill(folder.moderator.path, APP)
        until(folder, lambda: len(done(folder)) > len(before))
        assert done(folder)[: len(before)] == before
        assert process.wait(240) == 0, log_of(folder)[-3000:]
    check_nothing_was_lost(folder)
    # nor of the model, or of what the algorithm remembers of each silo
    assert compare_with_one_process(folder, tmp_path / "here", replay=True) <= 1e-5


@pytest.mark.slow
def test_a_killed_superlink_costs_at_most_one_round(tmp_path: Path) -> None:
    folder = init(tmp_path / "federation")
    with up(folder):
        until(folder, in_state(folder, "training", rounds=1))
        before = done(folder)
        kill(folder.moderator.path, LINK)
        until(folder, lambda: len(done(folder)) > len(before), seconds=300)
        assert done(folder)[: len(before)] == before
        until(folder, lambda: done(folder)[-1]["present"] == [0, 1], seconds=300)
    check_nothing_was_lost(folder)


@pytest.mark.slow
def test_what_was_paused_when_everything_was_killed_does_not_block_the_next_start(tmp_path: Path) -> None:
    folder = init(tmp_path / "federation")
    silo = folder.silo("silo-0").path
    with up(folder) as first:
        until(folder, lambda: len(rounds_of(folder, 0)) >= 1)
        paused = [*running(silo), *running(folder.moderator.path, "federation\0moderator")]
        for process in paused:
            _send(process, signal.SIGSTOP)
        first.kill()
        first.wait()
        before = done(folder)
        with up(folder):
            until(folder, lambda: rounds_of(folder, 0)[-1] >= len(before), seconds=300)
            assert not any(map(is_alive, paused))
            assert done(folder)[: len(before)] == before
    check_nothing_was_lost(folder)


@pytest.mark.slow
def test_a_digest_that_is_not_as_agreed_is_refused_and_the_others_go_on(tmp_path: Path) -> None:
    folder = init(tmp_path / "federation")
    silo = folder.silo("silo-1")
    deployed = open_silo(silo.path, device="cpu")
    digest = deployed.site.make_digest()
    write_digest(silo.digest, replace(digest, facts={**digest.facts, "epsilon": 9.0}))
    with up(folder):
        until(folder, lambda: len(done(folder)) >= 2)
        assert rounds_of(folder, 1) == recalled_in(folder, 1) == []
        assert "silo 1, round 0: its digest is refused: its epsilon is 9.0" in log_of(folder)
        assert standing(folder).content["silos"][1]["digest"] is None
    assert read_contract(folder.contract).new_release is False
