"""Visible checks and hints of context_parallel.

Where no query prefers a key, attention is a mean. Each value is its token's place in the sequence, so with a causal
mask token 7 becomes the mean of 0..7, 3.5, and another number shows which tokens were missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, NotMeasurable, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.course.phase3_multi_node.context_parallel.scenarios import attended, marks, one_process, parts, spans
from labkit.hardware import Link
from labkit.trace import Kind

SECONDS = 0.01
"""Duration of attention between two chunks, half of each rank's tokens, where time matters."""

# What runs on the ranks -----------------------------------------------------------------------------------------------


def cut_up(x: Tensor, layout: str, dim: int, back: bool = False, group: Any = None) -> Tensor:
    """On a rank: return its part of x, or the sequence that has this part."""
    from labkit.exercises import context_parallel

    function = context_parallel.merge_sequence if back else context_parallel.split_sequence
    part: Tensor = function(x, group, layout, dim)
    return part.contiguous()


def trained(inputs: list[Tensor], gradient: Tensor | None = None, **how: Any) -> list[Tensor]:
    """On a rank: attend to q, k and v, which require gradients; with a gradient also backward."""
    return attended([x.clone().requires_grad_() for x in inputs], gradient, **how)


# What the checks read -------------------------------------------------------------------------------------------------


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def given(
    ranks: int, tensors: Sequence[Tensor], layout: str = "zigzag", gradient: Tensor | None = None, **options: Any
) -> list[Args]:
    """Return the arguments of each rank: its parts of q, k and v, and of the result's gradient."""
    cut = [parts(x, ranks, layout) for x in tensors]
    ends: list[Any] = [None] * ranks if gradient is None else parts(gradient, ranks, layout)
    return [Args([x[rank] for x in cut], ends[rank], layout=layout, **options) for rank in range(ranks)]


def means(
    submission: Submission, ranks: Ranks, world_size: int, causal: bool, layout: str, look_at: str, **options: Any
) -> None:
    """Expect, in place of each token, the mean of the places that it sees."""
    tokens = 4 * world_size
    places = torch.arange(float(tokens)).view(1, 1, tokens, 1)
    zeros = torch.zeros_like(places)
    run = ranks(world_size).call(
        submission.used_by(trained, attended),
        given(world_size, [zeros, zeros, places], layout, causal=causal, **options),
    )
    wanted = places / 2 if causal else torch.full_like(places, (tokens - 1) / 2)
    mask = "causal" if causal else "not causal"
    what = f"means of the places 0..{tokens - 1} that each token sees, {mask}, {layout}, {world_size} ranks"
    seen = [value[0] for value in run.values]
    expect(seen, what, look_at=look_at).close_to(parts(wanted, world_size, layout), rel=1e-5)


def compared(
    submission: Submission,
    ranks: Ranks,
    tensors: Sequence[Tensor],
    gradient: Tensor | None,
    layout: str,
    **options: Any,
) -> Run:
    """Expect what attention in one process computes, and its gradients."""
    world_size, causal, rel = options.pop("world_size"), options.get("causal", True), options.pop("rel", 1e-5)
    run = ranks(world_size).call(
        submission.used_by(trained, attended), given(world_size, tensors, layout, gradient, **options)
    )
    names = ["the result", *(f"the gradient of {name}" for name in "qkv")]
    mask = "causal" if causal else "not causal"
    for number, (name, tensor) in enumerate(zip(names, one_process(tensors, gradient, causal), strict=False)):
        what = f"{name} of {'x'.join(map(str, tensors[0].shape))} tensors, {mask}, {layout}, {world_size} ranks"
        seen = [value[number] if number < len(value) else None for value in run.values]
        expect(seen, what).close_to([x.float() for x in parts(tensor, world_size, layout)], rel=rel)
    return run


