"""A virtual rank's memory account: bytes that its tensors hold, by purpose, and their maximum.

A storage is counted once, from the operator that makes it to the end of its life, however many tensors, views and
graphs refer to it. Copies in host memory, and what is computed from them, do not count. Sizes are rounded up to blocks
of 512 bytes as in CUDA's caching allocator; that allocator's reserve and fragmentation are not modelled.
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

from labkit.clusters.virtual.device.garbage import collector
from labkit.clusters.virtual.endpoints.endpoint import Endpoint
from labkit.hardware import Topology
from labkit.torch_versions.fake_tensors import FakeTensor
from labkit.torch_versions.tensors import plain_tensors, post_accumulate_grad_hooks, storage_key
from labkit.trace import Category, MemorySample

BLOCK_BYTES = 512
_CATEGORIES = tuple(Category)
PARAMETER, GRADIENT, OPTIMIZER, ACTIVATION, COMMUNICATION, OTHER = range(len(_CATEGORIES))
HOST = len(_CATEGORIES)
"""Value in the place of a category: memory of the host, which is not counted."""
_PLAIN = (torch.nn.Parameter, FakeTensor)
_MIN_SAMPLES, _MAX_SAMPLES, _ALL_SAMPLES = 64, 1024, 1 << 17


class _Storage(weakref.ref[torch.UntypedStorage]):
    """One live storage, its category, and its size in the account."""

    __slots__ = ("category", "key", "nbytes")
    category: int
    key: int
    nbytes: int


class MemoryAccount:
    """Memory of one rank. `capacity`: bytes beyond which `torch.OutOfMemoryError` is raised."""

    def __init__(self, rank: int, capacity: int, gpu: str, now: Callable[[], float], world_size: int) -> None:
        self.rank = rank
        self.held = [0] * len(_CATEGORIES)
        """Live bytes by category."""
        self.total = 0
        self.peak = 0
        self.peak_since_reset = 0
        self.in_optimizer = False
        """Whether an optimizer's step is under way."""
        self.listed: list[Any] | None = None
        """If it is a list: each change of memory is appended, as category and bytes; a change of category as -1, 0."""
        self._capacity = capacity
        self._gpu = gpu
        self.now = now
        self._storages: dict[int, _Storage] = {}
        """Live storages, by address."""
        self.on_host: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        """Live storages in host memory, by address: they do not count."""
        self._gradient_hook = self._has_gradient
        """One object, so that it can be recognized on a parameter."""
        self._samples: list[tuple[float, list[int]]] = []
        self._max_samples = min(_MAX_SAMPLES, max(_MIN_SAMPLES, _ALL_SAMPLES // world_size))
        self._pause = 0.0
        """Minimum seconds between two samples, except for peaks."""
        self._sampled_at = -inf
        self._sampled_total = 0
        self._due = self._at_peak = False
        """Whether the present state must be sampled; whether it is the peak so far. Samples are taken when the state
        changes at a later time: until then a tensor's category may become known, and tensors that end together end in
        any order, such as autocast's, which it keeps by address.
        """
        self._changed_at = 0.0
        self._closed = False

    # Called for operators -----------------------------------------------------------------------------------------

    def hold(self, tensor: Tensor, category: int) -> None:
        """Count the tensor's storage if it is new; not if `category` is HOST. Raises torch.OutOfMemoryError."""
        if tensor.layout is not torch.strided:
            return  # its indices and values are tensors of their own
        untyped = tensor.untyped_storage()
        key = storage_key(untyped)
        if key in self._storages or key in self.on_host or is_meta(tensor):
            return
        self.hold_new(untyped, in_blocks(untyped.nbytes()), category)

    def reads_host(self, arguments: Iterable[Any]) -> bool:
        """Whether one of an operator's arguments, or of their items, is a tensor in host memory with a dimension.

        A scalar in host memory can be combined with tensors of the GPU.
        """
        for argument in arguments:
            if isinstance(argument, Tensor):
                strided = argument.dim() and argument.layout is torch.strided
                if strided and storage_key(argument.untyped_storage()) in self.on_host:
                    return True
            elif argument.__class__ in (list, tuple) and self.reads_host(argument):
                return True
        return False

    def hold_new(self, untyped: torch.UntypedStorage, nbytes: int, category: int) -> None:
        """Count a new storage of `nbytes`, a number of whole blocks. Raises torch.OutOfMemoryError."""
        if category == HOST:
            key = storage_key(untyped)
            self.on_host[key] = weakref.ref(untyped, lambda _: self.on_host.pop(key, None))
            return
        if self.total + nbytes > self._capacity:
            self.must_fit(nbytes)
        key = storage_key(untyped)
        self._storages[key] = storage = _Storage(untyped, self._ended)
        storage.category = category
        storage.key = key
        storage.nbytes = nbytes
        self.grow(category, nbytes)
        if collector.counts_storages:
            collector.count_storage()

    def must_fit(self, nbytes: int) -> None:
        """Raise torch.OutOfMemoryError unless `nbytes` more bytes fit."""
        if self.total + nbytes > self._capacity:
            raise torch.OutOfMemoryError(self._out_of_memory(nbytes))

    def _ended(self, storage: _Storage) -> None:
        del self._storages[storage.key]
        if not self._closed:
            self.shrink(storage.category, storage.nbytes)

    def resized(self, untyped: torch.UntypedStorage) -> None:
        """Update the size of a resized storage. Raises torch.OutOfMemoryError."""
        storage = self._storages.get(storage_key(untyped))
        if storage is None:
            return
        nbytes = in_blocks(untyped.nbytes())
        more = nbytes - storage.nbytes
        self.must_fit(more)
        storage.nbytes = nbytes
        if more > 0:
            self.grow(storage.category, more)
        elif more < 0:
            self.shrink(storage.category, -more)

    def change_again(self, category: int, nbytes: int) -> None:
        """Count a change that was listed, without a storage. Raises torch.OutOfMemoryError."""
        if nbytes < 0:
            self.shrink(category, -nbytes)
        else:
            self.must_fit(nbytes)
            self.grow(category, nbytes)

    def place_of(self, tensor: Tensor) -> tuple[bool, bool]:
        """Whether the tensor's storage is in the account, and whether it is in host memory."""
        key = storage_key(tensor.untyped_storage())
        return key in self._storages, key in self.on_host

    def grow(self, category: int, nbytes: int) -> None:
        """Count more bytes of a category."""
        if self.listed is not None:
            self.listed.append((category, nbytes))
        if self._due and self.now() != self._changed_at:
            self._sample()
        self.held[category] += nbytes
        self.total = total = self.total + nbytes
        if total > self.peak_since_reset:
            self.peak_since_reset = total
        if total > self.peak:
            self.peak = total
            self._at_peak = True
            self._changed_at = self.now()
        if (total - self._sampled_total) << 8 > self.peak:
            self._consider()

    def shrink(self, category: int, nbytes: int) -> None:
        """Count fewer bytes of a category."""
        if self.listed is not None:
            self.listed.append((category, -nbytes))
        if self._at_peak or (self._due and self.now() != self._changed_at):
            self._sample()
        self.held[category] -= nbytes
        self.total = total = self.total - nbytes
        if (self._sampled_total - total) << 8 > self.peak:
            self._consider()

    def _consider(self) -> None:
        """Plan a sample, since much has changed since the last one, unless that was just now."""
        now = self.now()
        if now - self._sampled_at >= self._pause:
            self._due = True
            self._changed_at = now

    # Categories ---------------------------------------------------------------------------------------------------

    def is_parameter(self, tensor: Tensor) -> None:
        """Mark the tensor as a parameter; its gradient will count as a gradient."""
        if tensor.__class__ in _PLAIN:  # called again and again
            known = self._storages.get(storage_key(tensor.untyped_storage()))
            if known is not None and known.category == PARAMETER and self._is_hooked(tensor):
                return
        for storage in self._storages_of(tensor):
            self._move(storage, PARAMETER)
        if tensor.requires_grad and tensor.is_leaf and not self._is_hooked(tensor):
            tensor.register_post_accumulate_grad_hook(self._gradient_hook)

    def _is_hooked(self, parameter: Tensor) -> bool:
        # a hook on the parameter: a weak reference to it would block `swap_tensors`
        hooks = post_accumulate_grad_hooks(parameter)
        return hooks is not None and self._gradient_hook in hooks.values()

    def _has_gradient(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self.is_for(parameter.grad, GRADIENT)

    def is_for(self, tensor: Tensor, category: int) -> None:
        """Count the tensor's memory under `category`, unless it is a parameter's."""
        for storage in self._storages_of(tensor):
            if storage.category != PARAMETER:
                self._move(storage, category)

    def is_communicated(self, tensor: Tensor) -> None:
        """Mark a tensor that enters or leaves a collective: memory without another category is for communication."""
        for storage in self._storages_of(tensor):
            if storage.category == OTHER:
                self._move(storage, COMMUNICATION)

    def is_saved(self, tensor: Tensor) -> None:
        """Mark a tensor that a backward pass will use: memory without another category is an activation's."""
        for storage in self._storages_of(tensor):
            if storage.category == OTHER:
                self._move(storage, ACTIVATION)

    def _storages_of(self, tensor: Tensor) -> Iterator[_Storage]:
        for plain in plain_tensors(tensor):
            if plain.layout is not torch.strided:
                continue
            storage = self._storages.get(storage_key(plain.untyped_storage()))
            if storage is not None:
                yield storage

    def _move(self, storage: _Storage, category: int) -> None:
        if storage.category != category:
            self.move(storage.category, category, storage.nbytes)
            storage.category = category

    def move(self, before: int, after: int, nbytes: int) -> None:
        """Count bytes of one category under another."""
        if self.listed is not None:
            self.listed.append((-1, 0))
        self.held[before] -= nbytes
        self.held[after] += nbytes

    # Results ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the account at the end of the rank's program: the later collection of its tensors is not recorded."""
        if self._due or self._at_peak:
            self._sample()
        self._changed_at = self.now()
        self._sample()
        self._closed = True

    def samples(self) -> list[MemorySample]:
        """Memory of the rank over time: changes of more than 1/256 of the peak, thinned out; the peak is exact."""
        if not self._closed:
            self.close()
        memory_samples: list[MemorySample] = []
        before = [0] * len(_CATEGORIES)
        for time, held in self._samples:
            changes = [(now - was, i) for i, (was, now) in enumerate(zip(before, held, strict=True)) if now != was]
            memory_samples += [MemorySample(self.rank, time, _CATEGORIES[i], held[i]) for _, i in sorted(changes)]
            before = held
        return memory_samples

    def _sample(self) -> None:
        self._due = self._at_peak = False
        self._sampled_at = self._changed_at
        self._sampled_total = self.total
        self._samples.append((self._changed_at, self.held.copy()))
        if len(self._samples) > self._max_samples:
            self._thin()

    def _thin(self) -> None:
        """Keep two samples of each of several equal time spans: the one with the most memory, and the last one."""
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


def in_blocks(nbytes: int) -> int:
    """Bytes that the allocator takes for `nbytes`."""
    return (nbytes + BLOCK_BYTES - 1) // BLOCK_BYTES * BLOCK_BYTES


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
    """Mark tensors that this thread's rank passes to a collective."""
    account = current()
    if account is not None:
        for tensor in tensors:
            account.is_communicated(tensor)


def is_meta(tensor: Tensor) -> bool:
    """Whether the tensor has no memory, on the `meta` device."""
    # asks the fake tensor itself: torch's own query for the device passes through all modes
    return bool(tensor.fake_device.type == "meta") if isinstance(tensor, FakeTensor) else tensor.is_meta


# The running rank's account ---------------------------------------------------------------------------------------


class Device(NamedTuple):
    """A virtual rank's GPU, for its program."""

    account: MemoryAccount
    endpoint: Endpoint
    topology: Topology
    files: dict[str, Any]
    """Fake tensors that its program has written, by path."""


class _Current(threading.local):
    device: Device | None = None


_current = _Current()


def device() -> Device | None:
    """The GPU of the running thread's rank; None if nothing is counted."""
    return _current.device


def current() -> MemoryAccount | None:
    """The account of the running thread's rank; None if memory is not counted."""
    return _current.device.account if _current.device is not None else None


@contextmanager
def counted_on(device: Device) -> Iterator[None]:
    """Within the context, `device` is the GPU of this thread's rank."""
    _current.device = device
    try:
        yield
    finally:
        _current.device = None
