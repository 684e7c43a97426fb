"""FedDig on tables: hospitals that hold rows of measurements, not images.

    python examples/tabular.py --seeds 5              # breast cancer: 30 columns, 2 classes; five seeds
    python examples/tabular.py --set wine --seeds 5   # wine: 13 columns, 3 classes

A table [rows, columns] goes through feddig.dataset_from_arrays; the networks then see each row as an image of
1 x 1 x columns. Nothing else in the method asks for pixels, but the networks that come with FedDig do, so P_R, P_G
and M are small multilayer perceptrons here. Two things may use no silo's rows, because everybody needs them before
anybody has sent anything:

- the range that scales a column to 0 to 1. In a hospital it is the reference range of the measurement; here it is
  that of the test rows, which belong to no silo, and what lies outside is clipped;
- the encoder P_R. Here it is a random projection with a ReLU, drawn from a public seed, so that no training of it
  could leak a row. By itself it hides nothing; mixing and noise are what stands between a digest and its rows, and
  docs/explanation/privacy.md says how little that promises.

Whether FedDig helps is for the printed table to say; the sets are small, so one seed proves nothing. The learning
rate is the demo's and the batch smaller, because the silos are; neither was tuned.
"""

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import feddig
from feddig.report.page import write_report

CODE = 16  # numbers in a feature r, and so in each mixed row of a digest
RUNS = {  # a row of the printed table: algorithm and scenario
    "FedAvg, nobody leaves": ("fedavg", "none"),
    "FedAvg": ("fedavg", "sequential"),
    "frozen at the first leave": ("frozen", "sequential"),
    "FedDig": ("feddig", "sequential"),
}


class Encoder(nn.Module):
    """P_R: fixed random sums of the columns, none negative; anybody can draw the same from the seed."""

    def __init__(self, columns: int) -> None:
        super().__init__()
        stream = torch.Generator().manual_seed(0)
        self.register_buffer("weights", torch.randn(columns, CODE, generator=stream))

    def forward(self, rows: Tensor) -> Tensor:
        """Encode rows [batch, 1, 1, columns] as [batch, CODE]."""
        return torch.relu((rows.flatten(1) - 0.5) @ self.weights)


class Classifier(nn.Module):
    """M: F_R for a row (or guidance), F_D for its feature (or a digest), and the head C. FedAvg's M has no F_D."""

    def __init__(self, columns: int, classes: int, *, sees_features: bool) -> None:
        super().__init__()
        self.raw = nn.Sequential(nn.Flatten(), nn.Linear(columns, 32), nn.ReLU())
        self.digest = nn.Sequential(nn.Linear(CODE, 16), nn.ReLU()) if sees_features else None
        self.head = nn.Linear(32 + 16 * sees_features, classes)

    def forward(self, rows: Tensor, features: Tensor | None = None) -> Tensor:
        """Give logits; FedDig calls with features, FedAvg without."""
        seen = [self.raw(rows)] if self.digest is None else [self.raw(rows), self.digest(features)]
        return self.head(torch.cat(seen, dim=1))


def build_networks(columns: int, classes: int, seed: int, *, sees_features: bool) -> feddig.Networks:
    """Draw first weights from the seed: those of networks of one's own are one's own matter."""
    torch.manual_seed(seed)
    guidance = nn.Sequential(  # P_G: from a digest's CODE numbers back to something like a row
        nn.Linear(CODE, 32), nn.ReLU(), nn.Linear(32, columns), nn.Sigmoid(), nn.Unflatten(1, (1, 1, columns))
    )
    classifier = Classifier(columns, classes, sees_features=sees_features)
    return feddig.Networks(encoder=Encoder(columns), guidance=guidance, classifier=classifier)


def load_table(name: str, seed: int) -> feddig.Dataset:
    """Set a fifth of the rows aside for testing, and scale columns by the range that they have there."""
    rows, labels = (load_wine if name == "wine" else load_breast_cancer)(return_X_y=True)
    split = train_test_split(rows, labels, test_size=0.2, stratify=labels, random_state=seed)
    low, high = split[1].min(axis=0), split[1].max(axis=0)
    train, test = (np.clip((part - low) / (high - low), 0, 1).astype(np.float32) for part in split[:2])
    return feddig.dataset_from_arrays(train, split[2], test, split[3], name=name)


def main() -> None:
    """Run what RUNS lists, on each seed, and print the test accuracies at the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--set", choices=("breast-cancer", "wine"), default="breast-cancer")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=1, help="how many")
    parser.add_argument("--out", type=Path, help="new folder for the results")
    options = parser.parse_args()
    out = options.out or Path(tempfile.mkdtemp()) / options.set
    base = feddig.demo_experiment(
        ["data.name=tensors", "data.min_samples=16", "training.batch=4", f"training.rounds={options.rounds}"]
    )  # as the demo: four silos, very uneven (skew 0.1), that leave one after the other
    finals: dict[str, list[float]] = {title: [] for title in RUNS}
    for seed in range(options.seeds):
        dataset = load_table(options.set, seed)
        columns = dataset.train.pixels.shape[-1]
        for title, (algorithm, scenario) in RUNS.items():
            (cell,) = feddig.grid(base, [algorithm], [scenario], [seed], out)
            networks = build_networks(columns, dataset.classes, seed, sees_features=algorithm == "feddig")
            result = feddig.run(cell.experiment, cell.path, dataset=dataset, networks=networks)
            finals[title].append(result.accuracy)
    print(f"{options.set}: test accuracy in percent after {options.rounds} rounds, {options.seeds} seed(s)")
    for title, values in finals.items():
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        print(f"{title:26} {statistics.mean(values):5.1f}{spread}")
    print(f"report: {write_report([out])[0]}")


if __name__ == "__main__":
    main()
