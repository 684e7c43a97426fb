"""FedDig in one file: federated learning that remembers silos after they leave.

Read it next to Algorithm 1 of Hsu, Chang and Chen, "Mitigating Data Absence in Federated Learning Using
Privacy-Controllable Data Digests": a "line" below is a line of that algorithm. It needs nothing but torch, and half
a minute: `python minimal.py`, or fewer rounds: `python minimal.py 6`. Its task is easy; on a harder one the frozen
control can win. tests/test_examples.py shows that the library computes the same weights, round by round.
"""

import copy
import hashlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, mse_loss, one_hot
from torch.nn.utils import parameters_to_vector, vector_to_parameters

CHANNELS = 3  # of an image, which has 32 x 32 pixels
SAMPLES_PER_DIGEST = 4  # SpD
EPSILON, SCALE_SIZE = 0.005, 20_000  # epsilon and S, which set the noise on a digest
BATCH, LEARNING_RATE, MOMENTUM = 16, 0.01, 0.9


class Samples(NamedTuple):
    """What the classifier M learns from: a silo's raw data, or a digest seen through P_G."""

    images: Tensor  # R, or the guidance G
    features: Tensor  # r, or D_R
    targets: Tensor  # y, or D_y


class Digest(NamedTuple):
    """D = (D_R, D_y): all that a silo ever tells about its data, and it tells it once."""

    features: Tensor  # D_R
    labels: Tensor  # D_y


def build_encoder() -> nn.Module:
    """P_R: from an image R to a feature r of 4 x 8 x 8 numbers, none negative; public, the same for everybody."""
    widen, narrow = nn.Conv2d(CHANNELS, 16, 3, padding=1), nn.Conv2d(16, 4, 3, padding=1)
    return nn.Sequential(widen, nn.ReLU(), nn.MaxPool2d(2), narrow, nn.MaxPool2d(2), nn.ReLU())


def build_guidance_producer() -> nn.Module:
    """P_G: from D_R to guidance G, which is shaped like an image; the moderator's private network."""
    widen, paint = nn.ConvTranspose2d(4, 16, 2, stride=2), nn.ConvTranspose2d(16, CHANNELS, 2, stride=2)
    return nn.Sequential(widen, nn.ReLU(), paint, nn.Sigmoid())


def convolve(before: int, after: int, stride: int = 1) -> list[nn.Module]:
    """Give the layers of one convolution that ends in half as many pixels each way."""
    return [nn.Conv2d(before, after, 3, stride, padding=1), nn.ReLU(), nn.MaxPool2d(2)]


class Classifier(nn.Module):
    """M = (F_R, F_D, C): the head C sees both extractors' outputs side by side. FedAvg's plain M has no F_D."""

    def __init__(self, classes: int, sees_features: bool = True) -> None:
        super().__init__()
        self.raw = nn.Sequential(*convolve(CHANNELS, 16, stride=2), *convolve(16, 32))  # F_R
        self.digest = nn.Sequential(*convolve(4, 16), *convolve(16, 32)) if sees_features else None  # F_D
        width = 32 * 4 * 4 + (32 * 2 * 2 if sees_features else 0)
        self.head = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, classes))  # C

    def forward(self, images: Tensor, features: Tensor) -> Tensor:
        """Give the logits of M(R, r), or of M(G, D_R)."""
        latent = self.raw(images).flatten(1)
        if self.digest is not None:
            latent = torch.cat([latent, self.digest(features).flatten(1)], dim=1)
        return self.head(latent)


# --- The method


