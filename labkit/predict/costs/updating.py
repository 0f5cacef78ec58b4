"""Time of the optimizer: Adam reads and writes its state once, in GPU or host memory."""

from __future__ import annotations

from labkit.hardware import Topology
from labkit.predict.constants import Constants
from labkit.predict.costs.matmul import Processor
from labkit.predict.plan import Plan


def update_seconds(
    plan: Plan, parameters: float, cluster: Topology, processor: Processor, constants: Constants
) -> float:
    """Seconds of the update; `parameters`: number on one rank before ZeRO shards them."""
    own = parameters / plan.sharded_over
    if plan.offload == "none":
        return processor.passes(own * constants.optimizer_bytes, 4)
    # gradients go down and parameters come back; host memory is shared by the node's ranks (Ren et al. 2021)
    moved = own * (plan.gradient_bytes + plan.value_bytes)
    rate = cluster.host_link.bytes_per_second * cluster.host_link.collective_efficiency
    host = cluster.host_memory_gb_per_s * 1e9 / cluster.nproc_per_node
    return moved / rate + own * constants.optimizer_bytes / host
