"""Reading a page's charts back from what a browser drew."""

from typing import Any

from browser import Browser

ACCURACY = 'figure[data-chart="accuracy"]'
VALIDATION = 'figure[data-chart="validation"]'


def read_curves(browser: Browser, figure: str) -> dict[str, list[tuple[int, float]]]:
    """Read the curves back from their drawn paths, by the scale that the drawing carries."""
    found: list[dict[str, Any]] = browser.do(
        f"""[...document.querySelectorAll('{figure} svg path.curve')].map((path) => ({{
            name: path.dataset.curve ?? path.dataset.silo, d: path.getAttribute("d"),
            scale: {{...path.ownerSVGElement.dataset}}
        }}))"""
    )
    curves = {}
    for each in found:
        scale = {name: float(value) for name, value in each["scale"].items()}
        points = [
            tuple(map(float, point.split("h")[0].split()))
            for point in each["d"].replace("L", "M").split("M")[1:]
        ]
        rounds = int(scale["rounds"])
        curves[each["name"]] = [
            (
                round((x - scale.get("left", 0)) / scale["width"] * max(rounds - 1, 1)),
                scale["high"] - (y - scale.get("top", 0)) / scale["height"] * (scale["high"] - scale["low"]),
            )
            for x, y in points
        ]
    return curves
