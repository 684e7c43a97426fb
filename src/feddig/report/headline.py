"""The report in a few sentences: what happened to accuracy when whom left, and against what."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from feddig.core.absence import Absence
from feddig.report.grouping import Curve, Group, mean_and_spread
from feddig.report.runs import Run

MOST_EVENTS = 6
"""Leaves that are told one by one; more are told as a number."""


@dataclass(frozen=True)
class Tile:
    """One figure, large: what it is, how much, and what that means."""

    title: str
    value: str
    says: str


@dataclass(frozen=True)
class Headline:
    """A scenario's title, sentences and figures."""

    title: str
    sentences: Sequence[str]
    tiles: Sequence[Tile]


def tell(group: Group) -> Headline:
    """Say what happened in a scenario to the curve that matters most."""
    curve, run = group.main, group.main.runs[0]
    final = mean_and_spread(curve.values("final").values())
    if final is None:
        return Headline("No round is finished yet", [*_who_left(run)], [])
    sentences = _who_left(run)
    if len({_shape(each) for each in curve.runs}) > 1:
        sentences[0] = f"In seed {run.seed} {sentences[0][:1].lower()}{sentences[0][1:]}"
    seeds = "" if len(curve.runs) == 1 else f" (mean of {len(curve.runs)} seeds)"
    ended = "ended at" if group.finished else "is so far at"
    rivals = [_against(curve, *rival) for rival in _rivals(group)]
    sentences.append(f"{curve.name} {ended} {spell(final)}\u00a0%{seeds}{_join(rivals)}.")
    tiles = [
        Tile(
            "at the end" if group.finished else "so far",
            f"{spell(final)}\u00a0%",
            f"{curve.name}, {run.measured_on} accuracy{seeds}",
        )
    ]
    tiles += [_tile(curve, *rival) for rival in _rivals(group)]
    away = mean_and_spread(curve.values("absence_mean").values())
    if away is not None:
        tiles.append(Tile("while silos were away", f"{spell(away)}\u00a0%", "mean over those rounds"))
    return Headline(_title(final, curve.runs), sentences, tiles)


def _shape(run: Run) -> bytes:
    """Name who was there when, to see whether seeds differ in it."""
    return b"" if run.absence is None else run.absence.present.tobytes()


def _title(final: tuple[float, float | None], runs: Sequence[Run]) -> str:
    run, at = runs[0], f"{final[0]:.1f}\u00a0%"
    if not run.finished:
        return f"{at} after {len(run.rows)} of {run.planned} rounds"
    gone_in = {each.absence is not None and int(each.absence.away[:, -1].sum()) for each in runs}
    if run.absence is None or len(gone_in) > 1:
        return f"{at} at the end"
    here, silos = int(run.absence.present[:, -1].sum()), run.absence.silos
    gone = int(run.absence.away[:, -1].sum())
    if run.absence.first_leave() is None:
        return f"{at} with nobody away"
    if gone == 0:
        return f"{at} after all who left had returned"
    if here == 0 and gone == silos:
        return f"{at} after {'every silo' if silos > 1 else 'the only silo'} had left"
    return f"{at} with {gone} of {silos} silos gone"


def _who_left(run: Run) -> list[str]:
    """Say who left when."""
    if run.absence is None or not run.silos:
        return ["Who was there is not known."]
    if not run.rows:
        return [f"{run.silos} silo{'s' if run.silos > 1 else ''}, {run.planned} rounds."]
    # a plan is not told as if it had happened
    absence = run.absence if run.finished else Absence(run.absence.present[:, : len(run.rows)])
    if absence.first_leave() is None:
        everybody = f"All {absence.silos} silos" if absence.silos > 1 else "The only silo"
        return [f"{everybody} stayed{'' if run.finished else ' so far'}."]
    leaves = absence.away[:, 1:] & absence.present[:, :-1]
    rounds = np.flatnonzero(leaves.any(axis=0)) + 1
    if len(rounds) <= MOST_EVENTS:
        told = [
            f"{_silos(run, np.flatnonzero(leaves[:, round - 1]).tolist())} left at round {round}"
            for round in rounds.tolist()
        ]
        sentence = f"{', '.join(told)}."
    else:
        who = int(leaves.any(axis=1).sum())
        sentence = f"{who} of {absence.silos} silos left at some time, the first at round {rounds[0]}."
    returned = int((absence.away.any(axis=1) & absence.present[:, -1]).sum())
    when = "at the end" if run.finished else "by now"
    back = [f"{returned} of them {'was' if returned == 1 else 'were'} back {when}."] if returned else []
    return [sentence[:1].upper() + sentence[1:], *back]


def _silos(run: Run, silos: list[int]) -> str:
    if len(silos) > MOST_EVENTS:
        return f"{len(silos)} silos"
    return " and ".join(run.silo_names[silo] for silo in silos)


def _rivals(group: Group) -> list[tuple[str, str, dict[int, float]]]:
    """Give what the main curve is held against: name, what it is, its end by seed."""
    curve = group.main
    base = curve.algorithm.split("+", 1)[1] if "+" in curve.algorithm else "fedavg"
    found: list[tuple[str, str, dict[int, float]]] = []
    plain = group.find(base, "fedavg")
    if plain is not None and plain is not curve:
        found.append((plain.name, "the same rounds without digests", plain.values("final")))
    frozen = group.find(f"frozen+{base}", "frozen")
    if frozen is not None and frozen is not curve:
        found.append((frozen.name, "the model kept as it was before the first leave", frozen.values("final")))
    elif curve.values("frozen_own"):
        found.append(
            ("its own model before the first leave", "what stopping there kept", curve.values("frozen_own"))
        )
    return found


def lead(curve: Curve, ends: dict[int, float]) -> tuple[float, float | None] | None:
    """Give how far a curve ended above others, over the seeds that both have."""
    own = curve.values("final")
    return mean_and_spread([own[seed] - ends[seed] for seed in own.keys() & ends.keys()])


def _against(curve: Curve, name: str, means: str, ends: dict[int, float]) -> str:
    ahead, end = lead(curve, ends), mean_and_spread(ends.values())
    if end is None:
        return ""
    if ahead is None:
        return f"{name} ended at {spell(end)}\u00a0%, with other seeds"
    difference = ahead[0]
    where = "level with" if abs(difference) < 0.05 else f"{abs(difference):.1f} points {_side(difference)}"
    return f"{where} {name} ({spell(end)}\u00a0%)"


def _side(difference: float) -> str:
    return "above" if difference > 0 else "below"


def _tile(curve: Curve, name: str, means: str, ends: dict[int, float]) -> Tile:
    ahead = lead(curve, ends)
    value = "not comparable" if ahead is None else f"{spell(ahead, signed=True)} points"
    return Tile(f"against {name}", value, means)


def _join(parts: Sequence[str]) -> str:
    told = [part for part in parts if part]
    return f": {' and '.join(told)}" if told else ""


def spell(value: tuple[float, float | None], *, signed: bool = False) -> str:
    """Spell a mean with its deviation, if it has one."""
    mean, deviation = value
    # a true minus sign is as wide as a plus
    number = (f"{mean:+.1f}" if signed else f"{mean:.1f}").replace("-", "−")
    return number + ("" if deviation is None else f" ± {deviation:.1f}")
