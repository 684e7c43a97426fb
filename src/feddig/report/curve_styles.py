"""Give every algorithm its colour, dash and hatch: the same on pages, in pictures and in figures.

A name has its style whatever other curves stand beside it. The colours of curves that commonly stand together can be
told apart with protanopia, deuteranopia and tritanopia, on light and on dark paper; dashes and hatches differ too, for
print without colour. Most of the light colours are Okabe and Ito's (2008), darker where they are too pale for lines.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

Dash = str | tuple[float, tuple[float, ...]]
"""A line style of matplotlib."""

PALETTE = (
    ("#0072b2", "#4ea8e6"),  # blue
    ("#d55e00", "#ff8a3d"),  # vermillion
    ("#009e73", "#2fc79a"),  # green
    ("#b9558c", "#e59ac4"),  # pink
    ("#a97400", "#e6b24a"),  # ochre
    ("#3b97cf", "#8fd0f7"),  # sky
    ("#4b1d91", "#8f5bff"),  # violet
    ("#6b7280", "#9aa3af"),  # grey
    ("#6e3b00", "#f2e9b5"),  # brown; on dark paper cream
    ("#1b1f24", "#e7eaee"),  # ink
    ("#00666e", "#3fb8c0"),  # teal
    ("#a3195b", "#ff6fa5"),  # wine
)
"""Each colour on light and on dark paper; the style sheet of pages calls them --c0, --c1 and so on."""
BLUE, VERMILLION, GREEN, PINK, OCHRE, SKY, VIOLET, GREY, BROWN, INK, TEAL, WINE = range(len(PALETTE))
SOLID, DASHED, DOTTED, DASH_DOT, LONG, DASH_DOT_DOT = range(6)
DASHES = ((), (7, 4), (2, 4), (9, 4, 2, 4), (14, 4), (9, 4, 2, 4, 2, 4))
"""Lengths of dashes and gaps by pattern, for a line that is two units wide."""
HATCHES = ("", "//", "..", "\\\\", "xx", "--")
"""Bars by pattern."""
STATES = {"here": ("#6f8ba5", "#6d8aa6"), "recalled": ("#4d6a85", "#8fb0ce"), "away": ("#e3e7ec", "#343b45")}
"""The colours of the absence strip, on light and on dark paper."""

KINDS = {
    "feddig": (BLUE, SOLID),
    "feddig-plus": (VIOLET, LONG),
    "feddig-no-recall": (TEAL, DASHED),
    "feddig-no-joint": (WINE, DASH_DOT),
    "frozen": (GREY, DOTTED),
}
"""What runs over a base: one colour for each, and a pattern for each base; this is the pattern over FedAvg."""
BASES = {
    "fedavg": (VERMILLION, DASHED),
    "fedprox": (GREEN, DASH_DOT),
    "fednova": (PINK, DASH_DOT_DOT),
    "feddyn": (OCHRE, LONG),
    "adabest": (SKY, DASH_DOT),
}
"""The base algorithms themselves; their large variants are solid."""
OTHERS = {
    "digests-only": (BROWN, DASH_DOT_DOT),
    "digest-expert": (BROWN, DASH_DOT),
    "centralised": (INK, SOLID),
}


@dataclass(frozen=True)
class CurveStyle:
    """Distinguishes a curve or a set of bars from the others: by its colour, and by its dash or hatch."""

    number: int
    """Of the colour in the palette."""
    pattern: int

    @property
    def colour(self) -> str:
        """The colour on light paper."""
        return PALETTE[self.number][0]

    @property
    def css_dash(self) -> str:
        """The stroke-dasharray of a line that is two pixels wide; nothing if it is solid."""
        return " ".join(map(str, DASHES[self.pattern]))

    @property
    def dash(self) -> Dash:
        """The line style for matplotlib, which multiplies it by the line's width."""
        dashes = DASHES[self.pattern]
        return (0, tuple(length / 2 for length in dashes)) if dashes else "-"

    @property
    def hatch(self) -> str:
        """The hatch of bars for matplotlib."""
        return HATCHES[self.pattern]


def known_style(algorithm: str) -> CurveStyle | None:
    """Return the style of an algorithm by its name; None for a name that is not known here."""
    kind, _, base = algorithm.partition("+")
    if kind in KINDS and base in ("", *BASES):
        number, pattern = KINDS[kind]
        rest = [each for each in range(len(DASHES)) if each != pattern]
        place = list(BASES).index(base or "fedavg")
        return CurveStyle(number, rest[place - 1] if place else pattern)
    if algorithm.removesuffix("-large") in BASES:
        number, pattern = BASES[algorithm.removesuffix("-large")]
        return CurveStyle(number, SOLID if algorithm.endswith("-large") else pattern)
    return CurveStyle(*OTHERS[algorithm]) if algorithm in OTHERS else None


def choose_styles(names: Iterable[str]) -> dict[str, CurveStyle]:
    """Give each name a style of its own: algorithms have theirs, other names what is left.

    Settings may follow an algorithm's name after a comma. Curves of one algorithm that differ in these have its colour
    and other patterns.
    """
    wanted = list(dict.fromkeys(names))
    styles: dict[str, CurveStyle] = {}
    # the algorithms first, so that no other name takes their style
    for name in sorted(wanted, key=lambda name: (known_style(_algorithm(name)) is None, "," in name)):
        own = known_style(_algorithm(name))
        taken = set(styles.values())
        free = (style for style in _candidates(own, styles.values()) if style not in taken)
        # with more names than styles, some repeat
        styles[name] = next(free, own or CurveStyle(BLUE, SOLID))
    return {name: styles[name] for name in wanted}


def _algorithm(name: str) -> str:
    return name.split(",")[0]


def _candidates(own: CurveStyle | None, used: Iterable[CurveStyle]) -> Iterator[CurveStyle]:
    """Return styles to choose from: its own, its colour with other patterns, unused colours, and all others."""
    patterns = range(len(DASHES))
    if own is not None:
        yield own
        yield from (CurveStyle(own.number, pattern) for pattern in patterns)
    numbers = {style.number for style in used}
    free = [number for number in range(len(PALETTE)) if number not in numbers]
    # neighbours differ in both, as long as there are free colours
    yield from (CurveStyle(number, number % len(DASHES)) for number in free)
    yield from (CurveStyle(number, pattern) for pattern, number in product(patterns, range(len(PALETTE))))


def colour_rules() -> str:
    """Return the rules of a page's style sheet that name these colours, on light, dark and printed paper."""
    light, dark = (
        "".join(f" --c{number}: {pair[paper]};" for number, pair in enumerate(PALETTE))
        + "".join(f" --{state}: {pair[paper]};" for state, pair in STATES.items())
        for paper in (0, 1)
    )
    return (
        f":root {{{light} }}\n"
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{{dark} }} }}\n'
        f':root[data-theme="dark"] {{{dark} }}\n'
        f'@media print {{ :root, :root:not([data-theme="light"]), :root[data-theme="dark"] {{{light} }} }}\n'
    )
