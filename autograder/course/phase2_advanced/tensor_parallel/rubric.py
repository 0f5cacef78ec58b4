"""Hidden rubric of tensor_parallel: 25 points, 18 for values and gradients and 7 for communication and memory.

Each rank gets its own version of a whole layer, correct only in that rank's part: using more of it gives wrong values.
So no rank can compute alone what it should get from the others.
The ranks themselves report what they keep; the kernel's count of the same run confirms it where parts of other ranks
take `HOARD` or more. The width of a block does not reveal whether a check measures memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, transposed, work
from labkit.clusters import Run
from labkit.course.phase2_advanced.tensor_parallel.scenarios import crossing, losses, part, whole_loss
from labkit.models.gpt import Block, GPTConfig
from labkit.trace import Event, Kind

CLOSE = 1e-4
"""Tolerance for float32; sums over ranks may come in any order."""
HOARD = 32 << 20
"""Bytes that each rank must not keep, where memory is measured."""
NOISE = 10 << 20
"""Allowance for bytes that the kernel counts for each rank beside its tensors and what torch takes."""
WIDE = (144, 192, 240)
"""Widths of a block where memory is measured; elsewhere it is as wide, or less."""
FORBIDDEN = {
    "torch.distributed.tensor.DTensor",
    "torch.distributed.tensor.distribute_tensor",
    "torch.distributed.tensor.distribute_module",
    "torch.distributed.tensor.parallel.parallelize_module",
    "torch.distributed.tensor.parallel.loss_parallel",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""


# What runs on the ranks -----------------------------------------------------------------------------------------------


def linear(
    cls: str, weight: Tensor, bias: Tensor | None, x: Tensor, gradient: Tensor, whole: bool = False, group: Any = None
) -> Any:
    """On a rank: split a layer of a foreign class; run it forward and backward. whole: with all inputs and outputs."""
    import torch

    from labkit.exercises import tensor_parallel

    class Foreign(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(weight.clone())
            self.bias = None if bias is None else torch.nn.Parameter(bias.clone())

    layer = getattr(tensor_parallel, cls).from_full(Foreign(), group)
    setattr(layer, *(("gather_output", whole) if cls.startswith("Column") else ("input_is_parallel", not whole)))
    inputs = x.clone().requires_grad_()
    out = layer(inputs)
    out.backward(gradient)
    found = {"out": out.detach(), "x": inputs.grad, "weight": layer.weight.grad}
    found["full"] = layer.to_full().weight.detach()
    return found if bias is None else found | {"bias": layer.bias.grad}


def embedded(weight: Tensor, tokens: Tensor, gradient: Tensor) -> Any:
    """On a rank: return the tokens' vectors, and the gradient of this rank's part of the embedding."""
    import torch

    from labkit.exercises import tensor_parallel

    whole = torch.nn.Embedding(*weight.shape)
    whole.weight.data = weight.clone()
    layer = tensor_parallel.VocabParallelEmbedding.from_full(whole)
    out = layer(tokens)
    out.backward(gradient)
    return {"out": out.detach(), "weight": layer.weight.grad, "full": layer.to_full().weight.detach()}


def block_of(
    state: list[Tensor],
    heads: int,
    causal: bool,
    x: Tensor,
    gradient: Tensor,
    mark: Any,
    group: Any = None,
    count: int = 1,
    place: int = 0,
) -> Any:
    """On a rank: split blocks in sequence; run block number `place`, which has this state, forward and backward.

    `mark` is called at the start, before the forward pass, before the backward pass and after it.
    """
    import torch

    import labkit
    from labkit.exercises import tensor_parallel
    from labkit.models.gpt import Block, GPTConfig

    def cut_up(number: int) -> Any:
        whole = Block(GPTConfig(heads=heads, width=x.shape[-1], causal=causal))
        with torch.no_grad():
            for parameter, values in zip(whole.parameters(), state, strict=True):
                if number == place:
                    parameter.copy_(values)
        return tensor_parallel.TensorParallelTransformer.from_full(whole, group)

    mark()
    before = labkit.memory_allocated()
    blocks = [cut_up(number) for number in range(count)]
    # all whole blocks are freed
    kept = labkit.memory_allocated() - before
    block = blocks[place]
    inputs = x.clone().requires_grad_()
    mark()
    out = block(inputs)
    mark()
    out.backward(gradient)
    mark()
    named = {"norm_attention.weight": block.norm_attention.weight, "norm_mlp.bias": block.norm_mlp.bias}
    named |= {"attention.out.bias": block.out.bias, "mlp.down.bias": block.down.bias}
    found = {name: parameter.grad for name, parameter in named.items()}
    size = sum(parameter.numel() for parameter in block.parameters())
    return found | {"out": out.detach(), "x": inputs.grad, "kept": kept / count, "numel": size}


def drawn(seed: int, sizes: Sequence[int]) -> Any:
    """On a rank: return each layer's initial values, concatenated."""
    import torch

    from labkit.exercises import tensor_parallel as tp

    torch.manual_seed(seed)
    vocab, width, heads = sizes
    layers = [
        tp.VocabParallelEmbedding(vocab, width),
        tp.ColumnParallelLinear(width, vocab, True, False, None),
        tp.TensorParallelTransformer(width, heads),
        tp.RowParallelLinear(width, 3, False, True, None),
    ]
    return [parameter.detach() for layer in layers for parameter in layer.to_full().parameters()]


