"""Peak memory of a rank, by category, at each stage of the pipeline.

Model states follow ZeRO (Rajbhandari et al. 2020), with the bytes of `state_bytes`. Activations follow Korthikanti et
al. 2022, times the microbatches that a stage has in flight. The peak is the largest of four moments: in the loss, when
the logits and all activations are held; in the first layer's backward, with recomputed activations; at the end of a
microbatch's backward, with gradients that are not yet reduced; and in the optimizer's step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from labkit.predict.costs.compressing import COMPRESSORS
from labkit.predict.costs.schedules import in_flight, weights_waiting
from labkit.predict.costs.state_bytes import state_bytes
from labkit.predict.describe import Description
from labkit.predict.describe.transformer import Transformer
from labkit.predict.plan import Plan
from labkit.predict.ranges import Range

Measure = Literal["allocated", "reserved", "device"]
MEASURES: dict[Measure, str] = {
    "allocated": "tensors: torch.cuda.max_memory_allocated()",
    "reserved": "what torch's allocator keeps for them: torch.cuda.max_memory_reserved()",
    "device": "all that is gone from the GPU, with CUDA's context and NCCL's buffers: nvidia-smi",
}

RESERVED_BYTES = 1.5e9
"""CUDA's context, NCCL's buffers, cuBLAS's workspace: not counted by torch, but used on the GPU (typical of A100 and
H100)."""
FRAGMENTATION = 0.15
"""Upper bound of the unused memory that torch's allocator keeps, as a share of the tensors' bytes: the mean over eight
models of what stitching its blocks together saved (Guo et al. 2024, GMLake). 0 with expandable segments."""


class Memory(NamedTuple):
    """Bytes of one rank at its peak. `total` is allocated by torch; `reserved` is used in addition."""

    stage: int
    layers: int
    parameter_count: float
    """Number of the stage's parameters that a rank would hold without ZeRO."""
    moment: str
    """Moment of the peak: loss, backward, end of backward or optimizer."""
    parameters: float
    gradients: float
    optimizer: float
    kept: float = 0.0
    """Activations of the layers for the microbatches in flight."""
    logits: float = 0.0
    again: float = 0.0
    """Recomputed activations of one layer."""
    working: float = 0.0
    """Gradients of one layer's activations."""
    gathered: float = 0.0
    """Parameters of other ranks' shards."""
    passing: float = 0.0
    """Gradients that are not yet reduced or scattered."""
    update: float = 0.0
    """The optimizer's own copies."""
    freed: float = 0.0
    """Unused memory that the allocator keeps in any case: the hole of the 16-bit logits, freed before the loss
    peaks."""
    reserved: float = RESERVED_BYTES

    @property
    def activations(self) -> float:
        return self.kept + self.logits

    @property
    def buffers(self) -> float:
        """Temporary memory of a step."""
        return self.again + self.working + self.gathered + self.passing + self.update

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer + self.activations + self.buffers

    def measured(self, measure: Measure = "allocated") -> Range:
        """The peak as counted by this measure. Raises ValueError for one that is not in `MEASURES`.

        Memory that torch's allocator keeps unused is a range; its low end assumes blocks without gaps between them.
        """
        if measure not in MEASURES:
            raise ValueError(f"measure must be one of {', '.join(MEASURES)}, got {measure!r}")
        if measure == "allocated":
            return Range(self.total, self.total)
        outside = self.reserved if measure == "device" else 0.0
        return Range(self.total + self.freed + outside, self.total * (1 + FRAGMENTATION) + self.freed + outside)

    def categories(self) -> dict[str, float]:
        names = ("parameters", "gradients", "optimizer", "activations", "buffers", "reserved")
        return {name: getattr(self, name) for name in names}

    @property
    def largest(self) -> str:
        """Largest category."""
        held = self.categories()
        return max(held, key=held.__getitem__)


