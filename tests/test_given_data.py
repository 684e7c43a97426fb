"""Data sets given in Python: torch data sets, and look-alikes of Hugging Face's."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig import Dataset, dataset_from, partition_from, run
from feddig.errors import DataError
from public_sets import one_line


class Listed(TorchDataset[tuple[Any, Any]]):
    """A torch data set of these items."""

    def __init__(self, items: list[Any], classes: list[str] | None = None) -> None:
        self.items = items
        if classes is not None:
            self.classes = classes

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, place: int) -> Any:
        return self.items[place]


class ClassLabel:
    """As `datasets.ClassLabel`."""

    def __init__(self, names: list[str]) -> None:
        self.names = names


class Value:
    """As `datasets.Value`."""


class HuggingFace:
    """As `datasets.Dataset`: rows by number are dictionaries, columns by name are lists, features have types."""

    def __init__(self, columns: dict[str, list[Any]], features: dict[str, Any]) -> None:
        self.columns, self.features = columns, features

    @property
    def column_names(self) -> list[str]:
        return list(self.columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self.columns[key]
        return {name: values[key] for name, values in self.columns.items()}


HuggingFaceImage = type("Image", (), {})


def pictures(count: int, mode: str = "L", size: tuple[int, int] = (16, 16)) -> list[Image.Image]:
    return [Image.new(mode, size, 10 * number if mode == "L" else (number, 0, 9)) for number in range(count)]


def cats_and_dogs(count: int = 8, **more: list[Any]) -> HuggingFace:
    return HuggingFace(
        {"photo": pictures(count, "RGB"), "kind": [number % 2 for number in range(count)], **more},
        {"photo": HuggingFaceImage(), "kind": ClassLabel(["cat", "dog"]), **dict.fromkeys(more, Value())},
    )


def test_a_torch_data_set_of_tensors_is_the_same_as_its_arrays() -> None:
    tiny = draw_tiny_dataset()

    def tensors(part: Any) -> TensorDataset:
        return TensorDataset(torch.from_numpy(np.asarray(part.pixels)), torch.from_numpy(part.labels))

    found = dataset_from(tensors(tiny.train), tensors(tiny.test))
    assert found.fingerprint() == tiny.fingerprint()
    assert found.classes == 4
    joined = ConcatDataset([tensors(tiny.train), tensors(tiny.test)])
    assert len(dataset_from(joined, tensors(tiny.test)).train) == 300


@pytest.mark.parametrize(
    ("image", "shape"),
    [
        (Image.new("L", (16, 12)), (1, 12, 16)),
        (Image.new("RGB", (16, 12)), (3, 12, 16)),
        (Image.new("RGBA", (16, 12)), (3, 12, 16)),
        (Image.fromarray(np.full((12, 16), 65_535, np.uint16)), (1, 12, 16)),
        (torch.zeros(3, 12, 16), (3, 12, 16)),
        (torch.zeros(1, 12, 16, dtype=torch.uint8), (1, 12, 16)),
        (np.zeros((12, 16)), (1, 12, 16)),
        (np.zeros((12, 16, 3), np.float32), (3, 12, 16)),
        (torch.zeros(9), (1, 1, 9)),
    ],
)
def test_images_may_be_pictures_arrays_or_tensors(image: Any, shape: tuple[int, ...]) -> None:
    items = [(image, 0), (image, torch.tensor(1))]
    found = dataset_from(Listed(items), Listed(items))
    assert found.train.pixels.shape == (2, *shape)
    assert found.test.labels.tolist() == [0, 1]


def test_the_classes_of_a_torch_data_set_are_kept() -> None:
    items = [(picture, number % 2) for number, picture in enumerate(pictures(4))]
    assert dataset_from(Listed(items, ["cat", "dog"]), Listed(items)).class_names == ("cat", "dog")
    named = [(picture, ("dog", "cat")[number % 2]) for number, picture in enumerate(pictures(4))]
    found = dataset_from(Listed(named), Listed(named))
    assert found.class_names == ("cat", "dog")
    assert found.train.labels.tolist() == [1, 0, 1, 0]


def test_a_hugging_face_data_set_is_read_by_the_types_of_its_columns() -> None:
    found = dataset_from({"train": cats_and_dogs(), "test": cats_and_dogs(4), "validation": cats_and_dogs(2)})
    assert found.class_names == ("cat", "dog")
    assert found.train.pixels.shape == (8, 3, 16, 16)
    assert np.asarray(found.train.pixels)[5, 0, 0, 0] == 5
    assert found.train.labels.tolist() == [0, 1] * 4
    assert len(found.test) == 4


def test_columns_can_be_named() -> None:
    rows = cats_and_dogs(ward=["x", "y"] * 4)
    found = dataset_from(rows, rows, label="ward")
    assert found.class_names == ("x", "y")
    plain = [{"image": picture, "label": number % 2} for number, picture in enumerate(pictures(4))]
    assert dataset_from(Listed(plain), Listed(plain)).train.labels.tolist() == [0, 1, 0, 1]


def test_a_column_names_the_silos(tmp_path: Path) -> None:
    tiny = draw_tiny_dataset(train=120)
    rows = HuggingFace(
        {
            "image": [Image.fromarray(image[0]) for image in np.asarray(tiny.train.pixels)],
            "label": tiny.train.labels.tolist(),
            "hospital": ["St. Mary" if row % 3 else "St. John" for row in range(120)],
        },
        {"image": HuggingFaceImage(), "label": ClassLabel(list("abcd")), "hospital": Value()},
    )
    dataset = dataset_from(rows, rows)
    experiment = make_tiny_experiment(data={"silos": 0}, training={"rounds": 2}, algorithm={"name": "fedavg"})
    run(experiment, tmp_path / "run", dataset=dataset, partition=partition_from(rows["hospital"]))
    assert "St. Mary" in (tmp_path / "run" / "report.html").read_text(encoding="utf-8")


def test_a_notebook_shows_data_and_partition_in_one_line() -> None:
    dataset = dataset_from(cats_and_dogs(8), cats_and_dogs(4))
    assert repr(dataset) == (
        "<Dataset tensors: 8 images to train and 4 to test, 3 x 16 x 16; 2 classes: cat, dog>"
    )
    assert repr(partition_from(["south"] * 6 + ["north"] * 2, split=(1, 0, 0))) == (
        "<Partition of 8 images: north: 2, south: 6>"
    )


def test_a_real_hugging_face_data_set_is_read() -> None:
    """Needs the package datasets, which FedDig does not depend on."""
    datasets = pytest.importorskip("datasets")
    features = datasets.Features(
        {"photo": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])}
    )
    columns = {"photo": pictures(8, "RGB"), "kind": [0, 1] * 4}
    both = datasets.Dataset.from_dict(columns, features=features).train_test_split(0.25, shuffle=False)
    expected = dataset_from(cats_and_dogs(6), cats_and_dogs(8))
    for given in (both, both.with_format("torch"), both.with_format("numpy")):
        found = dataset_from(given)
        assert found.class_names == ("cat", "dog")
        assert np.array_equal(found.train.pixels, expected.train.pixels)
        assert np.array_equal(found.test.pixels, expected.test.pixels[6:])
        assert found.test.labels.tolist() == [0, 1]
    with pytest.raises(DataError, match="train: IterableDataset has no length or no items"):
        dataset_from(both["train"].to_iterable_dataset(), both["test"])


class Stream:
    """As an iterable data set: it has no length."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


