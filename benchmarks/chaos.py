"""A federation that is made to suffer, and what is left of it in the end.

    python benchmarks/chaos.py --work results/chaos --out benchmarks/results/chaos.json

Real processes on this machine: a moderator and silos, FedDig on a part of the bundled images. Every three rounds on
average a silo is killed, stopped, hung, restarted or made to lie, at most two at once; the moderator's app, the
SuperLink and the whole federation are killed with -9 in between. Twice all silos fall silent at once, and once the
SuperLink does, as if a network was cut: their processes are stopped for a while. What is drawn follows from --seed;
what happens also depends on how fast the machine is. In the end all rounds must be done, each with enough silos, and
nothing lost, and the same rounds in one process, with those silos away that really were, must come to the same
accuracy. Writes OUT and a picture beside it.
"""

import argparse
import itertools
import json
import logging
import re
import signal
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from io import BytesIO
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure
from rehearsed_federation import (
    APP,
    LINK,
    NODE,
    SUPERVISOR,
    LoadWatch,
    RehearsedFederation,
    send,
    small_experiment,
)

from feddig.core.absence import read_absence
from feddig.digest.digest_file import read_digest
from feddig.errors import FedDigError
from feddig.federation.contract import read_contract
from feddig.federation.processes.processes import running
from feddig.files import write_atomically
from feddig.privacy.ledger import Ledger
from feddig.report.curve_styles import BLUE, GREEN, OCHRE, PALETTE, WINE
from feddig.report.pictures import AWAY, HERE
from feddig.runs.run import run

KINDS = ("kill", "stop", "hang", "restart", "bad reply")
LIES = ("nan", "too short", "too large", "no steps", "another round", "another silo", "exception")
"""What lying_silo/ lets a silo reply."""
KILLS = ("app in training", "app in the joint update", "SuperLink", "everything")
SILOS, NETWORK = "all silos", "SuperLink"
OUTAGES = (SILOS, NETWORK, SILOS)
MOST_DOWN, LAST_ROUNDS, POINTS = 2, 10, 2.0
MOST_UNEXPLAINED = 2
"""Rounds in a row: what a kill of the moderator may cost a silo that was in the middle of something."""
POLL_SECONDS, SCAN_SECONDS, STUCK_SECONDS, LONGEST_DELAY = 0.05, 0.5, 600.0, 5.0
LONGEST_FAULT = 20.0
"""Seconds for each round that a fault lasts."""
MARKS = {"kill": "x", "stop": "s", "hang": "d", "restart": "^", "bad reply": "*"}

Check = tuple[str, bool, str]


@dataclass
class Fault:
    """Something that is done to a silo."""

    round: int
    """When it is due; it waits while two silos are down."""
    kind: str
    lie: str
    lasts: int
    """For so many rounds, where that is ours to say."""
    delay: float
    order: Sequence[int]
    """Which silo it hits: the first of these that is not down."""
    silo: int | None = None
    played: int | None = None
    """How many rounds were done when it was played."""
    ended: int | None = None
    back: int | None = None
    """The first round after it that counted the silo's reply."""
    since: float = 0.0
    processes: set[int] = field(default_factory=set)

    @property
    def down(self) -> bool:
        """Whether its silo has not yet been seen again."""
        return self.played is not None and self.back is None


@dataclass
class Kill:
    """Something of the moderator's that is killed with -9."""

    round: int
    what: str
    played: int | None = None
    seconds: float | None = None
    """Until the next round was finished, that round included."""


@dataclass
class Outage:
    """A time in which all silos, or the SuperLink, answer nobody."""

    round: int
    what: str
    seconds: float
    played: int | None = None
    ended: int | None = None
    began: float = 0.0
    processes: set[int] = field(default_factory=set)

    @property
    def lasts(self) -> bool:
        """Whether it has begun and not ended."""
        return self.played is not None and self.ended is None