def misused(case: str, mark: Any) -> str:
    """On a rank: return the error for a wrong argument; `mark` is called first."""
    import torch

    from labkit.exercises import tensor_parallel as tp

    mark()
    try:
        if case == "num_heads":
            tp.TensorParallelTransformer(12, 3)
        elif case == "out_features":
            tp.ColumnParallelLinear(4, 1, True, False, None)
        elif case == "targets":
            tp.vocab_parallel_cross_entropy(torch.zeros(3, 4), torch.tensor([0, 8, 1]), 8)
        else:
            tp.vocab_parallel_cross_entropy(torch.zeros(3, 4), torch.tensor([0, 1, 1]), 12)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


# Reference in one process ---------------------------------------------------------------------------------------------


def right_in_part(draw: Draw, whole: Tensor, dim: int, rank: int, ranks: int) -> Tensor:
    """Return `whole` as given to rank `rank`: with other numbers outside its own part."""
    other = whole + 1 + draw.tensor(tuple(whole.shape)).abs().to(whole.dtype)
    own = [slice(None)] * whole.dim()
    own[dim] = part(whole.shape[dim], rank, ranks)
    other[tuple(own)] = whole[tuple(own)]
    return other


def real(draw: Draw, *shape: int) -> Tensor:
    return draw.tensor(shape) / 8


def mark() -> Any:
    return work("mark", 1e-6)


def between(run: Run, rank: int) -> list[list[Event]]:
    """Return a rank's messages and collectives after each mark."""
    found: list[list[Event]] = []
    for event in sorted(run.trace.of(rank), key=lambda event: event.start):
        if event.kind is Kind.COMPUTE and event.operation == "mark":
            found.append([])
        elif found and event.kind in (Kind.COLLECTIVE, Kind.SEND):
            found[-1].append(event)
    return found


def compared(run: Run, name: str, wanted: Sequence[Tensor | None], what: str, **options: Any) -> None:
    seen = [None if value is None else value[name] for value in run.values]
    members = [rank for rank, tensor in enumerate(wanted) if tensor is not None]
    rel = options.pop("rel", CLOSE)
    expect([seen[r] for r in members], what, **options).close_to([wanted[r] for r in members], rel=rel)


