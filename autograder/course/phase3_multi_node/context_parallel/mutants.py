"""Mutants of context_parallel: what is wrong in each, what it earns, and the checks that it loses."""

from __future__ import annotations

from autograder.mutants import Mutant

MUTANTS = {
    "last_block_not_rescaled": Mutant(
        8,
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
            "bfloat16",
            "real_processes",
        },
    ).edited("""
        The last block is added with its share, but what was there before keeps its own.

        - else:
        -     add_block(out[:, :, rows], lse[:, :, rows], *block)
        + elif step < ranks - 1:
        +     add_block(out[:, :, rows], lse[:, :, rows], *block)
        + else:
        +     share = torch.sigmoid(block[1] - lse[:, :, rows]).unsqueeze(-1)
        +     out[:, :, rows].add_(block[0] * share)
        +     lse[:, :, rows].copy_(torch.logaddexp(lse[:, :, rows], block[1]))
    """),
    "lse_without_last_block": Mutant(
        16, loses={"gradients", "groups", "backward_ring", "memory", "bfloat16", "real_processes"}
    ).edited("""
        Results are right; the logsumexp that backward reads has all blocks but the last one.

        - if step == 0:
        -     out, lse = block
        - else:
        -     add_block(out[:, :, rows], lse[:, :, rows], *block)
        + if step == 0:
        +     out, lse = block
        + else:
        +     saved = lse.clone()
        +     add_block(out[:, :, rows], lse[:, :, rows], *block)

        - ctx.save_for_backward(q, own_k, own_v, out, lse)
        + ctx.save_for_backward(q, own_k, own_v, out, locals().get("saved", lse))
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
            "bfloat16",
            "gather",
            "gather_exchanges",
            "ulysses",
            "few_heads",
            "arguments",
            "real_processes",
        },
    ).edited("""
        Zigzag is only a name: parts are contiguous, and so are masks.

        - size = whole.shape[dim] // (2 * ranks)
        - first = whole.narrow(dim, rank * size, size)
        - second = whole.narrow(dim, (2 * ranks - 1 - rank) * size, size)
        - return torch.cat([first, second], dim)
        + size = whole.shape[dim] // ranks
        + return whole.narrow(dim, rank * size, size)

        - return torch.cat(first_halves + second_halves[::-1], dim)
        + return torch.cat(list(parts), dim)

        - if layout == "zigzag":
        -     return (every, first, False) if source < rank else (second, every, False)
        - return (every, every, False) if source < rank else None
        + return (every, every, False) if source < rank else None
    """),
    "changes_layout_first": Mutant(
        14, loses={"ring", "balance", "overlap", "groups", "backward_ring", "memory", "real_processes"}
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
    "computes_what_is_masked": Mutant(22, loses={"balance", "backward_ring"}).edited("""
        Forward: all queries attend to every block; what is masked is thrown away.

        - block = given.attend(q[:, :, rows], k[:, :, columns], v[:, :, columns], diagonal)
        + block = [x[:, :, rows] for x in given.attend(q, k[:, :, columns], v[:, :, columns], diagonal)]
    """),
    "stores_scores": Mutant(23, loses={"memory"}).edited("""
        Forward: a block's scores are a matrix.

        - block = given.attend(q[:, :, rows], k[:, :, columns], v[:, :, columns], diagonal)
        + times = q.shape[1] // k.shape[1]
        + keys, values = (x[:, :, columns].repeat_interleave(times, dim=1) for x in (k, v))
        + scores = (q[:, :, rows] @ keys.mT) / q.shape[-1] ** 0.5
        + if diagonal:
        +     scores.masked_fill_(torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1), -torch.inf)
        + scores = scores.to(torch.promote_types(q.dtype, torch.float32))
        + block = [scores.softmax(-1) @ values.to(scores.dtype), scores.logsumexp(-1)]
    """),
    "keeps_blocks": Mutant(23, loses={"memory"}).edited("""
        Forward: every block that has passed by is kept for backward.

        - else:
        -     add_block(out[:, :, rows], lse[:, :, rows], *block)
        + else:
        +     add_block(out[:, :, rows], lse[:, :, rows], *block)
        +     ctx.blocks = [*getattr(ctx, "blocks", []), k, v]
    """),
    "exponentials": Mutant(24, loses={"scores"}).edited("""
        Exponentials of scores are computed: too large for a float.

        - share = torch.sigmoid(block_lse - lse)
        + share = block_lse.exp() / (lse.exp() + block_lse.exp())
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
        16, loses={"gradients", "groups", "backward_ring", "memory", "bfloat16", "real_processes"}
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
    "ring_by_ulysses": Mutant(
        15, loses={"ring", "balance", "overlap", "backward_ring", "memory", "real_processes"}
    ).edited("""
        There is no ring: ring_attention calls ulysses_attention, with padded heads.

        - return apply_in_group(_RingAttention, *given.check_attention(q, k, v, group, layout), causal, layout, group)
        + q, k, v = given.check_attention(q, k, v, group, layout)
        + k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        + heads, missing = q.shape[1], -q.shape[1] % dist.get_world_size(group)
        + q, k, v = (F.pad(x, (0, 0, 0, 0, 0, missing)) for x in (q, k, v))
        + return ulysses_attention(q, k, v, group, causal, layout)[:, :heads]
    """),
    "second_halves_in_order": Mutant(
        17, loses={"layouts", "gather", "gather_exchanges", "ulysses", "few_heads", "exchanges", "arguments"}
    ).edited("""
        The second halves are joined in the order of the first ones.

        - return torch.cat(first_halves + second_halves[::-1], dim)
        + return torch.cat(first_halves + second_halves, dim)
    """),
    "tokens_in_rank_order": Mutant(22, loses={"ulysses", "few_heads", "arguments"}).edited("""
        Ulysses: tokens of zigzag parts are attended to in the order of the ranks.

        - tokens = _whole(apply_in_group(_AllToAll, pieces, group).unbind(), layout, dim=2)
        + tokens = _whole(apply_in_group(_AllToAll, pieces, group).unbind(), "contiguous", dim=2)

        - pieces = torch.stack([_part(out, r, ranks, layout, dim=2) for r in range(ranks)])
        + pieces = torch.stack([_part(out, r, ranks, "contiguous", dim=2) for r in range(ranks)])
    """),
    "one_exchange_each": Mutant(24, loses={"exchanges"}).edited("""
        Ulysses: q, k and v are exchanged one after the other.

        - pieces = torch.stack([torch.cat([cut_q[r], cut_k[r], cut_v[r]], dim=1) for r in range(ranks)])
        - tokens = _whole(apply_in_group(_AllToAll, pieces, group).unbind(), layout, dim=2)
        + exchanged = [apply_in_group(_AllToAll, torch.stack(cut), group).unbind() for cut in (cut_q, cut_k, cut_v)]
        + tokens = torch.cat([_whole(one, layout, dim=2) for one in exchanged], dim=1)
    """),
    "copies_of_wrong_heads": Mutant(24, loses={"few_heads"}).edited("""
        Ulysses: too few heads of k and v are repeated as a whole, 0 1 0 1, so that ranks get those of others.

        - k, v = k.repeat_interleave(copies, dim=1), v.repeat_interleave(copies, dim=1)
        + k, v = k.repeat(1, copies, 1, 1), v.repeat(1, copies, 1, 1)
    """),
    "sends_heads_of_queries": Mutant(18, loses={"ring", "overlap", "backward_ring", "real_processes"}).edited("""
        Ring: k and v are repeated for every head of q before they are sent.

        - return apply_in_group(_RingAttention, *given.check_attention(q, k, v, group, layout), causal, layout, group)
        + q, k, v = given.check_attention(q, k, v, group, layout)
        + k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        + return apply_in_group(_RingAttention, q, k, v, causal, layout, group)
    """),
    "sums_in_bfloat16": Mutant(24, loses={"bfloat16"}).edited("""
        Backward: gradients of k and v are added up in their own dtype.

        - own_dk = torch.zeros_like(k, dtype=lse.dtype)
        - own_dv = torch.zeros_like(v, dtype=lse.dtype)
        + own_dk, own_dv = torch.zeros_like(k), torch.zeros_like(v)
    """),
    "scatters_bfloat16": Mutant(24, loses={"gather_exchanges"}).edited("""
        Gather, backward: pieces are rounded to the dtype of k before they are added up.

        - pieces = [_part(both, other, ranks, layout, dim=3).contiguous() for other in range(ranks)]
        + pieces = [_part(both.to(k.dtype), other, ranks, layout, dim=3).contiguous() for other in range(ranks)]
    """),
    "own_queries_alone": Mutant(22, loses={"gather", "gather_exchanges"}).edited("""
        Gather, backward: a rank's k and v get the gradients of its own queries alone.

        - dist.reduce_scatter(own, pieces, group=group)
        + own.copy_(pieces[rank])
    """),
    "scattered_in_order": Mutant(22, loses={"gather", "gather_exchanges"}).edited("""
        Gather, backward: gradients are cut into contiguous parts, whatever the layout.

        - pieces = [_part(both, other, ranks, layout, dim=3).contiguous() for other in range(ranks)]
        + pieces = [_part(both, other, ranks, "contiguous", dim=3).contiguous() for other in range(ranks)]
    """),
    "gather_by_ring": Mutant(24, loses={"gather_exchanges"}).edited("""
        Nothing is gathered: gather_attention calls ring_attention.

        - return apply_in_group(_GatherAttention, *given.check_attention(q, k, v, group, layout), causal, layout, group)
        + return ring_attention(q, k, v, group, causal, layout)
    """),
}