def make_digest(samples: Samples, classes: int, order: Tensor, epsilon: float, stream: Generator) -> Digest:
    """Line 3: mix every SpD samples in this random order with weights 1/SpD, add noise from Lap(0, tau / (S epsilon)).

    tau is the largest value among the silo's features. The paper calls the digest differentially private; for a
    single sample it is not, because tau depends on the data and the labels are exact.
    """
    groups = order[: len(order) // SAMPLES_PER_DIGEST * SAMPLES_PER_DIGEST].view(-1, SAMPLES_PER_DIGEST)
    mixed = samples.features[groups].mean(1)
    scale = samples.features.max() / (SCALE_SIZE * epsilon)
    sizes = torch.empty(2, *mixed.shape).exponential_(generator=stream)
    noise = scale * (sizes[0] - sizes[1])  # the difference of two exponential variables is a Laplace variable
    return Digest(mixed + noise, one_hot(samples.targets[groups], classes).float().mean(1))


def train_locally(
    networks: Sequence[nn.Module], predict: Callable[[Tensor], Tensor], targets: Tensor, stream: Generator
) -> None:
    """Run the one loop of silos, recall models and the joint update: an epoch of SGD on cross-entropy."""
    parameters = [parameter for network in networks for parameter in network.parameters()]
    optimiser = torch.optim.SGD(parameters, LEARNING_RATE, MOMENTUM)  # a new one: momentum starts at zero
    for batch in torch.randperm(len(targets), generator=stream).split(BATCH):
        optimiser.zero_grad()
        cross_entropy(predict(batch), targets[batch]).backward()
        optimiser.step()


def compute_update(model: nn.Module, samples: Samples, stream: Generator) -> Tensor:
    """Line 9, and lines 14 and 15: train a copy of M on these samples and give what changed, nabla M."""
    local, (images, features, targets) = copy.deepcopy(model), samples
    train_locally([local], lambda batch: local(images[batch], features[batch]), targets, stream)
    return (parameters_to_vector(local.parameters()) - parameters_to_vector(model.parameters())).detach()


@torch.no_grad()
def recall_samples(guidance_producer: nn.Module, digest: Digest) -> Samples:
    """Turn a digest into samples, for a recall model is a silo whose data set is its digest. P_G stays as it is."""
    return Samples(guidance_producer(digest.features), digest.features, digest.labels)


def aggregate(model: nn.Module, updates: Sequence[Tensor]) -> None:
    """Line 18: A = M + the mean of all n updates, real and recalled alike. Without any, M stays."""
    if updates:
        aggregated = parameters_to_vector(model.parameters()).detach() + torch.stack(updates).mean(0)
        vector_to_parameters(aggregated, model.parameters())


def update_jointly(
    model: nn.Module, guidance_producer: nn.Module, digests: Sequence[Digest], stream: Generator
) -> None:
    """Lines 20 and 21: train A and P_G together on all digests held, present silos' too: that is the next M."""
    features, labels = (torch.cat(parts) for parts in zip(*digests, strict=True))

    def predict(batch: Tensor) -> Tensor:
        return model(guidance_producer(features[batch]), features[batch])

    train_locally([model, guidance_producer], predict, labels, stream)


def train_rounds(
    model: nn.Module,
    guidance_producer: nn.Module,
    silos: Sequence[Samples],
    table: Sequence[Sequence[bool]],
    digest_of: Callable[[int], Digest] | None,
    stream: Callable[..., Generator],
) -> Iterator[tuple[list[int], list[int]]]:
    """Lines 2 to 22: train M and P_G in place; after each round tell who was here and who was recalled.

    `table` says for each silo in which rounds it is here. `stream` opens the random stream of a name, so that who
    is away never changes what others draw. Without digests (`digest_of` is None) this is plain FedAvg.
    """
    digests: dict[int, Digest] = {}
    for round in range(len(table[0])):
        present = [silo for silo in range(len(silos)) if table[silo][round]]
        if digest_of is not None:  # lines 2-4: once, when a silo joins
            digests |= {silo: digest_of(silo) for silo in present if silo not in digests}
        recalled = sorted(digests.keys() - present)
        updates = []
        for silo in present:  # lines 8-10
            updates.append(compute_update(model, silos[silo], stream("batches", silo, round)))
        for silo in recalled:  # lines 12-17
            stand_in = recall_samples(guidance_producer, digests[silo])
            updates.append(compute_update(model, stand_in, stream("recall", silo, round)))
        aggregate(model, updates)
        if digests:
            held = [digests[silo] for silo in sorted(digests)]
            update_jointly(model, guidance_producer, held, stream("joint", round))
        yield present, recalled


@torch.no_grad()
def measure_accuracy(model: nn.Module, samples: Samples) -> float:
    """Give the percentage of samples that M(R, r) classifies rightly."""
    return 100 * (model(samples.images, samples.features).argmax(1) == samples.targets).float().mean().item()


# --- A federation to try it on

SHAPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disc": lambda x, y: x.hypot(y) < 1,
    "ring": lambda x, y: (x.hypot(y) - 0.8).abs() < 0.2,
    "square": lambda x, y: x.abs().maximum(y.abs()) < 0.9,
    "frame": lambda x, y: (x.abs().maximum(y.abs()) - 0.7).abs() < 0.2,
    "triangle": lambda x, y: (y < 0.8) & (y > 2 * x.abs() - 1),
    "cross": lambda x, y: (x.abs().minimum(y.abs()) < 0.3) & (x.abs().maximum(y.abs()) < 1),
    "bars": lambda x, y: ((y.abs() - 0.6).abs() < 0.3) & (x.abs() < 0.9),
    "posts": lambda x, y: ((x.abs() - 0.6).abs() < 0.3) & (y.abs() < 0.9),
}


