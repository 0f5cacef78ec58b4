"""Mutants of context_parallel: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "last_block_not_rescaled": Mutant(
        6,
        loses={
            "values",
            "scores",
            "ring",
            "balance",
            "overlap",
            "gradients",
            "groups",
            "backward_ring",
            "memory",
            "real_processes",
        },
    ).edited("""
        The last block is added with its share, but what was there before keeps its own.

        - _add_block(out[:, :, rows], lse[:, :, rows], *block)
        + if step < ranks - 1:
        +     _add_block(out[:, :, rows], lse[:, :, rows], *block)
        + else:
        +     share = torch.sigmoid(block[1] - lse[:, :, rows]).unsqueeze(-1)
        +     out[:, :, rows].add_(block[0] * share)
        +     lse[:, :, rows].copy_(torch.logaddexp(lse[:, :, rows], block[1]))
    """),
    "lse_without_last_block": Mutant(
        16, loses={"gradients", "groups", "backward_ring", "memory", "real_processes"}
    ).edited("""
        Results are right; the logsumexp that backward reads has all blocks but the last one.

        - if step == 0:
        -     out, lse = block
        - else:
        -     _add_block(out[:, :, rows], lse[:, :, rows], *block)
        + if step == 0:
        +     out, lse = block
        + else:
        +     saved = lse.clone()
        +     _add_block(out[:, :, rows], lse[:, :, rows], *block)

          out = out.to(q.dtype)
        + lse = locals().get("saved", lse)
    """),
    "contiguous_named_zigzag": Mutant(
        1,
        loses={
            "layouts",
            "values",
            "scores",
            "ring",
            "balance",
            "overlap",
            "gradients",
            "groups",
            "backward_ring",
            "memory",
            "ulysses",
            "arguments",
            "real_processes",
        },
    ).edited("""
        Zigzag is only a name: parts are contiguous, and so are masks.

        - if layout == "contiguous":
        -     size = whole.shape[dim] // ranks
        -     return whole.narrow(dim, rank * size, size)
        - size = whole.shape[dim] // (2 * ranks)
        - return torch.cat([whole.narrow(dim, chunk * size, size) for chunk in (rank, 2 * ranks - 1 - rank)], dim)
        + size = whole.shape[dim] // ranks
        + return whole.narrow(dim, rank * size, size)

        - if layout == "zigzag":
        -     halves = [part.chunk(2, dim) for part in parts]
        -     parts = [first for first, _ in halves] + [second for _, second in reversed(halves)]
        - return torch.cat(list(parts), dim)
        + return torch.cat(list(parts), dim)

        - if layout == "zigzag":
        -     return (every, first, False) if source < rank else (second, every, False)
        - return (every, every, False) if source < rank else None
        + return (every, every, False) if source < rank else None
    """),
    "changes_layout_first": Mutant(
        13, loses={"ring", "balance", "overlap", "groups", "backward_ring", "memory", "real_processes"}
    ).edited("""
        Values are right: all is gathered, and each rank attends with the contiguous part of the queries.

        - return apply_in_group(_RingAttention, *given.check_attention(q, k, v, group, layout), causal, layout, group)
        + from torch.distributed.nn.functional import all_gather
        + q, k, v = given.check_attention(q, k, v, group, layout)
        + rank, ranks = dist.get_rank(group), dist.get_world_size(group)
        + wholes = [_whole(all_gather(x, group or dist.group.WORLD), layout, 2) for x in (q, k, v)]
        + parts = [_part(x, rank, ranks, "contiguous", 2).contiguous() for x in wholes]
        + out = apply_in_group(_RingAttention, *parts, causal, "contiguous", group)
        + return _part(torch.cat(all_gather(out.contiguous(), group or dist.group.WORLD), 2), rank, ranks, layout, 2)
    """),
    "gathers_blocks": Mutant(17, loses={"ring", "overlap", "backward_ring", "memory"}).edited("""
        Forward: all blocks are gathered at once, and there is no ring.

          ### BEGIN SOLUTION
        - for step in range(ranks):
        -     arriving = given.pass_on([k, v], group) if step < ranks - 1 else None
        + keys, values = ([torch.empty_like(x) for _ in range(ranks)] for x in (k, v))
        + dist.all_gather(keys, k, group=group)
        + dist.all_gather(values, v, group=group)
        + for step in range(ranks):
        +     arriving, source = None, (rank - step) % ranks
        +     k, v = keys[source], values[source]
    """),
    "waits_first": Mutant(23, loses={"overlap"}).edited("""
        Forward: a block has arrived before the one at hand is computed.

          ### BEGIN SOLUTION
        - for step in range(ranks):
        -     arriving = given.pass_on([k, v], group) if step < ranks - 1 else None
        + for step in range(ranks):
        +     arriving = given.pass_on([k, v], group) if step < ranks - 1 else None
        +     _ = arriving and arriving.wait()
    """),
    "passes_the_last_block_on": Mutant(20, loses={"ring", "overlap", "real_processes"}).edited("""
        Forward: blocks go all the way around, and come home.

          ### BEGIN SOLUTION
        - for step in range(ranks):
        -     arriving = given.pass_on([k, v], group) if step < ranks - 1 else None
        + for step in range(ranks):
        +     arriving = given.pass_on([k, v], group) if ranks > 1 else None
    """),
    "computes_what_is_masked": Mutant(21, loses={"balance", "backward_ring"}).edited("""
        Forward: all queries attend to every block; what is masked is thrown away.

        - block = given.attend(q[:, :, rows], k[:, :, columns], v[:, :, columns], diagonal)
        + block = [x[:, :, rows] for x in given.attend(q, k[:, :, columns], v[:, :, columns], diagonal)]
    """),
    "stores_scores": Mutant(23, loses={"memory"}).edited("""
        Forward: a block's scores are a matrix.

        - block = given.attend(q[:, :, rows], k[:, :, columns], v[:, :, columns], diagonal)
        + scores = (q[:, :, rows] @ k[:, :, columns].mT) / q.shape[-1] ** 0.5
        + if diagonal:
        +     scores.masked_fill_(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -torch.inf)
        + scores = scores.to(torch.promote_types(q.dtype, torch.float32))
        + block = [scores.softmax(-1) @ v[:, :, columns].to(scores.dtype), scores.logsumexp(-1)]
    """),
    "keeps_blocks": Mutant(23, loses={"memory"}).edited("""
        Forward: every block that has passed by is kept for backward.

        - _add_block(out[:, :, rows], lse[:, :, rows], *block)
        + _add_block(out[:, :, rows], lse[:, :, rows], *block)
        + ctx.blocks = [*getattr(ctx, "blocks", []), k, v]
    """),
    "exponentials": Mutant(24, loses={"scores"}).edited("""
        Exponentials of scores are computed: too large for a float.

        - out.lerp_(block_out, torch.sigmoid(block_lse - lse).unsqueeze(-1))
        + out.lerp_(block_out, (block_lse.exp() / (lse.exp() + block_lse.exp())).unsqueeze(-1))
    """),
    "ignores_its_group": Mutant(24, loses={"groups"}).edited("""
        Forward: blocks go around all ranks.

          ### BEGIN SOLUTION
        - for step in range(ranks):
        -     arriving = given.pass_on([k, v], group) if step < ranks - 1 else None
        + for step in range(ranks):
        +     arriving = given.pass_on([k, v]) if step < ranks - 1 else None
    """),
    "forgets_earlier_ranks": Mutant(
        16, loses={"gradients", "groups", "backward_ring", "memory", "real_processes"}
    ).edited("""
        Backward: a block comes home with the gradients of the last rank alone.

        - given.add_to([dk, dv], coming.wait())
        + coming.wait()
    """),
    "own_rank_begins": Mutant(22, loses={"backward_ring", "real_processes"}).edited("""
        Backward: a block's own rank is the first to add to its gradients, so that they travel N times.

        - dk, dv = (own_dk, own_dv) if step == 0 else (torch.zeros_like(own_dk), torch.zeros_like(own_dv))
        + dk, dv = torch.zeros_like(own_dk), torch.zeros_like(own_dv)

        - if step > 0:
        -     coming = given.pass_on([dk, dv], group)
        + if ranks > 1:
        +     coming = given.pass_on([dk, dv], group)
        + else:
        +     own_dk, own_dv = dk, dv
    """),
    "waits_for_gradients": Mutant(23, loses={"backward_ring"}).edited("""
        Backward: gradients have arrived before the next block is computed.

        - coming = given.pass_on([dk, dv], group)
        + coming = given.pass_on([dk, dv], group)
        + coming.wait()
    """),
    "sums_gradients_of_everybody": Mutant(20, loses={"backward_ring", "memory", "real_processes"}).edited("""
        Backward: instead of a ring, an all-reduce of the gradients of all blocks.

        - if coming is not None:
        -     given.add_to([dk, dv], coming.wait())
        - if step > 0:
        -     coming = given.pass_on([dk, dv], group)
        + if step == 0:
        +     everybody = torch.zeros(2, ranks, *dk.shape, dtype=dk.dtype, device=dk.device)
        + everybody[0, (rank - step) % ranks], everybody[1, (rank - step) % ranks] = dk, dv

        - if coming is not None:
        -     given.add_to([own_dk, own_dv], coming.wait())
        + dist.all_reduce(everybody, group=group)
        + own_dk, own_dv = everybody[0, rank], everybody[1, rank]
    """),
    "ring_by_ulysses": Mutant(15, loses={"ring", "balance", "overlap", "backward_ring", "memory"}).edited("""
        There is no ring: ring_attention calls ulysses_attention, with padded heads.

        - return apply_in_group(_RingAttention, *given.check_attention(q, k, v, group, layout), causal, layout, group)
        + q, k, v = given.check_attention(q, k, v, group, layout)
        + heads, missing = q.shape[1], -q.shape[1] % dist.get_world_size(group)
        + q, k, v = (F.pad(x, (0, 0, 0, 0, 0, missing)) for x in (q, k, v))
        + return ulysses_attention(q, k, v, group, causal, layout)[:, :heads]
    """),
    "second_halves_in_order": Mutant(19, loses={"layouts", "ulysses", "exchanges", "arguments"}).edited("""
        The second halves are joined in the order of the first ones.

        - parts = [first for first, _ in halves] + [second for _, second in reversed(halves)]
        + parts = [first for first, _ in halves] + [second for _, second in halves]
    """),
    "tokens_in_rank_order": Mutant(22, loses={"ulysses", "arguments"}).edited("""
        Ulysses: tokens of zigzag parts are attended to in the order of the ranks.

        - q, k, v = _whole(apply_in_group(_AllToAll, pieces, group).unbind(), layout, dim=3)
        + q, k, v = _whole(apply_in_group(_AllToAll, pieces, group).unbind(), "contiguous", dim=3)

        - pieces = torch.stack([_part(out, rank, ranks, layout, dim=2) for rank in range(ranks)])
        + pieces = torch.stack([_part(out, rank, ranks, "contiguous", dim=2) for rank in range(ranks)])
    """),
    "one_exchange_each": Mutant(24, loses={"exchanges"}).edited("""
        Ulysses: q, k and v are exchanged one after the other.

        - pieces = torch.stack(torch.stack([q, k, v]).chunk(ranks, dim=2))
        - q, k, v = _whole(apply_in_group(_AllToAll, pieces, group).unbind(), layout, dim=3)
        + q, k, v = (
        +     _whole(apply_in_group(_AllToAll, torch.stack(x.chunk(ranks, dim=1)), group).unbind(), layout, dim=2)
        +     for x in (q, k, v)
        + )
    """),
}
