"""The page's colours: enough contrast to read, and distinct with any kind of colour vision."""

import re
from importlib.resources import files
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from feddig.report.grouping import group_runs
from feddig.report.page_data import GREY, page_data
from feddig.report.read_run import read_runs
from report_folders import write_folder

STYLE = (files("feddig.report") / "assets" / "report.css").read_text(encoding="utf-8")
THEMES = {
    "light": ":root {",
    "dark by the system": ':root:not([data-theme="light"]) {',
    "dark by choice": ':root[data-theme="dark"] {',
    "paper": ":root, :root:not(",
}
"""The start of each theme's colours in the style sheet."""
VISIONS = {
    "usual": np.eye(3),
    "without red": [[0.1523, 1.0526, -0.2049], [0.1145, 0.7863, 0.0992], [-0.0039, -0.0481, 1.0520]],
    "without green": [[0.3673, 0.8606, -0.2280], [0.2801, 0.6725, 0.0474], [-0.0118, 0.0429, 0.9689]],
    "without blue": [[1.2555, -0.0767, -0.1788], [-0.0784, 0.9308, 0.1476], [0.0047, 0.6914, 0.3039]],
}
"""Linear red, green and blue as seen with colour blindness: Machado, Oliveira and Fernandes 2009, full severity."""
LIGHT = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
"""The matrix from linear sRGB to CIE XYZ."""
APART = 10.0
"""Two lines at this distance in CIELAB are easily told apart; a distance of about 2 is just visible."""


def colours(theme: str) -> dict[str, np.ndarray]:
    """Read a theme's colours as linear red, green and blue."""
    begin = STYLE.index(THEMES[theme])
    block = STYLE[begin : STYLE.index("}", begin)]
    found = {}
    for name, digits in re.findall(r"--([\w-]+): #([0-9a-f]{3}|[0-9a-f]{6});", block):
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
    for name in (*(f"c{place}" for place in range(GREY + 1)), "here", "recalled"):
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
