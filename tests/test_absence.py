"""Who is there when: each scenario round by round, and the file that any other absence comes in."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from rich.console import Console

from conftest import make_tiny_experiment
from feddig import Absence, Dataset, draw_absence, run
from feddig.core.absence import PRESETS, SCENARIOS, read_absence
from feddig.errors import DataError, FileFormatError, SettingError
from feddig.experiment.setup import lay_out
from feddig.experiment.toml import keys as setting_keys
from feddig.runs.progress import ProgressLines, describe_events

PAPER = (30, 10, 40, 20)
"""Training samples of four silos; silo 2 is the largest."""


def spans(row: np.ndarray) -> list[tuple[int, int]]:
    """Say when a silo is there, as (from, before)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(int), [0]])))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]


def drawn(scenario: str, *, sizes: tuple[int, ...] = PAPER, rounds: int = 300, **keys: object) -> Absence:
    return draw_absence(scenario, sizes=sizes, rounds=rounds, **keys)  # type: ignore[arg-type]


def presence(scenario: str, **keys: object) -> list[list[tuple[int, int]]]:
    return [spans(row) for row in drawn(scenario, **keys).present]  # type: ignore[arg-type]


def table(*rows: str) -> Absence:
    """A table in a picture: `table("110", "011")`."""
    return Absence(np.array([[cell == "1" for cell in row] for row in rows]))


ALWAYS = [(0, 300)]

# --- the presets in the paper's 300 rounds, four silos


def test_none_everybody_stays() -> None:
    assert presence("none") == [ALWAYS] * 4


def test_temporary_the_largest_is_away_50_to_99() -> None:
    assert presence("temporary") == [ALWAYS, ALWAYS, [(0, 50), (100, 300)], ALWAYS]


def test_forever_the_largest_leaves_at_50() -> None:
    assert presence("forever") == [ALWAYS, ALWAYS, [(0, 50)], ALWAYS]


def test_never_needs_somebody_who_trains() -> None:
    with pytest.raises(SettingError, match="with one silo, never leaves nobody to train"):
        draw_absence("never", sizes=[10], rounds=4)


def test_never_the_largest_sends_its_digest_alone() -> None:
    found = drawn("never")
    assert presence("never") == [ALWAYS, ALWAYS, [], ALWAYS]
    assert found.joined[:, 0].all()
    assert found.away[2].all()
    assert found.first_leave() is None
    assert found.events() == ["round 1: silo 2 sends its digest without training"]


def test_early_silos_leave_at_5_20_and_50_and_the_last_stays() -> None:
    assert presence("early") == [[(0, 5)], [(0, 20)], [(0, 50)], ALWAYS]
    assert spans(drawn("early", rounds=10).present[0]) == [(0, 1)]
    assert drawn("early", sizes=(1,)).present.all()
    assert [spans(row) for row in drawn("early", sizes=(1, 1)).present] == [[(0, 5)], ALWAYS]
    assert [len(drawn("early", sizes=(1,) * 8).here(round)) for round in (0, 5, 20, 50)] == [8, 6, 4, 2]


def test_a_table_with_a_silo_that_hands_in_its_digest_is_read_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("1,1,0,1\n0,d,d,0\n0,d,1,0\n")
    found = read_absence(tmp_path / "table.csv")
    assert found.joined.astype(int).tolist() == [[1, 1, 1, 1], [0, 1, 1, 1], [0, 1, 1, 1]]
    assert found.away.astype(int).tolist() == [[0, 0, 1, 0], [0, 1, 1, 1], [0, 1, 0, 1]]
    (tmp_path / "again.csv").write_text(found.to_csv())
    again = read_absence(tmp_path / "again.csv")
    assert np.array_equal(again.present, found.present)
    assert np.array_equal(again.joined, found.joined)


def test_sequential_one_leaves_at_each_of_four_rounds() -> None:
    assert presence("sequential") == [[(0, 100)], [(0, 150)], [(0, 200)], [(0, 250)]]


def test_groups_the_second_half_joins_when_the_first_leaves() -> None:
    assert presence("groups") == [[(0, 100)], [(0, 100)], [(100, 300)], [(100, 300)]]


def test_arrival_from_50_on_one_more_joins_every_ten_rounds() -> None:
    assert presence("arrival") == [ALWAYS, [(50, 300)], [(60, 300)], [(70, 300)]]


