"""`feddig federation init|key|up|moderator|silo|renew|status`: set up, run and watch a real federation on Flower."""

import importlib.util
import json
import logging
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from feddig.commands.options import (
    INTERRUPTED,
    DataDir,
    Json,
    Level,
    LogLevel,
    NoPrivacy,
    Overrides,
    Quiet,
    chosen_experiment,
    listed,
    page_in,
    print_page,
    show_log,
)
from feddig.errors import FedDigError

if TYPE_CHECKING:
    from feddig.federation.contract import Contract
    from feddig.federation.folders import ModeratorFolder, SiloFolder

federation_app = typer.Typer(no_args_is_help=True, help="Set up, run and watch a real federation on Flower.")

Whole = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")]

# what `init` agrees on and `change` may change
TRAINING_DEADLINE = typer.Option(
    min=0.001, help="Seconds until a silo that has not trained counts as absent."
)
DIGEST_DEADLINE = typer.Option(
    min=0.001, help="Seconds until a silo that has sent no digest counts as absent."
)
UPDATE_LIMIT = typer.Option(min=0.001, help="Refuse updates longer than this many times the model.")
DIGEST_LIMIT = typer.Option(min=0.001, help="Refuse digests of more megabytes; by default 256.")
MIN_SILOS = typer.Option(min=1, help="Pause while fewer silos are here; by default more than half of them.")
START_SILOS = typer.Option(min=1, help="Begin when this many silos are here; by default all of them.")
ROUNDS_ALONE = typer.Option(min=0, help="Rounds in a row that may have fewer silos than --min-silos.")
MODEL_EVERY = typer.Option(
    min=1, help="Send silos the model each time this many rounds are done; by default only the final one."
)


@federation_app.command("init")
def federation_init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for all of it.")],
    silos: Annotated[int | None, typer.Option(min=1, help="Number of silos; or give --names.")] = None,
    names: Annotated[str | None, typer.Option(help="Names of the silos, with commas between.")] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="Real data: folder with the silos' own public keys, NAME.pub each; none is made then."
        ),
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the federation.")] = "federation",
    experiment: Annotated[
        Path | None, typer.Option(help="What all agree to, as an experiment file; without it, the demo's.")
    ] = None,
    overrides: Overrides = None,
    rehearse: Annotated[
        str | None,
        typer.Option(help="Split this data set among the silos, to try everything on one machine."),
    ] = None,
    classes: Annotated[
        str | None,
        typer.Option(help="Real data: names of the classes in their order, with commas between."),
    ] = None,
    image: Annotated[
        str | None, typer.Option(help="Real data: an image's shape, as 1x28x28 (channels, height, width).")
    ] = None,
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name or address of the moderator, needed for real data; silos use the first. May be repeated."
        ),
    ] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the moderator.")] = 9092,
    training_deadline: Annotated[float, TRAINING_DEADLINE] = 600.0,
    digest_deadline: Annotated[float, DIGEST_DEADLINE] = 600.0,
    no_privacy: NoPrivacy = False,
    new_release: Annotated[
        bool, typer.Option("--new-release", help="Let a silo replace its digest; each one reveals more.")
    ] = False,
    update_limit: Annotated[float, UPDATE_LIMIT] = 10.0,
    digest_limit: Annotated[float | None, DIGEST_LIMIT] = None,
    min_silos: Annotated[int | None, MIN_SILOS] = None,
    start_silos: Annotated[int | None, START_SILOS] = None,
    rounds_alone: Annotated[int, ROUNDS_ALONE] = 0,
    model_every: Annotated[int | None, MODEL_EVERY] = None,
    data_dir: DataDir = None,
    as_json: Json = False,
    log_level: Level = LogLevel.warning,
) -> None:
    """Write the folders of a federation: contract, certificates, keys, configuration, a run sheet for each party."""
    show_log(log_level)
    need_flower()
    from feddig.federation.setup import Plan, Rehearsal, initialise, planned

    silo_names = _names(silos, names, keys)
    real = classes is not None or image is not None
    if real and (rehearse is not None or classes is None or image is None):
        raise FedDigError("--classes and --image: belong together, and not with --rehearse")
    if keys is not None and not real:
        raise FedDigError(
            "--keys: a rehearsal needs the silos' private keys and makes them; give --classes and --image"
        )
    # silos of a federation really come and go, so only the experiment file of a rehearsal may ask for a scenario
    changes = [*(["absence.scenario=none"] if experiment is None else []), *(overrides or [])]
    changes += [f"data.name={rehearse}"] if rehearse is not None else []
    defaults = {"privacy.random": "system", "absence.scenario": "none"} if real else {}
    agreed = planned(chosen_experiment(experiment, changes, data_dir, defaults), silo_names)
    rehearsal = None if real else Rehearsal.of(agreed)
    plan = Plan(
        name=name,
        silos=silo_names,
        experiment=agreed if rehearsal is None else rehearsal.experiment,
        image_shape=_shape(image or "") if rehearsal is None else rehearsal.image_shape,
        classes=_classes(classes or "") if rehearsal is None else rehearsal.classes,
        hosts=tuple(host or ()),
        port=port,
        training_deadline=training_deadline,
        digest_deadline=digest_deadline,
        no_privacy=no_privacy,
        new_release=new_release,
        update_limit=update_limit,
        digest_limit=digest_limit,
        min_silos=min_silos,
        start_silos=start_silos,
        rounds_alone=rounds_alone,
        model_every=model_every,
        keys=keys,
    )
    contract = initialise(folder, plan, rehearsal)
    if as_json:
        print(json.dumps({"path": str(folder), "hash": contract.hash, "silos": list(silo_names)}, indent=2))
    else:
        print("\n".join(_next_steps(folder, contract, rehearsal is not None)))


