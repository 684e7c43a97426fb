"""The lights of an audit, for people who see colours and for those who do not."""

from html import escape
from typing import Any

SHAPES = {"green": "●", "amber": "▲", "red": "■"}
"""Lights differ in shape too, for those who see no colours and for paper."""


def show_light(light: Any) -> str:
    """Mark a light by its colour, shape and name."""
    known = colour_of(light)
    return f'<span class="light {known}">{SHAPES.get(known, "○")} {escape(str(light))}</span>'


def colour_of(light: Any) -> str:
    """Give a light's colour in the style sheet; grey for what is none."""
    return light if light in SHAPES else "grey"