def test_departure_from_50_on_one_more_leaves_every_ten_rounds() -> None:
    assert presence("departure") == [[(0, 50)], [(0, 60)], [(0, 70)], ALWAYS]


def test_round_robin_a_window_of_two_moves_on_every_ten_rounds() -> None:
    found = drawn("round-robin")
    assert [found.here(round) for round in (0, 9, 10, 19, 20, 30, 40, 299)] == [
        [0, 1], [0, 1], [1, 2], [1, 2], [2, 3], [0, 3], [0, 1], [1, 2],
    ]  # fmt: skip


def test_the_largest_is_the_first_of_equals() -> None:
    for scenario in ("temporary", "forever"):
        assert drawn(scenario, sizes=(5, 9, 9)).away[:, 60].tolist() == [False, True, False]


@pytest.mark.parametrize("order", ["index", "size", "random"])
def test_the_largest_is_hit_whatever_the_order(order: str) -> None:
    for scenario in ("temporary", "forever"):
        assert drawn(scenario, order=order, seed=3).away[:, 60].tolist() == [False, False, True, False]


# --- other lengths, other numbers of silos


def test_events_scale_with_the_length_of_the_run() -> None:
    """In a run of 40 rounds, 100, 150, 200 and 250 become 13, 20, 27 and 33."""
    assert presence("sequential", rounds=40) == [[(0, 13)], [(0, 20)], [(0, 27)], [(0, 33)]]
    assert presence("temporary", rounds=40)[2] == [(0, 7), (13, 40)]
    assert presence("forever", rounds=40)[2] == [(0, 7)]
    assert presence("groups", rounds=40)[1:3] == [[(0, 13)], [(13, 40)]]
    assert presence("arrival", rounds=60) == [[(0, 60)], [(10, 60)], [(12, 60)], [(14, 60)]]
    assert presence("sequential", rounds=600) == [[(0, 200)], [(0, 300)], [(0, 400)], [(0, 500)]]


def test_a_half_goes_to_the_even_round_as_round_does() -> None:
    """In 15 rounds, rounds 50, 100 and 150 of 300 are 2.5, 5 and 7.5."""
    assert spans(drawn("forever", rounds=15).present[2]) == [(0, 2)]
    assert drawn("sequential", rounds=15).first_leave() == 5
    assert spans(drawn("sequential", rounds=15).present[1]) == [(0, 8)]


@pytest.mark.parametrize(
    ("silos", "leaves"),
    [
        (8, [100, 100, 150, 150, 200, 200, 250, 250]),
        (5, [100, 100, 150, 200, 250]),
        (3, [100, 150, 200]),
    ],
)
def test_sequential_a_quarter_leaves_at_a_time_until_all_are_gone(silos: int, leaves: list[int]) -> None:
    found = drawn("sequential", sizes=(1,) * silos)
    assert [spans(row) for row in found.present] == [[(0, leave)] for leave in leaves]


