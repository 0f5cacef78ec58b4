"""Right: samples are dealt out one by one from a heap, the weight leads the message, DiLoCo keeps its anchors flat."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from math import inf

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.optim import Optimizer

from labkit.course.phase3_multi_node.local_sgd import given

__all__ = ["BatchBalancer", "DiLoCo", "LocalSGD", "balance_batches", "weighted_average"]


def weighted_average(tensors: Iterable[Tensor], weight: float, group: ProcessGroup | None = None) -> None:
    """Replace each tensor, in place, by its weighted mean over the ranks of the group, on all of them.

    tensors: floating-point, on one device; the same shapes and dtypes on every rank. weight: of this rank, 0 or more. A
    rank with weight 0 contributes nothing, not even its NaN. If no rank has weight, tensors stay as they are. One
    all-reduce, of all tensors and the weight, in float32 or wider. Raises ValueError before it.
    """
    given.check_weight("weight", weight, group)
    from labkit.course.phase3_multi_node.local_sgd.given.arguments import check_tensors

    own = [tensor.detach() for tensor in check_tensors(tensors)]
    wide = torch.float64 if any(tensor.dtype == torch.float64 for tensor in own) else torch.float32
    share = own[0].new_full((1,), weight, dtype=wide)
    parts = [(tensor.to(wide) * weight if weight else torch.zeros_like(tensor, dtype=wide)) for tensor in own]
    sums = torch.cat([share, *(part.flatten() for part in parts)])
    dist.all_reduce(sums, group=group, async_op=True).wait()
    sums[1:] /= sums[0].clamp(min=torch.finfo(wide).tiny)
    begin = 1
    for tensor in own:
        mean = sums[begin : begin + tensor.numel()].view(tensor.shape)
        tensor.copy_(torch.where(sums[0] == 0, tensor.to(wide), mean))
        begin += tensor.numel()


def balance_batches(speeds: Sequence[float], global_batch_size: int) -> list[int]:
    """Return how many samples of a global batch each rank gets, so that the slowest rank is as fast as possible.

    speeds: samples per second of each rank, above 0. The longest time, samples over speed, is the least that whole
    samples allow; together they are `global_batch_size`, 0 or more. A slow rank may get none.
    """
    given.check_speeds(speeds, global_batch_size)
    free = [(1 / speed, rank) for rank, speed in enumerate(speeds)]  # when each rank would end one more sample
    heapq.heapify(free)
    shares = [0] * len(speeds)
    for _ in range(global_batch_size):
        rank = free[0][1]
        shares[rank] += 1
        heapq.heapreplace(free, ((shares[rank] + 1) / speeds[rank], rank))
    return shares


class BatchBalancer:
    """Divides each global batch among the ranks of the group, by their speeds in the steps that were recorded."""

    def __init__(self, group: ProcessGroup | None = None) -> None:
        self.rank, ranks = given.rank_and_size(group)
        self.group = group
        self.speeds = [1.0] * ranks  # of all ranks, the same on each: at first equal
        self.samples, self.seconds = 0, 0.0  # of this rank, since the last `rebalance`

    def own(self, global_batch_size: int) -> slice:
        """Return which samples of a global batch are this rank's, also of a short one: those after the ranks before."""
        ends = torch.tensor([0, *balance_batches(self.speeds, global_batch_size)]).cumsum(0).tolist()
        return slice(ends[self.rank], ends[self.rank + 1])

    def record(self, samples: int, seconds: float) -> None:
        """Add a step of this rank: samples, and the time to compute their gradients, without communication.

        On a GPU, call `torch.cuda.synchronize()` before reading the clock.
        """
        given.check_measurement(samples, seconds)
        self.samples, self.seconds = self.samples + samples, self.seconds + seconds

    def rebalance(self) -> list[float]:
        """Set `speeds` to those measured since the last call, and return them. One all-gather of 8 bytes a rank.

        A rank that computed nothing in that time keeps its speed.
        """
        own = self.speeds[self.rank]
        if self.seconds and self.samples:
            own = self.samples / self.seconds
        self.samples, self.seconds = 0, 0.0
        self.speeds = given.exchange_speeds(own, self.group)
        return self.speeds


