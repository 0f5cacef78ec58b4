"""The tables of docs/strategies.md: fastest layouts by model and cluster, and the borders between strategies.

python benchmarks/strategies.py              # write them into the page
python benchmarks/strategies.py --check      # compare, and exit with 1 if they differ
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import page_tables

from labkit.hardware import Topology, topology
from labkit.predict import Plan, Prediction, Transformer, model, predict, search

PAGE = Path(__file__).resolve().parent.parent / "docs" / "strategies.md"
MODELS = ("gpt2-xl", "llama3-8b", "gpt-18b", "llama3-70b", "gpt-175b")
CLUSTERS = {
    "4 x RTX 4090, PCIe": ("workstation-4090", 1),
    "8 x A100-80, NVLink": ("dgx-a100", 1),
    "32 x L4, Ethernet": ("cloud-l4", 4),
    "128 x A100-80, InfiniBand": ("dgx-a100", 16),
    "512 x H100, InfiniBand": ("dgx-h100", 64),
}
BATCH = 1024
NETWORKS = (0.3, 0.6, 1.25, 3.1, 6.2, 12.5, 25.0)
"""GB/s of a node's network card."""
SIZES = (
    "gpt2-xl",
    "gpt-3.6b",
    "gpt-7.5b",
    "gpt-13b",
    "gpt-18b",
    "gpt-39b",
    "gpt-76b",
    "gpt-145b",
    "gpt-175b",
    "gpt-310b",
)


def layouts(clusters: Sequence[str] = tuple(CLUSTERS), models: Sequence[str] = MODELS) -> list[str]:
    """The fastest layout of each model on each cluster, one line a pair."""
    lines = [
        "| cluster | model | fastest layout that fits | seconds of a step | MFU | GB of a GPU |",
        "|---|---|---|--:|--:|--:|",
    ]
    for name in clusters:
        preset, nodes = CLUSTERS[name]
        for which in models:
            try:
                best = search(model(which), BATCH, topology(preset, nnodes=nodes)).best
            except ValueError:
                lines.append(f"| {name} | {which} | none fits | | | |")
                continue
            lines.append(
                f"| {name} | {which} | {described(best.plan)} | {best.step_seconds:.3g} | {best.mfu():.0%} | "
                f"{best.device_bytes.high / 1e9:.0f} |"
            )
    return lines


def described(plan: Plan) -> str:
    """A layout in words: `data 32, pipeline 4 in 2 chunks, ZeRO 1, microbatch 2`."""
    axes = {axis: getattr(plan, axis) for axis in ("data", "tensor", "pipeline", "context", "expert")}
    parts = [f"{axis} {ranks}" for axis, ranks in axes.items() if ranks > 1]
    parts = [f"{part} in {plan.chunks} chunks" if "pipeline" in part and plan.chunks > 1 else part for part in parts]
    parts += [f"ZeRO {plan.zero}"] if plan.zero else []
    parts += [f"recompute {plan.recompute}"] if plan.recompute != "none" else []
    return ", ".join([*parts, f"microbatch {plan.microbatch}"])


def memory() -> list[str]:
    """The largest GPT that each ZeRO stage fits into GPUs of 80 GB, all layers recomputed."""
    lines = ["| ZeRO stage | sharded | on 8 GPUs | on 64 GPUs |", "|--:|---|---|---|"]
    for stage, sharded in enumerate(("nothing: DDP", "optimizer state", "and gradients", "and parameters: FSDP")):
        largest = []
        for nodes in (1, 8):
            ranks = 8 * nodes
            plan = Plan(batch=ranks, data=ranks, zero=stage, recompute="full")
            fits = [
                name for name in SIZES if predict(model(name), plan, topology("dgx-a100", nnodes=nodes)).surely_fits
            ]
            largest.append(fits[-1] if fits else "none")
        lines.append(f"| {stage} | {sharded} | {largest[0]} | {largest[1]} |")
    return lines


def sharding_or_stages() -> list[str]:
    """gpt-13b on 32 A100: ZeRO 3 beside four stages, by network and batch."""
    sharded = dict(data=32, zero=3, recompute="full")
    stages = dict(data=8, pipeline=4, zero=1, recompute="full")
    lines = ["| GB/s of a card | batch 64: ZeRO 3 | 4 stages | batch 512: ZeRO 3 | 4 stages |", "|--:|--:|--:|--:|--:|"]
    for rate in NETWORKS:
        row = [_seconds("gpt-13b", rate, batch=batch, **plan) for batch in (64, 512) for plan in (sharded, stages)]
        lines.append(_row(rate, row, pairs=True))
    return lines


