"""Local SGD: ranks train by themselves for some steps, then average; and batches that suit ranks of different speeds.

With a period of H steps, a rank sends 1/H of the bytes of data parallelism (Stich 2019). The first steps may be data
parallel, since weights change fastest there (post-local SGD, Lin et al. 2020). DiLoCo (Douillard et al. 2023) averages
how far the ranks have gone, and takes a step of an outer optimizer, with Nesterov momentum, in this direction. A rank
counts by its samples; those are divided among the ranks by measured speeds, so that none waits for another.
"""

from __future__ import annotations

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
    message = given.Message(tensors)
    # TODO 1. `message.flat` has all elements of `tensors`, and a 1 behind them. What must a rank send so that the sums
    # are enough to compute the mean, also on ranks that do not know the others' weights? `message.views()` are the
    # parts of `message.flat` in the shapes of `message.tensors`. `torch.where`, unlike `if`, lets a GPU go on.
    ### BEGIN SOLUTION
    if weight:
        message.flat.mul_(weight)
    else:
        message.flat.zero_()
    dist.all_reduce(message.flat, group=group)
    total = message.flat[-1].clone()
    message.flat.div_(total)
    for tensor, mean in zip(message.tensors, message.views(), strict=True):
        torch.where(total > 0, mean.to(tensor.dtype), tensor, out=tensor)
    ### END SOLUTION


def balance_batches(speeds: Sequence[float], global_batch_size: int) -> list[int]:
    """Return how many samples of a global batch each rank gets, so that the slowest rank is as fast as possible.

    speeds: samples per second of each rank, above 0. The longest time, samples over speed, is the least that whole
    samples allow; together they are `global_batch_size`, 0 or more. A slow rank may get none.
    """
    given.check_speeds(speeds, global_batch_size)
    # TODO 2. Shares in proportion to the speeds are no whole numbers. Round them down: then no rank is late, and fewer
    # samples than there are ranks remain. Which rank gets the next one?
    ### BEGIN SOLUTION
    shares = [int(global_batch_size * speed / sum(speeds)) for speed in speeds]
    for _ in range(global_batch_size - sum(shares)):
        ends = [(share + 1) / speed for share, speed in zip(shares, speeds, strict=True)]
        shares[ends.index(min(ends))] += 1
    return shares
    ### END SOLUTION


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
        # This belongs to TODO 2, too. `given.exchange_speeds(speed, self.group)` returns the speeds of all ranks.
        ### BEGIN SOLUTION
        measured = self.samples > 0 and self.seconds > 0
        speed = self.samples / self.seconds if measured else self.speeds[self.rank]
        self.speeds = given.exchange_speeds(speed, self.group)
        self.samples, self.seconds = 0, 0.0
        return self.speeds
        ### END SOLUTION


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
        # TODO 3. A step is either data parallel, with the mean of `given.gradients(self.parameters)`, or local; after
        # `period` local ones `self.synchronize()`. Keep `steps`, `local_steps` and `samples` up to date in both.
        ### BEGIN SOLUTION
        if self.steps < self.data_parallel_steps:
            weighted_average(given.gradients(self.parameters), samples, self.group)
            self.optimizer.step()
        else:
            if samples:
                self.optimizer.step()
            self.local_steps, self.samples = self.local_steps + 1, self.samples + samples
            if self.local_steps == self.period:
                self.synchronize()
        self.steps += 1
        ### END SOLUTION

    def synchronize(self) -> None:
        """Make the parameters equal on all ranks: also after fewer than `period` steps, as at the end of training.

        Without any local step since they were equal it sends nothing.
        """
        # This belongs to TODO 3, too: `self.average()`, and what it leaves.
        ### BEGIN SOLUTION
        if self.local_steps:
            self.average()
            self.local_steps, self.samples = 0, 0
        ### END SOLUTION

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
        # the model at the last synchronization, in float32 or wider
        self.anchors = [nn.Parameter(given.widened(parameter)) for parameter in self.parameters]
        self.outer = outer(self.anchors)

    @torch.no_grad()
    def average(self) -> None:
        """Take a step of the outer optimizer from the anchors, and continue from there on all ranks.

        Its gradient, the pseudo-gradient, is anchor - parameter, averaged with the samples of the local steps.
        """
        # TODO 4. Compute differences in the anchors' dtype: those of bfloat16 lose digits. One `weighted_average`.
        ### BEGIN SOLUTION
        for anchor, parameter in zip(self.anchors, self.parameters, strict=True):
            anchor.grad = anchor - parameter
        weighted_average(given.gradients(self.anchors), self.samples, self.group)
        self.outer.step()
        for anchor, parameter in zip(self.anchors, self.parameters, strict=True):
            parameter.copy_(anchor)
        ### END SOLUTION