@federation_app.command("key")
def federation_key(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The silo's folder, made if it is not there.")
    ],
    as_json: Json = False,
) -> None:
    """Make a silo's key pair on its own machine; the public key is sent to the person who runs `init`."""
    need_flower()
    from feddig.federation.certificates import write_silo_key
    from feddig.federation.folders import SiloFolder

    silo = SiloFolder(folder)
    silo.path.mkdir(parents=True, exist_ok=True)
    fingerprint = write_silo_key(silo.key)
    if as_json:
        print(json.dumps({"public_key": str(silo.public_key), "fingerprint": fingerprint}, indent=2))
        return
    print(f"{silo.key}: private, give it to nobody")
    print(
        f"{silo.public_key}: send it to the person who runs `init`, and this fingerprint over another channel:"
    )
    print(fingerprint)


def need_flower() -> None:
    """Refuse to go on if Flower is not installed."""
    if importlib.util.find_spec("flwr") is None:
        raise FedDigError("a federation runs on Flower, which is not installed; pip install 'feddig[flower]'")


def _names(silos: int | None, names: str | None, keys: Path | None) -> tuple[str, ...]:
    if names is None:
        if keys is not None and silos is None:
            found = tuple(sorted(file.stem for file in keys.glob("*.pub")))
            if not found:
                raise FedDigError(
                    f"--keys: {keys} holds no NAME.pub; ask each silo for its key.pub, and name it so"
                )
            return found
        if silos is None:
            raise FedDigError("--silos: say how many silos there are, or give their --names")
        return tuple(f"silo-{number}" for number in range(silos))
    given = listed("--names", names, distinct=True)
    if silos not in (None, len(given)):
        raise FedDigError(f"--names: {len(given)} names, but --silos {silos}")
    return tuple(given)


def _classes(text: str) -> tuple[str, ...]:
    given = listed("--classes", text, distinct=True)
    if len(given) < 2:
        raise FedDigError(f"--classes: only {given[0]!r}; give at least two, with a comma between")
    return tuple(given)


def _shape(text: str) -> tuple[int, int, int]:
    lengths = [int(part) for part in text.split("x") if part.isdecimal() and 0 < int(part) < 2**20]
    if len(lengths) != 3 or len(text.split("x")) != 3:
        raise FedDigError(f"--image: {text!r} is not a shape; write channels, height and width as 1x28x28")
    channels, height, width = lengths
    return channels, height, width