def draw_shapes(labels: Tensor, stream: Generator) -> Tensor:
    """Draw each label's shape, in any bright colour and more or less in the middle, on a dark ground."""
    along = torch.linspace(-1, 1, 32).expand(len(labels), 32, 32)
    left, top = torch.rand(2, len(labels), 1, 1, generator=stream) * 0.4 - 0.2
    size = torch.rand(len(labels), 1, 1, generator=stream) * 0.2 + 0.55
    x, y = (along - left) / size, (along.mT - top) / size
    shapes = torch.stack([is_inside(x, y) for is_inside in SHAPES.values()], dim=1)
    paint, ground = torch.rand(2, len(labels), CHANNELS, 1, 1, generator=stream)
    return torch.where(shapes[torch.arange(len(labels)), labels, None], 0.5 + paint / 2, ground / 3)


def pretrain_encoder(stream: Generator) -> nn.Module:
    """Train P_R as half of an autoencoder on random blobs: it is public, so no silo's data may take part."""
    encoder, decoder = build_encoder(), build_guidance_producer()
    optimiser = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=0.003)
    for _ in range(200):
        blobs = interpolate(torch.rand(BATCH, CHANNELS, 8, 8, generator=stream), size=32, mode="bilinear")
        optimiser.zero_grad()
        mse_loss(decoder(encoder(blobs)), blobs).backward()
        optimiser.step()
    return encoder.requires_grad_(False)


def open_stream(*name: str | int) -> Generator:
    """Open the random stream of this name."""
    return Generator().manual_seed(int.from_bytes(hashlib.sha256(repr(name).encode()).digest()[:6], "big"))


def main(rounds: int = 24, images_each: int = 150) -> None:
    """Let four silos leave one after the other; "frozen" is FedAvg's model, kept as it was before the first leave."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder, classes = pretrain_encoder(open_stream("blobs")), len(SHAPES)

    def draw_samples(kinds: list[int], each: int, *name: str | int) -> Samples:
        labels = torch.tensor(kinds).repeat(each)
        images = draw_shapes(labels, open_stream(*name))
        return Samples(images, encoder(images), labels)

    def digest_of(silo: int) -> Digest:
        order = torch.randperm(len(silos[silo].targets), generator=open_stream("mixing", silo))
        return make_digest(silos[silo], classes, order, EPSILON, open_stream("noise", silo))

    owned = [[kind for kind in range(classes) if (kind - silo) % 4 < 2] for silo in range(4)]
    silos = [draw_samples(kinds, images_each, "silo", silo) for silo, kinds in enumerate(owned)]
    test = draw_samples(list(range(classes)), 200, "test")
    table = [[300 * round < rounds * leave for round in range(rounds)] for leave in (100, 150, 200, 250)]
    plain, feddig = Classifier(classes, sees_features=False), Classifier(classes)  # line 1
    guidance_producer, frozen = build_guidance_producer(), 0.0
    fedavg_rounds = train_rounds(plain, guidance_producer, silos, table, None, open_stream)
    feddig_rounds = train_rounds(feddig, guidance_producer, silos, table, digest_of, open_stream)
    print("round  here     recalled   FedAvg  frozen  FedDig  (test accuracy, %)")
    for round, (_, (present, recalled)) in enumerate(zip(fedavg_rounds, feddig_rounds, strict=True)):
        fedavg_now, feddig_now = measure_accuracy(plain, test), measure_accuracy(feddig, test)
        frozen = frozen if recalled else fedavg_now
        here, away = (" ".join(map(str, who)) or "-" for who in (present, recalled))
        print(f"{round:5}  {here:7}  {away:8} {fedavg_now:8.1f}{frozen:8.1f}{feddig_now:8.1f}", flush=True)
    print(f"in the end: FedAvg {fedavg_now:.1f} %, frozen {frozen:.1f} %, FedDig {feddig_now:.1f} %")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
