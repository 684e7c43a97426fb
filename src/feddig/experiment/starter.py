"""Write the first experiment for a person's data: each key that matters, with the reason for its value.

What the data has decides the values, so the file can be run as it is. Privacy is sound, and the algorithm is the
recommended one.
"""

import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from feddig.data.dataset import Dataset
from feddig.data.load import NAMES, OWN
from feddig.data.public_sets import PUBLISHED
from feddig.errors import DataError, SettingError, nearest
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import Layout, lay_out, load_data
from feddig.experiment.toml import spell_table
from feddig.models.encoder import LENGTH
from feddig.settings import DataSettings

SHOWN = 8
"""How many names are listed."""
SIDE = 32
"""Height and width of the images that the encoder was trained on."""
FEW = 128
"""Training images below which two silos are drawn and not four."""
MANY = 20_000
"""Training images from which the paper's classifier and a longer run are worth their time."""
STEPS = 20
"""Steps that a silo should take in a round, or more."""
DIGESTS = 8
"""Digests that a silo should have of a class, or more."""
COMMENT_COLUMN = 36

Line = tuple[str, Any, str]
"""A key, its value and the reason for it; a key that starts with # is left out of the experiment."""


@dataclass(frozen=True)
class Found:
    """What was found where a person's data lies."""

    settings: DataSettings
    dataset: Dataset
    sizes: Sequence[tuple[int, int]] = ()
    """Widths and heights of the image files."""
    is_mixed: bool = False
    """Whether some image files are grey and some in colour."""


