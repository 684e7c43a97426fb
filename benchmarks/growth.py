"""Measure how the time of a round grows with silos, digests and rounds, and the cost of a checkpoint.

    python benchmarks/growth.py --out benchmarks/results/growth.json

The paper's setting (see paper_round.py) with FedDig, all silos present unless stated otherwise.
"""

import argparse
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from paper_round import IMAGES, SHARES, Case, Federation, draw_images

from feddig.data.dataset import Images
from feddig.experiment.setup import choose_device, choose_precision, describe_device, prepare_device
from feddig.files import write_atomically
from feddig.runs.results_folder import ResultsFolder

SILOS = (4, 16, 64, 256)
DIGESTS = (1, 4, 16)
ROUNDS = (10, 100, 1000)


def measure(federation: Federation, repeats: int) -> dict[str, Any]:
    """Time one checkpoint and the rounds after the first two, which compile and record."""
    for _ in range(2):
        federation.time_round()
    seconds = [federation.time_round()[0] for _ in range(repeats)]
    row: dict[str, Any] = {"seconds": statistics.median(seconds), "least": min(seconds), "most": max(seconds)}
    with tempfile.TemporaryDirectory() as place:
        folder = ResultsFolder(Path(place) / "run")
        folder.create()
        times = []
        for _ in range(3):
            started = time.perf_counter()
            folder.write_checkpoint(1, federation.moderator.state(), federation.moderator.digests, {})
            times.append(time.perf_counter() - started)
        row["checkpoint_bytes"] = folder.checkpoint_path.stat().st_size
    row["checkpoint_seconds"] = statistics.median(times)
    row["checkpoint_share"] = row["checkpoint_seconds"] / row["seconds"]
    return row


def main() -> None:
    """Measure all three and print a table for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=IMAGES)
    parser.add_argument("--few-images", type=int, default=20_000, help="for the growth with rounds")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=ROUNDS[-1])
    parser.add_argument("--silos", type=int, default=SILOS[-1], help="the largest number")
    parser.add_argument("--digests", type=int, default=DIGESTS[-1], help="the largest factor")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = choose_device(options.device)
    precision = choose_precision(None, device)
    prepare_device(precision, device)
    images, case = draw_images(options.images), Case("feddig")
    tables: dict[str, list[dict[str, Any]]] = {"silos": [], "digests": [], "rounds": []}
    result = {
        "format_version": 1,
        "command": "python benchmarks/growth.py",
        "images": options.images,
        "few_images": options.few_images,
        "shares": list(SHARES),
        "precision": precision,
        "device": describe_device(device),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "tables": tables,
    }

    def note(table: str, **row: Any) -> None:
        tables[table].append(row)
        print(table, "  ".join(f"{key} {_short(value)}" for key, value in row.items()), flush=True)
        if options.out:
            write_atomically(options.out, json.dumps(result, indent=2) + "\n")

    for count in (count for count in SILOS if count <= options.silos):
        _forget(device)
        federation = Federation(case, images, device, precision, shares=(1 / count,) * count)
        row = measure(federation, options.repeats)
        first = tables["silos"][0]["seconds"] if tables["silos"] else row["seconds"]
        note("silos", silos=count, **row, times=row["seconds"] / first, peak_gib=_peak(device))
        del federation
    for times in (times for times in DIGESTS if times <= options.digests):
        _forget(device)
        federation = Federation(case, images, device, precision, times_digests=times)
        note("digests", digests=times, **measure(federation, options.repeats), peak_gib=_peak(device))
        del federation
    _forget(device)
    few = Images(images.pixels[: options.few_images], images.labels[: options.few_images])
    federation = Federation(Case("feddig", 2), few, device, precision, rounds=options.rounds)
    seconds = []
    for done in range(1, options.rounds + 1):
        seconds.append(federation.time_round()[0])
        if done in ROUNDS:
            note("rounds", rounds=done, seconds=statistics.median(seconds[-8:]), peak_gib=_peak(device))


def _forget(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def _peak(device: torch.device) -> float:
    """Return the peak memory of the GPU, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_reserved(device) / 2**30
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _short(value: Any) -> str:
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}"


if __name__ == "__main__":
    main()
