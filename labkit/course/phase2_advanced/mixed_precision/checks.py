"""Visible checks and hints of mixed_precision: numbers that float16 represents exactly, so that they can be traced by
hand.

In the checks of `autocast_step` the model is one weight w, its loss the mean of w * x, so the gradient is the mean of
the inputs x. Samples of rank r are 10 ** r times the total number of samples, so each digit of the mean is the number
of samples of one rank. A gradient of 431 means that rank 0 has one sample, rank 1 three and rank 2 four.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of
from labkit.clusters import Run
from labkit.course.phase2_advanced.mixed_precision.scenarios import history, mastered, one_weight, unscaled


def samples(shares: Sequence[int]) -> list[Tensor]:
    """Return each rank's samples: the total number of samples, times 10 ** rank."""
    return [torch.full((share,), float(sum(shares) * 10**rank)) for rank, share in enumerate(shares)]


def digits(shares: Sequence[int]) -> float:
    """Return the mean of all these samples."""
    return float(sum(share * 10**rank for rank, share in enumerate(shares)))


def trained(submission: Submission, ranks: Ranks, batches: Sequence[Sequence[Tensor]], **options: Any) -> Run:
    """Train on `batches[step][rank]`."""
    inputs = [Args(1.0, [step[rank] for step in batches], interval=3, **options) for rank in range(len(batches[0]))]
    return ranks(len(inputs)).call(submission.used_by(one_weight), inputs)


@check(
    points=4,
    todo=2,
    title="the scale: back after an overflow, on after a while without",
    look_at="update: when counting begins anew",
)
def scale_history(submission: Submission, ranks: Ranks) -> None:
    overflows = {"no overflow": [0, 0, 0, 0, 0, 0, 0], "overflows": [1, 1, 0, 0, 0], "late ones": [0, 0, 1, 0, 0, 0, 0]}
    wanted = {
        "no overflow": [8.0, 8.0, 16.0, 16.0, 16.0, 32.0, 32.0],
        "overflows": [4.0, 2.0, 2.0, 2.0, 4.0],
        "late ones": [8.0, 8.0, 4.0, 4.0, 4.0, 8.0, 8.0],
    }
    for name, pattern in overflows.items():
        given = [Args([8.0, 2.0, 0.5], 3, [bool(flag) for flag in pattern])]
        (scales,) = ranks(1).call(submission.used_by(history), given).values
        expect(scales, f"scale after each step with {name}, from 8, growing after 3 steps").equals(wanted[name])
    for start, overflow in ((2.0**127, False), (2.0**-126, True)):
        given = [Args([start, 2.0, 0.5], 1, [overflow] * 3)]
        (scales,) = ranks(1).call(submission.used_by(history), given).values
        what = f"scale from 2**{math.log2(start):.0f} on, {'overflows' if overflow else 'growing in each step'}"
        look_at = "update: a scale above LARGEST is left as it is; one below SMALLEST becomes SMALLEST"
        expect(scales, what, look_at=look_at).equals([start] * 3)


@check(
    points=3,
    todo=1,
    title="unscale_: gradients over the scale, and what it says",
    look_at="unscale_: each gradient over the scale, in place; True if `finite` is False",
)
def unscale(submission: Submission, ranks: Ranks) -> None:
    plain = [torch.tensor([64.0, -16.0]), None, torch.tensor([4.0])]
    (result,) = ranks(1).call(submission.used_by(unscaled), [Args(16.0, plain)]).values
    expect(result[0], "what it returns for 64, -16 and 4").equals(False)
    for seen, wanted in ((result[1][0], [4.0, -1.0]), (result[1][2], [0.25])):
        expect(seen, "a gradient, scaled by 16").equals(torch.tensor(wanted))
    expect(result[1][1] is None, "None stays None").holds("a parameter without gradient has one now")
    for odd in (math.inf, -math.inf, math.nan):
        given = [Args(16.0, [torch.ones(2), torch.tensor([1.0, odd])])]
        (result,) = ranks(1).call(submission.used_by(unscaled), given).values
        expect(result[0], f"what it returns when there is {odd}").equals(True)
    (result,) = ranks(1).call(submission.used_by(unscaled), [Args(2.0, [torch.full((3,), 1e30)])]).values
    expect(result[0], "what it returns for 1e30, which is finite").equals(False)


