"""Hidden rubric of activation_checkpointing: 25 points, 13 for values and 12 for cost.

The checkpointed functions add a number that changes before the backward pass: if the backward pass recomputes what it
needs, results use the first number and gradients the second one. Calling the function again but using what the first
call saved gives other gradients. Each call does work that the judge charges and records.
Memory comes from the ranks' own accounts, which are exact; the kernel's count of the same run confirms it where the
memory that must not be held exceeds `HOARD`. A tensor's size does not reveal whether a check measures memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.trace import Kind

CLOSE = 1e-5
"""Tolerance for float32; the judge's processor may multiply in another order."""
BLOCK = 128
"""Float32 elements of a block of memory: tensors of whole blocks are counted to the byte."""
SLACK = 0.2
"""Allowance, in tensors, for what is small beside those that are counted."""
HOARD = 40 << 20
"""Bytes of all saved tensors where memory is measured."""
NOISE = 10 << 20
"""Allowance for bytes that the kernel counts beside tensors."""
AGAIN = "what the backward pass gets: tensors of the first call, or those that the second call makes"
"""Hint: functions read a number that has changed by then."""
MANY = range(64 << 10, 256 << 10)
"""Elements of a tensor where memory is measured; elsewhere a tensor has as many, or a few."""
FORBIDDEN = {
    "torch.utils.checkpoint.checkpoint",
    "torch.utils.checkpoint.checkpoint_sequential",
    "torch.autograd.graph.save_on_cpu",
}
"""Names that `labkit integrity` reports, under any alias; using them costs no marks by itself."""


# What runs on the ranks, and here with plain calls --------------------------------------------------------------------


def computed(
    checkpoint: Any, case: str, x: Any, y: Any, w: Any, seed: int, shift: Any, later: float, mark: Any, inner_mark: Any
) -> Any:
    """Compute a case with its functions called by `checkpoint`; return results and existing gradients.

    shift: a list with the number that functions add; it becomes `later` before the backward pass.
    """
    import torch

    def several(a: Any, factor: float, b: Any, c: Any, names: dict[str, float]) -> Any:
        mark()
        h = (torch.tanh(a @ w + shift[0]) * factor).mul(2).add_(b)
        return h.sin() * c, names["more"] + b.square().sum(), (a > 0).sum()

    def tied(a: Any) -> Any:
        mark()
        return torch.tanh(a @ w.t() + y + shift[0]) @ w

    def dropping(a: Any) -> Any:
        inner_mark()
        return torch.nn.functional.dropout(torch.tanh(a @ w + shift[0]), 0.4)

    def outer(a: Any) -> Any:
        mark()
        return checkpoint(dropping, checkpoint(dropping, a.sin()) + 1).cos()

    w.requires_grad_()
    x.requires_grad_(case != "tied")
    y.requires_grad_(case == "several")
    torch.manual_seed(seed)
    drawn = []
    if case == "several":
        first, second, third = checkpoint(several, 3 * x, 2.5, y.exp(), x.detach() + 1, {"more": 1.5})
        result, found = first.sum() * second, [first, second, third]
    elif case == "tied":
        h = checkpoint(tied, checkpoint(tied, x))
        result, found = h.square().mean(), [h]
    elif case == "autocast":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = checkpoint(tied, x)
        result, found = h.float().sum(), [h]
    else:
        function = dropping if case == "dropping" else outer
        h = checkpoint(function, 2 * x)
        drawn.append(torch.rand(4))
        h = checkpoint(function, h)
        drawn.append(torch.rand(4))
        result, found = h.sum(), [h]
    shift[0] = later
    result.backward()
    drawn.append(torch.rand(4))
    leaves = [x, y, w]
    return {
        "results": [tensor.detach() for tensor in found],
        "gradients": [leaf.grad for leaf in leaves if leaf.grad is not None],
        "without": [leaf.grad is None for leaf in leaves],
        "random numbers": drawn,
    }


