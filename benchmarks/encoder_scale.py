"""Compare scales of the encoder's numbers, which act like a learning rate for F_D.

    python benchmarks/encoder_scale.py FOLDER [--out results.json] [--rounds 120] [--scales 4,16,64,256]

FOLDER contains Fashion-MNIST as four gzipped IDX files. The measure: final test accuracy of `digests-only` with the
paper's settings (no silo trains, so the model learns from digests only), by the largest value of the code.
"""

import argparse
import json
import tempfile
from pathlib import Path

from torch import Tensor, nn

from feddig import Networks, read_experiment, run
from feddig.models.encoder import load_encoder
from feddig.models.train_encoder import LARGEST_VALUE

PAPER = Path(__file__).parent.parent / "experiments" / "paper.toml"


class Scaled(nn.Module):
    """The shipped encoder, scaled to another largest value."""

    def __init__(self, largest: float) -> None:
        super().__init__()
        self.encoder, self.factor = load_encoder("default", 1), largest / LARGEST_VALUE

    def forward(self, images: Tensor) -> Tensor:
        """Encode and scale."""
        code: Tensor = self.encoder(images) * self.factor
        return code


def main() -> None:
    """Measure each scale and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--rounds", type=int, default=120)
    parser.add_argument("--scales", default="4,16,64,256,1024")
    options = parser.parse_args()
    settings = ["data.name=idx", f"data.path={options.folder}", "algorithm.name=digests-only"]
    settings.append("data.min_share=0")  # the runs that are written down drew their silos without it
    settings.append(f"training.rounds={options.rounds}")
    rows = []
    for largest in map(float, options.scales.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            networks = Networks(encoder=Scaled(largest))
            summary = run(read_experiment(PAPER, settings), Path(folder, "run"), networks=networks)
        rows.append(
            {"largest": largest, "accuracy": summary["accuracy"]["final"], "device": summary["device"]}
        )
        print(f"largest value {largest:6g}   test accuracy {rows[-1]['accuracy']:.1f} %", flush=True)
    if options.out:
        result = {"rounds": options.rounds, "seed": 0, "versions": summary["versions"], "rows": rows}
        options.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
