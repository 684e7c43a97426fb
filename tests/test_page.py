"""The report page as text: known runs, damaged runs, and names that contain markup."""

import json
import re
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import draw_tiny_dataset
from feddig.data.partition import draw_partition
from feddig.errors import FedDigError
from feddig.experiment.toml import experiment_from_table
from feddig.files import write_tensors
from feddig.report.grouping import group_runs, write_headline
from feddig.report.html_parts import json_block
from feddig.report.measures import wilson_interval
from feddig.report.page import build_page, describe_results, write_report
from feddig.report.page_data import split_into_periods
from feddig.report.pictures import read_class_pictures
from feddig.report.read_run import read_runs, repeat_runs, to_toml
from feddig.report.run_files import read_classes
from feddig.runs.outcome import write_class_facts
from folders import error_line, run_feddig
from report_folders import page_data, write_folder, write_grid

LEAVING = ["1100", "1111"]
HOSTILE = """</script><script>alert(1)</script><img src=x onerror=alert(1)>"'&"""


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a comparison of three algorithms over two seeds; tests must not change it."""
    return write_grid(tmp_path_factory.mktemp("comparison") / "grid")


def page_of(*folders: Path) -> str:
    return build_page(read_runs(folders))


class Reader(HTMLParser):
    """Collects a page's tags, attributes and text as a browser would."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


# --- what a page shows


def test_a_headline_compares_with_its_own_earlier_model_then_with_fedavg_and_frozen(grid: Path) -> None:
    (group,) = group_runs(read_runs([grid]))
    headline = write_headline(group)
    # at the end FedDig has 68 and 69, FedAvg 43 and 44, frozen 51 and 52
    assert headline.title == "68.5\u00a0% after every silo had left, 52.5\u00a0% before the first leave"
    assert headline.sentences[0] == "Silo 0 left at round 2, silo 1 left at round 5, silo 2 left at round 9."
    assert headline.sentences[-1].replace("\u00a0", " ") == (
        "feddig ended at 68.5 ± 0.7 % (mean of 2 seeds): 16.0 points above its own model before the first leave "
        "(52.5 ± 0.7 %), 25.0 points above fedavg (43.5 ± 0.7 %) and 17.0 points above frozen (51.5 ± 0.7 %)."
    )
    assert [(figure.title, figure.value) for figure in headline.figures] == [
        ("at the end", "68.5 ± 0.7\u00a0%"),
        ("against its own model before the first leave", "+16.0 ± 0.0 points"),
        ("against fedavg", "+25.0 ± 0.0 points"),
        ("against frozen", "+17.0 ± 0.0 points"),
        ("while silos were away", "61.5 ± 0.7\u00a0%"),
    ]


def test_a_sentence_that_begins_with_a_silos_name_does_not_change_the_name(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [40, 60, 50, 55], LEAVING, silo_names=["north", "x-7"])
    headline = write_headline(group_runs(read_runs([run]))[0])
    assert headline.sentences[0] == "north left at round 2."


def test_the_headline_of_one_run_compares_with_its_own_model_before_the_first_leave(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [40, 60, 50, 55], LEAVING, measures={"frozen_own": 60.0})
    headline = write_headline(group_runs(read_runs([run]))[0])
    assert (
        headline.title.replace("\u00a0", " ")
        == "55.0 % with 1 of 2 silos away, 60.0 % before the first leave"
    )
    assert "5.0 points below its own model before the first leave" in headline.sentences[-1]


def test_page_title_table_and_list_of_runs_have_the_model_before_the_first_leave(grid: Path) -> None:
    page = page_of(grid).replace("\u00a0", " ")
    title = "68.5 % after every silo had left, 52.5 % before the first leave"
    assert f"<title>{title}: feddig, sequential</title>" in page
    read = Reader(page)
    assert "feddig sequential, seed 0: 68.0 %, 52.0 % before the first leave" in read.text
    heads = re.findall(r'class="sort">([^<]*)<', page)
    assert heads[3:5] == ["final", "last round before"], "beside the end"


def test_the_page_of_a_run_that_goes_on_has_the_model_before_the_first_leave(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [40, 60, 50, 55, 57], ["11000", "11111"], finished=False)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    for done, title in (
        (2, "60.0 % after 2 of 5 rounds"),
        (4, "55.0 % after 4 of 5 rounds, 60.0 % before the first leave"),
    ):
        (run / "metrics.jsonl").write_text("".join(lines[:done]), encoding="utf-8")
        headline = write_headline(group_runs(read_runs([run]))[0])
        assert headline.title.replace("\u00a0", " ") == title
    assert headline.sentences[-1].replace("\u00a0", " ") == (
        "feddig is so far at 55.0 %: 5.0 points below its own model before the first leave (60.0 %)."
    )


