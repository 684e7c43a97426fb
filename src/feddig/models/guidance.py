"""The guidance producer P_G: the moderator's private network from a digest to something like an image."""

from typing import cast

from torch import Tensor, nn

from feddig.errors import SettingError
from feddig.models.imported import import_network


class Deconvolution(nn.Module):
    """Two transposed convolutions of stride 2, so that an 8x8 digest becomes 32x32 guidance G in [0, 1]."""

    def __init__(self, feature_channels: int, image_channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(feature_channels, 16, 2, stride=2),
            nn.ReLU(),
            nn.ConvTranspose2d(16, image_channels, 2, stride=2),
            nn.Sigmoid(),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Turn digest features D_R into guidance G."""
        return cast(Tensor, self.layers(features))


def build_guidance(name: str, feature_shape: tuple[int, ...], image_shape: tuple[int, int, int]) -> nn.Module:
    """Build the guidance producer that a setting names."""
    if name == "deconvolution":
        if len(feature_shape) != 3:
            raise SettingError(
                f"model.guidance: 'deconvolution' needs a code of three dimensions, the encoder gives {feature_shape}; "
                "give your own as package.module:function"
            )
        return Deconvolution(feature_shape[0], image_shape[0])
    return import_network(name, "model.guidance", "deconvolution", feature_shape, image_shape)
