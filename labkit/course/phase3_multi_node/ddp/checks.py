"""Visible checks and hints of ddp: layers whose gradients are digits, so that a wrong number can be traced by hand.

A layer has one weight with any number of elements. On rank r of N each element of the first layer's gradient is
N * 10**r, of the second layer's 2 * N * 10**r, and so on. So the mean over four ranks is 1111 for the first layer, 2222
for the second: a digit for each rank. 1011 means that rank 2 is missing, 4444 in the first layer that nobody divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, NotMeasurable, Ranks, Submission, check, expect, group_of, work
from labkit.clusters import Run
from labkit.course.phase3_multi_node.ddp.scenarios import noted_calls, passes
from labkit.hardware import Link
from labkit.trace import Event, Kind

KB = 1024
SECONDS = 0.01
"""Duration of each layer's backward pass, where time matters."""

# What runs on the ranks -----------------------------------------------------------------------------------------------


def cut(sizes: list[int], cap: float, first_cap: float) -> Any:
    """On a rank: return the places of each bucket's parameters; a negative size is a float64 parameter's, others are
    float32."""
    import torch
    from torch import nn

    from labkit.exercises import ddp

    wrapped = ddp.DistributedDataParallel(nn.Linear(1, 1))
    dtype = {True: torch.float32, False: torch.float64}
    given = [nn.Parameter(torch.zeros(abs(size), dtype=dtype[size > 0])) for size in sizes]
    place = {parameter: number for number, parameter in enumerate(given)}
    return [[place[parameter] for parameter in bucket] for bucket in wrapped.assign(given, cap, first_cap)]


def equal_starts(number: float) -> Any:
    """On a rank: wrap a model whose weights and buffers are `number`; return them and the keys of its state."""
    import torch
    from torch import nn

    from labkit.exercises import ddp

    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.fill_(number)
    wrapped = ddp.DistributedDataParallel(model)
    return {
        "values": [tensor.flatten()[-1].item() for tensor in model.state_dict().values()],
        "keys": list(wrapped.state_dict()),
    }


def torn(number: float, fails: bool) -> Any:
    """On a rank: save a model, then save another one, while `torch.save` may fail; return what is loaded, and files."""
    import contextlib
    import multiprocessing.util
    import os
    import shutil
    import tempfile

    import torch
    from torch import nn

    from labkit.exercises import ddp

    class Unwritable:
        def __reduce__(self) -> Any:
            raise OSError("no space left on device")

    folder = tempfile.mkdtemp(dir=multiprocessing.util.get_temp_dir())
    path = os.path.join(folder, "last.pt")
    saved = ddp.DDPCheckpointer(path)
    model, other = nn.Linear(1, 1), nn.Linear(1, 1)
    optimizers = [torch.optim.SGD(m.parameters(), lr=number) for m in (model, other)]
    nn.init.constant_(model.weight, number)
    saved.save(ddp.DistributedDataParallel(model), optimizers[0], step=7)
    nn.init.constant_(model.weight, 2 * number)
    raised = ""
    with contextlib.contextmanager(noted_calls)(path) as calls:
        try:
            saved.save(model, optimizers[0], step=8, more=Unwritable() if fails else 0)
        except OSError as error:
            raised = str(error)
    more = saved.load(other, optimizers[1])
    files = os.listdir(folder)
    shutil.rmtree(folder)
    return {
        "weight": other.weight.item(), "rate": optimizers[1].param_groups[0]["lr"], "step": more["step"],
        "raised": raised, "files": files, "calls": calls,
    }  # fmt: skip


# What the checks give and read ----------------------------------------------------------------------------------------


def gradients_of(scale: float, sizes: list[int]) -> list[Tensor]:
    """Return a gradient for each layer: `scale` for the first one, twice that for the second."""
    return [torch.full((size,), (layer + 1) * scale) for layer, size in enumerate(sizes)]


def given(
    world_size: int, sizes: list[int], orders: Sequence[Sequence[Sequence[int]]], cap_kb: float = 1, **how: Any
) -> list[Args]:
    """Return the arguments of each rank: one pass for each of `orders[rank]`, with that rank's digit."""
    how = {"cap": cap_kb / 1024, "clear": False, **how}
    return [
        Args(gradients_of(float(world_size * 10**rank), sizes), [list(order) for order in orders[rank]], **how)
        for rank in range(world_size)
    ]


