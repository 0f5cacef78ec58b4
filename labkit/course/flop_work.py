"""Work in proportion to FLOPs: where computing takes no time by itself, as on judged ranks, it takes a known time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from labkit.clusters.virtual.device.operators import operator
from labkit.torch_versions.dispatch import TorchDispatchMode


class FlopWork(TorchDispatchMode):
    """Within it, on a rank, `work()` is called once for every `unit` FLOPs, right after the operator that has them.

    A remainder counts together with later operators. Matrix products, convolutions and attention have FLOPs.
    """

    def __init__(self, work: Callable[[], Any], unit: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types for it
        self._work, self._unit, self._left = work, unit, 0.0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        output = function(*args, **kwargs)
        flops = operator(function).flops
        if flops is not None:
            self._left += flops(*args, **kwargs, out_val=output)
            while self._left >= self._unit:
                self._left -= self._unit
                self._work()
        return output