def logit_bytes(plan: Plan) -> tuple[int, int]:
    """Bytes per logit at the peak of the loss, and bytes per logit that were freed by then but left a hole in the
    allocator's blocks: the 16-bit logits that the head's product returns."""
    half = 2 if plan.value_bytes == 2 else 0
    # in fp32: log-softmax, the gradient of the loss, that of the logit; torch's loss_parallel() computes the latter two
    # as a gradient, an exponential, their sum and its product, three of which are held at once
    eager = 12 if plan.tensor == 1 else 16
    return {
        "fused": (2 * plan.value_bytes, 0),  # and its gradient
        "in place": (4 + half, 0),  # in fp32
        "copied": (8, half),  # in fp32, and with the maximum subtracted
        "eager": (eager, half),
    }[plan.loss]


def states(plan: Plan, parameters: float) -> tuple[float, float, float]:
    """Bytes of parameters, gradients and optimizer state; `parameters`: number that a rank would hold without ZeRO."""
    held, kept, state = (parameters * each for each in state_bytes(plan).held(plan.zero, plan.sharded_over))
    if plan.gradient_copies and plan.shared_by > 1 and plan.zero < 2:
        kept += parameters * plan.value_bytes  # DDP's buckets
    if plan.compression in COMPRESSORS and COMPRESSORS[plan.compression].residual:
        kept += parameters * plan.gradient_bytes
    if plan.offload != "none":
        state = 0.0
    if plan.offload == "optimizer+parameters":
        held = 0.0
    return held, kept, state


def transformer_memory(model: Transformer, plan: Plan, layers: Sequence[int]) -> list[Memory]:
    """Memory of every stage; `layers[i]` layers in stage i."""
    one, thrifty, whole, working = layer_bytes(model, plan)
    waiting = model.weight_bytes(
        plan.microbatch, tensor=plan.tensor, sequence_parallel=plan.sequence_parallel, context=plan.context,
        nbytes=plan.kept_bytes,
    )  # fmt: skip
    expert = model.experts * model.mlp_parameters
    layer = (model.layer_parameters - expert + expert / plan.expert) / plan.tensor
    last = plan.pipeline - 1
    stages = []
    alike: dict[tuple[int, bool, bool], _Peak] = {}
    for stage, count in enumerate(layers):
        flying, deferred = in_flight(plan, stage), weights_waiting(plan, stage)
        kept = count * (one * flying + waiting * deferred)
        if stage == 0:
            mask = plan.microbatch * model.sequence / plan.context * model.width * (1 if model.dropout else 0)
            kept += mask * flying / (plan.tensor if plan.sequence_parallel else 1)
        if stage == last:
            logits = model.logits(plan.microbatch, tensor=plan.tensor, context=plan.context)
            head = model.head_activation_bytes(plan.microbatch, context=plan.context, nbytes=plan.value_bytes)
            # GPipe's last stage computes all losses before the first backward, each with its softmax in fp32
            kept += head + (flying - 1 if plan.schedule == "gpipe" else 0.0) * (head + 4 * logits)
        key = (count, stage == 0, stage == last)
        if key not in alike:
            ends = model.embedding_held(plan.tensor) if stage == 0 else 0.0
            if stage == last:
                tied = model.tied and plan.pipeline > 1
                ends += (model.head_parameters + (model.vocab * model.width if tied else 0)) / plan.tensor
            alike[key] = _Peak(
                plan, count * layer + ends, ends, layer, count * one, logits if stage == last else 0.0, whole - thrifty,
                working,
            )  # fmt: skip
        stages.append(alike[key].of(stage, count, kept))
    return stages


