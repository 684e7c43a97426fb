"""The table of advice: a line for each setting, as Markdown and for a terminal, and what it does not mean."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from feddig.advise.choose import Choice, Rate, Row, Wanted

HEADS = (
    "SpD",
    "mixing",
    "mechanism",
    "record epsilon",
    "linked",
    "chance",
    "unmixed whole",
    "accuracy",
    "meets",
)
CAPTION = "linked and unmixed: share, 95 % interval, of how many; accuracy: test images, percent"


def caveats(facts: Mapping[str, Any], rows: Sequence[Row]) -> list[str]:
    """Say what the figures do not mean."""
    fewest, most = (edge(row.digests_linked for row in rows) for edge in (min, max))
    # twice the standard error of a difference of two shares, at its largest
    alike = 200 * math.sqrt(0.5 / facts["test_images"])
    attacks = (
        f"Where a rate is low, these attacks failed, on {fewest} to {most} digests of silo {facts['silo']}. That is no "
        "proof: another attack may not fail, and silos with fewer digests are easier to link."
    )
    learning = (
        f"Accuracy is of a short run ({facts['algorithm']}, {facts['rounds']} rounds of {facts['joint_steps']} joint "
        f"steps, seed {facts['seed']}) on {facts['test_images']:,} test images; differences below about {alike:.1f} "
        "points may be chance. Choosing by it uses the test set: measure the chosen setting anew, on images that were "
        "not used here."
    )
    epsilon = (
        "Record epsilon covers one release of the digest, with noise from the system's entropy (here it came from a "
        "seed), and not the updates of the model."
    )
    return [attacks, learning, epsilon]


def as_markdown(
    rows: Sequence[Row],
    failures: Mapping[str, str],
    choice: Choice,
    wanted: Wanted,
    sentences: Sequence[str],
) -> str:
    """Spell the table, what failed, and the sentences beneath."""
    lines = [HEADS, ["---"] * len(HEADS), *(cells(row, choice, wanted) for row in rows)]
    table = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    failed = "".join(f"- failed: {name}: {why}\n" for name, why in failures.items())
    said = "".join(f"- {sentence}\n" for sentence in sentences)
    return f"# Advice\n\n{table}\n{CAPTION}\n\n{said}{failed}\n<!-- format_version 1 -->\n"


def as_rich(rows: Sequence[Row], choice: Choice, wanted: Wanted) -> Table:
    """Build the same table for a terminal."""
    table = Table(caption=CAPTION)
    for head in HEADS:
        words = head in ("mixing", "mechanism", "meets")
        table.add_column(head, justify="left" if words else "right", no_wrap=True)
    for row in rows:
        table.add_row(*cells(row, choice, wanted), style="bold" if row is choice.row else None)
    return table


def cells(row: Row, choice: Choice, wanted: Wanted) -> list[str]:
    """Spell a row."""
    setting, missed = row.setting, wanted.excess(row)
    noise = "" if setting.epsilon is None else f" {setting.epsilon:g}"
    meets = "no: " + ", ".join(_short(limit) for limit in missed) if missed else "yes"
    if row is choice.row:
        meets += " (best)" if choice.is_met else " (closest)"
    return [
        str(setting.samples_per_digest),
        setting.mixing,
        setting.mechanism + noise,
        "inf" if math.isinf(row.record_epsilon) else f"{row.record_epsilon:g}",
        _spell(row.linked),
        f"{100 * row.linked.chance:.1f} %",
        "not run" if row.unmixed is None else _spell(row.unmixed),
        f"{row.accuracy:.1f}",
        meets,
    ]


def _spell(rate: Rate) -> str:
    return f"{100 * rate.share:.1f} % ({100 * rate.low:.1f} to {100 * rate.high:.1f}, of {rate.trials:,})"


def _short(limit: str) -> str:
    return limit.rsplit("-", 1)[-1].replace("rate", "linked")
