"""torch.distributed's four point-to-point functions, without the detours, for the common case on virtual ranks.

`dist.isend(tensor, dst)` on the default group looks up its group three times and walks through two wrappers before it
reaches the process group; that is more than the scheduler's own share of a message. Whatever is not the common case (a
group, a tag by rank in the group, a complex tensor, a wrong argument) goes to torch's own function, and its errors.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from labkit.clusters import torch_versions
from labkit.clusters.program import line_of
from labkit.clusters.virtual.process_group import VirtualProcessGroup
from labkit.clusters.virtual.work import VirtualWork, write

_COMPLEX = (torch.complex64, torch.complex128, torch.complex32)


def install() -> None:
    """From now on `dist.send`, `isend`, `recv` and `irecv` are these, in this process."""
    group_of_thread = torch_versions.default_group

    def direct(tensor: Any, peer: Any, group: Any, group_peer: Any) -> VirtualProcessGroup | None:
        """The process group, when this call is the common case."""
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

    def isend(original: Callable[..., Any], tensor: Any, dst: Any = None, group: Any = None, tag: int = 0,
              group_dst: Any = None) -> Any:  # fmt: skip
        to = direct(tensor, dst, group, group_dst)
        if to is None:
            return original(tensor, dst, group, tag, group_dst)
        handle = to.post_send(tensor, dst, tag, "isend", line_of(sys._getframe(1)))
        return VirtualWork(to.endpoint, to.ranks, handle, None, [tensor])

    def irecv(original: Callable[..., Any], tensor: Any, src: Any = None, group: Any = None, tag: int = 0,
              group_src: Any = None) -> Any:  # fmt: skip
        by = direct(tensor, src, group, group_src)
        if by is None:
            return original(tensor, src, group, tag, group_src)
        handle = by.post_receive(tensor, src, tag, "irecv", line_of(sys._getframe(1)))
        return VirtualWork(by.endpoint, by.ranks, handle, functools.partial(write, tensor), [tensor])

    def send(original: Callable[..., Any], tensor: Any, dst: Any = None, group: Any = None, tag: int = 0,
             group_dst: Any = None) -> Any:  # fmt: skip
        to = direct(tensor, dst, group, group_dst)
        if to is None:
            return original(tensor, dst, group, tag, group_dst)
        to.endpoint.wait(to.post_send(tensor, dst, tag, "send", line_of(sys._getframe(1))))
        return None

    def recv(original: Callable[..., Any], tensor: Any, src: Any = None, group: Any = None, tag: int = 0,
             group_src: Any = None) -> Any:  # fmt: skip
        by = direct(tensor, src, group, group_src)
        if by is None:
            return original(tensor, src, group, tag, group_src)
        data, _ = by.endpoint.wait(by.post_receive(tensor, src, tag, "recv", line_of(sys._getframe(1))))
        write(tensor, data)
        return src

    for function in (isend, irecv, send, recv):
        torch_versions.replace_function(function.__name__, function)
