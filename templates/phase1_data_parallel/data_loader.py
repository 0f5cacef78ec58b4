"""Every rank its own part of the data, another one in each epoch, and batches that are there when they are asked for.

An epoch has one order of all samples. Nobody sends it: each rank makes it from the seed and the epoch's number. It is
dealt out like cards, sample i of the order to rank i % num_replicas. After any number of rounds, then, what all ranks
have had together is the beginning of the order, and one number says where to go on, on however many ranks.
The order is that of `torch.utils.data.DistributedSampler`, which repeats samples where the size does not divide.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sized
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.data import Sampler

__all__ = ["PrefetchLoader", "ShardedSampler"]

Batch = TypeVar("Batch")


class ShardedSampler(Sampler[int]):
    """Indices of one rank's samples: the `sampler` of a DataLoader.

    dataset_size: samples in all, 0 or more. num_replicas, rank: how many share them, and which one this is.
    shuffle: mix the samples, anew in every epoch; else they are dealt out as they come. seed: another order of epochs.
    drop_last: leave out the last few samples of the order, so that all ranks have as many: training needs that, or some
    ranks wait for others that have no batch left. Else each sample is dealt out once and the first ranks may have one
    more: that is how to evaluate.
    Raises ValueError when an argument cannot be used. Nothing is ever sent.
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
        _require("dataset_size", dataset_size, at_least=0)
        _require("num_replicas", num_replicas, at_least=1)
        _require("rank", rank, at_least=0, below=num_replicas)
        _require("seed", seed, at_least=0)
        self.dataset_size, self.num_replicas, self.rank = dataset_size, num_replicas, rank
        self.shuffle, self.seed, self.drop_last = shuffle, seed, drop_last
        self.epoch = 0
        self._begin = 0
        """Place in the order at which the iteration begins: 0, or where a state that was loaded says."""
        self._given = 0
        """Samples that it has given to this rank so far."""
        self._resume_at = 0
        """Where the next iteration begins."""

    def __len__(self) -> int:
        """How many samples the iteration has for this rank."""
        return len(range(self.rank, self._left(), self.num_replicas))

    def _left(self) -> int:
        """Samples that the iteration has for all ranks together."""
        left = self.dataset_size - self._begin
        return left - left % self.num_replicas if self.drop_last else left

    def _order(self) -> Tensor:
        """All samples, (dataset_size,) int64, in the order of this epoch: the same on every rank and machine."""
        # TODO 1. Every rank must draw the same permutation without asking the others, whatever else it has drawn, and
        # without changing what it draws next: use a generator of your own, seeded with `self.seed + self.epoch`.
        # Without `self.shuffle` the order is 0, 1, 2, ...
        # YOUR CODE HERE
        raise NotImplementedError()

    def __iter__(self) -> Iterator[int]:
        """This rank's samples of the epoch; after `load_state_dict` those that are left, for this one time."""
        self._begin, self._resume_at = self._resume_at, 0
        self._given = 0
        # TODO 2. Of the `self._left()` samples that come after the first `self._begin`, deal out every one that is this
        # rank's, and count it in `self._given` before it leaves. In Python numbers the whole order takes 40 bytes for
        # each sample: make those of your own alone. Once all are dealt out, every rank is as far as rank 0.
        # YOUR CODE HERE
        raise NotImplementedError()

    def set_epoch(self, epoch: int) -> None:
        """Use that epoch's order from now on: call it before every epoch, with the same number on all ranks.

        The place within the epoch is kept if it is the one that is under way already.
        """
        _require("epoch", epoch, at_least=0)
        if epoch != self.epoch:
            self.epoch = epoch
            self._begin = self._given = self._resume_at = 0

    def state_dict(self, taken: int | None = None) -> dict[str, Any]:
        """Where the epoch stands, as plain data, the same on every rank that has had as many samples; rank 0's is kept.

        taken: how many samples of this iteration this rank has used so far. Without it, all that it was given, which
        are more than it has used when a loader reads ahead.
        """
        # TODO 3. `position` is how many samples of the order all ranks have had together. The last round may be
        # incomplete: where nothing is left for anybody, the epoch is over, and `position` is `self.dataset_size`.
        # YOUR CODE HERE
        raise NotImplementedError()
        return {"epoch": self.epoch, "position": position, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there, on any number of ranks: the next iteration has exactly the samples that are left.

        Raises ValueError when the state is of another data set or of another order.
        """
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise ValueError(f"state must have {name}={value} as this sampler has, got {state.get(name)!r}")
        _require("epoch", state.get("epoch"), at_least=0)
        _require("position", state.get("position"), at_least=0, below=self.dataset_size + 1)
        self.epoch = state["epoch"]
        self._begin = self._resume_at = state["position"]
        self._given = 0

    def _identity(self) -> dict[str, Any]:
        """What the orders of a training's epochs depend on, which may not change on the way."""
        return {"dataset_size": self.dataset_size, "shuffle": self.shuffle, "seed": self.seed}


class PrefetchLoader(Generic[Batch]):
    """The batches of `loader`, in their order, on `device`: read and copied by a thread while you work on others.

    loader: anything that can be iterated, again for each epoch. Tensors within tuples, lists and dicts are copied, the
    rest stays as it is. prefetch_factor: the thread asks the loader for at most so many batches ahead of the one that
    you hold.
    An error of the loader is raised when its batch is asked for. Whoever leaves early leaves no thread behind.
    Raises ValueError when an argument cannot be used.
    """

    def __init__(self, loader: Iterable[Batch], device: torch.device | str, prefetch_factor: int = 2) -> None:
        if not isinstance(loader, Iterable):
            raise ValueError(f"loader must be something to iterate over, got {loader!r}"[:200])
        _require("prefetch_factor", prefetch_factor, at_least=1)
        self.loader, self.prefetch_factor = loader, prefetch_factor
        self.device = _device(device)

    def __len__(self) -> int:
        """How many batches; TypeError when the loader does not know."""
        return len(cast(Sized, self.loader))

    def __iter__(self) -> Iterator[Batch]:
        # here and not in the thread: a DataLoader draws a random number now, which must not come in between others
        batches = iter(self.loader)
        copies = _Copies(self.device)
        ready: SimpleQueue[tuple[Batch | None, BaseException | None]] = SimpleQueue()
        room = threading.Semaphore(self.prefetch_factor)
        leaving = threading.Event()

        # TODO 4. `read` runs in the thread. Each time that there is `room`, and unless the reader is `leaving`, it puts
        # `(copies.make(the next batch), None)` into `ready`. Whatever it catches, StopIteration too, is its last item:
        # `(None, error)`. Outside, take items from `ready`, make room again, yield `copies.hand_over(batch)` or raise
        # the error. However you leave, by the end, an error or `break`, let the thread end and wait for it.
        # YOUR CODE HERE
        raise NotImplementedError()


class _Copies:
    """Copies of batches on a device. On a GPU they are made in a stream of their own, beside the computing."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def make(self, batch: Batch) -> Batch:
        """In the thread; back when the copy is there."""
        with torch.cuda.stream(self.stream):
            copy = _mapped(lambda tensor: tensor.to(self.device, non_blocking=True), batch)
        if self.stream is not None:
            self.stream.synchronize()
        return cast(Batch, copy)

    def hand_over(self, copy: Batch) -> Batch:
        """To who uses it: until then its memory is not given to the next copy."""
        if self.stream is not None:
            _mapped(lambda tensor: tensor.record_stream(torch.cuda.current_stream(self.device)), copy)
        return copy


def _mapped(function: Any, batch: Any) -> Any:
    """`batch` with each tensor in it replaced by what `function` makes of it."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, Mapping):
        return {key: _mapped(function, value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(_mapped(function, value) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(_mapped(function, value) for value in batch)
    return batch


def _device(device: torch.device | str) -> torch.device:
    try:
        return torch.device(device)
    except (RuntimeError, TypeError):
        raise ValueError(f"device must be one that torch knows, got {device!r}") from None


def _require(name: str, value: Any, *, at_least: int, below: int | None = None) -> None:
    if type(value) is not int or value < at_least or (below is not None and value >= below):
        limits = f"an integer from {at_least}" + ("" if below is None else f" to {below - 1}")
        raise ValueError(f"{name} must be {limits}, got {value!r}")
