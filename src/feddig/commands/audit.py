"""`feddig audit`: attack a silo's own digests before they are sent."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from feddig.commands.federation import need_flower
from feddig.commands.options import (
    DataDir,
    Json,
    Level,
    LogLevel,
    Quiet,
    check_out,
    find_silo,
    print_page,
    show_log,
)
from feddig.errors import DivergenceError, FedDigError

if TYPE_CHECKING:
    from feddig.data.dataset import Images


class FailOn(StrEnum):
    """The verdict from which on the command fails."""

    never = "never"
    amber = "amber"
    red = "red"


DATA = "a data set's name, an .npz file, a folder, or an experiment's .toml; then :train (default), :test, :FIRST-LAST"
FAILED = 1
"""The exit code that --fail-on asks for."""


def audit_command(
    out: Annotated[Path, typer.Option(help="New folder for report.html, audit.json and pictures.")],
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DIR]",
            help="A silo's folder of a federation, or the contract in it: its digest, its images, and its validation "
            "images as holdout.",
        ),
    ] = None,
    digests: Annotated[Path | None, typer.Option(help="Digest file that is to be sent.")] = None,
    members: Annotated[
        str | None, typer.Option(metavar="DATA", help=f"The images it was made of: {DATA}.")
    ] = None,
    holdout: Annotated[
        str | None, typer.Option(metavar="DATA", help="Images of the same kind that were not used.")
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="Images that attackers learn from; without it, half of the holdout."
        ),
    ] = None,
    encoder: Annotated[
        str | None, typer.Option(help="The digests' encoder: even, or its file; without it, default.")
    ] = None,
    guidance: Annotated[
        Path | None,
        typer.Option(
            help="guidance.safetensors of a run, for pictures of what the moderator sees; without it, trained here."
        ),
    ] = None,
    thresholds: Annotated[
        Path | None, typer.Option(help="TOML file with the limits of the verdicts (docs/reference/audit.md).")
    ] = None,
    mixing_seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Seed of seeded digests: attack the file's own digests instead of trial digests."
        ),
    ] = None,
    digests_at_most: Annotated[int, typer.Option(min=10, help="Digests to attack, at most.")] = 400,
    pool: Annotated[int, typer.Option(min=20, help="Candidates for unmixing, members included.")] = 10_000,
    canaries: Annotated[
        int, typer.Option(min=10, help="Planted records, at most; as many as can refute the claim are used.")
    ] = 250_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the audit's own random numbers.")] = 0,
    threads: Annotated[
        int, typer.Option(min=1, help="CPU threads; such small networks gain little from more.")
    ] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller attacks: two minutes at most.")] = False,
    pictures: Annotated[
        bool, typer.Option("--pictures/--no-pictures", help="Whether the page shows members' images.")
    ] = True,
    fail_on: Annotated[
        FailOn, typer.Option(help="Exit with code 1 if the verdict is this or worse.")
    ] = FailOn.never,
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
    log_level: Level = LogLevel.warning,
) -> None:
    """Attack digests before they are sent; write a report with a verdict for each of seven checks."""
    show_log(log_level)
    _check_out(out)
    import torch

    from feddig.audit.audit import run_audit
    from feddig.audit.audited import image_shape, prepare_audit
    from feddig.audit.findings import AttackBudget, read_limits
    from feddig.audit.inputs import load_guidance, load_inputs
    from feddig.digest.digest_file import read_digest
    from feddig.report.audit import write_audit
    from feddig.report.pictures import draw_membership, draw_recovered
    from feddig.runs.build import learn_guidance

    torch.set_num_threads(threads)
    own = None if folder is None else _read_silo(folder)
    if own is not None:
        folder = own.path
        digests, members, encoder = digests or own.digest, members or str(folder), encoder or own.encoder
        holdout = holdout or f"{folder}:validation"
    if digests is None or members is None or holdout is None:
        raise FedDigError("--digests, --members and --holdout: give all three, or a silo's folder")
    encoder = encoder or "default"
    limits, digest = read_limits(thresholds), read_digest(digests)
    budget = AttackBudget(digests=digests_at_most, pool=pool, canaries=canaries)
    budget = budget.quick() if quick else budget
    console = Console(stderr=True, quiet=quiet)
    console.print("reading and encoding images", highlight=False)
    images = load_inputs(
        digest,
        members=own.train if own is not None and members == str(folder) else members,
        holdout=own.validation if own is not None and holdout == f"{folder}:validation" else holdout,
        public=public,
        encoder=encoder,
        data_dir=data_dir,
        budget=budget,
        seed=seed,
    )
    shape = image_shape(images.members)
    producers = (
        {} if guidance is None else {"guidance": load_guidance(guidance, digest.features.shape[1:], shape)}
    )
    audited = prepare_audit(digest, images, budget, seed=seed, mixing_seed=mixing_seed)
    if pictures and not producers:
        console.print("training guidance as a moderator does", highlight=False)
        try:
            learnt = learn_guidance(audited.known.digest, images.encoder, shape, seed=seed)
            producers = {"guidance, learnt here": learnt}
        except DivergenceError as error:
            console.print(f"no pictures of guidance: {error}", markup=False, highlight=False)
    audit = run_audit(
        audited,
        limits,
        names={
            "digests": digests.name,
            "members": members,
            "holdout": holdout,
            "public": public or "",
            "encoder": encoder,
            **({} if own is None else {"silo": str(folder), "data": str(own.data)}),
        },
        guidance=producers,
        report=lambda text: console.print(text, highlight=False),
    )
    drawn = {"membership": draw_membership(audit.curves)} if audit.curves else {}
    if pictures and audit.pictures:
        drawn["inversion"] = draw_recovered(audit.pictures)
    given = {
        **({"digests": digests, "members": members, "holdout": holdout, "encoder": encoder} if own is None else {}),
        "public": public,
        "guidance": guidance, "thresholds": thresholds, "mixing-seed": mixing_seed,
        "digests-at-most": digests_at_most, "pool": pool, "canaries": canaries, "seed": seed,
        "threads": threads, "quick": quick, "no-pictures": not pictures, "data-dir": data_dir, "out": "again",
    }  # fmt: skip
    shown = [*audit.pictures] if "inversion" in drawn else []
    report = {**audit.report, "command": _command_line(folder, given), "pictured": shown}
    page, run_page = write_audit(out, report, drawn), _rebuild_run_page(out, console)
    if as_json:
        pages = {"page": str(page), "run_page": run_page and str(run_page)}
        print(json.dumps({"path": str(out), **pages, **report}, indent=2, allow_nan=False))
    else:
        _print(report, out, [page, run_page], pictured="inversion" in drawn)
    if _fails(report["light"], fail_on):
        raise typer.Exit(FAILED)


@dataclass(frozen=True)
class _Silo:
    """What an audit needs from a silo's folder."""

    path: Path
    digest: Path
    encoder: str
    data: Path
    train: "Images"
    validation: "Images"