class _Peak:
    """The peaks of a pipeline's stages that differ only in the microbatches that they have in flight."""

    def __init__(
        self, plan: Plan, parameters: float, ends: float, layer: float, microbatch: float, logits: float = 0.0,
        again: float = 0.0, working: float = 0.0,
    ) -> None:  # fmt: skip
        """parameters: number in a stage, of which `ends` belong to embedding and head, and `layer` to one layer.
        microbatch: bytes of activations of one microbatch."""
        narrow, wide = plan.value_bytes, plan.gradient_bytes
        gathered = passing = unsummed = 0.0
        if plan.zero >= 2:
            passing = layer * (narrow + wide)  # one layer's, as computed by autograd and as sent
        if plan.zero == 3:
            # the layer being computed and the prefetched one; embedding and head stay gathered for the whole step
            gathered = 2 * layer * plan.gathered_bytes + ends * narrow
            unsummed = ends * (narrow + wide)
        elif plan.gradient_copies and wide > narrow:
            unsummed = parameters * narrow
        inside, freed = logit_bytes(plan)
        self.parameters, self.states, self.microbatch = parameters, states(plan, parameters), microbatch
        self.again, self.working, self.gathered, self.passing, self.unsummed = (
            again,
            working,
            gathered,
            passing,
            unsummed,
        )
        self.update = 4 * parameters / plan.sharded_over if plan.adam == "foreach" and plan.offload == "none" else 0.0
        self.logits, self.freed = inside * logits, freed * logits

    def of(self, stage: int, layers: int, kept: float) -> Memory:
        """Memory at the moment when it is fullest; `kept`: bytes of activations of all microbatches in flight."""
        again, working, gathered, passing = self.again, self.working, self.gathered, self.passing
        without, unsummed, logits = max(0.0, kept - self.microbatch), self.unsummed, self.logits
        moment, most = "backward", kept + again + working + gathered + passing
        if (nbytes := without + gathered + unsummed) > most:
            moment, most = "end of backward", nbytes
        if self.update > most:
            moment, most = "optimizer", self.update
        blocks = most
        if logits:
            nbytes = kept + logits + gathered
            blocks = max(most, nbytes + self.freed)
            if nbytes > most:
                moment, most = "loss", nbytes
        at_rest, freed = (stage, layers, self.parameters, moment, *self.states), blocks - most
        match moment:
            case "backward":
                return Memory(*at_rest, kept, 0.0, again, working, gathered, passing, 0.0, freed)
            case "end of backward":
                return Memory(*at_rest, without, 0.0, 0.0, 0.0, gathered, unsummed, 0.0, freed)
            case "optimizer":
                return Memory(*at_rest, update=self.update, freed=freed)
            case _:
                return Memory(*at_rest, kept, logits, 0.0, 0.0, gathered, freed=freed)


def layer_bytes(model: Transformer, plan: Plan) -> tuple[float, float, float, float]:
    """Bytes of one microbatch: kept by a layer on average, by one with recomputation, by one without, and needed in
    addition by its backward."""
    kept, whole = (
        model.activation_bytes(
            plan.microbatch, tensor=plan.tensor, sequence_parallel=plan.sequence_parallel, context=plan.context,
            recompute=recompute, flash=plan.flash, fused=plan.fusion == "kernels",
            keep_gathered=plan.keep_gathered, nbytes=plan.value_bytes, of_products=plan.kept_bytes,
        )
        for recompute in (plan.recompute, "none")
    )  # fmt: skip
    working = model.backward_bytes(
        plan.microbatch, tensor=plan.tensor, sequence_parallel=plan.sequence_parallel, context=plan.context,
        flash=plan.flash, nbytes=plan.value_bytes,
    )  # fmt: skip
    share = plan.recomputed_layers if plan.recompute != "none" else 1.0
    return kept * share + whole * (1 - share), kept, whole, working


def memory(model: Description, plan: Plan, layers: Sequence[int]) -> tuple[Memory, ...]:
    """Memory of every stage."""
    if isinstance(model, Transformer):
        return tuple(transformer_memory(model, plan, layers))
    kept = model.activation_bytes(plan.microbatch, recompute=plan.recompute, nbytes=plan.value_bytes)
    # in parts so small that the memory FSDP gathers for one is negligible
    return (_Peak(plan, model.parameters, 0.0, 0.0, kept).of(0, 1, kept),)
