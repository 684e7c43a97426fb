"""Each party as a process of its own, as on machines of their own: what its console says, and when it ends."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="needs the extra `flower`")

from feddig.federation.status import read_status
from real_parties import NODE, SILOS, RealFederation, kill, stop

pytestmark = [
    pytest.mark.flower,
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds processes in /proc"),
]

STAMPED = re.compile(r"20\d\d-\d\d-\d\d[ T]\d\d:\d\d:\d\d[,.]\d{3}Z? (DEBUG|INFO|WARNING|ERROR) ")


class Parties:
    """Starts parties, and keeps what each of them says."""

    def __init__(self, federation: RealFederation) -> None:
        self.federation = federation
        self.started: list[subprocess.Popen[bytes]] = []

    def folder(self, party: str) -> Path:
        whole = self.federation.folder
        return whole.moderator.path if party == "moderator" else whole.silo(party).path

    def start(self, party: str) -> subprocess.Popen[bytes]:
        """Start a party in its own folder, as its run sheet says."""
        command = "moderator" if party == "moderator" else "silo"
        with self.console(party).open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "feddig", "federation", command, "."],
                cwd=self.folder(party),
                stdout=said,
                stderr=subprocess.STDOUT,
            )
        self.started.append(process)
        return process

    def console(self, party: str) -> Path:
        return self.federation.folder.path / f"{party}.console"

    def said(self, party: str) -> str:
        return self.console(party).read_text(encoding="utf-8")

    def wait_for(self, holds: Callable[[], object], seconds: float = 120.0) -> None:
        last = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < last, {one.name: one.read_text() for one in self.consoles()}
            time.sleep(0.1)

    def consoles(self) -> list[Path]:
        return sorted(self.federation.folder.path.glob("*.console"))

    def state(self, silo: int) -> str:
        """Return a silo's state, as the moderator tells it."""
        status = read_status(self.federation.folder.moderator.status)
        return "" if status is None else str(status.content["silos"][silo]["state"])


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[int], Parties]]:
    begun: list[Parties] = []

    def make(rounds: int) -> Parties:
        federation = RealFederation(
            tmp_path / "federation", f"training.rounds={rounds}", training_deadline=20.0
        )
        begun.append(Parties(federation))
        return begun[-1]

    yield make
    for parties in begun:
        stop(parties.started, parties.federation.parties)


def test_each_party_tells_its_part_and_ends_by_itself(begin: Callable[[int], Parties]) -> None:
    parties = begin(8)
    whole, silo = parties.federation.folder, parties.federation.silo(1)
    data, away = silo.path / "data.npz", silo.path / "away.npz"
    data.rename(away)
    processes = [parties.start(party) for party in ("moderator", "silo-0", "silo-1")]

    parties.wait_for(lambda: parties.state(1) == "broken")
    (told,) = [line for line in parties.said("silo-1").splitlines() if "takes no part" in line]
    assert re.search(rf" ERROR silo\.toml: data\.path: {re.escape(str(data))} is not a file; ", told)
    assert parties.state(0) == "here"
    away.rename(data)
    assert [process.wait(180) for process in processes] == [0, 0, 0]

    model = (whole.moderator.run / "model.safetensors").read_bytes()
    for number in range(SILOS):
        own, said = parties.federation.silo(number), parties.said(f"silo-{number}")
        assert own.model.read_bytes() == model
        assert said.splitlines()[-1].endswith(
            f" INFO finished: 8 rounds, answered 8 of them; the model is in {own.model}"
        )
        for part in ("round 8, train: asked", "round 8: trained on ", "round 8, train: sent after "):
            assert said.count(f" INFO {part}") == 1
    said = parties.said("moderator")
    assert "broken: silo-1" in said
    assert re.search(r" round 8 of 8  accuracy [\d.]+ % \(test\)  replied: silo-0, silo-1\n", said)
    assert {int(one) for one in re.findall(r" round (\d) of 8  ", said)} == set(range(1, 9))
    result, page = said.splitlines()[-2:]
    assert result.startswith("run: 8 rounds, accuracy ")
    assert page == "page     run/report.html"
    assert str(data) not in said + parties.federation.log(), "the moderator does not hear of silos' paths"
    assert parties.federation.log().count("silo-1 is broken") >= 1

    logs = [*whole.moderator.logs.iterdir(), *silo.logs.iterdir(), whole.moderator.run / "log.txt"]
    for file in [*logs, *parties.consoles()]:
        text = file.read_text(encoding="utf-8")
        assert "\x1b" not in text, file
        odd = [line for line in text.splitlines() if not STAMPED.match(line) and line not in (result, page)]
        assert not odd, (file, odd)

    # a silo that is started after the end, with no moderator there
    assert parties.start("silo-1").wait(60) == 0
    assert parties.said("silo-1").count(" INFO finished: 8 rounds, answered 8 of them; ") == 2