def starter(file: Path, data: str | None, data_dir: Path | None = None) -> tuple[str, list[str]]:
    """Return the first experiment for this data as TOML, and what was found in it; without data, for the bundled set."""
    found = find_data(data, data_dir)
    dataset, settings = found.dataset, found.settings
    if settings.partition != "folders":
        silos = 4 if len(dataset.train) >= FEW else 2
        least = max(1, min(64, len(dataset.train) // (4 * silos)))
        settings = replace(settings, silos=silos, skew=0.5, min_samples=least)
    layout = lay_out(Experiment(data=settings), dataset)
    facts = _describe(found, layout)
    lines = [
        *(f"# {fact}" for fact in facts),
        "",
        *_spell([("seed", 0, "another seed: other silos, first weights and batches")]),
        "",
        "[data]",
        *_spell(_data(settings, found)),
        "",
        "[absence]",
        *_spell([("scenario", "sequential", "a quarter of the silos leaves at a time; also: none, temporary, forever")]),
        "",
        "[algorithm]",
        *_spell([("name", "feddig-plus", "recommended; compare it with fedavg and frozen")]),
        "",
        "[digest]  # what a silo sends once, so that it is remembered when it is away",
        *_spell(_digest(layout)),
        "",
        "[privacy]  # what the digest promises; updates of the model, which silos send each round, are not covered",
        *_spell(_privacy(layout)),
        "",
        "[model]",
        *_spell(_model(layout)),
        "",
        "[training]",
        *_spell(_training(layout)),
        "",
        "# How to go on",
        *(f"#   {line}" for line in _next(file)),
    ]
    return "\n".join(lines) + "\n", facts


def find_data(data: str | None, data_dir: Path | None) -> Found:
    """Find out what format this data has, and load it."""
    if data is None:
        settings = DataSettings(name="fashion-mini")
    elif data in NAMES and data not in OWN and not ((data_dir or Path()) / data).exists():
        settings = DataSettings(name=data)
    else:
        return _find_own(data, (data_dir or Path()) / Path(data).expanduser(), data_dir)
    return Found(settings, load_data(Experiment(data=settings).located(data_dir)))


def _find_own(data: str, path: Path, data_dir: Path | None) -> Found:
    if not path.exists():
        public = ", ".join(PUBLISHED)
        hint = nearest(data, PUBLISHED) if "/" not in data and "." not in data else f"public sets are {public}"
        raise SettingError(f"--data: {path}: no such file or folder, and no public set; {hint}")
    if path.is_file() and path.suffix != ".npz":
        raise SettingError(
            f"--data: {path}: is no .npz file; give that, a folder with a folder of images for each class, or one "
            "with IDX files"
        )
    settings, sizes, is_mixed = DataSettings(name="npz", path=data), [], False
    if path.is_dir() and any(path.glob("train-images*idx3-ubyte*")):
        settings = DataSettings(name="idx", path=data)
    elif path.is_dir():
        # imported only here, because Pillow takes time to load
        from feddig.data.folder import survey_folder

        archives = sorted(path.glob("*.npz"))
        if archives and not any(entry.is_dir() for entry in path.iterdir()):
            raise SettingError(f"--data: {path}: holds no folders of images; give {archives[0]} itself")
        by_silo, headers = survey_folder(path)
        sizes, is_mixed = sorted(headers.sizes), len(headers.grey) > 1
        settings = DataSettings(
            name="folder",
            path=data,
            image_size=_fitting_size(sizes),
            channels=1 if set(headers.grey) == {True} else 3,
            partition="folders" if by_silo else "dirichlet",
        )
    dataset = load_data(Experiment(data=settings).located(data_dir))
    return Found(settings, dataset, sizes, is_mixed)


def _fitting_size(sizes: Sequence[tuple[int, int]]) -> int:
    """Return the images' own size if it is one and small, else that of the images that the encoder was trained on."""
    if len(sizes) == 1 and sizes[0][0] == sizes[0][1] and SIDE // 2 <= sizes[0][0] <= SIDE:
        return sizes[0][0]
    return SIDE


def _describe(found: Found, layout: Layout) -> list[str]:
    """Say what was found, in a few lines without control characters."""
    dataset, settings = layout.dataset, found.settings
    channels, height, width = dataset.train.pixels.shape[1:]
    size = f"{width} x {height}"
    if found.sizes:
        (least, most), more = (found.sizes[0], found.sizes[-1]), len(found.sizes) > 1
        stored = " x ".join(map(str, least)) + (f" to {' x '.join(map(str, most))}" if more else "")
        size = f"{stored} (read as {size})" if stored != size else size
    where = settings.name if settings.path is None else settings.path
    facts = [
        f"{where}: {len(dataset.train):,} images to train and {len(dataset.test):,} to test, {size}, "
        f"{'grey' if channels == 1 else 'in colour'}",
        f"{dataset.classes} classes: {_list(dataset.class_names)}",
    ]
    if layout.partition.names or settings.partition == "folders":
        names = layout.partition.names or [str(silo) for silo in range(len(layout.partition.shares))]
        facts.append(f"{len(names)} silos, named by the outer folders: {_list(names)}")
        facts.append('If the outer folders are the classes, and the inner ones groups, set partition = "dirichlet"')
    if dataset.train.groups is not None:
        groups = len(np.unique(dataset.train.groups))
        facts.append(f"{groups:,} groups, such as patients")
    return ["".join(each if each.isprintable() else " " for each in fact) for fact in facts]


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else "")


def _data(settings: DataSettings, found: Found) -> Iterator[Line]:
    yield "name", settings.name, FORMATS.get(settings.name, "a public set")
    if settings.path is not None:
        yield "path", settings.path, "from the working folder"
    if settings.name == "folder":
        side, grey = settings.image_size, "grey" if settings.channels == 1 else "in colour"
        why = "as the files have" if (side, side) in found.sizes else "as the encoder was trained on"
        larger = f"; {2 * SIDE} keeps more detail, at 4 times the work" if found.sizes[-1] > (SIDE, SIDE) else ""
        yield "image_size", side, f"pixels square, {why}{larger}"
        yield "channels", settings.channels, f"read all {grey}" + (", as only some are" if found.is_mixed else "")
    yield "partition", settings.partition, PARTITIONS[settings.partition]
    if settings.partition != "folders":
        yield "silos", settings.silos, "how many are drawn"
        yield "skew", settings.skew, "how unevenly they hold the classes; smaller is more uneven"
        yield "min_samples", settings.min_samples, "draw again until each silo has that many images"
    yield "split", (0.8, 0.1, 0.1), "a silo's images to train, to validate, to test"


def _digest(layout: Layout) -> Iterator[Line]:
    mixed = _samples_per_digest(layout)
    why = f"a silo has some {DIGESTS} digests of a class; more hide more, and noise falls with them"
    yield "samples_per_digest", mixed, why
    yield "mixing", "within-class", "learns more under this noise than random, and links records more easily"
    yield "encoder", "even", "made for this noise: all its codes have the length of clip_bound"


def _privacy(layout: Layout) -> Iterator[Line]:
    train = layout.dataset.train
    delta = 10.0 ** -max(5, math.floor(math.log10(len(train))) + 2)
    yield "mechanism", "discrete-gaussian", "a proved promise, unlike the paper's noise"
    yield "epsilon", 8.0, "smaller protects more and costs accuracy"
    yield "delta", delta, f"chance that the promise fails; far below 1 / {len(train):,} images"
    yield "clip_norm", "l2", ""
    yield "clip_bound", LENGTH, "public: agreed on before anybody looks at data"
    yield "adjacency", "same-label", "classes are public; replace-one hides them too, with label_epsilon"
    if train.groups is None:
        yield "unit", "record", "a record is one image; group: all images of a patient, if the data names them"
    else:
        yield "unit", "group", "the promise is to all images of a group, such as a patient's"
        yield "group_limit", _group_limit(train.groups), "at most that many of its images are used; noise grows with it"
    yield "random", "system", "nobody can repeat the noise, so two runs differ; seeded promises nothing"
    yield "# budget_epsilon", 16.0, "`feddig digest make` refuses to send more of the same data than this"
    yield "# budget_delta", 2 * delta, ""


def _model(layout: Layout) -> Iterator[Line]:
    if len(layout.dataset.train) < MANY:
        yield "classifier", "small", "enough for so few images; size-matched is the paper's"
    else:
        yield "classifier", "size-matched", f"the paper's, for {MANY:,} images or more; small is much faster"


def _training(layout: Layout) -> Iterator[Line]:
    rounds = 40 if len(layout.dataset.train) < MANY else 100
    size = float(np.median([len(rows) for rows in layout.training_rows()]))
    batch = _power_of_two(size / STEPS, 8, 256)
    yield "rounds", rounds, "a first look; `feddig check` says how long it takes"
    yield "batch", batch, f"a silo trains on about {size:,.0f} images, in {math.ceil(size / batch)} steps a round"
    yield "lr", 0.01, "lower it if training diverges"
    yield "momentum", 0.9, ""
    yield "local_epochs", 1, "passes over a silo's images in a round"
    if len(layout.dataset.train) < MANY:
        yield "threads", 1, "of the processor; a network this small gains nothing from more"


def _samples_per_digest(layout: Layout) -> int:
    """Return how many samples to mix, so that a silo has some digests of a class, and each silo has at least one."""
    labels, groups = layout.dataset.train.labels, layout.dataset.train.groups
    held = []
    for rows in layout.training_rows():
        if groups is not None:
            rows = _limited(rows, groups, _group_limit(groups))
        held.append(np.bincount(labels[rows], minlength=layout.dataset.classes))
    usual = np.median(np.concatenate([counts[counts > 0] for counts in held])) / DIGESTS
    return _power_of_two(min(float(usual), min(counts.max() for counts in held)), 1, 64)


def _group_limit(groups: np.ndarray) -> int:
    """Return the usual size of a group, up to four."""
    return min(4, int(np.median(np.unique(groups, return_counts=True)[1])))


def _limited(rows: np.ndarray, groups: np.ndarray, limit: int) -> np.ndarray:
    """Return the first rows of each group."""
    order = rows[np.argsort(groups[rows], kind="stable")]
    starts = np.unique(groups[order], return_index=True, return_inverse=True)
    rank = np.arange(len(order)) - starts[1][starts[2]]
    return order[rank < limit]


def _power_of_two(wanted: float, least: int, most: int) -> int:
    return min(most, max(least, 2 ** math.floor(math.log2(max(1, wanted)))))


def _spell(lines: Iterable[Line]) -> Iterator[str]:
    """Spell each key with its comment behind it; a long one has it above."""
    for key, value, comment in lines:
        (text,) = spell_table({key: value})
        if comment and len(text) >= COMMENT_COLUMN:
            yield f"# {comment}"
        yield f"{text:<{COMMENT_COLUMN}}# {comment}" if comment and len(text) < COMMENT_COLUMN else text


FORMATS = {
    "fashion-mini": "small pictures of clothes that come with FedDig",
    "folder": "image files in one folder per class",
    "npz": "the arrays x_train, y_train, x_test and y_test",
    "idx": "four files of MNIST's format",
}
PARTITIONS = {
    "dirichlet": "silos are drawn; folders or file: if the images already belong to silos",
    "folders": "the images of a silo lie in its folder: <silo>/<class>/*",
}


def _next(file: Path) -> Iterator[str]:
    name = shlex.quote(str(file))
    steps = {
        f"feddig check {name}": "what would run: silos, absences, cost, promise; trains nothing",
        f"feddig run {name}": "train once; feddig run --help",
        f"feddig compare {name}": "beside FedAvg, a frozen model and FedDig",
        f"feddig advise {name} --help": "find samples_per_digest and epsilon by your own limits",
        f"feddig digest make {name} --help": "make a silo's digest; feddig audit attacks it before it leaves",
        "feddig federation init --help": "a real federation between machines; --experiment takes this file",
    }
    width = max(map(len, steps))
    yield from (f"{command:<{width}}  {about}" for command, about in steps.items())
