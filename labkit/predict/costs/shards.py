"""Traffic of data parallelism and ZeRO, and how much of it is hidden behind computing.

DDP all-reduces gradients; ZeRO 1 and 2 reduce-scatter them and all-gather the new parameters; ZeRO 3 gathers each layer
before forward and before backward of every microbatch, and reduce-scatters its gradients (Zhao et al. 2023). Hybrid
sharding does that inside a group and all-reduces between groups.
"""

from __future__ import annotations

from labkit.predict.constants import Constants
from labkit.predict.costs.collectives import Group, Wires, group
from labkit.predict.costs.layers import Layer
from labkit.predict.plan import COMPRESSION_RATIO, Plan
from labkit.predict.prediction import Term

BUCKETS = 25e6
"""Bytes per bucket (DDP's default). The last bucket has nothing to hide behind. As no parameter is split, it holds the
gradient of the whole embedding; the embedding is also the first to be gathered again."""


def shard_traffic(
    plan: Plan, wires: Wires, parameters: float, layers: int, per_layer: float, layer: Layer, constants: Constants,
    embedding: float = 0.0,
) -> list[Term]:  # fmt: skip
    """Exposed seconds of a rank that would hold `parameters` parameters without ZeRO, including `layers` layers of
    `per_layer` each and the embedding's."""
    n = plan.shared_by
    if n == 1:
        return []
    stride = plan.tensor
    everyone = group(n, stride, wires.cluster)
    shard = group(plan.sharded_over, stride, wires.cluster) if plan.zero else everyone
    copies = plan.shared_by // plan.sharded_over if plan.zero else 1
    ratio = COMPRESSION_RATIO[plan.compression] * (4 / plan.gradient_bytes if plan.compression != "none" else 1)
    nbytes = parameters * plan.gradient_bytes * min(1.0, ratio)
    busy = layer.forward + layer.backward + layer.tensor
    waiting = 1 + layer.host / busy if busy else 1.0  # traffic continues while the GPU waits for launches
    forward = layers * waiting * (layer.forward + layer.tensor / 2)
    backward = layers * waiting * (layer.backward + layer.tensor / 2)
    if plan.zero == 3:
        return _gathered(plan, wires, parameters, layers, per_layer, shard, copies, forward, backward, constants)
    if plan.zero == 0:
        one = wires.all_reduce(nbytes, everyone)
        return [
            _hidden(
                plan,
                "gradients",
                one,
                backward,
                max(BUCKETS, embedding * plan.gradient_bytes) / max(nbytes, 1.0),
                f"all-reduce of {nbytes / 1e9:.3g} GB over {n} ranks",
                constants,
            )
        ]
    rounds = plan.microbatches if plan.zero == 2 else 1
    scatter = layers * wires.reduce_scatter(nbytes / layers, shard)  # layer by layer: each pays the ring's steps
    if copies > 1:
        between = Group(copies, max(1, everyone.per_node // shard.per_node))
        scatter += wires.all_reduce(nbytes / plan.sharded_over, between)
    gather = layers * wires.all_gather(parameters * plan.value_bytes / layers, shard)
    first = _hidden(
        plan,
        "gradients",
        scatter,
        backward,
        max(BUCKETS, embedding * plan.gradient_bytes) / max(nbytes, 1.0),
        f"reduce-scatter of {nbytes / 1e9:.3g} GB over {n} ranks",
        constants,
    )
    second = _hidden(
        plan,
        "new parameters",
        gather,
        forward,
        max(BUCKETS, embedding * plan.value_bytes) / max(parameters * plan.value_bytes, 1.0),
        "all-gather after the optimizer",
        constants,
    )
    return [Term(first.name, first.kind, first.seconds * rounds, first.formula, first.source), second]


def _hidden(
    plan: Plan, name: str, seconds: float, beside: float, last: float, formula: str, constants: Constants
) -> Term:
    """Exposed part of `seconds` of traffic that overlaps `beside` seconds of computing, plus the slowdown of computing.

    `last`: share of the traffic that has nothing to hide behind."""
    source = "Li et al. 2020 (DDP); Rajbhandari et al. 2020 (ZeRO)"
    if not plan.overlap:
        return Term(name, "communication", seconds, formula, source)
    tail = seconds * min(1.0, last)
    exposed = max(tail, seconds - beside)
    slower = constants.overlap_slowdown * (seconds - exposed)
    formula += (
        f", {seconds:.4g} s; {beside:.4g} s of computing hide all but the last {tail:.4g} s at best, and are "
        f"{slower:.4g} s longer for it"
    )
    return Term(name, "communication", exposed + slower, formula, source)


def _gathered(
    plan: Plan,
    wires: Wires,
    parameters: float,
    layers: int,
    per_layer: float,
    shard: Group,
    copies: int,
    forward: float,
    backward: float,
    constants: Constants,
) -> list[Term]:
    parts = parameters / per_layer
    gather = wires.all_gather(per_layer * plan.value_bytes, shard)
    scatter = wires.reduce_scatter(per_layer * plan.gradient_bytes, shard)
    if copies > 1:
        scatter += wires.all_reduce(per_layer * plan.gradient_bytes / plan.sharded_over, Group(copies, 1))
    if plan.offload == "optimizer+parameters":
        link = wires.cluster.host_link
        gather += per_layer * plan.value_bytes / plan.sharded_over / link.bytes_per_second
    down, up = parts * gather, parts * (gather + scatter)
    rounds = plan.microbatches
    if plan.overlap:
        beside = min(down, forward) + min(up, backward)
        exposed = max(0.0, down - forward) + max(0.0, up - backward) + constants.overlap_slowdown * beside
        ends = gather + scatter
    else:
        exposed, ends = down + up, 0.0
    formula = (
        f"{rounds} x all-gather of each layer twice ({1e3 * gather:.4g} ms each), reduce-scatter once "
        f"({1e3 * scatter:.4g} ms), over {shard.ranks} ranks"
        + (", beside the layers before: the first gather and the last scatter have none" if plan.overlap else "")
    )
    seconds = min(rounds * (down + up), rounds * exposed + ends)
    return [Term("parameter shards", "communication", seconds, formula, "Zhao et al. 2023 (FSDP)")]
