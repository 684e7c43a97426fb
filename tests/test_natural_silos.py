"""Natural silos: folders, a file or the caller say who holds an image, and a group is never in two splits."""

import io
import itertools
import json
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

import feddig
from conftest import draw_tiny_dataset, make_tiny_experiment
from feddig import Dataset, Experiment, Partition, grid, partition_from, resume, run, run_grid
from feddig.core.absence import Absence
from feddig.data import load_dataset
from feddig.data.dataset import group_numbers
from feddig.data.folder import survey_folder
from feddig.data.natural import SiloTable, read_silo_table
from feddig.data.partition import SPLITS
from feddig.errors import DataError, FedDigError, FileFormatError, SettingError
from feddig.experiment.setup import lay_out
from feddig.report.read_run import read_run
from feddig.runs.progress import ProgressBar, ProgressLines, name_silos
from public_sets import one_line

SILOS = ("north", "south", "west")


def paint(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((16, 16), value, np.uint8)).save(path)


def make_hospitals(folder: Path, *, each: int = 20, root: str = "") -> Path:
    """Write three silos; north lacks the class dog."""
    for number, silo in enumerate(SILOS):
        for name in ("cat",) if silo == "north" else ("cat", "dog"):
            for image in range(each):
                paint(folder / root / silo / name / f"{name}-{image:02}.png", (40 * number + image) % 256)
    return folder


def by_folders(folder: Path, **data: object) -> Experiment:
    table = {"name": "folder", "path": str(folder), "partition": "folders", "silos": 0, "image_size": 16}
    data = {key: value for key, value in (table | data).items() if value is not None}
    return make_tiny_experiment(data=data, training={"rounds": 2}, algorithm={"name": "fedavg"})


def splits_of(partition: Partition) -> dict[int, tuple[int, str]]:
    """Return the silo and the split of each image."""
    return {
        int(row): (silo, name)
        for silo, share in enumerate(partition.shares)
        for name in SPLITS
        for row in getattr(share, name)
    }


# --- folders


def test_folders_name_the_silos_and_their_number_follows(tmp_path: Path) -> None:
    layout = lay_out(by_folders(make_hospitals(tmp_path)))
    assert layout.dataset.class_names == ("cat", "dog")
    assert layout.partition.names == SILOS
    assert layout.experiment.data.silos == 3
    assert layout.experiment.absence.order == "index"
    labels = layout.dataset.train.labels
    assert set(labels[layout.partition.shares[0].train].tolist()) == {0}, "north has no dogs"
    sizes = [len(share) for share in layout.partition.shares]
    assert sum(sizes) + len(layout.dataset.test) == 100
    assert sizes[0] < sizes[1]


@pytest.mark.parametrize("by_silo", [False, True])
def test_a_folder_of_silos_may_have_its_own_test_part(tmp_path: Path, by_silo: bool) -> None:
    make_hospitals(tmp_path, root="train")
    if by_silo:
        make_hospitals(tmp_path, root="test", each=2)
    else:
        paint(tmp_path / "test" / "dog" / "1.png", 9)
    layout = lay_out(by_folders(tmp_path))
    assert (len(layout.dataset.train), len(layout.dataset.test)) == (100, 10 if by_silo else 1)
    assert sum(map(len, layout.partition.shares)) == 100


def test_another_number_of_silos_is_an_error(tmp_path: Path) -> None:
    make_hospitals(tmp_path)
    with pytest.raises(
        SettingError, match=r"^data\.silos: 5, but .* 3 silos \(north, south, west\); leave"
    ) as error:
        lay_out(by_folders(tmp_path, silos=5))
    one_line(error)
    assert lay_out(by_folders(tmp_path, silos=3)).experiment.data.silos == 3


def test_folders_that_share_classes_are_taken_for_silos(tmp_path: Path) -> None:
    def seems(*places: str) -> bool:
        root = Path(tempfile.mkdtemp(dir=tmp_path))
        for place in places:
            paint(root / place / "1.png", 5)
        return survey_folder(root)[0]

    assert survey_folder(make_hospitals(tmp_path / "hospitals"))[0]
    assert survey_folder(make_hospitals(tmp_path / "parts", root="train"))[0]
    assert not seems("cat", "dog")
    assert not seems("cat/patient 1", "cat/patient 2", "dog/patient 3", "dog/patient 4")
    assert not seems("cat/patient 1", "cat/patient 2", "dog/patient 2", "dog/patient 4", "dog/patient 5")
    assert not seems("north/cat", "north/dog", "south/cat", "south/dog", "south"), "images beside the classes"
    assert not seems("images/cat", "images/dog"), "one folder more"


