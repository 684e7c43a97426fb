"""Tables of the page: a click on a head sorts them, and they can be copied."""

from collections.abc import Iterable, Sequence
from html import escape
from math import inf


def sortable(heads: Sequence[str], rows: Iterable[str], name: str, texts: Sequence[int] = (0,)) -> str:
    """Lay out a table whose columns sort and which can be copied; `texts` are the columns of words."""
    head = "".join(
        f'<th scope="col"{"" if place in texts else " class=number"}>'
        f'<button type="button" class="sort">{escape(each)}</button></th>'
        for place, each in enumerate(heads)
    )
    copies = "".join(
        f'<button type="button" class="copy" data-copy="{kind}">{kind}</button>'
        for kind in ("CSV", "Markdown", "LaTeX")
    )
    return (
        f'<div class="table" data-table="{escape(name)}"><div class="tools">Copy as {copies}'
        f'<span role="status" class="said"></span></div><div class="scroll" tabindex="0" role="region" '
        f'aria-label="{escape(name)}"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
        "</div></div>"
    )


def text_cell(text: str) -> str:
    """Lay out words, which users may have chosen."""
    return f"<td>{escape(text)}</td>"


def number_cell(value: float | None, shown: str) -> str:
    """Lay out a number to sort by, and how it is shown; None where it is not known."""
    by = "" if value is None else "Infinity" if value == inf else value
    return f'<td class="number" data-value="{by}">{escape(shown)}</td>'


def percent_cell(value: float | None) -> str:
    """Lay out a percentage."""
    return number_cell(None if value is None else round(value, 4), "" if value is None else f"{value:.1f}")