class LocalSGD:
    """Takes steps of `optimizer` on each rank by itself, and averages the parameters after every `period` steps.

    The first `warmup_steps` steps, and all of them with period 1, are data parallel instead: gradients are averaged,
    and all ranks take the step of one process. A rank counts by its samples. Parameters start as on the group's first
    rank; the optimizer's state is each rank's own. Raises ValueError before any communication.
    """

    def __init__(
        self, optimizer: Optimizer, period: int, warmup_steps: int = 0, group: ProcessGroup | None = None
    ) -> None:
        given.check_period(period, warmup_steps)
        self.parameters = given.trained_parameters("optimizer", optimizer)
        self.optimizer, self.period, self.group = optimizer, period, group
        self.data_parallel_steps = inf if period == 1 else warmup_steps  # how many, from the first one on
        self.steps = 0  # taken so far
        self.local_steps, self.samples = 0, 0  # since parameters were equal, and this rank's samples in them
        given.start_equal(self.parameters, group)

    def step(self, samples: int) -> None:
        """Take a step with the parameters' `grad`, of the mean loss over `samples` samples of this rank.

        All ranks call it equally often. With 0 samples a rank takes no step of its own, and its gradients do not count.
        """
        given.check_weight("samples", samples, self.group)
        self.steps += 1
        if self.steps <= self.data_parallel_steps:
            grads = given.gradients(self.parameters)
            weighted_average(grads, samples, self.group)
            self.optimizer.step()
            return
        self.local_steps += 1
        self.samples += samples
        if samples > 0:
            self.optimizer.step()
        if self.local_steps % self.period == 0:
            self.synchronize()

    def synchronize(self) -> None:
        """Make the parameters equal on all ranks: also after fewer than `period` steps, as at the end of training.

        Without any local step since they were equal it sends nothing.
        """
        if not self.local_steps:
            return
        self.average()
        self.local_steps = 0
        self.samples = 0

    @torch.no_grad()
    def average(self) -> None:
        """Replace the parameters by their mean over the ranks, weighted with the samples of the local steps."""
        weighted_average(self.parameters, self.samples, self.group)


class DiLoCo(LocalSGD):
    """Local SGD whose mean is not the new model, but the direction of a step of an outer optimizer.

    inner: each rank's own, for `period` steps. outer: makes an optimizer for a list of parameters, such as
    `partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)`; it is the same on all ranks. No step is data
    parallel. With outer SGD of learning rate 1 and no momentum, DiLoCo is local SGD.
    """

    def __init__(
        self,
        inner: Optimizer,
        outer: Callable[[list[nn.Parameter]], Optimizer],
        period: int,
        group: ProcessGroup | None = None,
    ) -> None:
        given.trained_parameters("inner", inner)
        given.check_outer(outer)
        super().__init__(inner, period, group=group)
        self.data_parallel_steps = 0
        self.anchor = nn.Parameter(self.flat())
        self.outer = outer([self.anchor])

    def flat(self) -> Tensor:
        """Return all parameters as one tensor, in float32 or wider."""
        return torch.cat([given.widened(parameter).flatten() for parameter in self.parameters])

    @torch.no_grad()
    def average(self) -> None:
        """Take a step of the outer optimizer from the anchors, and continue from there on all ranks.

        Its gradient, the pseudo-gradient, is anchor - parameter, averaged with the samples of the local steps.
        """
        direction = self.anchor - self.flat()
        weighted_average([direction], self.samples, self.group)
        self.anchor.grad = direction
        self.outer.step()
        parts = self.anchor.split([parameter.numel() for parameter in self.parameters])
        for parameter, part in zip(self.parameters, parts, strict=True):
            parameter.copy_(part.view(parameter.shape))