def test_a_terminal_gets_the_sentence_of_each_scenario(tmp_path: Path) -> None:
    for scenario, end in (("forever", 70.0), ("sequential", 40.0)):
        write_folder(
            tmp_path / scenario, [40, 60, 50, end], LEAVING, scenario=scenario, measures={"frozen_own": 60.0}
        )
    assert describe_results(tmp_path) == [
        "forever: feddig ended at 70.0 %: 10.0 points above its own model before the first leave (60.0 %).",
        "sequential: feddig ended at 40.0 %: 20.0 points below its own model before the first leave (60.0 %).",
    ]
    assert describe_results(tmp_path / "forever") == [
        "feddig ended at 70.0 %: 10.0 points above its own model before the first leave (60.0 %)."
    ]


def test_a_base_is_compared_with_its_own_controls(tmp_path: Path) -> None:
    for algorithm, end in (
        ("feddig+fednova", 9.0),
        ("fednova", 7.0),
        ("fedavg", 1.0),
        ("frozen", 2.0),
        ("frozen+fednova", 5.0),
    ):
        write_folder(tmp_path / algorithm, [1, 2, 3, end], LEAVING, algorithm=algorithm)
    headline = write_headline(group_runs(read_runs([tmp_path]))[0])
    assert "2.0 points above fednova" in headline.sentences[-1]
    assert "4.0 points above frozen+fednova" in headline.sentences[-1]


@pytest.mark.parametrize(
    ("present", "title"),
    [
        (["1111"], "4.0 % with no silo away"),
        (["1111", "0000"], "4.0 % with 1 of 2 silos never there"),
        (["1001", "1111"], "4.0 % after all silos that left had returned"),
        (["1100"], "4.0 % after the only silo had left"),
        (["0011", "1100"], "4.0 % with 1 of 2 silos away"),
    ],
)
def test_the_title_names_the_absent_silos(present: list[str], title: str, tmp_path: Path) -> None:
    headline = write_headline(
        group_runs(read_runs([write_folder(tmp_path / "run", [1, 2, 3, 4], present)]))[0]
    )
    assert headline.title.replace("\u00a0", " ") == title


def test_settings_of_one_name_are_named_with_their_sections(tmp_path: Path) -> None:
    for number, drawn_for in enumerate((1, 2)):
        write_folder(
            tmp_path / str(number),
            [1, 2, 3][: 2 + number],
            ["111"[: 2 + number]],
            settings=f"lr = {number}\n[moderator]\nrounds = {drawn_for}\n",
        )
    (group,) = group_runs(read_runs([tmp_path]))
    assert [curve.name for curve in group.curves] == [
        f"feddig, training.rounds {2 + number}, lr {number}, moderator.rounds {1 + number}"
        for number in (0, 1)
    ]


