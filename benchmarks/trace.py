"""Cost of recording on real ranks: CPU time of all ranks with the trace, without it, and with torch's own groups.

Two DDP programs: a small one, whose steps take about a millisecond, and one of a size that is worth distributing. The
three variants alternate, each in a fresh job; every pair of neighbours gives one ratio, and the median is printed.
Without the trace a rank still reports to its supervisor which operations are in progress, so that a hang can be
diagnosed: that is the difference between "off" and "torch". Last, how much later a cell with a very long trace ends.

    python benchmarks/trace.py [--pairs 30] [--ranks 2] [--quick]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

from rich.console import Console
from rich.table import Table

from labkit import Job, Run, local
from labkit.clusters.forkserver.client import ForkServer
from labkit.clusters.local.recording import MAX_EVENTS

DDP = """
import time, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(0)
dist.init_process_group("gloo")
width, batch, steps = {width}, {batch}, {steps}
layers = torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, width), torch.nn.Linear(width, 10)
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb={bucket_mb})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def step():
    optimizer.zero_grad()
    model(torch.randn(batch, 64)).square().mean().backward()
    optimizer.step()

for _ in range(5):
    step()
dist.barrier()
began = time.process_time()
for _ in range(steps):
    step()
time.process_time() - began
"""
PROGRAMS = {
    "small MLP, 13,000 parameters, batch of 16": {"width": 80, "batch": 16, "bucket_mb": 25, "steps": 400},
    "MLP of 2 buckets, 330,000 parameters, batch of 64": {"width": 540, "batch": 64, "bucket_mb": 1, "steps": 100},
}
MANY = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
x = torch.ones(1)
for _ in range({calls}):
    dist.all_reduce(x, group=alone)
time.monotonic()
"""
WAYS = ("torch", "off", "on")


class Unrecorded(ForkServer):
    """Forkserver whose ranks have torch's own process groups."""

    def run(self, entry: str, job: Job, *, options: Any, **rest: Any) -> Run:
        return super().run(entry, job, options={**options, "recorded": False}, **rest)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="two pairs of few steps: does it run?")
    args = parser.parse_args()
    pairs = 2 if args.quick else args.pairs
    console = Console(width=120)
    clusters = {"torch": local(args.ranks, forkserver=Unrecorded()), "off": local(args.ranks), "on": local(args.ranks)}

    def run(way: str, source: str) -> Run:
        return clusters[way].run(Job(source=source, trace=way == "on", timeout=300)).raise_if_failed()

    table = Table("DDP", "events", *(f"{way}, ms" for way in WAYS), "off / torch", "on / off", "on / torch")
    for name, sizes in PROGRAMS.items():
        steps = 10 if args.quick else sizes["steps"]
        source = DDP.format(**{**sizes, "steps": steps})
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        events = 0.0
        for number in range(pairs):
            for way in WAYS[number % 3 :] + WAYS[: number % 3]:
                result = run(way, source)
                seconds[way].append(sum(result.values))
                events = max(events, len(result.trace.of(0)) / steps)
        medians = [f"{1e3 * statistics.median(seconds[way]) / steps:.3f}" for way in WAYS]
        ratios = [_ratio(seconds[a], seconds[b]) for a, b in (("off", "torch"), ("on", "off"), ("on", "torch"))]
        table.add_row(name, f"{events:.1f}", *medians, *ratios)
    console.print(
        f"Each step: events of one rank, CPU time of {args.ranks} ranks. Medians of {pairs} interleaved runs; ratios: "
        "median of the pairs' (quartiles)"
    )
    console.print(table)

    source = MANY.format(calls=500 if args.quick else MAX_EVENTS)
    late = {}
    for way in ("off", "on"):
        result = run(way, source)
        late[way] = time.monotonic() - max(result.values)
    console.print(
        f"{len(result.trace.events):,} events of {args.ranks} ranks: the cell ends {late['on']:.2f} s after its last "
        f"line, without the trace {late['off']:.2f} s"
    )


def _ratio(seconds: list[float], others: list[float]) -> str:
    """Format the median of the pairs' ratios, with quartiles, as a change in percent."""
    changes = [100 * (a / b - 1) for a, b in zip(seconds, others, strict=True)]
    low, middle, high = statistics.quantiles(changes, n=4, method="inclusive")
    return f"{middle:+.1f} % ({low:+.1f} to {high:+.1f})"


if __name__ == "__main__":
    main()