def _next_steps(folder: Path, contract: "Contract", is_rehearsal: bool) -> list[str]:
    lines = [f"{folder}: {contract.name}, {len(contract.members)} silos, contract {contract.hash}"]
    if is_rehearsal:
        data = contract.experiment.data.name
        return [
            *lines,
            f"a rehearsal: the data set {data} is split among the silos' folders (--classes and --image: real data)",
            f"run it on this machine: feddig federation up {folder}",
        ]
    return [
        *lines,
        contract.experiment.say_promise(),
        f"give moderator/ to the moderator and each folder in silos/ to its silo; give {folder}/ca to nobody",
        "each folder has a RUN-SHEET.md with the commands for its party",
    ]


@federation_app.command("up")
def federation_up(
    folder: Whole,
    only: Annotated[
        str | None, typer.Option(help="Run only this party: moderator, or the name of a silo.")
    ] = None,
    rounds_limit: Annotated[
        int | None, typer.Option(min=1, help="Stop after this many rounds; `up` continues from there.")
    ] = None,
    quiet: Quiet = False,
    log_level: Level = LogLevel.warning,
) -> None:
    """Run moderator and silos on this machine, or continue after a stop or a crash, until all rounds are done."""
    show_log(log_level)
    need_flower()
    from feddig.federation.folders import FederationFolder
    from feddig.federation.processes.processes import stop_on_signals
    from feddig.federation.processes.up import choose_display, up

    whole = FederationFolder(folder)
    with stop_on_signals() as stopping, choose_display(Console(stderr=True), quiet=quiet) as show:
        done = up(whole, stopping, only=only, rounds_limit=rounds_limit, show=show)
    _conclude(done, stopping.is_set(), f"feddig federation up {folder}", partial(typer.echo, err=True))
    if done and not quiet:
        print_page(page_in(whole.moderator.run))
        print(whole.moderator.run)


@federation_app.command("moderator")
def federation_moderator(
    folder: Annotated[Path, typer.Argument(help="The moderator's own folder.")],
    log_level: Level = LogLevel.info,
) -> None:
    """Run the moderator on its own machine, in the foreground, until all rounds are done."""
    show_log(log_level, timed=True)
    need_flower()
    from feddig.federation.folders import ModeratorFolder
    from feddig.federation.processes.moderator_process import run_moderator
    from feddig.federation.processes.network import reach_this_machine_directly
    from feddig.federation.processes.processes import stop_on_signals
    from feddig.federation.status import read_status, show_lines

    reach_this_machine_directly()
    moderator, log = ModeratorFolder(folder), logging.getLogger("feddig")
    with stop_on_signals() as stopping:
        done = run_moderator(moderator, stopping, show_lines(log.info))
    _conclude(done, stopping.is_set(), f"feddig federation moderator {folder}", log.warning)
    status = read_status(moderator.status)
    if done and status is not None:
        print(f"{moderator.run}: {status.rounds_done} rounds, {status.accuracy}")
        print_page(page_in(moderator.run))


@federation_app.command("silo")
def federation_silo(
    folder: Annotated[Path, typer.Argument(help="The silo's own folder.")],
    log_level: Level = LogLevel.info,
) -> None:
    """Run a silo on its own machine, in the foreground, until the federation has ended and its model is here."""
    show_log(log_level, timed=True)
    need_flower()
    from feddig.federation.folders import SiloFolder
    from feddig.federation.processes.network import reach_this_machine_directly
    from feddig.federation.processes.processes import stop_on_signals
    from feddig.federation.processes.supervisor import supervise

    reach_this_machine_directly()
    with stop_on_signals() as stopping:
        ended = supervise(SiloFolder(folder), stopping)
    if not ended:
        logging.getLogger("feddig").info(
            "stopped; from now on the moderator uses this silo's digest, if it has one"
        )


