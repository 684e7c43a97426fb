"""Write results folders in which every number is known."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feddig.report.measures import MEASURES


def write_folder(
    folder: Path,
    accuracies: Sequence[float | None],
    present: Sequence[str],
    *,
    algorithm: str = "feddig",
    scenario: str = "sequential",
    seed: int = 0,
    silo_names: Sequence[str] | None = None,
    class_names: Sequence[str] = ("shoe", "bag"),
    settings: str = "",
    data: str = "",
    finished: bool = True,
    measures: dict[str, float | None] | None = None,
    class_accuracy: Sequence[Sequence[float | None]] = (),
    class_counts: Sequence[Sequence[int]] = (),
    class_tests: Sequence[int] = (),
    seconds_joint: float = 0.25,
) -> Path:
    """Write a run; `present` has a string of 0 and 1 for each silo. FedDig recalls all absent silos.

    `class_accuracy` is round x class; without it the folder is as an older release wrote it.
    """
    folder.mkdir(parents=True)
    silos, rounds = len(present), len(accuracies)
    (folder / "experiment.toml").write_text(
        f'format_version = 1\nseed = {seed}\n[data]\nname = "fashion-mini"\nsilos = {silos}\nseed = {seed}\n{data}'
        f'[absence]\nscenario = "{scenario}"\nseed = {seed}\n[algorithm]\nname = {json.dumps(algorithm)}\n'
        f"[training]\nrounds = {rounds}\n{settings}",
        encoding="utf-8",
    )
    head = ",".join(["silo", *map(str, range(rounds))])
    table = [",".join([str(silo), *row]) for silo, row in enumerate(present)]
    (folder / "availability.csv").write_text(
        "\n".join(["# feddig availability, format_version 1", head, *table]) + "\n", encoding="utf-8"
    )
    recalls = algorithm.startswith("feddig")
    rows = []
    for round, accuracy in enumerate(accuracies):
        here = [silo for silo, row in enumerate(present) if row[round] == "1"]
        away = [silo for silo, row in enumerate(present) if row[round] == "0" and "1" in row[:round]]
        rows.append(
            {
                "format_version": 1,
                "round": round,
                "test_accuracy": accuracy,
                **describe_classes(class_accuracy[round] if class_accuracy else ()),
                "present": here,
                "recalled": away if recalls else [],
                "validation_accuracy": [(round + silo) % 90 + 0.25 for silo in range(silos)],
                "seconds": 1.0,
                "seconds_silos": 0.5,
                "seconds_recall": 0.125,
                "seconds_joint": seconds_joint,
            }
        )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    counts = class_counts or [
        [10 * silo + place for place in range(len(class_names))] for silo in range(silos)
    ]
    facts: dict[str, Any] = {"format_version": 1, "names": list(class_names), "counts": counts}
    if class_tests:
        facts["test"] = list(class_tests)
    (folder / "classes.json").write_text(json.dumps(facts), encoding="utf-8")
    if finished:
        summary: dict[str, Any] = {
            "format_version": 1,
            "algorithm": algorithm,
            "scenario": scenario,
            "seed": seed,
            "accuracy": dict.fromkeys(MEASURES)
            | {"final": accuracies[-1], "best": max(each or 0 for each in accuracies)}
            | (measures or {}),
            "bytes": {"digest": [1000 if recalls else 0] * silos, "update": [2000] * silos},
            "seconds_per_round": 1.0,
            "device": "a CPU",
        }
        if silo_names is not None:
            summary["silo_names"] = list(silo_names)
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def describe_classes(accuracies: Sequence[float | None]) -> dict[str, Any]:
    """Return the part of a row that tells how the classes did; the means are given, not computed."""
    if not accuracies:
        return {}
    intervals: dict[str, Any] = {
        "accuracy": [40.0, 46.0],
        "balanced_accuracy": [39.0, 47.0],
        "macro_f1": [37.5, 44.5],
    }
    area = {"auc": 0.875} if len(accuracies) == 2 else {}
    if area:
        intervals["auc"] = [0.8, 0.95]
    return {
        "class_accuracy": list(accuracies),
        "macro_f1": 41.0,
        "balanced_accuracy": 43.0,
        "intervals": intervals,
        **area,
    }


def page_data(page: str) -> dict[str, Any]:
    """Return the JSON data in a report page."""
    return dict(json.loads(page.split('<script type="application/json" id="data">')[1].split("</script>")[0]))


def write_grid(folder: Path, seeds: int = 2) -> Path:
    """Write a comparison of FedDig, FedAvg and frozen, whose curves are straight lines."""
    present = ["1100000000", "1111100000", "1111111110"]
    for seed in range(seeds):
        for algorithm, start, step in (("feddig", 50, 2), ("fedavg", 52, -1), ("frozen", 51, 0)):
            curve = [float(start + step * round + seed) for round in range(10)]
            write_folder(
                folder / algorithm / "sequential" / f"seed-{seed}",
                curve,
                present,
                algorithm=algorithm,
                seed=seed,
                measures={"frozen_own": curve[1], "absence_mean": sum(curve[2:]) / 8},
            )
    return folder
