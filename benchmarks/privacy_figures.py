"""Draw the paper's privacy figures: what mixing hides, what a pseudo-inverse recovers, what guidance shows.

    python benchmarks/privacy_figures.py --emnist FOLDER --fashion FOLDER --cifar FOLDER --mobilenet WEIGHTS

(on a GPU: --full --device cuda)

Writes OUT/*.png, and OUT/figures.json with every number that the documents quote. Without --full, guidance comes from
a few joint updates on few images (`digests-only`), which take minutes on two cores; with --full, from complete runs of
300 rounds on all images, in which silos leave in sequence. `--figures` selects noise, inverse, guidance or weights.
Noise is the paper's, at its two epsilons.

Trained guidance producers are stored as WORK/*.safetensors and used again. `--train` only trains those of the given
data sets, so that one machine can train and another draw.
"""

import argparse
import json
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")  # needs no screen
import matplotlib.pyplot as plt
import torch
from PIL import Image
from torch import Tensor, nn

from feddig.attacks.inversion import apply_in_batches, psnr, ssim, train_decoder
from feddig.audit.inputs import load_guidance
from feddig.core.samples import ImageSource
from feddig.data.load import load_dataset
from feddig.digest.digest import mix_groups
from feddig.experiment.setup import describe_device
from feddig.experiment.toml import experiment_from_table
from feddig.files import read_tensors, write_atomically, write_tensors
from feddig.models.encoder import load_encoder
from feddig.models.mobilenet import import_mobilenet
from feddig.models.networks import build_guidance
from feddig.models.train_encoder import generate_images
from feddig.runs.results_folder import ResultsFolder
from feddig.runs.run import resume, run
from feddig.seeds import derive, seeded_uniforms

EPSILONS = (0.005, 0.0005)
PAIRS = ((1.0, 0.0), (0.9, 0.1), (0.7, 0.3), (0.5, 0.5), (0.3, 0.7), (0.1, 0.9), (0.0, 1.0))
CASES = (
    ("emnist-byclass", 1, "random"),
    ("emnist-byclass", 2, "random"),
    ("emnist-byclass", 4, "random"),
    ("emnist-byclass", 8, "random"),
    ("fashion-mnist", 4, "random"),
    ("cifar10", 4, "random"),
    ("emnist-byclass", 4, "within-class"),
)
"""Data set, SpD and mixing of each guidance producer."""
SHOWN = 8
COLOUR = {"cifar10"}
CODE = (4, 8, 8)
Row = tuple[str, Tensor]


@dataclass
class Work:
    """The options, and the quoted numbers that the figures collect."""

    options: argparse.Namespace
    quoted: dict[str, Any]

    def source(self, name: str, encoder: nn.Module | None = None) -> ImageSource:
        """Load a set's training images, up to the limit."""
        folders = {"emnist-byclass": "emnist", "fashion-mnist": "fashion", "cifar10": "cifar"}
        limit = 0 if self.options.full else self.options.images
        dataset = load_dataset(name, data_dir=getattr(self.options, folders[name]), limit=limit)
        encoder = encoder or load_encoder("default", 3 if name in COLOUR else 1)
        return ImageSource(dataset.train, encoder, torch.device("cpu"))

    def keep(self, name: str, png: Callable[[Path], None]) -> None:
        """Write a picture."""
        self.options.out.mkdir(parents=True, exist_ok=True)
        png(self.options.out / f"{name}.png")
        print(name, flush=True)


