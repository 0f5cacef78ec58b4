"""Mutants of expert_parallel: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

LAYER = {"layers", "groups", "computed", "averaged", "arguments", "real_processes"}
"""Checks of a whole layer's results."""

MUTANTS = {
    "weights_left_out": Mutant(9, loses={"combined"} | LAYER).edited("""
        Results of a token's experts are added up without the router's weights.

        - weighted = rows * routing.weights.flatten()[order, None]
        + weighted = rows.to(routing.weights.dtype)
    """),
    "detached_weights": Mutant(9, loses={"combined"} | LAYER).edited("""
        The router learns nothing from the results: its weights have no gradient.

        - weighted = rows * routing.weights.flatten()[order, None]
        + weighted = rows * routing.weights.detach().flatten()[order, None]
    """),
    "arrival_order": Mutant(10, loses={"combined"} | LAYER - {"arguments"}).edited("""
        Rows go back in the order of the experts, not in that in which they came.

        - rows = torch.cat(outputs)[journey.arrival.argsort()]
        + rows = torch.cat(outputs)
    """),
    "unsorted_batches": Mutant(7, loses={"dispatched", "combined"} | LAYER - {"arguments"}).edited("""
        Batches are cut from the rows as they come, rank by rank.

        - arrival = experts.argsort(stable=True)
        + arrival = torch.arange(len(rows), device=x.device)
    """),
    "choices_of_other_tokens": Mutant(
        13, loses={"dispatched", "combined", "layers", "groups", "real_processes"}
    ).edited("""
        Choice c is taken for one of token c modulo the tokens, as if first choices came first.

        - tokens = x[order // routing.experts.shape[1]]
        + tokens = x[order % max(len(x), 1)]
    """),
    "detached_tokens": Mutant(9, loses={"combined"} | LAYER).edited("""
        Tokens travel without gradients: what is before the layer learns from the router alone.

        - tokens = x[order // routing.experts.shape[1]]
        + tokens = x.detach()[order // routing.experts.shape[1]]
    """),
    "backward_as_forward": Mutant(9, loses={"combined"} | LAYER).edited("""
        Gradients are sent with the splits of the forward pass.

        - return apply_in_group(_Exchange, grad, ctx.receive, ctx.send, ctx.group), None, None, None
        + return apply_in_group(_Exchange, grad, ctx.send, ctx.receive, ctx.group), None, None, None
    """),
    "equal_splits": Mutant(6, loses={"dispatched", "combined"} | LAYER).edited("""
        Every rank is assumed to send as many rows to each.

        - dist.all_to_all_single(result, x.contiguous(), receive, send, group=group)
        + dist.all_to_all_single(result, x.contiguous(), group=group)
    """),
    "padded_exchange": Mutant(14, loses={"dispatched", "layers", "averaged", "real_processes"}).edited("""
        Splits are made equal: all are padded to the largest of any rank.

        - dist.all_to_all_single(result, x.contiguous(), receive, send, group=group)
        - return result
        + most = torch.tensor(max(send))
        + dist.all_reduce(most, dist.ReduceOp.MAX, group=group)
        + padded = x.new_zeros(len(send), int(most), x.shape[1])
        + for block, rows in zip(padded, x.split(send), strict=True):
        +     block[: len(rows)] = rows
        + arrived = torch.empty_like(padded)
        + dist.all_to_all_single(arrived, padded, group=group)
        + return torch.cat([block[:size] for block, size in zip(arrived, receive, strict=True)])
    """),
    "ignores_its_group": Mutant(21, loses={"groups", "averaged"}).edited("""
        Rows are exchanged among all ranks.

        - dist.all_to_all_single(result, x.contiguous(), receive, send, group=group)
        + dist.all_to_all_single(result, x.contiguous(), receive, send)
    """),
    "dense_everywhere": Mutant(13, loses=LAYER - {"arguments"}).edited("""
        Each rank gathers all experts, evaluates its tokens by all of them, and sends no token.

        - batches, journey = dispatch(tokens, routing, self.group)
        - return combine(self.experts(batches), journey).view_as(x)
        + from torch.distributed.nn.functional import all_gather
        + group = self.group or dist.group.WORLD
        + up, down = (torch.cat(all_gather(weight, group)) for weight in (self.experts.up, self.experts.down))
        + outputs = torch.einsum("teh,ehw->tew", F.gelu(torch.einsum("tw,ewh->teh", tokens, up)), down)
        + weights = torch.zeros(len(tokens), len(up), dtype=routing.weights.dtype, device=x.device)
        + weights = weights.scatter(1, routing.experts, routing.weights * routing.kept)
        + return (weights.unsqueeze(1) @ outputs.to(weights.dtype)).squeeze(1).to(x.dtype).view_as(x)
    """),
    "all_rows_by_all_experts": Mutant(22, loses={"computed"}).edited("""
        Each expert computes all rows that a rank gets; those of others are thrown away.

        - return combine(self.experts(batches), journey).view_as(x)
        + sizes = [len(batch) for batch in batches]
        + outputs = self.experts([torch.cat(batches)] * len(batches))
        + outputs = [rows.split(sizes)[number] for number, rows in enumerate(outputs)]
        + return combine(outputs, journey).view_as(x)
    """),
    "normalizes_weights": Mutant(9, loses={"routers"} | LAYER).edited("""
        A token's weights are made to add up to 1: with one expert, the router has no gradient.

        - weights, experts = probabilities.topk(self.top_k, dim=-1)
        + weights, experts = probabilities.topk(self.top_k, dim=-1)
        + weights = weights / weights.sum(-1, keepdim=True)
    """),
    "loss_after_drops": Mutant(18, loses={"routers", "layers"}).edited("""
        The load-balancing loss sees only choices that are kept.

        - kept = (chosen.cumsum(0).gather(1, choices) <= capacity).view(self.top_k, len(x)).T
        + kept = (chosen.cumsum(0).gather(1, choices) <= capacity).view(self.top_k, len(x)).T
        + shares = (chosen * kept.T.reshape(-1, 1)).sum(0) / max(int(kept.sum()), 1)
        + loss = self.num_experts * (shares * means).sum()
    """),
    "never_drops": Mutant(18, loses={"capacity", "layers"}).edited("""
        Experts have room for everybody, whatever the capacity.

        - kept = (chosen.cumsum(0).gather(1, choices) <= capacity).view(self.top_k, len(x)).T
        + kept = (chosen.cumsum(0).gather(1, choices) <= max(capacity, len(choices))).view(self.top_k, len(x)).T
    """),
    "drops_not_counted": Mutant(15, loses={"routers", "capacity", "layers"}).edited("""
        What exceeds the capacity is sent all the same, with the weight 0, and not counted.

        - kept = (chosen.cumsum(0).gather(1, choices) <= capacity).view(self.top_k, len(x)).T
        + room = (chosen.cumsum(0).gather(1, choices) <= capacity).view(self.top_k, len(x)).T
        + weights = weights * room
    """),
    "second_choices_in_between": Mutant(18, loses={"capacity", "layers"}).edited("""
        An expert is filled token by token, with second choices before the first ones of later tokens.

        - kept = (chosen.cumsum(0).gather(1, choices) <= capacity).view(self.top_k, len(x)).T
        + by_token = experts.reshape(-1, 1)
        + places = (by_token == torch.arange(self.num_experts, device=x.device)).cumsum(0).gather(1, by_token)
        + kept = (places <= capacity).view(len(x), self.top_k)
    """),
    "experts_undivided": Mutant(22, loses={"averaged"}).edited("""
        Gradients of experts are not divided by the number of ranks: theirs are too large.

        - parameter.grad /= dist.get_world_size(group)
        + if parameter not in experts:
        +     parameter.grad /= dist.get_world_size(group)
    """),
    "experts_averaged": Mutant(22, loses={"averaged"}).edited("""
        Gradients of experts are averaged over all ranks, as if they were copies of one.

        - if parameter not in experts:
        -     dist.all_reduce(parameter.grad, group=group)
        - elif replicas is not None:
        -     dist.all_reduce(parameter.grad, group=replicas)
        + dist.all_reduce(parameter.grad, group=group)
    """),
    "replicas_forgotten": Mutant(22, loses={"averaged"}).edited("""
        Copies of an expert keep their own gradients, and drift apart.

        - elif replicas is not None:
        -     dist.all_reduce(parameter.grad, group=replicas)
    """),
}
