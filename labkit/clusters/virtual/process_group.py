"""The process group of a virtual rank: every call of torch.distributed becomes a request to the scheduler.

A c10d `ProcessGroup` in Python, so learners' code, DDP's C++ reducer, FSDP2 and DTensor run on it unchanged.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from labkit.clusters.program import call_site
from labkit.clusters.torch_versions import ProcessGroup, reduction_name
from labkit.clusters.virtual.endpoint import Endpoint
from labkit.clusters.virtual.requests import Collective, Receive, Send
from labkit.clusters.virtual.work import VirtualWork, snapshot, write


class VirtualProcessGroup(ProcessGroup):  # type: ignore[misc]  # as above
    """The members are `ranks` (global); this one is number `group_rank` among them."""

    def __init__(self, backend: str, name: str, group_rank: int, ranks: tuple[int, ...], endpoint: Endpoint) -> None:
        super().__init__(group_rank, len(ranks))
        self.endpoint = endpoint
        self._post = endpoint.post
        self.ranks = ranks
        self._backend_name = backend
        self._group_rank = group_rank
        self._label = name
        endpoint.join_group(name, ranks)

    def size(self) -> int:
        return len(self.ranks)

    def rank(self) -> int:
        return self._group_rank

    def getBackendName(self) -> str:
        # "gloo" here would make DDP look for the C++ backend of that name
        return "labkit"

    @property
    def pg_name(self) -> str:
        return self._label

    @property
    def group_name(self) -> str:
        return self._label

    @property
    def group_desc(self) -> str:
        return self._label

    def shutdown(self) -> None:
        """Nothing is held open."""

    def abort(self) -> None:
        """Nothing is held open."""

    # Messages -----------------------------------------------------------------------------------------------------

    def send(self, tensors: list[Tensor], to: int, tag: int = 0) -> VirtualWork:
        name, line = call_site()
        handle = self.post_send(tensors[0], to, tag, name or "send", line)
        return VirtualWork(self.endpoint, self.ranks, handle, None, tensors)

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> VirtualWork:
        name, line = call_site()
        handle = self.post_receive(tensors[0], source, tag, name or "recv", line)
        return VirtualWork(self.endpoint, self.ranks, handle, partial(write, tensors[0]), tensors)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> VirtualWork:
        name, line = call_site()
        handle = self.post_receive(tensors[0], None, tag, name or "recv", line)
        return VirtualWork(self.endpoint, self.ranks, handle, partial(write, tensors[0]), tensors)

    def post_send(self, tensor: Tensor, to: int, tag: int, name: str, line: str) -> Any:
        """Ask for a send to member number `to`; returns the scheduler's handle. `name` and `line` go into the trace."""
        if not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        # the data is what it is now: a learner may write into it only after wait(), yet nothing breaks if it is sooner
        return self._post(
            Send(self._label, name, line, self.ranks[to], tag, tensor.dtype, tensor.numel(), tensor.nbytes,
                 snapshot(tensor))
        )  # fmt: skip

    def post_receive(self, tensor: Tensor, source: int | None, tag: int, name: str, line: str) -> Any:
        """Ask for a message from member number `source`, or from anybody; returns the scheduler's handle."""
        if not tensor.is_contiguous():
            raise ValueError("Tensors must be contiguous")
        wanted = None if source is None else self.ranks[source]
        return self._post(Receive(self._label, name, line, wanted, tag, tensor.dtype, tensor.numel()))

    # Collectives --------------------------------------------------------------------------------------------------

    def _collective(
        self, name: str, tensors: list[Tensor], outputs: list[Tensor], result: Any, op: Any = None, root: int = -1
    ) -> VirtualWork:
        reduction = "" if op is None else reduction_name(op)
        request = Collective(self._label, name, call_site()[1], tensors, reduction, root)
        return VirtualWork(self.endpoint, self.ranks, self._post(request), partial(_fill, outputs), result)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> VirtualWork:
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        return self._collective("all_reduce", tensors, tensors, tensors, op)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: list[Tensor], opts: Any) -> VirtualWork:
        outputs = tensors if opts.rootRank == self._group_rank else []
        return self._collective("reduce", tensors, outputs, tensors, opts.reduceOp, opts.rootRank)

    def broadcast(self, tensors: list[Tensor], opts: Any) -> VirtualWork:
        return self._collective("broadcast", tensors, tensors, tensors, root=opts.rootRank)

    def barrier(self, opts: Any = None) -> VirtualWork:
        return self._collective("barrier", [], [], [])

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> VirtualWork:
        return self._collective("all_gather", inputs, [t for row in outputs for t in row], outputs)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> VirtualWork:
        if output.numel() != input.numel() * self.size():
            raise ValueError("output tensor size must be equal to world_size times input tensor size")
        return self._collective("all_gather", [input], self._parts(output), [output])

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> VirtualWork:
        return self._collective("all_gather", inputs, [p for o in outputs for p in self._parts(o)], outputs)

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any) -> VirtualWork:
        mine = outputs[0] if opts.rootRank == self._group_rank else []
        return self._collective("gather", inputs, mine, outputs, root=opts.rootRank)

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> VirtualWork:
        mine = inputs[0] if opts.rootRank == self._group_rank else []
        return self._collective("scatter", mine, outputs, outputs, root=opts.rootRank)

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any) -> VirtualWork:
        return self._collective("reduce_scatter", inputs[0], outputs, outputs, opts.reduceOp)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> VirtualWork:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> VirtualWork:
        if any(i.numel() != o.numel() * self.size() for o, i in zip(outputs, inputs, strict=True)):
            raise ValueError("input tensor must be the same size as output size times world size")
        op = opts.reduceOp if opts is not None else dist.ReduceOp.SUM
        return self._collective("reduce_scatter", [p for i in inputs for p in self._parts(i)], outputs, outputs, op)

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> VirtualWork:
        return self._collective("all_to_all", inputs, outputs, outputs)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_sizes: list[int], input_sizes: list[int], opts: Any = None
    ) -> VirtualWork:
        n = self.size()
        received = torch.split(output.detach(), output_sizes or [len(output) // n] * n)
        sent = torch.split(input.detach(), input_sizes or [len(input) // n] * n)
        return self._collective("all_to_all", list(sent), list(received), [output])

    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _parts(self, tensor: Tensor) -> list[Tensor]:
        """One equal piece for each member."""
        return list(tensor.detach().view(-1).chunk(self.size())) if tensor.numel() else [tensor.view(-1)] * self.size()


def _fill(outputs: list[Tensor], data: list[Tensor]) -> None:
    for output, arrived in zip(outputs, data, strict=True):
        # detached: what arrives is no part of anybody's autograd graph
        output.detach().copy_(arrived if arrived.shape == output.shape else arrived.view(output.shape))
