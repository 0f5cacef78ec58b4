"""A monitor's log: training curves, throughput, step time by part, and what they say about the limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from labkit.analyze.findings import Analysis, Finding
from labkit.dashboard import DashboardView
from labkit.plots import Curve, Panel, Picture, curve_panels

LARGE = 0.1
"""Share of a step that is worth looking at."""
SLOW = 0.1
"""Share by which a rank's own time exceeds the median's if it holds up the others."""
ADVICE = {
    "compute": "mixed precision, a larger batch for each GPU, fused or compiled operators: the GPUs are busy.",
    "communication": "larger batches or gradient accumulation, so that a step has more computing for its messages; "
    "larger buckets and overlap (exercise 11), compression (13), a faster network.",
    "input": "more workers or prefetch for the loader (exercise 03), data on a local disk, decoding ahead of training.",
}


def analyze_log(folder: Path) -> Analysis:
    """Analyze the log in a monitor's folder. Raises ValueError if it has no steps."""
    data = DashboardView(folder).refresh()
    if not data["steps"]:
        raise ValueError(f"{folder} has no steps of a monitor: no rank-00000.jsonl with lines of the kind step")
    analysis = Analysis(f"Training in {folder}", pictures=_pictures(data))
    parts = {name: _usual(data[f"{name}_seconds"]) for name in ADVICE}
    step, rate = _usual(data["step_seconds"]), _usual(data["samples_per_second"])
    slow, ranks = _slow_ranks(data), len(data["ranks"])
    shown = dict(parts)
    if slow:
        slowest, excess = next(iter(slow.items()))
        waiting = min(parts["communication"], excess * (parts["compute"] + parts["input"]))
        parts["communication"] -= waiting
        shown = {**parts, f"waiting for rank {slowest}": waiting}
    analysis.facts += [
        f"{data['last_step'] + 1} steps on {ranks} of {data['world_size']} ranks",
        f"{1e3 * step:,.4g} ms for a step: " + ", ".join(f"{name} {own / step:.0%}" for name, own in shown.items()),
        f"{rate:,.4g} samples/s, {rate / ranks:,.4g} for each rank",
        f"loss {_first(data['loss']):.4g} at first, {_last(data['loss']):.4g} at last",
        f"{max(_known(data['largest_memory_bytes'])) / 1e9:,.3g} GB on the fullest rank",
    ]
    analysis.findings = [
        *(_slow_rank(*rank_and_excess) for rank_and_excess in slow.items()),
        *_parts(parts, step),
        *_trends(data),
        *_alarms(data),
    ]
    return analysis


def _known(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None] or [float("nan")]


def _usual(values: Sequence[float | None]) -> float:
    """Return the median over time: one long bin does not move it."""
    return median(_known(values))


def _first(values: Sequence[float | None]) -> float:
    return _known(values)[0]


def _last(values: Sequence[float | None]) -> float:
    return _known(values)[-1]


def _slow_ranks(data: dict[str, Any]) -> dict[int, float]:
    """Return the ranks whose own time is above the median's to the end, each with the excess as a share.

    The slowest comes first: the others wait for it, and log that as communication.
    """
    rows = zip(data["ranks"], data["own_over_median"], strict=True)
    excess = {rank: _usual(row[len(row) // 2 :]) for rank, row in rows}
    return {rank: excess[rank] for rank in sorted(excess, key=lambda one: -excess[one]) if excess[rank] > SLOW}


def _slow_rank(rank: int, excess: float) -> Finding:
    return Finding(
        f"Rank {rank} computes and loads {excess:.0%} longer than the median: all others wait for it, and they log "
        "their waiting as communication.",
        f"look at rank {rank}'s machine (clocks, other programs, its loader), or give it fewer samples (exercise 16).",
    )


def _parts(parts: dict[str, float], step: float) -> list[Finding]:
    """Return the part that takes most of a step, and others that are large, too."""
    order = sorted(parts, key=lambda name: -parts[name])
    findings = [Finding(f"Most of a step is {order[0]}, {parts[order[0]] / step:.0%}.", ADVICE[order[0]])]
    for name in order[1:]:
        if name != "compute" and parts[name] >= LARGE * step:
            without = step / max(step - parts[name], parts[order[0]])  # parts may overlap
            text = (
                f"{name.capitalize()} is {parts[name] / step:.0%} of a step: without it training is {without:.2g} times"
            )
            findings.append(Finding(f"{text} as fast.", ADVICE[name]))
    return findings


def _trends(data: dict[str, Any]) -> list[Finding]:
    """Return findings about changes from the first to the last quarter of the run."""
    findings = []
    quarter = max(1, len(data["steps"]) // 4)
    rate = _known(data["samples_per_second"])
    before, after = median(rate[:quarter]), median(rate[-quarter:])
    if after < (1 - LARGE) * before:
        findings.append(
            Finding(
                f"Throughput fell by {1 - after / before:.0%} in the course of the run.", "look at who became slow."
            )
        )
    memory = _known(data["memory_bytes"])
    if len(memory) >= 4 and median(memory[-quarter:]) > (1 + LARGE) * median(memory[quarter : 2 * quarter]):
        findings.append(
            Finding("Memory grows until the end of the run.", "keep `loss.item()`, not the loss and its graph.")
        )
    losses = _known(data["loss"])
    if data["loss"][-1] is None:
        advice = "a lower learning rate, gradient clipping; 32 bits where 16 overflow (exercise 06)."
        findings.append(Finding("The loss is not finite at the end.", advice))
    elif len(losses) >= 4 and median(losses[-quarter:]) >= median(losses[:quarter]):
        findings.append(Finding("The loss does not fall.", "a lower learning rate, warm-up; look at the data."))
    return findings


def _alarms(data: dict[str, Any]) -> list[Finding]:
    """Return the monitor's alarms, once for each cause and rank."""
    seen: dict[tuple[str, int], int] = {}
    for alarm in reversed(data["alarms"]):
        seen.setdefault((alarm["cause"], alarm["rank"]), alarm["step"])
    return [Finding(f"Alarm: {cause} on rank {rank}, step {step}.") for (cause, rank), step in seen.items()]


def _pictures(data: dict[str, Any]) -> list[Picture]:
    steps = data["steps"]

    def curve(label: str, name: str, scale: float = 1.0) -> Curve:
        places = [place for place, value in enumerate(data[name]) if value is not None]
        return Curve(
            label, [steps[place] for place in places], [scale * data[name][place] for place in places], "measured"
        )

    parts = [curve(name, f"{name}_seconds", 1e3) for name in ADVICE]
    panels = [
        Panel([curve("loss", "loss")], "loss"),
        Panel([curve("samples/s", "samples_per_second")], "samples/s"),
        Panel(parts, "ms of a step", height=2.2),
        Panel([curve("memory", "largest_memory_bytes", 1e-9)], "GB"),
    ]
    return [curve_panels(panels, "step", "Training: loss, throughput, step time by part, memory of the fullest rank")]
