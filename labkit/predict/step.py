"""`predict()`: time and memory of one step, composed of its parts."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

from labkit.hardware import Topology
from labkit.predict.constants import FITTED, Constants
from labkit.predict.costs.collectives import Wires, group
from labkit.predict.costs.layers import BACKWARD_KERNELS, Layer, compute, ends_traffic, transformer_layer
from labkit.predict.costs.matmul import Processor
from labkit.predict.costs.memory import memory
from labkit.predict.costs.schedules import KINDS, idle_seconds, split_layers
from labkit.predict.costs.shards import shard_traffic
from labkit.predict.costs.updating import update_seconds
from labkit.predict.describe import Convolutional, Description
from labkit.predict.describe.transformer import Transformer
from labkit.predict.plan import Plan
from labkit.predict.prediction import Prediction, PredictionRange, Term
from labkit.predict.ranges import OneOf, corners


def predict(
    model: Description, plan: Plan, cluster: Topology, *, data_seconds: float = 0.0, constants: Constants = FITTED
) -> Prediction:
    """Predict one step from closed forms: no rank is run, and the cost of predicting does not grow with the ranks.

    `data_seconds`: time that a step waits for its batch. Raises ValueError naming the constraint that the plan
    violates.
    """
    plan.check(model, cluster)
    constants = constants.on(cluster)
    if not 0 <= data_seconds < math.inf:
        raise ValueError(f"data_seconds must be at least 0, got {data_seconds}")
    if isinstance(model, Transformer):
        terms, layers = _transformer_terms(model, plan, cluster, constants)
    else:
        terms, layers = _whole_terms(model, plan, cluster, constants), [1]
    terms.append(Term("data", "data", data_seconds, "given", "the caller"))
    wait = constants.straggle * max(0, cluster.nnodes.bit_length() - 1) * sum(term.seconds for term in terms)
    terms.append(
        Term(
            "stragglers",
            "waiting",
            wait,
            f"{constants.straggle:.3g} x log2(nodes) x step",
            "the slowest of all decides",
        )
    )
    return Prediction(model, plan, cluster, tuple(terms), memory(model, plan, layers))


def predict_range(
    model: Description | OneOf, plan: dict[str, Any], cluster: Topology | OneOf, **options: Any
) -> PredictionRange:
    """Like `predict`, for every combination of unknowns: the model, the cluster, fields of the plan and options may be
    `OneOf`, numbers also `Range`.

    Contradictory combinations are left out. Raises ValueError with the last one's constraint if none is left.
    """
    names, option_names = list(plan), list(options)
    spread = [corners(value) for value in (*plan.values(), model, cluster, *options.values())]
    cases, problem = [], ValueError("nothing to predict")
    for chosen in product(*spread):
        try:
            made = Plan(**dict(zip(names, chosen, strict=False)))
            described, where, *rest = chosen[len(names) :]
            cases.append(predict(described, made, where, **dict(zip(option_names, rest, strict=True))))
        except ValueError as error:
            problem = error
    if not cases:
        raise problem
    return PredictionRange(tuple(cases))


def _whole_terms(model: Any, plan: Plan, cluster: Topology, constants: Constants) -> list[Term]:
    """Terms of a network that is not cut into layers: one block for all of it."""
    layout = {}
    if isinstance(model, Convolutional):
        layout = {"fused": plan.fusion != "none", "channels_last": plan.channels_last or plan.precision == "fp32"}
    block = model.block(plan.microbatch, nbytes=plan.value_bytes, **layout)
    if not block.flash_flops:
        constants = replace(constants, passes_share=constants.plain_passes_share)
    processor, wires = Processor(cluster.gpu, plan.dtype, constants, plan.attention), Wires(cluster, constants)
    forward, inputs, weights, host = compute(block, processor, plan, constants)
    again = 0.0 if plan.recompute == "none" else forward
    busy = forward + inputs + weights + again
    m = plan.microbatches
    rounds = 1 + BACKWARD_KERNELS + (plan.recompute != "none")
    waiting = max(0.0, host * rounds - busy)
    layer = Layer(forward, inputs, weights, again, 0.0, 0.0, 0.0, waiting)
    traffic = shard_traffic(plan, wires, model.parameters, 1, model.parameters, layer, constants)
    return [
        Term("forward", "compute", m * forward, f"{m} microbatches x {_ms(forward)} of products and passes", _ROOFLINE),
        Term(
            "backward",
            "compute",
            m * (inputs + weights),
            f"{m} x {_ms(inputs + weights)}: each product twice",
            _ROOFLINE,
        ),
        Term("recomputation", "compute", m * again, f"{m} x {_ms(again)}: forward again", "Chen et al. 2016"),
        Term(
            "launches",
            "waiting",
            m * waiting,
            f"{m} x (kernels x host time - GPU time = {_ms(busy + waiting)} - {_ms(busy)})",
            "kernels cannot start before launch",
        ),
        *traffic,
        Term("optimizer", "optimizer", *_update(plan, model.parameters, cluster, processor, constants)),
    ]


def _transformer_terms(
    model: Transformer, plan: Plan, cluster: Topology, constants: Constants
) -> tuple[list[Term], list[int]]:
    processor, wires = Processor(cluster.gpu, plan.dtype, constants, plan.attention), Wires(cluster, constants)
    layer = transformer_layer(model, plan, processor, wires, constants)
    first_block, last_block = model.ends(
        plan.microbatch, tensor=plan.tensor, context=plan.context, loss=plan.loss, nbytes=plan.value_bytes
    )
    first, last = (compute(block, processor, plan, constants)[:3] for block in (first_block, last_block))
    end_traffic = ends_traffic(model, plan, wires)
    if plan.balance == "matrices":
        layers = split_layers(plan, model.layers, 0.0, model.vocab * model.width / model.layer_matrices)
    else:
        layers = split_layers(plan, model.layers, sum(first) / layer.seconds, sum(last) / layer.seconds)
    stages = []
    side = layer.tensor + layer.context + layer.expert
    busy = layer.forward + layer.backward
    slowed = 1 + layer.host / busy  # waiting for launches slows all parts, weight gradients too
    for stage, count in enumerate(layers):
        forward = count * layer.forward * (slowed + side / busy)
        inputs = count * ((layer.inputs + layer.again) * slowed + side * layer.backward / busy)
        weights = count * layer.weights * slowed
        for end, at in ((first, 0), (last, len(layers) - 1)):
            if stage == at:
                forward, inputs, weights = forward + end[0] + end_traffic, inputs + end[1], weights + end[2]
        stages.append((forward, inputs, weights))
    totals = [sum(stage) for stage in stages]
    slowest = totals.index(max(totals))
    count, m = layers[slowest], plan.microbatches
    ends = [sum(end) for end, at in ((first, 0), (last, len(layers) - 1)) if at == slowest]
    bubble = idle_seconds(plan, stages)
    sends, sent = _sends(model, plan, wires)
    expert = model.experts * model.mlp_parameters
    per_layer = (model.layer_parameters - expert + expert / plan.expert) / plan.tensor
    ends_parameters = (
        model.embedding_parameters + model.head_parameters
        if plan.pipeline == 1
        else max(model.embedding_parameters, model.head_parameters + (model.vocab * model.width if model.tied else 0))
    ) / plan.tensor
    held = max(layers) * per_layer + (ends_parameters if plan.pipeline == 1 else 0)
    held = max(held, layers[0] * per_layer + model.embedding_parameters / plan.tensor)
    p, t = plan.pipeline, plan.tensor
    return [
        Term(
            "forward",
            "compute",
            m * count * layer.forward,
            f"{m} microbatches x {count} layers of the slowest stage x {_ms(layer.forward)} of products and passes",
            _ROOFLINE,
        ),
        Term(
            "backward",
            "compute",
            m * count * (layer.inputs + layer.weights),
            f"{m} x {count} x {_ms(layer.inputs + layer.weights)}: each product twice, attention 2.5 times",
            _ROOFLINE,
        ),
        Term(
            "recomputation",
            "compute",
            m * count * layer.again,
            f"{plan.recompute}: {m} x {count} x {_ms(layer.again)} of forward again",
            "Korthikanti et al. 2022",
        ),
        Term(
            "embedding and head",
            "compute",
            m * sum(ends),
            f"{m} x {_ms(sum(ends))}, where the slowest stage has them",
            _ROOFLINE,
        ),
        Term(
            "tensor parallel",
            "communication",
            m * (count * layer.tensor + len(ends) * end_traffic),
            _all_reduces(model, plan)
            + f": {m} x ({count} layers x {_ms(layer.tensor)} + {len(ends)} x {_ms(end_traffic)})",
            "Shoeybi et al. 2019; " + _ALPHA,
        ),
        Term(
            "context parallel",
            "communication",
            m * count * layer.context,
            f"{m} x {count} x {_ms(layer.context)}: keys and values that attention does not hide",
            "Liu et al. 2023",
        ),
        Term(
            "expert parallel",
            "communication",
            m * count * layer.expert,
            f"{m} x {count} x {_ms(layer.expert)}: all-to-all of tokens, there and back",
            "Lepikhin et al. 2021",
        ),
        Term(
            "launches",
            "waiting",
            m * count * layer.host,
            f"{m} x {count} x {_ms(layer.host)}: kernels x host time - GPU time",
            "kernels cannot start before launch",
        ),
        Term("pipeline sends", "communication", sends, sent, _ALPHA),
        Term(
            "bubble",
            "bubble",
            bubble,
            f"{KINDS[plan.schedule]}, p = {p}, v = {plan.chunks}, {_mean_stage(stages, slowest)}",
            "Qi et al. 2024; Narayanan et al. 2021",
        ),
        *shard_traffic(plan, wires, held, max(layers), per_layer, layer, constants, model.embedding_held(t)),
        Term(
            "tied embedding",
            "communication",
            _tied_seconds(model, plan, wires),
            "gradients of the first and the last stage's copy summed up, "
            f"{model.vocab * model.width / t * plan.gradient_bytes / 1e9:.3g} GB",
            "Shoeybi et al. 2019",
        ),
        Term("optimizer", "optimizer", *_update(plan, held, cluster, processor, constants)),
    ], layers


def _sends(model: Transformer, plan: Plan, wires: Wires) -> tuple[float, str]:
    """Exposed seconds of sends between neighbouring stages, and their formula."""
    if plan.pipeline == 1:
        return 0.0, "no pipeline"
    nbytes = plan.microbatch * model.sequence / plan.context * model.width * plan.value_bytes / plan.tensor
    one = wires.send(nbytes, inside=wires.cluster.nnodes == 1)
    rounds = (plan.pipeline - 1) + plan.microbatches * plan.chunks
    if plan.overlap:
        rounds = plan.pipeline - 1
    said = f"2 x {rounds} sends of {nbytes / 1e6:.3g} MB, {_ms(one)} each: activations to the next stage, and back"
    return 2 * rounds * one, said


def _tied_seconds(model: Transformer, plan: Plan, wires: Wires) -> float:
    if not model.tied or plan.pipeline == 1:
        return 0.0
    nbytes = model.vocab * model.width / plan.tensor * plan.gradient_bytes
    stride = plan.ranks // plan.pipeline * (plan.pipeline - 1)
    return wires.all_reduce(nbytes, group(2, stride, wires.cluster))


def _update(
    plan: Plan, parameters: float, cluster: Topology, processor: Processor, constants: Constants
) -> tuple[float, str, str]:
    """Seconds, formula and source of the optimizer's step."""
    bytes_of_state = f"{parameters / plan.sharded_over:.4g} parameters x {constants.optimizer_bytes:g} bytes of Adam's"
    if plan.offload == "none":
        said = f"{bytes_of_state} state / {processor.elementwise / 1e9:.4g} GB/s that passes reach, and launches"
    else:
        said = f"{bytes_of_state} state in the host's memory; gradients go there and parameters come back"
    return update_seconds(plan, parameters, cluster, processor, constants), said, _UPDATE