class Broken(Listed):
    def __getitem__(self, place: int) -> Any:
        if place:
            raise OSError("disk\nfull")
        return super().__getitem__(place)


GOOD = [(picture, number % 2) for number, picture in enumerate(pictures(4))]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dataset_from(Listed(GOOD)), r"^tensors: no test images; give a second data set"),
        (lambda: dataset_from({"train": cats_and_dogs()}), r"^tensors: has no part 'test' but train"),
        (lambda: dataset_from(Stream(), Listed(GOOD)), r"^tensors: train: Stream has no length or no items"),
        (lambda: dataset_from(Listed([]), Listed(GOOD)), r"^tensors: train: holds no images"),
        (lambda: dataset_from(Listed([3]), Listed(GOOD)), r"item 0 is a int; each must be an image and its label"),
        (lambda: dataset_from(Broken(GOOD), Listed(GOOD)), r"train: item 1 cannot be read \(OSError: disk\)"),
        (lambda: dataset_from(Listed([*GOOD, (pictures(1, size=(9, 9))[0], 0)]), Listed(GOOD)),
         r"train: item 4 is uint8 \[9, 9\], but item 0 is uint8 \[16, 16\]; bring all to one size"),
        (lambda: dataset_from(Listed([*GOOD, (pictures(1, "RGB")[0], 0)]), Listed(GOOD)),
         r"train: item 4 is uint8 \[16, 16, 3\]"),
        (lambda: dataset_from(Listed([(torch.zeros(3, 3, 16, 16), 0)]), Listed(GOOD)),
         r"train: item 0: its image is float32"),
        (lambda: dataset_from(Listed([(GOOD[0][0], [0, 1])]), Listed(GOOD)),
         r"train: item 0: its label is \[2\] numbers; give one"),
        (lambda: dataset_from(Listed([*GOOD, (GOOD[0][0], None)]), Listed(GOOD)),
         r"train: item 4: has no label \(None\); add it"),
        (lambda: dataset_from(Listed(GOOD), Listed([(None, 0)])), r"test: item 0: has no image \(None\); add it"),
        (lambda: dataset_from(Listed(GOOD), Listed([(GOOD[0][0], 0.5)])),
         r"test: labels are float64 and not whole numbers"),
        (lambda: dataset_from(Listed(GOOD, ["a"]), Listed(GOOD)), r"there is a label 1, but 1 classes are named"),
        (lambda: dataset_from(Listed(GOOD, ["a", "b"]), Listed(GOOD, ["b", "a"])), r"have other classes"),
        (lambda: dataset_from(Listed([(GOOD[0][0], "cat")]), Listed([(GOOD[0][0], "cta")])),
         r"test: no training image has the label 'cta'; did you mean 'cat'\?"),
        (lambda: dataset_from(cats_and_dogs(), cats_and_dogs(), label="knid"),
         r"no column 'knid' for label; did you mean 'kind'"),
        (lambda: dataset_from(Listed([{"img": 1}]), Listed(GOOD)), r"item 0 has no 'image', but img; name the columns"),
        (lambda: dataset_from(HuggingFace({"x": [1]}, {"x": Value()}), Listed(GOOD)),
         r"0 columns are of type Image; name one by image=, from x"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_one_line(make: Callable[[], Dataset], words: str) -> None:
    with pytest.raises(DataError, match=words) as error:
        make()
    one_line(error)
