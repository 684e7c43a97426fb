"""The colours of methods: the same everywhere, enough contrast to read, distinct with any kind of colour vision."""

import re
from importlib.resources import files
from io import BytesIO
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feddig.core.recipe import names
from feddig.report.curve_styles import PALETTE, STATES, choose_styles, colour_rules, known_style
from feddig.report.grouping import group_runs
from feddig.report.page_data import page_data
from feddig.report.paper.accuracy import scenario_curves
from feddig.report.pictures import draw_curves
from feddig.report.read_run import read_runs
from report_folders import write_folder, write_grid

CURVES = colour_rules()
STYLE = (files("feddig.report") / "assets" / "report.css").read_text(encoding="utf-8")
THEMES = {
    "light": ":root {",
    "dark by the system": ':root:not([data-theme="light"]) {',
    "dark by choice": ':root[data-theme="dark"] {',
    "paper": ":root, :root:not(",
}
"""The start of each theme's colours, in the rules of the curves and in the style sheet."""
TOGETHER = ("fedavg", "frozen", "digests-only", "feddig", "feddig-plus")
"""The curves of the demo, which commonly stand together."""
VISIONS = {
    "usual": np.eye(3),
    "without red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "without green": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "without blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
"""Linear red, green and blue as seen with protanopia, deuteranopia and tritanopia: Machado, Oliveira and Fernandes,
A Physiologically-based Model for Simulation of Color Vision Deficiency, IEEE TVCG 15(6), 2009, at full severity."""
LIGHT = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
"""The matrix from linear sRGB to CIE XYZ."""
APART = 10.0
"""Two lines at this distance in CIELAB are easily told apart; a distance of about 2 is just visible."""
FAR_APART = 20.0
"""The distance of curves that commonly stand together, by their colour alone."""


def colours(theme: str) -> dict[str, np.ndarray]:
    """Read a theme's colours as linear red, green and blue."""
    found = {}
    blocks = [sheet.split(THEMES[theme])[1].split("}")[0] for sheet in (CURVES, STYLE)]
    for name, digits in re.findall(r"--([\w-]+): #([0-9a-f]{3}|[0-9a-f]{6});", "".join(blocks)):
        pairs = digits if len(digits) == 6 else "".join(2 * digit for digit in digits)
        level = np.array([int(pairs[place : place + 2], 16) for place in (0, 2, 4)]) / 255
        found[name] = np.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)
    return found


def contrast(one: np.ndarray, other: np.ndarray) -> float:
    """Return the contrast of two colours after WCAG 2, from 1 to 21."""
    dark, light = sorted(float(LIGHT[1] @ colour) for colour in (one, other))
    return (light + 0.05) / (dark + 0.05)


def distance(one: np.ndarray, other: np.ndarray, vision: str) -> float:
    """Return the distance of two colours in CIELAB for this kind of colour vision."""
    places = []
    for colour in (one, other):
        seen = LIGHT @ np.clip(np.asarray(VISIONS[vision]) @ colour, 0, 1) / LIGHT.sum(axis=1)
        x, y, z = np.where(seen > 0.008856, np.cbrt(seen), 7.787 * seen + 16 / 116)
        places.append(np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)]))
    return float(np.linalg.norm(places[0] - places[1]))


def test_contrast_and_distance_of_known_colours() -> None:
    black, white, red = np.zeros(3), np.ones(3), np.array([1.0, 0, 0])
    assert contrast(black, white) == pytest.approx(21, abs=0.01)
    assert distance(black, white, "usual") == pytest.approx(100, abs=0.1)
    green = np.array([0, 0.12, 0])
    assert distance(red, green, "usual") > 100
    assert distance(red * 0.9, green, "without red") < 60


@pytest.mark.parametrize("theme", THEMES)
def test_text_and_lines_have_enough_contrast(theme: str) -> None:
    found = colours(theme)
    for name in ("ink", "soft", "accent", "green", "amber", "red", "grey"):
        assert contrast(found[name], found["paper"]) >= 4.5, name
    for name in (*(f"c{number}" for number in range(len(PALETTE))), "here", "recalled"):
        assert contrast(found[name], found["paper"]) >= 3, name


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISIONS)
def test_here_and_away_differ(vision: str, theme: str) -> None:
    found = colours(theme)
    assert distance(found["here"], found["away"], vision) > APART
    assert distance(found["recalled"], found["away"], vision) > APART