def called(*args: Any) -> Any:
    """On a rank: the same with the learner's `checkpoint`."""
    from labkit.exercises import activation_checkpointing

    return computed(activation_checkpointing.checkpoint, *args)


def held(way: str, x: Any, count: int, segments: int, depth: int, rounds: int, shifts: list[float], mark: Any) -> Any:
    """On a rank: run `count` functions, each `depth` times tanh, forward and backward, `rounds` times.

    shifts: what each function adds before its first tanh, in the forward pass and in the backward pass. Returns the
    gradient of the last round, and the tensors held beside `x`: after the forward pass, after the backward pass, at
    peak, and where the backward pass of a function reaches its last tanh.
    """
    from contextlib import nullcontext

    import torch

    import labkit
    from labkit.exercises import activation_checkpointing

    def function(t: Any) -> Any:
        mark()
        t = (t + shift[0]).tanh()
        if t.requires_grad:
            t.register_hook(lambda _: late.append(labkit.memory_allocated()))
        for _ in range(depth - 1):
            t = t.tanh()
        return t

    def forward() -> Any:
        if way == "sequential":
            return activation_checkpointing.checkpoint_sequential([function] * count, segments, x)
        result = x
        with activation_checkpointing.offload_activations("cpu") if way == "offload" else nullcontext():
            for _ in range(count):
                result = (
                    activation_checkpointing.checkpoint(function, result) if way == "checkpoint" else function(result)
                )
        return result

    late: list[int] = []
    shift = [0.0]
    x.requires_grad_()
    labkit.reset_peak_memory_stats()
    before = labkit.memory_allocated()
    for _ in range(rounds):
        x.grad = None
        shift[0] = shifts[0]
        result = forward()
        after_forward = labkit.memory_allocated()
        shift[0] = shifts[1]
        result.backward(torch.ones_like(result))
        del result
    counts = (after_forward, labkit.memory_allocated(), labkit.max_memory_allocated(), max(late))
    return {"grad": x.grad, "tensors": [(number - before) / x.nbytes for number in counts]}


def in_segments(segments: Any, x: Any, shifts: list[float], *marks: Any) -> Any:
    """On a rank: run functions with one mark each; return the result and the gradient, or the error.

    shifts: what each function adds, in the forward pass and in the backward pass.
    """
    from labkit.exercises import activation_checkpointing

    def numbered(number: int, mark: Any) -> Any:
        def function(t: Any) -> Any:
            mark()
            return (t + number + shift[0]).sin()

        return function

    shift = shifts[:1]
    x.requires_grad_()
    try:
        functions = [numbered(number, mark) for number, mark in enumerate(marks)]
        result = activation_checkpointing.checkpoint_sequential(functions, segments, x)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    shift[0] = shifts[1]
    result.sum().backward()
    return [result.detach(), x.grad]


def offloaded(x: Any, w: Any) -> Any:
    """On a rank: return gradients of a function under offload_activations whose argument is overwritten before the
    backward pass; what the backward pass received; peak memory of a linear layer with a large weight, in weights."""
    import torch

    import labkit
    from labkit.exercises import activation_checkpointing

    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Any) -> Any:
            ctx.save_for_backward(t)
            return t**3

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            (t,) = ctx.saved_tensors
            saved.append([str(t.dtype), list(t.stride())])
            return 3 * t * t * gradients[0]

    saved: list[Any] = []
    x.requires_grad_()
    with activation_checkpointing.offload_activations("cpu"):
        cubed = x * 1
        result: Any = Cube.apply(cubed.t())  # type: ignore[no-untyped-call]
    with torch.no_grad():
        cubed.data.zero_()
    result.sum().backward()

    layer = torch.nn.Linear(w.shape[1], w.shape[0], bias=False)
    layer.weight = torch.nn.Parameter(w, requires_grad=False)
    rows = torch.ones(1, w.shape[1], requires_grad=True)
    labkit.reset_peak_memory_stats()
    before = labkit.memory_allocated()
    with activation_checkpointing.offload_activations("cpu"):
        product = layer(rows)
    product.sum().backward()
    most = (labkit.max_memory_allocated() - before) / w.nbytes
    return {"grads": [x.grad, rows.grad], "saved": saved, "most": most}


