"""`feddig digest make|show`: the digest that a silo sends once."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from feddig.commands import options
from feddig.commands.federation import need_flower
from feddig.commands.ledger import LedgerFile, Recipient, check_ledger_options
from feddig.errors import FedDigError

DIGEST = Path("digest.safetensors")

digest_app = typer.Typer(no_args_is_help=True, help="Make a silo's digest, or show what is in one.")


@digest_app.command("make")
def digest_make(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE.toml|DIR]",
            help="The experiment, or a silo's folder or the contract in it; without it, that of the demo.",
        ),
    ] = None,
    overrides: options.Overrides = None,
    silo: Annotated[
        int, typer.Option(min=0, help="Number of the silo, whose share of the data is used.")
    ] = 0,
    all_data: Annotated[
        bool,
        typer.Option("--all-data", help="All training images belong to this silo: digest all of them."),
    ] = False,
    classes: Annotated[
        int,
        typer.Option(min=0, help="Number of classes in the federation, if this data does not show them all."),
    ] = 0,
    out: Annotated[Path, typer.Option(help="Digest file to write.")] = DIGEST,
    ledger: LedgerFile = None,
    recipient: Recipient = None,
    no_privacy: options.NoPrivacy = False,
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    log_level: options.Level = options.LogLevel.warning,
) -> None:
    """Make the digest that a silo sends once, with noise from the system's entropy (unless set to seeded).

    Given a silo's folder of a federation instead of a file, make that silo's digest as its contract says.
    """
    options.show_log(log_level)
    own = options.find_silo(file)
    if own is not None:
        options.refuse_options(file, {
            "--set": overrides, "--all-data": all_data, "--classes": classes, "--silo": silo, "--ledger": ledger,
            "--recipient": recipient, "--no-privacy": no_privacy, "--out": out != DIGEST,
        })  # fmt: skip
        _make_by_contract(own.path)
        if not quiet or as_json:
            _print_digest(own.digest, as_json=as_json)
        return
    from feddig.data.load import OWN
    from feddig.digest.digest_file import write_digest
    from feddig.runs.release import digest_of_silo, note_release

    experiment = options.chosen_experiment(file, overrides, data_dir, {"privacy.random": "system"})
    real = experiment.data.name in OWN
    check_ledger_options(ledger, recipient, out, has_own=real)
    if experiment.privacy.random != "system" and not no_privacy:
        raise FedDigError(
            "privacy.random: who knows the seed can remove the noise; leave it out, or say --no-privacy"
        )
    # an algorithm without digests would promise nothing, and here is a digest
    with_digests = replace(experiment, algorithm=replace(experiment.algorithm, name="feddig"))
    if real:
        with_digests.check_told(no_privacy=no_privacy)
    if real and with_digests.promises_privacy:
        if experiment.privacy.adjacency == "replace-one" and not classes:
            raise FedDigError(
                "--classes: give the federation's number of classes, because under replace-one it must not follow from "
                "the labels that are there"
            )
        if not all_data and experiment.data.partition in ("dirichlet", "shards"):
            raise FedDigError(
                f"--all-data: give it, because shares by data.partition = {experiment.data.partition!r} follow from "
                "labels, and the promise would not hold"
            )
    if out.exists():
        raise FedDigError(
            f"{out}: exists already; a second digest of the same data reveals more, so it is not replaced"
        )
    digest = digest_of_silo(experiment, silo, all_data=all_data, classes=classes)
    if ledger is not None or real:
        # first: a digest that left without a note would cost nothing
        data = Path(experiment.data.path) if real and experiment.data.path else None
        note_release(ledger, digest, experiment, recipient or "moderator", data)
    write_digest(out, digest)
    if not quiet or as_json:
        _print_digest(out, as_json=as_json)


def _make_by_contract(folder: Path) -> None:
    """Make the digest of a federation's silo; it leaves when the silo is started."""
    need_flower()
    from feddig.federation.silo import open_silo

    open_silo(folder).make_digest()


@digest_app.command("show")
def digest_show(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE|DIR", help="Digest file, or a silo's folder or the contract in it."),
    ],
    as_json: options.Json = False,
) -> None:
    """Show what is in a digest, and what it promises."""
    own = options.find_silo(file)
    if own is not None and not own.digest.exists():
        raise FedDigError(f"{own.digest}: no such file yet; make it with `feddig digest make {file}`")
    _print_digest(file if own is None else own.digest, as_json=as_json)


def _print_digest(path: Path, *, as_json: bool) -> None:
    from feddig.runs.release import describe_digest

    facts = describe_digest(path)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    for name, value in facts.items():
        print(f"{name.replace('_', ' '):<20} {value}")
