"""The accuracy measures of a run, each computed by hand."""

from pathlib import Path

import numpy as np
import pytest

from conftest import make_tiny_experiment
from feddig import Absence, Dataset, draw_absence
from feddig.experiment.setup import lay_out
from feddig.report.measures import MEASURES, accuracy_measures, class_measures, class_summary, wilson_interval
from feddig.report.read_run import Run


def table(*rows: str) -> Absence:
    return Absence(np.array([[cell == "1" for cell in row] for row in rows]))


def test_a_short_curve_by_hand() -> None:
    """Silo 0 is absent in rounds 2, 3 and 4; the curve falls and recovers."""
    measures = accuracy_measures([10.0, 50.0, 20.0, 40.0, 30.0, 45.0], table("110001", "111111"))
    assert measures == {
        "final": 45.0,
        "best": 50.0,
        "absence_mean": (20 + 40 + 30) / 3,
        "absence_auc": ((20 + 40) / 2 + (40 + 30) / 2) / 2,
        "mean_251_259": None,
        "mean_250_299": None,
        "after_9": None,
        "after_50": None,
        "after_200": None,
        "frozen_own": 50.0,
        "frozen_own_mean_10": 50.0,
    }
    assert tuple(measures) == MEASURES


def test_measures_of_absence_are_none_if_no_silo_leaves() -> None:
    measures = accuracy_measures([10.0, 20.0], table("11", "01"))
    assert measures["final"] == measures["best"] == 20.0
    assert all(measures[name] is None for name in MEASURES[2:])


def test_one_round_of_absence_is_its_own_area() -> None:
    measures = accuracy_measures([10.0, 20.0, 30.0], table("110"))
    assert measures["absence_mean"] == measures["absence_auc"] == 30.0
    assert measures["frozen_own"] == 20.0


def test_a_flat_curve_has_its_own_height_as_area() -> None:
    measures = accuracy_measures([60.0] * 10, table("1111100000"))
    assert measures["absence_auc"] == measures["absence_mean"] == pytest.approx(60.0)


ROUNDS = [float(round) for round in range(300)]
"""A curve whose accuracy is the round number, so that each measure shows its round."""


def test_three_hundred_rounds_of_sequential_leaving() -> None:
    """The first silo leaves at 100, the last at 250; round 300, 50 rounds later, is never reached."""
    measures = accuracy_measures(ROUNDS, draw_absence("sequential", sizes=[1] * 4, rounds=300))
    assert measures == {
        "final": 299.0,
        "best": 299.0,
        "absence_mean": 199.5,
        "absence_auc": 199.5,
        "mean_251_259": 255.0,
        "mean_250_299": 274.5,
        "after_9": 259.0,
        "after_50": None,
        "after_200": None,
        "frozen_own": 99.0,
        "frozen_own_mean_10": 94.5,
    }


def test_k_after_counts_from_the_last_leave() -> None:
    """With groups, all silos leave at 100; with forever, the largest leaves at 50; round 300 is never reached."""
    groups = accuracy_measures(ROUNDS, draw_absence("groups", sizes=[1] * 4, rounds=300))
    forever = accuracy_measures(ROUNDS, draw_absence("forever", sizes=[1] * 4, rounds=300))
    departure = accuracy_measures(ROUNDS, draw_absence("departure", sizes=[1] * 4, rounds=300))
    assert [groups[name] for name in ("after_9", "after_50", "after_200")] == [109.0, 150.0, None]
    assert [forever[name] for name in ("after_9", "after_50", "after_200")] == [59.0, 100.0, 250.0]
    assert [departure[name] for name in ("after_9", "frozen_own")] == [79.0, 49.0]


def test_the_last_round_that_is_reached_counts() -> None:
    """Silo 0 leaves at round 1: 9 rounds later is round 10, which exists with 11 rounds and not with 10."""
    assert accuracy_measures(ROUNDS[:11], table("1" + "0" * 10))["after_9"] == 10.0
    assert accuracy_measures(ROUNDS[:10], table("1" + "0" * 9))["after_9"] is None


@pytest.mark.parametrize(
    ("rounds", "mean_251_259", "mean_250_299"),
    [(259, None, None), (260, 255.0, None), (299, 255.0, None), (300, 255.0, 274.5)],
)
def test_means_over_late_rounds_need_all_of_them(
    rounds: int, mean_251_259: float | None, mean_250_299: float | None
) -> None:
    measures = accuracy_measures(ROUNDS[:rounds], table("1" * rounds))
    assert measures["mean_251_259"] == mean_251_259
    assert measures["mean_250_299"] == mean_250_299


def test_away_rounds_before_joining_do_not_count() -> None:
    """Silo 1 joins at 2 and leaves at 4."""
    measures = accuracy_measures([10.0, 20.0, 30.0, 40.0, 50.0], table("11111", "00110"))
    assert measures["absence_mean"] == 50.0
    assert measures["frozen_own"] == 40.0


def test_frozen_is_before_the_first_leave_even_if_the_silo_returns() -> None:
    measures = accuracy_measures([10.0, 20.0, 30.0, 40.0, 50.0], table("10110", "11111"))
    assert measures["frozen_own"] == 10.0


