"""The tables of an audit's page: figures with their intervals and chance levels, and facts."""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from feddig.report.sortable import number_cell, sortable

HEADS = ("figure", "value", "interval", "chance or baseline", "p", "0 to 1")
TEXTS = (0, 2, 5)
"""The columns that are no numbers to sort by."""


def figures_table(name: str, figures: Sequence[Mapping[str, Any]], beyond: Sequence[str]) -> str:
    """Tabulate what a check measured; figures beyond chance are bold."""
    if not figures:
        return ""
    rows = (_row(each, is_beyond=each["name"] in beyond) for each in figures)
    return sortable(HEADS, rows, name, texts=TEXTS)


def _row(figure: Mapping[str, Any], *, is_beyond: bool) -> str:
    value, chance, tail = figure["value"], figure["chance"], figure["p_value"]
    cells = (
        f'<th scope="row">{escape(figure["name"])}</th>',
        number_cell(_float(value), spell(value)),
        f'<td class="interval">{_interval(figure["interval"])}</td>',
        number_cell(_float(chance), spell(chance)),
        number_cell(_float(tail), "< 0.0001" if isinstance(tail, float) and tail < 1e-4 else spell(tail)),
        f"<td>{_line(figure)}</td>",
    )
    return f"<tr{' class=beyond' if is_beyond else ''}>{''.join(cells)}</tr>"


def _line(figure: Mapping[str, Any]) -> str:
    """Draw a share on a line from 0 to 1: its interval, itself, and chance as a tick."""
    value, interval, chance = figure["value"], figure["interval"], figure["chance"]
    numbers = [value, *(interval or [])]
    if interval is None or not all(
        isinstance(each, float | int) and -0.01 <= each <= 1.01 for each in numbers
    ):
        return ""
    low, high = (100 * min(1.0, max(0.0, each)) for each in interval)
    tick = (
        f'<line x1="{100 * chance:.2f}" x2="{100 * chance:.2f}" y1="0" y2="12" class="chance"/>'
        if isinstance(chance, float | int) and 0 <= chance <= 1
        else ""
    )
    return (
        '<svg class="share" viewBox="-3 0 106 12" role="img" aria-label="value, interval and chance on a line from '
        '0 to 1"><line x1="0" x2="100" y1="6" y2="6" class="whole"/>'
        f'<line x1="{low:.2f}" x2="{high:.2f}" y1="6" y2="6" class="between"/>{tick}'
        f'<circle cx="{100 * value:.2f}" cy="6" r="3"/></svg>'
    )


def facts_table(facts: Mapping[str, Any]) -> str:
    """Tabulate facts by name, whatever lies in them."""
    rows = "".join(
        f'<tr><th scope="row">{escape(name.replace("_", " "))}</th><td>{_value(value)}</td></tr>'
        for name, value in facts.items()
    )
    return f'<div class="scroll" tabindex="0" role="region" aria-label="facts"><table class="told">{rows}</table></div>'


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "<br>".join(f"{escape(str(name))}: {_value(each)}" for name, each in value.items())
    if isinstance(value, list):
        apart = "<br>" if any(isinstance(each, str) for each in value) else ", "
        return apart.join(_value(each) for each in value)
    return f"<code>{escape(value)}</code>" if _is_long(value) else escape(spell(value))


def _is_long(value: Any) -> bool:
    return isinstance(value, str) and len(value) > 60


def spell(value: Any) -> str:
    """Spell a number for people; "inf" is JSON's only way to be infinite."""
    if value is None:
        return ""
    if value == "inf":
        return "infinite"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _float(value: Any) -> float | None:
    """Give what a column is sorted by."""
    return float(value) if isinstance(value, int | float) or value == "inf" else None


def _interval(interval: Any) -> str:
    return "" if interval is None else f"{spell(interval[0])} to {spell(interval[1])}"
