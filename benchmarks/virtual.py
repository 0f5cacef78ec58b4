"""Real time and memory of virtual ranks, compared with torch's threaded process group.

Each program runs on virtual ranks with everything on: clocks, trace, accounting of computing time and memory. "Inside"
is from the first rank's start, after `init_process_group`, to the last one's end; "whole" is the whole job, including
starting the ranks and reading the trace. "CPU" is the CPU time of all ranks inside, which other load of the machine
changes least. The large models' ranks run in as many processes as there are cores, or `--processes`. Times are medians;
the peer's runs alternate with ours. "Torch alone" is the CPU time of torch's own code for one rank (torch_alone.py),
times the ranks: a process that runs each rank's code needs more.

    python benchmarks/virtual.py [--repetitions 3] [--quick] [--processes N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from labkit import Job, Run, virtual
from labkit.clusters.forkserver.client import shared

PEER = Path(__file__).with_name("threaded_group.py")
ALONE = Path(__file__).with_name("torch_alone.py")
HEAD = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
dist.barrier()
print("begin")
"""
RING = """
chunks = torch.full((n,), float(rank)).chunk(n)
arrived = torch.empty(1)
for step in range(n - 1):
    sending = dist.isend(chunks[(rank - step) % n], (rank + 1) % n)
    dist.recv(arrived, (rank - 1) % n)
    sending.wait()
    chunks[(rank - step - 1) % n].add_(arrived)
for step in range(n - 1):
    sending = dist.isend(chunks[(rank + 1 - step) % n], (rank + 1) % n)
    dist.recv(chunks[(rank - step) % n], (rank - 1) % n)
    sending.wait()
"""
MESSAGES = """
x, arrived = torch.ones(1), torch.empty(1)
for _ in range({rounds}):
    sending = dist.isend(x, (rank + 1) % n)
    dist.recv(arrived, (rank - 1) % n)
    sending.wait()
"""
ALL_REDUCE = """
x = torch.ones(1000)
for _ in range(100):
    dist.all_reduce(x)
"""
DDP = """
torch.manual_seed(0)
layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    loss = model(torch.randn(16, 64)).pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

CPU = """
import os, time
print("cpu", os.getpid(), time.process_time())
"""
MEMORY = """
import resource
print("gib", os.getpid(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""
FSDP = """
from labkit.models import GPT, GPTConfig
from torch.distributed.fsdp import fully_shard
config = GPTConfig({config})
mesh = dist.device_mesh.init_device_mesh("cpu", (n,))
with torch.device("meta"):
    model = GPT(config)
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to_empty(device="cpu")
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(config.vocab, (1, config.context))
loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
loss.backward()
optimizer.step()
"""
LAYOUT = """
from dataclasses import replace
from labkit.models import GPT, GPTConfig
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
config = GPTConfig({config})
data, stages = {layout}
mesh = dist.device_mesh.init_device_mesh(
    "cpu", (data, stages, n // data // stages), mesh_dim_names=("data", "pipeline", "tensor")
)
stage, depth = mesh["pipeline"].get_local_rank(), config.layers // stages
{built}
for block in blocks:
    parallelize_module(block, mesh["tensor"], {{
        "attention.qkv": ColwiseParallel(), "attention.out": RowwiseParallel(),
        "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel(),
    }})
first, last = stage == 0, stage == stages - 1
ends = [*([model.token_embedding, model.position_embedding] if first else []),
        *([model.norm, model.head] if last else [])]
mine = torch.nn.ModuleList([*blocks, *ends])
del model.blocks
optimizer = torch.optim.AdamW(mine.parameters())
at = lambda stage: dist.get_global_rank(mesh["pipeline"].get_group(), stage)
shape = 1, config.context, config.width
kept = []
for microbatch in range({microbatches}):
    tokens = torch.randint(config.vocab, (1, config.context))
    x = model.embed(tokens) if first else torch.empty(shape, requires_grad=True)
    if not first:
        dist.recv(x.data, at(stage - 1))
    y = x
    for block in blocks:
        y = block(y)
    if last:
        y = torch.nn.functional.cross_entropy(model.head(model.norm(y)).flatten(0, 1), tokens.flatten())
    else:
        dist.send(y.detach(), at(stage + 1))
    kept.append((x, y))
for x, y in kept:
    gradient = None
    if not last:
        gradient = torch.empty(shape)
        dist.recv(gradient, at(stage + 1))
    y.backward(gradient)
    if not first:
        dist.send(x.grad, at(stage - 1))
for parameter in mine.parameters():
    gradient = parameter.grad.to_local() if hasattr(parameter.grad, "to_local") else parameter.grad
    dist.all_reduce(gradient, group=mesh["data"].get_group())
optimizer.step()
"""
WHOLE = """
model = GPT(config)
blocks = torch.nn.ModuleList(model.blocks[depth * stage : depth * (stage + 1)])
"""
STAGE = """
model = GPT(replace(config, layers=depth))
blocks = torch.nn.ModuleList(model.blocks)
"""


@dataclass(frozen=True)
class Cost:
    """Cost of one run, in seconds."""

    inside: float
    whole: float
    cpu: float


@dataclass(frozen=True)
class Case:
    """One program on a number of ranks, with its target and the figures of others."""

    title: str
    program: str
    ranks: int
    target: float
    """Target for the seconds inside."""
    peer: str = ""
    """Name of the program in threaded_group.py; empty if the peer cannot run it."""
    alone: bool = True
    """Whether torch alone can run it: DDP's reducer refuses what a group that computes nothing returns."""


def cases(quick: bool) -> list[Case]:
    ring, many, few = (16, 64, 8) if quick else (256, 1024, 64)
    messages = 2 * (ring - 1) * ring
    return [
        Case(f"ring all-reduce, {messages:,} messages", RING, ring, 2.5),
        Case("100 all_reduce of 1,000 floats", ALL_REDUCE, many, 6.0, "all_reduce"),
        Case("3 steps of DDP, MLP", DDP, few, 0.35, "ddp", alone=False),
    ]


def cost(program: str, ranks: int, trace: bool = True) -> Cost:
    """Run the program once."""
    heard: list[float] = []

    def listen(rank: int, stream: str, text: str) -> None:
        if stream == "stdout":
            heard.append(time.perf_counter())

    began = time.perf_counter()
    cluster = virtual(nnodes=max(1, ranks // 8), nproc_per_node=min(8, ranks))
    job = Job(source=f"{HEAD}{CPU}{program}{CPU}\nprint('end')", trace=trace)
    run = cluster.run(job, listen).raise_if_failed()
    return Cost(heard[-1] - heard[0], time.perf_counter() - began, cpu_seconds(run))


def cpu_seconds(run: Run) -> float:
    """CPU seconds of all ranks, which are threads of one or more processes, from the first `CPU` to the last."""
    return sum(max(read) - min(read) for read in _by_process(run, "cpu"))


def _by_process(run: Run, name: str) -> list[list[float]]:
    """Return the numbers that the ranks of each process have printed under that name."""
    by_process: dict[str, list[float]] = {}
    for line in [line.split() for rank in run.ranks for line in rank.output.splitlines()]:
        if line[:1] == [name]:
            by_process.setdefault(line[1], []).append(float(line[2]))
    return [*by_process.values()]


def peer_seconds(name: str, ranks: int) -> float:
    return printed([str(PEER), name, str(ranks)])


def alone_seconds(program: str, ranks: int) -> float:
    """CPU seconds of torch's own code for all ranks, from those of one in the middle."""
    return ranks * printed([str(ALONE), str(ranks // 2), str(ranks)], program)


def printed(command: list[str], program: str | None = None) -> float:
    """Run a Python program in a process of its own, on one thread; return the number that it prints."""
    command = [sys.executable, "-W", "ignore", *command]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, input=program, check=True, capture_output=True, text=True, env=environment)
    return float(run.stdout)


def compare(options: argparse.Namespace) -> Table:
    table = Table(title=f"Seconds, median of {options.repetitions}, {os.cpu_count()} cores")
    for heading in ("program", "ranks", "inside", "target", "CPU", "whole", "torch alone", "threaded group", "ratio"):
        table.add_column(heading, justify="left" if heading == "program" else "right")
    for case in cases(options.quick):
        ours, theirs = [], []
        for _ in range(options.repetitions):
            ours.append(cost(case.program, case.ranks))
            if case.peer:
                theirs.append(peer_seconds(case.peer, case.ranks))
        inside = statistics.median(run.inside for run in ours)
        cpu, whole = (
            statistics.median(figures) for figures in zip(*[(run.cpu, run.whole) for run in ours], strict=True)
        )
        beside = ["cannot: no send", "-"]
        if theirs:
            beside = [f"{statistics.median(theirs):.2f}", f"{statistics.median(theirs) / inside:.1f}x"]
        target = "-" if options.quick else f"{case.target:.2f}"
        alone = f"{alone_seconds(case.program, case.ranks):.2f}" if case.alone else "cannot"
        table.add_row(
            case.title, str(case.ranks), f"{inside:.2f}", target, f"{cpu:.2f}", f"{whole:.2f}", alone, *beside
        )
    return table


@dataclass(frozen=True)
class LargeModel:
    """One training step of a model that fits no single GPU, on fake tensors."""

    title: str
    program: str
    narrow: str
    """The same program with short vectors, for real tensors."""
    ranks: int
    target: float
    """Target for the seconds inside."""


def large_models(quick: bool) -> list[LargeModel]:
    few, many = (8, 16) if quick else (32, 1024)
    wide, wider = ("2, 4, 64", "4, 4, 64") if quick else ("40, 40, 5120", "80, 64, 8448")
    narrow = "2, 4, 16, 64, 16" if quick else "40, 40, 160, 64, 16"
    narrower = "4, 4, 16, 64, 16" if quick else "80, 64, 256, 64, 16"
    layouts = ((2, 2), (2, 4)) if quick else ((2, 4), (8, 16))
    size, larger = ("tiny",) * 2 if quick else ("13 billion parameters", "69 billion parameters")

    def whole(config: str) -> str:
        return LAYOUT.format(config=config, layout=layouts[0], microbatches=layouts[0][1], built=WHOLE)

    def staged(config: str) -> str:
        return LAYOUT.format(config=config, layout=layouts[1], microbatches=1, built=STAGE)

    product, larger_product = _product(layouts[0], few), _product(layouts[1], many)
    return [
        LargeModel(f"FSDP2, GPT, {size}", FSDP.format(config=wide), FSDP.format(config=narrow), few, 15.0),
        LargeModel(f"Data x pipeline x tensor {product}, GPT, {size}", whole(wide), whole(narrow), few, 6.0),
        LargeModel(
            f"Data x pipeline x tensor {larger_product}, GPT, {larger}, one microbatch",
            staged(wider),
            staged(narrower),
            many,
            60.0,
        ),
    ]


def _product(layout: tuple[int, int], ranks: int) -> str:
    data, stages = layout
    return f"{data} x {stages} x {ranks // data // stages}"


def large_model(case: LargeModel, quick: bool, processes: int | None) -> str:
    """Run the step; report time and the peak memory of the processes of all ranks."""
    heard: list[float] = []
    nnodes, nproc_per_node = max(1, case.ranks // 8), min(8, case.ranks)
    cluster = virtual(nnodes=nnodes, nproc_per_node=nproc_per_node, fake=True, processes=processes)
    job = Job(source=f"{HEAD}{CPU}{case.program}{CPU}{MEMORY}\nprint('end')")
    run = cluster.run(job, lambda *_: heard.append(time.perf_counter())).raise_if_failed()
    gib = [max(read) for read in _by_process(run, "gib")]
    peak = max(run.trace.peak_memory(rank) for rank in range(case.ranks)) / 1e9
    target = "" if quick else f" (target: {case.target:.0f} s)"
    alone = alone_seconds(case.narrow, case.ranks)
    return (
        f"{case.title}, {case.ranks} ranks with fake tensors, one step: {heard[-1] - heard[0]:.1f} s inside{target}, "
        f"{cpu_seconds(run):.1f} s CPU, {run.wall_seconds:.1f} s whole, torch alone {alone:.1f} s; "
        f"peak memory of {len(gib)} hosting process{'es' * (len(gib) > 1)} {sum(gib):.2f} GiB "
        f"(target: 4). Modelled: {run.trace.seconds:.3f} s, {peak:.1f} GB on the fullest GPU"
    )


def tracing(options: argparse.Namespace) -> str:
    """Report what recording a trace adds to a program that only sends messages."""
    ranks = 16 if options.quick else 128
    program = MESSAGES.format(rounds=64)
    runs: dict[bool, list[float]] = {True: [], False: []}
    for _ in range(2 * options.repetitions - 1):
        for trace in (True, False):
            runs[trace].append(cost(program, ranks, trace).inside)
    on, off = (statistics.median(runs[trace]) for trace in (True, False))
    return f"tracing adds {on / off - 1:.0%} to {ranks} ranks x 64 messages ({off:.2f} s without); target: at most 20%"


def growth(options: argparse.Namespace) -> Table:
    """Send the same number of messages from each rank, on more and more ranks."""
    rounds = 16 if options.quick else 128
    table = Table(title=f"A message's cost, {rounds} from each rank: it must not grow with the ranks")
    for heading in ("ranks", "messages", "inside (s)", "microseconds a message"):
        table.add_column(heading, justify="right")
    for ranks in (8, 16, 32) if options.quick else (64, 128, 256, 512):
        runs = [cost(MESSAGES.format(rounds=rounds), ranks).inside for _ in range(options.repetitions)]
        seconds = statistics.median(runs)
        table.add_row(str(ranks), f"{ranks * rounds:,}", f"{seconds:.2f}", f"{seconds / ranks / rounds * 1e6:.1f}")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=_positive, default=3, help="runs of each kind (default %(default)s)")
    parser.add_argument("--processes", type=_positive, help="processes for ranks on fake tensors (default: the cores)")
    parser.add_argument("--quick", action="store_true", help="few ranks, one run of each: does it work at all")
    options = parser.parse_args()
    if options.quick:
        options.repetitions = 1
    console = Console(width=140)
    cost("", 2)  # starts the forkserver
    console.print(compare(options))
    for case in large_models(options.quick):
        console.print(large_model(case, options.quick, options.processes))
    console.print(tracing(options))
    console.print(growth(options))
    shared().close()


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


if __name__ == "__main__":
    main()
