"""torch.profiler on virtual ranks: each records a profile of its own, in virtual time.

Operators are those that reach the device, so `aten::linear` is an `aten::addmm`. Communication has the backend's names,
`nccl:all_reduce`, and lasts from the call to the end of the transfer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from labkit.clusters.virtual.device import memory
from labkit.clusters.virtual.device.operators import known, operator
from labkit.clusters.virtual.endpoints.endpoint import Endpoint
from labkit.clusters.virtual.isolation import current
from labkit.torch_versions.dispatch import UnguardedDispatchMode, schema_of
from labkit.torch_versions.profiler import Recorded, record_with

_OPERATORS, _COMMUNICATION = 1, 2
"""Lanes of a profile."""


class _Active(threading.local):
    recorder: _RankRecorder | None = None


_active = _Active()


def install() -> None:
    """Let each rank record profiles of its own."""
    record_with(lambda profile: _RankRecorder(current.endpoint(), profile), lambda: _active.recorder)


def forget() -> None:
    """Forget a profile that the last program of this process has begun and not ended."""
    _active.recorder = None


class _RankRecorder(UnguardedDispatchMode):
    """Sees the operators of one rank, on top of its accounting, and its requests to the scheduler."""

    def __init__(self, endpoint: Endpoint, profile: Any) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self.rank, self.metadata = endpoint.rank, dict[str, str]()
        self._endpoint = endpoint
        self._with_shapes, self._with_flops = profile.record_shapes, profile.with_flops
        self._account = memory.current() if profile.profile_memory else None
        self._recorded: list[Recorded] = []
        self._requests: list[tuple[Any, str, list[tuple[int, ...]]]] = []

    def start(self) -> None:
        _active.recorder = self
        self._endpoint.observer = self._communicates
        self.__enter__()  # type: ignore[no-untyped-call]  # as above

    def stop(self) -> Sequence[Recorded]:
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # as above
        self._endpoint.observer = None
        _active.recorder = None
        for handle, name, shapes in self._requests:
            begin, end = self._endpoint.period(handle)
            end = self._endpoint.now if end is None else end
            self._recorded.append(Recorded(name, _ns(begin), _ns(end), _COMMUNICATION, is_async=True, shapes=shapes))
        return sorted(self._recorded, key=lambda event: (event.start_ns, -event.end_ns))

    def annotate(self, name: str) -> Callable[[], None]:
        begin = self._endpoint.now

        def end() -> None:
            self._recorded.append(Recorded(name, _ns(begin), _ns(self._endpoint.now), _OPERATORS, is_annotation=True))

        return end

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._endpoint.observer is None:
            return function(*args, **(kwargs or {}))
        begin, held = self._endpoint.now, self._held()
        output = function(*args, **(kwargs or {}))
        count = (known.get(id(function)) or operator(function)).flops if self._with_flops else None
        self._recorded.append(
            Recorded(
                schema_of(function).name,
                _ns(begin),
                _ns(self._endpoint.now),
                _OPERATORS,
                shapes=[tuple(a.shape) if isinstance(a, Tensor) else () for a in args] if self._with_shapes else (),
                flops=count(*args, **(kwargs or {}), out_val=output) if count else 0,
                nbytes=self._held() - held,
            )
        )
        return output

    def _held(self) -> int:
        return 0 if self._account is None else self._account.total

    def _communicates(self, handle: Any, name: str, tensors: Sequence[Tensor]) -> None:
        shapes = [tuple(tensor.shape) for tensor in tensors] if self._with_shapes else []
        self._requests.append((handle, name, shapes))


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
