"""Time of one layer on one rank: forward, backward for inputs and for weights, tensor-parallel traffic."""

from __future__ import annotations

from typing import NamedTuple

from labkit.predict.constants import Constants
from labkit.predict.costs.collectives import Wires, group
from labkit.predict.costs.matmul import Processor, backward_seconds, forward_seconds
from labkit.predict.describe.transformer import Transformer
from labkit.predict.describe.work import Block
from labkit.predict.plan import Plan

BACKWARD_KERNELS = 1.5
"""Backward kernels per forward kernel; autograd launches them from C++."""


class Layer(NamedTuple):
    """Seconds of one microbatch in one layer. Traffic is exposed communication: not hidden behind computing."""

    forward: float
    inputs: float
    """Backward: gradients of the inputs."""
    weights: float
    """Backward: gradients of the parameters."""
    again: float
    """Recomputation in backward."""
    tensor: float
    """Tensor-parallel traffic of forward, backward and recomputation."""
    context: float
    """Waiting for ring attention's keys and values that arrive later than the previous ones are computed."""
    expert: float
    """All-to-alls of experts."""
    host: float
    """Time that the GPU idles because the host launches kernels more slowly than they run."""

    @property
    def backward(self) -> float:
        return self.inputs + self.weights + self.again

    @property
    def seconds(self) -> float:
        return self.forward + self.backward + self.tensor + self.context + self.expert + self.host


def compute(block: Block, processor: Processor, plan: Plan, constants: Constants) -> tuple[float, float, float, float]:
    """Seconds of forward, of backward for inputs and for weights, and the host's minimum to launch it all once."""
    elementwise = max(1.0, block.kernels - len(block.products))
    forward = forward_seconds(block.products, processor) + processor.passes(block.forward_bytes, elementwise)
    inputs, weights = backward_seconds(block.products, processor)
    inputs += processor.passes(block.backward_bytes, elementwise * BACKWARD_KERNELS)
    if block.flash_flops:
        forward += block.flash_flops / processor.flash
        inputs += block.flash_flops / processor.backward_flash
    if plan.precision == "fp8":
        casting = _casts(block, plan)
        forward += processor.passes(casting[0])
        inputs += processor.passes(casting[1])
    if plan.fusion == "none" and plan.zero < 3:
        # autograd's new gradient is copied into the kept one, or added to it from the second microbatch on
        kept = sum(part.batch * part.k * part.n for part in block.products if part.weight)
        moved = plan.value_bytes + plan.gradient_bytes * (2 - 1 / plan.microbatches)
        weights += processor.passes(kept * moved, 3 * sum(part.weight for part in block.products))
    host = block.kernels * constants.host_seconds * (constants.compiled if plan.fusion == "compiled" else 1.0)
    return forward, inputs, weights, host


def _casts(block: Block, plan: Plan) -> tuple[float, float]:
    """Bytes read and written, forward and backward, to cast the factors of fp8 products.

    Torch scales dynamically: each factor of each product is read twice in 16 bits, for its largest value and to be
    cast, and written in 8; with `fp8_activations` the inputs' casts are kept for backward. Transformer Engine's
    kernels, which go with Megatron's, know the scale from earlier steps: norms and activations write their output in 8
    bits too (with `fp8_activations` only), it is transposed for the weights' gradients, and gradients are read once and
    written twice. They cast weights in the first microbatch only (Transformer Engine's user guide, delayed scaling and
    `is_first_microbatch`).
    """
    products = [part for part in block.products if part.weight]
    if plan.fusion != "kernels":
        factors = sum(part.batch * (part.m * part.k + part.k * part.n) for part in products)
        inputs = sum(part.batch * part.m * part.k for part in products)
        return 5 * factors, 10 * factors - (5 * inputs if plan.fp8_activations else 0)
    weights = sum(part.batch * part.k * part.n for part in products)
    outputs = sum(part.batch * part.m * part.k for part in products)
    gradients = sum(part.batch * part.m * part.n for part in products)
    forward = 3 * outputs + 4 * weights / plan.microbatches
    if plan.fp8_activations:  # the projection's input, the second product's, stays in 16 bits as attention's output
        forward -= 2 * (outputs - sum(part.batch * part.m * part.k for part in products[1:2]))
    return forward, 4 * gradients


