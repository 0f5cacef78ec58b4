"""Visible checks and hints of pipeline_parallel: stages of one weight, so that a wrong number can be traced by hand.

Each stage multiplies by its weight, 1. Sample k of n is n * 10 ** k, and the loss is the mean of the outputs: so the
gradient of every weight is 1111 for four samples, and 1101 means that sample 1 is missing.
"""

from __future__ import annotations

from typing import Any

import torch

from labkit.checks import Args, Draw, Ranks, Submission, check, expect, group_of
from labkit.clusters import Run
from labkit.course.phase2_advanced.pipeline_parallel.scenarios import drawn, highest_cost, lowest_cost, split


def one_stage(frozen: bool) -> dict[str, Any]:
    """On a rank: run two microbatches through the second of two stages, y = 3 x, and back."""
    import torch
    from torch import nn

    from labkit.exercises import pipeline_parallel

    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 3.0)
    module.requires_grad_(not frozen)
    stage = pipeline_parallel.PipelineStage(module, 1, 2)
    for k in range(2):
        stage.forward(k, torch.full((1, 1), 10.0**k, requires_grad=True))
    kept = [stage.in_flight]
    gradients = []
    for k in range(2):
        gradients.append(stage.backward(k, torch.full((1, 1), 2.0)))
        kept.append(stage.in_flight)
    return {"inputs": gradients, "weight": module.weight.grad, "kept": kept}


def recomputed(recompute: bool) -> dict[str, Any]:
    """On a rank: run four microbatches of ones through dropout(tanh(...tanh(w x))), and back in the same order.

    Forwards run under autocast, backwards do not.
    """
    import torch
    from torch import nn

    from labkit.clusters.device import memory_allocated
    from labkit.exercises import pipeline_parallel

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()))
            self.dtypes: list[str] = []

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.dtypes.append(str((torch.ones(1, 1) @ torch.ones(1, 1)).dtype))
            result = inputs * self.weight
            for _ in range(8):
                result = result.tanh()
            return nn.functional.dropout(result, 0.5)

    torch.manual_seed(0)
    module = Block()
    stage = pipeline_parallel.PipelineStage(module, 1, 2, **({"recompute": True} if recompute else {}))
    inputs = [torch.ones(64, 1024, requires_grad=True) for _ in range(4)]
    before = memory_allocated()
    runs, outputs = [], []
    for k in range(4):
        with torch.autocast(inputs[k].device.type, dtype=torch.bfloat16):
            outputs.append(stage.forward(k, inputs[k]) != 0)
        runs.append(len(module.dtypes))
    held = memory_allocated() - before
    masks, drawn, gradient = [], [], None
    for k in range(4):
        gradient = stage.backward(k, torch.ones(64, 1024))
        masks.append(gradient is not None and gradient.any() and ((gradient != 0) == outputs[k]).all().item())
        drawn.append(torch.rand(1).item())
        runs.append(len(module.dtypes))
    return {
        "runs": runs,
        "held": held / inputs[0].nbytes,
        "arrived": gradient is not None and gradient.any().item(),
        "masks": masks,
        "drawn": drawn,
        "dtypes": module.dtypes,
        "weight": module.weight.grad,
        "left": stage.in_flight,
    }


def piped(
    name: str, samples: int, microbatches: int, chunks: int = 1, frozen: int = 0, group: Any = None, width: int = 1
) -> dict[str, Any]:
    """On a rank: run one batch through the pipeline and back. The first `frozen` stages are not trained."""
    import torch
    import torch.distributed as dist
    from torch import nn

    from labkit.exercises import pipeline_parallel as pp

    class Weight(nn.Module):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(()), requires_grad=number >= frozen)
            self.most = 0

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            self.most = max(self.most, 1 + sum(stage.in_flight for stage in stages))
            return inputs * self.weight

    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    count = ranks * chunks
    modules = [Weight(number) for number in range(rank, count, ranks)]
    stages = [pp.PipelineStage(module, rank + ranks * c, count) for c, module in enumerate(modules)]
    pipeline = pp.PipelineParallel(stages, pp.get_pipeline_schedule(name, ranks, microbatches, chunks), group)
    values = torch.tensor([samples * 10.0**k for k in range(samples)])[:, None].expand(samples, width)
    is_first, is_last = rank == 0, rank == ranks - 1
    loss = pipeline.forward_backward(
        values if is_first else None, torch.zeros(samples, 1) if is_last else None, lambda output, _: output.mean()
    )
    return {
        "loss": None if loss is None else loss.item(),
        "detached": loss is None or not loss.requires_grad,
        "gradients": [None if m.weight.grad is None else m.weight.grad.item() for m in modules],
        "most": max(module.most for module in modules),
        "left": sum(stage.in_flight for stage in stages),
    }


