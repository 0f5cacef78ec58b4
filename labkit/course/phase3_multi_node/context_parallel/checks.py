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


def masked(rank: int, source: int, tokens: int, causal: bool, layout: str) -> Any:
    """On a rank: return rows, columns and diagonal of `visible`, slices as pairs of begin and end; or None."""
    from labkit.exercises import context_parallel

    found = context_parallel.visible(rank, source, tokens, causal, layout)
    if found is None:
        return None
    rows, columns, diagonal = found
    return [list(rows.indices(tokens)[:2]), list(columns.indices(tokens)[:2]), bool(diagonal)]


def added(blocks: list[tuple[Tensor, Tensor]]) -> list[Tensor]:
    """On a rank: add (out, lse) of all blocks to those of the first one."""
    from labkit.exercises import context_parallel

    out, lse = (x.clone() for x in blocks[0])
    for block_out, block_lse in blocks[1:]:
        context_parallel.add_block(out, lse, block_out.clone(), block_lse.clone())
    return [out, lse]


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
        heads = f"{tensors[0].shape[1]} heads of q, {tensors[1].shape[1]} of k and v"
        what = (
            f"{name} of {'x'.join(map(str, tensors[0].shape))} queries, {heads}, {mask}, {layout}, {world_size} ranks"
        )
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


@check(points=1, todo=1, title="each rank's part of a sequence", look_at="_part: which chunks, and in which dimension")
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


@check(points=1, todo=2, title="parts make the sequence again", look_at="_whole: the order of the second halves")
def merge(submission: Submission, ranks: Ranks) -> None:
    for layout, own in (("contiguous", [[0, 1], [2, 3], [4, 5]]), ("zigzag", [[0, 5], [1, 4], [2, 3]])):
        given_parts = [torch.tensor([part]).mT.contiguous() for part in own]
        run = ranks(3).call(submission.used_by(cut_up), [Args(part, layout, 0, True) for part in given_parts])
        wanted = torch.arange(6)[:, None]
        expect(run.values, f"6 tokens of 3 ranks, {layout}").equals([wanted] * 3)
        for rank in range(3):
            seen = [(e.operation, e.nbytes) for e in run.trace.collectives(rank)]
            expect(seen, "collectives, with bytes: 2 tokens of 8").equals([("all_gather", 16)])


@check(
    points=2,
    todo=3,
    title="which queries see which keys",
    look_at="visible: which chunks of keys are before which chunks of queries",
)
def pairs_seen(submission: Submission, ranks: Ranks) -> None:
    every, first, second = [0, 8], [0, 4], [4, 8]
    cases: list[tuple[tuple[int, int, bool, str], Any]] = [
        ((0, 2, False, "zigzag"), [every, every, False]),
        ((1, 1, True, "contiguous"), [every, every, True]),
        ((2, 2, True, "zigzag"), [every, every, True]),
        ((2, 0, True, "contiguous"), [every, every, False]),
        ((0, 1, True, "contiguous"), None),
        ((2, 0, True, "zigzag"), [every, first, False]),
        ((0, 1, True, "zigzag"), [second, every, False]),
    ]
    for (rank, source, causal, layout), wanted in cases:
        run = ranks(1).call(submission.used_by(masked), [Args(rank, source, 8, causal, layout)])
        mask = "causal" if causal else "not causal"
        what = (
            f"rows, columns, diagonal: queries of rank {rank}, keys of rank {source}, 8 tokens each, {mask}, {layout}"
        )
        expect(run.values, what).equals([wanted])


