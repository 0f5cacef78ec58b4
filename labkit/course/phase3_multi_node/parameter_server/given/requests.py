"""Requests of workers to servers: three numbers; payloads travel beside them.

Requests travel in a gloo group of their own, on the CPU, so that a server can receive the next one from any worker:
NCCL can receive only from a given rank. Payloads, gradients and values, travel in the backend's own group. A push has
two requests: ANNOUNCE, upon which the server posts receives, and PUSH, when the gradients have left the worker. So a
server can have receives posted for many workers, and waits for none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.torch_versions.agreed_groups import group_within


class Kind(IntEnum):
    """Kind of a request."""

    PULL = 0
    """The worker waits for the values."""
    ANNOUNCE = 1
    """The worker begins to push: its gradients travel once the server has posted receives for them."""
    PUSH = 2
    """The announced gradients have been sent."""
    FINISH = 3
    """The worker has finished: no other request follows."""
    DIED = 4
    """The worker has died. No worker sends this: `next_request` reports it."""


@dataclass(frozen=True)
class Request:
    """A worker's request, as a server gets it."""

    worker: int
    """Global rank of the worker."""
    kind: Kind
    clock: int = 0
    """Number of pushes that the worker had made before this request."""
    samples: int = 0
    """For ANNOUNCE and PUSH: the number of samples whose mean loss the gradients belong to."""


def encode(kind: Kind, clock: int, samples: int) -> Tensor:
    """Return the message of a request."""
    return torch.tensor([kind, clock, samples], dtype=torch.int64)


def empty_message() -> Tensor:
    """Return space for the message of a request."""
    return torch.zeros(3, dtype=torch.int64)


def decode(worker: int, message: Tensor) -> Request:
    """Return the request in a message from `worker`."""
    kind, clock, samples = message.tolist()
    return Request(worker, Kind(kind), clock, samples)


def open_groups(
    servers: Sequence[int], workers: Sequence[int], group: ProcessGroup | None, device: torch.device
) -> ProcessGroup:
    """Return the group for requests: every server and worker of `group` must call it, in the same order.

    With NCCL, also make each pair's connection for payloads, all in the same order: later, ranks would wait for each
    other in a circle.
    """
    requests = group_within(group, [*servers, *workers], "gloo")
    if dist.get_backend(group) == "nccl":
        rank, probe = dist.get_rank(), torch.zeros(1, device=device)
        for server in servers:
            for worker in workers:
                if rank == server:
                    dist.recv(probe, worker, group)
                elif rank == worker:
                    dist.send(probe, server, group)
    return requests
