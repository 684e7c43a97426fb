"""FedDig with your own networks: an extractor F_R and a guidance producer P_G, the rest as it comes."""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import feddig


class ResidualExtractor(nn.Module):
    """F_R: any module from images [batch, 1, 32, 32] to numbers; the head finds out how many."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.Conv2d(1, 16, 4, stride=4), nn.GroupNorm(4, 16), nn.ReLU())
        self.refine = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU())
        self.leave = nn.MaxPool2d(2)

    def forward(self, images: Tensor) -> Tensor:
        """Extract; GroupNorm, because BatchNorm's running averages are nobody's to aggregate."""
        entered = self.enter(images)
        return self.leave(entered + self.refine(entered))


torch.manual_seed(0)  # your networks' initial weights are yours: the experiment's seed does not reach them
guidance_producer = nn.Sequential(  # P_G: from a digest's 4 x 8 x 8 numbers to the shape of an image
    nn.Upsample(scale_factor=4), nn.Conv2d(4, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 1), nn.Sigmoid()
)
networks = feddig.Networks(raw_extractor=ResidualExtractor(), guidance=guidance_producer)
experiment = feddig.demo_experiment(["data.limit=1000", "training.rounds=12", "training.threads=1"])
out = Path(tempfile.mkdtemp()) / "own-network"
summary = feddig.run(experiment, out, networks=networks)

print(f"test accuracy {summary['accuracy']['final']:.1f} %, after every silo has left; all results: {out}")
