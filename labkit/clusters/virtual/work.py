"""What torch.distributed hands out for a request under way: the `Work` on which a program waits."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from datetime import timedelta
from math import inf
from typing import Any

import torch
from torch import Tensor

from labkit.clusters.torch_versions import Work, run_after_backward
from labkit.clusters.virtual.endpoint import Endpoint

_PLAIN = (Tensor, torch.nn.Parameter)


def snapshot(tensor: Tensor) -> bytes | None:
    """The tensor's data as it is now; None where there is none, as on `meta`. It must be contiguous.

    Past torch's dispatcher: a message is not an operator, and a ring of 256 ranks has 130,560.
    """
    if tensor.__class__ not in _PLAIN or not tensor.is_cpu:
        return _snapshot_of_other(tensor)
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def _snapshot_of_other(tensor: Tensor) -> bytes | None:
    if tensor.device.type not in ("cpu", "meta"):
        raise NotImplementedError(
            f"virtual ranks hold their tensors on the CPU, this one is on {tensor.device}: make it without device="
        )
    if tensor.device.type == "meta":
        return None
    return ctypes.string_at(tensor.data_ptr(), tensor.nbytes)


def write(tensor: Tensor, data: bytes | None) -> None:
    """Fill the tensor with a snapshot of one of the same dtype and size."""
    if data is not None:
        ctypes.memmove(tensor.data_ptr(), data, len(data))


class VirtualWork(Work):  # type: ignore[misc]  # typed as Any, see torch_versions
    """A request under way."""

    def __init__(
        self,
        endpoint: Endpoint,
        members: Sequence[int],
        handle: Any,
        deliver: Callable[[Any], None] | None,
        outputs: Any,
    ) -> None:
        Work.__init__(self)
        self._endpoint = endpoint
        self._members = members
        self._handle = handle
        self._deliver = deliver
        self._outputs = outputs
        self._source = -1

    def wait(self, timeout: timedelta | None = None) -> bool:
        self._arrive(True, timeout.total_seconds() if timeout else inf)
        return True

    def _arrive(self, move_clock: bool, timeout: float = inf) -> None:
        arrived, self._source = self._endpoint.wait(self._handle, move_clock, timeout)
        if self._deliver is not None:
            self._deliver(arrived)
            self._deliver = None

    def is_completed(self) -> bool:
        return self._endpoint.is_done(self._handle)

    def synchronize(self) -> None:
        self.wait()

    def get_future(self) -> torch.futures.Future[Any]:
        """A finished future: C++ waits on it without asking the scheduler, so the data must be there already.

        During a backward pass (DDP) the rank's clock moves only when the pass ends, so that overlap is kept.
        """
        self._arrive(move_clock=False)
        if not run_after_backward(self.synchronize):
            self.synchronize()
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._outputs)
        return future

    def result(self) -> Any:
        return self._outputs

    def exception(self) -> None:
        return None

    def is_success(self) -> bool:
        return True

    def _source_rank(self) -> int:
        return self._members.index(self._source)