def test_what_is_no_folder_of_silos_is_one_line(tmp_path: Path) -> None:
    make_hospitals(tmp_path / "a", root="train")
    paint(tmp_path / "a" / "east" / "cat" / "1.png", 1)
    with pytest.raises(DataError, match=r"east: lies beside the folder train"):
        lay_out(by_folders(tmp_path / "a"))
    paint(tmp_path / "b" / "cat" / "1.png", 1)
    with pytest.raises(
        DataError, match=r"cat: holds no folders of classes; with data\.partition = \"folders\""
    ):
        lay_out(by_folders(tmp_path / "b"))
    (tmp_path / "c" / "north" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="no silo has images of the class 'cat'"):
        lay_out(by_folders(tmp_path / "c"))
    with pytest.raises(SettingError, match=r'^data\.partition: "folders" needs data\.name = "folder"'):
        lay_out(by_folders(tmp_path, name="npz", image_size=32))


def draw_cohort(data: st.DataObject) -> list[tuple[str, str, str, str]]:
    """Draw images as (silo, class, patient or nothing, file); patients may visit several silos and have two classes."""
    count = data.draw(st.integers(12, 40))
    drawn = [
        (
            data.draw(st.sampled_from(SILOS)),
            data.draw(st.sampled_from("xy")),
            data.draw(st.sampled_from(["", "p1", "p2", "p3", "p4", "p5", "p6"])),
            f"{number}.png",
        )
        for number in range(count)
    ]
    # every silo has something that is not held out, whatever the seed
    return drawn + [
        (silo, label, "", f"more-{silo}-{label}-{n}.png")
        for silo in SILOS
        for label in "xy"
        for n in range(8)
    ]


@given(data=st.data())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_group_is_in_one_split_and_no_label_moves_another_image(
    tmp_path: Path, data: st.DataObject
) -> None:
    cohort = draw_cohort(data)
    moved = data.draw(st.integers(0, len(cohort) - 1))
    seed = data.draw(st.integers(0, 1000))

    def places(changed: bool) -> dict[int, tuple[str, str]]:
        """Return the silo and the split of each image by its number; a changed image has the other class."""
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        for number, (silo, label, patient, name) in enumerate(cohort):
            own = {"x": "y", "y": "x"}[label] if changed and number == moved else label
            paint(folder / silo / own / patient / name, number)
        layout = lay_out(by_folders(folder, seed=seed, min_samples=1))
        found = {int(image.max()): ("", "held out") for image in layout.dataset.test.pixels}
        values = [int(image.max()) for image in layout.dataset.train.pixels]
        for row, (silo, split) in splits_of(layout.partition).items():
            found[values[row]] = (layout.partition.names[silo], split)
        return found

    before = places(changed=False)
    assert len(before) == len(cohort)
    by_patient: dict[str, set[str]] = {}
    for number, (silo, _, patient, _) in enumerate(cohort):
        where, split = before[number]
        assert where in ("", silo)
        if patient:
            by_patient.setdefault(patient, set()).add(split)
    assert all(len(found) == 1 for found in by_patient.values())
    assert places(changed=True) == before


@given(
    names=st.lists(st.text("abcdef", min_size=1, max_size=4), min_size=4, max_size=60, unique=True),
    seed=st.integers(0, 99),
)
@settings(max_examples=40, deadline=None)
def test_a_split_follows_from_the_key_alone(names: list[str], seed: int) -> None:
    """Leave out every other group: the rest keep their splits."""
    try:
        whole = splits_of(partition_from(["s"] * len(names), groups=names, seed=seed))
        half = splits_of(partition_from(["t"] * len(names[::2]), groups=names[::2], seed=seed))
    except DataError:
        return  # a handful of groups may all be held out
    assert [whole[row][1] for row in range(0, len(names), 2)] == [half[row][1] for row in range(len(half))]


def test_the_shares_of_the_splits_are_those_asked_for() -> None:
    found = partition_from(["s"] * 5000, split=(0.7, 0.2, 0.1), seed=3).shares[0]
    assert len(found.train) / 5000 == pytest.approx(0.7, abs=0.02)
    assert len(found.test) / 5000 == pytest.approx(0.1, abs=0.02)


