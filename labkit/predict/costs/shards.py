"""Traffic of data parallelism and ZeRO, one function a term, and how much of it is hidden behind computing.

DDP all-reduces gradients (Li et al. 2020); ZeRO 1 and 2 reduce-scatter them and all-gather the new parameters
(Rajbhandari et al. 2020); ZeRO 3 gathers each layer before forward and before backward of every microbatch, and
reduce-scatters its gradients (Zhao et al. 2023). Hybrid sharding does that inside a group and all-reduces between
groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from labkit.predict.constants import Constants
from labkit.predict.costs.collectives import Group, Wires, group
from labkit.predict.costs.compressing import Compressed
from labkit.predict.costs.layers import Layer
from labkit.predict.costs.matmul import Processor
from labkit.predict.plan import Plan
from labkit.predict.term import Term, in_ms

BUCKETS = 25e6
"""Bytes per bucket (DDP's default). The last bucket has nothing to hide behind. As no parameter is split, it holds the
gradient of the whole embedding; the embedding is also the first to be gathered again."""

PARAMETERS_A_COLLECTIVE = (40e6, 1e6)
"""Least number of parameters in a collective of ZeRO 1 and 2, and the same for each rank that takes part, which keeps a
long ring's steps few: Megatron-Core's default (`DistributedDataParallelConfig.bucket_size`)."""


class _Sharing(NamedTuple):
    """Traffic among the ranks that hold the same parameters, and the computing that can hide it."""

    plan: Plan
    wires: Wires
    constants: Constants
    parameters: float
    """Parameters of a rank without ZeRO."""
    layers: int
    per_layer: float
    """Parameters of one layer on a rank."""
    embedding: float
    """Parameters of the embedding on a rank."""
    forward: float
    """Seconds of one microbatch's forward that traffic can hide behind."""
    backward: float

    @property
    def everyone(self) -> Group:
        """All ranks that hold the same parameters."""
        return group(self.plan.shared_by, self.plan.tensor, self.wires.cluster)

    @property
    def shard(self) -> Group:
        """Ranks over which ZeRO shards."""
        return group(self.plan.sharded_over, self.plan.tensor, self.wires.cluster)

    @property
    def replicas(self) -> Group:
        """Ranks that hold the same shard."""
        return Group(self.copies, max(1, self.everyone.per_node // self.shard.per_node))

    @property
    def collectives(self) -> int:
        """Number of collectives in which ZeRO 1 and 2 send all gradients: one for each layer, or fewer."""
        least = max(PARAMETERS_A_COLLECTIVE[0], PARAMETERS_A_COLLECTIVE[1] * self.shard.ranks)
        return max(1, min(self.layers, math.ceil(self.parameters / least)))

    @property
    def copies(self) -> int:
        """Number of groups that hold the same shards."""
        return self.plan.shared_by // self.plan.sharded_over

    @property
    def gradient_bytes(self) -> float:
        """Bytes of all gradients."""
        return self.parameters * self.plan.gradient_bytes

    @property
    def last_bucket(self) -> float:
        """Share of the gradients in the last bucket."""
        return max(BUCKETS, self.embedding * self.plan.gradient_bytes) / max(self.gradient_bytes, 1.0)


def shard_traffic(
    plan: Plan, wires: Wires, parameters: float, layers: int, per_layer: float, layer: Layer, constants: Constants,
    processors: Sequence[Processor], embedding: float = 0.0,
) -> list[Term]:  # fmt: skip
    """Exposed seconds of a rank that would hold `parameters` parameters without ZeRO, including `layers` layers of
    `per_layer` each and the embedding's."""
    if plan.shared_by == 1:
        return []
    busy = layer.forward + layer.backward + layer.tensor
    waiting = 1 + layer.host / busy if busy else 1.0  # traffic continues while the GPU waits for launches
    forward = layers * waiting * (layer.forward + layer.tensor / 2)
    backward = layers * waiting * (layer.backward + layer.tensor / 2)
    sharing = _Sharing(plan, wires, constants, parameters, layers, per_layer, embedding, forward, backward)
    match plan.zero:
        case 0 if plan.compression != "none":
            return _compressed_gradients(sharing, processors)
        case 0:
            return [_all_reduced_gradients(sharing)]
        case 1 | 2:
            return [_scattered_gradients(sharing), _new_parameters(sharing)]
        case _:
            return [_parameter_shards(sharing)]


def _all_reduced_gradients(sharing: _Sharing) -> Term:
    """One all-reduce of all gradients, in buckets beside backward (DDP: Li et al. 2020), in seconds."""
    nbytes, n = sharing.gradient_bytes, sharing.plan.shared_by
    seconds = sharing.wires.all_reduce(nbytes, sharing.everyone)
    formula = f"all-reduce of {nbytes / 1e9:.3g} GB over {n} ranks"
    return _hidden(sharing, "gradients", seconds, sharing.backward, sharing.last_bucket, formula)


def _compressed_gradients(sharing: _Sharing, processors: Sequence[Processor]) -> list[Term]:
    """All-reduces of messages that add up, or all-gathers of those that do not, and the passes to make and read them;
    a layer at a time, or a bucket if that is larger."""
    plan, n = sharing.plan, sharing.plan.shared_by
    largest = max(BUCKETS, sharing.per_layer * plan.gradient_bytes)
    buckets = math.ceil(sharing.gradient_bytes / largest)
    compressed = Compressed(plan, sharing.parameters, sharing.per_layer, buckets)
    rounds, nbytes = compressed.rounds, compressed.message_bytes
    if compressed.compressor.gathered:
        seconds = rounds * sharing.wires.all_gather(n * nbytes / rounds, sharing.everyone)
        formula = f"all-gather of {nbytes / 1e9:.3g} GB from each of {n} ranks"
    else:
        seconds = rounds * sharing.wires.all_reduce(nbytes / rounds, sharing.everyone)
        formula = f"all-reduce of {nbytes / 1e9:.3g} GB over {n} ranks"
    return [
        _hidden(sharing, "gradients", seconds, sharing.backward, max(sharing.last_bucket, 1 / buckets), formula),
        max((compressed.term(processor) for processor in processors), key=lambda term: term.seconds),
    ]


def _scattered_gradients(sharing: _Sharing) -> Term:
    """Reduce-scatters of a layer's gradients or more, beside backward; with ZeRO 2 in every microbatch (Rajbhandari et
    al. 2020), in seconds. Hybrid sharding adds an all-reduce of the shard between the groups."""
    plan, wires, nbytes, count = sharing.plan, sharing.wires, sharing.gradient_bytes, sharing.collectives
    seconds = count * wires.reduce_scatter(nbytes / count, sharing.shard)  # each pays the ring's steps
    if sharing.copies > 1:
        seconds += wires.all_reduce(nbytes / plan.sharded_over, sharing.replicas)
    formula = f"reduce-scatter of {nbytes / 1e9:.3g} GB over {plan.shared_by} ranks"
    last = max(sharing.last_bucket, 1 / count if count < sharing.layers else 0.0)
    once = _hidden(sharing, "gradients", seconds, sharing.backward, last, formula)
    return replace(once, seconds=once.seconds * (plan.microbatches if plan.zero == 2 else 1))


def _new_parameters(sharing: _Sharing) -> Term:
    """All-gathers of the parameters that the optimizer has updated, beside the next step's forward (Rajbhandari et al.
    2020), in seconds; as many as reduce-scatters."""
    plan, count = sharing.plan, sharing.collectives
    in_layers = sharing.layers * sharing.per_layer
    nbytes = in_layers * plan.gathered_bytes + (sharing.parameters - in_layers) * plan.value_bytes
    seconds = count * sharing.wires.all_gather(nbytes / count, sharing.shard)
    first = max(BUCKETS, sharing.embedding * plan.value_bytes) / max(nbytes, 1.0)
    first = max(first, 1 / count if count < sharing.layers else 0.0)
    return _hidden(sharing, "new parameters", seconds, sharing.forward, first, "all-gather after the optimizer")


def _parameter_shards(sharing: _Sharing) -> Term:
    """Microbatches x (layers x (two all-gathers of a layer's parameters + one reduce-scatter of its gradients) + one of
    each for the root), in seconds, less what the layers before hide (FSDP: Zhao et al. 2023).

    The root has all that is in no layer, embedding and head, and stays gathered until the end of backward. Its gather
    and the first layer's come before anything is computed, the first layer's scatter and the root's after everything
    is; each microbatch waits for them.
    """
    plan, shard = sharing.plan, sharing.shard
    layer, root = sharing.per_layer, sharing.parameters - sharing.layers * sharing.per_layer
    gather = _gathered(sharing, layer, plan.gathered_bytes)
    root_gather = _gathered(sharing, root, plan.value_bytes)
    scatter, root_scatter = _scattered(sharing, layer), _scattered(sharing, root)
    down = sharing.layers * gather + root_gather
    up = sharing.layers * (gather + scatter) + root_scatter
    exposed = down + up
    if plan.overlap:
        first, last = gather + root_gather, scatter + root_scatter
        exposed = max(first, down - sharing.forward) + max(last, up - sharing.backward)
        exposed += sharing.constants.overlap_slowdown * (down + up - exposed)
    rounds = plan.microbatches
    formula = (
        f"{rounds} x all-gather of each layer twice ({in_ms(gather)} each), reduce-scatter once ({in_ms(scatter)}), of "
        f"embedding and head once each ({in_ms(root_gather)}, {in_ms(root_scatter)}), over {shard.ranks} ranks"
        + (f", and all-reduce of its shard between {sharing.copies} groups" if sharing.copies > 1 else "")
        + (", beside computing: the first gathers and the last scatters have none" if plan.overlap else "")
    )
    return Term("parameter shards", "communication", rounds * exposed, formula, "Zhao et al. 2023 (FSDP)")


def _gathered(sharing: _Sharing, parameters: float, nbytes: int) -> float:
    """Seconds of an all-gather of `parameters` of `nbytes` each, fetched from the hosts' memory if they are there."""
    plan, wires = sharing.plan, sharing.wires
    seconds = wires.all_gather(parameters * nbytes, sharing.shard)
    if plan.offload == "optimizer+parameters":
        seconds += parameters * plan.value_bytes / plan.sharded_over / wires.cluster.host_link.bytes_per_second
    return seconds


def _scattered(sharing: _Sharing, parameters: float) -> float:
    """Seconds of a reduce-scatter of the gradients, and of the all-reduce of the shard between groups."""
    plan, wires, nbytes = sharing.plan, sharing.wires, parameters * sharing.plan.gradient_bytes
    seconds = wires.reduce_scatter(nbytes, sharing.shard)
    if sharing.copies > 1:
        seconds += wires.all_reduce(nbytes / plan.sharded_over, sharing.replicas)
    return seconds


def _hidden(sharing: _Sharing, name: str, seconds: float, beside: float, last: float, formula: str) -> Term:
    """Exposed part of `seconds` of traffic that overlaps `beside` seconds of computing, plus the slowdown of computing.

    `last`: share of the traffic that has nothing to hide behind. Interleaved stages compute a group of microbatches of
    a chunk, then of the next one (Narayanan et al. 2021): all but one of v chunks' traffic hides behind those too.
    """
    source = "Li et al. 2020 (DDP); Rajbhandari et al. 2020 (ZeRO)"
    plan = sharing.plan
    if not plan.overlap:
        return Term(name, "communication", seconds, formula, source)
    tail = seconds * min(1.0, last)
    chunks = plan.chunks if plan.zero < 2 else 1  # ZeRO 2 sends every microbatch's
    whole = beside * (1 + (chunks - 1) * plan.group) / chunks
    exposed = max(tail, (seconds - beside) / chunks, seconds - whole)
    slower = sharing.constants.overlap_slowdown * (seconds - exposed)
    behind = (
        f"{beside:.4g} s of computing hide" if chunks == 1 else f"{whole:.4g} s of computing in {chunks} chunks hide"
    )
    formula += (
        f", {seconds:.4g} s; {behind} all but the last {tail:.4g} s at best, and are {slower:.4g} s longer for it"
    )
    return Term(name, "communication", exposed + slower, formula, source)
