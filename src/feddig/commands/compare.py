"""`feddig compare`: run a grid of algorithms, scenarios and seeds."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from feddig.commands import completion, options
from feddig.errors import FedDigError


def compare_command(
    file: options.ExperimentFile = None,
    overrides: options.Overrides = None,
    algorithms: Annotated[
        str | None,
        typer.Option(
            help="Names, separated by commas; without it fedavg,frozen,feddig,feddig-plus and the experiment's.",
            autocompletion=completion.list_of(completion.algorithms),
        ),
    ] = None,
    scenarios: Annotated[
        str | None,
        typer.Option(
            help="Names, separated by commas; without it the experiment's.",
            autocompletion=completion.list_of(completion.scenarios),
        ),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(help="Numbers or ranges, separated by commas, as 0-4,7; without it the experiment's."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of the comparison; finished runs in it are kept.")] = Path(
        "results/compare"
    ),
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    log_level: options.Level = options.LogLevel.warning,
) -> None:
    """Run a grid of algorithms, scenarios and seeds, and tabulate it."""
    options.show_log(log_level)
    options.check_out(out)
    from feddig.core.absence import SCENARIOS
    from feddig.core.recipe import read_recipe
    from feddig.report.page import describe_results, to_rich
    from feddig.runs.compare import compare
    from feddig.runs.progress import GridLines

    names = None if algorithms is None else options.listed("--algorithms", algorithms)
    for name in names or []:
        read_recipe(name)
    places = None if scenarios is None else options.listed("--scenarios", scenarios, SCENARIOS)
    numbers = None if seeds is None else options.whole_numbers("--seeds", seeds)
    if places and "file" in places:
        overrides = [*(overrides or []), "absence.scenario=file"]
    experiment = options.chosen_experiment(file, overrides, data_dir)
    console = Console(stderr=True)
    with options.hint(f"finished runs are kept: give the same command again to continue in {out}"):
        comparison = compare(
            experiment,
            names,
            places,
            numbers,
            out,
            device=device,
            progress=None if quiet else GridLines(console),
        )
    page = comparison.page
    if as_json:
        runs = [
            {
                "algorithm": each.cell.experiment.algorithm.name,
                "scenario": each.cell.experiment.absence.scenario,
                "seed": each.cell.experiment.seed,
                "path": str(each.cell.path),
                "failure": each.failure or None,
                "summary": each.summary,
            }
            for each in comparison.outcomes
        ]
        print(json.dumps({"path": str(out), "page": page and str(page), "runs": runs}, indent=2))
    else:
        # a pipe has no width, and a truncated table is useless
        Console(width=None if sys.stdout.isatty() else 120).print(to_rich(comparison.rows, str(out)))
        for sentence in describe_results(out) if comparison.results else []:
            print(sentence)
        print("\n".join(f"picture  {picture}" for picture in comparison.pictures))
        options.print_page(page)
        print(f"results  {out}")
    if comparison.failures:
        failed = f"{len(comparison.failures)} of {len(comparison.outcomes)} runs failed"
        path, failure = next(iter(comparison.failures.items()))
        raise FedDigError(f"{failed}; the first: {path}: {failure}")
