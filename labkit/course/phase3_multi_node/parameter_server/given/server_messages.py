"""A server's side of the messages: the next request, receives for gradients, and answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

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


class Arriving:
    """Gradients under way from one worker: receives are posted for them."""

    def __init__(self, buffers: list[Tensor], works: list[dist.Work]) -> None:
        self._buffers, self._works = buffers, works

    def wait(self) -> list[Tensor]:
        """Wait until all have arrived; return them: one flat tensor for each dtype of the server's shard, in order."""
        while self._works:
            self._works.pop().wait()
        return self._buffers


class ServerMessages:
    """Requests of all workers to this server, in the order of their arrival, and the payloads that belong to them.

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
        self._parameters, self._pieces = parameters, partition[self.index]
        self._space: dict[int, list[Tensor]] = {}  # of each worker that has pushed: buffers for its gradients
        self._arriving: dict[int, Arriving] = {}  # announced pushes
        self._answers: dict[int, tuple[list[dist.Work], list[Tensor]]] = {}  # answers on their way, and what they send
        self._computing = set(self.workers)  # workers that may send a request: they wait for no answer of this server
        self._died: deque[int] = deque()
        self._lost_in_a_row = 0

    def next_request(self) -> Request:
        """Wait for the next request, first come, first served; sleeps meanwhile.

        A worker that dies is reported once, as a request of kind DIED. Raises RuntimeError if no request can come,
        because every worker waits for an answer or has left.
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
                self._lost_in_a_row = 0
            except RuntimeError as error:
                self._note_loss(worker, error)
                continue
            request = decode(worker, message)
            try:
                # the worker goes on: the answer to its last pull has come, and so have the gradients that it has sent
                for work in self._answers.pop(worker, ([], []))[0]:
                    work.wait()
                if request.kind is Kind.PUSH and worker in self._arriving:
                    self._arriving.pop(worker).wait()
            except RuntimeError:
                self._has_died(worker)
                continue
            if request.kind in (Kind.PULL, Kind.FINISH):
                self._computing.remove(worker)
            return request
        return Request(self._died.popleft(), Kind.DIED)

    def receive(self, request: Request) -> Arriving:
        """Post receives for the gradients that a worker has announced. Does not wait.

        They arrive in buffers of that worker's own, which its next push uses again.
        """
        if request.kind is not Kind.ANNOUNCE:
            raise ValueError(f"request must be of kind ANNOUNCE, got {request.kind.name}")
        worker = request.worker
        if worker not in self._space:
            self._space[worker] = Shard(self._parameters, self._pieces).buffers
        works: list[dist.Work] = []
        for buffer in self._space[worker]:
            work = dist.irecv(buffer, worker, self._group)
            assert work is not None  # this rank is in the group
            works.append(work)
        self._arriving[worker] = Arriving(self._space[worker], works)
        return self._arriving[worker]

    def answer(self, pull: Request, values: Iterable[Tensor]) -> None:
        """Begin to send the values, the buffers of this server's shard, to a worker that pulls. Does not wait.

        Sends a copy, so `values` may change at once. Does nothing if the worker has died.
        """
        copies = [value.detach().clone() for value in values]
        try:
            works = [dist.isend(copy, pull.worker, self._group) for copy in copies]
        except RuntimeError:
            self._has_died(pull.worker)
        else:
            self._answers[pull.worker] = [work for work in works if work is not None], copies
            self._computing.add(pull.worker)

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