def test_round_robin_in_a_short_run_moves_on_every_round() -> None:
    found = drawn("round-robin", sizes=(1, 1, 1), rounds=4)
    assert [found.here(round) for round in range(4)] == [[0, 1], [1, 2], [0, 2], [0, 1]]


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 99), min_size=1, max_size=12),
    rounds=st.integers(1, 320),
    seed=st.integers(0, 2**31),
    order=st.sampled_from(["index", "size", "random"]),
    scenario=st.sampled_from([*PRESETS, "random"]),
)
def test_what_holds_for_every_drawn_table(
    sizes: list[int], rounds: int, seed: int, order: str, scenario: str
) -> None:
    def draw() -> Absence:
        return draw_absence(scenario, sizes=sizes, rounds=rounds, order=order, seed=seed)

    assume(scenario != "never" or len(sizes) > 1)  # which is an error
    found = draw()
    assert found.present.shape == (len(sizes), rounds) == (found.silos, found.rounds)
    assert found.present.dtype == bool
    assert np.array_equal(found.present, draw().present)
    # away means joined and not there; nobody is away who has neither been there nor sent a digest
    assert not (found.away & found.present).any()
    assert not (found.away & ~found.joined).any()
    for silo in range(found.silos):
        there = found.present[silo] if found.hands_in is None else (found.present | found.hands_in)[silo]
        first = next((round for round in range(rounds) if there[round]), rounds)
        assert not found.away[silo, :first].any()
        assert found.joined[silo].tolist() == [round >= first for round in range(rounds)]
    if found.absence_rounds():
        assert found.first_leave() == found.absence_rounds()[0] >= 1
        assert found.first_leave() <= found.last_leave() <= found.absence_rounds()[-1]  # type: ignore[operator]
    else:
        assert found.first_leave() is None
        assert found.last_leave() is None
    if scenario == "sequential" and rounds >= 300:
        assert found.present[:, :100].all()
        assert not found.present[:, 267:].any()
    if scenario == "round-robin":
        assert set(found.present.sum(axis=0)) == {(len(sizes) + 1) // 2}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_with_more_rounds_a_scenario_is_not_drawn_again(
    scenario: str, tiny_dataset: Dataset, tmp_path: Path
) -> None:
    (tmp_path / "mine.csv").write_text("1,1,1,0\n1,0,1,1\nd,d,1,d\n", encoding="utf-8")
    file = {"file": str(tmp_path / "mine.csv")} if scenario == "file" else {}
    rounds = 4 if file else 30
    experiment = make_tiny_experiment(absence={"scenario": scenario, **file}, training={"rounds": rounds})
    drawn = lay_out(experiment, tiny_dataset).absence
    more = lay_out(experiment.with_rounds(2 * rounds), tiny_dataset).absence
    assert more.rounds == 2 * rounds
    assert more.until(rounds).to_csv() == drawn.to_csv()
    for round in range(rounds, 2 * rounds):
        assert more.here(round) == drawn.here(rounds - 1)
    assert (more.first_leave(), more.last_leave()) == (drawn.first_leave(), drawn.last_leave())
    again = experiment.with_rounds(2 * rounds).with_rounds(3 * rounds).with_rounds(rounds)
    assert again == experiment, "nothing is left of the other numbers of rounds"


# --- the order in which silos leave


def leaves(**keys: object) -> list[int]:
    """List the silos in the order in which `departure` takes them, the one that stays last."""
    found = drawn("departure", **keys)  # type: ignore[arg-type]
    return [int(silo) for silo in np.argsort(found.present.sum(axis=1), kind="stable")]


def test_by_index_or_the_largest_first() -> None:
    assert leaves() == leaves(order="index") == [0, 1, 2, 3]
    assert leaves(order="size") == [2, 0, 3, 1]
    assert leaves(order="size", sizes=(7, 9, 7, 9)) == [1, 3, 0, 2]


def test_at_random_but_by_the_seed() -> None:
    orders = [tuple(leaves(order="random", seed=seed)) for seed in range(40)]
    assert orders[7] == tuple(leaves(order="random", seed=7))
    assert all(sorted(order) == [0, 1, 2, 3] for order in orders)
    assert len(set(orders)) > 10


def test_order_counts_for_groups_arrival_and_sequential() -> None:
    assert presence("groups", order="size") == [[(0, 100)], [(100, 300)], [(0, 100)], [(100, 300)]]
    assert presence("arrival", order="size") == [[(50, 300)], [(70, 300)], ALWAYS, [(60, 300)]]
    assert presence("sequential", order="size") == [[(0, 150)], [(0, 250)], [(0, 100)], [(0, 200)]]
    assert drawn("round-robin", order="size").here(0) == [0, 2]


def test_unknown_words_name_the_nearest() -> None:
    with pytest.raises(SettingError, match=r"absence.scenario: 'sequental' .* did you mean 'sequential'"):
        drawn("sequental")
    with pytest.raises(SettingError, match=r"absence.order: 'indx' is not known; did you mean 'index'"):
        drawn("sequential", order="indx")


def test_every_scenario_of_the_settings_is_known_here() -> None:
    assert set(setting_keys()["absence.scenario"].metadata["choices"]) == set(SCENARIOS)


# --- chance


def test_by_chance_everybody_is_there_at_first() -> None:
    found = drawn("random", sizes=(1,) * 50, leave=1.0, return_=0.0)
    assert found.present[:, 0].all()
    assert not found.present[:, 1:].any()


def test_nobody_leaves_by_no_chance_and_nobody_returns_by_none() -> None:
    assert drawn("random", leave=0.0).present.all()
    found = drawn("random", sizes=(1,) * 20, leave=0.5, return_=0.0).present
    assert bool((np.diff(found.astype(int), axis=1) <= 0).all())


def test_leaving_and_returning_for_certain_alternates() -> None:
    found = drawn("random", leave=1.0, return_=1.0, rounds=5)
    assert found.present.astype(int).tolist() == [[1, 0, 1, 0, 1]] * 4


