"""Write the first experiment for a person's data: each key that matters, with the reason for its value.

The data decides the values, so the file can be run as it is. Privacy is sound, and the algorithm is the recommended
one.
"""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Formatter

import numpy as np

from feddig.data.dataset import Dataset
from feddig.data.load import NAMES, OWN
from feddig.data.public_sets import PUBLISHED
from feddig.errors import DataError, SettingError, nearest, shorten
from feddig.experiment.experiment import Experiment
from feddig.experiment.setup import Layout, lay_out, load_data
from feddig.experiment.toml import spell_value
from feddig.models.encoder import LENGTH
from feddig.settings import DataSettings

TEMPLATE = """\
seed = 0  # another seed: other silos, first weights and batches

[data]
name = {name}  # {format}
path = {path}  # from the working folder, or from --data-dir if that is given
image_size = {image_size}  # pixels square, as the encoder was trained on{or_larger}
channels = {channels}  # {how_channels_are_read}
partition = {partition}  # {who_holds_what}
silos = {silos}  # how many are drawn
skew = {skew}  # how unevenly they hold the classes; smaller is more uneven
min_samples = {min_samples}  # draw again until no silo has fewer images
split = [0.8, 0.1, 0.1]  # a silo's images to train, to validate, to test

[absence]
scenario = "sequential"  # a quarter of the silos leaves at a time; others: none, temporary, forever, random

[algorithm]
name = "feddig-plus"  # recommended; compare it with fedavg and frozen

# What a silo sends once, so that it is remembered while it is away
[digest]
samples_per_digest = {samples_per_digest}  # a silo has about {usual} images of a class; the more, the more to mix
mixing = "within-class"  # learns more under this noise than random, and links records more easily
encoder = "even"  # made for this noise: all its codes have the length of clip_bound

# What the digest promises. Updates of the model, which silos send in each round, are not covered
[privacy]
mechanism = "discrete-gaussian"  # noise with a proved promise
epsilon = 8.0  # smaller protects more and costs accuracy
delta = {delta}  # chance that the promise fails: far below 1 / {images} images
clip_norm = "l2"
clip_bound = {clip_bound}  # public: agreed on before anybody looks at data
adjacency = "same-label"  # classes are public; "replace-one" hides them too and needs label_epsilon
unit = {unit}  # {who_is_promised}
group_limit = {group_limit}  # the most images of a group that go into a digest; the noise grows with it
random = "system"  # nobody can repeat the noise, so two runs differ; "seeded" repeats a run and promises nothing
# budget_epsilon = 16.0  # the most that a record may be charged: `feddig digest make` refuses to release more
# budget_delta = {budget_delta}

[model]
classifier = {classifier}  # {why_this_classifier}

[training]
rounds = {rounds}  # a first look; `feddig check` says how long it takes
batch = {batch}  # a silo trains on about {size} images; steps in a pass: {steps}
lr = 0.01  # lower it if training diverges
momentum = 0.9
local_epochs = {local_epochs}  # passes over a silo's images in a round; few images need more
threads = {threads}  # of the processor; a network this small gains nothing from more
"""
"""A line that names a value which is None is left out."""
COMMENT_COLUMN = 36

SHOWN = 8
"""How many names are listed."""
SIDE = 32
"""Height and width of the images that the encoder was trained on."""
FEWEST = 16
"""Training images of which two silos can be drawn that have images to validate and to test."""
FEW = 128
"""Training images below which two silos are drawn and not four."""
MANY = 20_000
"""Training images from which the paper's classifier and a longer run are worth their time."""
STEPS = 20
"""Steps that a silo should take in a pass over its images, or more."""
DIGESTS = 8
"""Digests that a silo should have of a class, or more."""


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
    """Return the first experiment for this data as TOML, and what was found; without data, for the bundled set."""
    found = find_data(data, data_dir)
    layout = lay_out(Experiment(data=found.settings), found.dataset)
    facts = _describe(found, layout)
    values = {**_data_values(found), **_privacy_values(layout), **_training_values(layout)}
    lines = [*(f"# {fact}" for fact in facts), "", *_fill(values), "", "# How to go on", *_next(file)]
    return "\n".join(lines) + "\n", facts


# --- the data