def test_departures_are_those_of_one_seed_where_seeds_differ(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", [1, 2, 3, 4], ["1100", "1111"], seed=0)
    write_folder(tmp_path / "b", [1, 2, 3, 6], ["1111", "1101"], seed=1)
    headline = write_headline(group_runs(read_runs([tmp_path]))[0])
    assert headline.title == "5.0\u00a0% at the end"
    assert headline.sentences[0] == "In seed 0 silo 0 left at round 2."


def test_the_numbers_of_the_charts_are_those_of_the_folder(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [10.126, None, 30, 40], LEAVING)
    data = page_data(page_of(run))
    (group,), (details,) = data["groups"], data["runs"]
    assert group["curves"][0]["mean"] == [10.13, None, 30, 40]
    assert group["strip"]["bars"] == [[2, 1, 2, 2], [4, 1]]
    assert details["validation"] == [[0.25, 1.25, 2.25, 3.25], [1.25, 2.25, 3.25, 4.25]]
    assert details["times"] == {
        "silos": [0.5] * 4,
        "recall": [0.125] * 4,
        "joint": [0.25] * 4,
        "rest": [0.125] * 4,
    }


def test_only_columns_that_the_table_has_are_explained(tmp_path: Path) -> None:
    text = Reader(page_of(write_folder(tmp_path / "stayed", [1, 2, 3], ["111", "111"]))).text
    assert "is nine rounds" not in text
    assert "is the run’s own model" not in text
    measures = {"frozen_own_mean_10": 2.0, "after_9": 3.0}
    text = Reader(page_of(write_folder(tmp_path / "left", [1, 2, 3], ["110", "111"], measures=measures))).text
    assert "“9 after” is nine rounds" in text
    assert "“before 1st leave” is the run’s own model" in text


def test_silos_that_have_not_joined_are_not_away(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [1, 2, 3], ["011", "110"], algorithm="fedavg")
    bars = page_data(page_of(run))["groups"][0]["strip"]["bars"]
    assert bars == [[1, 0, 2, 1], [2, 1, 1, 3]]


def test_seeds_are_averaged_and_other_settings_are_not(tmp_path: Path) -> None:
    for seed, value in ((0, 10.0), (1, 30.0)):
        write_folder(tmp_path / f"a{seed}", [value], ["1"], seed=seed, settings="lr = 0.1\n")
    write_folder(tmp_path / "b", [70.0], ["1"], seed=0, settings="lr = 0.2\n")
    (group,) = page_data(page_of(tmp_path))["groups"]
    assert {curve["name"]: (curve["mean"], curve["low"], curve["high"]) for curve in group["curves"]} == {
        "feddig, lr 0.1": ([20.0], [10.0], [30.0]),
        "feddig, lr 0.2": ([70.0], None, None),
    }


def write_sweep(folder: Path, seeds: int = 2) -> Path:
    """Write runs that differ in epsilon: FedDig ends at 50 + 2 * place + seed, without noise at 80 + seed."""
    noises = [("discrete-gaussian", epsilon) for epsilon in (32.0, 8.0, 1.0)] + [("none", 8.0)]
    for place, (mechanism, epsilon) in enumerate(noises):
        for seed in range(seeds):
            end = 80 if mechanism == "none" else 50 - 2 * place
            write_folder(
                folder / f"{mechanism}-{epsilon}" / f"seed-{seed}", [40.0, float(end + seed)], ["11", "10"], seed=seed,
                settings=f'[privacy]\nmechanism = "{mechanism}"\nepsilon = {epsilon}\n',
            )  # fmt: skip
    return folder


def test_runs_that_differ_in_epsilon_give_accuracy_against_epsilon(tmp_path: Path) -> None:
    page = page_of(write_sweep(tmp_path))
    (group,) = page_data(page)["groups"]
    (series,) = group["epsilons"]
    assert series["name"] == "feddig, mechanism discrete-gaussian"
    assert [(point["x"], point["mean"], point["low"], point["high"]) for point in series["points"]] == [
        (1.0, 46.5, 46.0, 47.0),
        (8.0, 48.5, 48.0, 49.0),
        (32.0, 50.5, 50.0, 51.0),
        (None, 80.5, 80.0, 81.0),
    ]
    assert page.count('<figure data-chart="epsilon" data-group="0">') == 1
    names = [curve["name"].split("epsilon ")[-1] for curve in group["curves"][:3]]
    assert names == ["1.0", "8.0", "32.0"], "numbers in names are sorted by their value"
    assert group["curves"][3]["name"] == "feddig, mechanism none", "its epsilon says nothing"


@pytest.mark.parametrize("change", ["paper-laplace", "lr", "one epsilon"])
def test_other_runs_give_no_chart_of_epsilon(change: str, tmp_path: Path) -> None:
    mechanism = "paper-laplace" if change == "paper-laplace" else "discrete-gaussian"
    for place, epsilon in enumerate((1.0, 1.0) if change == "one epsilon" else (1.0, 8.0)):
        rate = f"lr = 0.{place + 1}\n" if change == "lr" else ""
        write_folder(
            tmp_path / str(place), [40.0, 50.0], ["11"], seed=place * (change == "one epsilon"),
            settings=f'{rate}[privacy]\nmechanism = "{mechanism}"\nepsilon = {epsilon}\n',
        )  # fmt: skip
    page = page_of(tmp_path)
    assert page_data(page)["groups"][0]["epsilons"] == []
    assert 'data-chart="epsilon"' not in page


def test_a_comparison_gives_accuracy_against_the_moderators_seconds(grid: Path) -> None:
    # each of ten rounds takes the moderator 0.125 s for recall models and 0.25 s for the joint update
    page = page_of(grid)
    (group,) = page_data(page)["groups"]
    found = {
        each["name"]: (each["mean"], each["low"], each["high"], each["seconds"]) for each in group["costs"]
    }
    assert found == {
        "feddig": (68.5, 68.0, 69.0, 3.75),
        "fedavg": (43.5, 43.0, 44.0, 3.75),
        "frozen": (51.5, 51.0, 52.0, 3.75),
    }
    assert [each["colour"] for each in group["costs"]] == [each["colour"] for each in group["curves"]]
    assert page.count('<figure data-chart="cost" data-group="0">') == 1
    assert '<td class="number" data-value="3.7500" data-sd="0.0000">3.8 ±\u00a00.0</td>' in page, (
        "and in the table"
    )


def test_one_run_has_no_chart_of_costs(tmp_path: Path) -> None:
    page = page_of(write_folder(tmp_path / "run", [1, 2, 3, 4], LEAVING))
    assert page_data(page)["groups"][0]["costs"] == []
    assert 'data-chart="cost"' not in page


def test_the_table_has_means_and_deviations_to_sort_by(grid: Path) -> None:
    page = page_of(grid)
    assert 'data-value="68.5000" data-sd="0.7071">68.5 ±\u00a00.7</td>' in page
    assert 'data-value="43.5000" data-sd="0.7071">43.5 ±\u00a00.7</td>' in page


def test_silos_send_one_digest_and_an_update_in_each_round_they_are_here(tmp_path: Path) -> None:
    text = Reader(page_of(write_folder(tmp_path / "run", [1, 2, 3, 4], LEAVING))).text
    assert "sent 12 kB of updates and, once, 2 kB of digests" in text


def test_the_privacy_section_shows_both_epsilons_and_the_blind_guess(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [1, 2, 3, 4], LEAVING)
    write_privacy(run, mechanism="paper-laplace", epsilon=0.005)
    text = Reader(page_of(run)).text
    assert "paper’s ε 0.005" in text
    assert "real ε of a record infinite" in text
    # eight elements: each at most (ln 2^32 + gamma) / 2^32, which is 10^-8.28
    assert "paper’s bound 10 −66" in text
    assert "The folder has no audit" in text


def test_the_record_epsilon_of_a_discrete_mechanism_includes_its_labels(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [1, 2, 3, 4], LEAVING)
    write_privacy(
        run, mechanism="discrete-gaussian", epsilon=2.0, label_epsilon=0.5, delta=1e-6, random="system"
    )
    text = Reader(page_of(run)).text
    assert "real ε of a record 2.5" in text
    assert "δ of a record 1e-06" in text
    assert "paper’s ε" not in text


@pytest.mark.parametrize("mechanism", ["none", "paper-laplace", "discrete-gaussian"])
@pytest.mark.parametrize(
    ("source", "words"), [("system", "the system’s entropy"), ("seeded", "a seed (simul")]
)
def test_the_privacy_section_says_where_the_noise_comes_from(
    mechanism: str, source: str, words: str, tmp_path: Path
) -> None:
    run = write_folder(tmp_path / "run", [1, 2, 3, 4], LEAVING)
    write_privacy(run, mechanism=mechanism, epsilon=1.0, random=source)
    noise = "Digests have no noise;" if mechanism == "none" else f"Noise is {mechanism}, from {words}"
    assert noise in Reader(page_of(run)).text


def test_an_audit_in_the_folder_is_shown_and_one_of_other_digests_is_marked(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [1, 2, 3, 4], LEAVING)
    write_privacy(run, mechanism="none", epsilon=1.0)
    audit = {
        "format_version": 1,
        "light": "amber",
        "meaning": "Some figures are beyond chance.",
        "checks": [{"light": "red", "title": "Membership <b>", "sentence": "Members are found."}],
        "bound_to": {"silo": 0, "digest_hash": "abc"},
    }
    (run / "audit").mkdir()
    (run / "audit" / "audit.json").write_text(json.dumps(audit), encoding="utf-8")
    text = Reader(page_of(run)).text
    assert "Audit of silo 0 ▲ amber" in text
    assert "■ red Membership <b> Members are found." in text
    assert "other digests" not in text
    audit["bound_to"] = {"silo": 0, "digest_hash": "another"}
    (run / "audit" / "audit.json").write_text(json.dumps(audit), encoding="utf-8")
    assert "other digests than those of this run" in Reader(page_of(run)).text


def write_privacy(run: Path, **facts: Any) -> None:
    """Add facts about digests to a run, and a digest of eight elements."""
    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    facts = {"samples_per_digest": 4, "mixing": "random", "random": "seeded", **facts}
    summary["digests"] = {"0": {**facts, "hash": "abc"}}
    (run / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    write_digest(run, 0, np.zeros((1, 2, 2, 2), np.float32), np.array([[0.5, 0.5]], np.float32))


def write_digest(run: Path, silo: int, features: np.ndarray, labels: np.ndarray) -> None:
    facts = json.dumps({"samples_per_digest": 4})
    write_tensors(
        run / "digests" / f"silo-{silo}.safetensors",
        "digest",
        {"features": features, "labels": labels},
        {"silo": str(silo), "facts": facts},
    )


# --- accuracy of each class


def class_section_of(*folders: Path) -> str:
    """Return the section about the classes of the first run, as text."""
    return Reader(
        page_of(*folders).split('<section data-key="Accuracy of each class">')[1].split("</section>")[0]
    ).text


def write_classes(folder: Path, present: list[str], **more: Any) -> Path:
    """Write a run of five rounds: shoe falls from 80 to 20, bag rises from 60 to 70, hat has no test images."""
    curve = [
        [50.0, 40.0, None],
        [80.0, 60.0, None],
        [50.0, 65.0, None],
        [30.0, 70.0, None],
        [20.0, 70.0, None],
    ]
    return write_folder(
        folder, [50.0, 70.0, 57.5, 50.0, 45.0], present, class_names=["shoe", "bag", "hat"], class_accuracy=curve,
        **{"class_counts": [[75, 10, 0], [25, 30, 4]], "class_tests": [50, 50, 0], **more},
    )  # fmt: skip


def test_the_section_of_classes_says_who_held_a_class_and_whether_it_survived(tmp_path: Path) -> None:
    text = class_section_of(write_classes(tmp_path / "run", ["11000", "11111"]))
    assert "At the end: accuracy 45.0 % (95 % interval 40.0 to 46.0)" in text.replace("\u00a0", " ")
    assert "balanced accuracy 43.0 % (95 % interval 39.0 to 47.0), macro F1 41.0 % (95 % " in text
    assert (
        "1 of 2 classes is below its accuracy before the first leave: “shoe” (−60.0 points; silo 0 held 75 % of it "
        "and left at round 2)." in text
    )
    assert "class held most its share left at before 1st leave at the end 95 % interval change" in text
    ends = ["{:.1f}–{:.1f}".format(*wilson_interval(value, 50)) for value in (20.0, 70.0)]
    assert f"shoe silo 0 75 % 2 80.0 20.0 {ends[0]} −60.0" in text
    assert f"bag silo 1 75 % stayed 60.0 70.0 {ends[1]} +10.0" in text
    assert "hat silo 1 100 % stayed" in text, "a class without test images has no accuracy"


def test_the_section_of_classes_shows_what_is_known(tmp_path: Path) -> None:
    text = class_section_of(write_classes(tmp_path / "nobody", ["11111", "11111"], class_tests=()))
    assert "class held most its share at the end shoe silo 0 75 % 20.0" in text
    assert "before the first leave" not in text
    text = class_section_of(write_classes(tmp_path / "back", ["11001", "11111"]))
    assert "shoe silo 0 75 % 2, back at 4 80.0 20.0" in text
    text = class_section_of(write_classes(tmp_path / "often", ["10101", "11111"]))
    assert "shoe silo 0 75 % 1, back at 2 and 1 more time 50.0 20.0" in text
    text = class_section_of(write_classes(tmp_path / "digest", ["00000", "11111"]))
    assert "class held most its share left at at the end" in text
    assert "shoe silo 0 75 % has not trained 20.0" in text, "a silo that never trained has not left"
    text = class_section_of(write_classes(tmp_path / "late", ["11110", "00000"]))
    assert "bag silo 1 75 % has not trained 70.0 70.0" in text
    run = write_classes(tmp_path / "federation", ["11000", "11111"])
    (run / "classes.json").unlink()
    text = class_section_of(run)
    assert "class before 1st leave at the end change class 0 80.0 20.0 −60.0" in text


def test_a_leave_that_is_still_to_come_is_not_told(tmp_path: Path) -> None:
    """Of an unfinished run, availability.csv has the whole plan."""
    run = write_classes(tmp_path / "run", ["11000", "11111"], finished=False)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]), encoding="utf-8")
    text = class_section_of(run)
    assert text.startswith("Accuracy of each class So far: accuracy")
    assert "left at" not in text
    (run / "metrics.jsonl").write_text("".join(lines[:3]), encoding="utf-8")
    assert "shoe silo 0 75 % 2 80.0 50.0" in class_section_of(run)


