"""Pipeline parallelism: each rank holds some consecutive layers; microbatches pass through the ranks and back.

A schedule says which rank does what in each slot: a forward or a backward of one microbatch through one stage. GPipe
(Huang et al. 2019) does all forwards first. 1F1B (PipeDream-Flush, Narayanan et al. 2021a) begins each backward as soon
as possible, so that fewer activations are kept. Interleaved (Narayanan et al. 2021b, section 2.2) gives each rank
several stages, its chunks: with N ranks, chunk c of rank r is stage c * N + r.

In all three a rank's backward passes begin with microbatch 0, so each gradient is the same sum in the same order, with
the same bits. (The backwards in GPipe's paper begin with the last microbatch, as autograd does by itself.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.distributed import ProcessGroup

from labkit.course.phase2_advanced.activation_checkpointing.given.recomputation import random_states, set_random_states
from labkit.course.phase2_advanced.pipeline_parallel.given import arguments
from labkit.course.phase2_advanced.pipeline_parallel.given.messages import PipelineMessages, slots_of_rank
from labkit.course.phase2_advanced.pipeline_parallel.given.recomputation import ForwardPass
from labkit.course.phase2_advanced.pipeline_parallel.given.schedules import (
    Action,
    Schedule,
    Step,
    bubble_fraction,
    most_in_flight,
    schedule_orders,
)

__all__ = [
    "Action", "PipelineParallel", "PipelineStage", "bubble_fraction", "get_pipeline_schedule", "gpipe_schedule",
    "interleaved_schedule", "most_in_flight", "one_f_one_b_schedule", "split_into_stages",
]  # fmt: skip


def split_into_stages(
    layers: Iterable[nn.Module], num_stages: int, costs: Sequence[float] | None = None
) -> list[nn.Sequential]:
    """Split `layers` into `num_stages` stages of consecutive layers so that the most expensive one costs least.

    costs: one per layer, 0 or more; by default its number of parameters. No stage is empty.
    Raises ValueError if there are more stages than layers, or if costs do not fit.
    """
    layers = list(layers)
    costs = [sum(p.numel() for p in layer.parameters()) for layer in layers] if costs is None else costs
    arguments.check_split(len(layers), num_stages, costs)
    before = [0, *accumulate(costs)]  # layers[i:j] cost before[j] - before[i]

    # TODO 1. `ends`, where each stage ends: the first is layers[: ends[0]]. To cut whenever a share is full is not
    # enough: try costs 1, 1, 6 in two stages. If the last of k stages begins at layer `cut`, what do you need to know
    # about the layers before it?
    ### BEGIN SOLUTION
    best = {n: (before[n], [n]) for n in range(1, len(layers) + 1)}  # the first n layers: highest cost, and ends
    for k in range(1, num_stages):  # from k stages to k + 1
        best = {
            n: min((max(best[cut][0], before[n] - before[cut]), [*best[cut][1], n]) for cut in range(k, n))
            for n in range(k + 1, len(layers) + 1)
        }
    ends = best[len(layers)][1]
    ### END SOLUTION
    return [nn.Sequential(*layers[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def gpipe_schedule(stages: int, microbatches: int) -> list[Action]:
    """All forwards, then all backwards, in both the first microbatch first, as in torch's `ScheduleGPipe`.

    Up to `microbatches` microbatches are in flight on every rank. In the paper (Huang et al. 2019, figure 2c) the last
    microbatch's backward is first, which takes as long and keeps as much.
    """
    arguments.check_counts(stages=stages, microbatches=microbatches)
    forwards: list[Step] = [("forward", k, 0) for k in range(microbatches)]
    backwards: list[Step] = [("backward", k, 0) for k in range(microbatches)]
    return schedule_orders([forwards + backwards] * stages)


def one_f_one_b_schedule(stages: int, microbatches: int) -> list[Action]:
    """A backward after each forward, once the pipeline is full: as long as GPipe, at most `stages` in flight."""
    return interleaved_schedule(stages, 1, microbatches)


def interleaved_schedule(stages: int, chunks: int, microbatches: int) -> list[Action]:
    """1F1B with `chunks` stages on each rank: as many idle slots, but each slot is a `chunks`-th as long."""
    arguments.check_counts(stages=stages, chunks=chunks, microbatches=microbatches)
    return schedule_orders([_one_f_one_b(rank, stages, chunks, microbatches) for rank in range(stages)])


def get_pipeline_schedule(name: str, stages: int, microbatches: int, chunks: int = 1) -> list[Action]:
    """Return the schedule of that name: gpipe, 1f1b or interleaved; only interleaved may have several chunks."""
    arguments.check_schedule_name(name, chunks)
    if name == "gpipe":
        return gpipe_schedule(stages, microbatches)
    return interleaved_schedule(stages, chunks, microbatches)


def _one_f_one_b(rank: int, stages: int, chunks: int, microbatches: int) -> list[Step]:
    """Return the steps of `rank` in order. Groups of `stages` microbatches or a few more pass all chunks in turn."""
    groups = torch.arange(microbatches).tensor_split(max(1, microbatches // stages))
    forwards: list[Step] = [("forward", int(k), c) for group in groups for c in range(chunks) for k in group]
    backwards: list[Step] = [("backward", k, chunks - c - 1) for _, k, c in forwards]

    # TODO 2. Return all `forwards` and `backwards`, in three phases. Warm-up: forwards only, with one chunk as many as
    # there are ranks after this one. With several chunks, twice as many, which gives each message a slot's time to
    # arrive; and before those, the first group passes all chunks but the last. There may be fewer forwards than that.
    # Steady state: a forward and a backward in turn. Cool-down: the backwards that are left.
    ### BEGIN SOLUTION
    ranks_after = stages - rank - 1
    ahead = ranks_after if chunks == 1 else 2 * ranks_after + (chunks - 1) * len(groups[0])
    ahead = min(ahead, len(forwards))
    warm_up = forwards[:ahead]
    steady_state = [step for pair in zip(forwards[ahead:], backwards, strict=False) for step in pair]
    cool_down = backwards[len(backwards) - ahead :]
    return warm_up + steady_state + cool_down
    ### END SOLUTION


class PipelineStage:
    """Stage `index` of `count`: `module` maps one tensor to another, both with the samples along dimension 0.

    recompute: keep a microbatch's inputs instead of all its activations, and run the module again in its backward pass,
    as GPipe does: m microbatches in flight hold m inputs, and the activations of the one that is in its backward pass.
    Gradients are the same to the bit; the second run has the random numbers and the autocast of the first, and later
    random numbers are what they would be without it. What the module changes besides, it changes twice.
    """

    def __init__(self, module: nn.Module, index: int, count: int, recompute: bool = False) -> None:
        arguments.check_index(index, count)
        self.module, self.index, self.count, self.recompute = module, index, count, recompute
        self.is_first, self.is_last = index == 0, index == count - 1
        self._kept: dict[int, tuple[Tensor, GradientEdge | None]] = {}
        self._to_repeat: dict[int, ForwardPass] = {}

    @property
    def in_flight(self) -> int:
        """Number of microbatches of which something is kept."""
        return len(self._kept)

    def forward(self, microbatch: int, inputs: Tensor, loss_of: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the module's output, or `loss_of(output)`, detached; it requires grad if it wants a gradient back."""
        inputs = inputs.detach().requires_grad_(inputs.requires_grad)

        def run() -> Tensor:
            output: Tensor = self.module(inputs)
            return output if loss_of is None else loss_of(output)

        again = ForwardPass(inputs, run) if self.recompute else None
        output = run()
        # the output's place in the graph is all that backward needs: its memory may go once it has been sent
        edge = get_gradient_edge(output) if output.requires_grad else None
        if again is not None and edge is not None:
            # an edge holds its graph, and the graph all activations
            self._to_repeat[microbatch], edge = again, None
        self._kept[microbatch] = inputs, edge
        return output.detach().requires_grad_(output.requires_grad)

    def backward(self, microbatch: int, gradient: Tensor | None = None) -> Tensor | None:
        """Add to the gradients of the module's parameters; return that of the inputs if they require one.

        gradient: of what `forward` returned; None for a loss. Afterwards nothing of the microbatch is kept.
        """
        if microbatch in self._to_repeat:
            again = self._to_repeat.pop(microbatch)
            self._kept[microbatch] = again.inputs, get_gradient_edge(self._repeat(again))

        # TODO 3. Here the chain rule continues from the next rank: `torch.autograd.backward(edge, gradient)` starts at
        # a place in the graph. `inputs` and `edge` are what `forward` kept; edge is None if nothing so far is trained.
        ### BEGIN SOLUTION
        inputs, edge = self._kept.pop(microbatch)
        if edge is not None:
            torch.autograd.backward(edge, gradient)
        ### END SOLUTION
        return torch.zeros_like(inputs) if inputs.requires_grad and inputs.grad is None else inputs.grad

    def _repeat(self, again: ForwardPass) -> Tensor:
        """Return the output of a forward pass that runs a second time, with its graph."""
        # TODO 4. `again.run()` computes it, with random numbers of its own: dropout would draw another mask than the
        # first time. `set_random_states(again.random_states)` sets the generators back to where they were then, and
        # `with again.autocast:` is a context with the autocast of then. Afterwards the generators must go on as if
        # nothing had been drawn here: `random_states(again.devices)` returns their states.
        ### BEGIN SOLUTION
        now = random_states(again.devices)
        set_random_states(again.random_states)
        with again.autocast:
            output = again.run()
        set_random_states(now)
        return output
        ### END SOLUTION