def misused(x: Any, mark: Any) -> Any:
    """On a rank: try wrong arguments, an argument changed in place, and a second backward pass; return the results."""
    import torch

    from labkit.exercises import activation_checkpointing

    def attempt(function: Any) -> str:
        try:
            function()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "nothing"

    def function(t: Any) -> Any:
        mark()
        return t.exp().sin()

    def offload_to(device: Any) -> None:
        with activation_checkpointing.offload_activations(device):
            function(x)

    x.requires_grad_()
    changed = 2 * x
    result = activation_checkpointing.checkpoint(function, changed)
    with torch.no_grad():
        changed.add_(1)
    in_place = attempt(result.sum().backward)
    result = activation_checkpointing.checkpoint(function, x)
    result.sum().backward()
    second = attempt(result.sum().backward)
    return {
        "checkpoint, given a number as function": attempt(lambda: activation_checkpointing.checkpoint(3, x)),
        "offload_activations to 'nowhere'": attempt(lambda: offload_to("nowhere")),
        "an argument changed in place": in_place,
        "a second backward pass": second,
    }


def without_gradients(x: Any, mark: Any) -> Any:
    """On a rank: run a checkpointed function under no_grad."""
    import torch

    from labkit.exercises import activation_checkpointing

    def function(t: Any) -> Any:
        mark()
        return t.sin()

    with torch.no_grad():
        return activation_checkpointing.checkpoint(function, x.requires_grad_())


def parallel(x: Any, weights: Any, shifts: list[float], group: Any, mark: Any) -> Any:
    """On a rank: run blocks of a tensor-parallel model in sequence. Each rank has some columns of a block's first
    weight and the same rows of its second; the ranks all-reduce before the result is squared, and in the backward pass.

    shifts: what a block adds to its product, in the forward pass and in the backward pass.
    """
    import torch
    import torch.distributed as dist

    from labkit.exercises import activation_checkpointing

    class Copy(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Any) -> Any:
            return t.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            total = gradients[0].clone()
            dist.all_reduce(total, group=group)
            return total

    class Reduce(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, t: Any) -> Any:
            total = t.clone()
            dist.all_reduce(total, group=group)
            return total

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            return gradients[0]

    def block(t: Any, up: Any, down: Any) -> Any:
        mark()
        inner = torch.tanh(Copy.apply(t) @ up + shift[0])  # type: ignore[no-untyped-call]
        total: Any = Reduce.apply(inner @ down)  # type: ignore[no-untyped-call]
        return total.square()

    shift = shifts[:1]
    h = x.requires_grad_()
    for up, down in weights:
        up.requires_grad_()
        down.requires_grad_()
        h = activation_checkpointing.checkpoint(block, h, up, down)
    shift[0] = shifts[1]
    h.sum().backward()
    return [x.grad, *(weight.grad for pair in weights for weight in pair)]


# Reference ------------------------------------------------------------------------------------------------------------


def replayed(shift: list[float], later: float) -> Callable[..., Any]:
    """Return the reference for `checkpoint` where `shift` becomes `later` before the backward pass: results and random
    numbers of the first call, gradients of the second one."""

    def checkpoint(function: Callable[..., Any], *args: Any) -> Any:
        now, state = shift[0], torch.get_rng_state()
        shift[0] = later
        second = function(*args)
        shift[0] = now
        torch.set_rng_state(state)
        first = function(*args)
        if not isinstance(first, tuple):
            return with_gradient_of(first, second)
        return tuple(map(with_gradient_of, first, second))

    return checkpoint