def test_runs_without_accuracies_of_classes_have_no_such_section(tmp_path: Path) -> None:
    page = page_of(write_folder(tmp_path / "run", [1, 2, 3, 4], LEAVING))
    assert "Accuracy of each class" not in page
    assert page_data(page)["runs"][0]["classes"] is None


def test_a_few_classes_are_lines_and_more_are_a_heat_map_in_whole_percent(tmp_path: Path) -> None:
    few = page_data(page_of(write_classes(tmp_path / "few", ["11000", "11111"])))["runs"][0]["classes"]
    assert few == {
        "lines": True,
        "dashes": ["", "7 4", "2 4"],
        "names": ["shoe", "bag", "hat"],
        "holders": ["silo 0 held 75 %", "silo 1 held 75 %", "silo 1 held 100 %"],
        "left": [2, None, None],
        "rounds": 5,
        "step": 1,
        "values": [[50.0, 80.0, 50.0, 30.0, 20.0], [40.0, 60.0, 65.0, 70.0, 70.0], [None] * 5],
    }
    curve = [[10.4 + number + round for number in range(5)] for round in range(3)]
    run = write_folder(tmp_path / "many", [1, 2, 3], ["110"], class_names=list("abcde"), class_accuracy=curve)
    many = page_data(page_of(run))["runs"][0]["classes"]
    assert (many["lines"], many["step"]) == (False, 1)
    assert many["values"] == [[10 + number, 11 + number, 12 + number] for number in range(5)]
    assert many["left"] == [None, 2, 2, 2, 2], "nobody holds an image of the first class"