@check(
    points=4,
    todo=1,
    title="an overflow on one rank is one on all: one small collective",
    look_at="what goes to the other ranks, and by which reduction",
)
def one_rank(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for odd in (0, draw.choice([1, 2])):
        values = [[torch.ones(2), torch.tensor([math.inf if rank == odd else 1.0])] for rank in range(3)]
        run = ranks(3).call(submission.used_by(unscaled), [Args(16.0, value) for value in values])
        what = f"what unscale_ says on ranks 0, 1, 2 when a gradient of rank {odd} is infinite"
        expect([value[0] for value in run.values], what).equals([True] * 3)
    calls = [(event.operation, event.nbytes) for event in run.trace.collectives(0)]
    expect(len(calls), "collectives, for two gradients").equals(1)
    expect(calls[0][1], "bytes of that collective", unit="bytes").at_most(8)
    pairs = [group_of([0, 1]), group_of([0, 1]), group_of([2])]
    run = ranks(3).call(submission.used_by(unscaled), [Args(16.0, value, pairs[r]) for r, value in enumerate(values)])
    wanted = [odd in (0, 1)] * 2 + [odd == 2]
    expect([value[0] for value in run.values], "the same, in groups of ranks 0 and 1, and 2").equals(wanted)


@check(
    points=4,
    todo=3,
    title="masters are float32, and small updates add up in them",
    look_at="MasterWeights: what is in param_groups, what take_gradients gives each master, what step copies back",
)
def masters(submission: Submission, ranks: Ranks) -> None:
    for dtype, step in (("float16", 2.0**-13), ("bfloat16", 2.0**-10)):
        low = getattr(torch, dtype)
        weights = [torch.ones(3, dtype=low), torch.ones(2), *torch.ones(2, 3, dtype=low)]
        gradients = [[torch.full_like(one, step) for one in weights[:2]] + [None, None] for _ in range(64)]
        given = [Args(weights, 2, gradients, "SGD", {"momentum": 1e-3}, [1.0])]
        (seen,) = ranks(1).call(submission.used_by(mastered), given).values
        wanted = torch.full((3,), 1 - 64 * step * (1 + 1e-3), dtype=low)
        expect(seen["weights"][0], f"a weight of 1 in {dtype} after 64 steps of {step:.2g}").close_to(wanted, rel=1e-2)
        expect(seen["weights"][2], "a frozen weight").equals(torch.ones(3, dtype=low))
        expect(seen["weights"][3], "a trained weight without a gradient").equals(torch.ones(3, dtype=low))
        held = [str(parameter.dtype) for parameter in seen["held"]]
        expect(held, "dtypes in param_groups, the third one frozen").equals(
            ["torch.float32", "torch.float32", f"torch.{dtype}", "torch.float32"]
        )
        expect(seen["own"], "is it the model's own parameter").equals([False, True, True, False])
        expect(seen["kept"], "dtypes of the optimizer's state").equals(["torch.float32"] * 2)


@check(
    points=3,
    todo=4,
    title="a step is the one that float32 takes on the whole batch",
    look_at="autocast_step: the loss that goes backward, and what happens to its gradient",
)
def step(submission: Submission, ranks: Ranks) -> None:
    for shares in ([1, 3, 4], [4], [0, 2]):
        run = trained(submission, ranks, [samples(shares)])
        fallen = [value["weights"][0] - value["weights"][1] for value in run.values]
        what = f"gradient of ranks with {', '.join(map(str, shares))} samples, a digit for each, from a scale of 8"
        expect(fallen, what).equals([digits(shares)] * len(shares))
    run = trained(submission, ranks, [samples([2, 2])], dtype="bfloat16", scale=0.0)
    fallen = [value["weights"][0] - value["weights"][1] for value in run.values]
    expect(fallen, "gradient in bfloat16, without a scaler").equals([22.0, 22.0])
    losses = [value["losses"][0] for value in run.values]
    expect(losses, "loss of each rank, not scaled").equals([4.0, 40.0])
    run = trained(submission, ranks, [samples([2, 2])])
    losses = [value["losses"][0] for value in run.values]
    expect(losses, "loss of each rank, not scaled, with a scaler").equals([4.0, 40.0])


@check(
    points=4,
    todo=4,
    title="a skipped step leaves weights and optimizer alone, on every rank",
    look_at="autocast_step: what happens when unscale_ has found an overflow",
)
def skip(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    odd = draw.randrange(3)
    ones, overflow = [torch.ones(2)] * 3, [torch.full((2,), 60000.0 if r == odd else 1.0) for r in range(3)]
    run = trained(submission, ranks, [ones, overflow, ones])
    for rank, value in enumerate(run.values):
        where = f"on rank {rank}; a gradient of rank {odd} is infinite in the second of three steps"
        expect(value["stepped"], f"steps taken {where}").equals([True, False, True])
        expect(value["weights"], f"weight before and after each {where}").equals([1.0, 0.0, 0.0, -1.5])
        expect(value["momentum"], f"momentum before and after each {where}").equals([0.0, 1.0, 1.0, 1.5])
        expect(value["scale"], f"scale before and after each {where}").equals([8.0, 8.0, 4.0, 4.0])
    other = group_of([rank for rank in range(3) if rank != odd])
    inputs = [Args(1.0, [overflow[rank]], group=group_of([odd]) if rank == odd else other) for rank in range(3)]
    run = ranks(3).call(submission.used_by(one_weight), inputs)
    seen, what = [value["stepped"][0] for value in run.values], f"has it stepped, where rank {odd} is a group alone"
    expect(seen, what, look_at="autocast_step: what `group` is given to").equals([rank != odd for rank in range(3)])


@check(
    points=2,
    todo=4,
    title="gradients are clipped as they are without scaling",
    look_at="the order of unscaling and clipping",
)
def clip(submission: Submission, ranks: Ranks) -> None:
    run = trained(submission, ranks, [samples([2, 2])], max_norm=2.0)
    fallen = [value["weights"][0] - value["weights"][1] for value in run.values]
    expect(torch.tensor(fallen), "a gradient of 22, clipped to 2").close_to(torch.full((2,), 2.0), rel=1e-3)
    run = trained(submission, ranks, [[torch.ones(2)] * 2], max_norm=2.0, scale=64.0)
    fallen = [value["weights"][0] - value["weights"][1] for value in run.values]
    expect(fallen, "a gradient of 1, which is below 2, with a scale of 64").equals([1.0, 1.0])


@check(points=1, todo=2, title="a restored scaler goes on where the old one was", look_at="the state that update keeps")
def restored(submission: Submission, ranks: Ranks) -> None:
    given = [Args([8.0, 2.0, 0.5], 3, [False] * 5, restored=2)]
    (scales,) = ranks(1).call(submission.used_by(history), given).values
    expect(scales, "scale after each step, restored after two").equals([8.0, 8.0, 16.0, 16.0, 16.0])


HINTS = {
    1: [
        "An overflow on one rank only: the others must skip the step, too, or the weights part. Each rank holds one "
        "number, 1 or 0. After which reduction do all of them hold 1 if any did?",
        "`found_inf = (~finite).float().reshape(1)` can be all-reduced with `ReduceOp.MAX`. Every rank calls it, "
        "also one without gradients. The division is in place, on every gradient of the list.",
        "For each gradient `gradient.mul_(1 / self._scale)`; then `dist.all_reduce(found_inf, ReduceOp.MAX, group)` "
        "and `return bool(found_inf.item())`.",
    ],
    2: [
        "On paper, growing after 3 steps: a scale of 8, then steps that are fine, fine, overflow, fine, fine, fine. "
        "After which of them does the scale change, and to what? What must the counter be after the overflow, and "
        "after growing?",
        "The counter goes back to 0 after an overflow and whenever it has reached `growth_interval`, also if the "
        "scale may not grow any more. The scale stays between SMALLEST and LARGEST.",
        "Add 1 to the counter. After an overflow: `self._scale = max(self._scale * self.backoff_factor, SMALLEST)`, "
        "and the counter is 0. Else, when it has reached `self.growth_interval`: the scale becomes `self._scale * "
        "self.growth_factor` if that is at most LARGEST, and the counter is 0.",
    ],
    3: [
        "A weight of 1 in float16 that loses 2**-13 in each step never moves: the next smaller number is 1 - "
        "2**-11. Which copy of it has to take the steps, and when does the model see the result?",
        'The optimizer works on what is in `entry["params"]`: put the masters there. It reads `master.grad`, '
        "which autograd does not fill, since the model computes with the 16-bit parameter. After its step the "
        "model's weights are stale.",
        'In `__init__`, for `place, parameter` in `enumerate(entry["params"])` where it is trained and its dtype '
        'in HALVES: `entry["params"][place] = master = nn.Parameter(parameter.detach().float())`, and '
        "`self.pairs.append((parameter, master))`. In `take_gradients`, for each pair: `master.grad` is "
        "`parameter.grad.float()`, or None if there is none; then `parameter.grad = None`. In `step`: "
        "`self.optimizer.step()`, then `parameter.copy_(master)` for each pair.",
    ],
    4: [
        "A gradient of 2**-30 is 0 in float16. Scaled by 2**16 it is 2**-14, which float16 holds. Where does the "
        "division have to happen, so that it is not lost again? And a gradient of norm 22, scaled by 8, clipped to "
        "2, then divided by 8: how long is it in the end, and how long should it be?",
        "The order on all ranks: all-reduce, masters take the gradients, unscale, update the scaler, clip, step. An "
        "overflow leaves out the last two. Collectives are called on every rank, also by one without samples.",
        "If `samples`: with autocast `loss = loss_fn(model(inputs), targets)`, then, outside it, "
        "`(scaler.scale(loss) * share).backward()`, or `(loss * share).backward()` without a scaler. Then "
        "`all_reduce_gradients(trained, group)`; `masters.take_gradients()` if there are masters; with a scaler "
        "`found_inf = scaler.unscale_(updated, group)` and `scaler.update(found_inf)`. Unless `found_inf`: "
        "`clip_grad_norm_(updated, max_norm)` if there is a max_norm, and `optimizer.step()`.",
    ],
}
