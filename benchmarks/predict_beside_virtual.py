"""The same GPT and plan predicted by closed forms and run on virtual ranks: step time and memory, term by term.

    python benchmarks/predict_beside_virtual.py [--ranks 8 16 32 64] [--only ddp zero-1 ...] [--json FILE]
    python benchmarks/predict_beside_virtual.py --only compression

The run is virtual_training.py, a program of torch with fake tensors. The two share data sheets (labkit.hardware) and no
timing: the program's operators, messages and tensors are timed and counted one by one. `as stated` predicts under what
the virtual cluster documents of itself: products at one rate without tiles and waves, a launch for each operator, rings
at NCCL's latencies, no straggling. `fitted` is what predictions use otherwise. Percentages are the prediction's above
the run.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.table import Table

from labkit import Job, catalogue, virtual
from labkit.clusters.forkserver.client import shared
from labkit.clusters.run import Run
from labkit.hardware import Topology, topology
from labkit.predict import COMPONENTS, MLP, Constants, Plan, Prediction, Transformer, predict
from labkit.predict.plan import Compression
from labkit.trace import Category, Trace

PROGRAM = Path(__file__).with_name("virtual_training.py")
EXERCISE = catalogue.find("gradient_compression")
MODULES = {EXERCISE.name: EXERCISE.source("solution")[0]}
STEPS = 2
"""The first step creates the optimizer's state, and leaves parameters in flight for the second, which is measured."""


