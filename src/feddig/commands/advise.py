"""`feddig advise`: try privacy settings on an experiment's own data, and recommend one that meets given limits."""

import json
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from feddig.commands import completion, options
from feddig.errors import FedDigError

if TYPE_CHECKING:
    from feddig.advise.choose import Setting, SettingResult

MIXINGS = ("random", "within-class")
FULL = {
    "samples_per_digest": "4,16,64",
    "mixing": "random,within-class",
    "mechanisms": "none,paper-laplace,discrete-gaussian,discrete-laplace",
    "epsilons": "8,4,1",
    "paper_epsilons": "0.005,0.0005",
}
SMALL = FULL | {
    "samples_per_digest": "4,16",
    "mechanisms": "none,paper-laplace,discrete-gaussian",
    "epsilons": "8,1",
    "paper_epsilons": "0.005",
}
"""The grid of --quick."""
LARGEST_UNMIXED = 16


def advise_command(
    max_link_rate: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of records that may be linked to their digest.")
    ],
    max_record_epsilon: Annotated[
        float, typer.Option(min=0, help="Largest proved epsilon of a record; inf: any.")
    ],
    file: options.ExperimentFile = None,
    overrides: options.Overrides = None,
    data: Annotated[
        str | None,
        typer.Option(help="A data set's name, an .npz file or a folder, instead of the experiment's."),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="Folder for the advice; finished settings in it are not tried again.")
    ] = Path("results/advice"),
    min_accuracy: Annotated[
        float | None,
        typer.Option(min=0, max=100, help="Smallest test accuracy of the short run, in percent."),
    ] = None,
    samples_per_digest: Annotated[
        str | None, typer.Option(help=f"Comma-separated numbers; {FULL['samples_per_digest']}.")
    ] = None,
    mixing: Annotated[
        str | None,
        typer.Option(
            help="Of random,within-class; both.", autocompletion=completion.list_of(lambda: MIXINGS)
        ),
    ] = None,
    mechanisms: Annotated[
        str | None,
        typer.Option(
            help=f"Of {FULL['mechanisms']}; all.", autocompletion=completion.list_of(completion.mechanisms)
        ),
    ] = None,
    epsilons: Annotated[
        str | None, typer.Option(help=f"Record epsilons of the discrete mechanisms; {FULL['epsilons']}.")
    ] = None,
    paper_epsilons: Annotated[
        str | None, typer.Option(help=f"Epsilons of paper-laplace; {FULL['paper_epsilons']}.")
    ] = None,
    clip_bound: Annotated[
        float | None,
        typer.Option(help="Public bound of the discrete mechanisms; the experiment's, else 350 (L2)."),
    ] = None,
    delta: Annotated[
        float | None, typer.Option(help="Delta of discrete-gaussian; the experiment's, else 1e-6.")
    ] = None,
    algorithm: Annotated[
        str,
        typer.Option(
            help="Algorithm of the short run: digests-only or feddig.",
            autocompletion=completion.one_of(completion.algorithms_with_joint_update),
        ),
    ] = "digests-only",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the short run.")] = 5,
    joint_steps: Annotated[
        int | None,
        typer.Option(
            min=1, help="Steps on digests per round, the same for every SpD; the experiment's, else 50."
        ),
    ] = None,
    silo: Annotated[
        int | None, typer.Option(min=0, help="Silo whose digests are attacked; the one with most images.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small grid and smaller attacks.")] = False,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
    log_level: options.Level = options.LogLevel.warning,
) -> None:
    """Try privacy settings: what they promise, what attacks find, what a model learns; recommend one."""
    options.show_log(log_level)
    options.check_out(out)
    _check_limits(max_link_rate, max_record_epsilon, min_accuracy)
    _check_noise(clip_bound, delta)
    from feddig.privacy.mechanisms import MECHANISMS

    chosen = SMALL if quick else FULL
    sizes = options.whole_numbers("--samples-per-digest", samples_per_digest or chosen["samples_per_digest"])
    if 0 in sizes:
        raise FedDigError("--samples-per-digest: must be at least 1, not 0")
    mixings = options.listed("--mixing", mixing or chosen["mixing"], MIXINGS)
    names = options.listed("--mechanisms", mechanisms or chosen["mechanisms"], list(MECHANISMS))
    levels = _numbers("--epsilons", epsilons or chosen["epsilons"])
    papers = _numbers("--paper-epsilons", paper_epsilons or chosen["paper_epsilons"])

    from feddig.advise.advice_files import terminal_table, write_advice
    from feddig.advise.choose import UserLimits, choose_setting, explain_choice
    from feddig.advise.sweep import sweep
    from feddig.advise.try_setting import ShortRun, chosen_settings, list_settings, shorten_experiment
    from feddig.audit.findings import AttackBudget
    from feddig.data.load import OWN

    overrides = [*_data_settings(data, data_dir), *(overrides or [])]
    shared = shorten_experiment(
        options.chosen_experiment(file, overrides, data_dir),
        ShortRun(algorithm, rounds, joint_steps, clip_bound, delta),
    )
    # above that, unmixing takes minutes per setting and has too few digests to be informative
    budget = AttackBudget(largest_unmixed=LARGEST_UNMIXED)
    console = Console(stderr=True, quiet=quiet)

    def on_done(
        number: int, total: int, setting: "Setting", outcome: "SettingResult | str", left: float
    ) -> None:
        console.print(
            f"{number:>3} of {total}  {setting}  {_describe(outcome)}  {left:.0f} s left",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip

    with options.hint(f"finished settings are kept: give the same command again to continue in {out}"):
        swept = sweep(
            shared,
            list_settings(sizes, mixings, names, levels, papers),
            out,
            budget=budget.quick() if quick else budget,
            silo=silo,
            device=device,
            on_done=on_done,
        )
    if not swept.results:
        raise FedDigError(f"every setting failed; the first: {next(iter(swept.failures.values()))}")
    limits = UserLimits(max_link_rate, max_record_epsilon, min_accuracy)
    choice = choose_setting(swept.results, limits)
    block = chosen_settings(shared, choice.result.setting)
    advice = write_advice(out, swept.results, swept.failures, swept.facts, choice, limits, block)
    if as_json:
        print(json.dumps({"path": str(out), **advice}, indent=2, allow_nan=False))
        return
    # a pipe has no width, and the table must not be cut there
    Console(width=None if sys.stdout.isatty() else 180).print(terminal_table(swept.results, choice, limits))
    for name, why in swept.failures.items():
        print(f"failed: {name}: {why}")
    print("\n" + "\n".join(explain_choice(choice, limits, len(swept.results))))
    print("\n" + "\n".join(f"- {sentence}" for sentence in advice["caveats"]))
    print(f"\nadvice  {out / 'advice.json'}\n")
    experiment = "experiment.toml" if file is None else file
    said = "Put these settings" if choice.is_met else "These settings miss a limit. To use them, put them"
    print(f"{said} into {experiment}, make a digest and audit it.\n\n{block}\n")
    share = ["--all-data"] if shared.data.name in OWN else ["--silo", str(swept.facts["silo"])]
    words = ["feddig", "digest", "make", str(experiment), *share]
    print(f"next    {shlex.join([*words, '--out', 'digest.safetensors'])}")


def _data_settings(data: str | None, data_dir: Path | None) -> list[str]:
    if data is None:
        return []
    from feddig.audit.inputs import find_place

    name, path = find_place("--data", data, data_dir)
    return [f"data.name={name}", *([] if path is None else [f"data.path={path.absolute()}"])]


def _check_limits(*limits: float | None) -> None:
    # typer's own limits accept NaN, which compares false with everything
    if any(limit is not None and math.isnan(limit) for limit in limits):
        raise FedDigError("--max-link-rate, --max-record-epsilon and --min-accuracy must be numbers, not nan")


def _check_noise(clip_bound: float | None, delta: float | None) -> None:
    if clip_bound is not None and not 0 < clip_bound < math.inf:
        raise FedDigError(f"--clip-bound: {clip_bound:g} is not a finite number above 0")
    if delta is not None and not 0 < delta < 1:
        raise FedDigError(f"--delta: {delta:g} is not between 0 and 1")


def _numbers(option: str, text: str) -> list[float]:
    numbers = []
    for each in options.listed(option, text):
        try:
            number = float(each)
        except ValueError:
            number = math.nan
        if not 0 < number < math.inf:
            raise FedDigError(f"{option}: {each!r} is not a finite number above 0")
        numbers.append(number)
    return list(dict.fromkeys(numbers))


def _describe(outcome: "SettingResult | str") -> str:
    if isinstance(outcome, str):
        return f"failed: {outcome}"
    return f"linked {outcome.linked.share:.1%}, accuracy {outcome.accuracy:.1f} %"