def go(submission: Submission, ranks: Ranks, arguments: list[Args], **hardware: Any) -> Run:
    return ranks(len(arguments), **hardware).call(submission.used_by(passes), arguments)


def ends(gradients: Sequence[Tensor | None]) -> list[tuple[float, float] | None]:
    """Return the first and last element of each gradient."""
    return [None if gradient is None else (gradient[0].item(), gradient[-1].item()) for gradient in gradients]


def digits(world_size: int, layer: int) -> tuple[float, float]:
    """Return the first and last element of the mean gradient of a layer, counted from 0."""
    value = float((layer + 1) * int("1" * world_size))
    return value, value


def reduces(run: Run, rank: int = 0) -> list[Event]:
    """Return a rank's all-reduces, in the order of their launch."""
    events = [event for event in run.trace.collectives(rank) if event.operation == "all_reduce"]
    return sorted(events, key=lambda event: event.start)


@check(
    points=2,
    todo=1,
    title="parameters are cut into buckets by size, for each dtype",
    look_at="when a bucket is full, and that it is another one for each dtype and device",
)
def assignment(submission: Submission, ranks: Ranks) -> None:
    cases: list[tuple[list[int], list[list[int]], str]] = [
        ([50, 50, 100, 150, 150, 10], [[0, 1], [2, 3], [4, 5]], "200, 200, 400, 600, 600 and 40 bytes"),
        ([300, 10, 10], [[0], [1, 2]], "1200, 40 and 40 bytes"),
        ([60, -20, 60, -40, 100, -125], [[0, 2], [1, 3], [5], [4]], "float32 of 240, 240, 400 bytes and, every second "
         "one, float64 of 160, 320, 1000"),
    ]  # fmt: skip
    for sizes, wanted, what in cases:
        (seen,) = ranks(1).call(submission.used_by(cut), [Args(sizes, 1000, 400)]).values
        expect(seen, f"buckets of parameters with {what}, cap=1000, first_cap=400").equals(wanted)


@check(points=1, todo=1, title="all ranks start equal, under the module's own keys", look_at="__init__, which is given")
def start(submission: Submission, ranks: Ranks) -> None:
    run = ranks(3).call(submission.used_by(equal_starts), [Args(float(5 - rank)) for rank in range(3)])
    for value in run.values:
        expect(value["values"], "weights and buffers of a model that was all 5 on rank 0").equals([5.0] * 7)
        expect(value["keys"][:2], "keys of its state").equals(["0.weight", "0.bias"])
    broadcasts = run.trace.collective_counts(0)["broadcast"]
    expect(broadcasts, "broadcasts at the start").equals(1)


@check(
    points=3,
    todo=3,
    title="a bucket leaves as soon as it is full, while earlier layers still compute",
    look_at="collect: what is launched when, and that launching does not wait",
)
def overlap(submission: Submission, ranks: Ranks) -> None:
    sizes = [256] * 4
    slow = Link("slow", 1.0, SECONDS / 2, "an all-reduce of 1 kB takes half as long as a layer")
    arguments = given(2, sizes, [[[0, 1, 2, 3]]] * 2, backward=work("layer", SECONDS))
    run = go(submission, ranks, arguments, inter_node=slow)
    for rank in range(2):
        launched = reduces(run, rank)
        expect([e.nbytes for e in launched], "bytes of each all-reduce, with 4 layers of 1 kB, buckets of 1 kB").equals(
            [KB] * 4
        )
        computed = sorted((e.start, e.end) for e in run.trace.of(rank, Kind.COMPUTE) if e.operation == "layer")
        if not computed:
            raise NotMeasurable("when a layer has ended is known on virtual ranks")
        for number in range(3):
            what = f"seconds from the end of layer {3 - number} to the launch of its bucket, on rank {rank}"
            _, end = computed[number]
            expect(launched[number].start - end, what, unit="seconds").at_most(SECONDS / 4)
            what = f"seconds from the end of layer {3 - number} to the beginning of layer {2 - number}, on rank {rank}"
            begin, _ = computed[number + 1]
            hint = "collect: launch with async_op=True, and leave wait() to the end of the backward pass"
            expect(begin - end, what, look_at=hint, unit="seconds").at_most(SECONDS / 4)