def run_of(submission: Submission, ranks: Ranks, world_size: int, *given: Any, **more: Any) -> Run:
    return ranks(world_size).call(submission.used_by(piped), [Args(*given, **more)] * world_size)


def ones(samples: int) -> float:
    """Return 1...1 with one digit per sample."""
    return float("1" * samples)


def expect_ones(run: Run, samples: int, chunks: int = 1, what: str = "") -> None:
    world_size = len(run.values)
    seen = [value["gradients"] for value in run.values]
    expect(seen, f"gradients of the weights of ranks 0 to {world_size - 1}{what}, a one for each sample").equals(
        [[ones(samples)] * chunks] * world_size
    )


def filled(costs: list[int], num_stages: int, *, over: bool) -> float:
    """Return the highest cost if a stage ends as soon as its share is full. over: include the layer that exceeds it."""
    share, ends, held = sum(costs) / num_stages, list[int](), 0
    for layer, cost in enumerate(costs):
        if held and len(ends) < num_stages - 1 and held + (0 if over else cost) > share - over:
            ends.append(layer)
            held = 0
        held += cost
    return highest_cost(costs, ends)


def awkward(draw: Draw) -> tuple[list[int], int, float]:
    """Return costs and a number of stages for which filling stages from the left is not optimal, and the optimum."""
    while True:
        costs, num_stages = [draw.randrange(1, 9) for _ in range(draw.choice([6, 7]))], draw.choice([2, 3])
        lowest = lowest_cost(costs, num_stages)
        if min(filled(costs, num_stages, over=over) for over in (False, True)) > lowest:
            return costs, num_stages, lowest


