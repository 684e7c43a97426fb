"""Load the inputs of `feddig audit`: members, non-members and public images, the encoder, a guidance producer."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn

from feddig.audit.audited import AuditImages
from feddig.audit.findings import AttackBudget
from feddig.core.samples import ImageSource, padded_shape
from feddig.data.dataset import Dataset, Images
from feddig.data.load import NAMES, load_dataset
from feddig.data.mmap import join
from feddig.data.public_sets import PUBLISHED
from feddig.digest.digest import Digest
from feddig.errors import DataError, FileFormatError, SettingError, nearest
from feddig.experiment.setup import lay_out
from feddig.experiment.toml import read_experiment
from feddig.files import content_hash, read_tensors
from feddig.models.encoder import encoder_hash, load_encoder
from feddig.models.networks import build_guidance
from feddig.seeds import numpy_stream

NAMED = ("fashion-mini", *PUBLISHED)
"""Data sets that need no path."""
_SPEC = re.compile(
    r"(?P<place>.+?)(?::(?P<part>train|test|validation|all))?(?::(?P<first>\d+)-(?P<last>\d+))?"
)


def load_inputs(
    digest: Digest,
    *,
    members: str | Images,
    holdout: str | Images,
    public: str | None,
    encoder: str,
    data_dir: Path | None,
    budget: AttackBudget,
    seed: int,
) -> AuditImages:
    """Load and encode the images of an audit; without public images, half of the holdout is used as public."""
    own = load_images("--members", members, data_dir, digest.silo)
    network = load_encoder(encoder, padded_shape(own)[0])
    if encoder_hash(network) != digest.facts["encoder"]:
        raise SettingError(
            f"--encoder: {encoder} is not the one that the digests were made with, which is "
            f"{str(digest.facts['encoder'])[:12]}; give that one's file"
        )
    seen = set(_hash_images(own))
    held_out = _unseen("--holdout", load_images("--holdout", holdout, data_dir, digest.silo), own, seen)
    if public is None:
        order = numpy_stream(seed, "audit", "public half").permutation(len(held_out))
        half = len(order) // 2
        shared = held_out.choose(np.sort(order[half:]))
        held_out = held_out.choose(np.sort(order[:half]))
    else:
        seen |= set(_hash_images(held_out))
        shared = _unseen("--public", load_images("--public", public, data_dir, digest.silo), own, seen)
    device = torch.device("cpu")
    return AuditImages(
        ImageSource(own, network, device),
        ImageSource(_limit(held_out, budget.pool, seed, "holdout"), network, device),
        ImageSource(_limit(shared, budget.public, seed, "public"), network, device),
        network,
    )


def load_images(option: str, text: str | Images, data_dir: Path | None, silo: int = 0) -> Images:
    """Load PLACE[:PART][:FIRST-LAST], where PLACE is a known name, an .npz file, a folder or an experiment's file.

    Images that are loaded already are returned as they are.
    """
    if isinstance(text, Images):
        return text
    read = _SPEC.fullmatch(text)
    if read is None:
        raise SettingError(f"{option}: is empty; give a data set's name, an .npz file or a folder")
    place, part = read["place"], read["part"]
    images = (
        _share(option, Path(place), part or "train", data_dir, silo)
        if place.endswith(".toml")
        else _part(option, _load(option, place, data_dir), part or "train")
    )
    if read["first"] is None:
        return images
    first, last = int(read["first"]), int(read["last"])
    if not first <= last < len(images):
        raise SettingError(
            f"{option}: rows {first}-{last} asked for, but there are {len(images)}, counted from 0"
        )
    return images.choose(np.arange(first, last + 1))


def place_of(text: str) -> str:
    """Return PLACE of PLACE[:PART][:FIRST-LAST]."""
    read = _SPEC.fullmatch(text)
    return read["place"] if read else ""


def find_place(option: str, place: str, data_dir: Path | None) -> tuple[str, Path | None]:
    """Return data.name and data.path of an experiment for a known data set, a file or a folder."""
    if place in NAMED:
        return place, None
    path = Path(place).expanduser()
    if not path.exists() and data_dir is not None:
        path = data_dir / path
    if path.is_file() and path.suffix == ".npz":
        return "npz", path
    if path.is_dir():
        return ("idx" if any(path.glob("*-ubyte*")) else "folder"), path
    raise SettingError(
        f"{option}: {place!r} is no data set, .npz file, folder or experiment's .toml; "
        + nearest(place, [name for name in NAMES if name in NAMED])
    )


def load_guidance(path: Path, code_shape: Sequence[int], image_shape: tuple[int, int, int]) -> nn.Module:
    """Load guidance.safetensors of a results folder; custom guidance producers are not supported."""
    arrays, _ = read_tensors(path, "guidance")
    with torch.random.fork_rng(devices=[]):
        network = build_guidance("deconvolution", tuple(code_shape), image_shape)
    try:
        network.load_state_dict({name: torch.from_numpy(array.copy()) for name, array in arrays.items()})
    except RuntimeError:
        raise FileFormatError(
            f"{path}: holds the weights of another network than 'deconvolution' for these digests; leave --guidance out"
        ) from None
    return network.eval().requires_grad_(False)


def _load(option: str, place: str, data_dir: Path | None) -> Dataset:
    name, path = find_place(option, place, data_dir)
    return load_dataset(name, path, data_dir=data_dir)


def _part(option: str, dataset: Dataset, part: str) -> Images:
    if part == "all":
        labels = np.concatenate([dataset.train.labels, dataset.test.labels])
        return Images(join([dataset.train.pixels, dataset.test.pixels]), labels)
    if part == "validation":
        raise SettingError(
            f"{option}: only a silo of an experiment has a validation part; use train, test or all"
        )
    return dataset.train if part == "train" else dataset.test


def _share(option: str, path: Path, part: str, data_dir: Path | None, silo: int) -> Images:
    """Return the share of the digest's silo in an experiment."""
    layout = lay_out(read_experiment(path).located(data_dir))
    shares = layout.partition.shares
    if silo not in range(len(shares)):
        raise SettingError(f"{option}: {path} has {len(shares)} silos, but the digests are of silo {silo}")
    share = shares[silo]
    rows = (
        np.concatenate([share.train, share.validation, share.test]) if part == "all" else getattr(share, part)
    )
    return layout.dataset.train.choose(rows)


def _limit(images: Images, most: int, seed: int, name: str) -> Images:
    if len(images) <= most:
        return images
    rows = numpy_stream(seed, "audit", name).choice(len(images), size=most, replace=False)
    return images.choose(np.sort(rows))


def _unseen(option: str, images: Images, own: Images, seen: set[str]) -> Images:
    """Drop images that are members or were given before: they are no non-members."""
    if padded_shape(images) != padded_shape(own):
        raise DataError(
            f"{option}: its images are of shape {padded_shape(images)}, those of --members {padded_shape(own)} "
            "(channels, height, width); give images of the same kind"
        )
    rows = np.array(
        [row for row, name in enumerate(_hash_images(images)) if name not in seen], dtype=np.int64
    )
    if len(rows) < 2:
        raise DataError(
            f"{option}: all of its images are members or given twice; give images that were not used"
        )
    return images.choose(rows)


def _hash_images(images: Images) -> list[str]:
    """Hash the content of each image, independent of the type of its numbers."""
    source = ImageSource(images, None, torch.device("cpu"))
    hashes: list[str] = []
    for rows in torch.split(torch.arange(len(source)), 1024):
        hashes += [content_hash(image.tobytes()) for image in source.images(rows).numpy()]
    return hashes