def find_data(data: str | None, data_dir: Path | None) -> Found:
    """Find out what format this data has, load it, and choose how silos hold it."""
    path = (data_dir or Path()) / Path(data or "").expanduser()
    sizes, is_mixed = [], False
    if data is None:
        settings = DataSettings(name="fashion-mini")
    elif data in NAMES and data not in OWN and not path.exists():
        settings = DataSettings(name=data)
    elif not data or not path.exists():
        raise SettingError(
            f"--data: {data!r} is no file or folder here, and no public set; {nearest(data, PUBLISHED)}"
        )
    elif path.is_file():
        settings = DataSettings(name="npz", path=data)
        if path.suffix != ".npz":
            raise SettingError(
                f"--data: {path}: is no .npz file; give one, or a folder with a folder of images for each class"
            )
    elif any(path.glob("train-images*idx3-ubyte*")):
        settings = DataSettings(name="idx", path=data)
    else:
        # imported only here, because Pillow takes time to load
        from feddig.data.folder import survey_folder

        if archives := [each for each in path.glob("*.npz") if not any(map(Path.is_dir, path.iterdir()))]:
            raise SettingError(f"--data: {path}: holds no folders of images; give {archives[0]} itself")
        by_silo, headers = survey_folder(path)
        sizes, is_mixed = sorted(headers.sizes), len(headers.grey) > 1
        settings = DataSettings(
            name="folder",
            path=data,
            image_size=SIDE,
            channels=1 if set(headers.grey) == {True} else 3,
            partition="folders" if by_silo else "dirichlet",
        )
    dataset = load_data(Experiment(data=settings).located(data_dir))
    if dataset.natural is None:
        if len(dataset.train) < FEWEST:
            raise DataError(
                f"--data: {data}: {len(dataset.train)} images to train are too few; give at least {FEWEST}"
            )
        silos = 4 if len(dataset.train) >= FEW else 2
        least = max(1, min(64, len(dataset.train) // (4 * silos)))
        settings = replace(settings, silos=silos, skew=0.5, min_samples=least)
    return Found(settings, dataset, sizes, is_mixed)


def _describe(found: Found, layout: Layout) -> list[str]:
    """Say what was found, in a few lines without control characters."""
    dataset, settings = found.dataset, found.settings
    channels, height, width = dataset.train.pixels.shape[1:]
    stored = [f"{size[0]} x {size[1]}" for size in found.sizes] or [f"{width} x {height}"]
    size = stored[0] if len(stored) == 1 else f"{stored[0]} to {stored[-1]}"
    size += "" if size == f"{width} x {height}" else f", read as {width} x {height}"
    counts = f"{len(dataset.train):,} images to train and {len(dataset.test):,} to test"
    facts = [
        f"{settings.path or settings.name}: {counts}, {size}, {'grey' if channels == 1 else 'in colour'}",
        f"{dataset.classes} classes: {shorten(dataset.class_names, SHOWN)}",
    ]
    if dataset.natural is not None:
        names = layout.partition.names or [str(silo) for silo in range(len(layout.partition.shares))]
        facts.append(f"{len(names)} silos, by the outer folders: {shorten(names, SHOWN)}")
        facts.append('(if these are the classes, and the others patients, set partition = "dirichlet")')
    if dataset.train.groups is not None:
        facts.append(f"{len(np.unique(dataset.train.groups)):,} groups of images, such as patients")
    return ["".join(each if each.isprintable() else " " for each in fact) for fact in facts]


# --- the values


def _data_values(found: Found) -> dict[str, object]:
    settings, natural = found.settings, found.dataset.natural is not None
    is_folder = settings.name == "folder"
    larger = is_folder and found.sizes[-1] > (SIDE, SIDE)
    read = "all are read grey" if settings.channels == 1 else "all are read in colour"
    return {
        "name": settings.name,
        "format": Words(FORMATS.get(settings.name, "a public set, known by its name")),
        "path": settings.path,
        "image_size": settings.image_size if is_folder else None,
        "or_larger": Words(f"; {2 * SIDE} keeps more detail, at 4 times the work" if larger else ""),
        "channels": settings.channels if is_folder else None,
        "how_channels_are_read": Words(read + (", though some files are grey" if found.is_mixed else "")),
        "partition": settings.partition,
        "who_holds_what": Words(
            "a silo's images lie in its folder: <silo>/<class>/*"
            if natural
            else 'silos are drawn; "folders" or "file": as your images belong to silos'
        ),
        "silos": None if natural else settings.silos,
        "skew": None if natural else settings.skew,
        "min_samples": None if natural else settings.min_samples,
    }


def _privacy_values(layout: Layout) -> dict[str, object]:
    train, counts = layout.dataset.train, _class_counts(layout)
    usual = float(np.median(counts[counts > 0]))
    delta = 10.0 ** -max(5, math.floor(math.log10(len(train))) + 2)
    grouped = train.groups is not None
    return {
        # each silo needs one class of which it can mix a digest
        "samples_per_digest": _power_of_two(min(usual / DIGESTS, counts.max(axis=1).min()), 1, 64),
        "usual": Words(f"{usual:.0f}"),
        "delta": delta,
        "images": Words(f"{len(train):,}"),
        "clip_bound": LENGTH,
        "unit": "group" if grouped else "record",
        "who_is_promised": Words(
            "the promise is to all images of a group, such as a patient's"
            if grouped
            else 'a record is one image; "group": all images of a patient, if the data names them'
        ),
        "group_limit": None if train.groups is None else _group_limit(train.groups),
        "budget_delta": 2 * delta,
    }


def _training_values(layout: Layout) -> dict[str, object]:
    few = len(layout.dataset.train) < MANY
    size = float(np.median([len(rows) for rows in layout.training_rows()]))
    batch = _power_of_two(size / STEPS, 8, 256)
    steps = math.ceil(size / batch)
    return {
        "classifier": "small" if few else "size-matched",
        "why_this_classifier": Words(
            "enough for a first look; size-matched is the paper's, and slower"
            if few
            else f"the paper's, for {MANY:,} images or more; small is much faster"
        ),
        "rounds": 40 if few else 100,
        "batch": batch,
        "size": Words(f"{size:,.0f}"),
        "steps": Words(str(steps)),
        "local_epochs": min(5, math.ceil(1.5 * STEPS / steps)),
        "threads": 1 if few else None,
    }


def _class_counts(layout: Layout) -> np.ndarray:
    """Count the training images that go into digests, by silo and class."""
    labels, groups = layout.dataset.train.labels, layout.dataset.train.groups
    counts = []
    for rows in layout.training_rows():
        used = rows if groups is None else _limited(rows, groups, _group_limit(groups))
        counts.append(np.bincount(labels[used], minlength=layout.dataset.classes))
    return np.array(counts)


def _group_limit(groups: np.ndarray) -> int:
    """Return the usual size of a group, up to four."""
    return min(4, int(np.median(np.unique(groups, return_counts=True)[1])))


def _limited(rows: np.ndarray, groups: np.ndarray, limit: int) -> np.ndarray:
    """Return the first rows of each group."""
    order = rows[np.argsort(groups[rows], kind="stable")]
    _, starts, places = np.unique(groups[order], return_index=True, return_inverse=True)
    limited: np.ndarray = order[np.arange(len(order)) - starts[places] < limit]
    return limited


def _power_of_two(wanted: float, least: int, most: int) -> int:
    return min(most, max(least, 1 << math.floor(math.log2(max(1, wanted)))))


# --- the text

FORMATS = {
    "fashion-mini": "small pictures of clothes that come with FedDig",
    "folder": "image files in one folder per class",
    "npz": "the arrays x_train, y_train, x_test and y_test",
    "idx": "four files of MNIST's format",
}


class Words(str):
    """A text for a comment, where others are values of keys."""

    __slots__ = ()


def _fill(values: Mapping[str, object]) -> Iterator[str]:
    """Yield the template's lines with their values, and with comments in one column."""
    spelled = {name: each if isinstance(each, Words) else spell_value(each) for name, each in values.items()}
    for line in TEMPLATE.splitlines():
        named = [name for _, name, _, _ in Formatter().parse(line) if name]
        if any(values[name] is None for name in named):
            continue
        setting, mark, comment = (part.format(**spelled) for part in line.partition("  # "))
        if mark and len(setting) >= COMMENT_COLUMN:  # above a setting as long as this
            yield f"# {comment}"
            yield setting
        else:
            yield f"{setting:<{COMMENT_COLUMN}}# {comment}" if mark else setting


def _next(file: Path) -> Iterator[str]:
    name = shlex.quote(str(file))
    steps = {
        f"feddig check {name}": "what would run: silos, absences, cost, promise; trains nothing",
        f"feddig run {name}": "trains once",
        f"feddig compare {name}": "beside FedAvg, a frozen model and FedDig",
        f"feddig advise {name} --help": "finds samples_per_digest and epsilon by your own limits",
        f"feddig digest make {name} --help": "makes a silo's digest; `feddig audit` attacks it before it leaves",
        "feddig federation init --help": f"a real federation: --experiment {name} --set absence.scenario=none ...",
    }
    width = max(map(len, steps))
    yield from (f"#   {command:<{width}}  {about}" for command, about in steps.items())