def test_silos_leave_and_return_as_often_as_told() -> None:
    """200 silos over 400 rounds; counts are binomial, six standard deviations are allowed."""
    found = drawn("random", sizes=(1,) * 200, rounds=400, leave=0.1, return_=0.3, seed=1).present
    before, after = found[:, :-1], found[:, 1:]
    for chance, moved, could in (
        (0.1, (before & ~after).sum(), before.sum()),
        (0.3, (~before & after).sum(), (~before).sum()),
    ):
        assert could > 15_000
        assert abs(moved / could - chance) < 6 * math.sqrt(chance * (1 - chance) / could)
    # in the long run a silo is there return / (leave + return) of the time
    assert found[:, 50:].mean() == pytest.approx(0.75, abs=0.02)


def test_silos_come_and_go_each_on_its_own() -> None:
    found = drawn("random", sizes=(1, 1), rounds=2000, leave=0.5, return_=0.5).present
    assert abs(np.corrcoef(found)[0, 1]) < 6 / math.sqrt(2000)


def test_another_seed_is_another_table() -> None:
    assert not np.array_equal(drawn("random", seed=0).present, drawn("random", seed=1).present)


# --- what follows from a table


def test_first_and_last_leave_and_the_absence_phase() -> None:
    """Silo 0 is away in 2 and 3 and leaves again in 6; silo 1 joins in 1; silo 2 never comes."""
    found = table("11001100", "01111111", "00000000")
    assert found.first_leave() == 2
    assert found.last_leave() == 6
    assert found.absence_rounds() == [2, 3, 6, 7]
    assert found.away.astype(int).tolist() == [[0, 0, 1, 1, 0, 0, 1, 1], [0] * 8, [0] * 8]
    assert found.joined.astype(int).tolist() == [[1] * 8, [0] + [1] * 7, [0] * 8]
    assert found.here(0) == [0]
    assert found.here(4) == [0, 1]


def test_events_in_words() -> None:
    assert table("1101", "0110", "1111").events() == [
        "round 2: silo 1 joins",
        "round 3: silo 0 leaves",
        "round 4: silo 0 returns",
        "round 4: silo 1 leaves",
    ]


def test_nobody_leaves_before_anybody_joins() -> None:
    found = table("0011")
    assert found.first_leave() is None
    assert found.last_leave() is None
    assert found.absence_rounds() == []
    assert found.events() == ["round 3: silo 0 joins"]


def test_groups_freeze_after_round_99() -> None:
    found = drawn("groups")
    assert found.first_leave() == found.last_leave() == 100
    assert found.absence_rounds() == list(range(100, 300))


def test_nothing_happens_if_everybody_stays() -> None:
    found = drawn("none")
    assert found.events() == found.absence_rounds() == []


# --- the file


def test_a_table_in_csv() -> None:
    assert table("110", "011").to_csv() == (
        "# feddig availability, format_version 1\nsilo,0,1,2\n0,1,1,0\n1,0,1,1\n"
    )


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 5).flatmap(
        lambda rounds: st.lists(
            st.lists(st.booleans(), min_size=rounds, max_size=rounds), min_size=1, max_size=4
        )
    )
)
def test_a_table_comes_back_from_csv(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[bool]]
) -> None:
    path = tmp_path_factory.mktemp("absence") / "table.csv"
    path.write_text(Absence(np.array(rows)).to_csv())
    back = read_absence(path, silos=len(rows), rounds=len(rows[0]))
    assert back.present.tolist() == rows
    assert back.to_csv() == path.read_text()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "table.csv"


def from_file(path: Path, silos: int = 2, rounds: int = 3) -> Absence:
    return draw_absence("file", sizes=[5] * silos, rounds=rounds, file=path)