@pytest.mark.parametrize("method", ["dirichlet", "iid", "shards"])
def test_groups_stay_whole_where_silos_are_drawn_too(method: str, tiny_dataset: Dataset) -> None:
    patients = group_numbers([f"p{row % 40}" for row in range(240)])
    dataset = replace(tiny_dataset, train=replace(tiny_dataset.train, groups=patients))
    layout = lay_out(make_tiny_experiment(data={"partition": method, "min_samples": 16}), dataset)
    found = splits_of(layout.partition)
    assert len(found) == 240
    for patient in np.unique(patients):
        assert len({found[row][1] for row in np.flatnonzero(patients == patient).tolist()}) == 1


def test_a_patient_for_training_and_for_testing_is_refused(tmp_path: Path) -> None:
    for part, patient in (("train", "p1"), ("train", "p2"), ("test", "p2")):
        for name in ("cat", "dog"):
            paint(tmp_path / part / name / patient / "1.png", 5)
    with pytest.raises(DataError, match="the group of test image 0 has training images too; move") as error:
        load_dataset("folder", tmp_path)
    one_line(error)
    arrays = {"x_train": np.zeros((4, 8, 8), np.uint8), "y_train": np.array([0, 1, 0, 1])}
    arrays |= {"x_test": arrays["x_train"][:2], "y_test": arrays["y_train"][:2]}
    np.savez(tmp_path / "a.npz", **arrays, g_train=np.array(list("pqrr")), g_test=np.array(list("sq")))  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"a\.npz: the group of test image 1 has training images too"):
        load_dataset("npz", tmp_path / "a.npz")


# --- a file


def write_table(path: Path, lines: list[str]) -> Path:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def make_photos(folder: Path, count: int = 20) -> list[str]:
    names = [f"{name}/{number:02}.png" for name in ("cat", "dog") for number in range(count)]
    for value, name in enumerate(names):
        paint(folder / name, value)
    return names


def by_file(photos: Path, table: Path, **data: object) -> Experiment:
    return by_folders(photos, partition="file", partition_file=str(table), **data)


def test_a_file_names_silos_groups_and_splits(tmp_path: Path) -> None:
    names = make_photos(tmp_path / "photos")
    cells = {"train": "train", "validation": "validation", "test": "test"}
    split = [list(cells)[(place % 10 == 0) + 2 * (place % 10 == 1)] for place in range(len(names))]
    table = write_table(
        tmp_path / "silos.csv",
        [
            "file,silo,split",
            *(f"{name},{'ab'[place % 2]},{split[place]}" for place, name in enumerate(names)),
        ],
    )
    layout = lay_out(by_file(tmp_path / "photos", table))
    assert layout.partition.names == ("a", "b")
    assert sorted(int(image.max()) for image in layout.dataset.test.pixels) == [1, 11, 21, 31], "split test"
    values = [int(image.max()) for image in layout.dataset.train.pixels]
    for row, (silo, where) in splits_of(layout.partition).items():
        assert "ab"[silo] == "ab"[values[row] % 2]
        assert where == split[values[row]]


def test_groups_in_a_file_are_never_split(tmp_path: Path) -> None:
    names = make_photos(tmp_path / "photos", count=40)
    lines = [f"{name},{'ab'[place % 2]},p{place % 16}" for place, name in enumerate(names)]
    table = write_table(tmp_path / "silos.csv", ["file,silo,group", *lines])
    for seed in range(4):
        layout = lay_out(by_file(tmp_path / "photos", table, seed=seed))
        train, test = layout.dataset.train, layout.dataset.test
        assert train.groups is not None
        assert test.groups is not None
        assert not set(train.groups) & set(test.groups)
        found = splits_of(layout.partition)
        for group in np.unique(train.groups):
            assert len({found[row][1] for row in np.flatnonzero(train.groups == group).tolist()}) == 1


