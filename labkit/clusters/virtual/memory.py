"""A virtual rank's memory account: how many bytes its tensors hold, what for, and the most they ever held.

A storage is counted once, from the operator that makes it to the end of its life, however many tensors, views and
graphs refer to it. Sizes are rounded up to blocks of 512 bytes as CUDA's caching allocator does; what that allocator
keeps in reserve and loses by fragmentation is not modelled.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from labkit.clusters import torch_versions
from labkit.clusters.virtual.endpoint import Endpoint
from labkit.hardware import Topology
from labkit.trace import Category, MemorySample

BLOCK_BYTES = 512
_CATEGORIES = tuple(Category)
PARAMETER, GRADIENT, OPTIMIZER, ACTIVATION, COMMUNICATION, OTHER = range(len(_CATEGORIES))
_MIN_SAMPLES, _MAX_SAMPLES, _ALL_SAMPLES = 64, 1024, 1 << 17


class _Storage(weakref.ref[torch.UntypedStorage]):
    """One live storage, what it is held for, and its size in the account."""

    __slots__ = ("category", "key", "nbytes")
    category: int
    key: int
    nbytes: int


class MemoryAccount:
    """Of one rank. `capacity`: bytes past which `torch.OutOfMemoryError` is raised."""

    def __init__(self, rank: int, capacity: int, gpu: str, now: Callable[[], float], world_size: int) -> None:
        self.rank = rank
        self.held = [0] * len(_CATEGORIES)
        """Live bytes by category."""
        self.total = 0
        self.peak = 0
        self.peak_since_reset = 0
        self.in_optimizer = False
        """An optimizer's step is under way."""
        self._capacity = capacity
        self._gpu = gpu
        self._now = now
        self._storages: dict[int, _Storage] = {}
        """Those alive, by address."""
        self._gradient_hook = self._has_gradient
        """One object, by which it is known on a parameter."""
        self._samples: list[tuple[float, list[int]]] = []
        self._max_samples = min(_MAX_SAMPLES, max(_MIN_SAMPLES, _ALL_SAMPLES // world_size))
        self._pause = 0.0
        """Seconds between two samples, but for peaks."""
        self._sampled_at = -inf
        self._sampled_total = 0
        self._due = self._at_peak = False
        """What is held now is to be sampled; is the most so far. Samples are taken when it changes: until then it may
        be told what it is for."""
        self._changed_at = 0.0
        self._closed = False

    # What operators do --------------------------------------------------------------------------------------------

    def hold(self, tensor: Tensor, category: int) -> None:
        """Count the tensor's storage, unless it is known already. Raises torch.OutOfMemoryError."""
        if tensor.layout is not torch.strided:
            return  # its indices and values are tensors of their own
        untyped = tensor.untyped_storage()
        key = untyped._cdata
        if key in self._storages or is_meta(tensor):
            return
        nbytes = (untyped.nbytes() + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
        if self.total + nbytes > self._capacity:
            self.must_fit(nbytes)
        self._storages[key] = storage = _Storage(untyped, self._ended)
        storage.category = category
        storage.key = key
        storage.nbytes = nbytes
        self._grow(category, nbytes)

    def must_fit(self, nbytes: int) -> None:
        """Raise torch.OutOfMemoryError unless there is room for so many bytes more."""
        if self.total + nbytes > self._capacity:
            raise torch.OutOfMemoryError(self._out_of_memory(nbytes))

    def _ended(self, storage: _Storage) -> None:
        del self._storages[storage.key]
        if not self._closed:
            self._shrink(storage.category, storage.nbytes)

    def resized(self, untyped: torch.UntypedStorage) -> None:
        """A storage has another size now. Raises torch.OutOfMemoryError."""
        storage = self._storages.get(untyped._cdata)
        if storage is None:
            return
        nbytes = (untyped.nbytes() + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES
        more = nbytes - storage.nbytes
        self.must_fit(more)
        storage.nbytes = nbytes
        if more > 0:
            self._grow(storage.category, more)
        elif more < 0:
            self._shrink(storage.category, -more)

    def _grow(self, category: int, nbytes: int) -> None:
        if self._due:
            self._sample()
        self.held[category] += nbytes
        self.total = total = self.total + nbytes
        if total > self.peak_since_reset:
            self.peak_since_reset = total
        if total > self.peak:
            self.peak = total
            self._at_peak = True
            self._changed_at = self._now()
        if (total - self._sampled_total) << 8 > self.peak:
            self._consider()

    def _shrink(self, category: int, nbytes: int) -> None:
        if self._due or self._at_peak:
            self._sample()
        self.held[category] -= nbytes
        self.total = total = self.total - nbytes
        if (self._sampled_total - total) << 8 > self.peak:
            self._consider()

    def _consider(self) -> None:
        """There is much more or less than at the last sample: take one, if that was not just now."""
        now = self._now()
        if now - self._sampled_at >= self._pause:
            self._due = True
            self._changed_at = now

    # What memory is held for --------------------------------------------------------------------------------------

    def is_parameter(self, tensor: Tensor) -> None:
        """The tensor is a parameter, and its gradient, when there is one, is a gradient."""
        if tensor.__class__ is torch.nn.Parameter:  # it is used again and again
            known = self._storages.get(tensor.untyped_storage()._cdata)
            if known is not None and known.category == PARAMETER and self._is_hooked(tensor):
                return
        for storage in self._storages_of(tensor):
            self._move(storage, PARAMETER)
        if tensor.requires_grad and tensor.is_leaf and not self._is_hooked(tensor):
            tensor.register_post_accumulate_grad_hook(self._gradient_hook)

    def _is_hooked(self, parameter: Tensor) -> bool:
        # the parameter itself tells: a weak reference to it would be in the way of `swap_tensors`
        hooks: Any = parameter._post_accumulate_grad_hooks
        return hooks is not None and self._gradient_hook in hooks.values()

    def _has_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self.is_for(parameter.grad, GRADIENT)

    def is_for(self, tensor: Tensor, category: int) -> None:
        """The tensor's memory is held for `category`, unless it is a parameter's."""
        for storage in self._storages_of(tensor):
            if storage.category != PARAMETER:
                self._move(storage, category)

    def is_communicated(self, tensor: Tensor) -> None:
        """The tensor goes into or comes out of a collective: what is for nothing else is for communication."""
        for storage in self._storages_of(tensor):
            if storage.category == OTHER:
                self._move(storage, COMMUNICATION)

    def _storages_of(self, tensor: Tensor) -> Iterator[_Storage]:
        for plain in torch_versions.plain_tensors(tensor):
            if plain.layout is not torch.strided:
                continue
            storage = self._storages.get(plain.untyped_storage()._cdata)
            if storage is not None:
                yield storage

    def _move(self, storage: _Storage, category: int) -> None:
        if storage.category != category:
            self.held[storage.category] -= storage.nbytes
            self.held[category] += storage.nbytes
            storage.category = category

    # What is told -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """The rank's program is over: when its tensors are collected afterwards is not told."""
        if self._due or self._at_peak:
            self._sample()
        self._changed_at = self._now()
        self._sample()
        self._closed = True

    def samples(self) -> list[MemorySample]:
        """What the rank held over time: changes of more than 1/256 of the peak, thinned out; the peak is exact."""
        if not self._closed:
            self.close()
        told: list[MemorySample] = []
        before = [0] * len(_CATEGORIES)
        for time, held in self._samples:
            changes = [(now - was, i) for i, (was, now) in enumerate(zip(before, held, strict=True)) if now != was]
            told += [MemorySample(self.rank, time, _CATEGORIES[i], held[i]) for _, i in sorted(changes)]
            before = held
        return told

    def _sample(self) -> None:
        self._due = self._at_peak = False
        self._sampled_at = self._changed_at
        self._sampled_total = self.total
        self._samples.append((self._changed_at, self.held.copy()))
        if len(self._samples) > self._max_samples:
            self._thin()

    def _thin(self) -> None:
        """Keep two samples of each of a number of equal spans of time: where the most was held, and the last one."""
        first, last = self._samples[0][0], self._samples[-1][0]
        spans = self._max_samples // 4
        self._pause = (last - first) / spans
        kept: dict[int, list[tuple[float, list[int]]]] = {}
        for sample in self._samples:
            span = int((sample[0] - first) / self._pause) if self._pause else 0
            highest = kept[span][0] if span in kept else sample
            if sum(sample[1]) > sum(highest[1]):
                highest = sample
            kept[span] = [highest] if highest is sample else [highest, sample]
        self._samples = [sample for pair in kept.values() for sample in pair]

    def _out_of_memory(self, nbytes: int) -> str:
        held = {_CATEGORIES[i]: n for i, n in enumerate(self.held) if n}
        listed = ", ".join(f"{c.value} {_shown(n)}" for c, n in sorted(held.items(), key=lambda item: -item[1]))
        largest = max(held, key=lambda c: held[c], default=Category.OTHER)
        return (
            f"rank {self.rank} asked for {_shown(nbytes)}, but of the {_shown(self._capacity)} of its {self._gpu} only "
            f"{_shown(self._capacity - self.total)} are free; in use: {listed or 'nothing'}. {_ADVICE[largest]}"
        )


_SHARD = "Try to shard parameters, gradients and optimizer state over the ranks (ZeRO, FSDP), or a smaller data type"
_ADVICE = {
    Category.PARAMETER: f"{_SHARD}.",
    Category.GRADIENT: f"{_SHARD}; set gradients to None after the step.",
    Category.OPTIMIZER: f"{_SHARD}; or keep the state in host memory.",
    Category.ACTIVATION: "Try a smaller microbatch, activation checkpointing, or `torch.no_grad()` where it serves.",
    Category.COMMUNICATION: "Try smaller buckets, or to free buffers when they have been sent.",
    Category.OTHER: "Try to free temporary tensors with `del`, or to make smaller ones.",
}


def _shown(nbytes: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} bytes"


def communicated(tensors: Iterable[Tensor]) -> None:
    """This thread's rank gives these tensors to a collective."""
    account = current()
    if account is not None:
        for tensor in tensors:
            account.is_communicated(tensor)


def is_meta(tensor: Tensor) -> bool:
    """Is it a tensor without memory, on the `meta` device?"""
    # a fake tensor's own word: to ask torch for its device takes a way through all modes
    return bool(tensor.fake_device.type == "meta") if isinstance(tensor, FakeTensor) else tensor.is_meta


# Which account is the running rank's ------------------------------------------------------------------------------


class Device(NamedTuple):
    """A virtual rank's GPU, as its program can use it."""

    account: MemoryAccount
    endpoint: Endpoint
    topology: Topology


class _Current(threading.local):
    device: Device | None = None


_current = _Current()


def device() -> Device | None:
    """That of the rank whose thread runs; None where nothing is counted."""
    return _current.device


def current() -> MemoryAccount | None:
    """The account of the rank whose thread runs; None where memory is not counted."""
    return _current.device.account if _current.device is not None else None


@contextmanager
def counted_on(device: Device) -> Iterator[None]:
    """Meanwhile `device` is that of this thread's rank."""
    _current.device = device
    try:
        yield
    finally:
        _current.device = None
