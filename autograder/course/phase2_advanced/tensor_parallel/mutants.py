"""Mutants of tensor_parallel: what is wrong in each, what it earns, and the checks that it loses."""

from autograder.mutants import Mutant

BLOCK = {"block", "groups", "block_messages", "block_memory", "real_processes"}
"""Where a block's values are compared."""
MUTANTS = {
    "input_gradient_not_summed": Mutant(11, loses=BLOCK | {"copies", "columns"}, base="megatron").edited("""
        Each rank keeps its own gradient of a shared input.

        - return summed(gradient, ctx.group), None
        + return gradient, None
    """),
    "bias_n_times": Mutant(13, loses=BLOCK | {"rows"}, base="megatron").edited("""
        Every rank adds the bias before the sum.

        - out = reduce_from_group(F.linear(x, self.weight), self.group)
        - return out if self.bias is None else out + self.bias
        + return reduce_from_group(F.linear(x, self.weight, self.bias), self.group)
    """),
    "works_alone": Mutant(15, loses=BLOCK, base="megatron").edited("""
        Every rank has the whole block and computes all of it; nothing is sent.

        + import copy
        +
          import torch

        - self.qkv = ColumnParallelLinear.from_full(attention.qkv, group)
        - self.out = RowParallelLinear.from_full(attention.out, group)
        - self.up = ColumnParallelLinear.from_full(mlp.up, group)
        - self.down = RowParallelLinear.from_full(mlp.down, group)
        + self.qkv, self.out = copy.deepcopy(attention.qkv), copy.deepcopy(attention.out)
        + self.up, self.down = copy.deepcopy(mlp.up), copy.deepcopy(mlp.down)

        - full.attention.qkv, full.attention.out = self.qkv.to_full(), self.out.to_full()
        - full.mlp.up, full.mlp.down = self.up.to_full(), self.down.to_full()
        + full.attention.qkv, full.attention.out = self.qkv, self.out
        + full.mlp.up, full.mlp.down = self.up, self.down
    """),
    "calls_parallelize_module": Mutant(15, loses=BLOCK, base="megatron").edited("""
        A block by torch's own DTensor.

        + import copy
        +
          import torch

          from torch.autograd import Function
        + from torch.distributed.device_mesh import DeviceMesh
        + from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        - self.qkv = ColumnParallelLinear.from_full(attention.qkv, group)
        - self.out = RowParallelLinear.from_full(attention.out, group)
        - self.up = ColumnParallelLinear.from_full(mlp.up, group)
        - self.down = RowParallelLinear.from_full(mlp.down, group)
        + self.qkv, self.out = copy.deepcopy(attention.qkv), copy.deepcopy(attention.out)
        + self.up, self.down = copy.deepcopy(mlp.up), copy.deepcopy(mlp.down)
        + ranks = dist.get_process_group_ranks(group)
        + mesh = DeviceMesh.from_group(group or dist.group.WORLD, "cpu", mesh=ranks)
        + plan = {"qkv": ColwiseParallel(), "out": RowwiseParallel(), "up": ColwiseParallel(), "down": RowwiseParallel()}
        + parallelize_module(self, mesh, plan)

        - full.attention.qkv, full.attention.out = self.qkv.to_full(), self.out.to_full()
        - full.mlp.up, full.mlp.down = self.up.to_full(), self.down.to_full()
        + pairs = (full.attention.qkv, self.qkv), (full.attention.out, self.out), (full.mlp.up, self.up)
        + for whole, part in (*pairs, (full.mlp.down, self.down)):
        +     whole.weight = nn.Parameter(part.weight.full_tensor())
        +     whole.bias = nn.Parameter(part.bias.full_tensor())
    """),
    "forgets_the_sum_before_the_mlp": Mutant(15, loses=BLOCK, base="megatron").edited("""
        The MLP's input gradient is not summed; attention's is.

        - return x + self.down(F.gelu(self.up(self.norm_mlp(x))))
        + return x + self.down(F.gelu(F.linear(self.norm_mlp(x), self.up.weight, self.up.bias)))
    """),
    "equal_shares_only": Mutant(
        16, loses={"cuts", "columns", "rows", "embedding", "loss", "beginnings"}, base="megatron"
    ).edited("""
        Parts of size // N: what is left over belongs to nobody.

        - return size * rank // ranks, size * (rank + 1) // ranks
        + return rank * (size // ranks), (rank + 1) * (size // ranks)

        - padded = x.new_zeros(*x.shape[:-1], -(-size // ranks))
        + padded = x.new_zeros(*x.shape[:-1], size // ranks)

        - return torch.cat([row[..., : size * (r + 1) // ranks - size * r // ranks] for r, row in enumerate(rows)], -1)
        + return torch.cat([row for row in rows], -1)
    """),
    # with one head on each rank there is nothing to mix up
    "heads_mixed_up": Mutant(19, loses={"block", "block_messages"}, base="megatron").edited("""
        Takes the first third of a rank's rows for queries: heads are mixed up.

        - query, key, value = qkv.view(batch, length, heads, 3, self.head_width).transpose(1, 2).unbind(3)
        + query, key, value = qkv.view(batch, length, 3, heads, self.head_width).permute(2, 0, 3, 1, 4)
    """),
    "gathers_after_columns": Mutant(21, loses={"block_messages", "real_processes"}, base="megatron").edited("""
        In a block every rank gets all outputs of a column-parallel layer, and cuts them up again.

        - qkv = self.qkv(self.norm_attention(x))
        + qkv = scatter_to_group(self.whole(self.qkv, self.norm_attention(x)), self.qkv.group)

        -     return x + self.down(F.gelu(self.up(self.norm_mlp(x))))
        +     return x + self.down(scatter_to_group(F.gelu(self.whole(self.up, self.norm_mlp(x))), self.up.group))
        +
        + def whole(self, layer, x):
        +     return gather_from_group(layer(x), layer.group, size=layer.shape[0])
    """),
    "one_more_sum": Mutant(21, loses={"block_messages", "real_processes"}, base="megatron").edited("""
        The residual path is cut by N and summed with attention: right, and two sums more.

        - x = x + self.out(mixed)
        + x = reduce_from_group(
        +     copy_to_group(x, self.out.group) / dist.get_world_size(self.out.group), self.out.group
        + ) + self.out(mixed)
    """),
    "keeps_the_whole_layers": Mutant(23, loses={"block_memory"}, base="megatron").edited("""
        Each part is a view: the whole weight stays in memory behind it.

        - self.weight = nn.Parameter(weight.clone(memory_format=torch.contiguous_format), module.weight.requires_grad)
        + self.weight = nn.Parameter(weight, module.weight.requires_grad)
    """),
    "sums_in_place": Mutant(23, loses={"copies"}, base="megatron").edited("""
        The all-reduce works in the tensor that it is given.

        - x = x.contiguous().clone()
        + x = x.detach().contiguous()
    """),
    "works_in_the_world": Mutant(24, loses={"groups"}, base="megatron").edited("""
        Whatever group is given, sums are over all ranks.

        - dist.all_reduce(x, group=group)
        + dist.all_reduce(x)
    """),
    "divides_by_all_targets": Mutant(24, loses={"ignored"}, base="megatron").edited("""
        The mean is over all targets, also those that are left out of the sum.

        - return (total.log() - own).masked_fill(~kept, 0).sum() / kept.sum()
        + return (total.log() - own).masked_fill(~kept, 0).mean()

        - return logits * (kept[..., None] * gradient / kept.sum()), None, None, None, None
        + return logits * (kept[..., None] * gradient / kept.numel()), None, None, None, None
    """),
    "without_the_largest_logit": Mutant(24, loses={"stable"}, base="megatron").edited("""
        Takes no logit off: exp overflows.

        - largest = logits.amax(-1)
        - dist.all_reduce(largest, dist.ReduceOp.MAX, group)
        - shifted = logits - largest[..., None]
        + shifted = logits.clone()
    """),
    "gathers_the_logits": Mutant(24, loses={"loss_messages"}, base="megatron").edited("""
        Every rank gets all logits and computes the whole loss.

        - return Loss.apply(logits, targets, begin, ignore_index, group)
        + whole = gather_from_group(logits, group, size=vocab_size)
        + return F.cross_entropy(whole.flatten(0, -2), targets.flatten(), ignore_index=ignore_index)
    """),
    "draws_its_own": Mutant(24, loses={"beginnings"}, base="megatron").edited("""
        Each rank draws its part by itself: the weights depend on the number of ranks.

        + def draw(self):
        +     nn.init.normal_(self.weight, std=0.02)
        +
          def to_full(self):
              size = self.shape[self.dim]

        + self.draw()
          self.gather_output = gather_output

        + self.draw()
          self.input_is_parallel = input_is_parallel

          self.take(nn.Embedding(num_embeddings, embedding_dim), group)
        + self.draw()
    """),
    "checks_nothing": Mutant(24, loses={"bad_arguments"}, base="megatron").edited("""
        Takes whatever it is given.

        - if rank < 0 or size < ranks:
        -     raise ValueError(f"{name} must be at least {ranks}, got {size}, and group must contain rank {dist.get_rank()}")

        - begin, end = bounds(vocab_size, group, "vocab_size")
        - if logits.shape != (*targets.shape, end - begin):
        -     raise ValueError(f"logits must have shape {(*targets.shape, end - begin)}, got {tuple(logits.shape)}")
        - if ((targets != ignore_index) & ((targets < 0) | (targets >= vocab_size))).any():
        -     raise ValueError(f"targets must be below {vocab_size}, got {targets.tolist()}")
        + begin = bounds(vocab_size, group, "vocab_size")[0]

        - if self.width // self.head_width % dist.get_world_size(group):
        -     raise ValueError(f"num_heads must be a multiple of the ranks, got {self.width // self.head_width}")
    """),
}
