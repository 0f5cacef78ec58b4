"""Buckets of DDP in a communication hook: names for their parameters, and a future for each bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from torch.futures import Future

from labkit.course.phase3_multi_node.gradient_compression.given.buckets import Bucket
from labkit.course.phase3_multi_node.gradient_compression.given.rounds import Pending, finish

CommHook = Callable[[Any, Any], Future[Tensor]]
"""Function that DDP calls with its state and a bucket: `torch.distributed.GradBucket`, or anything with its methods."""


class HookBuckets:
    """The buckets of a backward pass, from the first to the last.

    module: the parameters have their names in it. Without it they are numbered in the order in which they first
    appear: the same on every rank, and again after a restart with buckets of the same size, since DDP's first buckets
    follow the order in which parameters were registered.
    """

    def __init__(self, module: nn.Module | None = None) -> None:
        named = module.named_parameters() if module is not None else ()
        self._names: dict[Tensor, str] = {parameter: name for name, parameter in named}
        self._under_way: list[tuple[Future[Tensor], Tensor, Pending]] = []

    def named(self, bucket: Any) -> Bucket:
        """Return the gradients of a bucket, views of its buffer, with their parameters' names."""
        names = [self._names.setdefault(parameter, str(len(self._names))) for parameter in bucket.parameters()]
        return list(zip(names, bucket.gradients(), strict=True))

    def future(self, bucket: Any, pending: Pending) -> Future[Tensor]:
        """Return the future that DDP expects: its value is the bucket's buffer, when `pending` is finished.

        The last bucket's call finishes all of them, in order of the buckets. (A callback of the work, as torch's own
        hooks use, would begin second rounds in any order, and in gloo on a thread that other first rounds need.)
        """
        if bucket.index() == 0:
            # left over from a backward pass that failed
            self._under_way.clear()
        future: Future[Tensor] = Future()
        self._under_way.append((future, bucket.buffer(), pending))
        if bucket.is_last():
            finish([rounds for _, _, rounds in self._under_way])
            for waiting, buffer, _ in self._under_way:
                waiting.set_result(buffer)
            self._under_way.clear()
        return future
