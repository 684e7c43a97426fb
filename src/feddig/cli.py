"""The command line: `feddig run|compare|datasets|privacy`, `feddig digest|ledger|encoder ...`.

What a person reads while waiting goes to standard error; results go to standard output. Mistakes are
one line and exit code 2. torch is imported only when a command really runs.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from feddig._version import __version__
from feddig.cli_advise import advise_command
from feddig.cli_audit import audit_command
from feddig.cli_federation import federation_app
from feddig.cli_ledger import LedgerFile, Recipient, check_ledger_options, ledger_app
from feddig.cli_privacy import privacy_command
from feddig.cli_report import report_command
from feddig.errors import FedDigError
from feddig.options import (
    DataDir,
    Device,
    ExperimentFile,
    Json,
    Level,
    LogLevel,
    Overrides,
    Quiet,
    chosen_experiment,
    listed,
    show_log,
    whole_number,
)

if TYPE_CHECKING:
    from feddig.experiment import Experiment

BAD_INPUT, INTERRUPTED = 2, 130

UsageError: Any = typer.BadParameter.__bases__[0]
"""What typer raises for mistakes in options: click's class, or that of the copy of click inside newer typers."""

app = typer.Typer(
    name="feddig",
    help="Federated learning that remembers silos after they leave.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
digest_app = typer.Typer(no_args_is_help=True, help="Make a silo's digest, or show what is in one.")
encoder_app = typer.Typer(no_args_is_help=True, help="Make the public encoder, or import one.")
app.add_typer(digest_app, name="digest")
app.add_typer(ledger_app, name="ledger")
app.add_typer(federation_app, name="federation")
app.add_typer(encoder_app, name="encoder")
app.command("privacy")(privacy_command)
app.command("report")(report_command)
app.command("audit")(audit_command)
app.command("advise")(advise_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; turn mistakes into one line and exit code 2."""
    try:
        code = app(args=arguments, prog_name="feddig", standalone_mode=False)
        sys.exit(code if isinstance(code, int) else 0)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # the message is the help that was asked for
            print(error.format_message())
        else:
            _say_error(f"{error.format_message()} See feddig --help.")
        sys.exit(BAD_INPUT)
    except FedDigError as error:
        _say_error(str(error))
        sys.exit(BAD_INPUT)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        _say_error(f"{place}{error.strerror or error}")
        sys.exit(BAD_INPUT)
    except (KeyboardInterrupt, typer.Abort):
        _say_error("interrupted")
        sys.exit(INTERRUPTED)


def _say_error(text: str) -> None:
    print(f"feddig: error: {' '.join(text.split())}", file=sys.stderr)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"feddig {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


@app.command("run")
def run_command(
    file: ExperimentFile = None,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(help="New results folder; without it, one under results/.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Go on with the run in this results folder, which knows its data.")
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
    log_level: Level = LogLevel.warning,
) -> None:
    """Run one experiment."""
    show_log(log_level)
    from feddig.progress import choose_progress
    from feddig.running import resume as resume_run
    from feddig.running import run

    progress = choose_progress(Console(stderr=True), quiet=quiet)
    if resume is not None:
        if file is not None or overrides or out is not None:
            raise FedDigError(
                "--resume takes neither a file nor --set nor --out: the folder has its own experiment.toml"
            )
        folder = resume
        with _hint_at_resume(folder):
            summary = resume_run(folder, device=device, progress=progress)
    else:
        experiment = chosen_experiment(file, overrides, data_dir)
        folder = out or _fresh_folder(experiment)
        with _hint_at_resume(folder):
            summary = run(experiment, folder, device=device, progress=progress)
    if as_json:
        print(json.dumps({"path": str(folder), **summary}, indent=2))
        return
    _print_summary(summary, quiet=quiet)
    print(folder)


@app.command("compare")
def compare_command(
    file: ExperimentFile = None,
    overrides: Overrides = None,
    algorithms: Annotated[str, typer.Option(help="Names, with commas between.")] = "fedavg,frozen,feddig",
    scenarios: Annotated[str, typer.Option(help="Names, with commas between.")] = "sequential",
    seeds: Annotated[str, typer.Option(help="Numbers, with commas between.")] = "0",
    out: Annotated[Path, typer.Option(help="Folder of the comparison; finished runs in it are kept.")] = Path(
        "results/compare"
    ),
    device: Device = "auto",
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
    log_level: Level = LogLevel.warning,
) -> None:
    """Run a grid of algorithms, scenarios and seeds, and tabulate it."""
    show_log(log_level)
    from feddig.absence import SCENARIOS
    from feddig.comparison import grid, run_grid
    from feddig.outcome import write_page
    from feddig.progress import choose_progress
    from feddig.recipe import read_recipe
    from feddig.report.comparison import write_comparison
    from feddig.report.table import as_rich

    names = listed("--algorithms", algorithms)
    for name in names:
        read_recipe(name)
    places = listed("--scenarios", scenarios, SCENARIOS)
    numbers = list(dict.fromkeys(whole_number("--seeds", text) for text in listed("--seeds", seeds)))
    if "file" in places:
        overrides = [*(overrides or []), "absence.scenario=file"]
    cells = grid(chosen_experiment(file, overrides, data_dir), names, places, numbers, out)
    console = Console(stderr=True)
    with _hint(f"finished runs are kept: give the same command again to continue in {out}"):
        outcomes = run_grid(cells, device=device, progress=lambda: choose_progress(console, quiet=quiet))
    summaries = [
        (each.cell.experiment.algorithm.name, each.cell.experiment.absence.scenario, each.summary)
        for each in outcomes
    ]
    lines, pictures = write_comparison(out, summaries, [each.cell.path for each in outcomes if each.summary])
    page = write_page(out)
    if as_json:
        rows = [
            {
                "algorithm": each.cell.experiment.algorithm.name,
                "scenario": each.cell.experiment.absence.scenario,
                "seed": each.cell.experiment.seed,
                "path": str(each.cell.path),
                "failure": each.failure or None,
                "summary": each.summary,
            }
            for each in outcomes
        ]
        print(json.dumps({"path": str(out), "runs": rows}, indent=2))
    else:
        # in a pipe there is no width to fit, and a cut table is of no use
        Console(width=None if sys.stdout.isatty() else 120).print(as_rich(lines, str(out)))
        print("\n".join(f"picture  {picture}" for picture in pictures))
        print("" if page is None else f"page     {page}\n", end="")
        print(f"results  {out}")
    failures = [f"{each.cell.path}: {each.failure}" for each in outcomes if each.summary is None]
    if failures:
        raise FedDigError(f"{len(failures)} of {len(outcomes)} runs failed; the first: {failures[0]}")


@app.command("datasets")
def datasets_command(
    verify: Annotated[
        bool, typer.Option("--verify", help="Compare files with the publishers' hashes.")
    ] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """List the public data sets: which are on this computer, where, and whether they are the publishers' own."""
    from feddig.data.catalogue import describe

    entries = describe(data_dir, verify)
    if as_json:
        print(
            json.dumps(
                [{**vars(entry), "where": entry.where and str(entry.where)} for entry in entries], indent=2
            )
        )
        return
    table = Table()
    for name in ("name", "train", "test", "classes", "standing", "where, or where to get it", "licence"):
        table.add_column(name, overflow="fold")
    for entry in entries:
        place = entry.fault or (str(entry.where) if entry.present else f"not here: {entry.address}")
        counts = ("-" if count is None else f"{count:,}" for count in (entry.train, entry.test))
        table.add_row(entry.name, *counts, str(entry.classes), entry.standing, place, entry.licence)
    Console(width=None if sys.stdout.isatty() else 160).print(table)


@digest_app.command("make")
def digest_make(
    file: ExperimentFile = None,
    overrides: Overrides = None,
    silo: Annotated[
        int, typer.Option(min=0, help="Which silo: its share of the data, and the number it bears.")
    ] = 0,
    all_data: Annotated[
        bool,
        typer.Option("--all-data", help="The data set is this silo's own: digest all its training images."),
    ] = False,
    classes: Annotated[
        int,
        typer.Option(min=0, help="Number of classes in the federation, if this data does not show them all."),
    ] = 0,
    out: Annotated[Path, typer.Option(help="Digest file to write.")] = Path("digest.safetensors"),
    ledger: LedgerFile = None,
    recipient: Recipient = None,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
    log_level: Level = LogLevel.warning,
) -> None:
    """Make the digest that a silo sends once, with noise from the system's entropy (unless set to seeded)."""
    show_log(log_level)
    from feddig.digest import write_digest
    from feddig.digest_making import digest_of_silo, note_release

    check_ledger_options(ledger, recipient, out)
    experiment = chosen_experiment(file, overrides, data_dir, {"privacy.random": "system"})
    if out.exists():
        raise FedDigError(
            f"{out}: exists already; a second digest of the same data reveals more, so it is not replaced"
        )
    digest = digest_of_silo(experiment, silo, all_data=all_data, classes=classes)
    if ledger is not None:
        # first: a digest that left without a note would cost nothing
        note_release(ledger, digest, experiment, recipient or "moderator")
    write_digest(out, digest)
    if not quiet or as_json:
        _print_digest(out, as_json=as_json)


@digest_app.command("show")
def digest_show(
    file: Annotated[Path, typer.Argument(help="Digest file.")],
    as_json: Json = False,
) -> None:
    """Show what is in a digest, and what it promises."""
    _print_digest(file, as_json=as_json)


@encoder_app.command("make")
def encoder_make(
    out: Annotated[Path, typer.Option(help="Encoder file to write.")] = Path("encoder.safetensors"),
    channels: Annotated[
        int | None, typer.Option(min=1, help="1 for grey images, 3 for colour; with --data: as the data has.")
    ] = None,
    data: Annotated[
        str,
        typer.Option(
            help="Learn from this data set instead. PUBLIC data only: everybody gets the encoder. "
            "fashion-mnist, emnist-byclass, cifar10, cifar100, idx, npz or folder."
        ),
    ] = "",
    data_path: Annotated[
        Path | None, typer.Option(help="Where that data lies, as an experiment's data.path.")
    ] = None,
    data_dir: DataDir = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the images and the weights.")] = 0,
    steps: Annotated[int, typer.Option(min=0, help="Training steps; 0: as the shipped ones had.")] = 0,
    even: Annotated[
        bool, typer.Option(help="Level its code and give it one length, for sound noise.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
    log_level: Level = LogLevel.warning,
) -> None:
    """Train the encoder P_R: on generated images, so that no real one is used, or on a public data set."""
    show_log(log_level)
    from feddig.models.encoder import encoder_hash, save_encoder
    from feddig.models.encoder_making import BATCH, SHIPPED_RECIPE, STEPS, make_encoder
    from feddig.models.even_making import make_even
    from feddig.public_encoder import agreed_channels, facts_about, load_public, recipe_from

    def report(step: int, error: float) -> None:
        if not quiet and (step + 1) % 100 == 0:
            print(f"step {step + 1}  reconstruction error {error:.5f}", file=sys.stderr)

    if out.exists():
        raise FedDigError(f"{out}: exists already; choose another --out")
    if data_path is not None and not data:
        raise FedDigError("--data-path: says where the data lies that --data names; give --data too")
    recipe, learnt_from = SHIPPED_RECIPE, {}
    if data:
        dataset = load_public(data, data_path, data_dir)
        channels = agreed_channels(dataset, channels)
        recipe, learnt_from = recipe_from(dataset), facts_about(dataset)
    channels, steps = channels or 1, steps or STEPS
    encoder = make_encoder(channels, seed, steps, report=report, recipe=recipe)
    facts = {"recipe": recipe.name, "seed": str(seed), "steps": str(steps), "batch": str(BATCH)}
    finished = make_even(encoder, seed) if even else encoder
    save_encoder(out, finished, {**facts, **learnt_from})
    made = {"path": str(out), "hash": encoder_hash(finished), "channels": channels, "seed": seed}
    print(json.dumps({**made, **learnt_from}) if as_json else f"{out}  {made['hash']}")


@encoder_app.command("import")
def encoder_import(
    weights: Annotated[Path, typer.Argument(help="MobileNetV2's weights, as .npz or .safetensors.")],
    out: Annotated[Path, typer.Option(help="Encoder file to write.")] = Path("encoder.safetensors"),
    enlarge: Annotated[
        int, typer.Option(min=1, help="Enlarge images this many times before they are encoded.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Turn MobileNetV2's weights, TensorFlow's or torchvision's, into an encoder file."""
    from feddig.models.encoder import encoder_hash, save_encoder
    from feddig.models.mobilenet_weights import import_mobilenet

    if out.exists():
        raise FedDigError(f"{out}: exists already; choose another --out")
    encoder = import_mobilenet(weights, enlarge)
    save_encoder(out, encoder, {"source": weights.name})
    made = {"path": str(out), "hash": encoder_hash(encoder), **encoder.facts}
    print(json.dumps(made) if as_json else f"{out}  {made['hash']}")


def _fresh_folder(experiment: "Experiment") -> Path:
    name = f"{experiment.algorithm.name}-{experiment.absence.scenario}-seed-{experiment.seed}"
    names = (Path("results", name if number == 1 else f"{name}-{number}") for number in range(1, 10_000))
    return next(path for path in names if not path.exists())


@contextmanager
def _hint(text: str, *, when: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Tell how to go on when a command is interrupted by hand."""
    try:
        yield
    except (KeyboardInterrupt, typer.Abort):
        if when():
            print(f"\n{text}", file=sys.stderr)
        sys.exit(INTERRUPTED)


def _hint_at_resume(folder: Path) -> AbstractContextManager[None]:
    begun = folder / "experiment.toml"
    return _hint(f"continue with: feddig run --resume {folder}", when=begun.exists)


def _print_summary(summary: dict[str, Any], *, quiet: bool) -> None:
    if quiet:
        return
    for name, value in summary["accuracy"].items():
        if value is not None:
            print(f"{name.replace('_', ' '):<14} {value:5.1f} %")
    if summary["privacy"]:
        print(f"{'privacy':<14} {summary['privacy']}")


def _print_digest(path: Path, *, as_json: bool) -> None:
    from feddig.digest_making import describe_digest

    facts = describe_digest(path)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<20} {value}")
