"""How the even encoders are made: statistics of the shipped encoder's code on generated images, and nothing else.

Codes are seen as waves over their places. Where images vary much (broad waves, channels that move together) the
convolution turns the code down, where they vary little it turns it up: by variance ^ -3/8, three quarters of the way
to a code that varies alike everywhere. All of the way would let what is hardly there drown the rest.
"""

import torch
from torch import Tensor

from feddig.models.encoder import SIDE, ConvEncoder, EvenEncoder
from feddig.models.train_encoder import generate_images
from feddig.seeds import torch_stream

IMAGES = 8000
AT_ONCE = 500
STRENGTH = 0.75
LEAST_VARIANCE = 0.01
"""What is weaker, as a share of the average, is turned up no further."""


@torch.no_grad()
def make_even(encoder: ConvEncoder, seed: int = 0, images: int = IMAGES) -> EvenEncoder:
    """Measure the encoder's code on generated images and build the even encoder over it."""
    draw = torch_stream(seed, "even encoder", encoder.channels)
    batches = [generate_images(AT_ONCE, encoder.channels, draw) for _ in range(images // AT_ONCE)]
    codes = torch.cat([encoder(batch) for batch in batches]).double()
    mean = codes.mean(dim=(0, 2, 3)).view(-1, 1, 1)
    # building a layer draws first weights, and nobody's random stream must shift by that
    with torch.random.fork_rng(devices=[]):
        even = EvenEncoder(encoder, encoder.channels, codes.shape[1])
    even.mean.copy_(mean)
    even.level.weight.copy_(levelling(codes - mean))
    return even.eval().requires_grad_(False)


def levelling(codes: Tensor) -> Tensor:
    """Give the convolution [channels, channels, SIDE, SIDE] that levels codes [images, channels, height, width]."""
    height, width = codes.shape[-2:]
    # twice as high and wide, so that a code's edges do not meet
    waves = torch.fft.fft2(codes, s=(2 * height, 2 * width))
    spectrum = torch.einsum("ncij,ndij->ijcd", waves, waves.conj()) / len(codes)
    spectrum = spectrum / spectrum.diagonal(dim1=-2, dim2=-1).real.mean()
    variances, directions = torch.linalg.eigh(spectrum)
    gains = variances.clamp(min=LEAST_VARIANCE) ** (-STRENGTH / 2)
    response = (directions * gains.unsqueeze(-2)) @ directions.mH
    kernel = torch.fft.fftshift(torch.fft.ifft2(response.permute(2, 3, 0, 1)).real, dim=(-2, -1))
    top, left = height - SIDE // 2, width - SIDE // 2
    # torch's convolution wants the kernel turned round, which is the same as its channels swapped
    middle: Tensor = kernel[..., top : top + SIDE, left : left + SIDE]
    return middle.transpose(0, 1)
