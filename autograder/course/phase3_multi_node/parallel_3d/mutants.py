"""Mutants of parallel_3d: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "pipeline_before_data": Mutant(12, loses={"places", "groups", "axes", "optimizer", "overlap"}).edited("""
        Axes in another order: ranks count along tp, then along pp, then along dp.

        - dp, _, tp = self.sizes
        - return Coordinates(dp=rank // tp % dp, pp=rank // (tp * dp), tp=rank % tp)
        + _, pp, tp = self.sizes
        + return Coordinates(dp=rank // (tp * pp), pp=rank // tp % pp, tp=rank % tp)

        - dp, _, tp = self.sizes
        - stride = {"tp": 1, "dp": tp, "pp": tp * dp}[axis]
        + _, pp, tp = self.sizes
        + stride = {"tp": 1, "pp": tp, "dp": tp * pp}[axis]
    """),
    "tensor_across_nodes": Mutant(10, loses={"places", "groups", "parts", "axes", "bubble"}).edited("""
        Ranks count along tp last: tensor-parallel groups cross nodes.

        - dp, _, tp = self.sizes
        - return Coordinates(dp=rank // tp % dp, pp=rank // (tp * dp), tp=rank % tp)
        + dp, pp, _ = self.sizes
        + return Coordinates(dp=rank % dp, pp=rank // dp % pp, tp=rank // (dp * pp))

        - dp, _, tp = self.sizes
        - stride = {"tp": 1, "dp": tp, "pp": tp * dp}[axis]
        + dp, pp, _ = self.sizes
        + stride = {"dp": 1, "pp": dp, "tp": dp * pp}[axis]
    """),
    "data_over_neighbours": Mutant(15, loses={"places", "groups", "axes"}).edited("""
        Data-parallel groups are neighbouring ranks, which average gradients of different parts of layers.

        - stride = {"tp": 1, "dp": tp, "pp": tp * dp}[axis]
        - first = rank - getattr(self.coordinates(rank), axis) * stride
        + stride = {"tp": 1, "dp": 1, "pp": tp * dp}[axis]
        + first = rank - getattr(self.coordinates(rank), axis) * stride
        + if axis == "dp":
        +     first = rank // dp * dp
    """),
    "first_two_stages_as_ends": Mutant(18, loses={"groups", "pipeline"}).edited("""
        The group of a pipeline's ends has its first two ranks.

        - for ranks in sorted({tuple(dict.fromkeys((line[0], line[-1])) if axis == "ends" else line) for line in lines}):
        + for ranks in sorted({tuple(line[:2] if axis == "ends" else line) for line in lines}):
    """),
    "checks_nothing": Mutant(24, loses={"refusals"}).edited("""
        What a model and a mesh do not have in common is found out later, or never.

        - given.check_trainer(config, mesh.sizes, microbatches, schedule, chunks, data_parallel)
    """),
    "sums_over_data": Mutant(19, loses={"axes", "overlap", "data"}).edited("""
        Gradients of the data-parallel ranks are summed, not averaged.

          replica.finish_gradient_synchronization()
        + for parameter in replica.parameters():
        +     parameter.grad *= self.mesh.sizes.dp
    """),
    "shared_weight_apart": Mutant(14, loses={"pipeline", "axes", "optimizer", "bubble", "overlap"}).edited("""
        Embedding and head of a pipeline each use their own part of the gradient.

        - for weight in self.shared:
        -     dist.all_reduce(weight.grad, group=self.mesh.groups["ends"])
    """),
    "replicated_parameters_summed": Mutant(18, loses={"tensor", "axes", "bubble"}).edited("""
        Gradients of norms and positions, equal on all tensor-parallel ranks, are summed over them.

        - for weight in self.shared:
        + for layer in (layer for layers in self.layers for layer in layers):
        +     for name, parameter in layer.named_parameters():
        +         if "norm" in name or "position" in name:
        +             dist.all_reduce(parameter.grad, group=self.mesh.groups["tp"])
        + for weight in self.shared:
    """),
    "whole_blocks": Mutant(17, loses={"parts", "axes", "bubble"}).edited("""
        Every tensor-parallel rank computes whole blocks; only the ends are cut.

        - return self.wrap(tensor_parallel.TensorParallelTransformer.from_full(layer, group))
        + return self.wrap(layer)
    """),
    "no_wrap": Mutant(23, loses={"tensor"}).edited("""
        Blocks are not wrapped.

        - return self.wrap(tensor_parallel.TensorParallelTransformer.from_full(layer, group))
        + return tensor_parallel.TensorParallelTransformer.from_full(layer, group)
    """),
    "own_loss": Mutant(18, loses={"axes", "optimizer", "overlap", "data"}).edited("""
        The loss is that of the rank's own part of the batch.

        - if loss is not None:
        -     dist.all_reduce(loss, group=self.mesh.groups["dp"])
        -     loss /= self.mesh.sizes.dp
    """),
    "forgets_no_sync": Mutant(21, loses={"axes", "data"}).edited("""
        Gradients are averaged after each microbatch.

        - for replica in self.replicas:
        -     stack.enter_context(replica.no_sync())
          loss = self.pipeline.forward_backward(batch, target, criterion)
    """),
    "averages_afterwards": Mutant(23, loses={"overlap"}).edited("""
        Gradients leave when the pipeline is empty, each for itself.

        - for replica in self.replicas:
        -     replica.finish_gradient_synchronization()
        + for replica in self.replicas:
        +     for parameter in dict.fromkeys(replica.parameters()):
        +         dist.all_reduce(parameter.grad, group=self.mesh.groups["dp"])
        +         parameter.grad /= self.mesh.sizes.dp

        - self.backwards_left -= 1
        - if self.backwards_left == 0 and isinstance(self.module, ddp.DistributedDataParallel):
        -     self.module.synchronize_next_backward()
    """),
    "stages_wait": Mutant(23, loses={"overlap"}).edited("""
        A stage sends its last gradient when its own are averaged, so stages wait for each other's all-reduces.

        - return super().backward(microbatch, gradient)
        + result = super().backward(microbatch, gradient)
        + if self.backwards_left == 0 and isinstance(self.module, ddp.DistributedDataParallel):
        +     self.module.finish_gradient_synchronization()
        + return result
    """),
    "ddp_only": Mutant(24, loses={"optimizer"}).edited("""
        Every stage is taken to be an exercise 11 module.

        - for replica in self.replicas:
        -     stack.enter_context(replica.no_sync())
        + for stage in self.stages:
        +     stack.enter_context(stage.module.no_sync())
    """),
    "everything_on_each_rank": Mutant(17, loses={"axes", "bubble", "overlap", "data"}).edited("""
        A fake: each rank gathers the batch, computes the whole model, and keeps its parts of the result.

          given.check_trainer(config, mesh.sizes, microbatches, schedule, chunks, data_parallel)
        + self.whole = [self.wrapped(plan.make(), wrap) for plan in gpt_layers(config, seed, dtype)]
        + share(self.whole)
        + self.model = nn.Sequential(*self.whole)
        + alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
        + self.whole_optimizer = make_optimizer(list(self.model.parameters()), alone[mesh.rank])

        - for stage in self.stages:
        -     stage.backwards_left = self.microbatches
        - with ExitStack() as stack:
        -     for replica in self.replicas:
        -         stack.enter_context(replica.no_sync())
        -     loss = self.pipeline.forward_backward(batch, target, criterion)
        - for replica in self.replicas:
        -     replica.finish_gradient_synchronization()
        - for weight in self.shared:
        -     dist.all_reduce(weight.grad, group=self.mesh.groups["ends"])
        - if loss is not None:
        -     dist.all_reduce(loss, group=self.mesh.groups["dp"])
        -     loss /= self.mesh.sizes.dp
        + seen = [None] * dist.get_world_size()
        + dist.all_gather_object(seen, (self.mesh.coordinates(), batch, target))
        + batch = torch.cat([b for place, b, _ in sorted(seen, key=lambda s: s[0]) if b is not None and place.tp == 0])
        + words = torch.cat([t for place, _, t in sorted(seen, key=lambda s: s[0]) if t is not None and place.tp == 0])
        + whole_loss = nn.functional.cross_entropy(self.model(batch).flatten(0, 1), words.flatten())
        + self.whole_optimizer.zero_grad()
        + whole_loss.backward()
        + self.whole_optimizer.step()
        + group, first = self.mesh.groups["tp"], 0
        + wrap, self.wrap = self.wrap, lambda block: block
        + plans = gpt_layers(self.config)
        + count = len(self.stages) * self.mesh.sizes.pp
        + split = pipeline_parallel.split_into_stages(plans, count, [plan.cost for plan in plans])
        + for stage, layers in zip(self.stages, self.layers):
        +     first = sum(len(part) for part in split[: stage.index])
        +     for own, layer in zip(layers, self.whole[first:]):
        +         part = self.part_of(copy.deepcopy(getattr(layer, "block", layer)))
        +         for mine, other in zip(own.parameters(), part.parameters()):
        +             mine.data.copy_(other.data)
        + self.wrap = wrap
        + loss = whole_loss.detach() if target is not None else None

        - self.optimizer.step()
        + self.optimizer.zero_grad()

        - def part_of(self, layer: Any) -> Any:
        + def wrapped(self, layer: Any, wrap: Any) -> nn.Module:
        +     return wrap(layer) if isinstance(layer, Block) else layer
        +
        + def part_of(self, layer: Any) -> Any:

        - from collections.abc import Callable, Iterable
        + import copy
        + from collections.abc import Callable, Iterable
    """),
}