def test_with_many_values_a_heat_map_shows_only_some_rounds_and_always_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feddig.report.class_section.MAX_VALUES", 30)
    curve = [[float(round)] * 5 for round in range(11)]
    run = write_folder(
        tmp_path / "run", [1.0] * 11, ["1" * 11], class_names=list("abcde"), class_accuracy=curve
    )
    found = page_data(page_of(run))["runs"][0]["classes"]
    assert (found["step"], found["rounds"]) == (2, 11)
    assert found["values"][0] == [1, 3, 5, 7, 9, 10]


# --- classes and guidance


def test_class_counts_come_from_digests_if_classes_json_is_missing(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [1], ["1", "1"])
    (run / "classes.json").unlink()
    write_digest(run, 1, np.zeros((2, 4), np.float32), np.array([[0.75, 0.25], [0, 1]], np.float32))
    classes = read_classes(run, "my own")
    assert classes.counts is not None
    assert classes.counts.tolist() == [[0, 0], [3, 5]]
    assert list(classes.names) == ["class 0", "class 1"]


def test_class_facts_are_those_of_the_data(tmp_path: Path) -> None:
    dataset = draw_tiny_dataset()
    partition = draw_partition(dataset.train.labels, silos=2, method="iid", min_samples=1)
    write_class_facts(tmp_path, dataset, partition)
    classes = read_classes(tmp_path, "tensors")
    assert classes.counts is not None
    assert classes.counts.sum(1).tolist() == [len(share.train) for share in partition.shares]
    pictures = read_class_pictures(tmp_path, "deconvolution")
    assert pictures.means is not None
    assert pictures.means.shape == (4, 1, 16, 16)
    # the bright quarter of class 0 is the first
    assert pictures.means[0, 0, :8, :8].mean() > pictures.means[0, 0, 8:, 8:].mean() + 0.3


