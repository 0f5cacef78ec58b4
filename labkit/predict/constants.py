"""The physical constants of the model: few, each with its meaning and where its value is from.

`COMPONENTS` holds what benchmarks of single parts give (matrix products, collectives, data sheets): no end-to-end run
was used for it. `FITTED` changes those that whole training runs show to be different; `benchmarks/predict.py --fit`
found them.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from labkit.hardware import Topology


@dataclass(frozen=True)
class Constants:
    """All of them are of hardware or of a library, none of a model, a table or a row."""

    sustained: Any = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """Share of the benchmarked matrix rate that hours of training keep, by the first part of the GPU's name: clocks
    fall under the power limit, the more the closer tensor cores are to it. Missing: 1."""
    waves: bool = True
    """Products are cut into tiles that run in waves; False: FLOPs over the rate, however many tiles there are."""
    ramp_k: float = 128.0
    """A product's inner loop costs as if its inner dimension were so much longer: filling and draining a tile's
    pipeline."""
    flash1: Any = field(default_factory=lambda: MappingProxyType({"a100": 0.36, "h100": 0.20}), hash=False)
    """Share of the peak that forward attention in one kernel reaches, by version, heads of 128, causal.
    FlashAttention-2 (arXiv 2307.08691, figures 4 to 7): version 1 about 110 of 312 on A100, version 2 about 190; on
    H100 about 420 of 989. FlashAttention-3 (arXiv 2407.08608, figure 5): about 610. Version 1 on H100 is assumed.
    Missing: 0.5."""
    flash2: Any = field(default_factory=lambda: MappingProxyType({"a100": 0.60, "h100": 0.42}), hash=False)
    flash3: Any = field(default_factory=lambda: MappingProxyType({"a100": 0.60, "h100": 0.62}), hash=False)
    flash_backward: float = 0.8
    """Its backward's rate over forward's (same figures), over 2.5 times the FLOPs."""
    kernel_seconds: float = 3e-6
    """Draining the GPU and filling it again between two kernels that were launched in time."""
    passes_share: float = 1.0
    """Share of the copying rate that norms, activations and dropout reach."""
    plain_passes_share: float = 1.0
    """The same in networks without attention: batch norms, ReLUs and sums draw no random numbers and move as much as
    BabelStream's copies and triads. Never fitted."""
    host_seconds: float = 20e-6
    """What the host needs to prepare one kernel from Python, in eager mode."""
    lockstep_seconds: float = 0.0
    """What each rank of a tensor-parallel group adds to a collective when hosts do not run ahead and the pipeline
    leaves the node."""
    compiled: float = 0.4
    """Share of it that is left of compiled code, which joins operators."""
    collective_base: float = 30e-6
    """An all-reduce of a few bytes inside a node, without its steps (nccl-tests of 1 to 16 MB on A100 and H100)."""
    hop_seconds: float = 3.4e-6
    """One step of an all-reduce's ring over NVLink, as in NCCL's tuning table (Simple protocol)."""
    gather_base: float = 8.4e-6
    """The same of an all-gather or reduce-scatter, half of an all-reduce: NCCL's table for rings; 7 to 8 microseconds
    are what the kernels of NVIDIA/Megatron-LM pull request 5596 on H100 leave."""
    gather_hop: float = 1.9e-6
    """One step of its ring (the same table, LL128 protocol; the same kernels)."""
    network_hops: float = 2.8
    """One step between nodes, in latencies of the link: 14 microseconds for InfiniBand (same table)."""
    fill_seconds: float = 100e-6
    """The most that filling a collective's pipeline takes: NCCL's chunks do not grow beyond its buffers."""
    network_share: float = 1.0
    """Share of the cards' measured rate that is left when all groups of a large run use the network at once."""
    overlap_slowdown: float = 0.22
    """By how much computing slows while a collective runs beside it: NCCL's 24 channels on NVSwitch (the log in
    NVIDIA/nccl-tests issue 100) have a multiprocessor each, of A100's 108."""
    optimizer_bytes: float = 30.0
    """Read and written for one parameter by mixed-precision Adam in one kernel: 12 of state both ways, a gradient of 4,
    a new parameter of 2."""
    straggle: float = 0.0
    """Lengthening of a step for each doubling of the nodes: all wait for the slowest."""

    def on(self, cluster: Topology) -> Constants:
        """With what was measured on this cluster, or set for it. Raises ValueError naming what there is not."""
        if not cluster.constants:
            return self
        for name, _ in cluster.constants:
            if name not in _NUMBERS:
                near = difflib.get_close_matches(name, _NUMBERS, n=2, cutoff=0.4) or _NUMBERS
                raise ValueError(f"there is no constant {name!r}; there are {', '.join(near)}")
        for name, value in cluster.constants:
            if value < 0 or (value == 0 and name in _RATES):
                raise ValueError(
                    f"constants.{name} must be {'above' if name in _RATES else 'at least'} 0, got {value!r}"
                )
        measured: dict[str, Any] = dict(cluster.constants)
        return replace(self, **measured)


COMPONENTS = Constants()
_RATES = ("passes_share", "plain_passes_share", "flash_backward", "network_share")
_NUMBERS = [one.name for one in fields(Constants) if one.type == "float"]
FITTED = replace(
    COMPONENTS,
    sustained=MappingProxyType({"a100": 0.97, "h100": 0.838, "h200": 0.838}),
    flash1=MappingProxyType({"a100": 0.36, "h100": 0.243}),
    ramp_k=94.0,
    kernel_seconds=7.2e-6,
    passes_share=0.75,
    host_seconds=43e-6,
    network_hops=3.8,
    lockstep_seconds=243e-6,
)


def share(table: Any, gpu: str, missing: float) -> float:
    """A constant by the first part of a GPU's name."""
    value = table.get(gpu, table.get(gpu.split("-")[0], missing))
    return float(value)
