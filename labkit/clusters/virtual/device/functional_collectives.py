"""Functional collectives on fake tensors, as DTensor calls them: they communicate as those on real tensors do.

torch's own return fake results at once, without the process group, so they would take no time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from labkit.torch_versions.groups import group_of_functional_collective
from labkit.torch_versions.tensors import storage_key

_Start = Callable[[Any, Sequence[Any], Any], Any]
"""(process group, arguments, result) -> Work."""


class FunctionalCollectives:
    """Functional collectives of one rank."""

    def __init__(self) -> None:
        self._under_way: dict[int, list[Any]] = {}
        """Works that have not been waited for, by the address of a result's memory."""

    def start(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any) -> None:
        """Start the collective of an operator of this name, if it is one, or wait for its argument's."""
        if name == "wait_tensor":
            for work in self._under_way.pop(_address(args[0]), ()):
                work.wait()
        start = _STARTS.get(name)
        if start is not None:
            arguments = [*args, *(value for key, value in kwargs.items() if key != "out")]
            work = start(group_of_functional_collective(arguments[-1]), arguments, output)
            for tensor in output if isinstance(output, (list, tuple)) else (output,):
                self._under_way.setdefault(_address(tensor), []).append(work)


def _address(tensor: Tensor) -> int:
    return storage_key(tensor.untyped_storage())


def _reducing(options: Any, name: str) -> Any:
    options.reduceOp = getattr(dist.ReduceOp, name.upper())
    return options


def _all_reduce(group: Any, args: Sequence[Any], output: Any) -> Any:
    return group.allreduce([output], _reducing(dist.AllreduceOptions(), args[1]))


def _all_reduce_coalesced(group: Any, args: Sequence[Any], output: Any) -> Any:
    return group.allreduce_coalesced([*output], _reducing(dist.AllreduceCoalescedOptions(), args[1]))


def _reduce_scatter(group: Any, args: Sequence[Any], output: Any) -> Any:
    return group.reduce_scatter_single(output, args[0], _reducing(dist.ReduceScatterOptions(), args[1]))


def _reduce_scatter_coalesced(group: Any, args: Sequence[Any], output: Any) -> Any:
    options = _reducing(dist.ReduceScatterOptions(), args[1])
    return group.reduce_scatter_single_coalesced([*output], [*args[0]], options)


def _broadcast(group: Any, args: Sequence[Any], output: Any) -> Any:
    options = dist.BroadcastOptions()
    options.rootRank = args[1]
    return group.broadcast([output], options)


_STARTS: dict[str, _Start] = {
    **dict.fromkeys(("all_reduce", "all_reduce_"), _all_reduce),
    **dict.fromkeys(("all_reduce_coalesced", "all_reduce_coalesced_"), _all_reduce_coalesced),
    **dict.fromkeys(
        ("all_gather_into_tensor", "all_gather_into_tensor_out"),
        lambda group, args, output: group.all_gather_single(output, args[0]),
    ),
    "all_gather_into_tensor_coalesced": lambda group, args, output: group.all_gather_single_coalesced(
        [*output], [*args[0]]
    ),
    **dict.fromkeys(("reduce_scatter_tensor", "reduce_scatter_tensor_out"), _reduce_scatter),
    "reduce_scatter_tensor_coalesced": _reduce_scatter_coalesced,
    "all_to_all_single": lambda group, args, output: group.all_to_all_single(
        output, args[0], [*args[1]], [*args[2]], None
    ),
    **dict.fromkeys(("broadcast", "broadcast_"), _broadcast),
}