def transformer_layer(
    model: Transformer, plan: Plan, processor: Processor, wires: Wires, constants: Constants
) -> Layer:
    block = model.block(
        plan.microbatch, tensor=plan.tensor, sequence_parallel=plan.sequence_parallel, context=plan.context,
        flash=plan.flash, fusion=plan.fusion, nbytes=plan.value_bytes,
    )  # fmt: skip
    forward, inputs, weights, host = compute(block, processor, plan, constants)
    again = 0.0
    if plan.recompute == "full":
        last = [product for product in block.products if product.weight][-1:] if plan.early_stop else []
        again = forward - forward_seconds(tuple(last), processor)
    if plan.recompute == "selective":
        attention = tuple(product for product in block.products if not product.weight)
        again = forward_seconds(attention, processor) + processor.passes(block.attention_bytes, 2)
        again += block.flash_flops / processor.flash if plan.flash else 0.0
    again *= plan.recomputed_layers
    tensor, launches = _tensor_traffic(model, plan, wires, forward, weights)
    if not plan.run_ahead:
        tensor += launches * constants.crossing_seconds * (group(plan.tensor, 1, wires.cluster).nodes - 1)
    context = _context_traffic(model, plan, wires, block.flash_flops / processor.flash)
    expert = _expert_traffic(model, plan, wires)
    busy = forward + inputs + weights + again + tensor + context + expert
    rounds = 1 + BACKWARD_KERNELS + (plan.recomputed_layers if plan.recompute == "full" else 0)
    if plan.pipeline > 1 and not plan.run_ahead and wires.cluster.nnodes > 1:
        host += launches * constants.lockstep_seconds * plan.tensor / rounds
    host_total = 0.0 if plan.cuda_graphs else host * rounds + launches * constants.host_seconds
    return Layer(forward, inputs, weights, again, tensor, context, expert, max(0.0, host_total - busy))


def ends_traffic(model: Transformer, plan: Plan, wires: Wires) -> float:
    """Traffic of the embedding, or of the head. Forward sums the tokens' rows, of which each rank holds some; backward
    sums the gradients of the head's inputs (Shoeybi et al. 2019); in both directions with sequence parallelism."""
    if plan.tensor == 1 or model.patch_values:
        return 0.0
    members = group(plan.tensor, 1, wires.cluster)
    nbytes = plan.microbatch * model.sequence / plan.context * model.width * plan.value_bytes
    if plan.sequence_parallel:
        return wires.reduce_scatter(nbytes, members) + wires.all_gather(nbytes, members)
    return wires.all_reduce(nbytes, members)


def _tensor_traffic(model: Transformer, plan: Plan, wires: Wires, forward: float, weights: float) -> tuple[float, int]:
    """Exposed seconds, and number of collectives launched.

    Two all-reduces forward and two backward (Shoeybi et al. 2019); with sequence parallelism each is a reduce-scatter
    and an all-gather, and backward gathers its inputs once more, beside the weights' gradients (Korthikanti et al.
    2022).
    """
    if plan.tensor == 1:
        return 0.0, 0
    members = group(plan.tensor, 1, wires.cluster)
    nbytes = plan.microbatch * model.sequence / plan.context * model.width * plan.value_bytes
    if plan.sequence_parallel:
        gathered = nbytes * plan.gathered_bytes / plan.value_bytes
        pair = wires.reduce_scatter(nbytes, members) + wires.all_gather(gathered, members)
    else:
        pair = wires.all_reduce(nbytes, members)
    passes = 2.0
    if plan.recompute == "full":
        passes += plan.recomputed_layers * (0.5 if plan.early_stop else 1)
    launches = round(4 * passes + 2) if plan.sequence_parallel else round(2 * passes)
    if plan.overlap_tensor:
        # all but the first piece of each overlaps the product it belongs to
        ahead = 2 * (passes - 1) * max(0.25 * pair, pair - forward / 2)
        return ahead + 2 * max(0.25 * pair, pair - weights / 2), launches
    return 2 * passes * pair, launches


def _context_traffic(model: Transformer, plan: Plan, wires: Wires, attention: float) -> float:
    """Keys and values pass around the ring block by block; each hides behind the attention on the previous block."""
    if plan.context == 1:
        return 0.0
    members = group(plan.context, plan.tensor, wires.cluster)
    block = 2 * plan.microbatch * model.sequence / plan.context * model.kv_width / plan.tensor * plan.value_bytes
    hop = wires.send(block, inside=members.nodes == 1)
    step = attention / plan.context
    forward = (plan.context - 1) * max(0.0, hop - step)
    return forward + (plan.context - 1) * max(0.0, 2 * hop - 2.5 * step)


def _expert_traffic(model: Transformer, plan: Plan, wires: Wires) -> float:
    """Tokens go to their experts and back: two all-to-alls forward, two backward (Lepikhin et al. 2021). Those there,
    of activations and of their gradients, may be in 8 bits; those back are summed up in 16 (DeepSeek-AI 2024)."""
    if plan.expert == 1:
        return 0.0
    members = group(plan.expert, plan.tensor, wires.cluster)
    tokens = plan.microbatch * model.sequence / plan.context * model.active_experts
    values = tokens * model.width / plan.tensor
    there, back = (wires.all_to_all(values * nbytes, members) for nbytes in (plan.gathered_bytes, plan.value_bytes))
    return (3 if plan.recompute == "full" else 2) * (there + back)
