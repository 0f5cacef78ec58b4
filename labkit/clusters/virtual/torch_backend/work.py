"""The `Work` objects that torch.distributed returns for a request under way, for the program to wait on."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from math import inf
from typing import Any

import torch
from torch import Tensor

from labkit.clusters.virtual.device import streams
from labkit.clusters.virtual.endpoints.endpoint import Endpoint
from labkit.clusters.virtual.scheduler.collectives import has_data
from labkit.clusters.virtual.torch_backend.futures import VirtualFuture, called_from_the_program_itself
from labkit.torch_versions.dispatch import DisableTorchDispatch
from labkit.torch_versions.fake_tensors import FakeTensor, set_value, value_of
from labkit.torch_versions.groups import Work, run_after_backward

_PLAIN = (Tensor, torch.nn.Parameter)


def snapshot(tensor: Tensor) -> bytes | None:
    """The tensor's present data; None if it has none, as on `meta`, or a fake one's are unknown. It must be contiguous.

    Bypasses torch's dispatcher: a message is not an operator, and a ring of 256 ranks has 130,560.
    """
    if tensor.__class__ not in _PLAIN or not tensor.is_cpu:
        return _snapshot_of_other(tensor)
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def _snapshot_of_other(tensor: Tensor) -> bytes | None:
    if tensor.device.type not in ("cpu", "meta"):
        raise NotImplementedError(
            f"virtual ranks hold their tensors on the CPU, this one is on {tensor.device}: make it without device="
        )
    if not has_data(tensor):
        value = value_of(tensor)
        if value is None:
            return None
        tensor = value
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def write(tensor: Tensor, data: bytes | None) -> None:
    """Fill the tensor with a snapshot of one of the same dtype and size."""
    if tensor.__class__ is FakeTensor:
        with DisableTorchDispatch():
            value = None if data is None else torch.frombuffer(bytearray(data), dtype=tensor.dtype).view(tensor.shape)
            set_value(tensor, value)
    elif data is not None:
        ctypes.memmove(tensor.data_ptr(), data, len(data))


class AwaitedWork:
    """A minimal Work for a caller that waits at once: `dist.all_reduce(x)`."""

    __slots__ = ("_deliver", "_endpoint", "_handle")

    def __init__(self, endpoint: Endpoint, handle: Any, deliver: Callable[[Any], None]) -> None:
        self._endpoint = endpoint
        self._handle = handle
        self._deliver = deliver

    def wait(self, timeout: timedelta | None = None) -> bool:
        arrived, _ = streams.wait(self._endpoint, self._handle)
        self._deliver(arrived)
        return True


class VirtualWork(Work):  # type: ignore[misc]  # typed as Any, see torch_versions
    """A request under way."""

    # set on the class, as most objects never change them and a ring of 256 ranks makes 130,560
    _source = -1
    _error: Exception | None = None
    _over = False
    """Whether it has been waited for: the scheduler is not asked again, and may have forgotten the request."""
    _future: VirtualFuture | None = None
    _use = 0
    _timeout = inf
    """Seconds that `wait()` waits for a message; a collective's limit counts from its call, see collective_matching."""

    def __init__(
        self,
        endpoint: Endpoint,
        members: Sequence[int],
        handle: Any,
        deliver: Callable[[Any], None] | None,
        outputs: Any,
        taken: Sequence[Tensor] = (),
        timeout: float = inf,
    ) -> None:
        """`taken`: the tensors that a collective reads; a message's tensor is in `outputs`."""
        Work.__init__(self)
        self._endpoint = endpoint
        self._members = members
        self._handle = handle
        self._deliver = deliver
        self._outputs = outputs
        if timeout < inf:
            self._timeout = timeout
        # no race detection on process ranks, which know only the request's number; it is not graded
        if handle.__class__ is not int:
            self._use = endpoint.race_detector.post(handle, outputs if deliver else (), taken if deliver else outputs)

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._arrive(True, timeout.total_seconds() if timeout else self._timeout)
        if self._future is not None:
            self._future.complete()
        return True

    def _arrive(self, move_clock: bool, timeout: float = inf) -> None:
        if self._over:
            if self._error is not None:
                raise self._error
            return
        # also on failure: nothing will be written any more
        self._endpoint.race_detector.done(self._use)
        try:
            arrived, self._source = streams.wait(self._endpoint, self._handle, move_clock, timeout)
            self._over = move_clock
            if self._deliver is not None:
                self._deliver(arrived)
                self._deliver = None
        except Exception as error:
            self._error = error
            raise

    def is_completed(self) -> bool:
        """Whether it is done by now. If so, the data has arrived too: a program may poll and never wait."""
        done = self._over or self._endpoint.is_done(self._handle)
        if done:
            self._endpoint.race_detector.done(self._use)
        if done and self._deliver is not None:
            with suppress(Exception):  # raised again by `exception` and `wait`
                self._arrive(move_clock=False)
        return done

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """A future of the outputs.

        The program itself gets one that the rank completes when it waits for it. torch gets a finished one: C++ (DDP's
        reducer) waits without asking the scheduler. In a backward pass the rank's clock moves only when the pass ends,
        so that overlap is kept.
        """
        if called_from_the_program_itself():
            if self._future is None:
                self._future = VirtualFuture(self._outputs_when_done, self.is_completed)
            return self._future
        self._arrive(move_clock=False)
        if not run_after_backward(self.synchronize):
            self.synchronize()
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._outputs)
        return future

    def _outputs_when_done(self) -> Any:
        self._arrive(True)
        return self._outputs

    def result(self) -> Any:
        return self._outputs

    def exception(self) -> Exception | None:
        return self._error

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def source_rank(self) -> int:
        if self._source < 0:
            raise RuntimeError(
                "sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call, "
                "after their wait()"
            )
        return self._members.index(self._source)

    _source_rank = source_rank


class WorkOfSeveral(Work):  # type: ignore[misc]  # as above
    """The Work of a coalescing manager: done when all of its parts are."""

    def __init__(self, works: Sequence[VirtualWork | AwaitedWork]) -> None:
        Work.__init__(self)
        self._works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        for work in self._works:
            work.wait(timeout)
        return True

    def synchronize(self) -> None:
        self.wait()
