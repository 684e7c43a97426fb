"""Measure the time of a round in a real federation and in one process, on this machine.

    python benchmarks/federation_overhead.py --out benchmarks/results/federation_overhead.json
    python benchmarks/federation_overhead.py --validation --out benchmarks/results/federation_overhead_validation.json
    python benchmarks/federation_overhead.py --silos 32 --images 0 --out benchmarks/results/federation_load.json

No silo is absent and nothing fails. One process is measured before and after, so that a change of the machine's load
shows. With --validation the moderator has no test images, and asks silos for their accuracy by a second message.
"""

import argparse
import json
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rehearsed_federation import (
    APP,
    LINK,
    LoadWatch,
    RehearsedFederation,
    peak_memory,
    small_experiment,
)

from feddig.errors import FedDigError
from feddig.experiment.experiment import Experiment
from feddig.federation.processes.processes import running
from feddig.files import write_atomically
from feddig.runs.run import run

PARTS = ("seconds", "seconds_silos", "seconds_joint")
POLL_SECONDS = 0.25


def main() -> None:
    """Measure one process, the federation, and one process again, in a folder."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--silos", type=int, default=4)
    parser.add_argument("--images", type=int, default=800, help="training images in all; 0: all there are")
    parser.add_argument("--algorithm", default="feddig")
    parser.add_argument("--validation", action="store_true", help="accuracy by a second message to the silos")
    parser.add_argument("--work", type=Path, help="a new folder to keep; left out, a temporary one")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.work is None:
        with TemporaryDirectory() as work:
            measure(options, Path(work))
    else:
        measure(options, options.work)


def measure(options: argparse.Namespace, work: Path) -> None:
    """Measure in this folder, and write what was found."""
    logging.getLogger("feddig").setLevel(logging.WARNING)
    experiment = small_experiment(
        silos=options.silos, rounds=options.rounds, limit=options.images, seed=0, algorithm=options.algorithm
    )
    load = LoadWatch()
    before = in_one_process(experiment, work / "before", load)
    federation = RehearsedFederation.make(work / "federation", experiment, deadline=300.0)
    if options.validation:
        federation.folder.moderator.test_set.unlink()
    with federation:
        first, memory = finish(federation, load)
    rows = federation.rows()
    everybody = [*range(options.silos)]
    complete = sum(row["present"] == everybody for row in rows)
    deployed = medians(rows)
    after = in_one_process(experiment, work / "after", load)
    result = {
        "format_version": 1,
        "command": "python benchmarks/federation_overhead.py",
        "algorithm": options.algorithm,
        "rounds": options.rounds,
        "silos": options.silos,
        "images": options.images,
        "validation": options.validation,
        "rounds_with_all_silos": complete,
        "load": load.summary(),
        "one_process": before,
        "federation": deployed,
        "one_process_again": after,
        "seconds_to_first_round": first,
        "peak_memory": memory,
    }
    show(result)
    if options.out:
        write_atomically(options.out, json.dumps(result, indent=1) + "\n")


def in_one_process(experiment: Experiment, out: Path, load: LoadWatch) -> dict[str, float]:
    """Run the experiment here."""
    load.sample()
    run(experiment, out, device="cpu")
    load.sample()
    return medians([json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()])


def finish(federation: RehearsedFederation, load: LoadWatch) -> tuple[float, dict[str, dict[str, int]]]:
    """Run the federation to its end; return the seconds until its first round was done, and the moderator's memory.

    Memory is the peak of the app and of the SuperLink, after the first round and at the end, in bytes.
    """
    began, first = time.monotonic(), 0.0
    memory: dict[str, dict[str, int]] = {}
    federation.up()
    process = federation.process
    assert process is not None
    while process.poll() is None:
        load.sample()
        time.sleep(POLL_SECONDS)
        rows = federation.rows()
        if not first and rows:
            first = time.monotonic() - began
        for name, program in (("app", APP), ("SuperLink", LINK)):
            peak = peak_memory(running(federation.folder.moderator.path, program))
            if rows and peak:
                found = memory.setdefault(name, {"first": peak})
                found["last"] = max(peak, found.get("last", 0))
    if process.returncode:
        raise FedDigError(f"`federation up` ended with {process.returncode}; see up.log")
    return first, memory


def medians(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the medians of a round's times, without the first round, which also collects digests."""
    return {part: median(row[part] for row in rows[1:]) for part in PARTS}


def show(result: Mapping[str, Any]) -> None:
    """Print medians, and where the difference goes."""
    print(f"{'median seconds a round':<26}{'all':>8}{'silos':>8}{'joint':>8}")
    for name in ("one_process", "federation", "one_process_again"):
        print(f"{name.replace('_', ' '):<26}" + "".join(f"{result[name][part]:>8.2f}" for part in PARTS))
    print(f"from the start to the end of the first round: {result['seconds_to_first_round']:.1f} s")
    print(f"rounds with all silos: {result['rounds_with_all_silos']} of {result['rounds']}")
    for name, peaks in result["peak_memory"].items():
        first, last = (peaks[when] / 2**20 for when in ("first", "last"))
        print(f"peak memory of the {name}: {first:.0f} MiB after the first round, {last:.0f} MiB at the end")
    print(f"load {result['load']}")


if __name__ == "__main__":
    main()
