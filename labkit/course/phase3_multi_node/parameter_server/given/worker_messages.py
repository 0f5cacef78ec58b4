"""A worker's side of the messages: requests to each server, with their payloads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.phase3_multi_node.parameter_server.given.arguments import require_role, servers_and_workers
from labkit.course.phase3_multi_node.parameter_server.given.requests import Kind, encode, open_groups


class ServerStopped(RuntimeError):
    """A server has stopped serving; the message names it."""

    consequence = True
    """Whether another rank's failure is the cause."""


_Post = tuple[Callable[..., Any], Tensor, ProcessGroup | None]
"""isend or irecv, a tensor, and the group."""


class ServerWork:
    """Messages under way between this worker and one server."""

    def __init__(self, name: str, works: Sequence[dist.Work], then: Callable[[], ServerWork] | None = None) -> None:
        """then: begins what follows, when all messages have left."""
        self._name, self._works, self._then = name, works, then

    def wait(self) -> None:
        """Wait until all messages have left, or have arrived. Raises ServerStopped if the server is gone."""
        for work in self._works:
            try:
                work.wait()
            except RuntimeError as error:
                raise ServerStopped(f"{self._name} has stopped serving: {error}") from error
        if self._then is not None:
            self._then().wait()


class WorkerMessages:
    """Requests of this worker. `server` is a server's number: 0 is the first one."""

    def __init__(self, num_servers: int, group: ProcessGroup | None, device: torch.device) -> None:
        self.servers, workers = servers_and_workers(num_servers, group)
        """Global ranks of the servers."""
        require_role(dist.get_rank(), num_servers, workers, "worker")
        self._group = group
        self._requests = open_groups(self.servers, workers, group, device)

    def pull(self, server: int, clock: int, values: Sequence[Tensor]) -> ServerWork:
        """Begin to ask for the values of that server's shard, which arrive in `values`, its buffers. Does not wait."""
        receives = [(dist.irecv, value, self._group) for value in values]
        # the request comes last: its answer finds the receives posted
        return self._begin(server, [*receives, self._request(Kind.PULL, clock)])

    def push(self, server: int, clock: int, samples: int, gradients: Sequence[Tensor]) -> ServerWork:
        """Begin to send gradients, in the buffers of that server's shard: announce them, and post sends. Does not wait.

        `wait()` tells the server that they have left; after it the buffers may be written again.
        """
        sends = [(dist.isend, gradient, self._group) for gradient in gradients]
        posts = [self._request(Kind.ANNOUNCE, clock, samples), *sends]
        return self._begin(server, posts, lambda: self._begin(server, [self._request(Kind.PUSH, clock, samples)]))

    def finish(self, clock: int) -> None:
        """Tell all servers that no more requests follow. One that has stopped serving need not know."""
        for server in range(len(self.servers)):
            with suppress(ServerStopped):
                self._begin(server, [self._request(Kind.FINISH, clock)]).wait()

    def _request(self, kind: Kind, clock: int, samples: int = 0) -> _Post:
        return dist.isend, encode(kind, clock, samples), self._requests

    def _begin(self, server: int, posts: Sequence[_Post], then: Callable[[], ServerWork] | None = None) -> ServerWork:
        try:
            works = [post(tensor, self.servers[server], group) for post, tensor, group in posts]
        except RuntimeError as error:
            raise ServerStopped(f"{self._name(server)} has stopped serving: {error}") from error
        return ServerWork(self._name(server), works, then)

    def _name(self, server: int) -> str:
        return f"server {server}, rank {self.servers[server]},"


class FinishingWorker:
    """Base of a worker: `with Worker(...) as worker:` ends with `worker.finish()`, also after an error."""

    messages: WorkerMessages
    clock: int
    _finished = False

    def finish(self) -> None:
        """Tell all servers, once, that no more requests follow: they serve until all workers have finished."""
        if not self._finished:
            self._finished = True
            self.messages.finish(self.clock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if kind is None or issubclass(kind, Exception):  # a killed rank sends nothing
            self.finish()