def test_a_silo_that_did_not_accept_the_next_version_is_named_until_it_does(
    begin: Callable[[int], Parties],
) -> None:
    parties = begin(2)
    whole, silo = parties.federation.folder, parties.federation.silo(1)
    first = silo.contract.read_bytes()
    feddig = [sys.executable, "-m", "feddig", "federation"]
    subprocess.run([*feddig, "extend", whole.path, "--rounds", "3"], check=True)
    silo.contract.write_bytes(first)
    processes = [parties.start(party) for party in ("moderator", "silo-0", "silo-1")]
    differ = "the silo holds version 1 of the contract and the moderator follows version 2; run `feddig federation "
    said = f"{differ}accept . federation-2.toml` in the silo's folder"
    parties.wait_for(lambda: f": silo-1 is broken: {said}" in parties.said("moderator"))
    assert said in parties.said("silo-1")
    assert f"silo-1 is broken: {said}; it is asked again" in parties.federation.log()
    status = subprocess.run([*feddig, "status", whole.path], check=True, capture_output=True, text=True)
    assert f"silo-1 is broken: {said}\n" in status.stdout
    accept = [*feddig, "accept", ".", whole.path / "federation-2.toml", "--yes"]
    subprocess.run(accept, cwd=silo.path, check=True)
    assert [process.wait(180) for process in processes] == [0, 0, 0]
    assert "finished: 3 rounds, answered 3 of them" in parties.said("silo-1")


def test_a_silo_outlives_its_moderator_and_gets_the_model_when_it_comes_late(
    begin: Callable[[int], Parties],
) -> None:
    parties = begin(30)
    status, log = parties.federation.folder.moderator.status, parties.federation.log
    moderator, silo, late = (parties.start(party) for party in ("moderator", "silo-0", "silo-1"))
    parties.wait_for(lambda: "round 2 of 30" in log())
    moderator.send_signal(signal.SIGTERM)
    assert moderator.wait(60) == 130
    assert "stopped before the end; continue with `feddig federation moderator .`" in parties.said(
        "moderator"
    )
    late.send_signal(signal.SIGTERM)
    assert late.wait(60) == 0
    time.sleep(5)
    assert silo.poll() is None

    moderator = parties.start("moderator")
    parties.wait_for(lambda: (found := read_status(status)) and found.content["state"] == "sending", 240)
    assert silo.wait(60) == 0
    assert moderator.poll() is None
    assert "sending the model to: silo-1" in parties.said("moderator")
    assert parties.start("silo-1").wait(60) == 0
    assert moderator.wait(60) == 0
    model = (parties.federation.folder.moderator.run / "model.safetensors").read_bytes()
    assert parties.federation.silo(1).model.read_bytes() == model
    assert json.loads(status.read_text(encoding="utf-8"))["silos"][1]["received"]
    assert re.search(r"finished: 30 rounds, answered \d of them", parties.said("silo-1"))


def test_a_killed_node_is_told_in_whole_lines(begin: Callable[[int], Parties]) -> None:
    parties = begin(200)
    silo = parties.federation.silo(1)
    for party in ("moderator", "silo-0", "silo-1"):
        parties.start(party)
    parties.wait_for(lambda: "round 2 of 200" in parties.federation.log())
    kill(silo.path, NODE)
    # a node may be refused before that too, while the moderator starts
    parties.wait_for(lambda: "refused: " in parties.said("silo-1").partition("the node ended (signal 9)")[2])
    said = parties.said("silo-1")
    assert " WARNING the node ended (signal 9); starting it again in 5 s\n" in said
    log = (silo.logs / "node.log").read_text(encoding="utf-8")
    assert " ERROR feddig: error: " in log
    assert not [line for line in (said + log).splitlines() if not STAMPED.match(line)]
