"""Pipeline stages of a transformer: their layers, their seconds and the parameters that a rank of them holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from labkit.predict.constants import Constants
from labkit.predict.costs.collectives import Wires
from labkit.predict.costs.layers import Layer, compute, ends_traffic, transformer_layer
from labkit.predict.costs.matmul import Processor
from labkit.predict.costs.placing import pipelines
from labkit.predict.costs.schedules import idle_seconds, split_by_pace, split_layers
from labkit.predict.describe.transformer import Transformer
from labkit.predict.plan import Plan


class Stages(NamedTuple):
    """All stages of one pipeline, a single one without pipeline parallelism. Seconds are those of one microbatch."""

    layer: Layer
    """A layer of the slowest stage."""
    layers: list[int]
    """Number of layers of each stage."""
    seconds: list[tuple[float, float, float]]
    """Forward, backward for inputs and backward for weights (F, B, W) of each stage, with its tensor-, context- and
    expert-parallel traffic."""
    slowest: int
    """Index of the stage that takes longest."""
    ends: list[float]
    """Seconds of computing the embedding and the head, if the slowest stage has them."""
    end_traffic: float
    """Seconds of tensor-parallel traffic of the embedding, or of the head."""

    @property
    def slowest_layers(self) -> int:
        """Number of layers of the slowest stage."""
        return self.layers[self.slowest]


def transformer_stages(
    model: Transformer, plan: Plan, processors: Sequence[Processor], wires: Wires, constants: Constants
) -> Stages:
    """Split the layers over the stages by `plan.balance`, and add up the seconds of each stage of the slowest replica.

    `processors`: those of the cluster's `kinds` of GPU.
    """
    layer_on = [transformer_layer(model, plan, one, wires, constants) for one in processors]
    replicas, paces = [[0] * plan.pipeline], [layer_on[0].seconds] * plan.pipeline
    if len(processors) > 1:
        replicas = [
            [max(among, key=lambda kind: layer_on[kind].seconds) for among in replica]
            for replica in pipelines(plan, wires.cluster)
        ]
        paces = [max(layer_on[kind].seconds for kind in stage) for stage in zip(*replicas, strict=True)]
    blocks = model.ends(
        plan.microbatch, tensor=plan.tensor, context=plan.context, loss=plan.loss, nbytes=plan.value_bytes
    )
    ends_on = [[compute(block, one, plan, constants)[:3] for block in blocks] for one in processors]
    first, last = (max(sum(ends_on[replica[at]][at]) for replica in replicas) for at in (0, -1))
    if plan.balance == "matrices":
        layers = split_layers(plan, model.layers, 0.0, model.vocab * model.width / model.layer_matrices)
    elif plan.balance == "cost" and len(processors) > 1:
        layers = split_by_pace(model.layers, paces, first, last)
    else:
        layers = split_layers(plan, model.layers, first / paces[0], last / paces[-1])
    end_traffic = ends_traffic(model, plan, wires)
    made = [
        _stages([layer_on[kind] for kind in at], layers, (ends_on[at[0]][0], ends_on[at[-1]][1]), end_traffic)
        for at in replicas
    ]
    if len(made) == 1:
        return made[0]
    return max(
        made,
        key=lambda one: plan.microbatches * sum(one.seconds[one.slowest]) + idle_seconds(plan, one.seconds),
    )


def _stages(
    of: Sequence[Layer], layers: list[int], ends: Sequence[tuple[float, float, float]], end_traffic: float
) -> Stages:
    """Add up the seconds of each stage of one replica; `of`: a layer of each stage, `ends`: embedding and head."""
    seconds: list[tuple[float, float, float]] = []
    alike: dict[tuple[int, int], tuple[float, float, float]] = {}
    at_ends = ((ends[0], 0), (ends[1], len(layers) - 1))
    for stage, (count, layer) in enumerate(zip(layers, of, strict=True)):
        key = count, id(layer)
        if key not in alike:
            side = layer.tensor + layer.context + layer.expert
            busy = layer.forward + layer.backward
            slowed = 1 + layer.host / busy  # waiting for launches slows all parts, weight gradients too
            alike[key] = (
                count * layer.forward * (slowed + side / busy),
                count * ((layer.inputs + layer.again) * slowed + side * layer.backward / busy),
                count * layer.weights * slowed,
            )
        forward, inputs, weights = alike[key]
        for end, at in at_ends:
            if stage == at:
                forward, inputs, weights = forward + end[0] + end_traffic, inputs + end[1], weights + end[2]
        seconds.append((forward, inputs, weights))
    totals = [sum(stage) for stage in seconds]
    slowest = totals.index(max(totals))
    at_slowest = [sum(end) for end, at in at_ends if at == slowest]
    return Stages(of[slowest], layers, seconds, slowest, at_slowest, end_traffic)


def layer_parameters(model: Transformer, plan: Plan) -> float:
    """Parameters of one layer on one rank: split over the tensor ranks, the experts' over the expert ranks, too."""
    expert = model.experts * model.mlp_parameters
    return (model.layer_parameters - expert + expert / plan.expert) / plan.tensor


def held_parameters(model: Transformer, plan: Plan, layers: list[int]) -> float:
    """Parameters on a rank of the fullest stage, before ZeRO shards them; `layers`: number of layers of each stage.

    With a pipeline, a head tied to the embedding is a second copy of its matrix, on the last stage.
    """
    per_layer = layer_parameters(model, plan)
    first = layers[0] * per_layer + model.embedding_parameters / plan.tensor
    if plan.pipeline == 1:
        return first + model.head_parameters / plan.tensor
    head = model.head_parameters + (model.vocab * model.width if model.tied else 0)
    return max(max(layers) * per_layer, first, layers[-1] * per_layer + head / plan.tensor)