def tensor_over_nodes() -> list[str]:
    """gpt-7.5b on 32 A100 of four nodes: eight tensor ranks, in one node, beside 16 and 32, over nodes."""
    lines = ["| GB/s of a card | tensor 4 | tensor 8 | tensor 16 | tensor 32 |", "|--:|--:|--:|--:|--:|"]
    for rate in NETWORKS:
        plans = [dict(data=32 // ranks, tensor=ranks, zero=1, recompute="full") for ranks in (4, 8, 16, 32)]
        lines.append(_row(rate, [_seconds("gpt-7.5b", rate, batch=128, **plan) for plan in plans]))
    return lines


def compression() -> list[str]:
    """gpt-1.3b on 32 A100, plain data parallelism: gradients as they are, and by exercise 13's compressors."""
    lines = ["| GB/s of a card | 16 bits | 8 bits | 1 bit | largest 1 % | PowerSGD |", "|--:|--:|--:|--:|--:|--:|"]
    kinds = ("none", "8-bit", "1-bit", "top-k", "powersgd")
    plan = dict(batch=128, data=32, microbatch=4, recompute="selective")
    for rate in NETWORKS:
        row = [_seconds("gpt-1.3b", rate, **plan, compression=kind) for kind in kinds]
        lines.append(_row(rate, row))
    return lines


def sequences() -> list[str]:
    """llama3-8b on 16 A100, 16 samples: fastest layout by length of a sequence."""
    lines = ["| tokens of a sequence | fastest layout that fits | MFU | as PaLM counts |", "|--:|---|--:|--:|"]
    base = model("llama3-8b")
    assert isinstance(base, Transformer)
    for length in (8_192, 32_768, 131_072, 524_288):
        long = replace(base, sequence=length)
        try:
            best = search(long, 16, topology("dgx-a100", nnodes=2)).best
            shares = f"{best.mfu():.0%} | {best.mfu('palm'):.0%}"
            lines.append(f"| {length:,} | {described(best.plan)} | {shares} |")
        except ValueError:
            lines.append(f"| {length:,} | none fits | | |")
    return lines


def strong_scaling() -> list[str]:
    """gpt-1.3b, 512 samples on more and more A100: how much of each added GPU is left."""
    lines = ["| GPUs | seconds of a step | efficiency | MFU |", "|--:|--:|--:|--:|"]
    first: Prediction | None = None
    for nodes in (1, 2, 4, 8, 16, 32, 64):
        plan = Plan(batch=512, data=8 * nodes, zero=1)
        made = predict(model("gpt-1.3b"), plan, topology("dgx-a100", nnodes=nodes))
        first = first or made
        efficiency = first.step_seconds / nodes / made.step_seconds
        lines.append(f"| {8 * nodes} | {made.step_seconds:.3g} | {efficiency:.0%} | {made.mfu():.0%} |")
    return lines


def _seconds(name: str, rate: float, **plan: Any) -> float:
    """Seconds of a step on four nodes of eight A100, whose network cards have `rate` GB/s."""
    cluster: Topology = topology("dgx-a100", nnodes=4, settings={"inter_node.gb_per_s": rate})
    return predict(model(name), Plan(**plan), cluster).step_seconds


def _row(rate: float, seconds: Sequence[float], pairs: bool = False) -> str:
    """Format a row, with its fastest time, or that of each pair, in bold."""
    groups = [seconds[at : at + 2] for at in range(0, len(seconds), 2)] if pairs else [seconds]
    cells = [f"**{one:.3g}**" if one == min(group) else f"{one:.3g}" for group in groups for one in group]
    return f"| {rate:g} | {' | '.join(cells)} |"


TABLES: dict[str, Callable[[], list[str]]] = {
    "layouts": layouts,
    "memory": memory,
    "sharding or stages": sharding_or_stages,
    "tensor over nodes": tensor_over_nodes,
    "compression": compression,
    "sequences": sequences,
    "strong scaling": strong_scaling,
}


def filled(page: str, names: Sequence[str] = tuple(TABLES)) -> str:
    """Return the page with these tables made anew."""
    return page_tables.filled(page, TABLES, names)


if __name__ == "__main__":
    sys.exit(page_tables.main(__doc__ or "", PAGE, filled))
