"""Messages between the stages of a pipeline: activations forward, gradients back.

All messages of one slot of the schedule are posted together, and slots follow in order on every rank. So whatever the
sizes of the messages, no ranks wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain, groupby
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.phase2_advanced.pipeline_parallel.given.arguments import Stage
from labkit.course.phase2_advanced.pipeline_parallel.given.schedules import Action, Op, Schedule


class Message(NamedTuple):
    """Input of one step of a stage: an activation for its forward, or a gradient for its backward."""

    op: Op
    to: int
    """The stage that receives it, numbered over all ranks and chunks."""
    microbatch: int

    @property
    def sender(self) -> int:
        """The stage that sends it."""
        return self.to - 1 if self.op == "forward" else self.to + 1


class Slot(NamedTuple):
    """One slot of a schedule, as one rank sees it."""

    action: Action | None
    """Forward or backward that the rank does; None if it is idle."""
    arriving: list[Message]
    """Results of other ranks' actions in this slot that go to this rank."""


def slots_of_rank(schedule: Schedule, rank: int, ranks: int, chunks: int) -> list[Slot]:
    """Return the slots in which some rank does something, in order of time, as `rank` sees them."""
    slots = []
    for _, actions in groupby(sorted(schedule), key=lambda action: action.time):
        mine, arriving = None, []
        for action in actions:
            message = _result_of(action, ranks, chunks)
            if action.stage == rank:
                mine = action
            elif message is not None and message.to % ranks == rank:
                arriving.append(message)
        slots.append(Slot(mine, arriving))
    return slots


def _result_of(action: Action, ranks: int, chunks: int) -> Message | None:
    """Return the message with the result of `action`; None if no stage needs it."""
    to = action.chunk * ranks + action.stage + (1 if action.op == "forward" else -1)
    return Message(action.op, to, action.microbatch) if 0 <= to < ranks * chunks else None


class _Format(NamedTuple):
    """Format of all activations between two stages, announced with the first of them."""

    samples: int
    """Number of samples of all microbatches together."""
    requires_grad: bool
    dtype: torch.dtype
    shape: tuple[int, ...]
    """Shape of one sample."""


_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int32, torch.bool)
_ANNOUNCEMENT_LENGTH = 12
"""Numbers in an announcement: samples, requires_grad, dtype, number of dimensions of a sample, its shape, padding."""

_Post = tuple[Callable[..., Any], Tensor, int]
"""isend or irecv, a tensor, the stage at the other end."""


