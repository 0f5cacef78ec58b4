"""One training step of the course's pipeline for each number of microbatches and two schedules: who waits, how long."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, pairwise
from typing import Any

from labkit import Job, Run, virtual
from labkit.plots.schedules.pipeline import kept
from labkit.site.figures.numbers import numbers
from labkit.site.figures.solutions import modules_of
from labkit.trace.busy import busy

TITLE = "Drag: microbatches fill a pipeline"
TRY = (
    "Four GPUs hold a quarter of the layers each; grey is waiting, the bubble. Cut the batch into more microbatches, "
    "and watch it shrink. Then change the schedule: the bubble stays, so what gets smaller?"
)
ABOUT = (
    "Recorded on four [virtual](docs/virtual.md) A100s: p = 4 stages, m microbatches. Measured is a little "
    "more than the formula, since messages take time and the last stage computes the loss, too. You write this in "
    "[exercise 09](notebooks/phase2_advanced/09_pipeline_parallel.ipynb)."
)

STAGES, MOST = 4, 16
"""GPUs, each a stage, and the maximum number of microbatches."""
SCHEDULES = {"gpipe": "GPipe", "1f1b": "1F1B"}
FIRST_SHOWN = 1
FORMULA = "(p - 1)/(m + p - 1)"
NUMBERS = ("bubble, measured", FORMULA, "step", "activations kept on GPU 0")
LAYERS, WIDTH, ROWS = 16, 2048, 16384
"""The model, and the rows of the whole batch."""
PROGRAM = f"""\
import time, torch, torch.distributed as dist
from torch import nn
from labkit.exercises import pipeline_parallel as pp

dist.init_process_group()
rank, ranks = dist.get_rank(), dist.get_world_size()


class Watched(pp.PipelineStage):
    def forward(self, k, *given, **named):
        return self.timed("f", k, super().forward, given, named)

    def backward(self, k, *given, **named):
        return self.timed("b", k, super().backward, given, named)

    def timed(self, op, k, do, given, named):
        began = time.perf_counter()
        result = do(k, *given, **named)
        steps[-1].append((op, k, began, time.perf_counter()))
        return result


layers = [nn.Sequential(nn.Linear({WIDTH}, {WIDTH}), nn.Tanh()) for _ in range({LAYERS})]
stage = Watched(pp.split_into_stages(layers, ranks)[rank], rank, ranks)
schedules = [pp.get_pipeline_schedule("{{schedule}}", ranks, count) for count in {{counts}}]
pipelines = [pp.PipelineParallel([stage], schedule) for schedule in schedules]
batch, steps = torch.ones({ROWS}, {WIDTH}), []
for pipeline in pipelines:
    steps.append([])
    stage.module.zero_grad()
    dist.barrier()
    pipeline.forward_backward(batch, batch, nn.functional.mse_loss)
steps
"""
"""A step for each number of microbatches; the value has what the rank did in each step: `f` or `b`, the microbatch,
start and end in seconds.
"""
_OPS = {"f": "forward", "b": "backward"}
TICKS_PER_SECOND = 10**5
"""Times are recorded in units of 10 microseconds."""


def run(schedule: str, counts: Sequence[int]) -> Run:
    """Run a step for each number of microbatches on virtual GPUs of one machine, with tensors that have shapes only."""
    source = PROGRAM.format(schedule=schedule, counts=list(counts))
    job = Job(source=source, filename="step.py", modules=modules_of("pipeline_parallel"))
    return virtual(nproc_per_node=STAGES, fake=True).run(job).raise_if_failed()


def record() -> dict[str, Any]:
    """Return the steps of each schedule, for 1 to `MOST` microbatches."""
    return {"runs": {schedule: steps_of(run(schedule, range(1, MOST + 1))) for schedule in SCHEDULES}}


def steps_of(finished: Run) -> list[dict[str, Any]]:
    """Return the steps of a run: seconds, bubble, each rank's blocks, and the most microbatches that rank 0 kept."""
    trace = finished.trace
    starts = [event.end for event in trace.of(0) if event.operation == "barrier"]
    steps = []
    for at, (start, end) in enumerate(pairwise([*starts, math.inf])):
        step = replace(
            trace,
            events=[event for event in trace.events if start <= event.start < end and event.operation != "barrier"],
        )
        times = busy(step)
        blocks = [of_rank[at] for of_rank in finished.values]
        actions = [(begun, 0, _OPS[op], k, 0) for op, k, begun, _ in blocks[0]]
        began = min(block[2] for rank in blocks for block in rank)
        steps.append(
            {
                "seconds": step.seconds,
                "bubble": sum(time.bubble for time in times) / len(times),
                "kept": kept(actions, 1)[0],
                "ranks": [_packed(rank, began) for rank in blocks],
            }
        )
    return steps


def _packed(blocks: list[tuple[str, int, float, float]], began: float) -> list[Any]:
    """Return one letter per block, and for each block the time that the rank waited before it, and its length.

    Microbatches of either kind are in order, so the letters say which block is which.
    """
    for op in "fb":
        assert [k for kind, k, *_ in blocks if kind == op] == list(range(len(blocks) // 2))
    marks = [round((moment - began) * TICKS_PER_SECOND) for block in blocks for moment in block[2:]]
    return ["".join(block[0] for block in blocks), [b - a for a, b in zip([0, *marks], marks, strict=False)]]


def blocks(packed: list[Any]) -> list[tuple[str, int, int, int]]:
    """Return what `_packed` was given: kind, microbatch, start and end, in units of 10 microseconds."""
    letters, steps = packed
    now, seen, found = 0, {"f": 0, "b": 0}, []
    for at, letter in enumerate(letters):
        start = now + steps[2 * at]
        now = start + steps[2 * at + 1]
        found.append((letter, seen[letter], start, now))
        seen[letter] += 1
    return found


def parts(recording: dict[str, Any]) -> str:
    """Return the HTML of slider, schedules, figures and timeline."""
    choices = "".join(
        f'<label><input type="radio" name="schedule" value="{name}"{" checked" if at == 0 else ""}>{label}</label>'
        for at, (name, label) in enumerate(SCHEDULES.items())
    )
    return (
        f'<div class="controls"><fieldset><legend>schedule</legend>{choices}</fieldset></div>'
        f'<div class="slider"><label>microbatches <output class="chosen">{FIRST_SHOWN}</output>'
        '<input type="range" class="choice" '
        f'min="1" max="{MOST}" value="{FIRST_SHOWN}" step="1"></label>'
        '<div class="curve"></div></div>' + numbers(NUMBERS) + '<div class="chart"></div>'
        '<p class="legend"><span class="compute">forward of a microbatch</span>'
        '<span class="backward">its backward</span>'
        '<span class="dashed">bubble of the formula</span></p>'
    )


def table(recording: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows of the runs as a table."""
    runs = recording["runs"]
    rows = [
        [
            str(at + 1),
            f"{(STAGES - 1) / (at + STAGES):.1%}",
            *chain.from_iterable((f"{run['bubble']:.1%}", str(run["kept"])) for run in pair),
        ]
        for at, pair in enumerate(zip(*runs.values(), strict=True))
    ]
    labels = SCHEDULES.values()
    heading = [f"{what}, {label}" for label in labels for what in ("bubble", "kept on GPU 0")]
    return ["microbatches", FORMULA, *heading], rows
