"""Terms of a transformer's step, one function each: the seconds of the slowest pipeline stage, and the bubble.

In the formulas m is the number of microbatches, L the number of layers of the slowest stage and p the number of stages;
F, B and W are a stage's seconds of forward, of backward for inputs and of backward for weights. All results are in
seconds.
"""

from __future__ import annotations

from labkit.hardware import Topology
from labkit.predict.constants import Constants
from labkit.predict.costs.collectives import ALPHA_BETA, Wires, group
from labkit.predict.costs.matmul import ROOFLINE, Processor
from labkit.predict.costs.schedules import KINDS, idle_seconds
from labkit.predict.costs.shards import shard_traffic
from labkit.predict.costs.stages import Stages, held_parameters, layer_parameters, transformer_stages
from labkit.predict.costs.updating import optimizer_term
from labkit.predict.describe.transformer import Transformer
from labkit.predict.plan import Plan
from labkit.predict.term import Term, in_ms


def transformer_terms(
    model: Transformer, plan: Plan, cluster: Topology, constants: Constants
) -> tuple[list[Term], list[int]]:
    """All terms, and the number of layers of each stage."""
    wires = Wires(cluster, constants)
    processors = [Processor(gpu, plan.dtype, constants, plan.attention) for gpu in cluster.kinds]
    stages = transformer_stages(model, plan, processors, wires, constants)
    held, per_layer = held_parameters(model, plan, stages.layers), layer_parameters(model, plan)
    embedding = model.embedding_held(plan.tensor)
    return [
        _forward(plan, stages),
        _backward(plan, stages),
        _recomputation(plan, stages),
        _embedding_and_head(plan, stages),
        _tensor_parallel(model, plan, stages),
        _context_parallel(plan, stages),
        _expert_parallel(plan, stages),
        _launches(plan, stages),
        _pipeline_sends(model, plan, wires),
        _bubble(plan, stages),
        *shard_traffic(
            plan, wires, held, max(stages.layers), per_layer, stages.layer, constants, processors, embedding
        ),
        _tied_embedding(model, plan, wires),
        optimizer_term(plan, held, cluster, processors, constants),
    ], stages.layers


def _forward(plan: Plan, stages: Stages) -> Term:
    """m L x the forward of one layer, each product under the roofline (Williams et al. 2009)."""
    m, count, each = plan.microbatches, stages.slowest_layers, stages.layer.forward
    formula = f"{m} microbatches x {count} layers of the slowest stage x {in_ms(each)} of products and passes"
    return Term("forward", "compute", m * count * each, formula, ROOFLINE)


def _backward(plan: Plan, stages: Stages) -> Term:
    """m L x the backward of one layer: two products for each one of forward, in fused attention 2.5 times its FLOPs
    (Dao 2023)."""
    m, count, each = plan.microbatches, stages.slowest_layers, stages.layer.inputs + stages.layer.weights
    formula = f"{m} x {count} x {in_ms(each)}: each product twice, attention 2.5 times"
    return Term("backward", "compute", m * count * each, formula, ROOFLINE)


def _recomputation(plan: Plan, stages: Stages) -> Term:
    """m L x what backward computes again in one layer: all of forward, or attention only (Korthikanti et al. 2022)."""
    m, count, each = plan.microbatches, stages.slowest_layers, stages.layer.again
    formula = f"{plan.recompute}: {m} x {count} x {in_ms(each)} of forward again"
    return Term("recomputation", "compute", m * count * each, formula, "Korthikanti et al. 2022")


def _embedding_and_head(plan: Plan, stages: Stages) -> Term:
    """m x forward and backward of the embedding and the head, if the slowest stage has them, under the roofline."""
    m, both = plan.microbatches, sum(stages.ends)
    formula = f"{m} x {in_ms(both)}, where the slowest stage has them"
    return Term("embedding and head", "compute", m * both, formula, ROOFLINE)


def _tensor_parallel(model: Transformer, plan: Plan, stages: Stages) -> Term:
    """m x (L x the exposed all-reduces of one layer, plus one for each end that the slowest stage has).

    Four all-reduces of microbatch x sequence x width values in each layer (Shoeybi et al. 2019), more with full
    recomputation; each is a reduce-scatter and an all-gather with sequence parallelism (Korthikanti et al. 2022).
    """
    m, count, one, ends = plan.microbatches, stages.slowest_layers, stages.layer.tensor, len(stages.ends)
    nbytes = plan.microbatch * model.sequence / plan.context * model.width * plan.value_bytes
    each = 4 + (2 * plan.recomputed_layers if plan.recompute == "full" else 0)
    halves = ", each a reduce-scatter and an all-gather" if plan.sequence_parallel else ""
    halves += " in 8 bits" if halves and plan.fp8_transfers else ""
    hidden = ", those of forward and weights' gradients partly hidden" if plan.overlap_tensor else ""
    formula = (
        f"all-reduces of microbatch x sequence x width = {nbytes / 1e6:.4g} MB over {plan.tensor} ranks, "
        f"{each:.3g} a layer and one an end{halves}{hidden}"
        f": {m} x ({count} layers x {in_ms(one)} + {ends} x {in_ms(stages.end_traffic)})"
    )
    seconds = m * (count * one + ends * stages.end_traffic)
    return Term("tensor parallel", "communication", seconds, formula, "Shoeybi et al. 2019; " + ALPHA_BETA)


