"""The few physical constants of the model, each with its meaning and its source.

`COMPONENTS` comes from benchmarks of single parts (matrix products, collectives, data sheets); no end-to-end run was
used for it. `FITTED` replaces the constants for which whole training runs show other values, found by
`benchmarks/predict.py --fit`.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any

from labkit.hardware import Topology


@dataclass(frozen=True)
class Constants:
    """Constants of hardware and libraries; none belongs to a model, a table or a row."""

    sustained: Any = field(default_factory=lambda: MappingProxyType({}), hash=False)
    """Share of the benchmarked matrix rate that hours of training sustain, by the first part of the GPU's name: the
    power limit lowers the clocks, more so the closer tensor cores are to it. Missing: 1."""
    waves: bool = True
    """Whether matrix products are cut into tiles that run in waves; False: FLOPs / rate, for any number of tiles."""
    ramp_k: float = 128.0
    """Length added to a product's inner dimension, for filling and draining a tile's pipeline."""
    flash1: Any = field(default_factory=lambda: MappingProxyType({"a100": 0.36, "h100": 0.20}), hash=False)
    """Share of the peak reached by the forward pass of fused attention, by version, heads of 128, causal.
    FlashAttention-2 (arXiv 2307.08691, figures 4 to 7): version 1 about 110 of 312 on A100, version 2 about 190; on
    H100 about 420 of 989. FlashAttention-3 (arXiv 2407.08608, figure 5): about 610. Version 1 on H100 is assumed.
    Missing: 0.5."""
    flash2: Any = field(default_factory=lambda: MappingProxyType({"a100": 0.60, "h100": 0.42}), hash=False)
    flash3: Any = field(default_factory=lambda: MappingProxyType({"a100": 0.60, "h100": 0.62}), hash=False)
    flash_backward: float = 0.8
    """Ratio of its backward rate to its forward rate (same figures); backward has 2.5 times the FLOPs."""
    kernel_seconds: float = 3e-6
    """Time to drain and refill the GPU between two kernels that were launched in time."""
    passes_share: float = 1.0
    """Share of the copy bandwidth that norms, activations and dropout reach."""
    plain_passes_share: float = 1.0
    """The same in networks without attention: batch norms, ReLUs and sums draw no random numbers and move as much as
    BabelStream's copies and triads. Never fitted."""
    host_seconds: float = 20e-6
    """Host time to prepare one kernel from Python, in eager mode."""
    lockstep_seconds: float = 0.0
    """Time that each rank of a tensor-parallel group adds to a collective when hosts do not run ahead and the pipeline
    spans several nodes."""
    crossing_seconds: float = 0.0
    """Time that each step between nodes adds to a collective of a tensor-parallel group that spans nodes, when hosts do
    not run ahead. Its cause is unknown."""
    compiled: float = 0.4
    """Share of `host_seconds` that remains in compiled code, where operators are fused."""
    collective_base: float = 30e-6
    """Fixed cost of an all-reduce inside a node, without its steps (nccl-tests of 1 to 16 MB on A100 and H100)."""
    hop_seconds: float = 3.4e-6
    """One step of an all-reduce's ring over NVLink, as in NCCL's tuning table (Simple protocol)."""
    gather_base: float = 8.4e-6
    """Fixed cost of an all-gather or reduce-scatter, half of an all-reduce: NCCL's table for rings; the kernels of
    NVIDIA/Megatron-LM pull request 5596 on H100 leave 7 to 8 microseconds for it."""
    gather_hop: float = 1.9e-6
    """One step of its ring (the same table, LL128 protocol; the same kernels)."""
    network_hops: float = 2.8
    """One step between nodes, in latencies of the link: 14 microseconds for InfiniBand (same table)."""
    nccl: float = 2.2
    """Version of NCCL. From 2.23 on, all-gathers and reduce-scatters of groups with one rank on each node may run in
    PAT's log2(nodes) steps, which published runs of training do not have yet."""
    fill_seconds: float = 100e-6
    """Upper bound of the time to fill a collective's pipeline: NCCL's chunks do not grow beyond its buffers."""
    network_share: float = 1.0
    """Share of the cards' measured rate that remains when all groups of a large run use the network at once."""
    overlap_slowdown: float = 0.22
    """Slowdown of computing while a collective runs: NCCL's 24 channels on NVSwitch (the log in NVIDIA/nccl-tests
    issue 100) occupy one multiprocessor each, of A100's 108."""
    optimizer_bytes: float = 30.0
    """Bytes that fused mixed-precision Adam reads and writes per parameter: 12 of state both ways, a gradient of 4, a
    new parameter of 2."""
    straggle: float = 0.0
    """Share by which a step lengthens for each doubling of the nodes: all wait for the slowest."""

    def on(self, cluster: Topology) -> Constants:
        """Return these constants with those that the cluster overrides. Raises ValueError for an unknown name."""
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
"""Constants measured on single components: matrix products, links, memory. None is fitted to a training run."""
_RATES = ("passes_share", "plain_passes_share", "flash_backward", "network_share")
_NUMBERS = [one.name for one in fields(Constants) if one.type == "float"]
FITTED = replace(
    COMPONENTS,
    sustained=MappingProxyType({"a100": 0.966, "h100": 0.834, "h200": 0.834}),
    flash1=MappingProxyType({"a100": 0.36, "h100": 0.239}),
    ramp_k=64.0,  # the depth of one load of a tile: not fitted, no row of a training run determines it
    kernel_seconds=8.2e-6,
    passes_share=0.742,
    host_seconds=42e-6,
    lockstep_seconds=246e-6,
    crossing_seconds=650e-6,
)
"""Constants fitted to published training runs (docs/predict_accuracy.md); `predict` uses them by default."""


def share(table: Any, gpu: str, missing: float) -> float:
    """Look up a constant by the first part of a GPU's name; `missing` where the table has no entry."""
    value = table.get(gpu, table.get(gpu.split("-")[0], missing))
    return float(value)