@pytest.mark.parametrize("given_in_python", [False, True])
def test_rows_of_arrays_have_silos_too(tmp_path: Path, given_in_python: bool) -> None:
    dataset = draw_tiny_dataset(train=60)
    x, y = np.asarray(dataset.train.pixels), dataset.train.labels
    np.savez(tmp_path / "a.npz", x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    lines = [f"{row},{'south' if row < 20 else 'north'},p{row % 20}" for row in range(60)]
    table = write_table(tmp_path / "silos.csv", ["row,silo,group", *reversed(lines)])
    data = {"name": "tensors"} if given_in_python else {"name": "npz", "path": str(tmp_path / "a.npz")}
    experiment = by_file(
        tmp_path, table, **data, **{"image_size": 32} | ({"path": None} if given_in_python else {})
    )
    layout = lay_out(experiment, dataset if given_in_python else None)
    assert layout.partition.names == ("north", "south")
    assert [len(share) for share in layout.partition.shares] == [40, 20]
    assert layout.dataset.train.groups is not None
    assert sorted(row for row, (silo, _) in splits_of(layout.partition).items() if silo) == list(range(20))
    with pytest.raises(DataError, match=r"the column row is for arrays; folder data needs the column file"):
        lay_out(by_file(make_hospitals(tmp_path / "photos"), table))


def test_a_limit_keeps_what_the_file_says(tmp_path: Path) -> None:
    dataset = draw_tiny_dataset(train=200)
    np.savez(
        tmp_path / "a.npz", x_train=np.asarray(dataset.train.pixels), y_train=dataset.train.labels,
        x_test=np.asarray(dataset.test.pixels), y_test=dataset.test.labels,
    )  # fmt: skip
    table = write_table(tmp_path / "t.csv", ["row,silo", *(f"{row},{'abcd'[row % 4]}" for row in range(200))])
    layout = lay_out(
        by_file(tmp_path, table, name="npz", path=str(tmp_path / "a.npz"), limit=80, image_size=32)
    )
    assert layout.partition.names == tuple("abcd")
    labels = layout.dataset.train.labels  # the tiny set's labels count up, so a silo has one class
    assert [set(labels[share.train].tolist()) for share in layout.partition.shares] == [{0}, {1}, {2}, {3}]
    assert sum(map(len, layout.partition.shares)) == 80


GOOD = ["file,silo,group,split", "cat/00.png,a,p1,train", "cat/01.png,b,p2,test"]


def test_a_spreadsheet_may_write_semicolons(tmp_path: Path) -> None:
    tables = [
        read_silo_table(write_table(tmp_path / f"{place}.csv", [line.replace(",", mark) for line in GOOD]))
        for place, mark in enumerate(",;")
    ]
    assert isinstance(tables[0], SiloTable)
    assert isinstance(tables[1], SiloTable)
    assert tables[0].holders == tables[1].holders


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (["file,silo"], r"t\.csv: holds no images"),
        (["file|silo", "x|a"], r"the heading has 'file\|silo', which is not known; .*separate columns by commas"),
        (["file,silo,grup", "x,a,p"], r"the heading has 'grup', which is not known; did you mean 'group'\?"),
        (["file,silo,silo", "x,a,p"], "the heading has 'silo' twice"),
        (["file,group", "x,a"], "the heading is file,group; give silo and either file or row"),
        (["file,row,silo", "x,1,a"], "give silo and either file or row"),
        (["file,silo", "x"], "line 2: 1 cells, but the heading has 2"),
        (["file,silo", ",a"], "line 2: names no file"),
        (["file,silo", "x,"], "line 2: names no silo"),
        (["row,silo", "x,a"], "line 2: 'x' is not the number of a row"),
        (["row,silo", "-1,a"], "line 2: '-1' is not the number of a row"),
        (["file,silo", "x,a", "", "./x,b"], "line 4: file x is in line 2 already"),
        ([*GOOD[:2], "cat/01.png,b,p2,tests"], "line 3: unknown split 'tests'; did you mean 'test'"),
        ([*GOOD, "cat/02.png,b,p1,test"], "line 4: group p1 has split test here and train in line 2; a group is never"),
        ([*GOOD, "cat/02.png,b,p1,"], "line 4: group p1 has split none here and train in line 2"),
    ],
)  # fmt: skip
def test_a_wrong_file_is_named_with_its_line(tmp_path: Path, lines: list[str], words: str) -> None:
    with pytest.raises(FileFormatError, match=words) as error:
        read_silo_table(write_table(tmp_path / "t.csv", lines))
    assert str(error.value).startswith(str(tmp_path / "t.csv"))
    assert "\n" not in str(error.value)


