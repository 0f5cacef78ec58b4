"""One training step of the course's DDP for each bucket size: what its backward pass hides, and what is waited for."""

from __future__ import annotations

from typing import Any

from labkit import Job, Run, virtual
from labkit.site.figures.numbers import numbers
from labkit.site.figures.solutions import modules_of
from labkit.trace import Kind
from labkit.trace.busy import busy

TITLE = "Slide: messages that hide behind computing"
TRY = (
    "Data-parallel training sums gradients over all GPUs, in messages called buckets. Small ones leave early, but each "
    "pays the network's latency; a large one leaves late. Find the fastest size."
)
ABOUT = (
    "Recorded on 16 [virtual](docs/virtual.md) machines with an A100 each and 100 Gb/s Ethernet: a model of 32 layers "
    "of 1 MB, on one of the GPUs; all have the same. You write this DDP in "
    "[exercise 11](notebooks/phase3_multi_node/11_ddp.ipynb)."
)

MACHINES, LINK = 16, "ethernet-100g"
SIZES_MB = (1, 2, 4, 8, 16, 32)
FIRST_SHOWN = 32
NUMBERS = ("step", "messages", "communication hidden", "GPU waits for the network")
LAYERS, WIDTH, ROWS = 32, 512, 4608
"""The model: layers of 1 MB (2**20 bytes) of weights each, and the rows of a rank's batch."""
PROGRAM = f"""\
import time, torch, torch.distributed as dist
from torch import nn
from labkit.exercises import ddp

dist.init_process_group()
layers = nn.Sequential(*(nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS})))
model = ddp.DistributedDataParallel(layers, bucket_cap_mb={{size}}, gradient_as_bucket_view=True)
batch, gradient = torch.empty({ROWS}, {WIDTH}), torch.empty({ROWS}, {WIDTH})
dist.barrier()
began = time.perf_counter()
outputs = model(batch)
forward = time.perf_counter() - began
outputs.backward(gradient)
forward
"""
"""What each rank runs; the value is the seconds of its forward pass."""
TICKS_PER_SECOND = 10**6
"""Times are recorded in microseconds."""


def run(size: float) -> Run:
    """Run a step with buckets of `size` MB (2**20 bytes) on virtual machines, with tensors that have shapes only."""
    cluster = virtual(nnodes=MACHINES, nproc_per_node=1, inter_node=LINK, fake=True)
    job = Job(source=PROGRAM.format(size=size), filename="step.py", modules=modules_of("ddp"))
    return cluster.run(job).raise_if_failed()


def record() -> dict[str, Any]:
    """Return rank 0's step for each of `SIZES_MB`, times in microseconds; all ranks have the same."""
    return {"runs": [_recorded(size) for size in SIZES_MB]}


def _recorded(size: float) -> dict[str, Any]:
    finished = run(size)
    trace = finished.trace.since_barrier()
    began = min(event.start for event in trace.events)

    def ticks(seconds: float) -> int:
        return round((seconds - began) * TICKS_PER_SECOND)

    computing, messages = trace.of(0, Kind.COMPUTE), trace.of(0, Kind.COLLECTIVE)
    return {
        "size": size,
        "seconds": trace.seconds,
        "hidden": busy(trace)[0].overlap,
        "forward": round(finished.values[0] * TICKS_PER_SECOND),
        "computing": [[ticks(event.start), ticks(event.end)] for event in computing],
        # start, end, bytes
        "messages": [[ticks(event.start), ticks(event.end), event.nbytes] for event in messages],
    }


def parts(recording: dict[str, Any]) -> str:
    """Return the HTML of slider, curve, figures and timeline."""
    sizes = [run["size"] for run in recording["runs"]]
    return (
        f'<div class="slider"><label>bucket size <output class="chosen">{FIRST_SHOWN} MB</output>'
        '<input type="range" class="choice" '
        f'min="0" max="{len(sizes) - 1}" value="{sizes.index(FIRST_SHOWN)}" step="1"></label>'
        '<div class="curve"></div></div>' + numbers(NUMBERS) + '<div class="chart"></div>'
        '<p class="legend"><span class="compute">forward</span><span class="backward">backward</span>'
        '<span class="collective">all-reduce of a bucket</span></p>'
    )


def table(recording: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows of the runs as a table."""
    rows = [
        [f"{run['size']} MB", str(len(run["messages"])), f"{run['seconds'] * 1e3:.1f} ms", f"{run['hidden']:.0%}"]
        for run in recording["runs"]
    ]
    return ["bucket size", "messages", "step", "communication hidden"], rows
