"""Layouts to choose from: five axes of a plan, and what can be changed along each of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

from labkit.hardware import Topology
from labkit.predict import Plan, predict
from labkit.predict.describe import Description, Transformer
from labkit.predict.search import RejectedLayout, Search

STRATEGIES: dict[str, dict[str, Any]] = {
    "ddp": {"zero": 0},
    "zero1": {"zero": 1},
    "zero2": {"zero": 2},
    "fsdp": {"zero": 3},
    "fsdp+recompute": {"zero": 3, "recompute": "full"},
    "fsdp+recompute+offload": {"zero": 3, "recompute": "full", "offload": "optimizer+parameters"},
}
"""Ways to train without cutting layers or matrices, by the fields of `Plan`. Each needs less memory than those before
it with the same microbatch."""

MICROBATCHES = (1, 2, 4, 8, 16, 32)
"""Samples per forward pass of a rank."""
DEFAULT_BATCH_PER_GPU = 8


@dataclass(frozen=True)
class StrategyChoice:
    """A strategy, with the plan that carries it out, and the seconds of a step."""

    strategy: str
    plan: Plan
    seconds: float


class LayoutSpace:
    """All consistent layouts of a model with a batch on a cluster.

    batch: samples per step, of all GPUs; None: 8 for each GPU. `axes` has the values of tensor, pipeline, microbatch,
    zero and recompute; data follows from them. Raises `ValueError` naming a wrong argument.
    """

    def __init__(self, model: Description, cluster: Topology, batch: int | None = None) -> None:
        self.model, self.cluster = model, cluster
        self.batch = DEFAULT_BATCH_PER_GPU * cluster.world_size if batch is None else batch
        layers = model.layers if isinstance(model, Transformer) else 1
        tensor = cluster.nproc_per_node if isinstance(model, Transformer) else 1
        self.axes: dict[str, list[Any]] = {
            "tensor": _powers_of_two(tensor),
            "pipeline": _powers_of_two(min(layers, cluster.world_size)),
            "microbatch": [size for size in MICROBATCHES[:5] if size <= self.batch],
            "zero": [0, 1, 3],
            "recompute": ["none", "selective", "full"],
        }

    def plan(self, **fields: Any) -> Plan | None:
        """Return the plan with these fields, data parallel over the remaining GPUs; None if it contradicts itself, the
        model or the cluster."""
        data, rest = divmod(self.cluster.world_size, fields.get("tensor", 1) * fields.get("pipeline", 1))
        try:
            made = Plan(batch=self.batch, data=data, sequence_parallel=fields.get("tensor", 1) > 1, **fields)
            made.check(self.model, self.cluster)
        except ValueError:
            return None
        # with a pipeline, ZeRO 3 would gather the parameters again for every microbatch
        return None if rest or (made.zero == 3 and made.pipeline > 1) else made

    def along(self, plan: Plan, axis: str) -> list[Plan]:
        """Return this plan and those that differ from it in the axis only, in the axis's order."""
        fields = {name: getattr(plan, name) for name in self.axes}
        plans = (self.plan(**{**fields, axis: value}) for value in self.axes[axis])
        return [made for made in plans if made is not None]

    def splits(self) -> list[Plan]:
        """Return for each split, a way to divide the GPUs among tensor, pipeline and data, the layout that needs least
        memory: with microbatches of 1, full recomputation, and the highest stage of ZeRO."""
        plans = []
        for tensor in self.axes["tensor"]:
            for pipeline in self.axes["pipeline"]:
                zero = 3 if pipeline == 1 else 1
                made = self.plan(tensor=tensor, pipeline=pipeline, microbatch=1, zero=zero, recompute="full")
                plans += [made] if made else []
        return plans

    def all(self) -> list[Plan]:
        """Return all layouts, a few hundred, for a search that measures every one."""
        plans = (self.plan(**dict(zip(self.axes, values, strict=True))) for values in product(*self.axes.values()))
        return [made for made in plans if made is not None]

    def predictions(self) -> Search:
        """Predict all layouts, for a picture of them: those that fit, the fastest first, and those that do not."""
        made = [predict(self.model, plan, self.cluster) for plan in self.all()]
        fitting = sorted((run for run in made if run.surely_fits), key=lambda run: run.step_seconds)
        too_large = [run for run in made if not run.surely_fits]
        rejected = [
            RejectedLayout(vars(run.plan), f"out of memory: may need up to {run.device_bytes.high / 1e9:.0f} GB", run)
            for run in too_large
        ]
        return Search(tuple(fitting), tuple(rejected))

    def strategy(self, name: str) -> list[Plan]:
        """Return the plans of a strategy, by rising microbatch."""
        plans = (self.plan(microbatch=size, **STRATEGIES[name]) for size in MICROBATCHES)
        return [made for made in plans if made is not None]


def _powers_of_two(most: int) -> list[int]:
    return [1 << power for power in range(most.bit_length())]