def test_a_file_must_name_every_training_image_and_no_other(tmp_path: Path) -> None:
    names = make_photos(tmp_path / "photos", count=10)
    lines = ["file,silo", *(f"{name},{'ab'[place % 2]}" for place, name in enumerate(names))]
    table = write_table(tmp_path / "t.csv", [*lines, "cat/1.png,a"])
    with pytest.raises(
        DataError, match=r"t\.csv, line 22: cat/1\.png is none of the 20 training images .*cat/01\.png"
    ):
        lay_out(by_file(tmp_path / "photos", table))
    write_table(table, lines[:-2])
    with pytest.raises(DataError, match=r"2 of 20 training images are not listed, the first is dog/08\.png"):
        lay_out(by_file(tmp_path / "photos", table))
    with pytest.raises(SettingError, match=r"^data\.partition_file: .*nowhere\.csv: no such file"):
        lay_out(by_file(tmp_path / "photos", tmp_path / "nowhere.csv"))
    with pytest.raises(SettingError, match=r'^data\.partition_file: the partition "file" needs a CSV'):
        by_folders(tmp_path, partition="file")
    with pytest.raises(
        SettingError, match=r"^data\.partition_file: .*read only with data\.partition = \"file\""
    ):
        by_folders(tmp_path, partition_file="t.csv")
    table = write_table(tmp_path / "rows.csv", ["row,silo", "0,a", "9,b"])
    with pytest.raises(DataError, match=r"rows\.csv: row 1 is not listed"):
        lay_out(by_file(tmp_path, table, name="tensors", image_size=32), draw_tiny_dataset(train=8))
    found = read_silo_table(write_table(table, ["row,silo", *(f"{row},a" for row in range(9))]))
    assert isinstance(found, SiloTable)
    with pytest.raises(DataError, match=r"rows\.csv, line 10: row 8, but there are 8 training images"):
        found.name_rows(draw_tiny_dataset(train=8))


# --- from Python, and what a run shows


