"""A real federation on this machine: processes with TLS and keys, some of which are killed, paused or made to lie.

Most tests share one federation: each begins in a round that both silos answered, and undoes what it did to them.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.cli import main
from feddig.digest.digest_file import read_digest, write_digest
from feddig.federation.processes.processes import end, is_alive, running
from feddig.files import write_atomically
from feddig.privacy.ledger import Ledger
from real_parties import APP, LINK, NODE, SILOS, RealFederation, kill, send

pytestmark = [
    pytest.mark.flower,
    pytest.mark.process,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]

DEADLINE = 30.0
MEGABYTE = 2**20


@pytest.fixture(scope="module", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_HOME", str(tmp_path_factory.mktemp("flower")))
        yield


def test_a_silo_is_killed_and_the_federation_finishes_with_the_model_of_one_process(tmp_path: Path) -> None:
    """The one real federation of `make test`."""
    settings = ("algorithm.name=feddig+feddyn", "training.rounds=2")
    with RealFederation(tmp_path / "federation", *settings, training_deadline=20.0) as federation:
        federation.wait_for_state("training", rounds=1)
        kill(federation.silo(1).path, NODE)
        assert federation.wait() == 0, federation.log()[-3000:]
    assert (federation.present(1), federation.recalled(1)) == ([0], [1])
    assert federation.present(0) == [0, 1]
    assert "report.html" in os.listdir(federation.folder.moderator.run)
    model = (federation.folder.moderator.run / "model.safetensors").read_bytes()
    assert federation.silo(0).model.read_bytes() == model
    said = (federation.silo(0).logs / "silo.log").read_text(encoding="utf-8")
    assert " INFO finished: 2 rounds, answered 2 of them; the model is in " in said.splitlines()[-1]
    federation.check_nothing_was_lost()
    assert federation.compare_with_one_process(tmp_path / "here") <= 1e-5


@pytest.mark.slow
def test_a_moderator_killed_in_the_joint_update_continues_from_the_last_finished_round(
    tmp_path: Path,
) -> None:
    settings = ("algorithm.name=feddig+feddyn", "moderator.joint_epochs=150", "training.rounds=3")
    with RealFederation(tmp_path / "federation", *settings) as federation:
        federation.wait_for_state("joint", rounds=1)
        before = federation.rows()
        kill(federation.folder.moderator.path, APP)
        assert federation.wait() == 0, federation.log()[-3000:]
    assert federation.rows()[: len(before)] == before
    federation.check_nothing_was_lost()
    assert federation.compare_with_one_process(tmp_path / "here") <= 1e-5


@pytest.mark.slow
def test_a_federation_is_extended_gains_and_loses_silos_and_pauses(tmp_path: Path) -> None:
    with RealFederation(tmp_path / "federation", "training.rounds=2", training_deadline=20.0) as federation:
        assert federation.wait() == 0, federation.log()[-3000:]
    whole, before = federation.folder, federation.rows()
    amend(["extend", whole.path, "--rounds", 200], ["add", whole.path, "west"])
    shutil.copy(federation.silo(1).path / "data.npz", whole.silo("west").path)
    operator = [sys.executable, "-m", "feddig", "federation"]
    try:
        with federation:
            federation.wait_for(lambda: any(row["present"] == [0, 1, 2] for row in federation.rows()))
            subprocess.run([*operator, "pause", whole.path], check=True)
            state = "paused by the operator"
            federation.wait_for(lambda: federation.status().content["state"] == state)
            paused, nodes = federation.rows(), running(whole.silo("west").path, NODE)
            kill(whole.moderator.path, APP)
            federation.wait_for(lambda: federation.log().count(f"{state}; `feddig federation resume") == 2)
            assert federation.rows() == paused
            assert running(whole.silo("west").path, NODE) == nodes
            told = subprocess.run(
                [*operator, "status", whole.path], check=True, capture_output=True, text=True
            )
            assert f"`feddig federation resume {whole.moderator.path}` goes on" in told.stdout
            subprocess.run([*operator, "resume", whole.path], check=True)
            federation.wait_for(lambda: len(federation.rows()) > len(paused))
    finally:
        end(running(whole.silo("west").path))
    assert federation.rows()[: len(before)] == before
    assert federation.status().rounds == 200
    federation.check_nothing_was_lost()

    amend(
        ["remove", whole.path, "west", "--digest", "go"],
        ["key", tmp_path / "new"],
        ["rekey", whole.path, "silo-1", tmp_path / "new" / "key.pub"],
        ["change", whole.path, "--model-every", 1, "--min-silos", 2, "--rounds-alone", 2],
    )
    shutil.copy(tmp_path / "new" / "key", federation.silo(1).key)
    begun = len(federation.rows())
    with federation:
        federation.wait_for(lambda: any(row["present"] == [0, 1] for row in federation.rows()[begun:]))
        federation.wait_for(lambda: all(federation.silo(silo).model.exists() for silo in range(SILOS)))
        assert not running(whole.silo("west").path, NODE)
        # with nobody there, as many rounds as the contract says, and then none
        send(
            (nodes := [one for silo in range(SILOS) for one in running(federation.silo(silo).path)]),
            signal.SIGSTOP,
        )
        federation.wait_for(lambda: federation.status().content["state"] == "paused")
        stopped = federation.rows()
        assert [bool(row["present"]) for row in stopped[-3:]] == [True, False, False]
        assert stopped[-1]["recalled"] == [0, 1]
        time.sleep(3)
        assert federation.rows() == stopped
        send(nodes, signal.SIGCONT)
        federation.wait_for_everybody()
    assert [one["state"] for one in federation.status().content["silos"]][2] == "removed"
    assert not list((whole.moderator.run / "digests").glob("silo-2*"))
    federation.check_nothing_was_lost()


def amend(*commands: list[object]) -> None:
    """Give these commands of `feddig federation`."""
    for words in commands:
        with pytest.raises(SystemExit) as ended:
            main(["federation", *map(str, words)])
        assert not ended.value.code


@pytest.mark.slow
def test_a_silo_that_gave_up_is_not_waited_for_at_the_end_and_gets_the_model_when_it_is_back(
    tmp_path: Path,
) -> None:
    settings = ("training.rounds=12",)
    with RealFederation(tmp_path / "federation", *settings, training_deadline=600.0) as federation:
        silo, said = federation.silo(1), federation.folder.path / "up.log"
        federation.wait_for_state("training", rounds=1)
        authority = silo.ca.read_bytes()
        silo.ca.unlink()
        kill(silo.path, NODE)
        federation.wait_for(lambda: "silo-1 gave up" in said.read_text(encoding="utf-8"))
        assert federation.wait(120) == 0, federation.log()[-3000:]
        assert f"{silo.ca}: is missing" in said.read_text(encoding="utf-8")
    assert federation.present(0) == list(range(12))
    assert "the final model did not reach silo-1; start the moderator again" in federation.log()
    assert (federation.status().finished, federation.status().received) == (True, {0})
    silo.ca.write_bytes(authority)
    with federation:
        assert federation.wait(120) == 0
    assert federation.status().received == {0, 1}
    assert silo.model.read_bytes() == (federation.folder.moderator.run / "model.safetensors").read_bytes()


# --- one federation for all


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealFederation]:
    """Start the federation that the tests below share; it has many rounds."""
    folder = tmp_path_factory.mktemp("shared") / "federation"
    with RealFederation(folder, "training.rounds=5000", training_deadline=DEADLINE) as federation:
        yield federation


@pytest.fixture
def federation(started: RealFederation) -> Iterator[RealFederation]:
    """Give the shared federation once both silos answer; see in the end that nothing was lost."""
    started.wait_for_everybody()
    yield started
    for silo in range(SILOS):
        started.be_honest(silo)
        send(running(started.silo(silo).path), signal.SIGCONT)
    started.check_nothing_was_lost()


@pytest.mark.slow
def test_a_killed_silo_is_recalled_also_by_a_restarted_moderator_and_comes_back(
    federation: RealFederation,
) -> None:
    begun, away = len(federation.rows()), federation.silo(1)
    federation.wait_for_state("training", rounds=begun)
    kill(away.path, NODE)
    missed = federation.wait_for(lambda: [round for round in federation.recalled(1) if round >= begun])[0]

    federation.wait_for_state("training", rounds=missed + 1)
    before = federation.rows()
    kill(federation.folder.moderator.path, APP)
    federation.wait_for(lambda: len(federation.rows()) > len(before))
    assert federation.rows()[: len(before)] == before
    assert "resumed after" in federation.log()
    assert len(before) in federation.recalled(1)

    federation.wait_for(lambda: federation.present(1)[-1] > missed)
    assert federation.status().content["silos"][1]["digest"] == read_digest(away.digest).hash


@pytest.mark.slow
def test_a_killed_superlink_costs_at_most_one_round(federation: RealFederation) -> None:
    federation.wait_for_state("training", rounds=1)
    before = federation.rows()
    kill(federation.folder.moderator.path, LINK)
    federation.wait_for(lambda: len(federation.rows()) > len(before), seconds=300)
    assert federation.rows()[: len(before)] == before
    federation.wait_for_everybody()


@pytest.mark.slow
def test_a_node_that_hangs_is_ended_and_the_next_one_answers(federation: RealFederation) -> None:
    silo = federation.silo(0)
    begun, nodes = len(federation.log()), running(silo.path, NODE)
    federation.lie(0, "hang")
    missed = federation.wait_for_line(rf"silo 0, round (\d+): no reply to train in {DEADLINE:g} s", begun)
    federation.be_honest(0)
    # by itself, when nobody waits any more; until then it is pinged and asked for nothing else
    said = "no answer in twice the longest deadline"
    federation.wait_for(lambda: said in (silo.logs / "silo.log").read_text(encoding="utf-8"))
    federation.wait_for(lambda: federation.present(0)[-1] > missed)
    assert running(silo.path, NODE) != nodes


@pytest.mark.slow
def test_a_node_killed_while_it_hands_over_its_reply_costs_its_silo_a_few_rounds(
    federation: RealFederation,
) -> None:
    begun, silo = len(federation.log()), federation.silo(0)
    federation.lie(0, "dies while it replies")
    found = federation.wait_for(
        lambda: re.search(
            r"killed with 1 of (\d+) pieces handed over",
            (silo.logs / "node.log").read_text(encoding="utf-8"),
        )
    )
    federation.be_honest(0)
    assert int(found[1]) > 2
    missed = federation.wait_for_line(rf"silo 0, round (\d+): no reply to train in {DEADLINE:g} s", begun)
    federation.wait_for(lambda: missed in federation.recalled(0))
    federation.wait_for(lambda: federation.present(0)[-1] > missed)
    back = next(round for round in federation.present(0) if round > missed)
    between = federation.rows()[missed:back]
    assert all(row["present"] == [1] and row["recalled"] == [0] for row in between)
    assert max(row["seconds"] for row in between) < DEADLINE + 10, "the other silo did not wait for it"


REFUSED = {
    "exception": "it could not answer; its own log says why",
    "nan": "its reply is refused: its update holds NaN or infinity",
    "another silo": "its reply is refused: it is of silo 1, not 0",
    "broken header": "its reply is refused: its update is no numpy array",
}


@pytest.mark.slow
def test_bad_replies_are_refused_and_logged_and_the_others_go_on(federation: RealFederation) -> None:
    begun, missed = len(federation.log()), []
    app = running(federation.folder.moderator.path, APP)
    for lie, reason in REFUSED.items():
        federation.lie(0, lie)
        missed.append(federation.wait_for_line(rf"silo 0, round (\d+): .*{reason}", begun))
    federation.be_honest(0)
    federation.wait_for(lambda: federation.present(0)[-1] > missed[-1])
    for row in (federation.rows()[round] for round in missed):
        assert (row["present"], row["recalled"]) == ([1], [0])
    assert running(federation.folder.moderator.path, APP) == app, "the moderator's app did not end"


@pytest.mark.slow
def test_a_silo_that_returns_with_a_damaged_digest_or_another_one_is_refused_it(
    federation: RealFederation,
) -> None:
    begun, silo = len(federation.log()), federation.silo(0)
    held = federation.folder.moderator.run / "digests" / "silo-0.safetensors"
    sent = held.read_bytes()
    assert sent == silo.digest.read_bytes()

    federation.restart_node(0)
    federation.lie(0, "damaged digest")
    missed = federation.wait_for_line(
        r"silo 0, round (\d+): its digest is refused: its content does not match its hash", begun
    )
    federation.wait_for(lambda: missed in federation.recalled(0))
    federation.be_honest(0)
    federation.wait_for(lambda: federation.present(0)[-1] > missed)
    assert held.read_bytes() == sent

    digest = read_digest(silo.digest)
    other = replace(digest, features=digest.features + 1)
    # the silo itself sends nothing that its ledger does not know
    Ledger(silo.ledger).release(other.hash, other.promise, "the moderator of federation")
    write_digest(silo.digest, other)
    federation.restart_node(0)
    federation.wait_for(lambda: "silo 0: sends another digest" in federation.log())
    federation.wait_for_everybody()
    assert "the contract allows no new release; the held one stays" in federation.log()
    assert held.read_bytes() == sent
    write_digest(silo.digest, digest)


@pytest.mark.slow
def test_without_silos_the_federation_pauses_and_goes_on_by_itself_when_they_are_back(
    federation: RealFederation,
) -> None:
    begun = len(federation.log())
    stopped = [process for silo in range(SILOS) for process in running(federation.silo(silo).path)]
    send(stopped, signal.SIGSTOP)
    missing = {"state": "paused", "missing": ["silo-0", "silo-1"]}
    federation.wait_for(lambda: federation.status().content.items() >= missing.items())
    before = federation.rows()
    time.sleep(DEADLINE)
    assert federation.rows() == before, "no round is done on digests alone"
    send(stopped, signal.SIGCONT)
    federation.wait_for_everybody()
    assert re.search(r" WARNING round \d+: .*missing: silo-0, silo-1", federation.log()[begun:])
    assert all(row["present"] for row in federation.rows())
    said = (federation.folder.moderator.logs / "moderator.log").read_text(encoding="utf-8")
    assert "INFO federation: paused, missing: silo-0, silo-1  round " in said
    lines = said.splitlines()
    assert all(re.match(r"20\d\d-\S+ \S+ (INFO|WARNING) ", line) for line in lines), lines
    assert "\x1b" not in said


def peak(party: Path, program: str) -> int:
    """Return the most bytes that a program ever had in memory."""
    peaks = []
    for process in running(party, program):
        lines = Path(f"/proc/{process}/status").read_text(encoding="utf-8").splitlines()
        peaks += [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:")]
    return max(peaks)


def growth(moderator: Path, before: dict[str, int], sent: str) -> dict[str, int]:
    """Return by how much the moderator's programs have grown; add it to the file that FEDDIG_PEAKS names, if any."""
    grown = {program: peak(moderator, program) - most for program, most in before.items()}
    if "FEDDIG_PEAKS" in os.environ:
        file = Path(os.environ["FEDDIG_PEAKS"])
        noted = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
        in_mib = [{name: round(most / MEGABYTE) for name, most in one.items()} for one in (before, grown)]
        noted.append({"sent": sent, "before_mib": in_mib[0], "grown_mib": in_mib[1]})
        write_atomically(file, json.dumps(noted, indent=2) + "\n")
    return grown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lie", "reason"),
    [
        ("huge update", "its reply is refused: it comes in 121 pieces"),
        ("huge zeros", "its reply is refused: its arrays unfold to 6"),
        ("huge digest", "its reply is refused: it comes in 119 pieces"),
    ],
)
def test_a_reply_of_600_megabytes_costs_the_moderator_no_memory(
    federation: RealFederation, lie: str, reason: str
) -> None:
    begun, moderator = len(federation.log()), federation.folder.moderator
    before = {program: peak(moderator.path, program) for program in (APP, LINK)}
    if "digest" in lie:  # the moderator asks for it when a silo returns
        federation.restart_node(0)
    federation.lie(0, lie)
    missed = federation.wait_for_line(rf"silo 0, round (\d+): {reason}", begun)
    federation.wait_for(lambda: missed in federation.recalled(0))
    federation.be_honest(0)
    federation.wait_for(lambda: len(federation.rows()) > missed + 1)
    grown = growth(moderator.path, before, lie)
    assert grown[APP] < 50 * MEGABYTE, (before, grown)
    assert 1 in federation.rows()[missed]["present"]
    federation.wait_for(lambda: federation.present(0)[-1] > missed)


@pytest.mark.slow
def test_after_everything_was_killed_the_next_start_continues_and_can_be_stopped(
    federation: RealFederation,
) -> None:
    assert federation.process is not None
    paused = [
        *running(federation.silo(0).path),
        *running(federation.folder.moderator.path, "federation\0moderator"),
    ]
    send(paused, signal.SIGSTOP)
    federation.process.kill()
    federation.process.wait()
    before = federation.rows()
    federation.start()
    # the app still runs, and may finish the round to which silo 0 had replied
    federation.wait_for(lambda: federation.present(0)[-1] > len(before), seconds=300)
    assert not any(map(is_alive, paused))
    assert federation.rows()[: len(before)] == before

    federation.process.terminate()
    assert federation.wait() == 130
    said = (federation.folder.path / "up.log").read_text(encoding="utf-8")
    assert "continue with `feddig federation up" in said
    assert not any(running(party) for party in federation.parties)