class PipelineMessages:
    """Messages of one `forward_backward` on one rank, between stages that are next to each other.

    The first activation between two stages is preceded by an announcement of its format: 12 numbers of 8 bytes. A
    gradient has the format of the activation that it belongs to, and is sent only if that requires one.

    stages: those of this rank. samples: in the whole batch, on the rank of the first stage; others learn it.
    """

    def __init__(
        self, stages: Sequence[Stage], microbatches: int, samples: int, group: ProcessGroup | None = None
    ) -> None:
        self._rank, self._peers = dist.get_rank(group), dist.get_process_group_ranks(group)
        self._chunks, self._microbatches, self._samples, self._group = len(stages), microbatches, samples, group
        parameters = (parameter for stage in stages for parameter in stage.module.parameters())
        self._device = next((parameter.device for parameter in parameters), torch.get_default_device())
        self._formats: dict[int, _Format] = {}  # by the stage that receives the activations
        self._received: dict[Message, tuple[Tensor, list[dist.Work]]] = {}
        self._sending: tuple[Tensor | None, list[dist.Work]] = None, []

    def receive_activation(self, action: Action) -> Tensor:
        """Return the input of a forward, as soon as it has arrived.

        Its `requires_grad` says whether the previous stage wants a gradient.
        """
        message = self._message_for(action)
        if message not in self._received:
            raise RuntimeError(
                f"no activation has arrived for {action}: exchange the messages of every slot, and take the inputs of "
                "the first stage from the batch"
            )
        activation = self._wait_for(message)
        if message.to in self._formats:  # otherwise it comes from this rank
            activation.requires_grad_(self._formats[message.to].requires_grad)
        return activation

    def receive_gradient(self, action: Action) -> Tensor | None:
        """Return the gradient for a backward, as soon as it has arrived.

        None for the last stage, and for a stage whose output requires none.
        """
        message = self._message_for(action)
        return self._wait_for(message) if message in self._received else None

    def exchange(self, slot: Slot, result: Tensor | None) -> None:
        """Post all messages of one slot: this rank's `result`, and what arrives. Call it for every slot, in order.

        result: the activation or gradient that the action returned; None if there is none. It is sent if another stage
        needs it.
        """
        message = _result_of(slot.action, len(self._peers), self._chunks) if slot.action else None
        if message is not None and result is not None and len(self._peers) == 1:
            self._received[message] = result, []
            return
        self._announce(message, result, slot.arriving)
        self._post_tensors(message, result, slot.arriving)

    def wait_for_sends(self) -> None:
        """Wait until all results have been sent."""
        for work in self._sending[1]:
            work.wait()
        self._sending = None, []

    def _message_for(self, action: Action) -> Message:
        return Message(action.op, action.chunk * len(self._peers) + self._rank, action.microbatch)

    def _wait_for(self, message: Message) -> Tensor:
        tensor, works = self._received.pop(message)
        for work in works:
            work.wait()
        return tensor

    def _post_tensors(self, message: Message | None, result: Tensor | None, arriving: Sequence[Message]) -> None:
        posts: list[_Post] = []
        if sending := message is not None and result is not None and result.numel() > 0:
            self.wait_for_sends()  # keep a sent tensor only until the next one is sent
            posts.append((dist.isend, result.detach().contiguous(), message.to))
        # a stage whose result requires no gradient gets none
        wanted = [each for each in arriving if each.op == "forward" or self._formats[each.sender].requires_grad]
        buffers = {each: self._buffer(each) for each in wanted}
        posts += [(dist.irecv, buffer, each.sender) for each, buffer in buffers.items() if buffer.numel()]
        works = self._post(posts)
        if sending:
            self._sending = posts[0][1], works.pop(0)
        for each, buffer in buffers.items():
            self._received[each] = buffer, works.pop(0) if buffer.numel() else []

    def _announce(self, message: Message | None, result: Tensor | None, arriving: Sequence[Message]) -> None:
        """Send the format of the first activation to the next stage; receive those of arriving ones."""
        posts: list[_Post] = []
        if message and result is not None and message.op == "forward" and message.to not in self._formats:
            shape = tuple(result.shape[1:])
            self._formats[message.to] = _Format(self._samples, result.requires_grad, result.dtype, shape)
            numbers = [self._samples, result.requires_grad, _DTYPES.index(result.dtype), len(shape), *shape]
            numbers += [0] * (_ANNOUNCEMENT_LENGTH - len(numbers))
            posts.append((dist.isend, torch.tensor(numbers, dtype=torch.int64, device=self._device), message.to))
        new = [each for each in arriving if each.op == "forward" and each.to not in self._formats]
        received = [torch.empty(_ANNOUNCEMENT_LENGTH, dtype=torch.int64, device=self._device) for _ in new]
        posts += [(dist.irecv, numbers, each.sender) for each, numbers in zip(new, received, strict=True)]
        for work in chain(*self._post(posts)):
            work.wait()
        for each, announced in zip(new, received, strict=True):
            self._samples, requires_grad, dtype, dimensions, *numbers = announced.tolist()
            shape = tuple(numbers[:dimensions])
            self._formats[each.to] = _Format(self._samples, bool(requires_grad), _DTYPES[dtype], shape)

    def _buffer(self, message: Message) -> Tensor:
        """Return an uninitialized tensor for a message."""
        format = self._formats[message.to if message.op == "forward" else message.sender]
        rows, more = divmod(format.samples, self._microbatches)
        size = (rows + (message.microbatch < more), *format.shape)
        return torch.empty(size, dtype=format.dtype, device=self._device)

    def _post(self, posts: list[_Post]) -> list[list[dist.Work]]:
        """Post all messages at once; return for each the works to wait for."""
        batch = [
            dist.P2POp(post, tensor, self._peers[stage % len(self._peers)], self._group)
            for post, tensor, stage in posts
        ]
        works = dist.batch_isend_irecv(batch) if batch else []
        # NCCL returns a single work for all messages
        return [[work] for work in works] if len(works) == len(batch) else [list(works) for _ in batch]
