"""Image files as they come: in sub-folders, among other files, with 16 bits, in DICOM."""

import builtins
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig import dataset_from_arrays
from feddig.data import load_dataset
from feddig.errors import DataError
from feddig.experiment.setup import lay_out
from public_sets import one_line


def paint(path: Path, value: int = 7) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), value, np.uint8)).save(path)
    return path


def make_classes(folder: Path, count: int = 4) -> Path:
    for name in ("a", "b"):
        for number in range(count):
            paint(folder / name / f"{number}.png", number)
    return folder


# --- folders


def test_images_are_read_however_deep_and_the_first_folder_is_the_group(tmp_path: Path) -> None:
    for name in ("a", "b"):
        for patient in ("p1", "p2"):
            for visit in ("early", "late/left"):
                paint(tmp_path / name / patient / visit / "1.png")
        paint(tmp_path / name / "alone.png")
    dataset = load_dataset("folder", tmp_path, held_out=0)
    assert len(dataset.train) == 10
    assert dataset.train.groups is not None
    assert sorted(np.unique(dataset.train.groups, return_counts=True)[1].tolist()) == [2, 4, 4]


def test_skipped_files_are_counted_by_kind_and_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_classes(tmp_path)
    for number in range(3):
        (tmp_path / "a" / f"{number}.txt").write_text("x")
    (tmp_path / "b" / "scan.NII").write_text("x")
    (tmp_path / "b" / "README").write_text("x")
    (tmp_path / "b" / ".DS_Store").write_text("x")
    paint(tmp_path / "beside.png")
    with caplog.at_level(logging.WARNING, logger="feddig"):
        for _ in range(2):
            load_dataset("folder", tmp_path)
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}: skipped 5 files: 3 .txt, 1 .nii, 1 without an ending",
        f"{tmp_path}: 1 images lie beside the folders of classes and are not used",
    ]


def test_a_class_without_images_says_what_was_skipped(tmp_path: Path) -> None:
    make_classes(tmp_path)
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "scan.nii").write_text("x")
    with pytest.raises(DataError, match=r"c: holds no images \(skipped 1 file: 1 \.nii\); add some") as error:
        load_dataset("folder", tmp_path)
    one_line(error)


