"""The files of advice: advice.json, advice.md and two pictures."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from feddig.advise.advice_figures import draw_by_epsilon, draw_by_linking
from feddig.advise.advice_table import as_markdown, caveats
from feddig.advise.choose import Choice, Row, Wanted, explain
from feddig.files import FORMAT_VERSION, write_atomically

PICTURES = {"accuracy-by-linking.png": draw_by_linking, "accuracy-by-epsilon.png": draw_by_epsilon}


def write_advice(
    out: Path,
    rows: Sequence[Row],
    failures: Mapping[str, str],
    facts: Mapping[str, Any],
    choice: Choice,
    wanted: Wanted,
) -> dict[str, Any]:
    """Write everything about a sweep into its folder; give what advice.json holds."""
    said, meant = explain(choice, wanted, len(rows)), caveats(facts, rows)
    advice = {
        "format_version": FORMAT_VERSION,
        "limits": {name: value if math.isfinite(value) else "inf" for name, value in wanted.values().items()},
        "met": choice.is_met,
        "recommendation": choice.row.as_json() if choice.is_met else None,
        "closest": None if choice.is_met else choice.row.as_json(),
        "misses": list(choice.misses),
        "hardest_limit": choice.hardest,
        "settings_that_meet": dict(choice.met_by),
        "sentences": said,
        "caveats": meant,
        "sweep": dict(facts),
        "rows": [{**row.as_json(), "misses": list(wanted.excess(row))} for row in rows],
        "failed": dict(failures),
    }
    for name, draw in PICTURES.items():
        write_atomically(out / name, draw(rows, choice, wanted))
    write_atomically(out / "advice.md", as_markdown(rows, failures, choice, wanted, [*said, *meant]))
    write_atomically(out / "advice.json", json.dumps(advice, indent=2, allow_nan=False) + "\n")
    return advice
