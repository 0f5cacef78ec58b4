"""Trainings of the challenge: a GPT with 13 billion parameters on clusters of 32 GPUs that differ in what is scarce."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from labkit.clusters.virtual import link, slow
from labkit.clusters.virtual.scheduler.faults import Fault
from labkit.hardware import Topology, topology
from labkit.predict import Transformer

GPT_13B = Transformer("gpt-13b", layers=40, width=5120, heads=40, vocab=50_304, sequence=2048, tied=True)
"""Brown et al. 2020, table 2.1."""
BATCH = 512
"""Sequences of a step: a million tokens."""


@dataclass(frozen=True)
class Training:
    """A model on a cluster, with a fixed number of tokens for each step."""

    name: str
    options: Mapping[str, Any]
    """Options of `labkit.hardware.topology`."""
    model: Transformer = GPT_13B
    batch: int = BATCH
    slowdown: Mapping[int, float] = field(default_factory=dict)
    """Computing time of slow nodes as a multiple of the others', by the node's number."""
    card_share: Mapping[int, float] = field(default_factory=dict)
    """Share of the others' rate that a node's network cards have, by its number, if they are slow."""

    @property
    def cluster(self) -> Topology:
        return topology(**self.options)

    @property
    def faults(self) -> list[Fault]:
        """Return the faults that make nodes unequal on the virtual cluster."""
        each = self.cluster.nproc_per_node
        slow_ranks = [slow(node * each + gpu, factor) for node, factor in self.slowdown.items() for gpu in range(each)]
        return [*slow_ranks, *(link(node=node, factor=share) for node, share in self.card_share.items())]

    def figures(self) -> dict[str, Any]:
        """Return what an entry may know, as plain data; the template explains it."""
        cluster, model = self.cluster, self.model
        return {
            "options": dict(self.options),
            "nodes": cluster.nnodes,
            "gpus_per_node": cluster.nproc_per_node,
            "memory_gb": cluster.gpu.memory_gb,
            "tflops": cluster.gpu.bf16_tflops * cluster.gpu.matmul_efficiency,
            "port_gb_per_s": cluster.intra_node.gb_per_s,
            "card_gb_per_s": cluster.inter_node.gb_per_s * cluster.nics_per_node,
            "slowdown": [self.slowdown.get(node, 1.0) for node in range(cluster.nnodes)],
            "card_share": [self.card_share.get(node, 1.0) for node in range(cluster.nnodes)],
            "layers": model.layers,
            "width": model.width,
            "heads": model.heads,
            "vocab": model.vocab,
            "sequence": model.sequence,
            "batch": self.batch,
        }

    def describe(self) -> str:
        """Return the cluster in a line."""
        one = self.cluster
        cards = f"{one.nics_per_node} x {one.inter_node.gb_per_s:g} GB/s"
        text = f"{one.nnodes} nodes of {one.nproc_per_node} {one.gpu.name}, {one.intra_node.name}, {cards} for a node"
        slow_nodes = [f"node {node} computes {factor:g} times as long" for node, factor in self.slowdown.items()]
        slow_cards = [f"node {node} has {share:g} of the network's rate" for node, share in self.card_share.items()]
        return "; ".join([text, *slow_nodes, *slow_cards])

    def lower_bound(self) -> float:
        """Return seconds that no plan can beat: all products that the model needs, by all GPUs at once.

        Three for each weight of a matrix and token, one forward and two backward, and attention's with the tokens
        before; each at the rate that large products reach. Recomputation, messages, idle stages and passes over memory
        come on top of it.
        """
        model, cluster = self.model, self.cluster
        weights = 12 * model.layers * model.width**2 + model.vocab * model.width
        attention = model.layers * model.width * model.sequence  # scores and values, with half of the tokens on average
        operations = 6.0 * (weights + attention) * self.batch * model.sequence
        sound = sum(1 / self.slowdown.get(node, 1.0) for node in range(cluster.nnodes)) * cluster.nproc_per_node
        efficiency = max(cluster.gpu.matmul_efficiency, cluster.gpu.attention_efficiency)
        return operations / (sound * cluster.gpu.bf16_tflops * 1e12 * efficiency)


def _on(gpu: str, intra_node: str, inter_node: str, nics: int, nnodes: int = 4) -> dict[str, Any]:
    return {
        "gpu": gpu,
        "intra_node": intra_node,
        "inter_node": inter_node,
        "nics_per_node": nics,
        "nnodes": nnodes,
        "nproc_per_node": 32 // nnodes,
    }


PUBLISHED = (
    Training("little memory", _on("a100-40gb", "nvlink3", "efa-100g", 4)),
    Training("slow network", _on("h100-80gb", "nvlink4", "ethernet-100g", 1)),
    Training(
        "unequal nodes", _on("a100-80gb", "pcie4", "ib-hdr", 2, nnodes=8), slowdown={5: 1.25}, card_share={2: 0.25}
    ),
)


def drawn(seed: int) -> tuple[Training, ...]:
    """Draw three trainings of the same family from a seed."""
    draw = random.Random(f"step_13b {seed}")
    trainings = []
    for number in range(1, 4):
        gpu, inside = draw.choice([("a100-40gb", "nvlink3"), ("a100-80gb", "nvlink3"), ("h100-80gb", "nvlink4")])
        inside = draw.choice([inside, inside, "pcie4"])
        network, nics = draw.choice(["efa-100g", "ib-hdr", "ethernet-100g"]), draw.choice([1, 2, 4, 8])
        nnodes = draw.choice([4, 4, 8])
        slowdown = {draw.randrange(nnodes): draw.choice([1.1, 1.25, 1.5])} if draw.random() < 0.5 else {}
        share = {draw.randrange(nnodes): draw.choice([0.25, 0.5])} if draw.random() < 0.5 else {}
        options = _on(gpu, inside, network, min(nics, 32 // nnodes), nnodes)
        trainings.append(Training(f"drawn {number}", options, slowdown=slowdown, card_share=share))
    return tuple(trainings)
