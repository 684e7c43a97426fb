"""Partitions: every sample in one place, in the given sizes and with the given skew."""

import logging
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feddig.data import Partition, Share, draw_partition
from feddig.data.partition import SPLITS
from feddig.errors import DataError, FileFormatError, SettingError

METHODS = ("dirichlet", "iid", "shards")


def even_labels(classes: int, each: int) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(classes), each))


def all_of(share: Share) -> np.ndarray:
    return np.concatenate([share.train, share.validation, share.test])


def classes_of(share: Share, labels: np.ndarray) -> set[int]:
    return set(labels[all_of(share)].tolist())


def same(first: Partition, second: Partition) -> bool:
    return len(first.shares) == len(second.shares) and all(
        np.array_equal(getattr(one, split), getattr(other, split))
        for one, other in zip(first.shares, second.shares, strict=True)
        for split in SPLITS
    )


# --- what holds for every partition


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=40, max_size=300),
    silos=st.integers(1, 5),
    method=st.sampled_from(METHODS),
    skew=st.floats(0.3, 100),
    split=st.sampled_from([(0.8, 0.1, 0.1), (1.0, 0.0, 0.0), (0.34, 0.33, 0.33), (0.02, 0.49, 0.49)]),
    seed=st.integers(0, 2**31),
)
def test_every_sample_is_in_exactly_one_place(
    labels: list[int],
    silos: int,
    method: str,
    skew: float,
    split: tuple[float, float, float],
    seed: int,
) -> None:
    known = np.array(labels)
    drawn = draw_partition(
        known, silos=silos, method=method, skew=skew, split=split, min_samples=1, seed=seed
    )
    assert len(drawn.shares) == silos
    everything = np.concatenate([all_of(share) for share in drawn.shares])
    assert sorted(everything.tolist()) == list(range(len(labels)))
    for share in drawn.shares:
        count = len(share)
        assert count == len(all_of(share)) >= 1
        assert len(share.train) >= 1
        assert abs(len(share.validation) - split[1] * count) <= 1
        assert abs(len(share.test) - split[2] * count) <= 1
        for part in (share.train, share.validation, share.test):
            assert part.dtype == np.int64
            assert part.tolist() == sorted(part.tolist())


@settings(max_examples=30, deadline=None)
@given(method=st.sampled_from(METHODS), seed=st.integers(0, 2**31))
def test_the_seed_alone_decides(method: str, seed: int) -> None:
    labels = even_labels(10, 40)
    first = draw_partition(labels, silos=4, method=method, skew=1.0, min_samples=4, seed=seed)
    again = draw_partition(labels, silos=4, method=method, skew=1.0, min_samples=4, seed=seed)
    other = draw_partition(labels, silos=4, method=method, skew=1.0, min_samples=4, seed=seed + 1)
    assert same(first, again)
    assert first.redraws == again.redraws
    assert not same(first, other)


@pytest.mark.parametrize("method", METHODS)
def test_the_splits_are_eighty_ten_ten(method: str) -> None:
    drawn = draw_partition(even_labels(10, 200), silos=4, method=method, skew=1.0)
    for share in drawn.shares:
        count = len(share)
        assert len(share.validation) == round(count * 0.1)
        assert len(share.test) == round(count * 0.1)
        assert len(share.train) == count - len(share.validation) - len(share.test)


def test_the_splits_are_random_within_a_silo() -> None:
    """Neither the first nor the last samples of a silo, and every class in each split."""
    labels = even_labels(2, 1000)
    share = draw_partition(labels, silos=1).shares[0]
    assert 600 < share.validation.mean() < 1400
    assert 600 < share.test.mean() < 1400
    assert 60 < labels[share.test].sum() < 140