@check(points=3, todo=1, title="stages are balanced by cost", look_at="split_into_stages: where the last stage begins")
def balanced(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = [([1, 1, 6], 2, 6), ([4, 4], 1, 8), *(awkward(draw) for _ in range(4))]
    given = [(costs, num_stages, None) for costs, num_stages, _ in cases]
    (splits,) = ranks(1).call(submission.used_by(split), [Args(given)]).values
    for stages, (costs, num_stages, lowest) in zip(splits, cases, strict=True):
        what = f"layers of cost {costs} in {num_stages} stages: "
        expect([layer for stage in stages for layer in stage], what + "all layers").equals(list(range(len(costs))))
        expect(len(stages), what + "stages").equals(num_stages)
        expect(max(sum(costs[layer] for layer in stage) for stage in stages), what + "highest cost").equals(lowest)


@check(
    points=3,
    todo=2,
    title="1F1B: a backward as soon as there is one, few activations in flight",
    look_at="_one_f_one_b: how many forwards come before the first backward, and how many there are at all",
)
def one_f_one_b(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    for stages, microbatches in ((4, 6), (4, 2), (draw.choice([2, 5]), 5)):
        given = [Args([("1f1b", stages, microbatches, 1)])]
        ((rows,),) = ranks(1).call(submission.used_by(drawn), given).values
        what = f"1F1B of {stages} ranks, {microbatches} microbatches: "
        expect(len(rows), what + "actions").equals(2 * stages * microbatches)
        for rank in range(stages):
            warm_up = 0
            for row in rows:
                if row[1] == rank:
                    if row[2] == "backward":
                        break
                    warm_up += 1
            expect(warm_up, what + f"forwards of rank {rank} before its first backward").equals(
                min(stages - rank, microbatches)
            )
        expect(max(row[0] for row in rows) + 1, what + "slots").equals(2 * (microbatches + stages - 1))
        for name in ("gpipe", "1f1b"):
            ((rows,),) = ranks(1).call(submission.used_by(drawn), [Args([(name, stages, microbatches, 1)])]).values
            order = [[row[3] for row in rows if row[1:3] == [rank, "backward"]] for rank in range(stages)]
            expect(
                order,
                f"{name} of {stages} ranks: microbatches in the order of each rank's backwards",
                look_at="the first microbatch's backward is first, in GPipe, too: gradients are then the same sums",
            ).equals([list(range(microbatches))] * stages)


@check(
    points=3,
    todo=2,
    title="interleaved: the bubble is divided by the chunks",
    look_at="_one_f_one_b: the warm-up with chunks",
)
def interleaved(submission: Submission, ranks: Ranks) -> None:
    for stages, chunks, microbatches in ((2, 2, 4), (3, 2, 6), (2, 3, 5)):
        given = [Args([("interleaved", stages, microbatches, chunks)])]
        ((rows,),) = ranks(1).call(submission.used_by(drawn), given).values
        what = f"interleaved, {stages} ranks with {chunks} chunks, {microbatches} microbatches: "
        expect(len(rows), what + "actions").equals(2 * stages * chunks * microbatches)
        idle = max(row[0] for row in rows) + 1 - 2 * chunks * microbatches
        expect(idle, what + "idle slots of each rank").equals(2 * (stages - 1))


@check(
    points=3,
    todo=3,
    title="a stage goes on with the chain rule, and forgets",
    look_at="PipelineStage.backward: where the chain rule starts again, and what is kept",
)
def stage(submission: Submission, ranks: Ranks) -> None:
    for frozen in (False, True):
        (value,) = ranks(1).call(submission.used_by(one_stage), [Args(frozen)]).values
        of = "a frozen stage" if frozen else "a stage"
        expect(value["inputs"], f"{of}, y = 3 x: gradients of its inputs, for 2 from the next").equals(
            [torch.full((1, 1), 6.0)] * 2
        )
        expect(value["kept"], f"{of}: microbatches kept after two forwards, one backward, two").equals([2, 1, 0])
        if not frozen:
            expect(value["weight"], "gradient of its weight, for inputs 1 and 10").equals(torch.full((1, 1), 22.0))


@check(
    points=3,
    todo=4,
    title="recompute: a stage runs again, and draws the same",
    look_at="PipelineStage._repeat: where the random generators are before, during and after it",
)
def recompute(submission: Submission, ranks: Ranks) -> None:
    (plain,) = ranks(1).call(submission.used_by(recomputed), [Args(False)]).values
    run = ranks(1).call(submission.used_by(recomputed), [Args(True)])
    (again,) = run.values
    what = "with recompute, four microbatches through a stage with dropout: "
    expect(again["runs"], what + "runs of its module, after each forward and each backward").equals(
        [1, 2, 3, 4, 5, 6, 7, 8]
    )
    if run.trace.clock == "modelled":  # on real ranks memory is not counted tensor by tensor
        expect(
            again["held"],
            what + "memory held after the forwards, in inputs",
            look_at="PipelineStage.forward: only `inputs` may stay; an edge, too, holds its whole graph",
        ).at_most(5)
    expect(
        again["arrived"],
        what + "the inputs have a gradient other than 0",
        look_at="PipelineStage._repeat: return what `again.run()` returned, with its graph",
    ).equals(True)
    expect(
        again["masks"],
        what + "the inputs' gradient is 0 exactly where the output was 0, for each",
        look_at="PipelineStage._repeat: `set_random_states(again.random_states)` before it runs; else dropout draws "
        "another mask",
    ).equals([True] * 4)
    expect(
        again["drawn"],
        "random numbers drawn after each backward, as without recompute",
        look_at="PipelineStage._repeat: read `random_states(again.devices)` first, and set them again at the end",
    ).equals(plain["drawn"])
    expect(
        again["dtypes"],
        what + "dtypes of products in each run, four forwards under autocast and four backwards",
        look_at="PipelineStage._repeat: `with again.autocast:` around the run",
    ).equals(["torch.bfloat16"] * 8)
    expect(again["weight"], "gradient of the weight, as without recompute").equals(plain["weight"])
    expect(again["left"], "microbatches kept after all backwards").equals(0)


@check(
    points=3,
    todo=5,
    title="gradients and loss are those of one process",
    look_at="forward_backward: what each stage is given, and each part's share of the loss",
)
def values(submission: Submission, ranks: Ranks, draw: Draw) -> None:
    cases = [("gpipe", 3, 4, 1), ("1f1b", 3, 4, 1), ("1f1b", 4, 2, 1), ("1f1b", 1, 3, 1), ("interleaved", 2, 4, 2)]
    for name, world_size, microbatches, chunks in cases:
        run = run_of(submission, ranks, world_size, name, microbatches, microbatches, chunks)
        expect_ones(run, microbatches, chunks, f" with {name}")
        seen = [value["loss"] for value in run.values]
        expect(seen, f"loss on each rank with {name}").equals([None] * (world_size - 1) + [ones(microbatches)])
        expect(run.values[-1]["detached"], "the loss is detached").holds("it still requires a gradient")
    pair = group_of([1, 2])
    run = ranks(3).call(submission.used_by(piped), [None, *[Args("1f1b", 3, 3, group=pair)] * 2])
    seen = [value["gradients"] for value in run.values[1:]]
    expect(seen, "gradients in a group of ranks 1 and 2").equals([[ones(3)]] * 2)


@check(
    points=2,
    todo=5,
    title="microbatches of unequal sizes count by their samples",
    look_at="the share of a microbatch in the loss; the mean of no sample",
)
def uneven(submission: Submission, ranks: Ranks) -> None:
    for samples, microbatches in ((5, 2), (2, 3)):
        run = run_of(submission, ranks, 2, "1f1b", samples, microbatches)
        what = f" for {samples} samples in {microbatches} microbatches"
        expect_ones(run, samples, what=what)
        expect(run.values[1]["loss"], f"loss on the last rank{what}").equals(ones(samples))


@check(
    points=2,
    todo=5,
    title="activations are gone with their backward",
    look_at="what is kept of a microbatch, and how long",
)
def in_flight(submission: Submission, ranks: Ranks) -> None:
    for name, most in (("1f1b", [3, 2, 1]), ("gpipe", [5, 5, 5])):
        run = run_of(submission, ranks, 3, name, 5, 5)
        expect([value["left"] for value in run.values], f"microbatches kept after {name}").equals([0] * 3)
        expect([value["most"] for value in run.values], f"microbatches kept at most with {name}").equals(most)


@check(
    points=3,
    todo=5,
    title="messages between neighbours, forth and back, and no others",
    look_at="what you give to `messages.exchange`: the action's result; None if it has none",
)
def messages(submission: Submission, ranks: Ranks) -> None:
    width, announced = 1000, 1000
    run = run_of(submission, ranks, 3, "1f1b", 4, 4, width=width)
    called = sorted({event.operation for event in run.trace.collectives()})
    expect(called, "library collectives", look_at="a pipeline is made of sends and receives").equals([])
    expect([run.trace.sends_to(rank) for rank in range(3)], "ranks that ranks 0-2 send to").equals([{1}, {0, 2}, {1}])
    for rank, times in enumerate((1, 2, 1)):
        sent = run.trace.bytes_sent(rank)
        expect(sent, f"bytes sent by rank {rank}", unit="bytes").at_least(times * 4 * 4 * width)
        expect(sent, f"bytes sent by rank {rank}", unit="bytes").at_most(times * (4 * 4 * width + announced))
    run = run_of(submission, ranks, 3, "1f1b", 4, 4, frozen=1)
    hint = "a first stage without trained weights wants no gradient"
    seen = [value["gradients"] for value in run.values]
    advice = "the earlier checks of gradients first; if they pass, " + hint
    expect(seen, "gradients when rank 0 is frozen", look_at=advice).equals([[None], [1111.0], [1111.0]])
    expect(run.trace.sends_to(1), "ranks that rank 1 sends to when rank 0 is frozen", look_at=hint).equals({2})


HINTS = {
    1: [
        "Costs 1, 1, 6 in two stages: to fill the first stage to its share, 4, takes in all three layers. The cut "
        "that you look for depends on the most expensive stage. If the last stage begins at layer `cut`, it costs "
        "what is left; what is the least that the stages before it can cost?",
        "Let best[n] be what the first n layers cost in k stages, and where these end. With one stage that is "
        "known. With one more, its first layer may be any: try all, and take the one for which the larger of two "
        "numbers, best[cut] and the cost of what is left, is the least.",
        "`best = {n: (before[n], [n]) for n in range(1, len(layers) + 1)}`. Then, for k from 1 to `num_stages - 1`, "
        "a new dict for n from k + 1 on: `min((max(best[cut][0], before[n] - before[cut]), [*best[cut][1], n]) for "
        "cut in range(k, n))`. `ends` is `best[len(layers)][1]`.",
    ],
    2: [
        "Draw lanes for four ranks. The last one may go back at once: forward 0, backward 0, forward 1, ... The one "
        "before it has to do one more forward first, else it would idle. How many is that on rank 0?",
        "With one chunk the warm-up is as many forwards as there are ranks after this one. The steady state takes "
        "pairs of the next forward and the next backward, until the forwards end. As many backwards are left for "
        "the cool-down as there were forwards ahead.",
        "With `after = stages - rank - 1`: `ahead` is `after` with one chunk, else `2 * after + (chunks - 1) * "
        "len(groups[0])`, and at most `len(forwards)`. Return `forwards[:ahead]`, then each pair of "
        "`zip(forwards[ahead:], backwards)`, one step after the other, then `backwards[len(backwards) - ahead :]`.",
    ],
    3: [
        "`forward` has kept two things for the microbatch, and afterwards nothing of it may be kept. "
        "`torch.autograd.backward` starts at a place in the graph with the gradient that came from the next rank; "
        "where does it leave the gradient of `inputs`?",
        "`inputs, edge = self._kept.pop(microbatch)`, and unless `edge` is None, `torch.autograd.backward(edge, "
        "gradient)`. The gradient of `inputs` is in `inputs.grad` then.",
    ],
    4: [
        "Dropout draws a mask from the generator, which moves on. When `_repeat` runs, later microbatches have drawn "
        "from it. In which state was the generator at the first run, and in which should it be after the second?",
        "Three steps: note where the generators are now; set them back to `again.random_states` and run within "
        "`with again.autocast:`; set them to what you noted.",
        "`now = random_states(again.devices)`, `set_random_states(again.random_states)`, `output = again.run()` in the "
        "context, `set_random_states(now)`, and return `output`.",
    ],
    5: [
        "Each slot has two halves: computing, if it has an action, and `messages.exchange(slot, result)`, which "
        "also an idle rank calls: messages may arrive. Write the loop for a middle stage first. Where does its "
        "forward get its input, and its backward its gradient?",
        "`result` is None in an idle slot. The first stage takes `inputs[k]` in place of a received activation. The "
        "last stage has no one to send to: it passes `loss_of` to `stage.forward`, and the result is the "
        "microbatch's share of the loss. Two microbatches of 1 and 3 samples: by what do you weight their means?",
        "Its stage is `self.stages[action.chunk]`. Backward: `result = stage.backward(k, "
        "messages.receive_gradient(action))`. Forward: `result = stage.forward(k, given, loss_of)`, where `given` "
        "is `inputs[k]` on the first stage, else `messages.receive_activation(action)`, and `loss_of` is None "
        "except on the last stage.",
        "`loss_of` takes the output and returns `loss_fn(output, targets[k]) * len(targets[k]) / samples`, and "
        "`output.sum() * 0` for a part without samples. On the last stage append `result.detach()` to `losses`. "
        "After the loop `messages.wait_for_sends()`.",
    ],
}
