"""FedDig with networks of your own: a classifier M, an encoder P_R and a guidance producer P_G.

    python examples/own_model.py
    python examples/own_model.py --replace extractor

Three networks, and what each must keep to:

- P_R, the encoder: image to feature, no feature negative. It is fixed and public, and every silo uses the same one, so
  it must not be trained on any silo's images. Here: random filters from a public seed.
- P_G, the guidance producer: feature to something of the shape of an image. The moderator trains it.
- M, the classifier: called as M(image, feature) by FedDig and as M(image) by FedAvg, gives logits. No BatchNorm that
  keeps running averages: nobody knows how to aggregate those.

Whatever you leave out comes as the experiment names it. Images arrive padded to sides that are multiples of 8: the
28 x 28 of Fashion-MNIST are 32 x 32 here. Shapes are tried out before the first round, and what does not fit is one
line that says what to change; the first thing this program does is to show such a line.

The second command replaces less: only F_R, what the classifier that comes with FedDig sees of an image, and P_G.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import feddig
from feddig.report.page import write_report

CODE = 3 * 8 * 8  # numbers in a feature


def build_encoder() -> nn.Module:
    """P_R: 1 x 32 x 32 to 3 x 8 x 8, by a convolution with random filters; the ReLU makes it non-negative."""
    with torch.random.fork_rng():
        torch.manual_seed(0)  # public: everybody draws the same filters
        return nn.Sequential(nn.Conv2d(1, 3, 5, padding=2), nn.ReLU(), nn.AvgPool2d(4))


def build_guidance_producer() -> nn.Module:
    """P_G: a multilayer perceptron from a digest's 3 x 8 x 8 numbers to 1 x 32 x 32 from 0 to 1."""
    grow = nn.Linear(64, 32 * 32)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(CODE, 64), nn.ReLU(), grow, nn.Sigmoid(), nn.Unflatten(1, (1, 32, 32))
    )


class Classifier(nn.Module):
    """M: a small CNN for the image (F_R), a layer for the feature (F_D), and a head that sees both."""

    def __init__(self, classes: int, *, sees_features: bool) -> None:
        super().__init__()
        self.raw = nn.Sequential(
            nn.Conv2d(1, 16, 4, stride=4), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.digest = nn.Sequential(nn.Flatten(), nn.Linear(CODE, 32), nn.ReLU()) if sees_features else None
        self.head = nn.Linear(16 * 4 * 4 + 32 * sees_features, classes)

    def forward(self, images: Tensor, features: Tensor | None = None) -> Tensor:
        """Give logits for a batch of images (or guidance) and, with F_D, features (or digests)."""
        seen = [self.raw(images)] if self.digest is None else [self.raw(images), self.digest(features)]
        return self.head(torch.cat(seen, dim=1))


class Extractor(nn.Module):
    """F_R alone: any module from images to numbers; the head finds out how many."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(1, 16, 4, stride=4), nn.GroupNorm(4, 16), nn.ReLU())
        self.refine = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.leave = nn.MaxPool2d(2)

    def forward(self, images: Tensor) -> Tensor:
        """Extract, with a shortcut around the second layer."""
        entered = self.enter(images)
        return self.leave(entered + self.refine(entered))


def build_networks(replace: str, *, sees_features: bool) -> feddig.Networks:
    """Build what is replaced; the experiment's seed does not reach first weights that you draw."""
    torch.manual_seed(0)
    if replace == "extractor":
        # P_G for the shipped encoder, whose feature is 4 x 8 x 8
        grow = nn.Sequential(nn.Upsample(scale_factor=4), nn.Conv2d(4, 16, 3, padding=1), nn.ReLU())
        paint = nn.Sequential(grow, nn.Conv2d(16, 1, 1), nn.Sigmoid())
        return feddig.Networks(raw_extractor=Extractor(), guidance=paint)
    return feddig.Networks(
        encoder=build_encoder(),
        guidance=build_guidance_producer(),
        classifier=Classifier(10, sees_features=sees_features),
    )


def main() -> None:
    """Show what a misfit looks like, then train FedAvg and FedDig with these networks."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--replace", choices=("all", "extractor"), default="all", help="which networks are yours"
    )
    parser.add_argument("--rounds", type=int, default=18)
    parser.add_argument("--out", type=Path, help="new folder for the results")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp()) / "own-model"
    experiment = feddig.demo_experiment(
        ["algorithm.name=feddig", "data.limit=1200", f"training.rounds={options.rounds}"]
    )

    too_small = nn.Sequential(build_guidance_producer(), nn.MaxPool2d(2))
    try:
        feddig.run(experiment, out, networks=feddig.Networks(encoder=build_encoder(), guidance=too_small))
    except feddig.FedDigError as error:
        print(f"a misfit: {error}")

    for algorithm in ("fedavg", "feddig"):
        (cell,) = feddig.grid(experiment, [algorithm], ["sequential"], [0], out)
        networks = build_networks(options.replace, sees_features=algorithm == "feddig")
        result = feddig.run(cell.experiment, cell.path, networks=networks)
        print(f"{algorithm}: test accuracy {result.accuracy:.1f} % after every silo has left")
    print(f"report: {write_report([out])[0]}")


if __name__ == "__main__":
    main()