@dataclass(frozen=True)
class Case:
    """A GPT and its layout. `data` follows from the number of ranks."""

    name: str
    tensor: int = 1
    pipeline: int = 1
    zero: int = 0
    zero_ranks: int | None = None
    """With ZeRO 3, hybrid sharding: ranks that have the model in shards together."""
    schedule: str = "1f1b"
    ddp: bool = False
    """Whether torch's DistributedDataParallel is used, instead of collectives block by block."""
    microbatch: int = 4
    microbatches: int = 1
    layers: int = 4
    width: int = 4096
    heads: int = 32
    vocab: int = 32_000
    sequence: int = 2048
    ranks: int = 8
    per_node: int = 8
    gpu: str = "a100-80gb"
    """Kinds of GPU that the nodes have in turn."""
    network_gbps: float | None = None
    """Rate of a network card in Gb/s, one for each GPU; None: the preset's cards."""

    @property
    def data(self) -> int:
        return self.ranks // self.tensor // self.pipeline

    def cluster(self) -> Topology:
        return topology("dgx-a100", **self.nodes)

    @property
    def nodes(self) -> dict[str, Any]:
        """Options that change the preset's nodes."""
        per_node = min(self.per_node, self.ranks)
        nodes = {"nnodes": self.ranks // per_node, "nproc_per_node": per_node, "gpu": self.gpu}
        if self.network_gbps is not None:
            nodes["settings"] = {"inter_node.gb_per_s": self.network_gbps / 8, "nics_per_node": per_node}
        return nodes

    def model(self) -> Transformer:
        return Transformer("gpt", self.layers, self.width, self.heads, self.vocab, self.sequence)

    def plan(self) -> Plan:
        return Plan(
            batch=self.microbatch * self.microbatches * self.data, microbatch=self.microbatch, data=self.data,
            tensor=self.tensor, pipeline=self.pipeline, zero=self.zero, zero_ranks=self.zero_ranks,
            schedule=self.schedule, fusion="none",  # type: ignore[arg-type]
        )  # fmt: skip


def cases(ranks: Sequence[int]) -> list[Case]:
    """Return every family on these numbers of ranks. Pipelines have one or two layers per stage, and as many
    microbatches as stages or twice as many."""
    listed = []
    for n in ranks:
        stages = min(n, 16)
        listed += [
            Case("ddp", ddp=True, ranks=n),
            Case("zero-1", zero=1, ranks=n),
            Case("zero-2", zero=2, ranks=n),
            # FSDP keeps gradients only between microbatches; with long microbatches its copies matter less
            Case("zero-3", zero=3, microbatch=8, microbatches=2, layers=2, width=2048, heads=16, ranks=n),
            # the gathers and scatters that nothing hides
            Case(
                "zero-3, 50 Gb/s",
                zero=3,
                per_node=min(8, n // 2),
                network_gbps=50,
                microbatch=8,
                microbatches=2,
                layers=2,
                width=2048,
                heads=16,
                ranks=n,
            ),
            # shards inside each of two nodes or more
            Case(
                "hybrid",
                zero=3,
                zero_ranks=min(8, n // 2),
                per_node=min(8, n // 2),
                microbatch=12,
                microbatches=2,
                layers=2,
                width=2048,
                heads=16,
                ranks=n,
            ),
            Case("tensor", tensor=8, ddp=n > 8, width=8192, heads=64, ranks=n),
            Case("1f1b", pipeline=stages, layers=stages, microbatches=2 * stages, ranks=n),
            Case("gpipe", pipeline=stages, layers=stages, microbatches=stages, schedule="gpipe", ranks=n),
            Case("3d", tensor=2, pipeline=2, microbatches=2, layers=8, width=8192, heads=64, ranks=n),
            Case("3d, zero-1", tensor=2, pipeline=2, microbatches=2, zero=1, layers=8, width=8192, heads=64, ranks=n),
            # both stages of a pipeline on GPUs of their own
            Case(
                "mixed GPUs",
                pipeline=2,
                microbatches=4,
                microbatch=2,
                ranks=n,
                per_node=n // 2,
                gpu="a100-80gb,v100-32gb",
            ),
        ]
    return listed


def stated(cluster: Topology) -> Constants:
    """Return the documented constants of the virtual cluster, unfitted
    (clusters/virtual/scheduler/nccl_cost_model.py, hardware/gpus.py).

    Fused attention has its published rate there too; a collective begins with four launches, its hops are NCCL's of the
    Simple protocol; the optimizer's bytes are those of the program's operators.
    """
    gpu = cluster.gpu
    return replace(
        COMPONENTS,
        waves=False,
        ramp_k=0.0,
        flash2=MappingProxyType({one.name: one.attention_efficiency or one.matmul_efficiency for one in cluster.kinds}),
        kernel_seconds=gpu.launch_seconds,
        passes_share=1.0,
        host_seconds=0.0,
        collective_base=4 * gpu.launch_seconds,
        hop_seconds=1.13 * cluster.intra_node.latency_seconds,
        gather_base=4 * gpu.launch_seconds,
        gather_hop=0.42 * cluster.intra_node.latency_seconds,
        network_hops=2.8,
        fill_seconds=0.0,
        network_share=1.0,
        overlap_slowdown=0.0,
        optimizer_bytes=40.0,
        straggle=0.0,
    )


SIDE = 5000
"""Rows and columns of the gradient that compressors send."""
NETWORKS: dict[str, dict[str, Any]] = {
    "10 Gb/s, 32 ranks": {"nnodes": 4, "inter_node": "ethernet-10g"},
    "400 Gb/s, 64 ranks": {"nnodes": 8, "inter_node": "ib-ndr"},
}
"""Nodes of eight A100, with a card of this rate for each."""
COMPRESSORS: dict[Compression, tuple[Any, ...]] = {
    "none": (), "1-bit": ("OneBit",), "8-bit": ("Quantized",), "top-k": ("TopK", 0.01), "powersgd": ("PowerSGD", 4)
}  # fmt: skip
"""Exercise 13's compressors and their arguments, by their names in a plan."""


def exchanged(compression: Compression, network: dict[str, Any]) -> tuple[float, Prediction]:
    """Return the seconds on virtual ranks until the mean of one gradient is on all, by exercise 13's solution in its
    second step, and what is predicted under what the virtual cluster documents."""
    source = f"{inspect.getsource(average)}\naverage({SIDE}, *{COMPRESSORS[compression]!r})"
    job = Job(source=source, filename=PROGRAM.name, modules=MODULES)
    run = virtual("dgx-a100", fake=True, **network).run(job).raise_if_failed()
    cluster = topology("dgx-a100", **network)
    n = cluster.world_size
    plan = Plan(batch=n, data=n, precision="fp32", compression=compression, overlap=False)
    return max(run.values), predict(MLP("one matrix", (SIDE, SIDE)), plan, cluster, constants=stated(cluster))


def average(side: int, compressor: str = "", *arguments: float) -> float:
    """On a rank: seconds until the mean is there."""
    import time

    import torch
    import torch.distributed as dist

    from labkit.exercises import gradient_compression

    dist.init_process_group()
    gradients, seconds = {"weight": torch.randn(side, side)}, 0.0
    exchange = None
    if compressor:
        made = getattr(gradient_compression, compressor)(*arguments)
        exchange = gradient_compression.CommunicationOptimizer(made)
    for _ in range(2):  # from the second step on there is a residual
        dist.barrier()
        began = time.perf_counter()
        if exchange is None:
            dist.all_reduce(gradients["weight"])
        else:
            exchange.all_reduce_compressed(gradients)
        seconds = time.perf_counter() - began
    return seconds


def compression_table() -> Table:
    """Exercise 13's compressors on all networks, beside their predictions."""
    made = Table(title=f"Milliseconds until the mean of {SIDE} x {SIDE} gradients is there")
    for heading in ("network", "compression", "virtual ranks", "predicted", "messages", "passes"):
        made.add_column(heading, justify="left" if heading in ("network", "compression") else "right")
    for name, network in NETWORKS.items():
        for compression in COMPRESSORS:
            run, predicted = exchanged(compression, network)
            parts = predicted.seconds("gradients"), predicted.seconds("compression")
            cells = (f"{seconds * 1e3:.2f}" for seconds in (run, sum(parts), *parts))
            made.add_row(name, compression, *cells)
    return made


PARTS = ("computing", "tensor", "gradients", "pipeline", "optimizer")
_OF_RUN = {
    "products": "computing", "attention": "computing", "passes": "computing", "tensor parallel": "tensor",
    "gradients": "gradients", "new parameters": "gradients", "pipeline": "pipeline", "pipeline gather": "pipeline",
    "optimizer": "optimizer",
}  # fmt: skip
_OF_TERM = {
    "forward": "computing", "backward": "computing", "embedding and head": "computing", "launches": "computing",
    "tensor parallel": "tensor", "gradients": "gradients", "new parameters": "gradients",
    "parameter shards": "gradients", "pipeline sends": "pipeline", "bubble": "pipeline", "optimizer": "optimizer",
}  # fmt: skip


@dataclass(frozen=True)
class Result:
    """One case, as run and as predicted."""

    case: Case
    step: float
    """Seconds of the run's step."""
    stated: float
    fitted: float
    parts: dict[str, tuple[float, float]]
    """Seconds of the run, and predicted as stated, by part, on the rank that computes longest."""
    finer: dict[str, float]
    """Seconds of the run by kind of operator or wait."""
    memory: float
    """Peak bytes of the fullest rank."""
    predicted_memory: float
    held: dict[str, tuple[float, float]]
    """Bytes of the run's fullest rank, and predicted: model states, and everything else."""
    real_seconds: float = field(compare=False, default=0.0)

    @property
    def step_error(self) -> float:
        """Signed error of the prediction as stated."""
        return self.stated / self.step - 1

    @property
    def memory_error(self) -> float:
        return self.predicted_memory / self.memory - 1


def train(case: Case, *, steps: int = STEPS, exact: bool = False) -> Run:
    """Run the program on virtual ranks. `exact`: with real values in fp32, so that losses can be compared."""
    layout = {**asdict(case), "data": case.data, "steps": steps, "exact": exact}
    cluster = virtual("dgx-a100", **case.nodes, fake=not exact)
    job = Job(source=PROGRAM.read_text(), filename=PROGRAM.name, environment={"LAYOUT": json.dumps(layout)})
    return cluster.run(job).raise_if_failed()


def held_beside(case: Case, *, steps: int = STEPS) -> Result:
    """Run and predict one case."""
    began = time.perf_counter()
    run = train(case, steps=steps)
    real = time.perf_counter() - began
    reports: list[Any] = run.values
    cluster, model, plan = case.cluster(), case.model(), case.plan()
    made, fitted = predict(model, plan, cluster, constants=stated(cluster)), predict(model, plan, cluster)
    busiest = max(range(case.ranks), key=lambda rank: _computing(reports[rank]["spent"][-1]))
    start, end = reports[busiest]["began"][-2:]
    spent = {**reports[busiest]["spent"][-1]}
    # the remaining time is waiting inside FSDP2
    spent["gradients"] = spent.get("gradients", 0.0) + (end - start) - sum(spent.values())
    since = min(report["began"][-2] for report in reports)
    peaks = [_peak(run.trace, rank, since) for rank in range(case.ranks)]
    fullest = max(peaks, key=lambda held: sum(held.values()))
    return Result(
        case,
        end - start,
        made.step_seconds,
        fitted.step_seconds,
        _parts(spent, made),
        spent,
        sum(fullest.values()),
        max(stage.total for stage in made.stages),
        _held(fullest, made, case),
        real,
    )


def _computing(spent: dict[str, float]) -> float:
    return sum(seconds for name, seconds in spent.items() if _OF_RUN[name] == "computing")


def _parts(spent: dict[str, float], made: Prediction) -> dict[str, tuple[float, float]]:
    ours, theirs = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0)
    for name, seconds in made.breakdown().items():
        ours[_OF_TERM[name]] += seconds
    for name, seconds in spent.items():
        theirs[_OF_RUN[name]] += seconds
    return {part: (theirs[part], ours[part]) for part in PARTS}


def _peak(trace: Trace, rank: int, since: float) -> dict[Category, int]:
    """Return the rank's memory by category at its peak after `since`."""
    held: dict[Category, int] = {}
    most: dict[Category, int] = {}
    for sample in trace.memory:
        if sample.rank == rank:
            held[sample.category] = sample.nbytes
            if sample.time >= since and sum(held.values()) > sum(most.values()):
                most = dict(held)
    return most


def _held(fullest: dict[Category, int], made: Prediction, case: Case) -> dict[str, tuple[float, float]]:
    """Return parameters, gradients and optimizer state together, since fp32 copies are parameters in one account and
    state in the other, and gradient buffers are neither; and the rest."""
    predicted = max(made.stages, key=lambda stage: stage.total).categories()
    states = predicted["parameters"] + predicted["gradients"] + predicted["optimizer"]
    total = sum(fullest.values())
    named = (Category.PARAMETER, Category.GRADIENT, Category.OPTIMIZER)
    counted = sum(fullest.get(category, 0) for category in named)
    if case.zero < 3:  # flat gradient buffers have no category
        counted += predicted["gradients"]
    return {
        "states": (counted, states),
        "activations and buffers": (total - counted, predicted["activations"] + predicted["buffers"]),
    }


def why(result: Result) -> str:
    """Explain in words why the two differ by more than the bar; empty if they do not."""
    reasons = []
    case = result.case
    if abs(result.step_error) > 0.05:
        part, (run, predicted) = max(result.parts.items(), key=lambda item: abs(item[1][1] - item[1][0]))
        reasons.append(f"time: most of it in {part}, {run * 1e3:.1f} ms beside {predicted * 1e3:.1f}")
        if case.zero == 3:
            reasons.append(
                "FSDP2 copies parameters out of every gather and gradients into every scatter; not predicted"
            )
        if part == "gradients" and not case.ddp:
            reasons.append("the program sends a whole block's gradients at once, predicted are buckets of 25 MB")
    if abs(result.memory_error) > 0.03:
        category, (run, predicted) = max(result.held.items(), key=lambda item: abs(item[1][1] - item[1][0]))
        reasons.append(f"memory: most of it in {category}, {run / 1e9:.2f} GB beside {predicted / 1e9:.2f}")
        if case.zero == 3:
            reasons.append("no layer is fetched ahead when the loss is at hand, two are predicted")
    return "; ".join(reasons)


def table(results: Sequence[Result]) -> Table:
    made = Table(title="Milliseconds and GB of the run on virtual ranks, and how far the prediction is above it")
    for heading in ("plan", "ranks", "step", "as stated", "fitted", *PARTS, "memory", "predicted", "run in"):
        made.add_column(heading, justify="left" if heading == "plan" else "right")
    for one in results:
        made.add_row(
            one.case.name,
            str(one.case.ranks),
            f"{one.step * 1e3:.1f}",
            f"{one.step_error:+.1%}",
            f"{one.fitted / one.step - 1:+.1%}",
            *(f"{run * 1e3:.1f} {(predicted - run) * 1e3:+.1f}" for run, predicted in one.parts.values()),
            f"{one.memory / 1e9:.2f}",
            f"{one.memory_error:+.1%}",
            f"{one.real_seconds:.0f} s",
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 16, 32, 64], metavar="N")
    parser.add_argument("--only", nargs="+", metavar="PLAN", help="such as ddp zero-1 1f1b")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    console = Console(width=int(os.environ.get("COLUMNS", 170)))
    if options.only == ["compression"]:
        console.print(compression_table())
        shared().close()
        return
    results = []
    for case in cases(options.ranks):
        if options.only is None or case.name in options.only:
            results.append(held_beside(case))
            console.print(table(results[-1:]))
    console.print(table(results))
    for result in results:
        if reasons := why(result):
            console.print(f"{result.case.name} on {result.case.ranks}: {reasons}")
    if options.json:
        plain = [
            {**asdict(result), "step_error": result.step_error, "memory_error": result.memory_error}
            for result in results
        ]
        options.json.write_text(json.dumps(plain, indent=1) + "\n")
    shared().close()


if __name__ == "__main__":
    main()
