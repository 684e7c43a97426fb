"""`feddig predict`: classify images with a trained model."""

import json
from pathlib import Path
from typing import Annotated

import typer

from feddig.commands.options import Device, Json, Quiet
from feddig.errors import FedDigError

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="model.safetensors, or a run's results folder.")]
OwnCode = Annotated[
    bool,
    typer.Option("--own-code", help="Import the network that the file names; only for files that you trust."),
]


def predict_command(
    model: Model,
    images: Annotated[
        Path,
        typer.Argument(
            metavar="IMAGES", help="A folder of images and folders, one image, or an .npz file (x or x_test)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="CSV file to write.")] = Path("predictions.csv"),
    own_code: OwnCode = False,
    device: Device = "auto",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Classify images with a trained model; write the class and the probabilities of each image."""
    from feddig.files import write_atomically
    from feddig.runs.model_file import load_model, predict

    if out.exists():
        raise FedDigError(f"{out}: exists already; choose another --out")
    table, count = predict(load_model(model, device=device, own_code=own_code), images)
    write_atomically(out, table)
    if as_json:
        print(json.dumps({"path": str(out), "images": count}))
    elif not quiet:
        print(f"{out}  {count:,} image{'s' * (count != 1)}")