def test_guidance_is_drawn_as_the_network_computes_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from feddig.models.networks import Deconvolution

    torch.manual_seed(0)
    network = Deconvolution(3, 1)
    features = torch.rand(2, 3, 4, 4)
    # digests of one class each: the estimated mean of a class is the digest itself
    write_digest(tmp_path, 0, features.numpy(), np.eye(2, dtype=np.float32))
    tensors = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    write_tensors(tmp_path / "guidance.safetensors", "guidance", tensors, {})
    drawn = read_class_pictures(tmp_path, "deconvolution").guidance
    assert drawn is not None
    assert drawn == pytest.approx(network(features).detach().numpy(), abs=1e-4)
    assert read_class_pictures(tmp_path, "mine:network").guidance is None


# --- how to repeat runs


def test_settings_written_as_toml_are_read_back() -> None:
    settings = {
        "seed": 3,
        "data": {"path": 'a "b" \\ c\n\x7f é', "split": [0.8, 0.2], "weights": []},
        "algorithm": {"name": "feddig", "fedprox": {"mu": 1e-05}},
        "moderator": {"recall": True},
    }
    assert tomllib.loads(to_toml(settings)) == settings


def test_one_command_repeats_a_comparison(grid: Path) -> None:
    found = repeat_runs(read_runs([grid]))
    assert found is not None
    settings, command = found
    assert command == (
        "feddig compare experiment.toml --algorithms fedavg,feddig,frozen --scenarios sequential --seeds 0,1 "
        "--out again"
    )
    table = tomllib.loads(settings)
    # derived seeds are left out, because otherwise every seed would get the same partition
    assert "seed" not in table["data"]
    assert experiment_from_table(table).data.silos == 3


