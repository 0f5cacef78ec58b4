"""Fast path of torch.distributed's point-to-point functions and all_reduce, for the common case.

`dist.isend(tensor, dst)` on the default group looks up its group three times and passes two wrappers before it reaches
the process group; that is more than the scheduler's own share of a message. All other cases (a group, a tag by rank in
the group, a complex tensor, a wrong argument) go to torch's own function, and raise its errors.
"""

from __future__ import annotations

import functools
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.clusters.program import line_of
from labkit.clusters.virtual.torch_backend.process_group import VirtualProcessGroup
from labkit.clusters.virtual.torch_backend.work import VirtualWork, write
from labkit.torch_versions.groups import default_group, is_coalescing, replace_function

_SUM = dist.ReduceOp.SUM
_COMPLEX = (torch.complex64, torch.complex128, torch.complex32)


def install() -> None:
    """Replace `dist.send`, `isend`, `recv`, `irecv` and `all_reduce` with these, in this process."""
    group_of_thread = default_group
    torchs_isend, torchs_irecv, torchs_send, torchs_recv = dist.isend, dist.irecv, dist.send, dist.recv
    torchs_all_reduce = dist.all_reduce

    def direct(tensor: Any, peer: Any, group: Any, group_peer: Any) -> VirtualProcessGroup | None:
        """The process group if this call is the common case, else None."""
        if group is None and group_peer is None and tensor.__class__ is Tensor and tensor.dtype not in _COMPLEX:
            default = group_of_thread()
            if (
                default.__class__ is VirtualProcessGroup
                and peer.__class__ is int
                and 0 <= peer < len(default.ranks)
                and peer != default.endpoint.rank
            ):
                return default
        return None

    def isend(tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> Any:
        to = direct(tensor, dst, group, group_dst)
        if to is None:
            return torchs_isend(tensor, dst, group, tag, group_dst)
        handle = to.post_send(tensor, dst, tag, "isend", line_of(sys._getframe(1)))
        return VirtualWork(to.endpoint, to.ranks, handle, None, [tensor], timeout=to.timeout)

    def irecv(tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> Any:
        by = direct(tensor, src, group, group_src)
        if by is None:
            return torchs_irecv(tensor, src, group, tag, group_src)
        handle = by.post_receive(tensor, src, tag, "irecv", line_of(sys._getframe(1)))
        deliver = functools.partial(write, tensor)
        return VirtualWork(by.endpoint, by.ranks, handle, deliver, [tensor], timeout=by.timeout)

    def send(tensor: Any, dst: Any = None, group: Any = None, tag: int = 0, group_dst: Any = None) -> Any:
        to = direct(tensor, dst, group, group_dst)
        if to is None:
            return torchs_send(tensor, dst, group, tag, group_dst)
        to.endpoint.wait(to.post_send(tensor, dst, tag, "send", line_of(sys._getframe(1))), timeout=to.timeout)
        return None

    def recv(tensor: Any, src: Any = None, group: Any = None, tag: int = 0, group_src: Any = None) -> Any:
        by = direct(tensor, src, group, group_src)
        if by is None:
            return torchs_recv(tensor, src, group, tag, group_src)
        handle = by.post_receive(tensor, src, tag, "recv", line_of(sys._getframe(1)))
        data, _ = by.endpoint.wait(handle, timeout=by.timeout)
        write(tensor, data)
        return src

    def all_reduce(tensor: Any, op: Any = _SUM, group: Any = None, async_op: bool = False) -> Any:
        if group is None and not async_op and op is _SUM and tensor.__class__ is Tensor:
            default = group_of_thread()
            if (
                default.__class__ is VirtualProcessGroup
                and tensor.dtype not in _COMPLEX
                and tensor.layout is torch.strided
                and tensor.is_contiguous()
                and not is_coalescing()
            ):
                default.sum_at_once(tensor, line_of(sys._getframe(1)))
                return None
        return torchs_all_reduce(tensor, op, group, async_op)

    for function in (isend, irecv, send, recv, all_reduce):
        replace_function(function.__name__, function)