class PipelineParallel:
    """Runs a schedule on the ranks of `group`. Messages go between neighbouring stages only.

    stages: those of this rank, one per chunk. schedule: the same on every rank; any in which each action comes after
    what it needs. A weight shared by stages of two ranks is two weights here: add up their gradients over these ranks
    after `forward_backward`. With NCCL, call `dist.barrier(group)` once before: all ranks of a group must take part in
    its first messages. Raises ValueError, before any message, if arguments do not fit together.
    """

    def __init__(self, stages: Sequence[PipelineStage], schedule: Schedule, group: ProcessGroup | None = None) -> None:
        self.stages, self.group = list(stages), group
        arguments.check_stages(self.stages, group)
        rank, ranks, chunks = dist.get_rank(group), dist.get_world_size(group), len(self.stages)
        self.microbatches = arguments.check_schedule(schedule, ranks, chunks)
        self.slots = slots_of_rank(schedule, rank, ranks, chunks)

    def forward_backward(
        self, batch: Tensor | None, target: Tensor | None, criterion: Callable[[Tensor, Tensor], Tensor] | None
    ) -> Tensor | None:
        """Add to the parameters' gradients those of the whole batch's mean loss, as one process would.

        batch: needed on the rank of the first stage; target and criterion on that of the last. Samples are along
        dimension 0. criterion(output, target): mean over the samples that it is given. Microbatches are
        `batch.tensor_split`: sizes differ by one at most, and may be 0. Returns the loss on the rank of the last stage,
        detached, None on others. Raises ValueError, before any message, if a rank lacks what it needs.
        """
        inputs, targets, loss_fn = arguments.split_batch(self.stages, self.microbatches, batch, target, criterion)
        messages = PipelineMessages(self.stages, self.microbatches, sum(map(len, inputs)), self.group)
        samples, losses = sum(map(len, targets)), list[Tensor]()

        # TODO 5. For each slot of `self.slots`: run `slot.action`, unless it is None, on `self.stages[action.chunk]`;
        # then, idle or not, `messages.exchange(slot, result)`. At the end `messages.wait_for_sends()`. The `action.op`
        # "forward" takes `inputs[action.microbatch]` on the first stage, else `messages.receive_activation(action)`;
        # a backward always takes `messages.receive_gradient(action)`. The last stage gets `loss_of`: `loss_fn` with its
        # `targets`, weighted so that its results, `losses`, add up to the mean over all `samples`; parts may be empty.
        ### BEGIN SOLUTION
        def share_of_loss(output: Tensor, target: Tensor) -> Tensor:
            return loss_fn(output, target) * (len(target) / samples) if len(target) else output.sum() * 0

        for slot in self.slots:
            action, result = slot.action, None
            if action is not None:
                stage, k = self.stages[action.chunk], action.microbatch
                if action.op == "backward":
                    result = stage.backward(k, messages.receive_gradient(action))
                else:
                    given = inputs[k] if stage.is_first else messages.receive_activation(action)
                    loss_of = partial(share_of_loss, target=targets[k]) if stage.is_last else None
                    result = stage.forward(k, given, loss_of)
                    if stage.is_last:
                        losses.append(result.detach())
            messages.exchange(slot, result)
        messages.wait_for_sends()
        ### END SOLUTION
        return torch.stack(losses).sum() if losses else None