def _read_silo(path: Path) -> _Silo:
    need_flower()
    from feddig.federation.contract import read_contract
    from feddig.federation.silo_data import load_silo_data, read_silo_file

    folder = find_silo(path)
    if folder is None:
        raise FedDigError(f"{path}: is neither a silo's folder nor the contract in one")
    contract = read_contract(folder.contract)
    if not folder.digest.exists():
        raise FedDigError(f"{folder.digest}: no such file yet; make it with `feddig digest make {path}`")
    file = read_silo_file(folder.silo_file)
    encoder = contract.experiment.digest.encoder
    return _Silo(folder.path, folder.digest, encoder, file.data.path, *load_silo_data(file, contract))


def _check_out(out: Path) -> None:
    """Refuse a folder whose page this audit would replace."""
    check_out(out)
    from feddig.report.audit import is_audit
    from feddig.report.read_run import is_run

    if is_audit(out):
        raise FedDigError(f"{out}: has an audit already; choose another --out")
    if is_run(out):
        raise FedDigError(
            f"{out}: is a run's folder, with a page of its own; choose a folder in it, as {out / 'audit'}"
        )


def _rebuild_run_page(out: Path, console: Console) -> Path | None:
    """Rebuild the page of the run whose folder contains the audit; if that fails, the audit is still written."""
    from feddig.report.page import rebuild_run_page

    try:
        return rebuild_run_page(out)
    except FedDigError as error:
        console.print(f"the run's page does not show this audit: {error}", markup=False, highlight=False)
        return None


def _command_line(folder: Path | None, options: Mapping[str, Any]) -> str:
    """Return the command that repeats this audit; options that were not given are left out."""
    words = ["feddig", "audit", *([] if folder is None else [str(folder)])]
    for name, value in options.items():
        if value is True:
            words.append(f"--{name}")
        elif value is not None and value is not False:
            words += [f"--{name}", str(value)]
    return shlex.join(words)


def _fails(verdict: str, fail_on: FailOn) -> bool:
    return (
        verdict == "red" if fail_on is FailOn.red else fail_on is FailOn.amber and verdict in ("amber", "red")
    )


def _print(report: dict[str, Any], out: Path, pages: Sequence[Path | None], *, pictured: bool) -> None:
    print(f"Verdict: {report['light']}. {report['meaning']}\n")
    for check in report["checks"]:
        print(f"{check['number']} {check['light']:<8} {check['title']}")
        print(f"           {check['sentence']}")
    print(f"\nfigures  {out / 'audit.json'}")
    for page in pages:
        print_page(page)
    print()
    steps = report["next_steps"]
    print(steps["said"])
    if steps["settings"]:
        print(f"\n{steps['settings']}\n")
    print(f"next    {steps['next']}")
    if report["light"] != "green":
        print(f"search  {steps['advise']}")
    if pictured:
        print("The page shows members' own images: keep it at the silo.", file=sys.stderr)