def main() -> None:
    """Draw the selected figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("emnist", "fashion", "cifar", "mobilenet"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--figures", default=",".join(FIGURES))
    parser.add_argument("--train", default="", help="only train guidance producers, for these data sets")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--images", type=int, default=4000, help="training images, without --full")
    parser.add_argument("--rounds", type=int, default=0, help="0: 300 with --full, else 1")
    parser.add_argument("--joint-steps", type=int, default=200, help="in a round, without --full")
    parser.add_argument("--steps", type=int, default=1000, help="of a pseudo-inverse's training")
    parser.add_argument("--work", type=Path, default=Path("results/privacy-figures"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/privacy-figures"))
    options = parser.parse_args()
    options.rounds = options.rounds or (300 if options.full else 1)
    for name in ("feddig", "matplotlib"):
        logging.getLogger(name).setLevel(logging.WARNING if name == "feddig" else logging.ERROR)
    if options.train:
        train_producers(options)
        return
    file = options.out / "figures.json"
    quoted = json.loads(file.read_text()) if file.exists() else {"format_version": 1}
    keys = ("full", "images", "rounds", "joint_steps", "steps")
    size = {key: getattr(options, key) for key in keys}
    for name in options.figures.split(","):
        work = Work(
            options, {"size": size, "device": describe_device(torch.device(options.device)), "seed": 0}
        )
        FIGURES[name](work)
        quoted[name] = work.quoted
        write_atomically(file, json.dumps(quoted, indent=1) + "\n")


def draw_noise(work: Work) -> None:
    """Compare the variance that other samples and noise add to a sample's features, by element (SpD 4)."""
    features = _features(work.source("emnist-byclass")).flatten(1)
    spread, largest = features.var(0), float(features.max())
    mixing = {spd: spread * (spd - 1) / spd**2 for spd in (2, 4, 8)}
    noise = {epsilon: 2 * (largest / (20_000 * epsilon)) ** 2 for epsilon in EPSILONS}
    order, own = spread.argsort(descending=True), features.mean(0)
    work.quoted |= {
        "tau": largest,
        "noise_variance": noise,
        "mixing_variance": {
            spd: [float(v.min()), float(v.median()), float(v.max())] for spd, v in mixing.items()
        },
        "correlation_with_mean_feature": float(torch.corrcoef(torch.stack([own, spread]))[0, 1]),
        "elements_above_noise": {e: int((mixing[4] > level).sum()) for e, level in noise.items()},
    }
    figure, (lines, places) = plt.subplots(
        1, 2, figsize=(10, 3.6), width_ratios=(1.3, 1), layout="constrained"
    )
    for spd, variance in mixing.items():
        lines.semilogy(variance[order].clamp(min=1e-2), label=f"mixing, SpD {spd}")
    for epsilon, level in noise.items():
        lines.axhline(level, linestyle="--", color="0.4")
        lines.text(255, level * 0.6, f"noise, epsilon {epsilon:g}", ha="right", color="0.3")
    lines.set(xlabel="element of the code, most varied first", ylabel="variance added to a digest")
    lines.legend(frameon=False)
    shown = places.imshow(mixing[4].view(4, 8, 8).permute(1, 0, 2).reshape(8, 32), cmap="magma")
    places.set(title="mixing, SpD 4: the code's four channels", xticks=[], yticks=[])
    figure.colorbar(shown, ax=places, shrink=0.5)
    work.keep("noise-variance", lambda path: _save(figure, path))


def draw_inverse(work: Work) -> None:
    """Recover EMNIST's images from digests, and CIFAR-10's from MobileNetV2's code at SpD 1."""
    for name, encoder, sizes in (
        ("emnist-byclass", load_encoder("default", 1), (1, 2, 4, 8)),
        ("cifar10", _mobilenet(work.options.mobilenet), (1,)),
    ):
        source = work.source(name)
        count = min(len(source), 4000 if not work.options.full else 40_000)
        images = source.images(torch.arange(count))
        own, public = images[: SHOWN * 8], images[SHOWN * 8 :]
        with torch.no_grad():
            codes = torch.cat([encoder(batch) for batch in own.split(64)])
        learnt = {"same set": public}
        if name not in COLOUR:
            learnt["generated images"] = generate_images(len(public), 1, torch.Generator().manual_seed(0))
        rows: list[Row] = [("raw", own[:SHOWN])]
        for title, seen in learnt.items():
            decoder = train_decoder(encoder, seen, steps=work.options.steps)
            for spd in sizes:
                for epsilon in EPSILONS:
                    # a shown image is the first of its digest
                    noised = _digest_of(
                        codes[_groups(spd)], spd, epsilon, 10_000 if name in COLOUR else 20_000
                    )
                    painted = apply_in_batches(decoder, noised)
                    key = f"{name}, {title}, SpD {spd}, epsilon {epsilon:g}"
                    work.quoted[key] = {
                        "ssim": float(ssim(painted, own[:SHOWN]).mean()),
                        "psnr": float(psnr(painted, own[:SHOWN]).mean()),
                        "ssim_to_other_images": float(ssim(painted, public[:SHOWN]).mean()),
                    }
                    rows.append((f"SpD {spd}, {epsilon:g}\n{title}", painted))
        work.keep(f"inverse-{name}", lambda path, rows=rows: _grid(rows, path))  # type: ignore[misc]