def test_images_one_level_down_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`photos/images/<class>` is one class with two groups; `photos/<silo>/<class>` two classes with two groups."""
    make_classes(tmp_path / "one" / "images")
    with pytest.raises(
        DataError, match=r"only one class, images; .* the classes, give .*one.images instead$"
    ) as error:
        lay_out(make_tiny_experiment(data={"name": "folder", "path": str(tmp_path / "one")}))
    one_line(error)
    for name in ("1.png", "2.png"):
        paint(tmp_path / "flat" / "images" / name)
    with pytest.raises(DataError, match=r"only one class, images; give at least two$"):
        lay_out(make_tiny_experiment(data={"name": "folder", "path": str(tmp_path / "flat")}))
    for silo in ("north", "south"):
        make_classes(tmp_path / "two" / silo)
    with caplog.at_level(logging.WARNING, logger="feddig"):
        load_dataset("folder", tmp_path / "two")
    assert "the classes are north, south, and the folders below them (a, b) are groups" in caplog.text
    assert 'set data.partition to "folders"' in caplog.text


# --- classes without images


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([1, 2, 3], r"labels are 1 to 3, and no image has the label 0; .*for example by subtracting 1$"),
        (
            [0, 1, 3],
            r"labels are 0 to 3, and no image has the label 2; number the classes from 0 without gaps$",
        ),
        ([0, 0, 0], r"there is only one class, 0; give at least two$"),
    ],
)
@pytest.mark.parametrize("given", [False, True])
def test_an_empty_class_is_an_error(tmp_path: Path, labels: Sequence[int], words: str, given: bool) -> None:
    x, y = np.zeros((60, 8, 8), np.uint8), np.array([*labels] * 20)
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    name = "tensors" if given else "npz"
    experiment = make_tiny_experiment(data={"name": name, "path": str(tmp_path / "a.npz")})
    with pytest.raises(DataError, match=f"^{name}: {words}") as error:
        lay_out(experiment, dataset_from_arrays(x, y, x, y) if given else None)
    one_line(error)


def test_a_class_that_only_the_test_images_have_is_none_without_images() -> None:
    tiny = draw_tiny_dataset()
    labels = tiny.test.labels + (tiny.test.labels == 3)
    shifted = dataset_from_arrays(
        np.asarray(tiny.train.pixels), tiny.train.labels, np.asarray(tiny.test.pixels), labels
    )
    assert shifted.classes == 5
    assert lay_out(make_tiny_experiment(), shifted).dataset.classes == 5


# --- 16 bits


def deep(path: Path, largest: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.linspace(0, largest, 64).astype(np.uint16).reshape(8, 8)).save(path)


def test_sixteen_bits_are_scaled_by_one_rule_and_dark_ones_are_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for largest, folder in ((65_535, "full"), (4_095, "twelve")):
        for name in ("a", "b"):
            deep(tmp_path / folder / name / "1.png", largest)
            deep(tmp_path / folder / name / "2.tif", largest)
    with caplog.at_level(logging.WARNING, logger="feddig"):
        full = load_dataset("folder", tmp_path / "full", image_size=0, held_out=0)
        assert not caplog.records
        twelve = load_dataset("folder", tmp_path / "twelve", image_size=0, held_out=0)
    assert np.asarray(full.train.pixels).max() == 255
    assert np.asarray(twelve.train.pixels).max() == 15, "never by an image's own largest value"
    assert "no value above 4095, and 65,535 is white, so they are nearly black" in caplog.text


# --- DICOM


def write_dicom(path: Path, pixels: np.ndarray, **tags: Any) -> Path:
    """Write an image as a DICOM file with these tags."""
    pydicom = pytest.importorskip("pydicom")
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    path.parent.mkdir(parents=True, exist_ok=True)
    file = pydicom.Dataset()
    file.file_meta = FileMetaDataset()
    file.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    file.file_meta.MediaStorageSOPClassUID = file.SOPClassUID = SecondaryCaptureImageStorage
    file.file_meta.MediaStorageSOPInstanceUID = file.SOPInstanceUID = generate_uid(entropy_srcs=[str(path)])
    file.Rows, file.Columns = pixels.shape[:2]
    file.SamplesPerPixel = 1 if pixels.ndim == 2 else 3
    file.PhotometricInterpretation = "MONOCHROME2" if pixels.ndim == 2 else "RGB"
    if pixels.ndim == 3:
        file.PlanarConfiguration = 0
    file.BitsAllocated = 8 * pixels.dtype.itemsize
    file.BitsStored, file.HighBit = file.BitsAllocated, file.BitsAllocated - 1
    file.PixelRepresentation = int(pixels.dtype.kind == "i")
    for name, value in tags.items():
        setattr(file, name, value)
    file.PixelData = pixels.tobytes()
    file.save_as(path, enforce_file_format=True)
    return path


RAMP = np.linspace(0, 4095, 64).round().astype(np.uint16).reshape(8, 8)


def read_one(folder: Path) -> np.ndarray:
    dataset = load_dataset("folder", folder, image_size=0, held_out=0)
    return np.asarray(dataset.train.pixels)[0]


@pytest.mark.parametrize(
    ("pixels", "tags", "expected"),
    [
        (RAMP, {"BitsStored": 12, "HighBit": 11}, RAMP / 4095 * 255),
        (RAMP, {"BitsStored": 12, "HighBit": 11, "PhotometricInterpretation": "MONOCHROME1"}, 255 - RAMP / 4095 * 255),
        (RAMP, {"WindowCenter": 1000, "WindowWidth": 501}, ((RAMP - 999.5) / 500 + 0.5).clip(0, 1) * 255),
        (RAMP, {"WindowCenter": [1000, 9], "WindowWidth": [501, 2]}, ((RAMP - 999.5) / 500 + 0.5).clip(0, 1) * 255),
        (RAMP, {"RescaleSlope": 2, "RescaleIntercept": -1024, "WindowCenter": 40, "WindowWidth": 401},
         ((2.0 * RAMP - 1024 - 39.5) / 400 + 0.5).clip(0, 1) * 255),
        (RAMP.astype(np.int16) - 2048, {"BitsStored": 12, "HighBit": 11}, RAMP / 4095 * 255),
        ((RAMP // 16).astype(np.uint8), {}, RAMP // 16),
    ],
    ids=["12 bits", "inverted", "window", "first of two windows", "rescaled", "signed", "8 bits"],
)  # fmt: skip
def test_dicom_grey_follows_the_files_own_window_or_bits(
    tmp_path: Path, pixels: np.ndarray, tags: dict[str, Any], expected: np.ndarray
) -> None:
    for name in ("a", "b"):
        write_dicom(tmp_path / name / "1.dcm", pixels, **tags)
    found = read_one(tmp_path)
    assert found.shape == (1, 8, 8)
    assert np.abs(found[0].astype(float) - expected).max() <= 1


def test_dicom_in_colour_is_read_beside_other_images(tmp_path: Path) -> None:
    colours = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    for name in ("a", "b"):
        write_dicom(tmp_path / name / "p1" / "1.DCM", colours)
        Image.fromarray(colours).save(tmp_path / name / "2.png")
    dataset = load_dataset("folder", tmp_path, image_size=0, held_out=0)
    assert dataset.train.groups is not None
    pixels = np.asarray(dataset.train.pixels)
    assert all(np.array_equal(image, colours.transpose(2, 0, 1)) for image in pixels)
    write_dicom(tmp_path / "a" / "3.dcm", RAMP)
    with pytest.raises(DataError, match=r"is in colour, and .*3\.dcm is grey; set data\.channels"):
        load_dataset("folder", tmp_path)


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ({"NumberOfFrames": 2}, "holds 2 frames; save each as an image of its own"),
        ({"PhotometricInterpretation": "PALETTE COLOR"}, "has a palette of colours; save it as RGB"),
        ({"WindowCenter": 5, "WindowWidth": ""}, "its window or rescaling is damaged"),
        ({"RescaleSlope": 0, "RescaleIntercept": 1}, "its window or rescaling is damaged"),
        ({"BitsAllocated": 12}, "its pixels cannot be read"),
    ],
)
def test_a_dicom_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, tags: dict[str, Any], words: str
) -> None:
    make_classes(tmp_path)
    write_dicom(tmp_path / "a" / "odd.dcm", RAMP, **tags)
    with pytest.raises(DataError, match=rf"odd\.dcm: {words}") as error:
        load_dataset("folder", tmp_path)
    one_line(error)


def test_what_is_no_dicom_file_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("pydicom")
    make_classes(tmp_path)
    (tmp_path / "a" / "odd.dcm").write_bytes(b"no image")
    with pytest.raises(
        DataError, match=r"odd\.dcm: not a readable DICOM file \(InvalidDicomError\)"
    ) as error:
        load_dataset("folder", tmp_path)
    one_line(error)


def test_without_pydicom_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_classes(tmp_path)
    (tmp_path / "a" / "scan.dcm").write_bytes(b"")
    load = builtins.__import__

    def missing(name: str, *rest: Any, **more: Any) -> Any:
        if name == "pydicom":
            raise ImportError(name)
        return load(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(
        DataError, match=r"scan\.dcm: is a DICOM file, which needs pydicom; .*feddig\[dicom\]"
    ) as error:
        load_dataset("folder", tmp_path)
    one_line(error)