def draw_plan(
    rounds: int, silos: int, seed: int, outage_seconds: float
) -> tuple[list[Fault], list[Kill], list[Outage]]:
    """Draw what will be done when: a fault every three rounds, all kinds alike, a kill in each quarter, the outages."""
    stream = np.random.default_rng(seed)
    number, first, last = max(1, rounds // 3), 1, max(2, rounds - 4)
    whens = [int(np.clip(3 * place + stream.integers(3), first, last)) for place in range(number)]
    kinds = stream.permutation([KINDS[place % len(KINDS)] for place in range(number)])
    lies = itertools.cycle(stream.permutation([*LIES]))
    faults = [
        Fault(
            round=when,
            kind=str(kind),
            lie=str(next(lies)) if kind == "bad reply" else "hang" if kind == "hang" else "",
            lasts=int(stream.integers(1, 4)),
            delay=float(stream.uniform(0, LONGEST_DELAY)),
            order=[int(silo) for silo in stream.permutation(silos)],
        )
        for when, kind in zip(whens, kinds, strict=True)
    ]
    quarters = np.array_split(np.arange(first, last), len(KILLS))
    kills = [
        Kill(int(stream.choice(quarter)) if len(quarter) else last, str(what))
        for quarter, what in zip(quarters, stream.permutation(KILLS), strict=True)
    ]
    thirds = np.array_split(np.arange(first, last), len(OUTAGES))
    outages = [
        Outage(int(stream.choice(third)) if len(third) else last, what, outage_seconds)
        for third, what in zip(thirds, OUTAGES, strict=True)
    ]
    return faults, kills, outages


class Chaos:
    """Plays the faults and watches what becomes of the federation."""

    def __init__(
        self, federation: RehearsedFederation, faults: list[Fault], kills: list[Kill], outages: list[Outage]
    ) -> None:
        self._federation, self.faults, self.kills, self.outages = federation, faults, kills, outages
        self.digests: dict[int, str] = {}
        """The digests' hashes as they were when they first lay there."""
        self.most_down, self.load = 0, LoadWatch()
        self._rows: list[dict[str, Any]] = []
        self._rounds, self._reached = 0, time.monotonic()

    def play(self) -> None:
        """Play everything; return when the federation ended by itself."""
        self._federation.up()
        looked = 0.0
        while True:
            self._look()
            self._kill_due()
            # looking through all processes takes time that the federation needs
            if time.monotonic() - looked > SCAN_SECONDS:
                looked = time.monotonic()
                self.load.sample()
                self._end_outages()
                if not any(outage.lasts for outage in self.outages):
                    self._end_faults()
                    self._play_due()
                    self._begin_outage()
            if self._has_ended():
                self._look()
                return
            time.sleep(POLL_SECONDS)

    def _has_ended(self) -> bool:
        """Tell whether the federation has come to its end; an end that is none is an error."""
        process = self._federation.process
        if process is not None and process.poll() is not None:
            if process.returncode != 0:
                raise FedDigError(f"`federation up` ended with {process.returncode}; see up.log")
            return True
        if time.monotonic() - self._reached > STUCK_SECONDS:
            raise FedDigError(f"no round was finished in {STUCK_SECONDS:g} s")
        return False

    def _look(self) -> None:
        """See how many rounds are done, and who is back."""
        status = self._federation.status()
        if status is None or status.rounds_done == self._rounds:
            return
        self._rounds, self._reached = status.rounds_done, time.monotonic()
        self._rows = self._federation.rows()
        for fault in self.faults:
            if fault.down and fault.ended is not None:
                # the round in which it ended may still have counted a reply from before
                since = [
                    row["round"] for row in self._rows[fault.ended + 1 :] if fault.silo in row["present"]
                ]
                fault.back = since[0] if since else None
        for kill in self.kills:
            if kill.played is not None and kill.seconds is not None and kill.seconds < 0:
                kill.seconds += time.monotonic()
        for silo in range(len(self._federation.silos)):
            path = self._federation.results.digest_path(silo)
            if silo not in self.digests and path.exists():
                self.digests[silo] = read_digest(path).hash
        tell(
            f"{self._rounds} rounds done, down: {sorted(f.silo for f in self.faults if f.down and f.silo is not None)}"
        )

    def _play_due(self) -> None:
        for fault in self.faults:
            if fault.played is not None or fault.round > self._rounds:
                continue
            if self._rounds == fault.round and time.monotonic() - self._reached < fault.delay:
                continue
            down = {other.silo for other in self.faults if other.down}
            up = [silo for silo in fault.order if silo not in down]
            if len(down) >= MOST_DOWN or not up or not self._play(fault, up[0]):
                return
            self.most_down = max(self.most_down, len(down) + 1)

    def _play(self, fault: Fault, silo: int) -> bool:
        """Do it; a silo that is not at work just now is tried again later."""
        folder = self._federation.silos[silo]
        fault.silo = silo
        if fault.kind == "kill":
            if not (nodes := running(folder.path, NODE)):
                return False
            send(nodes, signal.SIGKILL)
            fault.ended = self._rounds
        elif fault.kind == "stop":
            fault.processes = set(running(folder.path))
            send(fault.processes, signal.SIGSTOP)
        elif fault.kind == "restart":
            if not (supervisors := running(folder.path, SUPERVISOR)):
                return False
            send(supervisors, signal.SIGTERM)
        else:
            write_atomically(folder.path / "lie", fault.lie)
        fault.played, fault.since = self._rounds, time.monotonic()
        tell(f"round {self._rounds}: silo {silo}: {fault.kind} {fault.lie}")
        return True

    def _end_faults(self, *, all_of_them: bool = False) -> None:
        """Let go of silos whose time is up."""
        for fault in self.faults:
            if fault.played is None or fault.ended is not None:
                continue
            assert fault.silo is not None
            folder = self._federation.silos[fault.silo]
            if fault.kind == "restart" and not all_of_them:
                # one after the other; a second one would wait for the first
                if not running(folder.path):
                    self._federation.start_silo(fault.silo)
                    fault.ended = self._rounds
                continue
            # the round in which a lie began may have been answered before
            lasts = fault.lasts + bool(fault.lie)
            # with two silos down no round is done, so the clock counts too
            over = time.monotonic() - fault.since > LONGEST_FAULT * lasts
            if not all_of_them and not over and self._rounds < fault.played + lasts:
                continue
            if fault.lie:
                (folder.path / "lie").unlink(missing_ok=True)
            send(fault.processes, signal.SIGCONT)
            fault.ended = self._rounds
            tell(f"round {self._rounds}: silo {fault.silo}: {fault.kind} ends")

    def _begin_outage(self) -> None:
        """Begin the next outage that is due, while the moderator has not just been killed."""
        due = [one for one in self.outages if one.played is None and one.round <= self._rounds]
        if not due or any(kill.seconds is not None and kill.seconds < 0 for kill in self.kills):
            return
        outage = due[0]
        if outage.what == SILOS:
            stopped = {process for fault in self.faults if fault.ended is None for process in fault.processes}
            outage.processes = {
                process for folder in self._federation.silos for process in running(folder.path)
            } - stopped
        else:
            outage.processes = set(running(self._federation.folder.moderator.path, LINK))
        send(outage.processes, signal.SIGSTOP)
        outage.played, outage.began = self._rounds, time.monotonic()
        tell(f"round {self._rounds}: {outage.what} fall silent for {outage.seconds:g} s")

    def _end_outages(self) -> None:
        for outage in self.outages:
            if outage.lasts and time.monotonic() - outage.began >= outage.seconds:
                send(outage.processes, signal.SIGCONT)
                outage.ended = self._rounds
                tell(f"round {self._rounds}: {outage.what} answer again")

    def _kill_due(self) -> None:
        """Kill the moderator when it is at what it is to be killed in."""
        if any(outage.lasts for outage in self.outages):
            return
        for kill in self.kills:
            if kill.played is not None or kill.round > self._rounds:
                continue
            status = self._federation.status()
            wanted = "joint" if kill.what == KILLS[1] else "training"
            if status is None or status.content["state"] != wanted:
                return
            if any(other.seconds is not None and other.seconds < 0 for other in self.kills):
                return  # one after the other
            self._kill(kill)
            return

    def _kill(self, kill: Kill) -> None:
        moderator, process = self._federation.folder.moderator.path, self._federation.process
        kill.played, kill.seconds = self._rounds, -time.monotonic()
        tell(f"round {self._rounds}: kill -9 of the moderator: {kill.what}")
        if kill.what in KILLS[:2]:
            send(running(moderator, APP), signal.SIGKILL)
        elif kill.what == "SuperLink":
            send(running(moderator, LINK), signal.SIGKILL)
        elif process is not None:
            # silos that were started by hand end too, so that `up` can start all of them; so do ours that are stopped
            self._end_faults(all_of_them=True)
            process.kill()
            for by_hand in self._federation.by_hand.values():
                by_hand.terminate()
            for ended in (process, *self._federation.by_hand.values()):
                ended.wait()
            self._federation.by_hand.clear()
            self._federation.up()


def tell(line: str) -> None:
    """Say how it goes."""
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def check(chaos: Chaos, federation: RehearsedFederation, rounds: int) -> list[Check]:
    """Check that all is done and nothing lost."""
    rows, silos = federation.rows(), federation.silos
    sent = {silo: read_digest(folder.digest).hash for silo, folder in enumerate(silos)}
    released = [{entry.digest for entry in Ledger(folder.ledger).entries()} for folder in silos]
    kept = {silo: read_digest(federation.results.digest_path(silo)).hash for silo in range(len(silos))}
    checkpoint = federation.results.read_checkpoint()
    held = {} if checkpoint is None else {silo: digest.hash for silo, digest in checkpoint.digests.items()}
    status = federation.status()
    roster = [] if status is None else [(one["name"], one["digest"]) for one in status.content["silos"]]
    starts = read_starts(federation.log())
    killed = sum(kill.played is not None for kill in chaos.kills)
    played = sum(fault.played is not None for fault in chaos.faults)
    unexplained = longest_unexplained(rows, fault_rows(chaos, rows), len(silos))
    enough = read_contract(federation.folder.contract).needed_silos(len(silos))
    few = sum(len(row["present"]) < enough for row in rows)
    cut = sum(one.what == NETWORK for one in chaos.outages)
    silent = [(one.ended or 0) - (one.played or 0) for one in chaos.outages]
    whole = checkpoint is not None and all(
        bool(torch.isfinite(one).all()) for one in checkpoint.state.values()
    )
    return [
        ("every round once", [row["round"] for row in rows] == list(range(rounds)), f"{len(rows)} of {rounds}"),
        ("every fault played", played == len(chaos.faults), f"{played} of {len(chaos.faults)}"),
        ("moderator killed", killed >= 3, f"{killed} times"),
        ("it waits in an outage", all(one.ended for one in chaos.outages) and max(silent) <= 1,
         f"{silent} rounds done in outages of {[one.seconds for one in chaos.outages]} s"),
        # in the round in which a moderator resumes, a silo that refuses the request counts as here
        (f"at least {enough} silos in a round", few <= killed, f"fewer in {few} of {len(rows)}"),
        ("at most two silos down", chaos.most_down <= MOST_DOWN, f"{chaos.most_down}"),
        ("nobody stays away without a fault", unexplained <= MOST_UNEXPLAINED,
         f"at most {unexplained} rounds in a row"),
        ("digests as at first", chaos.digests == kept == sent, f"{len(kept)} held"),
        ("one release a silo", all(len(one) == 1 for one in released), f"{[len(one) for one in released]}"),
        ("checkpoint loads", whole and checkpoint is not None and checkpoint.rounds == rounds and held == kept,
         f"{len(held)} digests, all numbers finite" if whole else "not whole"),
        ("roster has all", roster == [(folder.name, kept[silo]) for silo, folder in enumerate(silos)],
         f"{len(roster)} silos"),
        ("goes on from the last finished round", all(start == done for start, done in starts),
         "; ".join(f"at {start} after {done}" for start, done in starts[1:])),
        ("a round is begun again after kills and outages of the SuperLink alone", len(starts) - 1 <= killed + cut,
         f"{len(starts) - 1} new starts, {killed} kills, {cut} outages"),
    ]  # fmt: skip


def longest_unexplained(
    rows: Sequence[Mapping[str, Any]], faults: Sequence[Mapping[str, Any]], silos: int
) -> int:
    """Give for how many rounds in a row some silo was away though nothing was done to it."""
    longest = 0
    for silo in range(silos):
        hit = {round for fault in faults if fault["silo"] == silo for round in fault["missed"]}
        away = [row["round"] not in hit and silo not in row["present"] for row in rows]
        longest = max(longest, *(len([*run]) for gone, run in itertools.groupby(away) if gone), 0)
    return longest


def read_starts(log: str) -> list[tuple[int, int]]:
    """Read of each process of the moderator's with which round it began, and how many were finished before."""
    starts, done = [], 0
    for line in log.splitlines():
        if re.search(r" INFO FedDig .*, process \d+$", line):
            starts.append((0, done))
        elif found := re.search(r" INFO resumed after (\d+) rounds$", line):
            starts[-1] = (int(found[1]), done)
        elif found := re.search(r" INFO round (\d+) of \d+  accuracy", line):
            done = int(found[1])
    return starts


def replay(federation: RehearsedFederation, work: Path) -> list[dict[str, Any]]:
    """Run the same rounds in one process, with those away who really were."""
    run(federation.in_one_process(federation.results.path / "availability.csv"), work, device="cpu")
    return [json.loads(line) for line in (work / "metrics.jsonl").read_text().splitlines()]


def fault_rows(chaos: Chaos, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Tell of each fault what it did."""
    found = []
    for fault in sorted(chaos.faults, key=lambda one: (one.played is None, one.played)):
        facts = {
            key: value for key, value in asdict(fault).items() if key not in ("processes", "order", "since")
        }
        stretch = rows[fault.played or 0 : fault.back if fault.back is not None else len(rows)]
        missed = [row["round"] for row in stretch if fault.silo not in row["present"]]
        recalled = [row["round"] for row in stretch if fault.silo in row["recalled"]]
        found.append({**facts, "delay": round(fault.delay, 2), "missed": missed, "recalled": recalled})
    return found


def count_warnings(log: str) -> dict[str, int]:
    """Count what the moderator's log says of silos."""
    patterns: dict[str, str] = {
        "no reply by the deadline": r"no reply to \w+",
        "late replies dropped": r"came late and is dropped",
        "replies refused": r"its reply is refused",
        "node unavailable": r"Node Unavailable",
        "app failed": r"could not answer",
    }
    return {name: len(re.findall(pattern, log)) for name, pattern in patterns.items()}


def draw(result: Mapping[str, Any]) -> bytes:
    """Draw both curves, and under them who was there and what was done to whom."""
    figure = Figure(figsize=(9, 5.5), layout="constrained")
    curves, table = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    curves.plot(result["curve"], color=PALETTE[BLUE][0], linewidth=3, label="federation")
    curves.plot(
        result["replay_curve"], color=PALETTE[OCHRE][0], linestyle="--", label="replayed in one process"
    )
    for kill in (one for one in result["kills"] if one["played"] is not None):
        for axes in (curves, table):
            axes.axvline(kill["played"], color=PALETTE[WINE][0], linewidth=1, linestyle=":")
        curves.text(
            kill["played"], 0.02, kill["what"], transform=curves.get_xaxis_transform(), rotation=90, fontsize=7,
            ha="right", va="bottom", color=PALETTE[WINE][0],
        )  # fmt: skip
    for outage in (one for one in result["outages"] if one["played"] is not None):
        curves.axvline(outage["played"], color=PALETTE[GREEN][0], linewidth=1)
        curves.text(
            outage["played"], 0.02, f"{outage['what']} silent", transform=curves.get_xaxis_transform(), rotation=90,
            fontsize=7, ha="right", va="bottom", color=PALETTE[GREEN][0],
        )  # fmt: skip
    for silo, here in enumerate(result["availability"]):
        for round, present in enumerate(here):
            table.broken_barh([(round - 0.5, 1)], (silo - 0.4, 0.8), facecolors=HERE if present else AWAY)
    for kind, mark in MARKS.items():
        of_kind = [one for one in result["faults"] if one["kind"] == kind and one["played"] is not None]
        places = [one["played"] for one in of_kind], [one["silo"] for one in of_kind]
        table.scatter(*places, marker=mark, color="black", s=22, label=kind, zorder=3)
    curves.set_ylabel("test accuracy (%)")
    curves.set_title("A federation under faults; dotted: the moderator is killed")
    curves.grid(alpha=0.25)
    curves.legend(frameon=False, loc="center right")
    table.set_ylim(result["silos"] - 0.5, -0.5)
    table.set_yticks(range(result["silos"]))
    table.set_ylabel("silo")
    table.set_xlabel("round      (dark: its reply counted, light: its digest stands in)")
    table.legend(frameon=False, ncols=len(MARKS), loc="upper center", bbox_to_anchor=(0.5, -0.35), fontsize=8)
    stream = BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return stream.getvalue()


def show(result: Mapping[str, Any]) -> None:
    """Print what was done, what became of it, and the comparison."""
    print(f"{'round':>5}  {'fault':<24}{'silo':>4}  {'back in':>7}  missed")
    for fault in result["faults"]:
        name = f"{fault['kind']}: {fault['lie']}" if fault["lie"] else fault["kind"]
        print(
            f"{fault['played']!s:>5}  {name:<24}{fault['silo']!s:>4}  {fault['back']!s:>7}  {len(fault['missed'])}"
        )
    for kill in result["kills"]:
        seconds = "-" if kill["seconds"] is None else f"{kill['seconds']:.0f} s until the next round was done"
        print(f"{kill['played']!s:>5}  kill -9: {kill['what']}, {seconds}")
    for outage in result["outages"]:
        rounds = (outage["ended"] or 0) - (outage["played"] or 0)
        print(
            f"{outage['played']!s:>5}  {outage['what']} silent for {outage['seconds']:g} s, {rounds} rounds done in it"
        )
    for name, holds, said in result["checks"]:
        print(f"{'holds' if holds else 'FAILS'}  {name}: {said}")
    print(
        f"mean accuracy of the last {LAST_ROUNDS} rounds: federation {result['mean_last']:.2f}, "
        f"replayed {result['replay_mean_last']:.2f}; largest difference in any round {result['largest_difference']:.2f}"
    )
    print(
        f"{result['seconds']:.0f} s in all, {result['median_seconds']:.1f} s a round (median), load {result['load']}"
    )


def conclude(
    chaos: Chaos, federation: RehearsedFederation, work: Path, facts: dict[str, Any]
) -> dict[str, Any]:
    """Check, replay, and put together what came of it."""
    rows = federation.rows()
    checks = check(chaos, federation, facts["rounds"])
    again = replay(federation, work / "replay")
    last = slice(-LAST_ROUNDS, None)
    mean, mean_again = (
        fmean(row["accuracy"] for row in rows[last]),
        fmean(row["test_accuracy"] for row in again[last]),
    )
    checks.append(
        (
            f"replay within {POINTS:g} points",
            abs(mean - mean_again) <= POINTS,
            f"{abs(mean - mean_again):.2f}",
        )
    )
    present = read_absence(federation.results.path / "availability.csv").present
    return {
        "format_version": 1,
        "command": "python benchmarks/chaos.py",
        **facts,
        "load": chaos.load.summary(),
        "median_seconds": median(row["seconds"] for row in rows),
        "faults": fault_rows(chaos, rows),
        "kills": [asdict(kill) for kill in chaos.kills],
        "outages": [
            {"what": one.what, "seconds": one.seconds, "played": one.played, "ended": one.ended}
            for one in chaos.outages
        ],
        "said": count_warnings(federation.log()),
        "rounds_by_silos_away": dict(sorted(Counter((~present).sum(axis=0).tolist()).items())),
        "checks": checks,
        "mean_last": mean,
        "replay_mean_last": mean_again,
        "largest_difference": max(
            abs(one["accuracy"] - other["test_accuracy"]) for one, other in zip(rows, again, strict=True)
        ),
        "curve": [row["accuracy"] for row in rows],
        "replay_curve": [row["test_accuracy"] for row in again],
        "availability": present.astype(int).tolist(),
    }  # fmt: skip


def main() -> None:
    """Make a federation, play, check, replay and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--silos", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=2400, help="training images in all")
    parser.add_argument(
        "--epochs", type=int, default=5, help="of training in a round, which makes rounds longer"
    )
    parser.add_argument("--outage", type=float, default=45.0, help="seconds of an outage")
    parser.add_argument(
        "--deadline", type=float, default=30.0, help="seconds; a hang costs a round this long"
    )
    parser.add_argument("--work", type=Path, default=Path("results/chaos"), help="new folder for all of it")
    parser.add_argument("--out", type=Path, help="JSON; the picture lies beside it")
    options = parser.parse_args()
    logging.getLogger("feddig").setLevel(logging.WARNING)
    experiment = small_experiment(
        silos=options.silos,
        rounds=options.rounds,
        limit=options.images,
        seed=options.seed,
        epochs=options.epochs,
    )
    federation = RehearsedFederation.make(options.work / "federation", experiment, deadline=options.deadline)
    chaos = Chaos(federation, *draw_plan(options.rounds, options.silos, options.seed, options.outage))
    began = time.monotonic()
    with federation:
        chaos.play()
    facts = {
        "rounds": options.rounds,
        "silos": options.silos,
        "seed": options.seed,
        "images": options.images,
        "epochs": options.epochs,
        "deadline": options.deadline,
        "seconds": time.monotonic() - began,
    }
    result = conclude(chaos, federation, options.work, facts)
    show(result)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(options.out, json.dumps(result, indent=1) + "\n")
        write_atomically(options.out.with_suffix(".png"), draw(result))
    if not all(holds for _, holds, _ in result["checks"]):
        sys.exit(1)


if __name__ == "__main__":
    main()
