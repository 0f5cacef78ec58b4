"""Right: a table of ranks; groups of its own only; the shared weight's gradients are gathered and added."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.phase3_multi_node.parallel_3d import given
from labkit.course.phase3_multi_node.parallel_3d.given import AXES, Coordinates, MeshSizes
from labkit.exercises import ddp, pipeline_parallel, tensor_parallel
from labkit.models.gpt import Block, GPTConfig
from labkit.models.gpt_layers import Embedding, Head, gpt_layers, share

__all__ = ["Mesh", "Parallel3DTrainer", "build_mesh"]


class Mesh(MeshSizes):
    """Ranks along three axes, of `sizes` dp, pp and tp. `groups` has this rank's process group along each axis.

    Ranks count along tp first, then along dp, then along pp, as in Megatron: tensor-parallel groups are neighbours, and
    the stages of a pipeline are as far apart as they can be.
    """

    def coordinates(self, rank: int | None = None) -> Coordinates:
        """Return the place of a rank, by default this one, on each axis."""
        rank = self.rank if rank is None else rank
        given.check_rank(rank, "tp", self.sizes)
        table = self._table()
        return Coordinates(*(int(place) for place in (table == rank).nonzero()[0][[1, 0, 2]]))

    def ranks_along(self, axis: str, rank: int | None = None) -> list[int]:
        """Return the ranks that have the same place as `rank` on the two other axes, in the order of this one."""
        rank = self.rank if rank is None else rank
        given.check_rank(rank, axis, self.sizes)
        place = self.coordinates(rank)
        line = {
            "dp": self._table()[place.pp, :, place.tp],
            "pp": self._table()[:, place.dp, place.tp],
            "tp": self._table()[place.pp, place.dp],
        }
        return [int(other) for other in line[axis]]

    def _table(self) -> Tensor:
        dp, pp, tp = self.sizes
        return torch.arange(dp * pp * tp).view(pp, dp, tp)


def build_mesh(dp: int, pp: int, tp: int) -> Mesh:
    """Return the mesh of all ranks of the job, with its groups. Every rank calls this, with the same sizes.

    Raises ValueError, before any group is made, unless dp * pp * tp is the number of ranks.
    """
    mesh = Mesh(dp, pp, tp)
    for axis in AXES:
        mesh.groups[axis] = dist.new_group(mesh.ranks_along(axis), use_local_synchronization=True)
    for first in range(dp * tp):
        pipeline = mesh.ranks_along("pp", first)
        group = dist.new_group(pipeline if pp < 3 else [pipeline[0], pipeline[-1]])
        if mesh.rank in (pipeline[0], pipeline[-1]):
            mesh.groups["ends"] = group
    return mesh


class Parallel3DTrainer:
    """Trains a GPT with tied embeddings on a mesh. Each rank makes only its part of its own stages' layers.

    make_optimizer: called with this rank's parameters and its data-parallel group. data_parallel: what averages the
    gradients over that group, "ddp", exercise 11's module, or "optimizer", the optimizer itself, as exercise 15's
    `ZeroOptimizer` does at stage 1. wrap: called with each block, returns the module to use instead, for activation
    checkpointing. Raises ValueError, before any message, if the arguments do not fit together.
    """

    def __init__(
        self,
        config: GPTConfig,
        mesh: Mesh,
        make_optimizer: Callable[[Iterable[nn.Parameter], ProcessGroup], Optimizer],
        microbatches: int,
        schedule: str = "1f1b",
        chunks: int = 1,
        *,
        data_parallel: str = "ddp",
        wrap: Callable[[nn.Module], nn.Module] = lambda block: block,
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        given.check_trainer(config, mesh.sizes, microbatches, schedule, chunks, data_parallel)
        self.config, self.mesh, self.microbatches, self.wrap = config, mesh, microbatches, wrap
        pp, count = mesh.sizes.pp, mesh.sizes.pp * chunks
        plans = gpt_layers(config, seed, dtype)
        split = pipeline_parallel.split_into_stages(plans, count, [plan.cost for plan in plans])
        indices = [mesh.coordinates().pp + pp * chunk for chunk in range(chunks)]
        self.layers = [[self.part_of(plan.make()) for plan in split[index]] for index in indices]
        """This rank's parts of its layers, for each of its stages."""
        self.shared = share(layer for layers in self.layers for layer in layers)
        """This rank's weight that embedding and head share; one, or none if it has neither."""
        modules: list[nn.Module] = [nn.Sequential(*layers) for layers in self.layers]
        if data_parallel == "ddp":
            how = {"group": mesh.groups["dp"], "gradient_as_bucket_view": True}
            modules = [ddp.DistributedDataParallel(module, **how) for module in modules]
        self.replicas = [module for module in modules if isinstance(module, ddp.DistributedDataParallel)]
        self.stages = [Stage(module, index, count) for module, index in zip(modules, indices, strict=True)]
        plan = pipeline_parallel.get_pipeline_schedule(schedule, pp, microbatches, chunks)
        dist.barrier(mesh.groups["pp"])  # NCCL wants all ranks of a group in its first messages
        self.pipeline = pipeline_parallel.PipelineParallel(self.stages, plan, mesh.groups["pp"])
        parameters = dict.fromkeys(parameter for module in modules for parameter in module.parameters())
        self.optimizer = make_optimizer(list(parameters), mesh.groups["dp"])

    def part_of(self, layer: Any) -> nn.Module:
        """Return this rank's part of a whole layer: a `Block`, or one of the ends, `Embedding` and `Head`."""
        group = self.mesh.groups["tp"]
        cut = {
            Block: lambda: self.wrap(tensor_parallel.TensorParallelTransformer.from_full(layer, group)),
            Embedding: lambda: self.with_part(layer, "token_embedding", tensor_parallel.VocabParallelEmbedding),
            Head: lambda: self.with_part(layer, "head", tensor_parallel.ColumnParallelLinear),
        }
        return cut[type(layer)]()

    def with_part(self, layer: Any, name: str, kind: Any) -> Any:
        setattr(layer, name, kind.from_full(getattr(layer, name), self.mesh.groups["tp"]))
        return layer

    def train_step(self, batch: Tensor | None, target: Tensor | None) -> Tensor | None:
        """Take one step, as one process would with the whole batch. Returns its mean loss before the step.

        batch: tokens (samples, length), this data-parallel rank's part of the batch, of the same size on all; needed on
        the ranks of the first stage. target: the tokens to predict, on those of the last stage, which get the loss;
        others get None.
        """
        criterion = partial(
            tensor_parallel.vocab_parallel_cross_entropy,
            vocab_size=self.config.vocab,
            group=self.mesh.groups["tp"],
        )
        self.optimizer.zero_grad()
        for stage in self.stages:
            stage.seen = 0
            stage.expected = self.microbatches
            if stage.module in self.replicas:
                stage.module._sync_enabled = False
        loss = self.pipeline.forward_backward(batch, target, criterion)
        for replica in reversed(self.replicas):
            replica.finish_gradient_synchronization()
        if self.shared and self.mesh.sizes.pp > 1:
            ends = self.mesh.groups["ends"]
            halves = [torch.empty_like(self.shared[0]) for _ in range(2)]
            dist.all_gather(halves, self.shared[0].grad.contiguous(), group=ends)
            self.shared[0].grad.copy_(halves[0] + halves[1])
        if loss is not None:
            loss = loss / self.mesh.sizes.dp
            dist.all_reduce(loss, group=self.mesh.groups["dp"])
        self.optimizer.step()
        return loss


class Stage(pipeline_parallel.PipelineStage):
    """A stage whose gradients are averaged over the data ranks while its last backward runs, if `module` can do so."""

    seen = expected = 0

    def backward(self, microbatch: int, gradient: Tensor | None = None) -> Tensor | None:
        """Add to the gradients; the last backward of a step also launches their all-reduces, and does not wait."""
        # All forwards ran in `no_sync()`, so nothing is averaged by itself: `self.module` may be one of exercise 11,
        # whose `synchronize_next_backward()` makes the next backward do it.
        self.seen += 1
        if self.seen == self.expected and hasattr(self.module, "synchronize_next_backward"):
            self.module.synchronize_next_backward()
        return super().backward(microbatch, gradient)
