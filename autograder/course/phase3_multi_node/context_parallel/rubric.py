"""Hidden rubric of context_parallel: 25 points, 12 for values and gradients, 13 for messages, time, work and memory.

A rank has its own part of the sequence; the judge computes attention over the whole of it, in float64. Computing takes
time here in proportion to its FLOPs, as the judge charges them, so that the trace shows what is computed, by whom, and
which messages are under way meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from autograder.rubric_support.messages import own_messages
from labkit.checks import Alteration, Args, Draw, Ranks, Submission, check, expect, group_of, is_close, work
from labkit.clusters import Run
from labkit.course.phase3_multi_node.context_parallel.scenarios import attended, marks, one_process, parts, spans
from labkit.hardware import Link
from labkit.trace import Kind
from labkit.units import exact_size

PAIR = 0.01
"""Seconds of attention between two half blocks, forward."""
BACKWARD = 2.5
"""FLOPs of backward over those of forward, as torch counts them."""
HEADERS = 1.1
"""Allowance for TCP's own bytes."""
NOISE = 12 << 20
"""Allowance for bytes that the kernel counts for each rank beside its tensors and what torch takes."""
CLOSE = {"float32": 1e-5, "float64": 1e-11, "bfloat16": 0.03}
FORBIDDEN = {
    "torch.distributed.tensor.experimental.context_parallel",
    "torch.distributed.all_reduce",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def cut_and_joined(x: Tensor, layout: str, dim: int, group: Any = None) -> Any:
    """On a rank: return its part of x, and what merging all parts gives."""
    from labkit.exercises import context_parallel

    part = context_parallel.split_sequence(x, group, layout, dim).contiguous()
    return part, context_parallel.merge_sequence(part + 1, group, layout, dim).contiguous()


def attention(
    q: Tensor, k: Tensor, v: Tensor, gradient: Tensor | None, *how: Any, strided: bool = False, **options: Any
) -> list[Tensor]:
    """On a rank: attend, forward and, with a gradient, backward. Returns the result and the gradients of q, k and v.

    strided: neither the inputs nor the result's gradient are contiguous.
    """
    inputs = [x.mT.contiguous().mT if strided else x for x in (q, k, v)]
    for x in inputs:
        x.requires_grad_(gradient is not None)
    if gradient is not None and strided:
        gradient = gradient.mT.contiguous().mT
    return attended(inputs, gradient, *how, **options)


def misused(cases: list[str]) -> list[str]:
    """On a rank: return the error for each wrong argument."""
    import torch

    from labkit.exercises import context_parallel as cp

    x, six = torch.ones(1, 3, 4, 2), torch.ones(1, 6, 4, 2)
    tried = {
        "layout": lambda: cp.ring_attention(x, x, x, None, True, "spiral"),
        "k": lambda: cp.ring_attention(x, x[:, :2], x[:, :2], None, True, "zigzag"),
        "k ": lambda: cp.gather_attention(x, x[:, :, :2], x[:, :, :2], None, True, "zigzag"),
        "k  ": lambda: cp.ulysses_attention(six, six[:, :3], six[:, :3], None, True, "zigzag"),
        "v": lambda: cp.ulysses_attention(x, x, x.double(), None, True, "zigzag"),
        "q": lambda: cp.ulysses_attention(x, x, x, None, True, "contiguous"),
        "q ": lambda: cp.ring_attention(x[:, :, :3], x[:, :, :3], x[:, :, :3], None, True, "zigzag"),
        "x": lambda: cp.split_sequence(torch.ones(2, 6), None, "zigzag", 1),
        "dim": lambda: cp.split_sequence(torch.ones(2, 6), None, "contiguous", 2),
    }
    found = []
    for case in cases:
        try:
            tried[case]()
            found.append("nothing")
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


# What must come out ---------------------------------------------------------------------------------------------------


def normal(draw: Draw, *shape: int, dtype: str = "float32") -> Tensor:
    generator = torch.Generator().manual_seed(draw.getrandbits(62))
    return torch.randn(shape, generator=generator).to(getattr(torch, dtype))


class Whole:
    """Attention in one process: q, k, v and the result's gradient; the result and the gradients of q, k and v.

    kv_heads: of k and v; all others have as many as `shape`, which is the default.
    """

    def __init__(
        self,
        draw: Draw,
        shape: Sequence[int],
        causal: bool,
        layout: str,
        dtype: str = "float32",
        scale: float = 1.0,
        kv_heads: int = 0,
    ) -> None:
        self.shape, self.causal, self.layout, self.dtype = tuple(shape), causal, layout, dtype
        self.kv_heads = kv_heads or shape[1]
        heads = (shape[1], self.kv_heads, self.kv_heads, shape[1])
        self.tensors = [normal(draw, shape[0], count, *shape[2:], dtype=dtype) for count in heads]
        self.tensors[0] *= scale
        *inputs, gradient = self.tensors
        self.wanted = [x.to(self.tensors[0].dtype) for x in one_process(inputs, gradient, causal)]

    def given(self, ranks: int, backward: bool = True, **options: Any) -> list[Args]:
        """Return the arguments of each rank."""
        cut = [parts(x, ranks, self.layout) for x in self.tensors]
        return [
            Args(*(x[r] for x in cut[:3]), cut[3][r] if backward else None, self.causal, self.layout, **options)
            for r in range(ranks)
        ]

    def compare(self, values: Sequence[Any], backward: bool = True, about: str = "", rel: float = 0.0) -> None:
        """Expect results, and gradients, of all ranks, as close as the dtype allows, or `rel`."""
        mask = "causal" if self.causal else "not causal"
        text = f"{about}{self.shape} queries of {self.dtype}, {self.kv_heads} heads of k and v, {mask}, {self.layout}, "
        text += f"on {len(values)} ranks"
        names = ["result", *(f"gradient of {name}" for name in "qkv" if backward)]
        for number, (name, tensor) in enumerate(zip(names, self.wanted, strict=False)):
            seen = [value[number] if isinstance(value, list) and number < len(value) else None for value in values]
            wanted = parts(tensor, len(values), self.layout)
            expect(seen, f"{name} of {text}").close_to(wanted, rel=rel or CLOSE[self.dtype])


def pairs(run: Run, rank: int) -> list[int]:
    """Return the pairs of half blocks that a rank has computed forward and backward."""
    starts = [e.start for e in run.trace.of(rank, Kind.COMPUTE) if e.operation == "pair"]
    return [sum(begin <= start < end for start in starts) for begin, end in pairwise(marks(run, rank))]


def sent(run: Run, rank: int) -> list[list[tuple[int | None, int]]]:
    """Return receivers and bytes of a rank's messages, forward and backward."""
    events = run.trace.of(rank, Kind.SEND)
    return [[(e.peer, e.nbytes) for e in events if begin <= e.start < end] for begin, end in pairwise(marks(run, rank))]


def charged(
    submission: Submission, ranks: Ranks, draw: Draw, world_size: int, layout: str, share: float, backward: bool = False
) -> tuple[Run, float, int]:
    """Attend where computing takes time. `share`: seconds of a message of k and v over those of two pairs, a step's.

    Returns the run, and seconds and bytes of a message.
    """
    tokens, width, kv_heads = 2 * draw.randrange(6, 12), draw.choice([4, 8]), 1
    whole = Whole(draw, (1, 2, tokens * world_size, width), True, layout, kv_heads=kv_heads)
    seconds, nbytes = share * 2 * PAIR, 2 * kv_heads * tokens * width * 4
    link = Link("slow", nbytes / seconds / 1e9, 1e-6, "a block takes a part of a step's time")
    options: dict[str, Any] = {
        "mark": work("mark", 1e-6),
        "pair": work("pair", PAIR),
        "flops": 2 * 4.0 * (tokens // 2) ** 2 * width,
    }
    run = ranks(world_size, inter_node=link).call(
        submission.used_by(attention, attended), whole.given(world_size, backward, **options)
    )
    whole.compare(run.values, backward)
    return run, seconds, nbytes


# Layouts --------------------------------------------------------------------------------------------------------------


@check(points=1, todo=2, title="parts of a sequence, and the sequence again", look_at="_part and _whole")
def layouts(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for layout in ("zigzag", "contiguous"):
        for dim in (0, 1, -1):
            world_size = draw.choice([1, 2, 3, 5])
            shape = [3, 2, 4]
            shape[dim] = 2 * world_size * draw.randrange(1, 4)
            x = normal(draw, *shape)
            run = ranks(world_size).call(submission.used_by(cut_and_joined), [Args(x, layout, dim)] * world_size)
            text = f"{tuple(shape)} in dimension {dim}, {layout}, on {world_size} ranks"
            expect([value[0] for value in run.values], f"parts of {text}").equals(parts(x, world_size, layout, dim))
            expect([value[1] for value in run.values], f"merged {text}").equals([x + 1] * world_size)


# Ring attention, forward ----------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=5,
    title="results of full attention, causal or not, in both layouts, with as many heads of k and v or fewer",
    look_at="visible, and how a block is added",
)
def values(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes = [*draw.sample([2, 3, 4, 5, 6], 3), 1]
    for number, (causal, layout) in enumerate(
        [(True, "zigzag"), (True, "contiguous"), (False, "zigzag"), (False, "contiguous")]
    ):
        world_size = sizes[number]
        kv_heads, times = draw.choice([1, 2]), draw.choice([1, 3])
        shape = (draw.choice([1, 2]), kv_heads * times, 2 * world_size * draw.randrange(1, 5), draw.choice([4, 10]))
        whole = Whole(draw, shape, causal, layout, draw.choice(["float32", "float64"]), kv_heads=kv_heads)
        run = ranks(world_size).call(
            submission.used_by(attention, attended), whole.given(world_size, backward=False, strided=number % 2 == 0)
        )
        whole.compare(run.values, backward=False)
    whole = Whole(draw, (1, 4, 8 * 3, 8), True, "zigzag", "bfloat16", kv_heads=draw.choice([1, 2]))
    run = ranks(3).call(submission.used_by(attention, attended), whole.given(3, backward=False))
    whole.compare(run.values, backward=False)


@check(points=1, todo=5, title="scores of hundreds", look_at="add_block: numbers too large for a float")
def scores(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for layout in ("zigzag", "contiguous"):
        world_size = draw.choice([2, 3, 4])
        whole = Whole(draw, (1, 2, 8 * world_size, 8), layout == "zigzag", layout, scale=draw.uniform(150, 400))
        run = ranks(world_size).call(submission.used_by(attention, attended), whole.given(world_size, backward=False))
        # a float32 of 1,000 is exact to 0.00006, and so is the logarithm of a weight
        whole.compare(run.values, backward=False, about="with large scores, ", rel=2e-3)


@check(
    points=2,
    todo=5,
    title="k and v go N-1 times to one neighbour, and results are made of them",
    look_at="what leaves a rank in each step, and for whom",
)
def ring(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size, causal in ((draw.choice([3, 4]), False), (draw.choice([5, 6]), True)):
        altered = draw.randrange(world_size)
        whole = Whole(draw, (2, 2, 2 * world_size * draw.randrange(2, 5), 8), causal, "zigzag", kv_heads=1)
        options: dict[str, Any] = {"backward": False, "mark": work("mark", 1e-6)}
        some = ranks(world_size) if causal else ranks(world_size, alteration=Alteration(altered))
        run = some.call(submission.used_by(attention, attended), whole.given(world_size, **options))
        if causal:
            whole.compare(run.values, backward=False)
        else:
            made_of_messages(run, whole, altered)
        own_messages(run)
        to_one_neighbour(run, world_size, 0)
        block = 2 * 4 * whole.tensors[1].numel() // world_size
        for rank in range(world_size):
            nbytes = sum(nbytes for _, nbytes in sent(run, rank)[0])
            what = f"bytes sent by rank {rank} of {world_size}, with blocks of {exact_size(block)}"
            expect(nbytes, what, unit="bytes").equals((world_size - 1) * block)


def to_one_neighbour(run: Run, world_size: int, number: int) -> None:
    """Expect messages to go around in one direction, in pass `number`."""
    seen = [{peer for peer, _ in sent(run, rank)[number]} for rank in range(world_size)]
    to_the_right, to_the_left = ([{(rank + way) % world_size} for rank in range(world_size)] for way in (1, -1))
    expect(seen, "ranks that each rank sends to").is_one_of(to_the_right, to_the_left)


def made_of_messages(run: Run, whole: Whole, altered: int) -> None:
    """Expect results without a mask where the first message of rank `altered`, k or v or both, is larger by 1."""
    world_size, fits = len(run.values), []
    for changed in ((1,), (2,), (1, 2)):
        tensors = [parts(x, world_size, whole.layout) for x in whole.tensors[:3]]
        for number in changed:
            tensors[number][altered] = tensors[number][altered] + 1
        _, k, v = (torch.cat(x, 2).double() for x in tensors)
        fits.append(
            all(
                is_close(
                    run.values[rank][0],
                    F.scaled_dot_product_attention(q.double(), k, v, enable_gqa=True).float(),
                    CLOSE["float32"],
                )
                for rank, q in enumerate(tensors[0])
                if rank != altered
            )
        )
    seen = "results that do not follow from the messages"
    expect(any(fits), "results computed from a block that was altered on its way").holds(seen)


@check(points=1, todo=5, title="zigzag: equal work, and none for what is masked", look_at="visible")
def balance(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for layout in ("zigzag", "contiguous"):
        world_size = draw.choice([3, 4])
        run, *_ = charged(submission, ranks, draw, world_size, layout, 0.5)
        for rank in range(world_size):
            # the block on the diagonal counts half; a rank may compute all of it and mask it
            least = 2 * world_size if layout == "zigzag" else 2 + 4 * rank
            what = f"pairs of half blocks computed by rank {rank} of {world_size}, {layout}"
            expect(pairs(run, rank)[0], what).at_least(least - 1)
            expect(pairs(run, rank)[0], what).at_most(least + 3)


@check(
    points=2,
    todo=5,
    title="messages travel while blocks are computed",
    look_at="forward: when messages begin, and when they are waited for",
)
def overlap(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size, share in ((draw.choice([3, 4, 5]), draw.uniform(0.6, 0.9)), (3, draw.uniform(3.0, 3.5))):
        run, message, _ = charged(submission, ranks, draw, world_size, "zigzag", share)
        computing = PAIR * max(pairs(run, rank)[0] for rank in range(world_size))
        # a network that is slower than computing: N-1 messages, and the last block after them
        messages = (world_size - 1) * message
        least, serial = max(computing, messages + computing / world_size), computing + messages
        for rank in range(world_size):
            what = (
                f"seconds of rank {rank} of {world_size} forward: {least:.3g} if all that can be is hidden, "
                f"{serial:.3g} if nothing is; halfway"
            )
            expect(spans(run, rank)[0], what, unit="seconds").at_most((least + serial) / 2)


# Ring attention, backward ---------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=6,
    title="gradients of full attention, causal or not, in both layouts",
    look_at="backward: `out` and `lse` of whole rows, and which rank a block's gradients belong to",
)
def gradients(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes = [*draw.sample([2, 3, 4, 5], 3), 1]
    for number, (causal, layout) in enumerate(
        [(True, "zigzag"), (True, "contiguous"), (False, "zigzag"), (False, "contiguous")]
    ):
        world_size = sizes[number]
        kv_heads, times = draw.choice([1, 2]), draw.choice([1, 3])
        shape = (draw.choice([1, 2]), kv_heads * times, 2 * world_size * draw.randrange(1, 5), draw.choice([4, 10]))
        whole = Whole(draw, shape, causal, layout, draw.choice(["float32", "float64"]), kv_heads=kv_heads)
        given = whole.given(world_size, strided=number % 2 == 1)
        whole.compare(ranks(world_size).call(submission.used_by(attention, attended), given).values)


@check(
    points=1,
    todo=6,
    title="groups of some of the ranks",
    look_at="`group` in every message",
)
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    order = draw.sample(range(5), 5)
    members = [sorted(order[:2]), sorted(order[2:])]
    given: list[Any] = [None] * 5
    wholes = [Whole(draw, (1, 2, 4 * len(some), 4), True, "zigzag") for some in members]
    for some, whole in zip(members, wholes, strict=True):
        for rank, arguments in zip(some, whole.given(len(some), group=group_of(some)), strict=True):
            given[rank] = arguments
    run = ranks(5).call(submission.used_by(attention, attended), given)
    for some, whole in zip(members, wholes, strict=True):
        whole.compare([run.values[rank] for rank in some], about=f"in the group {some}, ")


@check(
    points=2,
    todo=6,
    title="backward: blocks and gradients go N-1 times to one neighbour, while others are computed",
    look_at="backward: which rank begins with a block's gradients, and when they are waited for",
)
def backward_ring(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([3, 4, 5])
    share = draw.uniform(0.6, 0.9)
    run, message, block = charged(submission, ranks, draw, world_size, "zigzag", share, backward=True)
    own_messages(run)
    to_one_neighbour(run, world_size, 1)
    for rank in range(world_size):
        nbytes = sum(nbytes for _, nbytes in sent(run, rank)[1])
        what = f"bytes sent by rank {rank} of {world_size} backward, where k and v together have {block:,}"
        expect(nbytes, what, unit="bytes").at_most(2 * (world_size - 1) * block)
        computing = PAIR * max(pairs(run, rank)[1] for rank in range(world_size))
        # gradients of the last block arrive when all is computed
        what = f"pairs of half blocks computed by rank {rank} of {world_size} backward, in units of forward"
        expect(pairs(run, rank)[1], what).at_most(BACKWARD * (2 * world_size + 2) + 1)
        least, serial = computing + message, computing + (world_size - 1) * message
        what = (
            f"seconds of rank {rank} of {world_size} backward: {least:.3g} if all gradients but the last are hidden, "
            f"{serial:.3g} if none are; halfway"
        )
        expect(spans(run, rank)[1], what, unit="seconds").at_most((least + serial) / 2)


@check(
    points=2,
    todo=6,
    title="no more than two blocks beside a rank's own, and no scores",
    look_at="what is kept from one step to the next, and saved for backward",
    needs={"memory"},
)
def memory(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, tokens, width = 6, 256, draw.choice([56, 64])
    whole = Whole(draw, (24, 1, world_size * tokens, width), True, "zigzag")
    run, nbytes = ranks(world_size, account=True).measured(
        submission.used_by(attention, attended), whole.given(world_size)
    )
    whole.compare(run.values)
    own_messages(run)
    tensor = 4 * whole.tensors[0].numel() // world_size
    small = Whole(draw, (2, 1, world_size * tokens, width), True, "zigzag")
    forward = ranks(world_size, account=True).call(
        submission.used_by(attention, attended), small.given(world_size, backward=False)
    )
    small.compare(forward.values, backward=False)
    for rank in range(world_size):
        # q, k, v, two blocks, and the result, in all 8; a block's part of it, and temporary tensors of an update that
        # is not in place; all blocks together would be 10, besides q, k, v and the result
        for one, size, limit, name in ((forward, tensor // 12, 12.5, "forward"), (run, tensor, 23, "backward")):
            text = f"peak bytes on rank {rank} of {world_size}, {name}, where q, k, v and the result have {size:,} each"
            expect(one.trace.peak_memory(rank), text, unit="bytes").at_most(limit * size)
    text = f"bytes that a rank holds at most, backward, by the kernel's count, with tensors of {exact_size(tensor)}"
    expect(nbytes / world_size - NOISE, text, unit="bytes").at_most(20 * tensor)


def constants(draw: Draw, kind: str, world_size: int) -> tuple[list[Args], float]:
    """Return arguments in bfloat16 for each rank, and the size of each element of the gradients of k and v.

    All scores are 0, and the values' mean is 0, so a rank's part of these gradients is one number: large on one rank,
    and on others too small for a sum in bfloat16, though not all together. All parts are exact.
    """
    tokens, width, large = 4, 4, draw.randrange(world_size)
    small, sign = 2.0 ** draw.randrange(-2, 2), draw.choice([-1.0, 1.0])
    numbers = [256.0 * small * 2 if rank == large else small for rank in range(world_size)]
    arguments = []
    for number in numbers:
        q, k, v, gradient = (torch.zeros(1, 1, tokens, width) for _ in range(4))
        q[..., 0] = 2.0
        v[..., 0] = torch.tensor([1.0, -1.0] * (tokens // 2))
        gradient[..., 0] = sign * number * world_size
        tensors = [x.bfloat16() for x in (q, k, v, gradient)]
        arguments.append(Args(*tensors, False, "contiguous", kind=kind))
    return arguments, sum(numbers)


def rounded_once(submission: Submission, ranks: Ranks, draw: Draw, kind: str) -> Run:
    """Expect gradients in bfloat16 that are rounded once, of the sum of all ranks' parts."""
    world_size = 8
    arguments, total = constants(draw, kind, world_size)
    run = ranks(world_size).call(submission.used_by(attention, attended), arguments)
    wanted = torch.tensor(total).bfloat16().item()
    for number, name in ((2, "k"), (3, "v")):
        seen = [sorted({abs(x) for x in value[number][..., 0].flatten().tolist()}) for value in run.values]
        what = f"{kind}_attention: gradients of {name} in bfloat16 without sign, whose sum over 8 ranks is {total:g}"
        expect(seen, what).equals([[wanted]] * world_size)
    return run


@check(
    points=1,
    todo=6,
    title="in bfloat16, gradients of k and v are added up in float32",
    look_at="backward: the dtype of sums and messages",
)
def bfloat16(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    rounded_once(submission, ranks, draw, "ring")
    whole = Whole(draw, (1, 4, 8 * 3, 8), True, "zigzag", "bfloat16", kv_heads=draw.choice([1, 2, 4]))
    run = ranks(3).call(submission.used_by(attention, attended), whole.given(3))
    whole.compare(run.values)


# Gather ---------------------------------------------------------------------------------------------------------------


@check(
    points=2,
    todo=8,
    title="gather: results and gradients of full attention",
    look_at="_GatherAttention: which rows and columns, and whose gradients each piece has",
)
def gather(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes = [*draw.sample([2, 3, 4, 5], 3), 1]
    for number, (causal, layout) in enumerate(
        [(True, "zigzag"), (True, "contiguous"), (False, "zigzag"), (False, "contiguous")]
    ):
        world_size, kv_heads = sizes[number], draw.choice([1, 2])
        shape = (draw.choice([1, 2]), kv_heads * draw.choice([1, 3]), 2 * world_size * draw.randrange(1, 5), 4)
        whole = Whole(draw, shape, causal, layout, draw.choice(["float32", "float64"]), kv_heads=kv_heads)
        given = whole.given(world_size, kind="gather", strided=number % 2 == 1)
        run = ranks(world_size).call(submission.used_by(attention, attended), given)
        whole.compare(run.values, about="gather_attention of ")


@check(
    points=1,
    todo=8,
    title="gather: two all-gathers of k and v, one reduce-scatter in float32, and equal work",
    look_at="_GatherAttention: what is gathered, and the dtype of the pieces",
)
def gather_exchanges(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, tokens = draw.choice([3, 4]), 2 * draw.randrange(4, 8)
    whole = Whole(draw, (1, 4, tokens * world_size, 8), True, "zigzag", kv_heads=draw.choice([1, 2]))
    options: dict[str, Any] = {
        "mark": work("mark", 1e-6),
        "pair": work("pair", PAIR),
        "flops": 4 * 4.0 * (tokens // 2) ** 2 * 8,
        "kind": "gather",
    }
    run = ranks(world_size).call(submission.used_by(attention, attended), whole.given(world_size, **options))
    whole.compare(run.values, about="gather_attention of ")
    both = 2 * 4 * whole.tensors[1].numel() // world_size
    for rank in range(world_size):
        seen = [(e.operation, e.nbytes) for e in run.trace.collectives(rank)]
        wanted = [("all_gather", both), ("all_gather", both), ("reduce_scatter", both * world_size)]
        expect(seen, "collectives, with bytes: k and v, twice, and the gradients of all").equals(wanted)
        expect(run.trace.messages_sent(rank), "messages beside them").equals(0)
        what = f"pairs of half blocks computed by rank {rank} of {world_size}, zigzag"
        # the chunks on the diagonal count half each; a rank may compute all of them and mask them
        expect(pairs(run, rank)[0], what).at_least(2 * world_size - 1)
        expect(pairs(run, rank)[0], what).at_most(2 * world_size + 3)
    half = rounded_once(submission, ranks, draw, "gather")
    for rank in range(8):
        sizes = [e.nbytes for e in half.trace.collectives(rank)]
        what = "bytes of collectives in bfloat16: k and v, twice, and float32 gradients"
        expect(sizes, what, unit="bytes").equals([64, 64, 1024])


# Ulysses --------------------------------------------------------------------------------------------------------------


@check(
    points=1,
    todo=9,
    title="Ulysses: results and gradients of full attention",
    look_at="ulysses_attention: which head and which token each piece has",
)
def ulysses(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    sizes = draw.sample([2, 3, 4], 3)
    for number, (causal, layout) in enumerate([(True, "zigzag"), (False, "zigzag"), (True, "contiguous")]):
        world_size = sizes[number]
        shape = (2, world_size * 2, 2 * world_size * draw.randrange(1, 4), 4)
        kv_heads = world_size * draw.choice([1, 2])
        whole = Whole(draw, shape, causal, layout, draw.choice(["float32", "float64"]), kv_heads=kv_heads)
        given = whole.given(world_size, kind="ulysses", strided=number == 0)
        run = ranks(world_size).call(submission.used_by(attention, attended), given)
        whole.compare(run.values, about="ulysses_attention of ")


@check(
    points=1,
    todo=9,
    title="Ulysses: fewer heads of k and v than ranks",
    look_at="ulysses_attention: which ranks need the same head of k and v",
)
def few_heads(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = [(4, draw.choice([1, 2]), "contiguous"), (6, draw.choice([2, 3]), "zigzag")]
    for world_size, kv_heads, layout in cases:
        heads = world_size * draw.choice([1, 2])
        whole = Whole(draw, (1, heads, 4 * world_size, 4), True, layout, kv_heads=kv_heads)
        given = whole.given(world_size, kind="ulysses")
        run = ranks(world_size).call(submission.used_by(attention, attended), given)
        whole.compare(run.values, about="ulysses_attention of ")


@check(
    points=1,
    todo=9,
    title="Ulysses: four exchanges, equal work",
    look_at="what is exchanged together, and how many heads a rank attends with",
)
def exchanges(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, tokens = draw.choice([2, 4]), 2 * draw.randrange(2, 6)
    kv_heads = draw.choice([1, world_size, 2 * world_size])
    whole = Whole(draw, (1, 2 * world_size, tokens * world_size, 8), False, "zigzag", kv_heads=kv_heads)
    flops = 4.0 * 2 * world_size * tokens**2 * 8
    options: dict[str, Any] = {
        "mark": work("mark", 1e-6),
        "pair": work("pair", PAIR),
        "flops": flops,
        "kind": "ulysses",
    }
    run = ranks(world_size).call(submission.used_by(attention, attended), whole.given(world_size, **options))
    whole.compare(run.values, about="ulysses_attention of ")
    head = 4 * tokens * 8
    there, back = (2 * world_size + 2 * max(kv_heads, world_size)) * head, 2 * world_size * head
    for rank in range(world_size):
        seen = [(e.operation, e.nbytes) for e in run.trace.collectives(rank)]
        wanted = [("all_to_all", nbytes) for nbytes in (there, back, back, there)]
        expect(seen, "collectives, with bytes: q, k and v, the result, and their gradients").equals(wanted)
        expect(run.trace.messages_sent(rank), "messages beside them").equals(0)
        expect(pairs(run, rank)[0], "parts of the work, of which each rank has as many").equals(world_size)


# For both -------------------------------------------------------------------------------------------------------------


@check(points=1, todo=9, title="bad arguments raise ValueError", look_at="the given lines at the beginning must stay")
def arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    # who does nothing raises nothing either
    whole = Whole(draw, (1, 2, 8, 4), True, "zigzag")
    whole.compare(ranks(2).call(submission.used_by(attention, attended), whole.given(2, kind="ulysses")).values)
    cases = ["layout", "k", "k ", "k  ", "v", "q", "q ", "x", "dim"]
    run = ranks(2).call(submission.used_by(misused), [Args(cases)] * 2)
    for value in run.values:
        for case, seen in zip(cases, value, strict=True):
            expect(seen.startswith(f"ValueError: {case.strip()}"), f"ValueError that begins with {case}").holds(seen)
    expect(len(run.trace.collectives()), "collectives before an error").equals(0)


@check(
    points=1,
    todo=9,
    title="real processes: six tensors N-1 times on the wire",
    look_at="what travels beside the blocks",
    needs={"network"},
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = 3
    whole = Whole(draw, (8, 4, world_size * 2 * draw.randrange(30, 40), 32), True, "zigzag", kv_heads=2)
    run = ranks.processes(world_size).call(submission.used_by(attention, attended), whole.given(world_size))
    whole.compare(run.values)
    least = (world_size - 1) * 6 * 4 * whole.tensors[1].numel()
    what = "bytes that all ranks sent, by the kernel"
    expect(run.bytes_on_the_wire, what, unit="bytes").at_most(HEADERS * least)
