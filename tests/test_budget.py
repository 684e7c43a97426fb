"""A budget of digests is drawn evenly over silos and classes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feddig.core.moderator import draw_fairly
from feddig.seeds import torch_stream

DIGESTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=80)


def counts(values: np.ndarray) -> dict[int, int]:
    found, number = np.unique(values, return_counts=True)
    return dict(zip(found.tolist(), number.tolist(), strict=True))


def check_even(drawn: np.ndarray, all_there: np.ndarray) -> None:
    """Check that counts differ by at most one, except for groups that are used up."""
    given_by, there = counts(drawn), counts(all_there)
    most = max(given_by.values())
    for group, number in there.items():
        assert given_by.get(group, 0) >= min(most - 1, number)


@given(digests=DIGESTS, budget=st.integers(1, 90), seed=st.integers(0, 99))
def test_the_draw_is_even_over_silos_and_over_classes_within_a_silo(
    digests: list[tuple[int, int]], budget: int, seed: int
) -> None:
    silos, classes = (np.array(column) for column in zip(*digests, strict=True))
    drawn = draw_fairly(silos, classes, budget, torch_stream(seed)).numpy()
    assert len(drawn) == min(budget, len(digests)) == len(set(drawn.tolist()))
    check_even(silos[drawn], silos)
    for silo in set(silos[drawn].tolist()):
        check_even(classes[drawn][silos[drawn] == silo], classes[silos == silo])


def test_by_hand() -> None:
    """Silo 0 has nine digests of class 0 and one of class 1, silo 1 two of class 2: six are drawn."""
    silos, classes = np.array([0] * 10 + [1] * 2), np.array([0] * 9 + [1] + [2] * 2)
    for seed in range(20):
        drawn = set(draw_fairly(silos, classes, 6, torch_stream(seed)).tolist())
        assert {9, 10, 11} <= drawn  # the rare class and all digests of silo 1
        assert len(drawn & set(range(9))) == 3


def test_digests_of_one_silo_and_class_have_the_same_chance() -> None:
    silos, classes = np.zeros(6, dtype=int), np.zeros(6, dtype=int)
    times = np.zeros(6)
    for seed in range(3000):
        times[draw_fairly(silos, classes, 2, torch_stream(seed)).numpy()] += 1
    # 1000 are expected with a standard deviation of 26; allow five
    assert np.abs(times - 1000).max() < 130


def test_the_order_is_random_too() -> None:
    silos, classes = np.repeat([0, 1], 50), np.zeros(100, dtype=int)
    first = sum(silos[draw_fairly(silos, classes, 20, torch_stream(seed)).numpy()[0]] for seed in range(400))
    assert 140 < first < 260
