"""Mutants of zero: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "offloads_what_is_whole": Mutant(24, loses={"estimate"}).edited("""
        What is offloaded counts as nothing in every stage, also where it is not a shard and stays on the GPU.

        - if stage < first:
        -     after += nbytes
        - elif not offload:
        -     after += nbytes / num_gpus
        + if not offload:
        +     after += nbytes if stage < first else nbytes / num_gpus
    """),
    "forgets_the_padding": Mutant(
        1,
        loses={
            "arguments_and_processes",
            "clipping",
            "groups",
            "memory",
            "module_traffic_and_units",
            "module_values",
            "optimizer_memory",
            "optimizer_traffic",
            "optimizer_values",
            "padding",
            "prefetch",
            "states",
        },
    ).edited("""
        What cannot be divided by the ranks is cut off.

        - padding = -sum(map(len, tensors)) % ranks
        - return torch.cat([*tensors, tensors[0].new_zeros(padding)])
        + whole = torch.cat([*tensors])
        + return whole[: len(whole) // ranks * ranks]
    """),
    "reduces_everything": Mutant(
        15, loses={"groups", "memory", "module_traffic_and_units", "optimizer_memory", "optimizer_traffic"}
    ).edited("""
        Every rank gets the sum of all gradients, and takes its shard of it.

        - part = whole.new_empty(len(whole) // self.ranks)
        - work = given.reduce_scatter_single(part, whole, group=self.group, async_op=True)
        + part = flat.own_part(whole)
        + work = dist.all_reduce(whole, group=self.group, async_op=True)
    """),
    "clips_locally": Mutant(23, loses={"clipping"}).edited("""
        The norm is that of this rank's shards.

        - dist.all_reduce(norm, group=self.group)
        - norm.sqrt_()
        + norm.sqrt_()
    """),
    "adds_up_norms": Mutant(23, loses={"clipping"}).edited("""
        Norms are added up, not their squares.

        - norm = given.on_device(norm, self.flats[0]).square()
        - dist.all_reduce(norm, group=self.group)
        - norm.sqrt_()
        + norm = given.on_device(norm, self.flats[0])
        + dist.all_reduce(norm, group=self.group)
    """),
    "sums_up": Mutant(
        3,
        loses={
            "clipping",
            "groups",
            "memory",
            "module_traffic_and_units",
            "module_values",
            "optimizer_memory",
            "optimizer_traffic",
            "optimizer_values",
            "prefetch",
            "states",
        },
    ).edited("""
        Gradients are sums over the ranks, not means.

        - flat.add_gradient(part.div_(self.replicas))
        + flat.add_gradient(part)
    """),
    "ignores_replicas": Mutant(23, loses={"groups"}).edited("""
        With hybrid sharding, groups do not exchange gradients.

        - if self.hybrid is not None:
        -     dist.all_reduce(part, group=self.hybrid)
        - flat.add_gradient(part.div_(self.replicas))
        + flat.add_gradient(part.div_(self.ranks))
    """),
    "keeps_whole_gradients": Mutant(21, loses={"optimizer_memory", "optimizer_traffic"}).edited("""
        Stage 2 is stage 1: nothing leaves before the step.

        - while not self.buckets[self.launched].missing:
        -     self.reduce([self.buckets[self.launched]])
        -     self.launched = (self.launched + 1) % len(self.buckets)
        + return
    """),
    "waits_for_each_bucket": Mutant(22, loses={"prefetch"}).edited("""
        The backward pass waits for each reduction.

          self.pending.append((flat, part, whole, work))
        + self.wait_for_gradients()
    """),
    "keeps_reductions": Mutant(
        17, loses={"memory", "module_traffic_and_units", "optimizer_memory", "optimizer_traffic"}
    ).edited("""
        Nothing is waited for before the end, so that all whole gradients stay in memory.

        - self.wait_for_gradients()
        - for flat in flats:
        + for flat in flats:
    """),
    "steps_everything": Mutant(20, loses={"memory", "optimizer_memory", "states"}).edited("""
        Gradients and optimizer state are whole on every rank: nothing is sharded but in name.

        - super().__init__(params, optimizer_class, stage, group, bucket_cap_mb, kwargs)
        + super().__init__(params, optimizer_class, stage, group, bucket_cap_mb, kwargs)
        + for bucket in self.buckets:
        +     bucket.everything = nn.Parameter(bucket.full.detach())
        + groups = [{**entry, "params": []} for entry in self.optimizer.param_groups]
        + for entry, shards in zip(groups, self.optimizer.param_groups, strict=True):
        +     own = {id(shard) for shard in shards["params"]}
        +     entry["params"] = [b.everything for b in self.buckets if id(b.shard) in own]
        + self.whole_optimizer = optimizer_class(groups, **kwargs)

        - self.optimizer.step()
        - for work in [
        -     given.all_gather_single(bucket.full, bucket.shard.detach(), group=self.group, async_op=True)
        -     for bucket in self.buckets
        - ]:
        -     work.wait()
        + for bucket in self.buckets:
        +     bucket.everything.grad = bucket.gather(bucket.shard.grad)
        + self.whole_optimizer.step()
    """),
    "gathers_all_units": Mutant(18, loses={"groups", "module_traffic_and_units", "prefetch"}).edited("""
        The first unit gathers all of them.

        - if following is not None and self.prefetch:
        -     self.start_gathering(following)
        + for other in self.units:
        +     self.start_gathering(other)
    """),
    "frees_nothing_forward": Mutant(23, loses={"module_traffic_and_units"}).edited("""
        A unit stays whole from its forward pass to its backward pass.

        - unit.free()
        - unit.gathering = None
        + if torch._C._current_graph_task_id() == -1 and torch.is_grad_enabled():
        +     return
        + unit.free()
        + unit.gathering = None
    """),
    "frees_nothing": Mutant(23, loses={"module_traffic_and_units"}).edited("""
        Units are gathered again and again, and stay whole for ever.

        - unit.free()
        - unit.gathering = None
        + unit.gathering = None
    """),
    "no_prefetch": Mutant(22, loses={"prefetch"}).edited("""
        A unit is gathered when it is needed.

        - if following is not None and self.prefetch:
        + if False:
    """),
    "waits_for_what_is_prefetched": Mutant(22, loses={"prefetch"}).edited("""
        The unit that comes next has arrived before this one computes.

        - self.start_gathering(following)
        + self.start_gathering(following)
        + for work in following.gathering or ():
        +     work.wait()
    """),
}
