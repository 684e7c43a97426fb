"""`feddig encoder make|import`: train or import the public encoder that every silo uses."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from feddig.commands.options import DataDir, Json, Level, LogLevel, Quiet, show_log
from feddig.errors import FedDigError

encoder_app = typer.Typer(no_args_is_help=True, help="Make the public encoder, or import one.")


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
        bool, typer.Option("--even", help="Level its code and give it one length, for sound noise.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
    log_level: Level = LogLevel.warning,
) -> None:
    """Train the encoder P_R: on generated images, so that no real one is used, or on a public data set."""
    show_log(log_level)
    from feddig.models.encoder import encoder_hash, save_encoder
    from feddig.models.train_encoder import BATCH, SHIPPED_TRAINING, STEPS, make_encoder, make_even_encoder
    from feddig.runs.release import check_channels, facts_about, load_public, training_on

    def report(step: int, error: float) -> None:
        if not quiet and (step + 1) % 100 == 0:
            print(f"step {step + 1}  reconstruction error {error:.5f}", file=sys.stderr)

    if out.exists():
        raise FedDigError(f"{out}: exists already; choose another --out")
    if data_path is not None and not data:
        raise FedDigError("--data-path: gives the place of the data that --data names; give --data too")
    training, learnt_from = SHIPPED_TRAINING, {}
    if data:
        dataset = load_public(data, data_path, data_dir)
        channels = check_channels(dataset, channels)
        training, learnt_from = training_on(dataset), facts_about(dataset)
    channels, steps = channels or 1, steps or STEPS
    encoder = make_encoder(channels, seed, steps, report=report, training=training)
    facts = {"recipe": training.name, "seed": str(seed), "steps": str(steps), "batch": str(BATCH)}
    finished = make_even_encoder(encoder, seed) if even else encoder
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
    from feddig.models.mobilenet import import_mobilenet

    if out.exists():
        raise FedDigError(f"{out}: exists already; choose another --out")
    encoder = import_mobilenet(weights, enlarge)
    save_encoder(out, encoder, {"source": weights.name})
    made = {"path": str(out), "hash": encoder_hash(encoder), **encoder.facts}
    print(json.dumps(made) if as_json else f"{out}  {made['hash']}")