def draw_guidance(work: Work) -> None:
    """Show the moderator's guidance for digests, by SpD, data set, epsilon and mixing."""
    grids: dict[str, list[Row]] = {}
    for name, spd, mixing in CASES:
        source, rows = work.source(name), grids.setdefault(name, [])
        chosen = mix_groups(source.labels, spd, mixing, seeded_uniforms(0, "shown"))
        chosen = chosen[torch.linspace(0, len(chosen) - 1, SHOWN).long()]
        members = [("mixed", source.images(chosen[:, place])) for place in range(min(spd, 4))]
        rows += members if mixing == "within-class" or spd == 4 or spd == 1 else members[:1]
        for epsilon in EPSILONS:
            producer, facts = _producer(work.options, name, spd, mixing, epsilon)
            features = _features(source)[chosen]
            mixed = _digest_of(features, spd, epsilon, 10_000 if name in COLOUR else 20_000)
            with torch.no_grad():
                painted = producer(mixed)
            key = f"{name}, SpD {spd}, {mixing}, epsilon {epsilon:g}"
            likeness = max(float(ssim(painted, images).mean()) for _, images in members)
            # 0: every digest gives the same picture
            spread = float(painted.std(0).mean())
            work.quoted[key] = {"ssim_to_likest_place": likeness, "spread_between_digests": spread, **facts}
            rows.append(
                (f"SpD {spd}, {epsilon:g}" + ("\nwithin class" if mixing != "random" else ""), painted)
            )
    for name, rows in grids.items():
        work.keep(f"guidance-{name}", lambda path, rows=rows: _grid(rows, path))  # type: ignore[misc]


def draw_weights(work: Work) -> None:
    """Show guidance from pairs of EMNIST images, mixed from (1, 0) to (0, 1)."""
    source = work.source("emnist-byclass")
    features, pairs = _features(source), torch.arange(2 * SHOWN).view(2, SHOWN)
    rows: list[Row] = [("first", source.images(pairs[0]))]
    for epsilon in EPSILONS:
        producer, _ = _producer(work.options, "emnist-byclass", 2, "random", epsilon)
        for weights in PAIRS:
            mixed = sum(weight * features[row] for weight, row in zip(weights, pairs, strict=True))
            with torch.no_grad():
                painted = producer(_noised(mixed, float(features.max()), epsilon, 20_000))
            alike = [float(ssim(painted, source.images(row)).mean()) for row in pairs]
            work.quoted[f"epsilon {epsilon:g}, weights {weights}"] = {
                "ssim_first": alike[0],
                "ssim_second": alike[1],
            }
            rows.append((f"{weights[0]:g}, {weights[1]:g}\n{epsilon:g}", painted))
    rows.append(("second", source.images(pairs[1])))
    work.keep("guidance-weights", lambda path: _grid(rows, path))


FIGURES = {"noise": draw_noise, "inverse": draw_inverse, "guidance": draw_guidance, "weights": draw_weights}


def train_producers(options: argparse.Namespace) -> None:
    """Train the missing guidance producers of the chosen data sets."""
    for name, spd, mixing in CASES:
        for epsilon in EPSILONS if name in options.train.split(",") else ():
            began = time.perf_counter()
            _, facts = _producer(options, name, spd, mixing, epsilon)
            print(
                name,
                spd,
                mixing,
                epsilon,
                facts["accuracy"],
                f"{time.perf_counter() - began:.0f} s",
                flush=True,
            )


def _producer(
    options: argparse.Namespace, name: str, spd: int, mixing: str, epsilon: float
) -> tuple[nn.Module, dict[str, Any]]:
    """Train P_G with these settings or load the stored one; return also its run's last accuracy and device."""
    folder = options.work / f"{name}-{spd}-{mixing}-{epsilon:g}-{options.rounds}-{options.full}"
    kept = folder.with_name(f"{folder.name}.safetensors")
    if not kept.exists():
        _train(options, folder, kept, name, spd, mixing, epsilon)
    _, facts = read_tensors(kept, "guidance")
    image = (3, 32, 32) if name in COLOUR else (1, 32, 32)
    producer = load_guidance(kept, CODE, image)
    quoted = {"accuracy": float(facts["accuracy"]), "trained_on": facts["device"]}
    return producer, quoted | {"moved_share": _moved(producer, image)}


