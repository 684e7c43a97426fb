"""The public clip as an attacker applies it: to candidates, and behind the encoder that is to be undone."""

from typing import cast

import torch
from torch import Tensor, nn

from feddig.digest.digest import Digest
from feddig.privacy.mechanism import DISCRETE


def clip_as_agreed(features: Tensor, digest: Digest) -> Tensor:
    """Hold features [samples, ...] to the clip that a digest tells; the grid is too fine for an attack to matter."""
    if digest.facts["mechanism"] not in DISCRETE:
        return features
    norm, bound = str(digest.facts["clip_norm"]), float(str(digest.facts["clip_bound"]))
    if not digest.facts.get("signed", 0):
        features = features.clamp(min=0)
    if norm == "box":
        return features.clamp(-bound, bound)
    lengths: Tensor = torch.linalg.vector_norm(features.flatten(1), ord=1 if norm == "l1" else 2, dim=1)
    shrink = (bound / lengths.clamp(min=1e-12)).clamp(max=1)
    return features * shrink.view(-1, *[1] * (features.dim() - 1))


class AgreedEncoder(nn.Module):
    """The public encoder with the public clip behind it: what a sample's part in a digest is made by."""

    def __init__(self, encoder: nn.Module, digest: Digest) -> None:
        super().__init__()
        self.encoder, self._digest = encoder, digest

    def forward(self, images: Tensor) -> Tensor:
        """Encode and clip."""
        return clip_as_agreed(cast(Tensor, self.encoder(images)), self._digest)
