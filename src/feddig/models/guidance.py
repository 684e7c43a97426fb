"""The guidance producer P_G: the moderator's private network that turns a digest into an image-like input."""

from typing import cast

from torch import Tensor, nn

from feddig.errors import SettingError
from feddig.gpu.fused import transposed_convolutions
from feddig.models.custom import import_network


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
        return transposed_convolutions(features, self.layers)


class PointDeconvolution(nn.Module):
    """Three transposed convolutions whose stride is their size: a 1x1 digest becomes 4x4, 16x16 and 32x32 guidance G.

    The layers between hold 64x4x4 and 16x16x16 numbers: about as many as a code of 1280, and more than a colour image
    of 3x32x32, so neither is a bottleneck. Nearly all weights are in the first layer.
    """

    def __init__(self, feature_channels: int, image_channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(feature_channels, 64, 4, stride=4),
            nn.ReLU(),
            nn.ConvTranspose2d(64, 16, 4, stride=4),
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
        if feature_shape[1:] == (1, 1) and image_shape[1:] == (32, 32):
            return PointDeconvolution(feature_shape[0], image_shape[0])
        if image_shape[1:] != (4 * feature_shape[1], 4 * feature_shape[2]):
            raise SettingError(
                f"model.guidance: 'deconvolution' makes 32x32 images from a code of 1x1, and images of four times "
                f"the code's sides, but not {image_shape} from {feature_shape}; give your own as "
                "package.module:function"
            )
        return Deconvolution(feature_shape[0], image_shape[0])
    return import_network(name, "model.guidance", "deconvolution", feature_shape, image_shape)