class Whole:
    """A block in one process, its state and gradients by name."""

    def __init__(self, draw: Draw, width: int, heads: int, causal: bool, shape: Sequence[int]) -> None:
        self.width, self.heads, self.causal = width, heads, causal
        self.block = Block(GPTConfig(heads=heads, width=width, causal=causal))
        with torch.no_grad():
            for parameter in self.block.parameters():
                # keeps the scale of torch's own initialization: products of a few dozen numbers stay about 1
                parameter.copy_(real(draw, *parameter.shape) / width**0.5)
            for norm in (self.block.norm_attention, self.block.norm_mlp):
                norm.weight.add_(1)
        self.x, self.gradient = real(draw, *shape, width), real(draw, *shape, width)
        inputs = self.x.clone().requires_grad_()
        out = self.block(inputs)
        out.backward(self.gradient)
        self.found = {name: p.grad for name, p in self.block.named_parameters()}
        self.found |= {"out": out.detach(), "x": inputs.grad}

    def given(self, draw: Draw, rank: int, ranks: int, group: Any = None, **how: int) -> Args:
        cuts = {"qkv.weight": 0, "qkv.bias": 0, "out.weight": 1, "up.weight": 0, "up.bias": 0, "down.weight": 1}
        state = [
            right_in_part(draw, p.detach(), cut, rank, ranks) if (cut := cuts.get(n.split(".", 1)[-1])) is not None
            else p.detach()
            for n, p in self.block.named_parameters()
        ]  # fmt: skip
        return Args(state, self.heads, self.causal, self.x, self.gradient, mark(), group, **how)

    def compared(self, run: Run, members: Sequence[int]) -> None:
        about = {"out": "the block's output", "x": "the gradient of its input"}
        for name in ("out", "x", "norm_attention.weight", "norm_mlp.bias", "attention.out.bias", "mlp.down.bias"):
            wanted = [self.found[name] if rank in members else None for rank in range(len(run.values))]
            compared(run, name, wanted, about.get(name, f"the gradient of {name}"))


# Values ---------------------------------------------------------------------------------------------------------------