def with_gradient_of(first: Tensor, second: Tensor) -> Tensor:
    copy = second.clone()
    copy.data.copy_(first.detach())
    return copy


def shifted(draw: Draw) -> list[float]:
    """Return what functions add, in the forward pass and in the backward pass."""
    return [draw.choice([-0.5, 0.5]) + draw.uniform(-0.1, 0.1), draw.uniform(-0.1, 0.1)]


def elements(draw: Draw, few: int) -> int:
    """Return the size of a tensor: `few`, or as large as where memory is measured."""
    return draw.choice([few, draw.choice(MANY)])


def nothing() -> None:
    """Stands in for a mark, here."""


def calls(run: Run, rank: int = 0) -> list[str]:
    """Return the marks of one rank in the order of its calls, as charged by the judge."""
    marks = [event for event in run.trace.of(rank, Kind.COMPUTE) if event.operation.startswith("call")]
    return [event.operation.removeprefix("call ") for event in sorted(marks, key=lambda event: event.start)]


def like_plain_calls(
    submission: Submission,
    ranks: Ranks,
    draw: Draw,
    case: str,
    forward: dict[str, int],
    dtype: torch.dtype = torch.float32,
    rel: float = CLOSE,
) -> dict[str, int]:
    """Compare a case with plain calls, and the number of calls of each function: at least once more than in the forward
    pass, for which `forward` gives the number. Returns the numbers."""
    width = draw.randrange(5, 12)
    rows = elements(draw, width * draw.randrange(3, 9)) // width
    sizes = [(rows, width), (rows, width), (width, width)]
    x, y, w = (draw.tensor(size, dtype) / 8 for size in sizes)
    seed, (shift, later) = draw.randrange(1 << 30), shifted(draw)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        now = [shift]
        wanted = computed(
            replayed(now, later), case, x.clone(), y.clone(), w.clone(), seed, now, later, nothing, nothing
        )
    given = Args(case, x, y, w, seed, [shift], later, work("call outer", 1e-3), work("call inner", 1e-3))
    run = ranks(1).call(submission.used_by(called, computed), [given])
    (value,) = run.values
    expect(value["without"], "x, y and the weight have no gradient").equals(wanted["without"])
    for name in ("results", "gradients", "random numbers"):
        hint = AGAIN if name == "gradients" else ""
        for seen, right in zip(value[name], wanted[name], strict=True):
            expect(seen, f"one of the {name}", look_at=hint).close_to(right, rel=rel)
    counts = {name: calls(run).count(name) for name in forward}
    for name, count in forward.items():
        hint = "a function whose tensors are not held must be called again"
        expect(counts[name], "calls of checkpointed functions, both passes", look_at=hint).at_least(2 * count)
    return counts