@pytest.mark.parametrize(
    "text",
    [
        "1,1,0\n0,1,1\n",
        "silo,0,1,2\n0,1,1,0\n1,0,1,1\n",
        "# by hand\n\n 1, 1,0\r\n0 ,1,1",
        "\ufeff1,1,0\n0,1,1\n",
    ],
)
def test_a_table_by_hand_may_be_bare(path: Path, text: str) -> None:
    path.write_bytes(text.encode())
    assert from_file(path).present.astype(int).tolist() == [[1, 1, 0], [0, 1, 1]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1,1,0\n", r"has 1 silos, but data.silos is 2; change one of them"),
        (
            "1,1\n0,1\n",
            r"has 2 rounds, but absence\.rounds \(left out: training\.rounds\) is 3; change one of them",
        ),
        ("1,1,0\n0,2,1\n", r"silo 1, round 2: '2' is neither 0, 1 nor d"),
        ("1,1,0\n0,,1\n", r"silo 1, round 2: '' is neither 0, 1 nor d"),
        ("1,1,yes\n0,0,1\n", r"silo 0, round 3: 'yes' is neither 0, 1 nor d"),
        ("1,1,0\n0,1\n", r"rows have \[2, 3\] rounds; give every silo the same number"),
        ("silo,0,1,2\n0\n1\n", r"rows have \[0\] rounds"),
        ("silo,0,1,2\n0,1,1,0\n2,0,1,1\n", r"row 1 is of silo '2'; list silos 0, 1, 2 ... in order"),
        ("", "holds no silo"),
        ("silo,0,1,2\n", "holds no silo"),
        ("# feddig availability, format_version 1\n", "holds no silo"),
        (
            "# feddig availability, format_version 0\n1,1,0\n0,1,1\n",
            r"another format version \(.*version 0\)",
        ),
    ],
)
def test_a_wrong_table_is_refused_in_one_line(path: Path, text: str, message: str) -> None:
    path.write_text(text)
    with pytest.raises(FileFormatError, match=message) as error:
        from_file(path)
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)


def test_a_missing_table_a_folder_and_a_picture_are_refused(path: Path, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="no such availability file"):
        from_file(path)
    with pytest.raises(FileFormatError, match="cannot be read"):
        from_file(tmp_path)
    path.write_bytes(b"\x89PNG\xff\xfe")
    with pytest.raises(FileFormatError, match="cannot be read"):
        from_file(path)


def test_the_scenario_file_needs_a_file() -> None:
    with pytest.raises(SettingError, match=r'absence.file: the scenario "file" needs a CSV'):
        drawn("file")


def test_a_very_long_cell_is_refused(path: Path) -> None:
    path.write_text("1" * 200_000)
    with pytest.raises(FileFormatError, match="not a CSV file"):
        from_file(path)


# --- absence that a short run rounds away


def test_a_silo_that_is_never_there_is_told_first() -> None:
    """The scenario forever of two rounds: round(50 * 2 / 300) is round 0."""
    found = drawn("forever", rounds=2)
    silos = found.never_there()
    assert len(silos) == 1
    assert found.events() == [f"silo {silos[0]} is absent in all 2 rounds"]
    assert found.first_leave() is None
    assert drawn("forever", rounds=1).events() == [f"silo {silos[0]} is absent in the only round"]
    assert drawn("never").never_there() == [], "it sends its digest"


@pytest.mark.parametrize(
    ("scenario", "rounds", "said"),
    [
        ("none", 9, "every silo stays"),
        ("temporary", 1, "every silo stays: temporary has no absence in 1 round; use more training.rounds"),
        ("random", 2, "every silo stays: random has no absence in 2 rounds"),
    ],
)
def test_a_scenario_without_absence_is_told(scenario: str, rounds: int, said: str) -> None:
    experiment = make_tiny_experiment(absence={"scenario": scenario}, training={"rounds": rounds})
    assert describe_events([], experiment) == said
    assert describe_events(["round 2: silo 0 leaves"], experiment) == "round 2: silo 0 leaves"


def test_a_run_of_two_rounds_says_who_was_never_there(tmp_path: Path, tiny_dataset: Dataset) -> None:
    experiment = make_tiny_experiment(
        absence={"scenario": "forever"}, training={"rounds": 2}, algorithm={"name": "fedavg"}
    )
    console = Console(record=True, width=200)
    run(experiment, tmp_path / "run", dataset=tiny_dataset, progress=ProgressLines(console))
    said = console.export_text()
    assert "is absent in all 2 rounds" in said
    assert "stays" not in said
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "was absent in all rounds. The others stayed." in page
    assert "All 3 silos stayed" not in page


def test_a_run_in_which_nobody_would_train_names_its_remedy(tiny_dataset: Dataset) -> None:
    experiment = make_tiny_experiment(
        data={"silos": 1}, absence={"scenario": "forever"}, training={"rounds": 2}
    )
    with pytest.raises(DataError, match=r"nobody is ever there.*use more training\.rounds"):
        lay_out(experiment, tiny_dataset)
