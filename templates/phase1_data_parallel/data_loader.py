"""A part of the data for each rank, another one in each epoch, and batches that are ready when they are needed.

An epoch has one order of all samples. It is never sent: each rank computes it from the seed and the epoch's number. It
is dealt out like cards, sample i of the order to rank i % num_replicas. So after any number of rounds the ranks have
had the beginning of the order, and one number says where to resume, on any number of ranks. The order is that of
`torch.utils.data.DistributedSampler`, which repeats samples where the size does not divide.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sized
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import Sampler

from labkit.course.phase1_data_parallel.data_loader.given.arguments import (
    known_device,
    require_integer,
    require_iterable,
)
from labkit.course.phase1_data_parallel.data_loader.given.device_copies import DeviceCopies

__all__ = ["PrefetchLoader", "ShardedSampler"]

Batch = TypeVar("Batch")


class ShardedSampler(Sampler[int]):
    """Indices of one rank's samples: the `sampler` of a DataLoader.

    dataset_size: number of samples, 0 or more. num_replicas, rank: how many ranks share them, and which one this is.
    shuffle: draw a new order in every epoch; else it is 0, 1, 2, ... seed: another one gives other orders.
    drop_last: leave out the last few samples of the order, so that all ranks have equally many: training needs that, or
    some ranks wait for others that have no batch left. If False, each sample is dealt out once, and the first ranks may
    have one more: right for evaluation. Raises ValueError when an argument cannot be used. Nothing is ever sent.
    """

    def __init__(
        self,
        dataset_size: int,
        num_replicas: int,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        require_integer("dataset_size", dataset_size, at_least=0)
        require_integer("num_replicas", num_replicas, at_least=1)
        require_integer("rank", rank, at_least=0, below=num_replicas)
        require_integer("seed", seed, at_least=0)
        self.dataset_size, self.num_replicas, self.rank = dataset_size, num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self._begin = 0
        """Position in the order at which the iteration begins: 0, or that of a loaded state."""
        self._given = 0
        """Samples that the iteration has given to this rank so far."""
        self._resume_at = 0
        """Position at which the next iteration begins."""

    def __len__(self) -> int:
        """Return the number of samples that the iteration has for this rank."""
        return len(range(self.rank, self._left(), self.num_replicas))

    def _left(self) -> int:
        """Return the number of samples that the iteration has for all ranks together."""
        left = self.dataset_size - self._begin
        return left - left % self.num_replicas if self.drop_last else left

    def _order(self) -> Tensor:
        """Return all samples, (dataset_size,) int64, in the order of this epoch: the same on every rank and machine."""
        # TODO 1. Every rank must draw the same permutation without asking the others, whatever else it has drawn, and
        # without changing what it draws next: use a generator of your own, seeded with `self.seed + self.epoch`.
        # Without `self.shuffle` the order is 0, 1, 2, ...
        # YOUR CODE HERE
        raise NotImplementedError()

    def __iter__(self) -> Iterator[int]:
        """Yield this rank's samples of the epoch; the first time after `load_state_dict`, those that are left."""
        self._begin, self._resume_at = self._resume_at, 0
        self._given = 0
        # TODO 2. Of the `self._left()` samples that come after the first `self._begin`, deal out every one that is this
        # rank's, and count it in `self._given` before it leaves. In Python numbers the whole order takes 40 bytes for
        # each sample: make those of your own alone. Once all are dealt out, every rank is as far as rank 0.
        # YOUR CODE HERE
        raise NotImplementedError()

    def set_epoch(self, epoch: int) -> None:
        """Use that epoch's order: call this before every epoch, with the same number on all ranks.

        The position is kept if that epoch is already under way.
        """
        require_integer("epoch", epoch, at_least=0)
        if epoch != self.epoch:
            self.epoch = epoch
            self._begin = self._given = self._resume_at = 0

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Return the position in the epoch, plain data, the same on ranks that have had equally many samples: save one.

        taken: samples of this iteration that this rank has used so far; None: all that it was given, which are more if
        a loader reads ahead.
        """
        # TODO 3. `position` is how many samples of the order all ranks have had together. The last round may be
        # incomplete: where nothing is left for anybody, the epoch is over, and `position` is `self.dataset_size`.
        # YOUR CODE HERE
        raise NotImplementedError()
        return {"epoch": self.epoch, "position": position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume there, on any number of ranks: the next iteration has exactly the samples that are left.

        Raises ValueError when the state belongs to another data set or another order.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise ValueError(f"state must have {name}={value} as this sampler has, got {state.get(name)!r}")
        require_integer("epoch", state.get("epoch"), at_least=0)
        require_integer("position", state.get("position"), at_least=0, below=self.dataset_size + 1)
        self.epoch = state["epoch"]
        self._begin = self._resume_at = state["position"]
        self._given = 0

    def _identity(self) -> dict[str, Any]:
        """Return what the orders of all epochs depend on: it must not change during a training."""
        return {"dataset_size": self.dataset_size, "shuffle": self.shuffle, "seed": self.seed}


class PrefetchLoader(Generic[Batch]):
    """The batches of `loader`, in their order, on `device`: a thread reads and copies them while you work on others.

    loader: any iterable, iterated once for each epoch. Tensors within tuples, lists and dicts are copied, the rest is
    left as it is. prefetch_factor: how many batches the thread may request ahead of the one that you hold.
    An error of the loader is raised in place of its batch. If you stop early, the thread ends, too.
    Raises ValueError when an argument cannot be used.
    """

    def __init__(self, loader: Iterable[Batch], device: torch.device | str, prefetch_factor: int = 2) -> None:
        require_iterable("loader", loader)
        require_integer("prefetch_factor", prefetch_factor, at_least=1)
        self.loader, self.device, self.prefetch_factor = loader, known_device(device), prefetch_factor

    def __len__(self) -> int:
        """Return the number of batches. Raises TypeError if the loader does not know it."""
        return len(cast(Sized, self.loader))

    def __iter__(self) -> Iterator[Batch]:
        # here and not in the thread: a DataLoader draws a random number now, which must not come in between others
        batches = iter(self.loader)
        copies = DeviceCopies(self.device)
        ready: SimpleQueue[tuple[Batch | None, BaseException | None]] = SimpleQueue()
        room = threading.Semaphore(self.prefetch_factor)
        leaving = threading.Event()

        # TODO 4. `read` runs in the thread. Each time that there is `room`, and unless `leaving` is set, it puts
        # `(copies.make(the next batch), None)` into `ready`. Whatever it catches, StopIteration too, is its last item:
        # `(None, error)`. Outside, take items from `ready`, make room again, yield `copies.hand_over(batch)` or raise
        # the error. However you leave, by the end, an error or `break`, let the thread end and wait for it.
        # YOUR CODE HERE
        raise NotImplementedError()
