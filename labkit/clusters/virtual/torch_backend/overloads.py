"""Overloads of torch's `ProcessGroup` methods, for programs that call them without torch.distributed's functions.

torch itself passes lists of tensors and an options object. A program may also pass tensors in place of lists of one,
and a root, a reduction and a time-out in place of the options: `group.broadcast(tensor, 0)`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.distributed import AllreduceCoalescedOptions

_FIELDS = {"op": "reduceOp", "root": "rootRank", "timeout": "timeout"}
"""Field of the options that each parameter replaces, by the parameter's name."""


def overloaded(options: type[Any], data: int, *parameters: str) -> Callable[[Callable[..., Any]], Any]:
    """Let a method with `data` lists of tensors, then `options`, take these parameters and `timeout` in their place."""

    kinds = options, AllreduceCoalescedOptions

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def call(group: Any, *args: Any, **named: Any) -> Any:
            if len(args) > data and args[data].__class__ in kinds:  # an options object: torch's own call
                return method(group, *args)
            given = dict(zip((*parameters, "timeout"), args[data:], strict=False))
            given |= {name: named.pop(name) for name in _FIELDS if name in named}
            if given or len(args) == data:
                named.setdefault("opts", options())
            for name, value in given.items():
                if value is not None:
                    setattr(named["opts"], _FIELDS[name], value)
            tensors = args[:data]
            if any(isinstance(tensor, Tensor) for tensor in tensors):
                tensors = tuple([tensor] for tensor in tensors)
            return method(group, *tensors, **named)

        return call

    return decorate
