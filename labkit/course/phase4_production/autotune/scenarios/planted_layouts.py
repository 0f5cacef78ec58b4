"""Clusters that are slower and fuller than their data sheets: only a check knows what layouts really take there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from labkit.course.phase4_production.autotune.given import STRATEGIES, LayoutSpace, Measurement, predicted
from labkit.hardware import Topology
from labkit.hardware.presets import topology
from labkit.predict import Plan, model

_RECOMPUTE = ("none", "selective", "full")
_OFFLOAD = ("none", "optimizer", "optimizer+parameters")


def key(plan: Plan) -> tuple[float, ...]:
    """Return a plan as the numbers by which a rank asks for it."""
    axes = (plan.tensor, plan.pipeline, plan.microbatch, plan.zero)
    return (*map(float, axes), float(_RECOMPUTE.index(plan.recompute)), float(_OFFLOAD.index(plan.offload)))


@dataclass(frozen=True)
class PlantedLayouts:
    """A model and a batch on nodes of a preset. `slower`: factors of the links inside nodes and between them, and of
    the GPU's matrix products. `fuller`: the factor of memory."""

    model_name: str
    preset: str
    nnodes: int
    batch_per_gpu: int
    slower: tuple[float, float, float] = (1.0, 1.0, 1.0)
    fuller: float = 1.0
    nproc_per_node: int | None = None

    @property
    def cluster(self) -> Topology:
        """The cluster by its data sheets, as the learner's code sees it."""
        return topology(self.preset, nnodes=self.nnodes, nproc_per_node=self.nproc_per_node)

    @property
    def batch(self) -> int:
        return self.batch_per_gpu * self.cluster.world_size

    @property
    def capacity(self) -> float:
        """Bytes of a GPU."""
        return self.cluster.gpu.memory_gb * 1e9

    def arguments(self) -> list[Any]:
        """Return the arguments of the asking rank: names, the cluster as plain data, the batch."""
        return [self.model_name, self.cluster.to_plain(), self.batch]

    @cached_property
    def table(self) -> dict[tuple[float, ...], Measurement]:
        """Measurements of every layout and every strategy, by key."""
        nominal, (intra, inter, product) = self.cluster, self.slower
        real = replace(
            nominal,
            gpu=replace(nominal.gpu, matmul_efficiency=nominal.gpu.matmul_efficiency / product),
            intra_node=replace(nominal.intra_node, gb_per_s=nominal.intra_node.gb_per_s / intra),
            inter_node=replace(nominal.inter_node, gb_per_s=nominal.inter_node.gb_per_s / inter),
        )
        described = model(self.model_name)
        space, measure = LayoutSpace(described, nominal, self.batch), predicted(described, real)
        plans = {key(plan): plan for plan in space.all()}
        plans |= {key(plan): plan for name in STRATEGIES for plan in space.strategy(name)}
        predictions = {numbers: measure(plan) for numbers, plan in plans.items()}
        return {numbers: Measurement(step.seconds, step.nbytes * self.fuller) for numbers, step in predictions.items()}

    def best(self, keys: set[tuple[float, ...]]) -> float:
        """Return the seconds of the shortest step among those that fit."""
        return min(self.table[one].seconds for one in keys if self.table[one].nbytes <= self.capacity)

    @cached_property
    def layouts(self) -> set[tuple[float, ...]]:
        """Keys of all layouts of the search."""
        return {key(plan) for plan in LayoutSpace(model(self.model_name), self.cluster, self.batch).all()}

    @cached_property
    def strategies(self) -> set[tuple[float, ...]]:
        """Keys of all strategies, with each microbatch."""
        space = LayoutSpace(model(self.model_name), self.cluster, self.batch)
        return {key(plan) for name in STRATEGIES for plan in space.strategy(name)}