@check(
    points=2,
    todo=4,
    title="blocks weigh as much as their scores say, however large those are",
    look_at="add_block: `exp(block_lse) / (exp(lse) + exp(block_lse))`, without computing exp(lse)",
)
def shares(submission: Submission, ranks: Ranks) -> None:
    # weights 3 and 1, then 4: (3 * 10 + 1 * 20 + 4 * 0) / 8; with a factor exp(500) before each, the same
    for more in (0.0, 500.0, -500.0):
        weights = [torch.tensor([[[float(weight)]]]).log() + more for weight in (3, 1, 4)]
        outs = [torch.full((1, 1, 1, 2), number) for number in (10.0, 20.0, 0.0)]
        run = ranks(1).call(submission.used_by(added), [Args(list(zip(outs, weights, strict=True)))])
        what = f"10, 20 and 0, with lse log(3), log(1) and log(4), {more:+g} each"
        expect(run.values[0][0], f"attention to three blocks: {what}").close_to(
            torch.full((1, 1, 1, 2), 6.25), rel=1e-4
        )
        expect(run.values[0][1], f"lse of three blocks: {what}").close_to(
            torch.full((1, 1, 1), 8.0).log() + more, rel=1e-4
        )


@check(
    points=1, todo=5, title="every token sees all blocks, each as often as it has tokens", look_at="forward: N blocks"
)
def whole(submission: Submission, ranks: Ranks) -> None:
    for world_size in (1, 2, 3):
        means(submission, ranks, world_size, False, "contiguous", "_RingAttention.forward: N blocks, N-1 messages")
    means(submission, ranks, 2, False, "zigzag", "_RingAttention.forward: all rows of `out`")
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
    points=1,
    todo=5,
    title="a token sees itself and those before it",
    look_at="forward: rows and columns that `visible` returns",
)
def causal(submission: Submission, ranks: Ranks) -> None:
    for layout in ("contiguous", "zigzag"):
        for world_size in (2, 3):
            means(
                submission, ranks, world_size, True, layout, f"forward: what `visible` returns, for layout {layout!r}"
            )


@check(
    points=1,
    todo=5,
    title="four heads of queries use two of keys and values",
    look_at="forward: q has H heads, k and v have G; `given.attend` knows which belong together",
)
def grouped(submission: Submission, ranks: Ranks) -> None:
    for layout in ("contiguous", "zigzag"):
        q, k, v = normal(1, 4, 16, 4, seed=10), normal(1, 2, 16, 4, seed=11), normal(1, 2, 16, 4, seed=12)
        run = compared(submission, ranks, [q, k, v], None, layout, world_size=4)
        for rank in range(4):
            what = f"bytes that rank {rank} of 4 sends: k and v of 4 tokens, 2 heads of 4 float32, 3 times"
            expect(run.trace.bytes_sent(rank), what, unit="bytes").equals(3 * 2 * 128)


@check(
    points=1,
    todo=5,
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
    todo=5,
    title="the next block arrives while this one is computed",
    look_at="forward: `given.pass_on` before `given.attend`, `wait()` after it",
)
def overlap(submission: Submission, ranks: Ranks) -> None:
    run, seconds = timed(submission, ranks, 4, "zigzag", 0.8)
    computing, messages = 4 * 2 * SECONDS, 3 * seconds
    for rank in range(4):
        what = (
            f"seconds of rank {rank} forward, with {computing:.3g} s of computing and {messages:.3g} s of messages, of "
            "which half at most is not hidden"
        )
        expect(spans(run, rank)[0], what, unit="seconds").at_most(computing + messages / 2)


@check(
    points=1,
    todo=5,
    title="zigzag ranks have the same work, and masked blocks none",
    look_at="forward: what `visible` leaves out is not computed",
)
def balance(submission: Submission, ranks: Ranks) -> None:
    for layout, wanted in (("zigzag", [8, 8, 8, 8]), ("contiguous", [2, 6, 10, 14])):
        run, _ = timed(submission, ranks, 4, layout, 0.5)
        seen = [pairs_computed(run, rank) for rank in range(4)]
        what = f"pairs of half blocks that each of 4 ranks computes forward, {layout}; those on the diagonal count half"
        expect(seen, what).equals(wanted)