@check(
    points=2,
    todo=3,
    title="buckets leave in one order on all ranks, whichever is full first",
    look_at="collect: only `self.buckets[self.launched]` may leave next",
)
def one_order(submission: Submission, ranks: Ranks) -> None:
    # on rank 0 the gradient of layer 3 comes first, on rank 1 that of layer 0
    sizes, orders = [100, 200, 300, 400], [[[0, 1, 2, 3]], [[3, 2, 1, 0]]]
    run = go(submission, ranks, given(2, sizes, orders, cap_kb=0.01))
    for rank in range(2):
        seen = [event.nbytes for event in reduces(run, rank)]
        expect(seen, f"bytes of the all-reduces of rank {rank}, of layers with 1600, 1200, 800 and 400").equals(
            [1600, 1200, 800, 400]
        )


@check(
    points=4,
    todo=3,
    title="every gradient is the mean over the ranks, pass by pass",
    look_at="what divides, and what is copied back into grad",
)
def mean(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for world_size, view in ((4, False), (draw.choice([2, 3]), True), (1, True)):
        options = {"gradient_as_bucket_view": view}
        run = go(submission, ranks, given(world_size, [3, 300, 7], [[[0, 1, 2]] * 2] * world_size, **options))
        for value in run.values:
            for number, grads in enumerate(value["grads"]):
                what = f"gradients on {world_size} ranks after pass {number}, gradient_as_bucket_view={view}"
                # the second pass adds to what is there
                wanted = [tuple((number + 1) * digit for digit in digits(world_size, layer)) for layer in range(3)]
                expect(ends(grads), what).equals(wanted)
    pair = [Args(gradients_of(2.0 * 10**r, [5]), [[0]], cap=1 / 1024, group=group_of([1, 2])) for r in (1, 2)]
    run = ranks(3).call(submission.used_by(passes), [None, *pair])
    seen = [value["grads"][0][0][0].item() for value in run.values[1:]]
    expect(seen, "gradient in a group of ranks 1 and 2, whose own are 20 and 200").equals([110.0] * 2)


@check(
    points=1,
    todo=3,
    title="buckets are made again in the order in which gradients came",
    look_at="nothing of yours: it fails where buckets are not launched in the order of self.buckets",
)
def rebuilt(submission: Submission, ranks: Ranks) -> None:
    # forward uses layers 3, 0, 2, 1, so gradients come in the order 1, 2, 0, 3
    order = [3, 0, 2, 1]
    run = go(submission, ranks, given(2, [100, 200, 300, 400], [[order] * 2] * 2, cap_kb=0.01))
    seen = [event.nbytes for event in reduces(run)]
    expect(seen[:4], "bytes of the all-reduces in the first pass: last layer first").equals([1600, 1200, 800, 400])
    expect(seen[4:], "bytes in the second pass: gradients came as layers 1, 2, 0, 3").equals([800, 1200, 400, 1600])


@check(
    points=2,
    todo=3,
    title="no_sync adds up and sends nothing; the next pass averages all of it",
    look_at="collect: what is done before, and what after asking self.synchronizing",
)
def no_sync(submission: Submission, ranks: Ranks) -> None:
    for view in (False, True):
        arguments = given(2, [4, 5], [[[0, 1]] * 3] * 2, without_sync=2, gradient_as_bucket_view=view)
        run = go(submission, ranks, arguments)
        for rank, value in enumerate(run.values):
            own = 2.0 * 10**rank
            _, second, third = [ends(grads)[0] for grads in value["grads"]]
            what = f"gradient of layer 0 after two passes in no_sync(), on rank {rank}"
            expect(second, what).equals((2 * own, 2 * own))
            expect(third, "gradient of layer 0 after a third pass, outside").equals((33.0, 33.0))
        expect(len(reduces(run)), "all-reduces of the three passes, one bucket").equals(1)
    run = go(submission, ranks, given(2, [4, 5], [[[0, 1]] * 2] * 2, together=True))
    seen = ends(run.values[0]["grads"][1])[0]
    expect(seen, "gradient after two forward passes and one backward pass").equals((22.0, 22.0))


@check(
    points=3,
    todo=3,
    title="unused parameters: on one rank, on all, and without find_unused_parameters",
    look_at="the late ones in finish_gradient_synchronization; what is put in a bucket for a gradient of None",
)
def unused(submission: Submission, ranks: Ranks) -> None:
    for view in (False, True):
        how = {"find_unused_parameters": True, "gradient_as_bucket_view": view, "cap_kb": 0.01}
        # nobody uses layer 2, only rank 1 layer 1
        run = go(submission, ranks, given(2, [3, 4, 5], [[[0], [0]], [[0, 1], [0, 1]]], **how))
        for rank, value in enumerate(run.values):
            what = f"gradients on rank {rank}: all use layer 0, rank 1 layer 1, nobody layer 2"
            expect(ends(value["grads"][0]), what).equals([(11.0, 11.0), (20.0, 20.0), None])
        # in the second pass only rank 1 uses layer 1, whose bucket on rank 0 has a mean in it from the first pass
        orders = [[[0, 1], [0]], [[0, 1], [0, 1]]]
        run = go(submission, ranks, given(2, [3, 4], orders, clear=True, **how))
        for rank, value in enumerate(run.values):
            what = f"gradients on rank {rank} after zero_grad() and a second pass, in which only rank 1 uses layer 1"
            expect(ends(value["grads"][1]), what).equals([(11.0, 11.0), (20.0, 20.0)])
        run = go(submission, ranks, given(2, [3, 4], [[[]], [[0, 1]]], **how))
        for rank, value in enumerate(run.values):
            what = f"gradients on rank {rank}: rank 0's loss depends on no parameter, so it only calls finish"
            expect(ends(value["grads"][0]), what).equals([(10.0, 10.0), (20.0, 20.0)])
    failed = ranks(2).attempt(submission.used_by(passes), given(2, [3, 4, 5], [[[0, 1], [0, 1]]] * 2, cap_kb=0.01))
    expect(failed.diagnosis(), "the error of a second forward pass, when the first left out layer 2").contains(
        "weights.2"
    )


@check(
    points=2,
    todo=3,
    title="gradient_as_bucket_view: gradients are parts of their buckets",
    look_at="collect and finish: what `parameter.grad` becomes",
)
def views(submission: Submission, ranks: Ranks) -> None:
    for passes_made in (1, 2):
        arguments = given(2, [300] * 4, [[[0, 1, 2, 3]] * passes_made] * 2, gradient_as_bucket_view=True, cap_kb=2)
        for value in go(submission, ranks, arguments).values:
            what = f"blocks of memory that hold 4 gradients, in buckets of two, after {passes_made} passes"
            expect(value["storages"], what).equals(2)
    run = go(submission, ranks, given(2, [300] * 4, [[[0, 1, 2, 3]]] * 2, cap_kb=2))
    for value in run.values:
        what = "blocks of memory that hold 4 gradients, in buckets of two, with gradient_as_bucket_view=False"
        expect(value["storages"], what, look_at="without self.as_view, grad is a copy").equals(4)


@check(
    points=2,
    todo=3,
    title="a communication hook takes the place of the all-reduce",
    look_at="collect: who divides; that bucket.pending is what the hook returned",
)
def comm_hook(submission: Submission, ranks: Ranks) -> None:
    for view in (False, True):
        how: dict[str, Any] = {"hook": (1.0, 1.0), "cap_kb": 0.01, "gradient_as_bucket_view": view}
        run = go(submission, ranks, given(2, [3, 4], [[[0, 1]]] * 2, **how))
        for value in run.values:
            expect([index for index, *_ in value["calls"]], "buckets that the hook was called with").equals([0, 1])
            expect(ends(value["grads"][0]), "gradients by a hook that adds 1 on each of 2 ranks to the mean").equals(
                [(13.0, 13.0), (24.0, 24.0)]
            )


@check(
    points=3,
    todo=4,
    title="a checkpoint is the old one or the new one, whole",
    look_at="write: where the new file is until all of it is on the disk, and what is left when torch.save fails",
)
def checkpoint(submission: Submission, ranks: Ranks) -> None:
    for fails in (False, True):
        run = ranks(2).call(submission.used_by(torn, noted_calls), [Args(3.0 + rank, fails) for rank in range(2)])
        for rank, value in enumerate(run.values):
            expect((value["weight"], value["rate"], value["step"]), f"weight, learning rate and step that rank {rank} "
                   f"loads{', after a second save that failed' if fails else ''}").equals(
                (3.0, 3.0, 7) if fails else (6.0, 3.0, 8)
            )  # fmt: skip
        first = run.values[0]
        expect(first["files"], "files in the checkpoint's folder").equals(["last.pt"])
        expect(first["raised"], "the error").equals("no space left on device" if fails else "")
        if not fails:
            hint = "file.flush(), os.fsync(file.fileno()), and only then os.replace"
            what = "what write called in os, of fsync and replace"
            expect(first["calls"][:2], what, look_at=hint).equals(["fsync", "replace"])


HINTS = {
    1: [
        "Draw the parameters in a row and put a bar where a bucket is full: the one that reaches the limit still "
        "goes in. Then colour them by dtype: each colour has a bar of its own.",
        "Keep two dicts by `(parameter.dtype, parameter.device)`: the parameters of the bucket that is being filled, "
        "and the bytes that still fit. The second begins with `first_cap`, and after each full bucket with `cap`.",
        "`filling.setdefault(kind, []).append(parameter)`; subtract the bytes from `room`, which begins as "
        "`first_cap`. When it is 0 or less, `full.append(filling.pop(kind))` and `room[kind] = cap`. At the end: "
        "`[*full, *filling.values()]`.",
    ],
    2: [
        "Three things happen, in this order: the gradient gets to its place; the bucket learns that it has come; "
        "buckets leave. In `no_sync()` only the first does, and nothing is divided. Which buckets can leave when the "
        "first bucket's last gradient comes?",
        "The place: `torch.div(parameter.grad, divisor, out=view)`, or `view.zero_()` without a gradient. Leaving is "
        "a loop: the gradient that completes bucket 0 may release bucket 1, which has waited.",
        "`divisor` is 1 in `no_sync()` and with a hook, else `dist.get_world_size(self.group)`. Then, if "
        "`self.synchronizing`: `bucket.missing.remove(parameter)`; `while self.launched < len(self.buckets) and not "
        "self.buckets[self.launched].missing:` launch that bucket and `self.launched += 1`.",
        "To launch: `full.pending = self.comm_hook(full)` if there is one; else `full.pending = "
        "dist.all_reduce(full.buffer(), group=self.group, async_op=True)`.",
    ],
    3: [
        "On this rank a late parameter has no gradient, but its bucket travels with the others: other ranks may have "
        "one. What does this rank add to their sum? Afterwards three cases are left: `grad` is to be a part of the "
        "bucket, `grad` exists, or `grad` is None.",
        "`self.collect(parameter)` for each late one puts zeros into its bucket, and launches. A parameter in "
        "`self.present()` gets the mean even if this rank had none; all others keep `grad` as it is.",
        "For each bucket `bucket.wait()`; for each of its parameters that is present: `parameter.grad = view` with "
        "`self.as_view`, else `view.clone()` if `grad` is None, else `parameter.grad.copy_(view)`.",
    ],
    4: [
        '`open(self.path, "wb")` empties the old file at once. When the machine fails now, which file is left? And '
        "why is it not enough that `file.close()` has returned?",
        'Write `self.path + ".new"` in the same folder, since `os.replace` cannot move a file to another disk whole. '
        "If anything raises an exception, remove it and let the exception go on.",
        'In `with open(temporary, "wb") as file:` a `try:` with `torch.save(state, file)`, `file.flush()`, '
        "`os.fsync(file.fileno())`, `os.replace(temporary, self.path)`. In its `except BaseException:` "
        "`os.remove(temporary)` and `raise`.",
    ],
}