@check(points=2, todo=1, title="copy and reduce: a sum on one of the two ways", look_at="the sum, and where it belongs")
def copies(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size = draw.choice([2, 3, 4])
    alike, gradients = draw.tensor((3, 4), torch.float64), draw.tensors(world_size, (4, 3), torch.float64)
    run = ranks(world_size).call(
        submission.used_by(crossing), [Args("copy_to_group", alike, transposed(g)) for g in gradients]
    )
    total = torch.stack(gradients).sum(0).t().contiguous()
    compared(run, "out", [alike] * world_size, "copy_to_group, forward")
    compared(run, "gradient", [total] * world_size, "copy_to_group, backward", rel=1e-12)
    parts, gradient = draw.tensors(world_size, (3, 4)), draw.tensor((4, 3))
    run = ranks(world_size).call(
        submission.used_by(crossing), [Args("reduce_from_group", x, transposed(gradient)) for x in parts]
    )
    compared(run, "out", [torch.stack(parts).sum(0)] * world_size, "reduce_from_group, forward")
    compared(run, "gradient", [gradient.t().contiguous()] * world_size, "reduce_from_group, backward")
    compared(run, "input", parts, "the input of reduce_from_group, afterwards")


@check(points=1, todo=1, title="gather and scatter, of sizes that do not divide", look_at="which way puts together")
def cuts(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size, size in ((3, draw.choice([4, 7, 11])), (2, draw.choice([4, 6]))):
        own = [part(size, rank, world_size) for rank in range(world_size)]
        whole, gradient = draw.tensor((2, size)), draw.tensor((2, size))
        options = {"size": size} if size % world_size else None
        run = ranks(world_size).call(
            submission.used_by(crossing),
            [Args("gather_from_group", whole[:, p].contiguous(), gradient, options=options) for p in own],
        )
        compared(run, "out", [whole] * world_size, "gather_from_group, forward")
        compared(run, "gradient", [gradient[:, p] for p in own], "gather_from_group, backward")
        run = ranks(world_size).call(
            submission.used_by(crossing), [Args("scatter_to_group", whole, gradient[:, p].contiguous()) for p in own]
        )
        compared(run, "out", [whole[:, p] for p in own], "scatter_to_group, forward")
        compared(run, "gradient", [gradient] * world_size, "scatter_to_group, backward")


def like_linear(
    submission: Submission, ranks: Ranks, draw: Draw, cls: str, world_size: int, size: int, whole: bool, bias: bool
) -> None:
    """Compare a layer with torch's; `size` is the size that is split."""
    column = cls.startswith("Column")
    shape = (size, 5) if column else (5, size)
    weight, offsets = real(draw, *shape).requires_grad_(), real(draw, shape[0]).requires_grad_() if bias else None
    inputs = real(draw, 2, 3, shape[1]).requires_grad_()
    out = F.linear(inputs, weight, offsets)
    gradient = real(draw, 2, 3, shape[0])
    out.backward(gradient)
    own = [part(size, rank, world_size) for rank in range(world_size)]
    given = []
    for rank, p in enumerate(own):
        wide = right_in_part(draw, weight.detach(), 0 if column else 1, rank, world_size)
        some = None if offsets is None else offsets.detach()
        if some is not None and column:
            some = right_in_part(draw, some, 0, rank, world_size)
        x = inputs.detach() if column or whole else inputs.detach()[..., p].contiguous()
        given.append(Args(cls, wide, some, x, gradient if whole or not column else gradient[..., p], whole))
    run = ranks(world_size).call(submission.used_by(linear), given)
    everywhere = [slice(None)] * world_size
    about = f"of {cls}, {size} on {world_size} ranks"
    compared(
        run, "out", [out.detach()[..., p] for p in (own if column and not whole else everywhere)], f"output {about}"
    )
    assert inputs.grad is not None and weight.grad is not None
    cut = everywhere if column or whole else own
    compared(run, "x", [inputs.grad[..., p] for p in cut], f"gradient of the input {about}")
    gradients = [weight.grad[p] if column else weight.grad[:, p] for p in own]
    compared(run, "weight", gradients, f"gradient of the weight {about}")
    compared(run, "full", [weight.detach()] * world_size, f"to_full {about}")
    if offsets is not None and offsets.grad is not None:
        wanted = [offsets.grad[p] for p in (own if column else everywhere)]
        compared(run, "bias", wanted, f"gradient of the bias {about}")


@check(
    points=2,
    todo=1,
    title="a column-parallel layer, and what it does to its input's gradient",
    look_at="copy_to_group, backward",
)
def columns(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_linear(submission, ranks, draw, "ColumnParallelLinear", 3, draw.choice([4, 7, 8]), whole=False, bias=True)
    like_linear(submission, ranks, draw, "ColumnParallelLinear", 2, draw.choice([5, 7]), whole=True, bias=False)


@check(
    points=2, todo=2, title="a row-parallel layer and its bias", look_at="what is summed, and what is added after it"
)
def rows(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_linear(submission, ranks, draw, "RowParallelLinear", 3, draw.choice([4, 7, 8]), whole=False, bias=True)
    like_linear(submission, ranks, draw, "RowParallelLinear", 2, draw.choice([5, 7]), whole=True, bias=True)


@check(
    points=1,
    todo=1,
    title="an embedding whose vocabulary does not divide",
    look_at="`_Reduce`: the embedding itself is given",
)
def embedding(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    vocab = draw.choice([7, 8, 10])
    weight = real(draw, vocab, 4).requires_grad_()
    tokens = torch.tensor([*draw.sample(range(vocab), vocab), 0, vocab - 1]).view(1, -1)
    gradient = real(draw, 1, vocab + 2, 4)
    out = F.embedding(tokens, weight)
    out.backward(gradient)
    assert weight.grad is not None
    given = [Args(right_in_part(draw, weight.detach(), 0, r, 3), tokens, gradient) for r in range(3)]
    run = ranks(3).call(submission.used_by(embedded), given)
    compared(run, "out", [out.detach()] * 3, "the tokens' vectors")
    compared(run, "weight", [weight.grad[part(vocab, r, 3)] for r in range(3)], "the gradient of a rank's vectors")
    compared(run, "full", [weight.detach()] * 3, "to_full")


def like_cross_entropy(
    submission: Submission, ranks: Ranks, logits: Tensor, targets: Tensor, world_size: int, ignore_index: int = -100
) -> Run:
    wanted, gradient = whole_loss(logits, targets, 3.0, ignore_index=ignore_index)
    vocab = logits.shape[-1]
    own = [part(vocab, rank, world_size) for rank in range(world_size)]
    run = ranks(world_size).call(
        submission.used_by(losses),
        [Args(logits[..., p].contiguous(), targets, vocab, 3.0, mark(), ignore_index=ignore_index) for p in own],
    )
    compared(run, "loss", [wanted] * world_size, "the loss")
    compared(run, "gradient", [gradient[..., p] for p in own], "the gradient of a rank's logits")
    return run


@check(
    points=2, todo=3, title="the loss, of a vocabulary that does not divide", look_at="which targets are this rank's"
)
def loss(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size, vocab in ((3, draw.choice([7, 10, 11])), (1, 5)):
        # every token is a target, including those at the ends of each part
        targets = torch.tensor(draw.sample(range(vocab), vocab)).view(1, -1)
        like_cross_entropy(submission, ranks, draw.tensor((1, vocab, vocab)) / 4, targets, world_size)


@check(
    points=1, todo=3, title="targets that are left out", look_at="ignore_index: neither in the sum nor in the number"
)
def ignored(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    targets = torch.tensor([draw.randrange(8) for _ in range(6)])
    targets[draw.sample(range(6), 2)] = ignore = draw.choice([-100, -1, 3])
    like_cross_entropy(submission, ranks, draw.tensor((6, 8)) / 4, targets, 2, ignore)


@check(points=1, todo=3, title="the loss of very large logits", look_at="the largest logit: of one rank, or of all")
def stable(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    logits = draw.tensor((6, 9)) / 4
    logits[0] += 1000
    logits[1] -= 1000
    for row, rank in enumerate(draw.sample(range(3), 3)):
        logits[2 + row, 3 * rank] += 200
    logits[5, :3] = -torch.inf
    targets = torch.tensor([draw.randrange(9) for _ in range(5)] + [draw.randrange(3, 9)])
    # near a probability of 1 the loss is almost 0: the other rows count
    like_cross_entropy(submission, ranks, logits, targets, 3)


@check(
    points=3, todo=4, title="a block is the plain one", look_at="which numbers of qkv are one head's, and the two sums"
)
def block(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size, causal in ((draw.choice([2, 4]), True), (3, False)):
        # two heads on each rank: a single one could not be mixed up
        width = draw.choice([4 * world_size, draw.choice(WIDE)])
        whole = Whole(draw, width, 2 * world_size, causal, (2, draw.choice([3, 5])))
        given = [whole.given(draw, rank, world_size) for rank in range(world_size)]
        whole.compared(ranks(world_size).call(submission.used_by(block_of), given), range(world_size))


@check(points=1, todo=4, title="groups of some of the ranks", look_at="`group`, wherever ranks are asked")
def groups(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    order = draw.sample(range(4), 4)
    pairs = [sorted(order[:2]), sorted(order[2:])]
    wholes = [Whole(draw, 8, 2, True, (1, 3)) for _ in pairs]
    mine = {rank: (number, pair.index(rank)) for number, pair in enumerate(pairs) for rank in pair}
    given = []
    for rank in range(4):
        number, place = mine[rank]
        given.append(wholes[number].given(draw, place, 2, group_of(pairs[number])))
    run = ranks(4).call(submission.used_by(block_of), given)
    for whole, pair in zip(wholes, pairs, strict=True):
        whole.compared(run, pair)


@check(
    points=1,
    todo=2,
    title="the same weights on any number of ranks",
    look_at="RowParallelLinear.forward: initialization is given",
)
def beginnings(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    seed, vocab, heads = draw.randrange(10_000), draw.choice([7, 8]), draw.choice([3, 6])
    width = 2 * heads
    run = ranks(3).call(submission.used_by(drawn), [Args(seed, (vocab, width, heads))] * 3)
    torch.manual_seed(seed)
    plain = [nn.Embedding(vocab, width), nn.Linear(width, vocab), Block(GPTConfig(heads=heads, width=width))]
    plain.append(nn.Linear(width, 3, bias=False))
    wanted = [parameter.detach() for layer in plain for parameter in layer.parameters()]
    for value in run.values:
        for seen, tensor in zip(value, wanted, strict=True):
            expect(seen, "a weight before any step, put together").equals(tensor)
    # initialization earns points only if the layer also works
    like_linear(submission, ranks, draw, "RowParallelLinear", 2, 4, whole=False, bias=False)


@check(
    points=1,
    todo=3,
    title="bad arguments raise ValueError before any message",
    look_at="the given lines at the beginning must stay",
)
def bad_arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_cross_entropy(submission, ranks, draw.tensor((3, 8)) / 4, torch.tensor([7, 0, 3]), 2)
    for case in ("num_heads", "out_features", "targets", "logits"):
        run = ranks(2).call(submission.used_by(misused), [Args(case, mark())] * 2)
        for rank, value in enumerate(run.values):
            expect(value.split(":")[0], f"a bad {case} raises").equals("ValueError")
            expect(value, "message").contains(case)
            expect(sum(map(len, between(run, rank))), "messages and collectives").equals(0)


# Communication and memory ---------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=4,
    title="a block: two all-reduces forward, two backward",
    look_at="TODO 4: a row-parallel layer takes this rank's part; `_Copy` and `_Reduce` each send one way only",
)
def block_messages(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    length = draw.choice([5, 6, 7])
    width = draw.choice([16, draw.choice(WIDE)])
    whole = Whole(draw, width, 4, True, (2, length))
    run = ranks(2).call(submission.used_by(block_of), [whole.given(draw, rank, 2) for rank in range(2)])
    whole.compared(run, range(2))
    for rank in range(2):
        for way, events in zip(("forward", "backward"), between(run, rank)[1:3], strict=True):
            called = [(event.operation, event.nbytes) for event in events]
            expect(called, f"collectives {way}, and their bytes").equals([("all_reduce", 4 * 2 * length * width)] * 2)


@check(
    points=2,
    todo=4,
    title="a block: 1/N of the parameters on each rank",
    look_at="what your `forward` keeps; the cutting is given",
    needs={"memory"},
)
def block_memory(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    world_size, width = 4, draw.choice(WIDE)
    everywhere, cut = 6 * width, 12 * width**2 + 7 * width
    # each rank keeps a quarter of what is split
    count = math.ceil(HOARD / (3 * cut))
    whole = Whole(draw, width, 4, True, (1, 2))
    place = draw.randrange(count)
    given = [whole.given(draw, rank, world_size, count=count, place=place) for rank in range(world_size)]
    run, nbytes = ranks(world_size, account=True).measured(submission.used_by(block_of), given)
    whole.compared(run, range(world_size))
    part = 4 * (everywhere + cut // world_size)
    for value in run.values:
        expect(value["numel"], "parameters of a rank").equals(part // 4)
        expect(value["kept"], f"bytes that a rank keeps of each of {count} blocks", unit="bytes").at_most(1.25 * part)
    # tensors that are sent are held elsewhere
    expect(run.trace.bytes_told(), "bytes that all ranks sent", unit="bytes").at_most(1 << 20)
    # a whole block at once, its copies, and received tensors
    limit = count * part + 2.5 * 4 * (everywhere + cut)
    what = f"bytes that a rank holds at most after cutting up {count} blocks, by the kernel's count"
    expect(nbytes / world_size - NOISE, what, unit="bytes").at_most(limit)


@check(points=1, todo=3, title="the loss: two small messages", look_at="what can travel together")
def loss_messages(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    vocab, tokens = draw.choice([90, 120]), draw.choice([10, 12])
    targets = torch.tensor([draw.randrange(vocab) for _ in range(tokens)])
    run = like_cross_entropy(submission, ranks, draw.tensor((tokens, vocab)) / 4, targets, 3)
    for rank in range(3):
        forward, backward, _ = between(run, rank)
        expect(len(forward), "collectives forward").at_most(3)
        expect(sum(event.nbytes for event in forward), "bytes forward", unit="bytes").at_most(4 * 4 * tokens)
        expect(len(backward), "collectives backward").equals(0)


@check(
    points=1,
    todo=4,
    title="real processes: the same block, and no more bytes than its four sums",
    look_at="what may be different with gloo: tensors that are not contiguous, what is sent beside the sums",
    needs={"network"},
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    whole = Whole(draw, draw.choice([48, draw.choice(WIDE)]), 3, True, (2, draw.randrange(900, 1100)))
    run = ranks.processes(3).call(submission.used_by(block_of), [whole.given(draw, rank, 3) for rank in range(3)])
    whole.compared(run, range(3))
    wanted = 4 * 2 * (3 - 1) * 4 * whole.x.numel()
    expect(run.bytes_on_the_wire, "bytes that all ranks sent, as the kernel counts them", unit="bytes").at_most(
        1.1 * wanted
    )