def test_one_command_repeats_a_comparison_with_feddig_plus(tmp_path: Path) -> None:
    """Its two own settings follow from its name."""
    for algorithm, prior, votes in (("feddig-plus", "true", 1.0), ("feddig", "false", 0.0)):
        run = write_folder(tmp_path / algorithm, [1.0], ["1"], settings=f"[moderator]\nvotes = {votes}\n")
        file = run / "experiment.toml"
        text = file.read_text(encoding="utf-8")
        text = text.replace('name = "feddig"', f'name = "{algorithm}"\nprior_correction = {prior}')
        file.write_text(text, encoding="utf-8")
    found = repeat_runs(read_runs([tmp_path]))
    assert found is not None
    settings, command = found
    assert "--algorithms feddig,feddig-plus" in command
    assert "votes" not in settings
    assert "prior_correction" not in settings
    # a value of one's own cannot be left out
    text = (tmp_path / "feddig" / "experiment.toml").read_text(encoding="utf-8")
    (tmp_path / "feddig" / "experiment.toml").write_text(
        text.replace("votes = 0.0", "votes = 0.5"), encoding="utf-8"
    )
    assert repeat_runs(read_runs([tmp_path])) is None


def test_no_single_command_repeats_runs_with_other_differences(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", [1.0], ["1"], settings="lr = 0.1\n")
    write_folder(tmp_path / "b", [1.0], ["1"], settings="lr = 0.2\n")
    assert repeat_runs(read_runs([tmp_path])) is None
    text = Reader(page_of(tmp_path)).text
    shared = text[text.index("Settings that all runs share") :]
    assert 'name = "fashion-mini"' in shared
    assert "lr = " not in shared


# --- names that are markup


def test_no_name_becomes_markup(tmp_path: Path) -> None:
    run = write_folder(
        tmp_path / "run",
        [1, 2, 3, 4],
        LEAVING,
        algorithm=HOSTILE,
        silo_names=[HOSTILE, "b"],
        class_names=[HOSTILE, "x"],
        class_accuracy=[[50.0, 60.0], [50.0, 60.0], [40.0, 60.0], [30.0, 60.0]],
        class_counts=[[5, 0], [1, 9]],
    )
    page = page_of(run)
    read = Reader(page)
    assert read.tags.count("script") == 2
    assert not any(value == "x" for name, value in read.attributes if name == "src")
    assert not any(name.startswith("on") for name, _ in read.attributes)
    assert HOSTILE in " ".join(read.texts)
    data = page_data(page)
    assert data["groups"][0]["curves"][0]["name"] == HOSTILE
    assert data["groups"][0]["strip"]["names"] == [HOSTILE, "b"]


def test_the_json_block_cannot_be_ended_from_inside() -> None:
    block = json_block({"name": HOSTILE + "<!--\u2028"})
    assert not set("<>&\u2028") & set(block)
    assert json.loads(block)["name"] == HOSTILE + "<!--\u2028"


def test_the_page_forbids_all_requests_and_other_scripts(tmp_path: Path) -> None:
    page = page_of(write_folder(tmp_path / "run", [1.0], ["1"]))
    assert "default-src 'none'; img-src data:;" in page
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    assert "@import" not in page
    assert "url(http" not in page


# --- damaged, tiny and huge runs


@pytest.mark.parametrize(
    "name", ["experiment.toml", "availability.csv", "metrics.jsonl", "summary.json", "classes.json"]
)
@pytest.mark.parametrize("content", [None, b"\xff{", b""])
def test_a_missing_or_damaged_file_is_named_and_the_rest_is_shown(
    name: str, content: bytes | None, tmp_path: Path
) -> None:
    run = write_folder(tmp_path / "run", [1, 2, 3, 4], LEAVING)
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    text = Reader(page_of(run)).text
    assert name in text
    assert str(tmp_path) not in text


def test_an_unfinished_run_is_shown_as_far_as_it_got(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [10, 20, 30, 40], LEAVING, finished=False)
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join(lines[:2]) + lines[2][:20], encoding="utf-8")
    text = Reader(page_of(run)).text
    assert "20.0 % after 2 of 4 rounds" in text
    assert "line 3 is damaged" in text
    assert "not finished (2 rounds so far)" in text


def test_a_file_of_another_format_version_is_refused_by_name(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [1, 2, 3, 4], LEAVING)
    text = (
        (run / "experiment.toml")
        .read_text(encoding="utf-8")
        .replace("format_version = 1", "format_version = 9")
    )
    (run / "experiment.toml").write_text(text, encoding="utf-8")
    assert "experiment.toml cannot be used: format_version 9" in Reader(page_of(run)).text