@pytest.mark.parametrize("method", METHODS)
def test_one_silo_has_everything(method: str) -> None:
    drawn = draw_partition(even_labels(3, 30), silos=1, method=method)
    assert len(drawn.shares[0]) == 90


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_tiny_silo_still_trains(count: int) -> None:
    split = (0.02, 0.49, 0.49)
    drawn = draw_partition(np.zeros(count, np.int64), silos=1, split=split, min_samples=1)
    assert len(drawn.shares[0].train) == 1
    assert len(drawn.shares[0]) == count


# --- the three methods


@settings(max_examples=40, deadline=None)
@given(count=st.integers(20, 400), silos=st.integers(1, 20), seed=st.integers(0, 1000))
def test_iid_is_even(count: int, silos: int, seed: int) -> None:
    drawn = draw_partition(np.zeros(count, np.int64), silos=silos, method="iid", min_samples=1, seed=seed)
    sizes = [len(share) for share in drawn.shares]
    assert max(sizes) - min(sizes) <= 1
    assert drawn.redraws == 0


def test_iid_mixes_the_classes() -> None:
    labels = np.repeat(np.arange(10), 200)
    for share in draw_partition(labels, silos=4, method="iid").shares:
        counts = np.bincount(labels[all_of(share)], minlength=10)
        assert counts.min() > 20
        assert counts.max() < 85


@settings(max_examples=40, deadline=None)
@given(silos=st.integers(2, 10), seed=st.integers(0, 1000))
def test_shards_give_a_silo_few_classes(silos: int, seed: int) -> None:
    """A shard is half a silo's share and spans few classes; two shards span at most twice as many."""
    labels = even_labels(10, 40)
    drawn = draw_partition(labels, silos=silos, method="shards", min_samples=1, seed=seed)
    spanned = int(np.ceil(10 / (2 * silos))) + 1
    for share in drawn.shares:
        assert len(classes_of(share, labels)) <= 2 * spanned
    sizes = [len(share) for share in drawn.shares]
    assert max(sizes) - min(sizes) <= 2


def test_shards_that_fit_the_classes_give_each_silo_two_at_most() -> None:
    labels = even_labels(10, 100)
    drawn = draw_partition(labels, silos=5, method="shards")
    assert all(len(classes_of(share, labels)) <= 2 for share in drawn.shares)
    assert {label for share in drawn.shares for label in classes_of(share, labels)} == set(range(10))


def test_a_smaller_skew_is_more_skewed() -> None:
    labels = even_labels(10, 200)

    def unevenness(skew: float) -> float:
        """The share of the largest silo in a class, averaged over the classes and some seeds."""
        found = []
        for seed in range(10):
            drawn = draw_partition(labels, silos=5, skew=skew, min_samples=1, seed=seed)
            counts = np.array([np.bincount(labels[all_of(share)], minlength=10) for share in drawn.shares])
            found.append((counts.max(axis=0) / counts.sum(axis=0)).mean())
        return float(np.mean(found))

    measured = [unevenness(skew) for skew in (0.01, 0.1, 1.0, 100.0)]
    assert measured == sorted(measured, reverse=True)
    assert measured[0] > 0.95
    assert measured[-1] < 0.3


def test_dirichlet_proportions_have_the_right_spread() -> None:
    """A silo's share p of a class has mean 1/k and variance (k - 1) / (k^2 (k skew + 1))."""
    silos, skew = 4, 0.5
    shares = []
    labels = even_labels(10, 100)
    for seed in range(60):
        drawn = draw_partition(labels, silos=silos, skew=skew, min_samples=1, seed=seed)
        shares += [np.bincount(labels[all_of(share)], minlength=10) / 100 for share in drawn.shares]
    found = np.concatenate(shares)
    assert found.mean() == pytest.approx(1 / silos)
    assert found.var() == pytest.approx((silos - 1) / (silos**2 * (silos * skew + 1)), rel=0.1)


def test_dirichlet_distributes_a_class_in_random_order() -> None:
    drawn = draw_partition(np.zeros(1000, np.int64), silos=2, skew=10.0)
    assert all(400 < all_of(share).mean() < 600 for share in drawn.shares)