@pytest.fixture(scope="module")
def curves(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return the curves of a chart with ten algorithms."""
    folder = tmp_path_factory.mktemp("runs")
    bases = ("fedprox", "fednova", "feddyn", "adabest")
    for name in ("feddig", "fedavg", "frozen", *bases, *(f"feddig+{base}" for base in bases[:3])):
        write_folder(folder / name, [50.0], ["1"], algorithm=name)
    (group,) = page_data(group_runs(read_runs([folder])))["groups"]
    assert len(group["curves"]) == 10
    return list(group["curves"])


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISIONS)
def test_any_two_of_ten_curves_differ_in_dashes_or_colour(
    vision: str, theme: str, curves: list[dict[str, Any]]
) -> None:
    found = colours(theme)
    for one, other in combinations(curves, 2):
        pair = [found[f"c{curve['colour']}"] for curve in (one, other)]
        differs = one["dash"] != other["dash"] or distance(*pair, vision) > APART
        assert differs, f"{one['name']} and {other['name']}"


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("vision", VISIONS)
def test_curves_that_commonly_stand_together_differ_by_colour_alone(vision: str, theme: str) -> None:
    found, styles = colours(theme), choose_styles(TOGETHER)
    for one, other in combinations(TOGETHER, 2):
        pair = [found[f"c{styles[name].number}"] for name in (one, other)]
        assert distance(*pair, vision) > FAR_APART, f"{one} and {other}"
    assert len({style.pattern for style in styles.values()}) == len(TOGETHER), "and by dashes alone"


def test_every_algorithm_has_a_style_that_no_other_has() -> None:
    # FedDig over FedAvg is FedDig
    algorithms = [name for name in names() if not name.endswith("+fedavg")]
    styles = {name: known_style(name) for name in algorithms}
    assert [name for name, style in styles.items() if style is None] == []
    assert len(set(styles.values())) == len(algorithms) > 35
    assert known_style("feddig+fedavg") == known_style("feddig")
    assert known_style("yours") is None


@pytest.mark.parametrize("name", names())
def test_a_style_does_not_depend_on_other_curves(name: str) -> None:
    crowd = ["yours", "another, lr 0.1", *(other for other in names() if not other.endswith("+fedavg"))]
    alone = choose_styles([name])[name]
    assert choose_styles([*crowd, name.removesuffix("+fedavg")])[name.removesuffix("+fedavg")] == alone
    assert choose_styles([f"{name}, lr 0.1"])[f"{name}, lr 0.1"] == alone


def test_curves_of_one_algorithm_share_its_colour_and_differ_in_dashes() -> None:
    variants = [f"feddig, epsilon {epsilon}" for epsilon in (1, 4, 8, 32)]
    styles = choose_styles([*variants, "fedavg"])
    assert {styles[name].colour for name in variants} == {choose_styles(["feddig"])["feddig"].colour}
    assert len(set(styles.values())) == 5


def test_more_names_than_styles_still_have_one_each() -> None:
    many = [f"name {number}" for number in range(100)]
    styles = choose_styles(many)
    assert list(styles) == many
    assert len(set(styles.values())) == 72, "six patterns of twelve colours, then they repeat"


def test_a_method_has_one_colour_on_page_picture_and_figure(tmp_path: Path) -> None:
    runs = read_runs([write_grid(tmp_path / "grid", seeds=1)])
    (group,) = page_data(group_runs(runs))["groups"]
    style = {name: choose_styles([name])[name] for name in ("feddig", "fedavg", "frozen")}
    on_page = {curve["name"]: (curve["colour"], curve["dash"]) for curve in group["curves"]}
    assert on_page == {name: (each.number, each.css_dash) for name, each in style.items()}
    lines = {line.get_label(): line for line in scenario_curves(runs).axes[0].get_lines()}
    with Image.open(BytesIO(draw_curves(runs, "sequential"))) as picture:
        pixels = picture.convert("RGB").getcolors(maxcolors=1 << 20)
    assert pixels is not None
    for name, each in style.items():
        assert lines[name].get_color() == each.colour
        assert f"--c{each.number}: {each.colour};" in CURVES.splitlines()[0]
        drawn = sum(count for count, colour in pixels if "#{:02x}{:02x}{:02x}".format(*colour) == each.colour)
        assert drawn > 100, name
    assert f"--here: {STATES['here'][0]};" in CURVES
