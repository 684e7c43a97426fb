"""`feddig init` and `feddig check`: write a first experiment for one's data, and say what it would do."""

import json
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from feddig.commands import options
from feddig.errors import FedDigError, shorten

SHOWN = 8
"""How many names or events are listed."""
MOST_SILOS = 20
"""How many silos are listed."""
WIDTH, INDENT = 110, 17


def init_command(
    file: Annotated[Path, typer.Argument(metavar="FILE.toml", help="The new experiment file.")],
    data: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|FILE.npz|NAME",
            help="Your images: a folder with one folder per class, or with one per silo and in it one per class; a "
            "folder of IDX files; an .npz file; or a public set. Without it, the bundled set.",
        ),
    ] = None,
    data_dir: options.DataDir = None,
    log_level: options.Level = options.LogLevel.warning,
) -> None:
    """Write a commented first experiment that fits your data, with sound privacy."""
    options.show_log(log_level)
    if file.suffix != ".toml":
        raise FedDigError(f"{file}: name the new file as NAME.toml; your images are given by --data")
    if file.exists():
        raise FedDigError(f"{file}: exists already, and is not replaced; give another name")
    from feddig.experiment.starter import starter
    from feddig.files import write_atomically

    text, facts = starter(file, data, data_dir)
    write_atomically(file, text)
    print("\n".join(facts))
    print(f"{file}: written; look at it, then: feddig check {file}")


def check_command(
    file: options.ExperimentFile = None,
    overrides: options.Overrides = None,
    device: options.Device = "auto",
    data_dir: options.DataDir = None,
    as_json: options.Json = False,
    log_level: options.Level = options.LogLevel.warning,
) -> None:
    """Say what `feddig run` would do: silos, who leaves when, cost, promise. Train nothing and write nothing."""
    options.show_log(log_level)
    experiment = options.chosen_experiment(file, overrides, data_dir)
    from feddig.runs.forecast import forecast

    found = forecast(experiment, Path("results"), device=device)
    print(json.dumps(found, indent=2) if as_json else "\n".join(_describe(found)))


def _describe(found: dict[str, Any]) -> Iterator[str]:
    data, sent, seconds = found["data"], found["bytes"], found["seconds"]
    channels, height, width = data["shape"]
    counts = f"{data['train']:,} images to train and {data['test']:,} to test"
    colours = "grey" if channels == 1 else "in colour"
    yield _line("data", f"{data['path'] or data['name']}: {counts}, {width} x {height}, {colours}")
    yield _line("classes", f"{len(data['classes'])}: {shorten(data['classes'], SHOWN)}")
    silos = found["silos"]
    yield _line("silos", f"{len(silos)}, by data.partition = {found['partition']!r}")
    yield from _silo_table(silos)
    scenario = f"{found['scenario']}, training.rounds = {found['rounds']}"
    yield _line("absence", f"{scenario}: {'; '.join(found['events'][:SHOWN]) or 'every silo stays'}")
    if len(found["events"]) > SHOWN:
        yield _line("", f"and {len(found['events']) - SHOWN} more")
    yield _line("algorithm", f"{found['algorithm']}: {found['does']}")
    digests = [size for size in sent["digest"] if size]
    if digests:
        yield _line("sent once", f"a digest of {_range(digests)} by each silo")
    if sent["update"]:
        yield _line(
            "sent in a round", f"{_size(sent['update'])} by each silo that is there; it receives as much"
        )
    yield _line("sent in all", f"{_size(sent['all'])} by the silos")
    yield _line("disk", f"about {_size(sent['disk'])}")
    yield _line("time", f"about {_time(seconds['all'])}: {_time(seconds['first'])} before the first round, then "
                f"{_time(seconds['round'])} a round; an estimate from a few steps on {found['device']}")  # fmt: skip
    yield _line("promise", found["promise"])
    for warning in found["warnings"]:
        yield _line("warning", warning)


def _silo_table(silos: Sequence[dict[str, Any]]) -> Iterator[str]:
    shown = silos[:MOST_SILOS]
    width = max(len(silo["name"]) for silo in shown)
    heads = ("train", "validation", "test", "digests")
    yield " " * (INDENT + width) + "".join(f"  {head:>6}" for head in heads) + "  classes"
    for silo in shown:
        held = sorted(silo["classes"].items(), key=lambda item: -item[1])
        numbers = "".join(f"  {silo[head]:>{max(6, len(head))},}" for head in heads)
        most = shorten([f"{name} {count:,}" for name, count in held], 3)
        yield " " * INDENT + f"{silo['name']:<{width}}{numbers}  {len(held)}: {most}"
    if len(silos) > MOST_SILOS:
        yield _line("", f"and {len(silos) - MOST_SILOS:,} more; --json lists all")


def _line(name: str, text: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=f"{name:<{INDENT}}",
        subsequent_indent=" " * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _range(sizes: Sequence[int]) -> str:
    least, most = _size(min(sizes)), _size(max(sizes))
    return least if least == most else f"{least} to {most}"


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e6 else f"{count / 1e3:,.0f} kB"


def _time(seconds: float) -> str:
    if seconds >= 7200:
        return f"{seconds / 3600:,.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.2g} s"
