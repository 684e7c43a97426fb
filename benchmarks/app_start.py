"""Measure how long a silo's app takes until it can ask for its message: Flower starts one for every message.

    python benchmarks/app_start.py --out benchmarks/results/app_start.json

Our program and Flower's own command with the same app are started alternately. On a busy machine compare processor
time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from feddig.files import write_atomically

OURS = """
import sys
from feddig.federation.flower_1_41 import local_app
sys.argv = ["flwr-clientapp"]
try:
    local_app.main()
except SystemExit:  # there is no message here
    print(len(sys.modules))
"""
FLOWERS = """
import sys
import flwr.supernode.cli.flwr_clientapp
import feddig.federation.client_app
print(len(sys.modules))
"""


def start(script: str) -> dict[str, float]:
    """Start once; return the seconds, the processor's seconds and the number of modules."""
    before, began = os.times(), time.perf_counter()
    done = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, text=True, check=True)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return {"seconds": time.perf_counter() - began, "processor": used, "modules": int(done.stdout)}


def main() -> None:
    """Start both alternately and print the medians."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    scripts = {"ours": OURS, "flowers": FLOWERS}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in scripts}
    for place in range(options.repeats):
        # neither always goes first
        for name in sorted(scripts, reverse=bool(place % 2)):
            found[name].append(start(scripts[name]))
    rows = {
        name: {key: statistics.median(one[key] for one in starts) for key in starts[0]}
        for name, starts in found.items()
    }
    for name, row in rows.items():
        print(
            f"{name:<8} {row['seconds']:6.2f} s, {row['processor']:.2f} s of processor, {row['modules']:.0f} modules"
        )
    if options.out:
        result = {
            "format_version": 1,
            "command": "python benchmarks/app_start.py",
            "repeats": options.repeats,
            "cores": os.cpu_count(),
            "load": os.getloadavg()[0],
            "rows": rows,
        }
        write_atomically(options.out, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