def test_a_partition_given_in_python_trains_resumes_and_can_be_read_again(tmp_path: Path) -> None:
    dataset = draw_tiny_dataset()
    where = np.where(np.arange(240) < 100, "St. Mary", "St. John [2]")
    dealt = partition_from(where, groups=np.arange(240) // 2, seed=4)
    assert dealt.names == ("St. John [2]", "St. Mary")
    experiment = by_folders(tmp_path, name="tensors", path=None, partition="dirichlet", image_size=32)
    experiment = replace(experiment, absence=replace(experiment.absence, scenario="forever"))
    run(experiment, tmp_path / "whole", dataset=dataset, partition=dealt)
    run(experiment, tmp_path / "cut", dataset=dataset, partition=dealt, until=1)
    assert resume(tmp_path / "cut", dataset=dataset)["rounds"] == 2
    assert (tmp_path / "cut" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    saved = feddig.read_experiment(tmp_path / "whole" / "experiment.toml")
    assert (saved.data.partition, saved.data.silos) == ("given", 2)
    with pytest.raises(
        SettingError, match=r'^data\.partition: "given" stands for a partition given in Python'
    ):
        run(saved, tmp_path / "again", dataset=dataset)
    again = replace(saved.data, partition="file", partition_file=str(tmp_path / "whole" / "partition.csv"))
    layout = lay_out(replace(saved, data=again), dataset)
    assert layout.partition.names == dealt.names
    assert splits_of(layout.partition) == splits_of(dealt)


def test_a_comparison_takes_a_partition_too(tmp_path: Path) -> None:
    dealt = partition_from(["abc"[row % 3] for row in range(240)])
    experiment = make_tiny_experiment(data={"silos": 0}, training={"rounds": 2})
    outcomes = run_grid(
        grid(experiment, ["fedavg"], ["none"], [0], tmp_path), dataset=draw_tiny_dataset(), partition=dealt
    )
    assert [each.failure for each in outcomes] == [""]
    assert read_run(tmp_path / "fedavg" / "none" / "seed-0").silo_names == ["a", "b", "c"]
    other = partition_from(["bca"[row % 3] for row in range(240)])
    with pytest.raises(FedDigError, match="was run with another partition; choose another --out"):
        run_grid(
            grid(experiment, ["fedavg"], ["none"], [0], tmp_path),
            dataset=draw_tiny_dataset(),
            partition=other,
        )


@pytest.mark.parametrize(
    ("silos", "more", "words"),
    [
        (["a"] * 239, {}, "holds 239 places of images, but there are 240 training images"),
        (["a"] * 240, {"groups": ["p"] * 3}, "3 groups for 240 silos"),
        (["a"] * 240, {"splits": ["trian"] * 240}, "unknown split 'trian'; did you mean 'train'"),
        (["a"] * 240, {"splits": ["test"] * 240}, "silo a has no training images among its 240"),
        (["a"] * 240, {"groups": ["p"] * 240, "splits": ["train", "test"] * 120},
         r"training images \d+ and \d+ are of one group, but one is for train and the other for test"),
    ],
)  # fmt: skip
def test_a_wrong_partition_is_refused(silos: list[str], more: dict[str, list[str]], words: str) -> None:
    with pytest.raises(DataError, match=words) as error:
        lay_out(
            make_tiny_experiment(data={"silos": 0}),
            draw_tiny_dataset(),
            partition=partition_from(silos, **more),  # type: ignore[arg-type]
        )
    one_line(error)


def test_a_partition_may_not_split_the_groups_that_the_data_names(tiny_dataset: Dataset) -> None:
    dataset = replace(tiny_dataset, train=replace(tiny_dataset.train, groups=np.arange(240) // 2))
    dealt = partition_from(["a"] * 240, splits=["train", "validation"] * 120)
    with pytest.raises(DataError, match="are of one group"):
        lay_out(make_tiny_experiment(data={"silos": 0}), dataset, partition=dealt)


def test_numbers_stay_numbers_and_are_sorted_as_numbers() -> None:
    dealt = partition_from([row % 11 for row in range(400)])
    assert dealt.names == ()
    assert len(dealt.shares) == 11
    assert partition_from(["10", "9", "x"] * 40).names == ("9", "10", "x")


def test_names_reach_the_page_the_progress_and_the_log(tmp_path: Path) -> None:
    make_hospitals(tmp_path / "photos")
    data = {
        "name": "folder",
        "path": str(tmp_path / "photos"),
        "partition": "folders",
        "silos": 0,
        "image_size": 16,
    }
    experiment = make_tiny_experiment(data=data, absence={"scenario": "forever"})
    console = Console(record=True, width=200)
    run(experiment, tmp_path / "run", progress=ProgressLines(console))
    said = console.export_text()
    assert "round 2: south leaves" in said or "round 2: west leaves" in said
    assert "here: north, south" in said or "here: north, west" in said
    assert "recalled: south" in said or "recalled: west" in said
    assert "silos: north, south, west" in (tmp_path / "run" / "log.txt").read_text(encoding="utf-8")
    assert read_run(tmp_path / "run").silo_names == list(SILOS)
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert all(f">{name}<" in page for name in SILOS)
    rows = (tmp_path / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(rows[0])["present"] == [0, 1, 2], "files keep numbers"


def test_a_partition_with_names_survives_its_file(tmp_path: Path) -> None:
    dealt = partition_from(list(itertools.islice(itertools.cycle(['ü, "a"', "[b]"]), 60)))
    (tmp_path / "partition.csv").write_text(dealt.to_csv(), encoding="utf-8")
    read = Partition.from_csv(tmp_path / "partition.csv")
    assert read.names == dealt.names == ("[b]", 'ü, "a"')
    assert read.to_csv() == dealt.to_csv()
    for wrong, words in (
        ("# silos: [1]", "line 2: not a list of names"),
        ('# silos: ["x"]', "line 2: 1 names for 2"),
    ):
        text = dealt.to_csv().split("\n")
        (tmp_path / "wrong.csv").write_text("\n".join([text[0], wrong, *text[2:]]), encoding="utf-8")
        with pytest.raises(FileFormatError, match=words):
            Partition.from_csv(tmp_path / "wrong.csv")


def test_an_absence_calls_silos_by_their_names() -> None:
    present = np.array([[1, 1, 0], [1, 1, 1]], bool)
    assert Absence(present).events(["north", "south"]) == ["round 3: north leaves"]


def test_a_bar_shows_names_with_brackets_as_they_are() -> None:
    console = Console(force_terminal=True, width=160, file=io.StringIO())
    bar = ProgressBar(console)
    bar.start(make_tiny_experiment(), 0, 2, ["round 2: ward [red] leaves"])
    row = {"present": [1], "recalled": [0], "test_accuracy": 50.0, "seconds_preparing": 0.0}
    bar.round(name_silos(row, ["ward [red]", "ward [blue]"]))
    bar.stop()
    assert isinstance(console.file, io.StringIO)
    said = console.file.getvalue()
    assert "ward [red] leaves" in said
    assert "here: ward [blue]  recalled: ward [red]" in said