@pytest.mark.parametrize(("silos", "rounds"), [(1, 1), (1, 3), (1000, 2), (65, 4)])
def test_any_number_of_silos_and_rounds_makes_a_page(silos: int, rounds: int, tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [50.0] * rounds, ["1" * rounds] * silos)
    page = page_of(run)
    data = page_data(page)["runs"][0]
    Reader(page)
    assert (data["validation"] is None) == (silos > 64)
    if silos > 64:
        assert data["ribbon"][0][0] == 0.25
        assert data["strip"]["counts"][1] == [silos] * rounds
    assert len(page) < 1_000_000


def test_a_federation_without_test_images_says_so(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [1, 2, 3, 4], LEAVING)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    changed_rows = [
        {
            **line,
            "test_accuracy": None,
            "accuracy": 5.0 if line["round"] else None,
            "accuracy_of": "validation",
        }
        for line in lines
    ]
    (run / "metrics.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in changed_rows), encoding="utf-8"
    )
    page = page_of(run)
    assert page_data(page)["groups"][0]["curves"][0]["mean"] == [None, 5, 5, 5]
    assert "There were no test images" in Reader(page).text


def test_a_page_of_300_rounds_and_64_silos_stays_below_3_mb(tmp_path: Path) -> None:
    """Six runs with as many classes as EMNIST; FedDig's have pictures of noise, which compress worst."""
    stream = np.random.default_rng(0)
    classes = [f"class {number}" for number in range(62)]
    for algorithm in ("feddig", "fedavg", "frozen"):
        for seed in range(2):
            rows = ["1" + "".join(map(str, row)) for row in stream.integers(0, 2, (64, 299))]
            curve, run = (100 * stream.random(300)).tolist(), tmp_path / algorithm / str(seed)
            write_folder(
                run, curve, rows, algorithm=algorithm, seed=seed, class_names=classes, class_tests=[100] * 62,
                class_accuracy=(100 * stream.random((300, 62))).round(3).tolist(),
                settings='[model]\nguidance = "deconvolution"\n',
            )  # fmt: skip
            if algorithm == "feddig":
                write_noisy_pictures(run, len(classes), stream)
    page = page_of(tmp_path)
    assert page.count("data:image/png;base64,") == 2 * 2 * 62
    assert len(page.encode()) < 2_700_000, "a tenth below the limit of 3 MB"


def write_noisy_pictures(run: Path, classes: int, stream: np.random.Generator) -> None:
    """Write class means, digests of one class each, and a guidance producer that enlarges them four times."""
    features = stream.random((classes, 3, 8, 8), dtype=np.float32)
    write_digest(run, 0, features, np.eye(classes, dtype=np.float32))
    layers = {"layers.0.weight": stream.normal(size=(3, 1, 4, 4)), "layers.0.bias": np.zeros(1)}
    producer = {name: layer.astype(np.float32) for name, layer in layers.items()}
    write_tensors(run / "guidance.safetensors", "guidance", producer, {})
    means = {"means": stream.random((classes, 1, 32, 32), dtype=np.float32)}
    write_tensors(run / "class_means.safetensors", "class-means", means, {})


def test_rows_are_split_into_periods_where_the_state_changes() -> None:
    assert split_into_periods([1, 1, 2, 2, 1]) == [(0, 2, 1), (2, 4, 2), (4, 5, 1)]
    assert split_into_periods([]) == []


# --- the command


def test_the_page_is_written_into_the_folder_or_to_the_given_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    grid = write_grid(tmp_path / "grid", seeds=1)
    for arguments, place in (
        (["report", str(grid)], grid / "report.html"),
        (["report", str(grid), "--out", "pages/mine.html"], Path("pages/mine.html")),
        (["report", str(grid / "feddig"), str(grid / "fedavg")], Path("report.html")),
    ):
        assert run_feddig(*arguments) == 0
        assert capsys.readouterr().out == f"page     {place}\n"
        assert run_feddig(*arguments, "--quiet") == 0
        assert capsys.readouterr().out == f"{place}\n", "for scripts"
        assert place.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    run = write_folder(tmp_path / "run", [1, 2, 3, 4], LEAVING)
    first, _ = write_report([run])
    before = first.read_bytes()
    write_report([run])
    assert first.read_bytes() == before


@pytest.mark.parametrize("name", ["nowhere", "empty"])
def test_a_folder_without_results_is_one_line_and_code_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    message = error_line(capsys, "report", tmp_path / name)
    assert message.startswith(f"feddig: error: {tmp_path / name}: ")
    with pytest.raises(FedDigError):
        read_runs([tmp_path / name])
