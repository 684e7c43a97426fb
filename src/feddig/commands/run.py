"""`feddig run`: run one experiment, or resume one."""

import json
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from feddig.commands import options
from feddig.errors import FedDigError

if TYPE_CHECKING:
    from feddig.experiment.experiment import Experiment


def run_command(
    file: options.ExperimentFile = None,
    overrides: options.Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="New results folder; without it, one under results/.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume the run in this results folder; its data are known.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="With --resume: rounds in all, also after the last one.")
    ] = None,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    log_level: options.Level = options.LogLevel.warning,
) -> None:
    """Run one experiment."""
    options.show_log(log_level)
    from feddig.runs.progress import choose_progress
    from feddig.runs.run import resume as resume_run
    from feddig.runs.run import run

    progress = choose_progress(Console(stderr=True), quiet=quiet)
    if resume is not None:
        if file is not None or overrides or out is not None:
            raise FedDigError(
                "--resume takes neither a file nor --set nor --out: the folder has its own experiment.toml"
            )
        folder = resume
        if rounds is None and not quiet and (folder / "summary.json").exists():
            print(f"{folder}: is finished already; --rounds N lets it go on to N rounds", file=sys.stderr)
        with _hint_at_resume(folder):
            summary = resume_run(folder, device=device, progress=progress, rounds=rounds)
    else:
        if rounds is not None:
            raise FedDigError(f"--rounds: goes with --resume; a new run takes --set training.rounds={rounds}")
        experiment = options.chosen_experiment(file, overrides, data_dir)
        folder = out or _fresh_folder(experiment)
        options.check_out(folder)
        with _hint_at_resume(folder):
            summary = run(experiment, folder, device=device, progress=progress)
    if as_json:
        page = options.page_in(folder)
        print(json.dumps({"path": str(folder), "page": page and str(page), **summary}, indent=2))
        return
    if not quiet:
        _print_summary(summary, folder)
        options.print_page(options.page_in(folder))
    # the last line, because scripts use it
    print(folder)


def _fresh_folder(experiment: "Experiment") -> Path:
    name = f"{experiment.algorithm.name}-{experiment.absence.scenario}-seed-{experiment.seed}"
    names = (Path("results", name if number == 1 else f"{name}-{number}") for number in range(1, 10_000))
    return next(path for path in names if not path.exists())


def _hint_at_resume(folder: Path) -> AbstractContextManager[None]:
    begun = folder / "experiment.toml"
    return options.hint(f"continue with: feddig run --resume {folder}", when=begun.exists)


def _print_summary(summary: dict[str, Any], folder: Path) -> None:
    from feddig.report.measures import say_measures
    from feddig.report.page import describe_results

    for sentence in describe_results(folder):
        print(sentence)
    values = {**summary, "accuracy": summary["accuracy"]["final"]}
    for title, value, ends in say_measures(values, summary.get("intervals", {})):
        print(f"{title:<18} {value:>7}" + (f" (95 % interval {ends})" if ends else ""))
    for name, percent in summary["accuracy"].items():
        if percent is not None and name != "final":
            print(f"{name.replace('_', ' '):<18} {percent:5.1f} %")
    if summary["privacy"]:
        print(f"{'privacy':<18} {summary['privacy']}")
