"""`feddig evaluate`: measure a trained model on images with labels."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from feddig.commands.options import DataDir, Device, Json, Quiet
from feddig.commands.predict import Model, OwnCode
from feddig.errors import FedDigError


def evaluate_command(
    model: Model,
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="Images with labels: <class>/* or <silo>/<class>/*, an .npz file (x and y, or x_test and y_test), IDX "
            "files, or a data set's name (its test images).",
        ),
    ],
    out: Annotated[Path | None, typer.Option(help="JSON file to write, with the confusion matrix.")] = None,
    own_code: OwnCode = False,
    device: Device = "auto",
    data_dir: DataDir = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Measure a trained model on images with labels: accuracy, and precision, recall and F1 of each class."""
    from feddig.files import write_atomically
    from feddig.runs.model_file import evaluate, load_model

    if out is not None and out.exists():
        raise FedDigError(f"{out}: exists already; choose another --out")
    found = evaluate(load_model(model, device=device, own_code=own_code), data, data_dir)
    text = json.dumps(found, indent=2)
    if out is not None:
        write_atomically(out, text + "\n")
    if as_json:
        print(text)
    elif not quiet:
        _print(found)
        if out is not None:
            print(out)


def _print(found: dict[str, Any]) -> None:
    from feddig.report.measures import say_measures

    print(f"{'images':<18} {found['images']:,}")
    for title, value, ends in say_measures(found, found["intervals"]):
        print(f"{title:<18} {value}" + (f" (95 % interval {ends})" if ends else ""))
    width = max(len("class"), *(len(row["class"]) for row in found["classes"]))
    print(f"\n{'class':<{width}} {'images':>8} {'precision':>10} {'recall':>8} {'F1':>8}")
    for row in found["classes"]:
        precision, recall, f1 = (_percent(row[key]) for key in ("precision", "recall", "f1"))
        print(f"{row['class']:<{width}} {row['count']:>8,} {precision:>10} {recall:>8} {f1:>8}")


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