@check(
    points=1,
    todo=5,
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
        # q, k and v; two blocks, of two tensors each; the result, and what a block adds; four temporary ones, and lse.
        # All 8 blocks would be 16, besides q, the result and what a block adds
        expect(run.trace.peak_memory(rank), what, unit="bytes").at_most(14 * tensor)


@check(
    points=2,
    todo=6,
    title="gradients of q, k and v",
    look_at="backward: which rows and columns a part of a gradient belongs to",
)
def gradients(submission: Submission, ranks: Ranks) -> None:
    for world_size, causal, layout, kv_heads in (
        (1, True, "zigzag", 4),
        (2, False, "contiguous", 4),
        (2, True, "contiguous", 2),
        (3, True, "zigzag", 1),
    ):
        tensors = [
            normal(2, heads, 4 * world_size, 4, seed=20 + n) for n, heads in enumerate((4, kv_heads, kv_heads, 4))
        ]
        compared(submission, ranks, tensors[:3], tensors[3], layout, world_size=world_size, causal=causal)


@check(
    points=2,
    todo=6,
    title="backward, blocks and their gradients travel while others are computed",
    look_at="backward: gradients leave after the step, and are waited for in the next one, after computing",
)
def backward_messages(submission: Submission, ranks: Ranks) -> None:
    run, seconds = timed(submission, ranks, 4, "zigzag", 0.8, backward=True)
    # torch counts 2.5 times the FLOPs of forward
    computing = 2.5 * 4 * 2 * SECONDS
    for rank in range(4):
        seen = sent(run, rank, backward=True)
        what = f"bytes that rank {rank} sends backward: k, v and their gradients, 256 bytes each, 3 times"
        hint = "the block's own rank adds its part when the gradients have come home"
        expect(sum(nbytes for _, nbytes in seen), what, look_at=hint, unit="bytes").equals(3 * 4 * 256)
        expect(len({peer for peer, _ in seen}), f"receivers of rank {rank}'s messages, backward").equals(1)
        what = (
            f"seconds of rank {rank} backward, with {computing:.3g} s of computing, three messages of gradients of "
            f"{seconds:.3g} s, the last of which nothing hides, and half of the others' time"
        )
        expect(spans(run, rank)[1], what, unit="seconds").at_most(computing + 2 * seconds)


def sums(ranks: int) -> tuple[list[Tensor], Tensor, float]:
    """Return q, k, v and the result's gradient in bfloat16, and each element that the gradients of k and v have.

    All scores are 0, and the values' mean is 0. So the gradient of each value is the mean over the ranks of a number,
    2,048 on rank 0 and 4 on others: of 8 ranks, parts of 256 and 0.5. That of each key is as large, or its negative.
    """
    tokens = 4 * ranks
    q, k, v, gradient = (torch.zeros(1, 1, tokens, 4) for _ in range(4))
    q[..., 0] = 2.0
    v[..., 0] = torch.tensor([1.0, -1.0]).repeat(tokens // 2)
    gradient[..., 0] = 4.0
    gradient[:, :, : tokens // ranks, 0] = 2048.0
    total = (2048.0 + 4.0 * (ranks - 1)) / ranks
    return [x.bfloat16() for x in (q, k, v)], gradient.bfloat16(), total


def precise(submission: Submission, ranks: Ranks, **how: Any) -> Run:
    """Expect gradients in bfloat16 that are rounded once, after all ranks' parts are added up."""
    world_size = 8
    inputs, gradient, total = sums(world_size)
    run = ranks(world_size).call(
        submission.used_by(trained, attended),
        given(world_size, inputs, "contiguous", gradient, causal=False, **how),
    )
    rounded = torch.tensor(total).bfloat16().item()
    for number, name in ((2, "k"), (3, "v")):
        seen = [sorted({abs(x) for x in value[number][..., 0].flatten().tolist()}) for value in run.values]
        what = (
            f"gradients of {name}, without sign, on each of 8 ranks: 256 + 7 * 0.5 in bfloat16; 256 + 0.5 there is 256"
        )
        expect(seen, what).equals([[rounded]] * world_size)
    return run


@check(
    points=1,
    todo=6,
    title="in bfloat16, gradients of k and v are added up in float32",
    look_at="backward: the dtype of `own_dk`, `own_dv` and of what travels is that of `lse`",
)
def half(submission: Submission, ranks: Ranks) -> None:
    precise(submission, ranks)


@check(
    points=1,
    todo=7,
    title="gather: the same results, from one all-gather",
    look_at="_GatherAttention.forward: `merge_sequence` of the stacked k and v, and its dimension",
)
def gathered(submission: Submission, ranks: Ranks) -> None:
    for world_size, causal, layout, kv_heads in (
        (1, True, "zigzag", 1),
        (2, True, "contiguous", 2),
        (3, False, "zigzag", 2),
        (4, True, "zigzag", 1),
    ):
        tensors = [normal(1, heads, 4 * world_size, 4, seed=60 + n) for n, heads in enumerate((2, kv_heads, kv_heads))]
        how: dict[str, Any] = {"world_size": world_size, "causal": causal, "kind": "gather"}
        run = compared(submission, ranks, tensors, None, layout, **how)
        for rank in range(world_size):
            seen = [(e.operation, e.nbytes) for e in run.trace.collectives(rank)]
            what = f"collectives, with bytes: k and v of 4 tokens, {kv_heads} heads of 4 float32"
            expect(seen, what).equals([("all_gather", 2 * 64 * kv_heads)])


@check(
    points=2,
    todo=8,
    title="gather: gradients, by one more all-gather and one reduce-scatter in float32",
    look_at="_GatherAttention.backward: a piece for each rank, cut like the sequence",
)
def scattered(submission: Submission, ranks: Ranks) -> None:
    for world_size, causal, layout, kv_heads in (
        (1, True, "zigzag", 1),
        (2, False, "contiguous", 2),
        (3, True, "zigzag", 1),
    ):
        tensors = [
            normal(1, heads, 4 * world_size, 4, seed=70 + n) for n, heads in enumerate((2, kv_heads, kv_heads, 2))
        ]
        how: dict[str, Any] = {"world_size": world_size, "causal": causal, "kind": "gather"}
        run = compared(submission, ranks, tensors[:3], tensors[3], layout, **how)
        for rank in range(world_size):
            seen = [e.operation for e in run.trace.collectives(rank)]
            expect(seen, "collectives, forward and backward").equals(["all_gather", "all_gather", "reduce_scatter"])
    run = precise(submission, ranks, kind="gather")
    for rank in range(8):
        seen_bytes = [e.nbytes for e in run.trace.collectives(rank)]
        what = (
            "bytes of the collectives: k and v of 4 tokens with 4 bfloat16, again, and float32 gradients of 32 tokens"
        )
        expect(seen_bytes, what, unit="bytes").equals([64, 64, 1024])


@check(
    points=1,
    todo=9,
    title="Ulysses: the same results, and the same gradients",
    look_at="ulysses_attention: which dimension has heads, which has tokens, and their order",
)
def ulysses(submission: Submission, ranks: Ranks) -> None:
    for world_size, causal, layout, kv_heads in (
        (1, True, "zigzag", 2),
        (2, True, "contiguous", 4),
        (3, False, "zigzag", 3),
        (2, True, "zigzag", 2),
    ):
        heads = (2 * world_size, kv_heads, kv_heads, 2 * world_size)
        tensors = [normal(2, count, 4 * world_size, 4, seed=30 + n) for n, count in enumerate(heads)]
        how: dict[str, Any] = {"world_size": world_size, "causal": causal, "kind": "ulysses"}
        compared(submission, ranks, tensors[:3], tensors[3], layout, **how)


@check(
    points=1,
    todo=9,
    title="Ulysses: fewer heads of keys and values than ranks",
    look_at="ulysses_attention: each head of k and v is needed by N / G neighbouring ranks",
)
def few_heads(submission: Submission, ranks: Ranks) -> None:
    for kv_heads in (2, 1):
        tensors = [normal(1, heads, 16, 4, seed=80 + n) for n, heads in enumerate((8, kv_heads, kv_heads, 8))]
        compared(submission, ranks, tensors[:3], tensors[3], "zigzag", world_size=4, kind="ulysses")


@check(
    points=1,
    todo=9,
    title="Ulysses: two all-to-alls forward, two backward",
    look_at="ulysses_attention: q, k and v are exchanged together",
)
def all_to_alls(submission: Submission, ranks: Ranks) -> None:
    for kv_heads, sent_heads in ((4, 4), (2, 2), (1, 2)):
        tensors = [normal(1, heads, 8, 4, seed=40 + n) for n, heads in enumerate((4, kv_heads, kv_heads, 4))]
        run = compared(submission, ranks, tensors[:3], tensors[3], "zigzag", world_size=2, kind="ulysses")
        there, back = 64 * (4 + 2 * sent_heads), 256
        for rank in range(2):
            seen = [(e.operation, e.nbytes) for e in run.trace.collectives(rank)]
            what = (
                f"collectives, with bytes: 4 heads of q and {sent_heads} each of k and v, 64 bytes a head; the result; "
                "and both gradients"
            )
            expect(seen, what).equals([("all_to_all", nbytes) for nbytes in (there, back, back, there)])
            expect(run.trace.messages_sent(rank), "messages beside them").equals(0)


HINTS = {
    1: [
        "On paper: 12 tokens on 3 ranks. contiguous: 0-3, 4-7, 8-11. zigzag: six chunks of two; which two are rank "
        "0's, which are rank 2's?",
        "zigzag: `size` is the length divided by `2 * ranks`; a rank's chunks have the numbers `rank` and `2 * "
        "ranks - 1 - rank`, and begin at number times `size`.",
        "`first = whole.narrow(dim, rank * size, size)`, `second = whole.narrow(dim, (2 * ranks - 1 - rank) * size, "
        "size)`, then `torch.cat([first, second], dim)`.",
    ],
    2: [
        "Write the zigzag parts of three ranks under one another: 0 5, 1 4, 2 3. In which order do you read the chunks "
        "to get 0..5?",
        "The first halves of the parts are in order; the second halves follow in the opposite order.",
        "Collect `first_halves` and `second_halves` with `part.chunk(2, dim)`; `torch.cat(first_halves + "
        "second_halves[::-1], dim)`.",
    ],
    3: [
        "Two ranks, zigzag: rank 0 has chunks 0 and 3, rank 1 has 1 and 2. Which chunks of keys does each chunk of "
        "queries see, if a chunk sees those with lower numbers?",
        "A block from a lower rank: in zigzag all queries see its first half, and none its second one. From a higher "
        "rank: only the second half of the queries sees it, and all of it. In contiguous all see all, or none any.",
        "`(every, every, False)` if not causal; `(every, every, True)` if `source == rank`; zigzag `(every, first, "
        "False)` or `(second, every, False)`; contiguous `(every, every, False)` or None.",
    ],
    4: [
        "Two blocks: their scores' exponentials add up to 3 and to 1; the outputs are 10 and 20. What is the output of "
        "both?",
        "(3 * 10 + 1 * 20) / 4: the new block's share is exp(block_lse) / (exp(lse) + exp(block_lse)). Divide both by "
        "exp(block_lse): 1 / (1 + exp(lse - block_lse)), a sigmoid. `lerp_` goes from out to block_out by this share.",
        "`share = torch.sigmoid(block_lse - lse)`; `out.lerp_(block_out, share.unsqueeze(-1))`; "
        "`lse.copy_(torch.logaddexp(lse, block_lse))`.",
    ],
    5: [
        "Which block does rank r have after s messages, if all send to the right? In which step is there nothing to "
        "pass on? And what are `out` and `lse` after step 0?",
        "After s messages it is that of rank `(rank - s) % ranks`. Step 0 is the diagonal: all rows are computed, so "
        "its `out, lse` are where later blocks are added, in rows that `visible` returns. Start `given.pass_on([k, v], "
        "group)` before computing, and wait after it; in the last step there is nothing to pass on.",
        "`pair = visible(rank, (rank - step) % ranks, q.shape[2], causal, layout)`; if it is not None, `block = "
        "given.attend(q[:, :, rows], k[:, :, columns], v[:, :, columns], diagonal)`; in step 0 `out, lse = block`, "
        "later `add_block(out[:, :, rows], lse[:, :, rows], *block)`; at last `k, v = arriving.wait()`.",
    ],
    6: [
        "The loop is that of `forward`: the same blocks pass by. Each step gives a part of dq, which stays, and "
        "parts of the block's dk and dv, which belong to another rank. Who adds to a block's gradients first, if "
        "its own rank is the last one? How many messages is that?",
        "In step 0 the parts are this rank's own: keep them in `own_dk` and `own_dv`. In step s >= 1, after "
        "computing, wait for the gradients that the rank before has sent in its step s - 1 (none in step 1), add "
        "them, and pass the sum on. After the last step the gradients of your own block arrive: add them to "
        "`own_dk` and `own_dv`. All of them are zeros of `lse.dtype` to begin with.",
        "`dk, dv = (own_dk, own_dv) if step == 0 else (torch.zeros_like(own_dk), torch.zeros_like(own_dv))`; "
        "`given.add_to([dq[:, :, rows], dk[:, :, columns], dv[:, :, columns]], parts)`; `if coming is not None: "
        "given.add_to([dk, dv], coming.wait())`; `if step > 0: coming = given.pass_on([dk, dv], group)`. At the end "
        "`given.add_to([own_dk, own_dv], coming.wait())`.",
    ],
    7: [
        "`torch.stack([k, v])` has one dimension more in front. In which one are the tokens now, and what does "
        "`merge_sequence` return?",
        "`keys, values = merge_sequence(stacked, group, layout, dim=3)` have the tokens of the whole sequence, in "
        "order. For each of `pairs`, rows are of q, columns of keys and values; `lse` of no block is minus infinity, "
        "so `add_block` takes the first one whole.",
        "`block = given.attend(q[:, :, rows], keys[:, :, columns], values[:, :, columns], diagonal)`; "
        "`add_block(out[:, :, rows], lse[:, :, rows], *block)`.",
    ],
    8: [
        "Your queries give gradients to keys of all ranks. What shape has the gradient of `keys`, and whose part of it "
        "is whose?",
        "`both = torch.zeros(2, *keys.shape, dtype=lse.dtype, device=keys.device)` is of dk and dv. After all pairs, "
        "piece r is `_part(both, r, ranks, layout, dim=3).contiguous()`; the reduce-scatter adds up the pieces that "
        "all ranks have for this one, in the dtype of the pieces.",
        "`parts = given.attend_backward(grad[:, :, rows], q[:, :, rows], keys[:, :, columns], values[:, :, columns], "
        "out[:, :, rows], lse[:, :, rows], diagonal)`; `given.add_to([dq[:, :, rows], dk[:, :, columns], dv[:, :, "
        "columns]], parts)`; `own = torch.empty_like(pieces[rank])`; `dist.reduce_scatter(own, pieces, group=group)`.",
    ],
    9: [
        "4 heads, 8 tokens, 2 ranks: before, each rank has 4 heads of 4 tokens; in between 2 heads of 8 tokens; "
        "after it 4 heads of 4 tokens again. What goes to rank 1 the first time? And the second time?",
        "`_AllToAll` takes pieces in dimension 0, one for each rank. First time: the heads of q, k and v are cut, and "
        "piece r has the r-th part of each, joined; what arrives are all ranks' tokens of your heads: `_whole` puts "
        "them in order. Second time: the tokens are cut, with `_part` for each rank; what arrives are all heads of "
        "your tokens. If G is less than N, repeat each head of k and v N / G times first.",
        "`pieces = torch.stack([torch.cat([cut_q[r], cut_k[r], cut_v[r]], dim=1) for r in range(ranks)])`; `tokens = "
        "_whole(apply_in_group(_AllToAll, pieces, group).unbind(), layout, dim=2)`; `tokens.split(sizes, dim=1)`; "
        "attention; pieces of `_part(out, r, ranks, layout, dim=2)`, stacked; `torch.cat(apply_in_group(_AllToAll, "
        "pieces, group).unbind(), dim=1)`.",
    ],
}