def _all_reduces(model: Transformer, plan: Plan) -> str:
    """Formula of a layer's tensor-parallel traffic, for checking it by hand."""
    nbytes = plan.microbatch * model.sequence / plan.context * model.width * plan.value_bytes
    each = 4 + (2 * plan.recomputed_layers if plan.recompute == "full" else 0)
    halves = ", each a reduce-scatter and an all-gather" if plan.sequence_parallel else ""
    return (
        f"all-reduces of microbatch x sequence x width = {nbytes / 1e6:.4g} MB over {plan.tensor} ranks, "
        f"{each:.3g} a layer and one an end{halves}"
        + (", those of forward and weights' gradients partly hidden" if plan.overlap_tensor else "")
    )


def _mean_stage(stages: list[tuple[float, float, float]], slowest: int) -> str:
    """Mean F, B and W of the stages that make up the bubble: all but the slowest."""
    others = [stage for index, stage in enumerate(stages) if index != slowest] or stages
    forward, inputs, weights = (sum(part) / len(others) for part in zip(*others, strict=True))
    return f"F = {_ms(forward)}, B = {_ms(inputs + weights)}, W = {_ms(weights)} (means of the stages but the slowest)"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms"


_ROOFLINE = "tiles, waves, roofline: Williams et al. 2009; NVIDIA's matrix multiplication guide"
_ALPHA = "alpha-beta: Thakur et al. 2005"
_UPDATE = "Kingma & Ba 2015, mixed precision: Micikevicius et al. 2018"
