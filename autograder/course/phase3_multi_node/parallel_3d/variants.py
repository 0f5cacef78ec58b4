"""Variants of parallel_3d: other right solutions."""

from autograder.mutants import Variant

VARIANTS = {
    "table": Variant().edited('''
        Right: a table of ranks; groups of its own only; the shared weight's gradients are gathered and added.

        With `use_local_synchronization` a rank makes only the groups that it is in. The groups of the ends still are a
        call of the whole world, in one order. Replicas send nothing before the last backward, as within `no_sync()`.

        - from contextlib import ExitStack

        - from labkit.models.gpt_layers import Embedding, gpt_layers, share
        + from labkit.models.gpt_layers import Embedding, Head, gpt_layers, share

        - dp, _, tp = self.sizes
        - return Coordinates(dp=rank // tp % dp, pp=rank // (tp * dp), tp=rank % tp)
        + table = self._table()
        + return Coordinates(*(int(place) for place in (table == rank).nonzero()[0][[1, 0, 2]]))

        -     dp, _, tp = self.sizes
        -     stride = {"tp": 1, "dp": tp, "pp": tp * dp}[axis]
        -     first = rank - getattr(self.coordinates(rank), axis) * stride
        -     return [first + place * stride for place in range(getattr(self.sizes, axis))]
        +     place = self.coordinates(rank)
        +     line = {
        +         "dp": self._table()[place.pp, :, place.tp],
        +         "pp": self._table()[:, place.dp, place.tp],
        +         "tp": self._table()[place.pp, place.dp],
        +     }
        +     return [int(other) for other in line[axis]]
              ### END SOLUTION
        +
        + def _table(self) -> Tensor:
        +     dp, pp, tp = self.sizes
        +     return torch.arange(dp * pp * tp).view(pp, dp, tp)

        - for axis in (*AXES, "ends"):
        -     lines = [mesh.ranks_along("pp" if axis == "ends" else axis, rank) for rank in range(dist.get_world_size())]
        -     for ranks in sorted({tuple(dict.fromkeys((line[0], line[-1])) if axis == "ends" else line) for line in lines}):
        -         group = dist.new_group(list(ranks))
        -         if mesh.rank in ranks:
        -             mesh.groups[axis] = group
        + for axis in AXES:
        +     mesh.groups[axis] = dist.new_group(mesh.ranks_along(axis), use_local_synchronization=True)
        + for first in range(dp * tp):
        +     pipeline = mesh.ranks_along("pp", first)
        +     group = dist.new_group(pipeline if pp < 3 else [pipeline[0], pipeline[-1]])
        +     if mesh.rank in (pipeline[0], pipeline[-1]):
        +         mesh.groups["ends"] = group

        - def part_of(self, layer: Any) -> Any:
        + def part_of(self, layer: Any) -> nn.Module:

        -     if isinstance(layer, Block):
        -         return self.wrap(tensor_parallel.TensorParallelTransformer.from_full(layer, group))
        -     if isinstance(layer, Embedding):
        -         layer.token_embedding = tensor_parallel.VocabParallelEmbedding.from_full(layer.token_embedding, group)
        -     else:
        -         layer.head = tensor_parallel.ColumnParallelLinear.from_full(layer.head, group)
        -     ### END SOLUTION
        +     cut = {
        +         Block: lambda: self.wrap(tensor_parallel.TensorParallelTransformer.from_full(layer, group)),
        +         Embedding: lambda: self.with_part(layer, "token_embedding", tensor_parallel.VocabParallelEmbedding),
        +         Head: lambda: self.with_part(layer, "head", tensor_parallel.ColumnParallelLinear),
        +     }
        +     return cut[type(layer)]()
        +     ### END SOLUTION
        +
        + def with_part(self, layer: Any, name: str, kind: Any) -> Any:
        +     setattr(layer, name, kind.from_full(getattr(layer, name), self.mesh.groups["tp"]))

        - loss: Tensor | None = None

        -     stage.backwards_left = self.microbatches
        - with ExitStack() as stack:
        -     for replica in self.replicas:
        -         stack.enter_context(replica.no_sync())
        -     loss = self.pipeline.forward_backward(batch, target, criterion)
        - for replica in self.replicas:
        +     stage.seen = 0
        +     stage.expected = self.microbatches
        +     if stage.module in self.replicas:
        +         stage.module._sync_enabled = False
        + loss = self.pipeline.forward_backward(batch, target, criterion)
        + for replica in reversed(self.replicas):

        - for weight in self.shared:
        -     dist.all_reduce(weight.grad, group=self.mesh.groups["ends"])
        + if self.shared and self.mesh.sizes.pp > 1:
        +     ends = self.mesh.groups["ends"]
        +     halves = [torch.empty_like(self.shared[0]) for _ in range(2)]
        +     dist.all_gather(halves, self.shared[0].grad.contiguous(), group=ends)
        +     self.shared[0].grad.copy_(halves[0] + halves[1])
          if loss is not None:
        +     loss = loss / self.mesh.sizes.dp
              dist.all_reduce(loss, group=self.mesh.groups["dp"])
        -     loss /= self.mesh.sizes.dp

        - backwards_left = 0
        - """Number of backwards to come in this step."""
        + seen = expected = 0

        - def backward(self, microbatch: int, gradient: Tensor | None = None) -> Any:
        + def backward(self, microbatch: int, gradient: Tensor | None = None) -> Tensor | None:

        - self.backwards_left -= 1
        - if self.backwards_left == 0 and isinstance(self.module, ddp.DistributedDataParallel):
        + self.seen += 1
        + if self.seen == self.expected and hasattr(self.module, "synchronize_next_backward"):
    '''),
}
