"""What to call results that stand in one figure: by what sets them apart."""

from collections.abc import Sequence

from feddig.report.grouping import NUMBERLESS, SEEDS, differing, flatten
from feddig.report.runs import Run

SHORT = {"samples_per_digest": "SpD"}


def name_apart(runs: Sequence[Run], alone: str) -> list[tuple[Run, str]]:
    """Name each run by the settings in which they differ, by seeds only where nothing else does; one is `alone`."""
    apart = [key for key in differing([flatten(run.settings) for run in runs]) if key not in NUMBERLESS]
    keys = [key for key in apart if key not in SEEDS] or [key for key in apart if key == "seed"]
    return [(run, "\n".join(_spell(run, key) for key in keys) or alone) for run in runs]


def _spell(run: Run, key: str) -> str:
    name = key.split(".")[-1]
    return f"{SHORT.get(name, name)} {run.setting(key)}"
