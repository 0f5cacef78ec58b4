"""Terms of the step of a network that is not cut into layers, one function each: one block for all of it.

In the formulas m is the number of microbatches. All results are in seconds.
"""

from __future__ import annotations

from dataclasses import replace

from labkit.hardware import Topology
from labkit.predict.constants import Constants
from labkit.predict.costs.collectives import Wires
from labkit.predict.costs.layers import BACKWARD_KERNELS, Layer, compute
from labkit.predict.costs.matmul import ROOFLINE, Processor
from labkit.predict.costs.shards import shard_traffic
from labkit.predict.costs.updating import optimizer_term
from labkit.predict.describe import MLP, Convolutional, ModuleCosts
from labkit.predict.describe.work import Block
from labkit.predict.plan import Plan
from labkit.predict.term import Term, in_ms


def network_terms(
    model: MLP | Convolutional | ModuleCosts, plan: Plan, cluster: Topology, constants: Constants
) -> list[Term]:
    """All terms."""
    layout: dict[str, bool] = {}
    if isinstance(model, Convolutional):
        layout = {"fused": plan.fusion != "none", "channels_last": plan.channels_last or plan.precision == "fp32"}
    block = model.block(plan.microbatch, nbytes=plan.value_bytes, **layout)
    if not block.flash_flops:
        constants = replace(constants, passes_share=constants.plain_passes_share)
    wires = Wires(cluster, constants)
    processors = [Processor(gpu, plan.dtype, constants, plan.attention) for gpu in cluster.kinds]
    network = max(
        (_network(block, plan, processor, constants) for processor in processors),
        key=lambda layer: layer.seconds,
    )
    return [
        _forward(plan, network),
        _backward(plan, network),
        _recomputation(plan, network),
        _launches(plan, network),
        *shard_traffic(plan, wires, model.parameters, 1, model.parameters, network, constants, processors),
        optimizer_term(plan, model.parameters, cluster, processors, constants),
    ]


def _network(block: Block, plan: Plan, processor: Processor, constants: Constants) -> Layer:
    """One microbatch on one kind of GPU; of several kinds, all wait for the slowest."""
    forward, inputs, weights, host = compute(block, processor, plan, constants)
    again = 0.0 if plan.recompute == "none" else forward
    busy = forward + inputs + weights + again
    rounds = 1 + BACKWARD_KERNELS + (plan.recompute != "none")
    waiting = 0.0 if plan.cuda_graphs else max(0.0, host * rounds - busy)
    return Layer(forward, inputs, weights, again, 0.0, 0.0, 0.0, waiting)


def _forward(plan: Plan, network: Layer) -> Term:
    """m x the forward of one microbatch, each product under the roofline (Williams et al. 2009)."""
    m, each = plan.microbatches, network.forward
    return Term("forward", "compute", m * each, f"{m} microbatches x {in_ms(each)} of products and passes", ROOFLINE)


def _backward(plan: Plan, network: Layer) -> Term:
    """m x the backward of one microbatch: two products for each one of forward."""
    m, each = plan.microbatches, network.inputs + network.weights
    return Term("backward", "compute", m * each, f"{m} x {in_ms(each)}: each product twice", ROOFLINE)


def _recomputation(plan: Plan, network: Layer) -> Term:
    """m x the forward of one microbatch, which backward computes again (Chen et al. 2016)."""
    m, each = plan.microbatches, network.again
    return Term("recomputation", "compute", m * each, f"{m} x {in_ms(each)}: forward again", "Chen et al. 2016")


def _launches(plan: Plan, network: Layer) -> Term:
    """m x (kernels x host time of a launch - GPU time), at least 0."""
    m, each, busy = plan.microbatches, network.host, network.forward + network.backward
    formula = f"{m} x (kernels x host time - GPU time = {in_ms(busy + each)} - {in_ms(busy)})"
    return Term("launches", "waiting", m * each, formula, "kernels cannot start before launch")
