"""Time that a rank spends waiting for messages, in those methods of exercises 11 and 15 that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

METHODS = ("finish_gradient_synchronization", "gather", "wait_for_gradients", "clip_grad_norm_")
"""Methods that wait: one of `DistributedDataParallel`, then those of `FullyShardedDataParallel`."""


class Waits:
    """Times these methods of a model as communication, only once where they call each other.

    Messages under way while the rank computes do not count: this is exposed communication. timed: a monitor's.
    """

    def __init__(self, model: nn.Module, timed: Callable[[str], Any], now: Callable[[], float]) -> None:
        self.seconds = 0.0
        """Seconds spent waiting since the start."""
        self._timed, self._now, self._inside = timed, now, False
        for name in METHODS:
            if hasattr(model, name):
                model.__dict__[name] = self._wrapped(getattr(model, name))

    def _wrapped(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            if self._inside:
                return method(*args, **options)
            self._inside, began = True, self._now()
            try:
                with self._timed("communication"):
                    return method(*args, **options)
            finally:
                self._inside = False
                self.seconds += self._now() - began

        return call
