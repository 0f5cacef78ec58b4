"""A server's side of the messages: the next request, and answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace

import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.phase3_multi_node.parameter_server.given.arguments import require_role, servers_and_workers
from labkit.course.phase3_multi_node.parameter_server.given.requests import (
    Kind,
    Request,
    decode,
    empty_message,
    open_groups,
)
from labkit.course.phase3_multi_node.parameter_server.given.shards import Piece, Shard

_CLOSED = ("closed by peer", "reset by peer", "Broken pipe")
"""Texts in gloo's errors when the process at the other end has ended."""


class ServerMessages:
    """Requests of all workers to this server, in the order of their arrival.

    A receive from any rank does not notice that one of them has died. So when only one worker can send the next
    request, since all others wait for an answer or have left, the server receives from that one, which does notice.
    Two workers that die while all others wait or have left are not noticed: the server and the others wait forever.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        partition: Sequence[Sequence[Piece]],
        num_servers: int,
        group: ProcessGroup | None,
    ) -> None:
        servers, self.workers = servers_and_workers(num_servers, group)
        """Global ranks of the workers."""
        rank = dist.get_rank()
        require_role(rank, num_servers, servers, "server")
        self.index = servers.index(rank)
        """Number of this server among the servers."""
        self._group = group
        self._requests = open_groups(servers, self.workers, group, parameters[0].device)
        self._arriving = Shard(parameters, partition[self.index])
        self._computing = set(self.workers)  # workers that may send a request: they wait for no answer of this server
        self._died: deque[int] = deque()
        self._lost_in_a_row = 0

    def next_request(self) -> Request:
        """Wait for the next request, first come, first served; sleeps meanwhile.

        A push comes with its gradients. A worker that dies is reported once, as a request of kind DIED.
        Raises RuntimeError if no request can come, because every worker waits for an answer or has left.
        """
        while not self._died:
            if not self._computing:
                raise RuntimeError(
                    "there can be no more requests: every worker has left, or waits for the answer to its pull"
                )
            worker, message = next(iter(self._computing)), empty_message()
            try:
                if len(self._computing) == 1:
                    dist.recv(message, worker, self._requests)
                else:
                    worker = dist.recv(message, group=self._requests)
            except RuntimeError as error:
                self._note_loss(worker, error)
                continue
            self._lost_in_a_row = 0
            request = decode(worker, message)
            if request.kind is not Kind.PUSH:
                self._computing.remove(worker)
                return request
            try:
                for buffer in self._arriving.buffers:
                    dist.recv(buffer, worker, self._group)
            except RuntimeError:
                self._has_died(worker)
                continue
            return replace(request, gradients=self._arriving.buffers)
        return Request(self._died.popleft(), Kind.DIED)

    def answer(self, request: Request, values: Iterable[Tensor]) -> None:
        """Answer a pull: send the values, the buffers of this server's shard. Does nothing if the worker has died."""
        try:
            for value in values:
                dist.send(value.detach(), request.worker, self._group)
        except RuntimeError:
            self._has_died(request.worker)
        else:
            self._computing.add(request.worker)

    def _note_loss(self, worker: int, error: RuntimeError) -> None:
        """Handle a failed receive: from `worker` if it is the only one, else from any: the error names no rank."""
        if len(self._computing) == 1:
            self._has_died(worker)
            return
        # if a worker died just before it sent a request, gloo reports it once, here, and can go on
        self._lost_in_a_row += 1
        if self._lost_in_a_row > len(self.workers) or not any(text in str(error) for text in _CLOSED):
            raise error

    def _has_died(self, worker: int) -> None:
        self._computing.discard(worker)
        self._died.append(worker)