def tensor(draw: Draw, numel: int) -> Tensor:
    """Return a tensor of whole blocks of memory, from -1 to 1."""
    return draw.tensor(BLOCK * max(1, numel // BLOCK)) / 8


def tanh_gradient(x: Tensor, parts: list[int], depth: int, shifts: list[float], again: int) -> Tensor:
    """Return the gradient of functions that each add a number and are `depth` times tanh, in parts of the given sizes;
    the first `again` parts are recomputed with the second of `shifts`."""
    leaf = x.clone().requires_grad_()
    y, shift = leaf, shifts[:1]
    for number, count in enumerate(parts):

        def part(t: Tensor, count: int = count) -> Tensor:
            for _ in range(count):
                t = t + shift[0]
                for _ in range(depth):
                    t = t.tanh()
            return t

        y = replayed(shift, shifts[1])(part, y) if number < again else part(y)
    return torch.autograd.grad(y.sum(), leaf)[0]


class HeldMemory(NamedTuple):
    """Memory held by a run, in tensors: as reported by the rank, and the kernel's maximum."""

    after_forward: float
    after_backward: float
    most: float
    late: float
    """At the last tanh of a function's backward pass."""
    measured: float
    """All memory of the run, minus `NOISE`."""


def counted(
    submission: Submission,
    ranks: Ranks,
    draw: Draw,
    x: Tensor,
    parts: list[int],
    depth: int,
    rounds: int = 1,
    segments: int = 0,
) -> HeldMemory:
    """Checkpoint parts of the given sizes, or all but the last of `segments`, and expect the gradient."""
    count, shifts, again = sum(parts), shifted(draw), len(parts)
    if segments:
        # the last one may be recomputed too: another check covers that
        way, shifts, again = "sequential", shifts[:1] * 2, again - 1
    else:
        way = "checkpoint"
    given = Args(way, x, count, segments, depth, rounds, shifts, work("call", 1e-3))
    run, nbytes = ranks(1, account=True).measured(submission.used_by(held), [given])
    (value,) = run.values
    wanted = tanh_gradient(x, parts, depth, shifts, again)
    expect(value["grad"], "gradient", look_at=AGAIN).close_to(wanted, rel=CLOSE)
    called_again = len(calls(run)) - rounds * count
    expect(called_again, "functions that were called again").at_least(rounds * sum(parts[:again]))
    # tensors that are sent are held elsewhere
    expect(run.trace.bytes_told(), "bytes sent", unit="bytes").equals(0)
    after_forward, after_backward, most, late = value["tensors"]
    return HeldMemory(after_forward, after_backward, most, late, (nbytes - NOISE) / x.nbytes)


# Values ---------------------------------------------------------------------------------------------------------------


@check(
    points=3,
    todo=2,
    title="several arguments and results, tensors and others",
    look_at="recompute: are the arguments `self.arguments.again()`; which number has which tensor",
)
def arguments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_plain_calls(submission, ranks, draw, "several", {"outer": 1})


@check(
    points=2,
    todo=2,
    title="no argument needs a gradient; tied and frozen parameters; a function called twice",
    look_at="gradients of what the function uses and is not given",
)
def parameters(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_plain_calls(submission, ranks, draw, "tied", {"outer": 2})


@check(points=1, todo=2, title="float64 and autocast", look_at="in which precision the function computes again")
def precision(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_plain_calls(submission, ranks, draw, "several", {"outer": 1}, torch.float64, rel=1e-12)
    like_plain_calls(submission, ranks, draw, "autocast", {"outer": 1}, rel=0.01)


@check(
    points=3,
    todo=2,
    title="dropout drops the same again; other random numbers are those of plain calls",
    look_at="the state of random numbers before, in and after the second call",
)
def randomness(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    like_plain_calls(submission, ranks, draw, "dropping", {"inner": 2})


@check(
    points=2, todo=2, title="a checkpoint within a checkpoint", look_at="hooks: whose tensors does each of the two see"
)
def nested(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    counts = like_plain_calls(submission, ranks, draw, "nested", {"inner": 4, "outer": 2})
    expect(counts["outer"], "calls of the outer function").equals(4)
    expect(counts["inner"], "calls of the inner one: forward, with the outer one, and once more").at_most(12)


@check(
    points=1,
    todo=2,
    title="what cannot be right is an error; without gradients it is a plain call",
    look_at="recompute: errors must get through; unpack: each tensor is given once",
)
def misuse(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    x = tensor(draw, 100)
    (value,) = ranks(1).call(submission.used_by(misused), [Args(x, work("call", 1e-3))]).values
    for what, seen in value.items():
        error = "ValueError" if " to " in what or "number" in what else "RuntimeError"
        expect(seen.split(":")[0], f"{what} raises").equals(error)
    expect(value["offload_activations to 'nowhere'"], "message").contains("nowhere")
    run = ranks(1).call(submission.used_by(without_gradients), [Args(x, work("call", 1e-3))])
    expect(run.values[0], "result without gradients").close_to(x.sin(), rel=CLOSE)
    expect(len(calls(run)), "calls without gradients").equals(1)


@check(
    points=1,
    todo=4,
    title="offload_activations: the same bits, dtype and strides",
    look_at="how a tensor is copied, and where to",
)
def offload(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    x = draw.tensor((draw.randrange(3, 9), draw.randrange(10, 20)), torch.float64) / 3
    w = draw.tensor((512, 256))
    (value,) = ranks(1, account=True).call(submission.used_by(offloaded), [Args(x, w)]).values
    expect(value["saved"], "dtype and strides of what the backward pass of x.t() ** 3 gets").equals(
        [["torch.float64", [1, x.shape[1]]]]
    )
    for seen, wanted in zip(value["grads"], [3 * x * x, w.sum(0, keepdim=True)], strict=True):
        expect(seen, "gradient").close_to(wanted)
    expect(value["most"], "memory of a linear layer beside its weight, in weights", look_at="parameters").at_most(SLACK)


# Cost -----------------------------------------------------------------------------------------------------------------


@check(points=2, todo=2, title="each call is computed again exactly once", look_at="unpack: what is there already")
def once(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    count, depth, shifts = draw.randrange(2, 5), draw.randrange(3, 7), shifted(draw)
    x = tensor(draw, elements(draw, 1000))
    given = Args("checkpoint", x, count, 1, depth, 1, shifts, work("call", 1e-3))
    run = ranks(1).call(submission.used_by(held), [given])
    wanted = tanh_gradient(x, [1] * count, depth, shifts, again=count)
    expect(run.values[0]["grad"], "gradient", look_at=AGAIN).close_to(wanted, rel=CLOSE)
    expect(len(calls(run)), f"calls of {count} functions of {depth} operators, both passes").equals(2 * count)


@check(
    points=3,
    todo=2,
    title="what is held until the backward pass: arguments; and at most, one function's tensors",
    look_at="what refers to a tensor after pack, and after unpack",
    needs={"memory"},
)
def memory(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    x = tensor(draw, draw.choice(MANY))
    depth = max(draw.randrange(5, 9), math.ceil((HOARD / x.nbytes) ** 0.5))
    count = max(draw.randrange(3, 6), math.ceil(HOARD / x.nbytes / depth))
    found = counted(submission, ranks, draw, x, [1] * count, depth)
    what = f"tensors that {count} functions of {depth} operators hold,"
    expect(found.after_forward, f"{what} after the forward pass").at_most(count + SLACK)
    # arguments and the result, one function's, and gradients: the result's, and those on both sides of an operator
    most = count + depth + 3
    expect(found.most, f"{what} at most").at_most(most + SLACK)
    expect(found.measured, f"{what} at most, by the kernel's count").at_most(most)
    # of the function's tensors the first one, and at most the last one
    expect(found.late, f"{what} late in the backward pass of one").at_most(count + 4 + SLACK)


@check(
    points=1,
    todo=2,
    title="nothing is held after the backward pass",
    look_at="what refers to what was computed again",
    needs={"memory"},
)
def released(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    count, depth, x = draw.randrange(2, 4), draw.randrange(4, 7), tensor(draw, draw.choice(MANY))
    # leftovers of a round add up over the next ones
    rounds = math.ceil(HOARD / (count * depth * x.nbytes))
    found = counted(submission, ranks, draw, x, [1] * count, depth, rounds)
    expect(found.after_backward, "tensors held after the backward pass (a gradient)").at_most(1 + SLACK)
    what = f"tensors that {rounds} rounds of {count} functions of {depth} operators hold at most, by the kernel's count"
    expect(found.measured, what).at_most(count + depth + 3)


@check(
    points=2,
    todo=3,
    title="segments: in order, lengths as equal as can be, all but the last called again",
    look_at="the lengths where the number of functions does not divide",
)
def segments(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    parts = draw.randrange(3, 5)
    for count, cut in ((parts * draw.randrange(2, 4) + parts - 1, parts), (draw.randrange(3, 6), 1)):
        x, shifts = tensor(draw, elements(draw, 100)), shifted(draw)
        marks = [work(f"call {number}", 1e-3) for number in range(count)]
        run = ranks(1).call(submission.used_by(in_segments), [Args(cut, x, shifts, *marks)])
        cuts = [part.tolist() for part in torch.arange(count).tensor_split(cut)]
        wanted = sines(x, cuts, shifts)
        for seen, right in zip(run.values[0], wanted, strict=True):
            expect(seen, f"result or gradient of {count} functions in {cut} segments").close_to(right, rel=CLOSE)
        again = [str(n) for part in reversed(cuts[:-1]) for n in part]
        forward = [str(n) for n in range(count)]
        expect(calls(run), f"calls of {count} functions in {cut} segments, in order").equals(forward + again)
    bad = draw.choice([0, -1, 4, 2.0])
    (value,) = ranks(1).call(submission.used_by(in_segments), [Args(bad, x, shifts, *marks[:3])]).values
    expect(value if isinstance(value, str) else "no error", f"{bad} segments of 3 functions").contains("ValueError")


@check(
    points=1,
    todo=3,
    title="segments: memory of the longest one, and of the others' arguments",
    look_at="what holds a segment's tensors",
    needs={"memory"},
)
def segment_memory(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    x = tensor(draw, draw.choice(MANY))
    cut = max(draw.randrange(5, 7), math.ceil((HOARD / x.nbytes) ** 0.5))
    count = cut * cut + cut - 1
    lengths = [len(part) for part in torch.arange(count).tensor_split(cut)]
    found = counted(submission, ranks, draw, x, lengths, depth=1, segments=cut)
    # arguments of all segments but the first and last, a whole segment, the result, and gradients
    limit = cut - 2 + lengths[0] + 5
    what = f"tensors that {count} functions in {cut} segments hold at most"
    expect(found.most, what).at_most(limit + SLACK)
    expect(found.measured, f"{what}, by the kernel's count").at_most(limit)


@check(
    points=1,
    todo=4,
    title="offload_activations: the device holds none of them until the backward pass, and then one",
    look_at="what pack returns refers to, and where unpack leaves a tensor",
)
def offload_memory(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    count, x = draw.randrange(8, 14), tensor(draw, elements(draw, 25_000))
    given = Args("offload", x, count, 1, 1, 1, shifts := shifted(draw), work("call", 1e-3))
    (value,) = ranks(1, account=True).call(submission.used_by(held), [given]).values
    wanted = tanh_gradient(x, [1] * count, 1, shifts, again=0)
    expect(value["grad"], "gradient").close_to(wanted, rel=CLOSE)
    forward, afterwards, most, _ = value["tensors"]
    what = f"tensors that {count} offloaded functions hold,"
    expect(forward, f"{what} after the forward pass (the result)").at_most(1 + SLACK)
    expect(afterwards, f"{what} after the backward pass (the gradient)").at_most(1 + SLACK)
    # one that came back, the result and its gradient, two gradients
    expect(most, f"{what} at most").at_most(5 + SLACK)
    expect(most, f"{what} where one has come back").at_least(5 - SLACK)


@check(
    points=1,
    todo=2,
    title="tensor-parallel blocks: sums are sent again, in one order on all ranks of the group",
    look_at="recompute: does it call the function, and how often",
)
def collectives(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    members = sorted(draw.sample(range(4), 3))
    rows, widths, shifts = elements(draw, 240) // 80, draw.sample([8, 12, 16, 20], 2), shifted(draw)
    x, weights = draw.tensor((rows, 4)) / 8, _weights(draw, widths)
    given = [
        Args(x, _share(weights, members.index(rank), 3), shifts, group_of(members), work("call", 1e-3))
        if rank in members
        else None
        for rank in range(4)
    ]
    run = ranks(4).call(submission.used_by(parallel), given)
    wanted = _parallel_gradients(x, weights, shifts)
    for place, rank in enumerate(members):
        shares = [wanted[0], *(part for pair in _share(wanted[1], place, 3) for part in pair)]
        for seen, right in zip(run.values[rank], shares, strict=True):
            expect(seen, f"gradients on rank {rank}", look_at=AGAIN).close_to(right, rel=1e-4)
    # block by block: a sum in the forward pass; then that sum again, and one of gradients
    for rank in members:
        sent = [event.nbytes for event in run.trace.collectives(rank)]
        expect(sent, f"bytes of each all-reduce of rank {rank}").equals([4 * rows * 4] * 6)
        expect(len(calls(run, rank)), f"calls of two blocks on rank {rank}").equals(4)


@check(
    points=1,
    todo=2,
    title="real processes: the same gradients, and each block called twice",
    look_at="what may be different with gloo: who waits for whom in the backward pass",
)
def real_processes(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    x, weights, shifts = draw.tensor((elements(draw, 90) // 30, 4)) / 8, _weights(draw, [6, 8]), shifted(draw)
    given = [Args(x, _share(weights, rank, 2), shifts, None, work("call", 0.0)) for rank in range(2)]
    run = ranks.processes(2).call(submission.used_by(parallel), given)
    wanted = _parallel_gradients(x, weights, shifts)
    for rank in range(2):
        shares = [wanted[0], *(part for pair in _share(wanted[1], rank, 2) for part in pair)]
        for seen, right in zip(run.values[rank], shares, strict=True):
            expect(seen, f"gradients on rank {rank}", look_at=AGAIN).close_to(right, rel=1e-4)
        sums = len(run.trace.collectives(rank))
        expect(sums, f"all-reduces of rank {rank}: one for each call of two blocks, and two of gradients").equals(6)


def sines(x: Tensor, cuts: list[list[int]], shifts: list[float]) -> list[Tensor]:
    """Return result and gradient of functions in these segments, in one process."""
    leaf = x.clone().requires_grad_()
    y, shift = leaf, shifts[:1]
    for part in cuts:

        def segment(t: Tensor, part: list[int] = part) -> Tensor:
            for number in part:
                t = (t + number + shift[0]).sin()
            return t

        y = segment(y) if part is cuts[-1] else replayed(shift, shifts[1])(segment, y)
    return [y.detach(), torch.autograd.grad(y.sum(), leaf)[0]]


_Weights = list[list[Tensor]]


def _weights(draw: Draw, widths: list[int]) -> _Weights:
    """Return weights of blocks: (4, width) and (width, 4)."""
    return [[draw.tensor((4, 6 * width)) / 8, draw.tensor((6 * width, 4)) / 8] for width in widths]


def _share(weights: _Weights, place: int, size: int) -> _Weights:
    """Return columns of the first, rows of the second weights: those of one of `size` ranks."""
    return [[up.chunk(size, 1)[place].contiguous(), down.chunk(size, 0)[place].contiguous()] for up, down in weights]


def _parallel_gradients(x: Tensor, weights: _Weights, shifts: list[float]) -> tuple[Tensor, _Weights]:
    """Return gradients of the whole model, in one process."""
    shift = shifts[:1]

    def block(t: Tensor, up: Tensor, down: Tensor) -> Tensor:
        return (torch.tanh(t @ up + shift[0]) @ down).square()

    x = x.clone().requires_grad_()
    leaves = [[weight.clone().requires_grad_() for weight in pair] for pair in weights]
    h = x
    for up, down in leaves:
        h = replayed(shift, shifts[1])(block, h, up, down)
    h.sum().backward()
    gradients = [[leaf.grad for leaf in pair] for pair in leaves]
    return x.grad, gradients  # type: ignore[return-value]  # all of them have one