@federation_app.command("renew")
def federation_renew(
    folder: Whole,
    days: Annotated[
        int, typer.Option(min=1, max=3650, help="Days for which the new certificate is valid.")
    ] = 365,
) -> None:
    """Write a new certificate for the moderator; the silos' files stay valid."""
    need_flower()
    from feddig.federation.certificates import renew
    from feddig.federation.folders import FederationFolder

    whole = FederationFolder(folder)
    until = renew(whole, days).not_valid_after_utc
    print(f"{whole.moderator.certificate}: valid until {until:%Y-%m-%d}; start the moderator again to use it")


@federation_app.command("check")
def federation_check(
    folder: Annotated[
        Path, typer.Argument(help="The folder of a silo, of the moderator, or of a federation.")
    ],
) -> None:
    """Check a party's files, data, disk, clock and connection; it does not take part yet."""
    need_flower()
    from feddig.federation.check import check_party
    from feddig.federation.processes.network import reach_this_machine_directly

    reach_this_machine_directly()
    for line in check_party(folder):
        print(line)


@federation_app.command("status")
def federation_status(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The federation's folder, the moderator's, or a silo's.")
    ],
    as_json: Json = False,
) -> None:
    """Show the round, the accuracy and the silos; in a silo's folder, what this silo knows."""
    from feddig.federation.folders import SiloFolder
    from feddig.federation.status import describe, moderator_runs, read_status, say_paused, tabulate

    if SiloFolder(folder).silo_file.is_file():
        _print_silo_status(SiloFolder(folder), as_json)
        return
    moderator = moderator_of(folder)
    status = read_status(moderator.status)
    runs = moderator_runs(moderator, status)
    if status is None:
        _print_not_begun(moderator, runs, as_json)
        return
    if as_json:
        print(json.dumps({**status.content, "running": runs}, indent=2))
        return
    # the last status stays until the moderator's app writes the next one
    begins = not runs and moderator_runs(moderator, None)
    said = "runs" if runs else "is starting or ending" if begins else "does not run"
    print(f"{status.content['federation']}: {status.content['state']}, the moderator {said}")
    if status.content.get("promise"):
        print(status.content["promise"])
    print("\n".join([describe(status), *status.faults, f"as of {status.content['updated']}"]))
    if moderator.pause.exists():
        print(say_paused(moderator))
    Console(width=None if sys.stdout.isatty() else 120).print(tabulate(status))


def _print_silo_status(folder: "SiloFolder", as_json: bool) -> None:
    from feddig.federation.check import describe_silo, read_silo_status

    found = read_silo_status(folder)
    print(json.dumps(found, indent=2) if as_json else "\n".join(describe_silo(found)))


def _print_not_begun(moderator: "ModeratorFolder", runs: bool, as_json: bool) -> None:
    """Say that there is no status yet."""
    from feddig.federation.contract import read_contract

    name = read_contract(moderator.contract).name
    if as_json:
        state = "starting" if runs else "not started"
        print(json.dumps({"federation": name, "state": state, "running": runs}, indent=2))
    elif runs:
        print(f"{name}: starting; the moderator has not reported anything yet")
    else:
        print(
            f"{name}: not started; start it with `feddig federation moderator`, or `up` for all parties on one machine"
        )


def moderator_of(folder: Path) -> "ModeratorFolder":
    """Return the moderator's folder: inside a federation's, or the folder itself."""
    from feddig.federation.folders import FederationFolder, ModeratorFolder, SiloFolder

    if SiloFolder(folder).silo_file.is_file():
        raise FedDigError(f"{folder}: is a silo's folder; only the moderator can do this, in its own folder")
    inner = FederationFolder(folder).moderator
    found = inner if inner.path.is_dir() else ModeratorFolder(folder)
    if not found.contract.is_file():
        raise FedDigError(f"{folder}: is no federation's folder; `feddig federation init` makes one")
    return found


def _conclude(done: bool, told: bool, again: str, say: Callable[[str], None]) -> None:
    """Exit with a code that says whether all rounds are done."""
    if not done:
        say(f"stopped before the end; continue with `{again}`")
        if told:
            raise typer.Exit(INTERRUPTED)
