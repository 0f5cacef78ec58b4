"""Pipeline parallelism: each rank holds some consecutive layers; microbatches pass through the ranks and back.

A schedule says which rank does what in each slot: a forward or a backward of one microbatch through one stage. GPipe
(Huang et al. 2019) does all forwards first. 1F1B (PipeDream-Flush, Narayanan et al. 2021a) begins each backward as soon
as possible, so that fewer activations are kept. Interleaved (Narayanan et al. 2021b, section 2.2) gives each rank
several stages, its chunks: with N ranks, chunk c of rank r is stage c * N + r.
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

from labkit.course.phase2_advanced.pipeline_parallel.given import arguments
from labkit.course.phase2_advanced.pipeline_parallel.given.messages import PipelineMessages, slots_of_rank
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
    """All forwards, then all backwards: up to `microbatches` microbatches are in flight on every rank."""
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
    """Stage `index` of `count`: `module` maps one tensor to another, both with the samples along dimension 0."""

    def __init__(self, module: nn.Module, index: int, count: int) -> None:
        arguments.check_index(index, count)
        self.module, self.index, self.count = module, index, count
        self.is_first, self.is_last = index == 0, index == count - 1
        self._kept: dict[int, tuple[Tensor, GradientEdge | None]] = {}

    @property
    def in_flight(self) -> int:
        """Number of microbatches of which something is kept."""
        return len(self._kept)

    def forward(self, microbatch: int, inputs: Tensor, loss_of: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Return the module's output, or `loss_of(output)`, detached; it requires grad if it wants a gradient back."""
        inputs = inputs.detach().requires_grad_(inputs.requires_grad)
        output: Tensor = self.module(inputs)
        if loss_of is not None:
            output = loss_of(output)
        # the output's place in the graph is all that backward needs: its memory may go once it has been sent
        self._kept[microbatch] = inputs, get_gradient_edge(output) if output.requires_grad else None
        return output.detach().requires_grad_(output.requires_grad)

    def backward(self, microbatch: int, gradient: Tensor | None = None) -> Tensor | None:
        """Add to the gradients of the module's parameters; return that of the inputs if they require one.

        gradient: of what `forward` returned; None for a loss. Afterwards nothing of the microbatch is kept.
        """
        # TODO 3. Here the chain rule continues from the next rank: `torch.autograd.backward(edge, gradient)` starts at
        # a place in the graph. `inputs` and `edge` are what `forward` kept; edge is None if nothing so far is trained.
        ### BEGIN SOLUTION
        inputs, edge = self._kept.pop(microbatch)
        if edge is not None:
            torch.autograd.backward(edge, gradient)
        ### END SOLUTION
        return torch.zeros_like(inputs) if inputs.requires_grad and inputs.grad is None else inputs.grad


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

        # TODO 4. For each slot of `self.slots`: run `slot.action`, unless it is None, on `self.stages[action.chunk]`;
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
