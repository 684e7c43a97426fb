"""A denoiser: what painted images look like after a network that has learnt how mixing and noise spoil them.

The attacker imitates the silo: public images are encoded, mixed and noised as the digest says of itself, and painted
by the same attack. The network learns to turn such paintings into the mean of the images that were mixed, which is the
best that can be hoped for without telling them apart.
"""

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from feddig.attacks.noise import Noise
from feddig.seeds import derive, torch_stream

STEPS, BATCH, LEARNING_RATE = 1000, 32, 2e-3
IMITATED = 2000
"""Digests that the attacker makes of public images to learn from."""
MIXED = 400_000
"""Images that it mixes for that, at most."""
AT_ONCE = 16
WIDTH = 32


class Denoiser(nn.Module):
    """Convolutions at half size, where they are cheap and see far; what they give is added to the painting."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.PixelUnshuffle(2),
            nn.Conv2d(4 * channels, WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(WIDTH, 4 * channels, 3, padding=1),
            nn.PixelShuffle(2),
        )

    def forward(self, painted: Tensor) -> Tensor:
        """Clean paintings [batch, channels, height, width], even in height and width."""
        return cast(Tensor, (painted + self.layers(painted)).clamp(0, 1))


def imitate_digests(
    codes: Tensor,
    images: Tensor,
    samples_per_digest: int,
    noise: Noise,
    *,
    seed: int = 0,
    count: int = IMITATED,
) -> tuple[Tensor, Tensor]:
    """Mix and noise codes of public images as a silo would; give such features and the mean images behind them."""
    draw = torch_stream(seed, "imitated digests")
    count = min(count, max(BATCH, MIXED // samples_per_digest))
    features, means = [], []
    # a few at a time: of many samples a digest only the mean need be in memory
    for rows in torch.split(torch.randint(len(codes), (count, samples_per_digest), generator=draw), AT_ONCE):
        features.append(codes[rows].mean(1))
        means.append(images[rows].mean(1))
    mixed = torch.cat(features)
    return mixed + noise.draw(mixed.shape, draw), torch.cat(means)


def train_denoiser(painted: Tensor, clean: Tensor, *, seed: int = 0, steps: int = STEPS) -> Denoiser:
    """Train on paintings of imitated digests and the images that should come out."""
    draw = torch_stream(seed, "denoiser")
    # first weights come from torch's global stream, which is others' too
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "denoiser", "first weights"))
        denoiser = Denoiser(painted.shape[1])
    optimiser = torch.optim.Adam(denoiser.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        rows = torch.randint(len(painted), (BATCH,), generator=draw)
        loss = mse_loss(denoiser(painted[rows]), clean[rows])
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return denoiser.eval().requires_grad_(False)


@torch.no_grad()
def denoise(denoiser: Denoiser, painted: Tensor) -> Tensor:
    """Clean paintings of real digests."""
    return torch.cat([denoiser(batch) for batch in torch.split(painted, 1024)])
