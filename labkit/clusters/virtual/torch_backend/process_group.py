"""The process group of a virtual rank: every call of torch.distributed becomes a request to the scheduler.

A c10d `ProcessGroup` in Python, so learners' code, DDP's C++ reducer, FSDP2 and DTensor run on it unchanged.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import Tensor

from labkit.clusters.program import call_site
from labkit.clusters.virtual.endpoints.endpoint import Endpoint
from labkit.clusters.virtual.scheduler.requests import Receive, Send
from labkit.clusters.virtual.torch_backend import backends
from labkit.clusters.virtual.torch_backend.collective_calls import CollectiveCalls
from labkit.clusters.virtual.torch_backend.work import VirtualWork, snapshot, write
from labkit.torch_versions.groups import ProcessGroup, inits_of_this_rank


class VirtualProcessGroup(CollectiveCalls, ProcessGroup):  # type: ignore[misc]  # typed as Any, see torch_versions
    """The members are `ranks` (global); this rank is number `group_rank` among them."""

    def __init__(
        self, backend: str, name: str, group_rank: int, ranks: tuple[int, ...], timeout: timedelta, endpoint: Endpoint
    ) -> None:
        super().__init__(group_rank, len(ranks))
        self.endpoint = endpoint
        self.ranks = ranks
        self.backend = backends.backend(backend)
        self.timeout = self.seconds(timeout)
        self.group_rank = group_rank
        self._name = name
        self._description = ""
        # a name may be used again, with other ranks, after destroy_process_group and another init
        inits = inits_of_this_rank()
        self.label = name if inits <= 1 else f"{name} of init {inits}"
        endpoint.join_group(self.label, ranks, backend)

    def size(self) -> int:
        return len(self.ranks)

    def rank(self) -> int:
        return self.group_rank

    def getBackendName(self) -> str:
        # "gloo" would make DDP look for the C++ backend of that name
        return "labkit"

    def name(self) -> str:
        return self.backend.name

    @property
    def pg_name(self) -> str:
        return self._name

    @property
    def group_name(self) -> str:
        return self._name

    @property
    def _device_types(self) -> list[torch.device]:
        return [torch.device("cpu")]

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def shutdown(self) -> None:
        self.endpoint.leave_group(self.label)

    def abort(self) -> None:
        self.endpoint.leave_group(self.label)

    # Messages -----------------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> VirtualWork:
        self._check_peer("send to", to)
        name, line = call_site()
        handle = self.post_send(tensors[0], to, tag, name or "send", line)
        return VirtualWork(self.endpoint, self.ranks, handle, None, tensors, timeout=self.timeout)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> VirtualWork:
        self._check_peer("receive from", source)
        name, line = call_site()
        handle = self.post_receive(tensors[0], source, tag, name or "recv", line)
        return VirtualWork(self.endpoint, self.ranks, handle, partial(write, tensors[0]), tensors, timeout=self.timeout)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> VirtualWork:
        name, line = call_site()
        handle = self.post_receive(tensors[0], None, tag, name or "recv", line)
        return VirtualWork(self.endpoint, self.ranks, handle, partial(write, tensors[0]), tensors, timeout=self.timeout)

    def _check_peer(self, verb: str, peer: int) -> None:
        if not 0 <= peer < len(self.ranks):
            raise IndexError(f"cannot {verb} rank {peer} of a group that has ranks 0 to {len(self.ranks) - 1}")
        if peer == self.group_rank and self.backend.name == "gloo":
            raise RuntimeError(f"rank {self.ranks[peer]} cannot {verb} itself: gloo has no connection for that")

    def post_send(self, tensor: Tensor, to: int, tag: int, name: str, line: str) -> Any:
        """Post a send to group rank `to`; returns the scheduler's handle. `name` and `line` go into the trace."""
        if not tensor.is_contiguous():
            raise (RuntimeError if self.backend.name == "gloo" else ValueError)("Tensors must be contiguous")
        # copies the present data: a learner may write into it only after wait(), but earlier writes break nothing
        handle = self.endpoint.post(
            Send(self.label, name, line, self.ranks[to], tag, tensor.dtype, tensor.numel(), tensor.nbytes,
                 snapshot(tensor))
        )  # fmt: skip
        if self.endpoint.observer is not None:
            self.endpoint.observer(handle, f"{self.backend.name}:send", (tensor,))
        return handle

    def post_receive(self, tensor: Tensor, source: int | None, tag: int, name: str, line: str) -> Any:
        """Post a receive from group rank `source`, or from any rank; returns the scheduler's handle."""
        if not tensor.is_contiguous():
            raise (RuntimeError if self.backend.name == "gloo" else ValueError)("Tensors must be contiguous")
        wanted = None if source is None else self.ranks[source]
        handle = self.endpoint.post(Receive(self.label, name, line, wanted, tag, tensor.dtype, tensor.numel()))
        if self.endpoint.observer is not None:
            call = "recvAnySource" if wanted is None else "recv"
            self.endpoint.observer(handle, f"{self.backend.name}:{call}", (tensor,))
        return handle