def _context_parallel(plan: Plan, stages: Stages) -> Term:
    """m L x the wait of ring attention for keys and values that attention on earlier ones does not hide (Liu et al.
    2023)."""
    m, count, each = plan.microbatches, stages.slowest_layers, stages.layer.context
    formula = f"{m} x {count} x {in_ms(each)}: keys and values that attention does not hide"
    return Term("context parallel", "communication", m * count * each, formula, "Liu et al. 2023")


def _expert_parallel(plan: Plan, stages: Stages) -> Term:
    """m L x the all-to-alls of one layer: two forward, two backward (Lepikhin et al. 2021)."""
    m, count, each = plan.microbatches, stages.slowest_layers, stages.layer.expert
    formula = f"{m} x {count} x {in_ms(each)}: all-to-all of tokens, there and back"
    return Term("expert parallel", "communication", m * count * each, formula, "Lepikhin et al. 2021")


def _launches(plan: Plan, stages: Stages) -> Term:
    """m L x the time in which the GPU waits for the host: kernels x host time of a launch - GPU time, at least 0."""
    m, count, each = plan.microbatches, stages.slowest_layers, stages.layer.host
    formula = f"{m} x {count} x {in_ms(each)}: kernels x host time - GPU time"
    return Term("launches", "waiting", m * count * each, formula, "kernels cannot start before launch")


def _pipeline_sends(model: Transformer, plan: Plan, wires: Wires) -> Term:
    """2 (p - 1 + m v) x one send of activations to the next stage, with v chunks on each rank: there, and gradients
    back; 2 (p - 1) of them are exposed when sends overlap computing (alpha-beta: Thakur et al. 2005)."""
    name, kind = "pipeline sends", "communication"
    if plan.pipeline == 1:
        return Term(name, kind, 0.0, "no pipeline", ALPHA_BETA)
    nbytes = plan.microbatch * model.sequence / plan.context * model.width * plan.value_bytes / plan.tensor
    each = wires.send(nbytes, inside=wires.cluster.nnodes == 1)
    rounds = (plan.pipeline - 1) + plan.microbatches * plan.chunks
    if plan.overlap:
        rounds = plan.pipeline - 1
    formula = (
        f"2 x {rounds} sends of {nbytes / 1e6:.3g} MB, {in_ms(each)} each: activations to the next stage, and back"
    )
    return Term(name, kind, 2 * rounds * each, formula, ALPHA_BETA)


def _bubble(plan: Plan, stages: Stages) -> Term:
    """Idle time of the schedule, such as (p - 1)(F + B) for 1F1B; `schedules.KINDS` has all (Narayanan et al. 2021, Qi
    et al. 2024). F, B and W in the text are means of the stages that make up the bubble: all but the slowest."""
    others = [stage for index, stage in enumerate(stages.seconds) if index != stages.slowest] or stages.seconds
    forward, inputs, weights = (sum(part) / len(others) for part in zip(*others, strict=True))
    formula = (
        f"{KINDS[plan.schedule]}, p = {plan.pipeline}, v = {plan.chunks}, F = {in_ms(forward)}, "
        f"B = {in_ms(inputs + weights)}, W = {in_ms(weights)} (means of the stages but the slowest)"
    )
    source = "Qi et al. 2024; Narayanan et al. 2021"
    return Term("bubble", "bubble", idle_seconds(plan, stages.seconds), formula, source)


def _tied_embedding(model: Transformer, plan: Plan, wires: Wires) -> Term:
    """One all-reduce of vocab x width gradients / tensor ranks between the first and the last stage, which hold copies
    of a tied embedding (Shoeybi et al. 2019)."""
    nbytes = model.vocab * model.width / plan.tensor * plan.gradient_bytes
    seconds = 0.0
    if model.tied and plan.pipeline > 1:
        stride = plan.ranks // plan.pipeline * (plan.pipeline - 1)
        seconds = wires.all_reduce(nbytes, group(2, stride, wires.cluster))
    formula = f"gradients of the first and the last stage's copy summed up, {nbytes / 1e9:.3g} GB"
    return Term("tied embedding", "communication", seconds, formula, "Shoeybi et al. 2019")
