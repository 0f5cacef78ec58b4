"""Four ranks with a barrier after each batch; one rank may have fewer batches, and the lab says where others hang."""

from __future__ import annotations

import html
import re
from typing import Any

from labkit import Job, Run, virtual
from labkit.trace import Kind

TITLE = "Press play: one rank skips a barrier"
TRY = (
    "Four ranks run this program, and rank 2 has one batch fewer. Press play, and see who comes to the barrier and "
    "what the lab says. Then give rank 2 its third batch."
)
ABOUT = (
    "Recorded from four [virtual ranks](docs/virtual.md) when this page was built: times are modelled, and the lab's "
    "words are its own. In [exercise 01](notebooks/phase1_data_parallel/01_process_group.ipynb) yours hang like this."
)

FILE = "train.py"
"""Name of the program in the diagnosis."""
BATCHES = (1, 2, 3)
"""Batches that rank 2 may have; the others have the last number."""
FIRST_SHOWN = 2
PROGRAM = """\
import torch, torch.distributed as dist

dist.init_process_group()
rank = dist.get_rank()
batches = {batches} if rank == 2 else 3
weight = torch.randn(1024, 1024)
for batch in range(batches):
    rows = 1000 + 400 * ((rank + batch) % 4)
    torch.randn(rows, 1024) @ weight
    dist.barrier()
"""
CHANGED_LINE = 5
"""Line of the program in which `batches` is, counted from 1."""
TICKS_PER_SECOND = 10**9
"""Times are recorded in nanoseconds."""
_CAUSE = re.compile(r"rank \d+ ended without it")


def run(batches: int) -> Run:
    """Run the program on four virtual ranks, of which rank 2 has so many batches."""
    return virtual(nproc_per_node=4).run(Job(source=PROGRAM.format(batches=batches), filename=FILE))


def record() -> dict[str, Any]:
    """Return the runs for each of `BATCHES`: bars, waiting ranks and ended ranks, times in nanoseconds."""
    return {"changed": CHANGED_LINE, "runs": [_recorded(batches) for batches in BATCHES]}


def _recorded(batches: int) -> dict[str, Any]:
    finished = run(batches)
    trace = finished.trace
    began = min(event.start for event in trace.events)

    def ticks(seconds: float) -> int:
        return round((seconds - began) * TICKS_PER_SECOND)

    waiting = [result for result in finished.ranks if result.error is not None]
    lasts = {rank: max(event.end for event in trace.of(rank)) for rank in range(trace.world_size)}
    collective = next(event for event in trace.events if event.kind is Kind.COLLECTIVE)
    return {
        "batches": batches,
        "line": int(collective.line.rpartition(" ")[2]),
        # rank, kind, start, end
        "bars": [[event.rank, event.kind.value, ticks(event.start), ticks(event.end)] for event in trace.events],
        # a collective that never completes is no event: it was called where the rank's last event ended
        "waiting": [[result.rank, ticks(lasts[result.rank])] for result in waiting],
        "ended": [[result.rank, ticks(lasts[result.rank])] for result in finished.ranks if result.error is None],
        "diagnosis": finished.diagnosis(),
    }


def parts(recording: dict[str, Any]) -> str:
    """Return the HTML of controls, program, timeline and diagnosis."""
    runs = recording["runs"]
    shown = next(run for run in runs if run["batches"] == FIRST_SHOWN)
    choices = "".join(
        f'<label><input type="radio" name="batches" value="{number}"{" checked" if run is shown else ""}>'
        f"{run['batches']}</label>"
        for number, run in enumerate(runs)
    )
    source = PROGRAM.format(batches=FIRST_SHOWN).splitlines()
    program = "".join(
        f'<span class="line" data-line="{number}"><span class="number">{number}</span>'
        f'<code>{html.escape(line) or " "}</code><span class="here"></span></span>'
        for number, line in enumerate(source, 1)
    )
    diagnoses = "".join(
        f'<pre class="diagnosis{" shown" if run is shown else ""}">{_marked(run["diagnosis"])}</pre>'
        if run["diagnosis"]
        else '<p class="diagnosis">All four ranks have ended: every barrier was passed by all of them.</p>'
        for run in runs
    )
    return (
        '<div class="controls"><button type="button" class="play">Play</button>'
        '<label class="wide">time <input type="range" class="time" min="0" max="100" value="0" step="1"></label>'
        f"<fieldset><legend>batches of rank 2</legend>{choices}</fieldset></div>"
        f'<div class="beside"><div class="program" role="group" aria-label="{FILE}" tabindex="0">{program}</div>'
        '<div><div class="chart"></div><p class="legend"><span class="compute">computes</span>'
        '<span class="collective">is in the barrier</span></p></div></div>'
        '<p class="says">The lab says</p>'
        f'<div class="verdict"><p class="diagnosis pending">nothing yet: some rank can still go on</p>{diagnoses}</div>'
    )


def _marked(diagnosis: str) -> str:
    return _CAUSE.sub(lambda match: f"<mark>{match[0]}</mark>", html.escape(diagnosis))


def table(recording: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows of the runs as a table."""
    rows = []
    for run in recording["runs"]:
        last = max(bar[3] for bar in run["bars"])
        waiting = ", ".join(str(rank) for rank, _ in run["waiting"]) or "none"
        rows.append([str(run["batches"]), f"{last / 1000:.0f} µs", waiting])
    return ["batches of rank 2", "last event after", "ranks that wait for ever"], rows
