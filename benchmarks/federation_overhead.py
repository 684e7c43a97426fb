"""Measure the time of a round in a real federation and in one process, on this machine.

    python benchmarks/federation_overhead.py --out benchmarks/results/federation_overhead.json

No silo is absent and nothing fails. One process is measured before and after, so that a change of the machine's load
shows. Flower starts a process for every message to a silo; how long that takes before the silo can begin to train is
measured separately: for all silos at once, as in a round here, and for one alone, as on a machine of its own.
"""

import argparse
import json
import logging
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from rehearsed_federation import LoadWatch, RehearsedFederation, small_experiment

from feddig.errors import FedDigError
from feddig.experiment.experiment import Experiment
from feddig.federation.folders import SiloFolder
from feddig.federation.processes.processes import party_environment
from feddig.files import write_atomically
from feddig.runs.run import run

PARTS = ("seconds", "seconds_silos", "seconds_joint")
OPEN = """
import sys, time
began = time.perf_counter()
from pathlib import Path
import flwr.supernode.runtime.run_clientapp
from feddig.federation.silo import open_silo
imported = time.perf_counter()
open_silo(Path(sys.argv[1]))
print(imported - began, time.perf_counter() - imported)
"""
POLL_SECONDS = 1.0


def main() -> None:
    """Measure one process, the federation, and one process again."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--silos", type=int, default=4)
    parser.add_argument("--images", type=int, default=800, help="training images in all; 0: all there are")
    parser.add_argument("--work", type=Path, default=Path("results/federation-overhead"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.getLogger("feddig").setLevel(logging.WARNING)
    experiment = small_experiment(silos=options.silos, rounds=options.rounds, limit=options.images, seed=0)
    load = LoadWatch()
    before = in_one_process(experiment, options.work / "before", load)
    federation = RehearsedFederation.make(options.work / "federation", experiment, deadline=300.0)
    with federation:
        finish(federation, load)
        together, alone = open_silos(federation.silos), open_silos(federation.silos[:1])
    deployed = medians(federation.rows())
    after = in_one_process(experiment, options.work / "after", load)
    result = {
        "format_version": 1,
        "command": "python benchmarks/federation_overhead.py",
        "rounds": options.rounds,
        "silos": options.silos,
        "images": options.images,
        "load": load.summary(),
        "one_process": before,
        "federation": deployed,
        "one_process_again": after,
        "opening_together": together,
        "opening_alone": alone,
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


def finish(federation: RehearsedFederation, load: LoadWatch) -> None:
    """Run the federation to its end."""
    federation.up()
    process = federation.process
    assert process is not None
    while process.poll() is None:
        load.sample()
        time.sleep(POLL_SECONDS)
    if process.returncode:
        raise FedDigError(f"`federation up` ended with {process.returncode}; see up.log")


def medians(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the medians of a round's times, without the first round, which also collects digests."""
    return {part: median(row[part] for row in rows[1:]) for part in PARTS}


def open_silos(silos: Sequence[SiloFolder]) -> dict[str, float]:
    """Start for all of these silos at once what Flower starts for a message, up to the training."""
    began = time.perf_counter()
    started = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", OPEN, str(silo.path)],
            env=party_environment(silo.path, silo.flower_home),
            stdout=subprocess.PIPE,
            text=True,
        )
        for silo in silos
    ]
    said = [process.communicate()[0].split() for process in started]
    return {
        "seconds": time.perf_counter() - began,
        "seconds_importing": median(float(one[0]) for one in said),
        "seconds_reading_data": median(float(one[1]) for one in said),
    }


def show(result: Mapping[str, Any]) -> None:
    """Print medians, and where the difference goes."""
    print(f"{'median seconds a round':<26}{'all':>8}{'silos':>8}{'joint':>8}")
    for name in ("one_process", "federation", "one_process_again"):
        print(f"{name.replace('_', ' '):<26}" + "".join(f"{result[name][part]:>8.2f}" for part in PARTS))
    for name in ("opening_together", "opening_alone"):
        parts = {key.removeprefix("seconds_"): round(value, 2) for key, value in result[name].items()}
        print(f"{name.replace('_', ' ')}: {parts}")
    print(f"load {result['load']}")


if __name__ == "__main__":
    main()
