"""Time of the optimizer: Adam reads and writes its state once, in GPU or host memory."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.hardware import Topology
from labkit.predict.constants import Constants
from labkit.predict.costs.matmul import Processor
from labkit.predict.plan import Plan
from labkit.predict.term import Term


def optimizer_term(
    plan: Plan, parameters: float, cluster: Topology, processors: Sequence[Processor], constants: Constants
) -> Term:
    """Adam's step on a rank that holds `parameters` parameters before ZeRO shards them, in seconds; of several kinds of
    GPU, on that with the slowest memory.

    Parameters / sharding ranks x bytes of state / bytes per second that passes reach (Kingma & Ba 2015; bytes of mixed
    precision: Micikevicius et al. 2018). With offload the bytes are those of host memory, shared by the node's ranks,
    and gradients go down and parameters come back over the host link (Ren et al. 2021).
    """
    own = parameters / plan.sharded_over
    state = f"{own:.4g} parameters x {constants.optimizer_bytes:g} bytes of Adam's"
    if plan.offload == "none":
        processor = min(processors, key=lambda one: one.elementwise)
        seconds = processor.passes(own * constants.optimizer_bytes, 4)
        formula = f"{state} state / {processor.elementwise / 1e9:.4g} GB/s that passes reach, and launches"
        return Term("optimizer", "optimizer", seconds, formula, _SOURCE)
    moved = own * (plan.gradient_bytes + plan.value_bytes)
    rate = cluster.host_link.bytes_per_second * cluster.host_link.collective_efficiency
    host = cluster.host_memory_gb_per_s * 1e9 / cluster.nproc_per_node
    seconds = moved / rate + own * constants.optimizer_bytes / host
    formula = f"{state} state in the host's memory; gradients go there and parameters come back"
    return Term("optimizer", "optimizer", seconds, formula, _SOURCE)


_SOURCE = "Kingma & Ba 2015, mixed precision: Micikevicius et al. 2018"
