"""What a rank holds at most, by category, at each stage of the pipeline.

Model states follow ZeRO (Rajbhandari et al. 2020): parameters, gradients, and 12 bytes a parameter of Adam's state with
its fp32 copy. Activations follow Korthikanti et al. 2022, times the microbatches that a stage has in flight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from labkit.predict.costs.schedules import in_flight
from labkit.predict.describe import Description
from labkit.predict.describe.transformer import Transformer
from labkit.predict.plan import Plan

RESERVED_BYTES = 1.5e9
"""CUDA's context, NCCL's buffers, cuBLAS's workspace: not torch's to count, but gone from the GPU (typical of A100
and H100)."""


@dataclass(frozen=True)
class Memory:
    """Bytes of one rank. `total` is what torch allocates at its peak; `reserved` is used besides."""

    stage: int
    parameters: float
    gradients: float
    optimizer: float
    activations: float
    buffers: float
    """Gathered parameters, buckets, the working set of the layer that is computed again."""
    reserved: float = RESERVED_BYTES

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.buffers

    def categories(self) -> dict[str, float]:
        names = ("parameters", "gradients", "optimizer", "activations", "buffers", "reserved")
        return {name: getattr(self, name) for name in names}


def states(plan: Plan, parameters: float) -> tuple[float, float, float]:
    """Bytes of parameters, gradients and optimizer for `parameters` that a rank would hold without ZeRO."""
    n = plan.sharded_over
    if plan.value_bytes == 4 or plan.zero == 3:
        weights, optimizer = 4.0, 8.0
    else:
        weights, optimizer = 2.0, 12.0
    gradient = 4.0 if plan.zero == 3 else float(plan.gradient_bytes)
    held = parameters * weights / (n if plan.zero == 3 else 1)
    kept = parameters * gradient / (n if plan.zero >= 2 else 1)
    state = parameters * optimizer / n
    if plan.offload != "none":
        state = 0.0
    if plan.offload == "optimizer+parameters":
        held = 0.0
    return held, kept, state


def transformer_memory(model: Transformer, plan: Plan, layers: Sequence[int]) -> list[Memory]:
    """Of every stage; `layers` of each."""
    found = []
    last = plan.pipeline - 1
    one = model.activation_bytes(
        plan.microbatch, tensor=plan.tensor, sequence_parallel=plan.sequence_parallel, context=plan.context,
        recompute=plan.recompute, flash=plan.flash, keep_gathered=plan.keep_gathered,
    ) * plan.value_bytes / 2  # fmt: skip
    whole = model.activation_bytes(
        plan.microbatch,
        tensor=plan.tensor,
        sequence_parallel=plan.sequence_parallel,
        context=plan.context,
        flash=plan.flash,
        keep_gathered=plan.keep_gathered,
    )
    if plan.recompute != "none":  # the layers that keep everything
        one = one * plan.recomputed_layers + whole * (1 - plan.recomputed_layers)
    expert = model.experts * model.mlp_parameters
    layer = (model.layer_parameters - expert + expert / plan.expert) / plan.tensor
    for stage, count in enumerate(layers):
        parameters = count * layer
        activations = count * one * in_flight(plan, stage)
        buffers = whole if plan.recompute == "full" else 0.0
        if stage == 0:
            parameters += model.embedding_parameters / plan.tensor
            mask = plan.microbatch * model.sequence / plan.context * model.width * (1 if model.dropout else 0)
            activations += mask * in_flight(plan, stage) / (plan.tensor if plan.sequence_parallel else 1)
        if stage == last:
            tied = model.tied and plan.pipeline > 1
            parameters += (model.head_parameters + (model.vocab * model.width if tied else 0)) / plan.tensor
            activations += model.head_activation_bytes(
                plan.microbatch, tensor=plan.tensor, context=plan.context, eager_loss=plan.loss == "eager"
            )
        held, kept, state = states(plan, parameters)
        if plan.zero == 3:  # the layer that computes and the one that is fetched ahead
            buffers += 2 * layer * plan.value_bytes + layer * plan.gradient_bytes
        found.append(Memory(stage, held, kept, state, activations, buffers))
    return found


def memory(model: Description, plan: Plan, layers: Sequence[int]) -> Memory:
    """At the stage that needs most."""
    if isinstance(model, Transformer):
        return max(transformer_memory(model, plan, layers), key=lambda stage: stage.total)
    held, kept, state = states(plan, model.parameters)
    activations = model.activation_bytes(plan.microbatch, recompute=plan.recompute, nbytes=plan.value_bytes)
    return Memory(0, held, kept, state, activations, 0.0)