def _moved(producer: nn.Module, image: tuple[int, int, int]) -> float:
    """Return how far training moved P_G's weights, as a share of their initial norm."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(0, "initial weights", "guidance"))
        drawn = build_guidance("deconvolution", CODE, image)
    first, last = (nn.utils.parameters_to_vector(each.parameters()) for each in (drawn, producer))
    return float((last - first).norm() / first.norm())


def _train(
    options: argparse.Namespace, folder: Path, kept: Path, name: str, spd: int, mixing: str, epsilon: float
) -> None:
    """Run the method or resume an interrupted run, and keep only P_G."""
    folders = {"emnist-byclass": options.emnist, "fashion-mnist": options.fashion, "cifar10": options.cifar}
    table = {
        "data": {"name": name, "limit": 0 if options.full else options.images},
        "algorithm": {"name": "feddig" if options.full else "digests-only"},
        "absence": {"scenario": "sequential" if options.full else "none"},
        "digest": {"samples_per_digest": spd, "mixing": mixing},
        "privacy": {"epsilon": epsilon, "scale_size": 10_000 if name in COLOUR else 20_000},
        "model": {"classifier": "size-matched"},
        "training": {"rounds": options.rounds, "batch": 32 if name in COLOUR else 256, "lr": 0.001},
    }
    if not options.full:  # few rounds learn little at the paper's rate
        table["training"] |= {"lr": 0.01, "batch": 64}
        table |= {"moderator": {"joint_steps": options.joint_steps}, "model": {"classifier": "small"}}
    if ResultsFolder(folder).started:
        summary = resume(folder, device=options.device)
    else:
        summary = run(experiment_from_table(table).located(folders[name]), folder, device=options.device)
    weights, _ = read_tensors(folder / "guidance.safetensors", "guidance")
    facts = {"accuracy": str(summary["accuracy"]["final"]), "device": summary["device"]}
    write_tensors(kept, "guidance", weights, facts)
    shutil.rmtree(folder)  # its digests may fill a small disk


def _features(source: ImageSource) -> Tensor:
    assert source.features is not None
    return source.features


def _groups(spd: int) -> Tensor:
    """Mix each shown image with others that are not shown: row i is i, i + SHOWN, i + 2 SHOWN, ..."""
    return torch.arange(SHOWN)[:, None] + SHOWN * torch.arange(spd)


def _digest_of(features: Tensor, spd: int, epsilon: float, scale_size: int) -> Tensor:
    """Mix features [digests, SpD, ...] and add the paper's noise; tau is their largest value."""
    return _noised(features.mean(1), float(features.max()), epsilon, scale_size)


def _noised(mixed: Tensor, largest: float, epsilon: float, scale_size: int) -> Tensor:
    scale = largest / (scale_size * epsilon)
    draw = torch.empty(2, *mixed.shape).exponential_(generator=torch.Generator().manual_seed(0))
    return mixed + scale * (draw[0] - draw[1])


def _mobilenet(weights: Path) -> nn.Module:
    return import_mobilenet(weights, 3).eval().requires_grad_(False)


def _grid(rows: Sequence[Row], path: Path) -> None:
    """Draw rows of images with their names at the left."""
    figure, axes = plt.subplots(len(rows), SHOWN, figsize=(SHOWN * 0.75 + 1.2, len(rows) * 0.75))
    for line, (name, images) in zip(axes, rows, strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center", fontsize=7)
        for place, image in zip(line, images, strict=True):
            pixels = image.permute(1, 2, 0).squeeze(-1).clamp(0, 1)
            place.imshow(pixels, cmap="gray", vmin=0, vmax=1)
            place.set(xticks=[], yticks=[])
            place.spines[:].set_visible(False)
    figure.subplots_adjust(left=0.17, right=1, bottom=0, top=1, wspace=0.04, hspace=0.04)
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    """Save with a palette, because grids of noisy pictures would otherwise take more than a megabyte."""
    figure.savefig(path, dpi=110)
    plt.close(figure)
    with Image.open(path) as drawn:
        few = drawn.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(path, optimize=True)


if __name__ == "__main__":
    main()
