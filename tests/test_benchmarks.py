"""Run benchmarks with small inputs; their timings mean nothing here."""

import json
from pathlib import Path

import pytest

from folders import run_script

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def run_benchmark(name: str, *arguments: str) -> str:
    return run_script(BENCHMARKS / f"{name}.py", *arguments, OMP_WAIT_POLICY="passive")


@pytest.mark.slow
def test_the_plain_loop_and_the_library_train_to_the_same_weights(tmp_path: Path) -> None:
    out = tmp_path / "peers.json"
    small = ("--images", "40", "--rounds", "2", "--repeats", "1")
    printed = run_benchmark(
        "peers", "--peers", "plain,feddig", *small, "--work", str(tmp_path), "--out", str(out)
    )
    plain, last, feddig = json.loads(out.read_text())["rows"]
    assert (plain["peer"], last["peer"], feddig["peer"]) == ("plain", "channels-last", "feddig")
    assert feddig["difference"] < 1e-6
    assert 0 < feddig["difference_from_ordinary"] < 1e-6
    assert feddig["ratio_to_plain"] > 0
    assert "to plain" in printed


@pytest.mark.slow
def test_the_papers_round_prints_a_line_for_each_case() -> None:
    printed = run_benchmark(
        "paper_round", "--images", "400", "--repeats", "1", "--device", "cpu", "--only", "fedavg"
    )
    assert [line.split("  ")[0] for line in printed.splitlines()] == ["fedavg, ordinary eager loop", "fedavg"]


@pytest.mark.slow
def test_sound_digests_are_timed_without_an_encoder(tmp_path: Path) -> None:
    out = tmp_path / "making.json"
    few = ("--images", "400", "--repeats", "1", "--drawn", "--device", "cpu", "--out", str(out))
    printed = run_benchmark("digest_making", "--mechanism", "discrete-laplace", "--random", "system", *few)
    (row,) = json.loads(out.read_text())["rows"]
    assert row["mix_and_noise"] > 0
    assert printed.startswith("400 samples, ")


@pytest.mark.slow
def test_ways_to_train_on_noisy_digests_are_compared(tmp_path: Path) -> None:
    out = tmp_path / "ways.json"
    one = ("--epsilons", "8", "--spd", "16", "--mixings", "within-class")
    run_benchmark("noise_aware", "--data", "fashion-mini", *one, "--out", str(out))
    rows = json.loads(out.read_text())["rows"]
    assert [row["way"] for row in rows][0::4] == ["as received", "as single samples"]
    assert all(5 < value < 100 for row in rows for value in row["accuracy"].values())


@pytest.mark.slow
def test_the_longest_update_is_printed_for_two_rates(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs the extra `flower`")
    out = tmp_path / "lengths.json"
    few = ("--rounds", "1", "--images", "400", "--bases", "fedavg", "--out", str(out))
    printed = run_benchmark("update_lengths", *few)
    usual, fast = json.loads(out.read_text())["rows"]
    assert 0 < usual["longest"] < fast["longest"]
    assert len(printed.splitlines()) == 2


@pytest.mark.slow
def test_the_privacy_table_runs_a_cell_once_and_is_written_from_what_is_there(tmp_path: Path) -> None:
    out, refused = tmp_path / "out", "random-1-1024-seed-0"
    small = (
        "--data",
        "fashion-mini",
        "--rounds",
        "2",
        "--joint-steps",
        "2",
        "--classifier",
        "small",
        "--min-samples",
        "32",
        "--device",
        "cpu",
    )
    asked = ("run", "--cells", f"within-class-8-4-seed-0,{refused}", *small)
    where = ("--work", str(tmp_path / "work"), "--out", str(out))
    printed = run_benchmark("privacy_table", *asked, *where)
    assert printed.startswith("within-class-8-4-seed-0 {'final': ")
    row = json.loads((out / "within-class-8-4-seed-0.json").read_text())
    there = row["samples"] + row["left_out"]
    assert 0.79 * 6000 < there < 0.81 * 6001
    assert len(row["curve"]) == 2
    assert "no 1024 training samples" in json.loads((out / f"{refused}.json").read_text())["refused"]
    assert run_benchmark("privacy_table", *asked, *where) == ""
    table = run_benchmark("privacy_table", "table", "--out", str(out))
    assert f"| 8 | {row['accuracy']['final']:.1f} |" in table
    assert f"{row['left_out']} of {there:,}" in table
    assert "| 1 |  |  |  |  | refused |" in table
