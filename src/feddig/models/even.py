"""An encoder for sound noise: codes without what most images share, and all of one length.

Sound noise is as strong as the clip allows two samples to differ, in every direction alike. So a code wastes it
where it is long in directions that tell images little apart, and where some codes are longer than others. This
encoder takes a public mean off another encoder's code, levels its directions by a small fixed convolution, keeps
what is above zero, and stretches the rest to one length, which a clip of that length leaves as it is.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

NETWORK = "even"
LENGTH = 350.0
"""The L2 length of every code: about the median of the shipped encoder's codes on generated images, 357."""
SIDE = 5


class EvenEncoder(nn.Module):
    """Another encoder's code [channels, height, width], levelled, without negative numbers, of one length."""

    mean: Tensor
    """Of each channel, over generated images."""
    length: Tensor

    def __init__(self, encoder: nn.Module, channels: int, code_channels: int = 4) -> None:
        super().__init__()
        self.encoder, self.channels = encoder, channels
        self.level = nn.Conv2d(code_channels, code_channels, SIDE, padding=SIDE // 2, bias=False)
        # among the weights, because they decide the features: so they are in the file and in the hash
        self.register_buffer("mean", torch.zeros(code_channels, 1, 1))
        self.register_buffer("length", torch.tensor(LENGTH))

    def forward(self, images: Tensor) -> Tensor:
        """Encode images [batch, channels, height, width] in [0, 1]; a code of nothing but zeros stays so."""
        codes = torch.relu(self.level(self.encoder(images) - self.mean))
        even: Tensor = self.length * normalize(codes.flatten(1)).view_as(codes)
        return even
