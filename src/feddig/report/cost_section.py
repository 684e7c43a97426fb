"""What a run cost: bytes that silos sent, and time."""

from html import escape

from feddig.report.page_data import split_times
from feddig.report.runs import Run


def cost_section(run: Run) -> str:
    """Tell what a run cost: bytes sent, and seconds by what they were spent on."""
    digests, updates = sum(bytes_of(run, "digest")), sum(update_bytes(run))
    sent = ""
    if digests or updates:
        sent = (
            f"<p>All silos together sent <b>{spell_bytes(updates)}</b> of updates"
            + (f" and, once, <b>{spell_bytes(digests)}</b> of digests" if digests else " and no digests")
            + ".</p>"
        )
    elif run.finished:
        sent = "<p>Nothing was sent.</p>"
    if not run.rows:
        return sent
    parts = {name: sum(values) for name, values in split_times(run).items()}
    total = sum(parts.values())
    spoken = {
        "silos": "silos",
        "recall": "recall models",
        "joint": "joint update",
        "rest": "measuring and the rest",
    }
    said = "; ".join(f"{spoken[name]} {seconds:,.1f} s" for name, seconds in parts.items())
    bars = "".join(
        f'<span class="part {name}" style="flex-grow:{seconds / total:.4f}"></span>'
        for name, seconds in parts.items()
        if total and seconds / total > 0.001
    )
    device = run.summary.get("device")
    where = f" on {escape(str(device))}" if device else ""
    return (
        f'{sent}<div class="split" role="img" aria-label="{escape(said)}">{bars}</div>'
        f'<ul class="key">'
        + "".join(
            f'<li><i class="part {name}"></i>{spoken[name]} <b>{seconds:,.1f} s</b></li>'
            for name, seconds in parts.items()
        )
        + f'</ul><p class="caption">{len(run.rows)} rounds{where}. Recall models may train beside the silos; then the '
        "parts add up to more than the whole.</p>"
    )


def bytes_of(run: Run, kind: str) -> list[int]:
    """Give what each silo sends as its digest, or as one update."""
    told = run.summary.get("bytes")
    found = told.get(kind) if isinstance(told, dict) else None
    return [each if isinstance(each, int) else 0 for each in found] if isinstance(found, list) else []


def update_bytes(run: Run) -> list[int]:
    """Add up what each silo sent as updates: one in each round that it was there."""
    each = bytes_of(run, "update")
    rounds = run.trained.sum(axis=1).tolist()
    return [size * times for size, times in zip(each, rounds, strict=False)]


def spell_bytes(count: int | None) -> str:
    """Spell a number of bytes for people."""
    if count is None:
        return ""
    for unit, size in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count / size:,.0f} {unit}"
    return f"{count} B"