def timed(
    submission: Submission, ranks: Ranks, world_size: int, layout: str, share: float, backward: bool = False
) -> tuple[Run, float]:
    """Run ring attention where a pair of chunks takes SECONDS, and a message of k and v `share` of a step's two pairs.

    Returns the run and a message's seconds.
    """
    tokens, width = 16, 4
    shape = (1, 1, world_size * tokens, width)
    tensors, gradient = [normal(*shape, seed=seed) for seed in range(3)], normal(*shape, seed=3) if backward else None
    seconds = share * 2 * SECONDS
    link = Link("slow", 2 * tokens * width * 4 / seconds / 1e9, 1e-6, "a block takes a part of a step's time")
    options = {"flops": 4.0 * (tokens // 2) ** 2 * width, "pair": work("chunk", SECONDS), "mark": work("mark", 1e-6)}
    run = ranks(world_size, inter_node=link).call(
        submission.used_by(trained, attended), given(world_size, tensors, layout, gradient, **options)
    )
    if run.trace.clock != "modelled":
        raise NotMeasurable("time is exact on virtual ranks only")
    return run, seconds


def pairs_computed(run: Run, rank: int) -> int:
    """Return how many pairs of chunks a rank computed forward."""
    middle = marks(run, rank)[1]
    return sum(e.operation == "chunk" and e.start < middle for e in run.trace.of(rank, Kind.COMPUTE))


def sent(run: Run, rank: int, backward: bool) -> list[tuple[int | None, int]]:
    """Return receiver and bytes of a rank's messages forward, or backward."""
    begin, middle, end = marks(run, rank)
    since, until = (middle, end) if backward else (begin, middle)
    return [(e.peer, e.nbytes) for e in run.trace.of(rank, Kind.SEND) if since <= e.start <= until]


# Checks ---------------------------------------------------------------------------------------------------------------


@check(points=2, todo=1, title="each rank's part of a sequence", look_at="_part: which chunks, and in which dimension")
def split(submission: Submission, ranks: Ranks) -> None:
    for layout, dim, wanted in (
        ("contiguous", 0, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("zigzag", 0, [[0, 1, 6, 7], [2, 3, 4, 5]]),
        ("zigzag", 2, [[0, 5], [1, 4], [2, 3]]),
    ):
        count = sum(map(len, wanted))
        tokens = torch.arange(count) if dim == 0 else torch.arange(count).view(1, 1, -1, 1).repeat(2, 1, 1, 3)
        run = ranks(len(wanted)).call(submission.used_by(cut_up), [Args(tokens, layout, dim)] * len(wanted))
        parts_wanted = [tokens.index_select(dim, torch.tensor(part)) for part in wanted]
        expect(run.values, f"parts of {count} tokens in dimension {dim}, {layout}").equals(parts_wanted)


@check(points=2, todo=1, title="parts make the sequence again", look_at="_whole: the order of the second halves")
def merge(submission: Submission, ranks: Ranks) -> None:
    for layout, own in (("contiguous", [[0, 1], [2, 3], [4, 5]]), ("zigzag", [[0, 5], [1, 4], [2, 3]])):
        given_parts = [torch.tensor([part]).mT.contiguous() for part in own]
        run = ranks(3).call(submission.used_by(cut_up), [Args(part, layout, 0, True) for part in given_parts])
        wanted = torch.arange(6)[:, None]
        expect(run.values, f"6 tokens of 3 ranks, {layout}").equals([wanted] * 3)
        for rank in range(3):
            seen = [(e.operation, e.nbytes) for e in run.trace.collectives(rank)]
            expect(seen, "collectives, with bytes: 2 tokens of 8").equals([("all_gather", 16)])


@check(points=3, todo=2, title="every token sees all blocks, each as often as it has tokens", look_at="_add_block")
def whole(submission: Submission, ranks: Ranks) -> None:
    for world_size in (1, 2, 3):
        hint = (
            "_RingAttention.forward: N blocks, N-1 messages" if world_size == 1 else "_add_block: what a block weighs"
        )
        means(submission, ranks, world_size, False, "contiguous", hint)
    means(submission, ranks, 2, False, "zigzag", "_visible: without a mask all queries see all keys")
    places = torch.arange(8.0).view(1, 1, 8, 1)
    cut = places.chunk(2, 2)
    zeros = torch.zeros(1, 1, 4, 1)
    pair: list[Any] = [Args([zeros, zeros, x], causal=False, group=group_of([0, 2])) for x in (cut[0], cut[0], cut[1])]
    pair[1] = None
    run = ranks(3).call(submission.used_by(trained, attended), pair)
    hint = "ranks in the ring are those of the group: `dist.get_rank(group)`"
    wanted = [torch.full((1, 1, 4, 1), 3.5), None, torch.full((1, 1, 4, 1), 3.5)]
    seen = [None if value is None else value[0] for value in run.values]
    expect(seen[0], "means of the places 0..7 on ranks 0 and 2, a group", look_at=hint).close_to(wanted[0])
    expect(seen[2], "means of the places 0..7 on ranks 0 and 2, a group", look_at=hint).close_to(wanted[2])


@check(
    points=2,
    todo=2,
    title="a token sees itself and those before it",
    look_at="_visible: which chunks of keys are before which chunks of queries",
)
def causal(submission: Submission, ranks: Ranks) -> None:
    for layout in ("contiguous", "zigzag"):
        for world_size in (2, 3):
            means(submission, ranks, world_size, True, layout, f"_visible, for layout {layout!r}")


@check(
    points=2,
    todo=2,
    title="blocks weigh as much as their scores say, however large those are",
    look_at="_add_block: `exp(block_lse) / (exp(lse) + exp(block_lse))`, without computing exp(lse)",
)
def scores(submission: Submission, ranks: Ranks) -> None:
    for layout in ("contiguous", "zigzag"):
        q, k, v = (normal(1, 2, 16, 4, seed=seed) for seed in (10, 11, 12))
        compared(submission, ranks, [q, k, v], None, layout, world_size=4)
    # scores of hundreds: exp(lse) is infinite, and a float32 of 1,000 is exact to 0.00006
    compared(submission, ranks, [100 * q, 10 * k, v], None, "zigzag", world_size=2, rel=2e-3)


@check(
    points=1,
    todo=2,
    title="a rank passes on all blocks but one, to one neighbour",
    look_at="forward: the last block is not passed on",
)
def messages(submission: Submission, ranks: Ranks) -> None:
    run, _ = timed(submission, ranks, 3, "zigzag", 0.5)
    ways = []
    for rank in range(3):
        seen = sent(run, rank, backward=False)
        what = f"bytes that rank {rank} sends forward: k and v of 16 tokens with 4 float32, 2 times"
        expect(sum(nbytes for _, nbytes in seen), what, unit="bytes").equals(2 * 2 * 256)
        ways.append({peer for peer, _ in seen})
    expect(ways, "receivers of each rank's messages").is_one_of([{1}, {2}, {0}], [{2}, {0}, {1}])


@check(
    points=2,
    todo=2,
    title="the next block arrives while this one is computed",
    look_at="forward: `given.pass_on` before `given.attend`, `wait()` after it",
)
def overlap(submission: Submission, ranks: Ranks) -> None:
    run, _ = timed(submission, ranks, 4, "zigzag", 0.8)
    for rank in range(4):
        what = f"seconds of rank {rank} forward: 4 blocks of 0.02 s each, and messages of 0.016 s meanwhile"
        expect(spans(run, rank)[0], what, unit="seconds").at_most(0.085)


@check(
    points=2,
    todo=2,
    title="zigzag ranks have the same work, and masked blocks none",
    look_at="_visible: what is masked as a whole is not computed",
)
def balance(submission: Submission, ranks: Ranks) -> None:
    for layout, wanted in (("zigzag", [8, 8, 8, 8]), ("contiguous", [2, 6, 10, 14])):
        run, _ = timed(submission, ranks, 4, layout, 0.5)
        seen = [pairs_computed(run, rank) for rank in range(4)]
        what = f"pairs of half blocks that each of 4 ranks computes forward, {layout}; those on the diagonal count half"
        expect(seen, what).equals(wanted)


@check(
    points=1,
    todo=2,
    title="a rank holds its own block, one at hand and one that arrives, however many ranks there are",
    look_at="forward: which blocks are still referred to",
)
def memory(submission: Submission, ranks: Ranks) -> None:
    world_size, tokens, width = 8, 128, 32
    tensors = [normal(1, 1, world_size * tokens, width, seed=seed) for seed in range(50, 53)]
    run = compared(submission, ranks, tensors, None, "zigzag", world_size=world_size)
    if run.trace.clock != "modelled":
        raise NotMeasurable("memory is counted on virtual ranks only")
    for rank in range(world_size):
        tensor = 4 * tokens * width
        what = f"peak bytes on rank {rank} of 8, where each of q, k, v and the result has {tensor:,}"
        # q, k and v; two blocks; the result, and what a block adds; room for some temporary ones
        expect(run.trace.peak_memory(rank), what, unit="bytes").at_most(12 * tensor)


@check(
    points=3,
    todo=3,
    title="gradients of q, k and v",
    look_at="backward: which rows and columns a part of a gradient belongs to",
)
def gradients(submission: Submission, ranks: Ranks) -> None:
    for world_size, causal, layout in (
        (1, True, "zigzag"),
        (2, False, "contiguous"),
        (2, True, "contiguous"),
        (3, True, "zigzag"),
    ):
        tensors = [normal(2, 2, 4 * world_size, 4, seed=20 + seed) for seed in range(4)]
        compared(submission, ranks, tensors[:3], tensors[3], layout, world_size=world_size, causal=causal)


@check(
    points=2,
    todo=3,
    title="backward, blocks and their gradients travel while others are computed",
    look_at="backward: gradients leave after the step, and are waited for in the next one, after computing",
)
def backward_messages(submission: Submission, ranks: Ranks) -> None:
    run, seconds = timed(submission, ranks, 4, "zigzag", 0.8, backward=True)
    for rank in range(4):
        seen = sent(run, rank, backward=True)
        what = f"bytes that rank {rank} sends backward: k, v and their gradients, 256 bytes each, 3 times"
        hint = "the block's own rank adds its part when the gradients have come home"
        expect(sum(nbytes for _, nbytes in seen), what, look_at=hint, unit="bytes").equals(3 * 4 * 256)
        expect(len({peer for peer, _ in seen}), f"receivers of rank {rank}'s messages, backward").equals(1)
        # torch counts 2.5 times the FLOPs of forward
        what = f"seconds of rank {rank} backward: 4 blocks of 0.05 s, and one message at the end"
        expect(spans(run, rank)[1], what, unit="seconds").at_most(0.2 + seconds + 0.005)


@check(
    points=2,
    todo=4,
    title="Ulysses: the same results, and the same gradients",
    look_at="ulysses_attention: which dimension has heads, which has tokens, and their order",
)
def ulysses(submission: Submission, ranks: Ranks) -> None:
    for world_size, causal, layout in (
        (1, True, "zigzag"),
        (2, True, "contiguous"),
        (3, False, "zigzag"),
        (2, True, "zigzag"),
    ):
        tensors = [normal(2, 2 * world_size, 4 * world_size, 4, seed=30 + seed) for seed in range(4)]
        how: dict[str, Any] = {"world_size": world_size, "causal": causal, "ulysses": True}
        compared(submission, ranks, tensors[:3], tensors[3], layout, **how)


@check(
    points=1,
    todo=4,
    title="Ulysses: two all-to-alls forward, two backward",
    look_at="ulysses_attention: q, k and v are exchanged together",
)
def all_to_alls(submission: Submission, ranks: Ranks) -> None:
    tensors = [normal(1, 4, 8, 4, seed=40 + seed) for seed in range(4)]
    run = compared(submission, ranks, tensors[:3], tensors[3], "zigzag", world_size=2, ulysses=True)
    for rank in range(2):
        seen = [(e.operation, e.nbytes) for e in run.trace.collectives(rank)]
        what = "collectives, with bytes: q, k and v, 256 each, the result, and both gradients"
        expect(seen, what).equals([("all_to_all", 768), ("all_to_all", 256), ("all_to_all", 256), ("all_to_all", 768)])
        expect(run.trace.messages_sent(rank), "messages beside them").equals(0)


HINTS = {
    1: [
        "On paper: 12 tokens on 3 ranks. contiguous: 0-3, 4-7, 8-11. zigzag: six chunks of two; which two are rank "
        "0's, which are rank 2's? Then write the parts under one another: in which order do you read the chunks to "
        "get 0..11?",
        "zigzag: `size` is the length divided by `2 * ranks`; a rank's chunks have the numbers `rank` and `2 * "
        "ranks - 1 - rank`, and begin at number times `size`. In `_whole`, the first halves of the parts are in "
        "order, and the second halves follow in the opposite order.",
        "`torch.cat([whole.narrow(dim, chunk * size, size) for chunk in (rank, 2 * ranks - 1 - rank)], dim)`. Back: "
        "`halves = [part.chunk(2, dim) for part in parts]`, then `torch.cat` of all first halves and of `reversed` "
        "second ones.",
    ],
    2: [
        "Three questions. Which block does rank r have after s messages, if all send to the right? Two ranks, "
        "zigzag: rank 0 has chunks 0 and 3, rank 1 has 1 and 2; which chunks of keys does each chunk of queries "
        "see? And two blocks: their scores' exponentials add up to 3 and to 1; the outputs are 10 and 20. What is "
        "the output of both?",
        "After s messages it is that of rank `(rank - s) % ranks`. A block from before: in zigzag all queries see "
        "its first half; one from behind: only the second half of the queries sees it, and all of it. In contiguous "
        "all see all, or nobody anything. Both blocks together: (3 * 10 + 1 * 20) / 4, so the new block's share is "
        "exp(block_lse) / (exp(lse) + exp(block_lse)) = sigmoid(block_lse - lse). Start `given.pass_on([k, v], "
        "group)` before computing, and wait after it; in the last step there is nothing to pass on.",
        "`_visible`: `every, every, causal` if not causal or `source == rank`; zigzag `(every, first, False)` or "
        "`(second, every, False)`; contiguous `(every, every, False)` or None. `_add_block`: `out.lerp_(block_out, "
        "torch.sigmoid(block_lse - lse).unsqueeze(-1))`, then `lse.copy_(torch.logaddexp(lse, block_lse))`. "
        "`forward`: `block = given.attend(q[:, :, rows], k[:, :, columns], v[:, :, columns], diagonal)`, in step 0 "
        "`out, lse = block`, later `_add_block(out[:, :, rows], lse[:, :, rows], *block)`.",
    ],
    3: [
        "The loop is that of `forward`: the same blocks pass by. Each step gives a part of dq, which stays, and "
        "parts of the block's dk and dv, which belong to another rank. Who adds to a block's gradients first, if "
        "its own rank is the last one? How many messages is that?",
        "In step 0 the parts are this rank's own: keep them in `own_dk` and `own_dv`. In step s >= 1, after "
        "computing, wait for the gradients that the rank before has sent in its step s - 1 (none in step 1), add "
        "them, and pass the sum on. After the last step the gradients of your own block arrive: add them to "
        "`own_dk` and `own_dv`.",
        "`dk, dv = (own_dk, own_dv) if step == 0 else (torch.zeros_like(own_dk), torch.zeros_like(own_dv))`; "
        "`given.add_to([dq[:, :, rows], dk[:, :, columns], dv[:, :, columns]], parts)`; `if coming is not None: "
        "given.add_to([dk, dv], coming.wait())`; `if step > 0: coming = given.pass_on([dk, dv], group)`. At the end "
        "`given.add_to([own_dk, own_dv], coming.wait())`.",
    ],
    4: [
        "4 heads, 8 tokens, 2 ranks: before, each rank has 4 heads of 4 tokens; in between 2 heads of 8 tokens; "
        "after it 4 heads of 4 tokens again. What goes to rank 1 the first time? And the second time?",
        "`_AllToAll` takes pieces in dimension 0, one for each rank. First time: the heads are cut, `chunk(ranks, "
        "dim=2)` of the stacked q, k and v; what arrives are all ranks' tokens of your heads: `_whole` puts them in "
        "order. Second time: the tokens are cut, with `_part` for each rank; what arrives are all heads of your "
        "tokens.",
        "`pieces = torch.stack(torch.stack([q, k, v]).chunk(ranks, dim=2))`; `q, k, v = "
        "_whole(apply_in_group(_AllToAll, pieces, group).unbind(), layout, dim=3)`; `out = "
        "F.scaled_dot_product_attention(q, k, v, is_causal=causal)`; pieces of `_part(out, rank, ranks, layout, "
        "dim=2)`, stacked; `torch.cat(apply_in_group(_AllToAll, pieces, group).unbind(), dim=1)`.",
    ],
}