@pytest.mark.parametrize(("right", "images"), [(8, 10), (1, 3), (931, 1000), (50, 100)])
def test_the_ends_of_an_interval_are_1_96_deviations_away(right: int, images: int) -> None:
    """By its definition: if an end were the true share, the measured one would be this far from it."""
    for end in wilson_interval(100 * right / images, images):
        true = end / 100
        deviation = (true * (1 - true) / images) ** 0.5
        assert abs(right / images - true) / deviation == pytest.approx(1.959964, abs=1e-5)


def test_an_interval_stays_within_0_and_100() -> None:
    low, high = wilson_interval(100.0, 10)
    assert (low, high) == (pytest.approx(100 * 10 / (10 + 1.959964**2)), 100.0)
    low, high = wilson_interval(0.0, 10)
    assert (low, high) == (0.0, pytest.approx(100 * 1.959964**2 / (10 + 1.959964**2)))


def test_intervals_of_means_hold_the_truth_in_95_of_100_test_sets() -> None:
    """The truth is that of the distribution that test sets of 300 images are drawn from."""
    stream = np.random.default_rng(0)
    truth = np.array([[0.45, 0.04, 0.01], [0.05, 0.2, 0.05], [0.02, 0.03, 0.15]])
    exact = class_measures(truth * 1e9)
    hits = dict.fromkeys(("accuracy", "balanced_accuracy", "macro_f1"), 0)
    for _ in range(2000):
        drawn = class_measures(stream.multinomial(300, truth.ravel()).reshape(3, 3))
        for name in hits:
            low, high = drawn["intervals"][name]
            assert low <= drawn[name] <= high
            hits[name] += low <= exact[name] <= high
    # the exact share lies within 1.5 points of what 2,000 draws show
    assert all(1870 <= count <= 1930 for count in hits.values()), hits


def test_intervals_at_the_ends_stay_within_0_and_100() -> None:
    found = class_measures(np.diag([10, 10, 0]))["intervals"]
    assert found["macro_f1"] is None
    low, high = found["balanced_accuracy"]
    assert 72.2 < low < 100 == high  # each class has 72.2 to 100
    one_class = class_measures(np.array([[7, 3], [0, 0]]))["intervals"]
    assert one_class["balanced_accuracy"] == pytest.approx(one_class["accuracy"])


def test_the_summary_of_classes_is_that_of_the_last_round_and_of_the_one_before_the_first_leave() -> None:
    rows = [
        {
            "test_accuracy": 50.0,
            "class_accuracy": [100.0, 0.0, None],
            "macro_f1": 33.0,
            "balanced_accuracy": 50.0,
        },
        {
            "test_accuracy": 75.0,
            "class_accuracy": [50.0, 100.0, None],
            "macro_f1": 73.0,
            "balanced_accuracy": 75.0,
            "auc": 0.75,
            "intervals": {
                "accuracy": [30.0, 95.4],
                "auc": [0.5, 1.0],
                "balanced_accuracy": [40.0, 92.0],
                "macro_f1": None,
            },
        },
    ]
    found = class_summary(rows, [2, 2, 0], first_leave=1)
    assert (found["macro_f1"], found["balanced_accuracy"], found["auc"]) == (73.0, 75.0, 0.75)
    assert found["intervals"]["auc"] == [0.5, 1.0]
    assert found["class_accuracy"] == {"final": [50.0, 100.0, None], "frozen_own": [100.0, 0.0, None]}
    assert found["intervals"]["accuracy"] == [30.0, 95.4]
    assert (found["intervals"]["balanced_accuracy"], found["intervals"]["macro_f1"]) == ([40.0, 92.0], None)
    half, whole, none = found["intervals"]["class_accuracy"]
    assert half == pytest.approx(wilson_interval(50.0, 2), abs=5e-4)
    assert whole == [pytest.approx(100 * 2 / (2 + 1.959964**2), abs=5e-4), 100.0]
    assert none is None
    assert class_summary(rows, [2, 2, 0], first_leave=None)["class_accuracy"]["frozen_own"] is None


def test_rows_of_an_older_release_have_no_classes() -> None:
    found = class_summary([{"test_accuracy": 50.0}, {"test_accuracy": 60.0}], [5, 5], first_leave=1)
    assert found["class_accuracy"] == {"final": None, "frozen_own": None}
    assert found["intervals"] == {
        "accuracy": pytest.approx(wilson_interval(60.0, 10), abs=5e-4),
        "balanced_accuracy": None,
        "macro_f1": None,
        "auc": None,
        "class_accuracy": None,
    }
    assert found["macro_f1"] is found["balanced_accuracy"] is found["auc"] is None


def test_the_mean_before_the_first_leave_stays_when_a_run_gets_more_rounds(tiny_dataset: Dataset) -> None:
    """It averages one round of 30, and of 60 it would be two; the page computes what the summary has."""
    experiment = make_tiny_experiment(training={"rounds": 30})
    extended = experiment.with_rounds(60)
    absence = lay_out(extended, tiny_dataset).absence
    assert (absence.rounds, absence.first_leave()) == (60, 10)
    measures = accuracy_measures(ROUNDS[:60], absence, extended.scenario_rounds)
    assert measures["frozen_own_mean_10"] == measures["frozen_own"] == 9.0
    assert accuracy_measures(ROUNDS[:60], absence)["frozen_own_mean_10"] == 8.5
    settings = {"absence": {"rounds": extended.absence.rounds}, "training": {"rounds": 60}}
    rows = [{"test_accuracy": accuracy} for accuracy in ROUNDS[:60]]
    assert Run(Path(), settings, absence, rows, summary={}).measures == measures