def test_a_silo_may_have_a_single_class() -> None:
    labels = even_labels(10, 100)
    found = [
        classes_of(share, labels)
        for seed in range(5)
        for share in draw_partition(labels, silos=5, skew=1e-3, min_samples=1, seed=seed).shares
    ]
    assert any(len(classes) == 1 for classes in found)


@pytest.mark.parametrize("skew", [5e-324, 1e-300, 1e-12])
def test_a_vanishing_skew_puts_each_class_into_one_silo(skew: float) -> None:
    labels = even_labels(10, 20)
    drawn = draw_partition(labels, silos=3, skew=skew, min_samples=1)
    counts = np.array([np.bincount(labels[all_of(share)], minlength=10) for share in drawn.shares])
    assert set(counts.ravel().tolist()) == {0, 20}
    assert counts.sum() == 200


def test_an_enormous_skew_is_even() -> None:
    drawn = draw_partition(even_labels(10, 40), silos=4, skew=1e308, min_samples=1)
    assert [len(share) for share in drawn.shares] == [100] * 4


@pytest.mark.parametrize("broken", [np.full(3, np.nan), np.zeros(3)], ids=["nan", "zeros"])
def test_a_failed_draw_of_proportions_gives_a_class_to_one_silo(
    broken: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether a tiny skew fails in NumPy depends on its version, so a failure is simulated."""

    class Failing(np.random.Generator):
        def dirichlet(self, alpha: object, size: object = None) -> np.ndarray:
            return broken

    def failing_stream(*names: object) -> Failing:
        return Failing(np.random.PCG64(sum(name for name in names if isinstance(name, int))))

    monkeypatch.setattr("feddig.data.partition.numpy_stream", failing_stream)
    labels = even_labels(10, 20)
    drawn = draw_partition(labels, silos=3, skew=1e-9, min_samples=1)
    counts = np.array([np.bincount(labels[all_of(share)], minlength=10) for share in drawn.shares])
    assert (counts.sum(axis=0) == 20).all()
    assert set(counts.ravel().tolist()) == {0, 20}


# --- drawing again


@pytest.mark.parametrize("seed", range(2))
def test_redraws_reach_the_least_size_and_are_counted_and_logged(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    labels = even_labels(10, 100)
    first = draw_partition(labels, silos=5, skew=0.1, min_samples=1, seed=seed)
    beyond = min(len(share) for share in first.shares) + 1
    with caplog.at_level(logging.INFO, logger="feddig"):
        drawn = draw_partition(labels, silos=5, skew=0.1, min_samples=beyond, seed=seed)
    assert min(len(share) for share in drawn.shares) >= beyond
    assert drawn.redraws > first.redraws == 0
    assert len(caplog.records) == drawn.redraws


def test_a_draw_that_is_good_at_once_is_not_redrawn(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="feddig"):
        drawn = draw_partition(even_labels(10, 100), silos=5, skew=100.0)
    assert drawn.redraws == 0
    assert not caplog.records


def test_after_a_hundred_redraws_the_remedies_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """Two classes cannot reach three silos when each class stays whole."""
    with (
        caplog.at_level(logging.INFO, logger="feddig"),
        pytest.raises(
            DataError, match="after 100 redraws the smallest silo had 0 samples at best, not 10"
        ) as error,
    ):
        draw_partition(even_labels(2, 100), silos=3, skew=1e-9, min_samples=10)
    assert len(caplog.records) == 100
    for setting in ("data.silos", "data.skew", "data.min_samples"):
        assert setting in str(error.value)


def test_the_error_tells_the_best_that_was_reached() -> None:
    with pytest.raises(DataError) as error:
        draw_partition(even_labels(10, 20), silos=5, skew=0.5, min_samples=39)
    best = int(str(error.value).split("smallest silo had ")[1].split()[0])
    assert 0 < best < 39
    drawn = draw_partition(even_labels(10, 20), silos=5, skew=0.5, min_samples=best)
    assert min(len(share) for share in drawn.shares) == best
    with pytest.raises(DataError, match=f"had {best} samples at best"):
        draw_partition(even_labels(10, 20), silos=5, skew=0.5, min_samples=best + 1)


def test_no_silo_holds_less_than_its_smallest_share() -> None:
    """A tenth of 500 samples is 50; of this seed the first draw falls short, and the next is kept."""
    labels = even_labels(10, 50)
    smallest = [
        min(len(share) for share in draw_partition(labels, silos=4, min_samples=1, seed=seed).shares)
        for seed in range(20)
    ]
    seed = next(seed for seed, size in enumerate(smallest) if size < 50)
    drawn = draw_partition(labels, silos=4, min_samples=1, min_share=0.1, seed=seed)
    assert min(len(share) for share in drawn.shares) >= 50
    assert drawn.redraws > 0
    good = next(seed for seed, size in enumerate(smallest) if size >= 50)
    kept = draw_partition(labels, silos=4, min_samples=1, min_share=0.1, seed=good)
    assert kept.to_csv() == draw_partition(labels, silos=4, min_samples=1, seed=good).to_csv()


def test_a_smallest_share_that_is_out_of_reach_is_refused_by_its_name() -> None:
    with pytest.raises(DataError, match=r"4 silos at most 25 each, not 30; .*smaller data\.min_share"):
        draw_partition(even_labels(10, 10), silos=4, min_samples=1, min_share=0.3)
    with pytest.raises(DataError, match=r"not 25; .*smaller data\.min_share"):
        draw_partition(even_labels(2, 50), silos=4, skew=1e-9, min_samples=1, min_share=0.25)
    with pytest.raises(SettingError, match=r"data\.min_share: 1\.5 is no share"):
        draw_partition(even_labels(2, 50), silos=4, min_share=1.5)


@pytest.mark.parametrize("method", METHODS)
def test_more_silos_than_samples_is_refused_at_once(method: str, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="feddig"),
        pytest.raises(DataError, match=r"9 samples .* 10 silos; .*data\.silos"),
    ):
        draw_partition(np.zeros(9, np.int64), silos=10, method=method, min_samples=1)
    assert not caplog.records


def test_a_least_size_beyond_an_even_share_is_refused_at_once(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="feddig"),
        pytest.raises(DataError, match=r"at most 25 each, not 26; .*data\.min_samples"),
    ):
        draw_partition(np.zeros(100, np.int64), silos=4, min_samples=26)
    assert not caplog.records
    assert len(draw_partition(np.zeros(100, np.int64), silos=4, method="iid", min_samples=25).shares) == 4


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"silos": 0}, r"^data\.silos: "),
        ({"silos": -3}, r"^data\.silos: "),
        ({"skew": 0.0}, r"^data\.skew: "),
        ({"skew": -1.0}, r"^data\.skew: "),
        ({"skew": float("nan")}, r"^data\.skew: "),
        ({"skew": float("inf")}, r"^data\.skew: "),
        ({"split": (0.8, 0.1, 0.2)}, r"^data\.split: "),
        ({"split": (1.2, -0.1, -0.1)}, r"^data\.split: "),
        ({"split": (0.0, 0.5, 0.5)}, r"^data\.split: .*training share"),
        ({"split": (0.5, 0.5)}, r"^data\.split: "),
        ({"split": (float("nan"), 0.5, 0.5)}, r"^data\.split: "),
        ({"min_samples": 0}, r"^data\.min_samples: "),
        ({"method": "shard"}, r"^data\.partition: unknown method 'shard'; did you mean 'shards'\?"),
    ],
)
def test_bad_settings_are_named(changed: dict[str, object], words: str) -> None:
    with pytest.raises(SettingError, match=words) as error:
        draw_partition(even_labels(2, 100), **({"silos": 2} | changed))  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


# --- the file


@settings(max_examples=30, deadline=None)
@given(method=st.sampled_from(METHODS), silos=st.integers(1, 4), seed=st.integers(0, 1000))
def test_a_partition_survives_the_file(
    method: str, silos: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    drawn = draw_partition(even_labels(5, 20), silos=silos, method=method, skew=1.0, min_samples=2, seed=seed)
    path = tmp_path_factory.mktemp("partition") / "partition.csv"
    path.write_text(drawn.to_csv())
    read = Partition.from_csv(path)
    assert same(drawn, read)
    assert all(
        part.dtype == np.int64
        for share in read.shares
        for part in (share.train, share.validation, share.test)
    )
    assert read.to_csv() == drawn.to_csv()


def test_the_file_has_a_row_for_each_sample_in_order() -> None:
    shares = (
        Share(np.array([0, 3]), np.array([5]), np.array([1])),
        Share(np.array([2]), np.array([], np.int64), np.array([4])),
    )
    assert Partition(shares, redraws=7).to_csv() == (
        "# feddig partition, format_version 1\nindex,silo,split\n"
        "0,0,train\n1,0,test\n2,1,train\n3,0,train\n4,1,test\n5,0,validation\n"
    )


GOOD = "# feddig partition, format_version 1\nindex,silo,split\n0,0,train\n1,0,test\n2,1,train\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1: not a FedDig partition"),
        ("index,silo,split\n0,0,train\n", "line 1: not a FedDig partition"),
        (GOOD.replace("version 1", "version 2"), "format_version 2"),
        (GOOD.replace("index,silo,split", "index;silo;split"), "line 2: "),
        ("# feddig partition, format_version 1\n", "line 2: "),
        ("# feddig partition, format_version 1\nindex,silo,split\n", "line 3: no samples"),
        (GOOD[:-3], "line 5: the file ends inside a line"),
        (GOOD[:-1], "line 5: the file ends inside a line"),
        (GOOD.replace("1,0,test", "1,0"), "line 4: "),
        (GOOD.replace("1,0,test", "1,0,test,"), "line 4: "),
        (GOOD.replace("1,0,test", "1,-1,test"), "line 4: "),
        (GOOD.replace("1,0,test", "1,a,test"), "line 4: "),
        (GOOD.replace("1,0,test", "1,²,test"), "line 4: "),
        (GOOD.replace("1,0,test", f"1,{'9' * 5000},test"), "line 4: "),
        (GOOD.replace("1,0,test", ""), "line 4: "),
        (GOOD.replace("1,0,test", "0,0,test"), "line 4: sample 0 where 1 is expected"),
        (GOOD.replace("1,0,test\n", ""), "line 4: sample 2 where 1 is expected"),
        (GOOD.replace("1,0,test", "1,0,tests"), "line 4: unknown split 'tests'; did you mean 'test'"),
        (GOOD.replace("2,1,train", "2,2,train"), "line 5: .*silo 1 has no training samples"),
        (GOOD.replace("2,1,train", "2,1,test"), "line 5: .*silo 1 has no training samples"),
        (GOOD.replace("2,1,train", "2,999999999999,train"), "line 5: .*silo 1 has no training samples"),
    ],
)
def test_a_damaged_file_is_named_with_the_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "partition.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FileFormatError, match=words) as error:
        Partition.from_csv(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


def test_the_undamaged_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "partition.csv"
    path.write_text(GOOD)
    read = Partition.from_csv(path)
    assert [len(share) for share in read.shares] == [2, 1]
    assert read.redraws == 0


def test_a_file_that_is_missing_or_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"nowhere\.csv: no such file"):
        Partition.from_csv(tmp_path / "nowhere.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileFormatError, match=r"bytes\.csv: not a readable text file"):
        Partition.from_csv(tmp_path / "bytes.csv")


def test_a_file_with_windows_line_ends_is_read(tmp_path: Path) -> None:
    path = tmp_path / "partition.csv"
    path.write_bytes(GOOD.replace("\n", "\r\n").encode())
    assert [len(share) for share in Partition.from_csv(path).shares] == [2, 1]
