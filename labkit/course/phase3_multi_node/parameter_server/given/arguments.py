"""Arguments of a parameter server and its workers, checked before any message is sent."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from torch import Tensor
from torch.distributed import ProcessGroup

from labkit.course.arguments import integer, one_of, require
from labkit.course.collective_arguments import group_ranks

MODES = ("sync", "async", "ssp")


def check_mode(mode: str, staleness: int | None) -> float:
    """Return the staleness bound: 0 for sync, infinity for async, `staleness` for ssp.

    Raises ValueError for an unknown mode, for ssp without a staleness of 0 or more, and for another mode with one.
    """
    require("mode", mode, one_of(*MODES))
    if mode != "ssp":
        if staleness is not None:
            raise ValueError(f"staleness must be None unless mode is 'ssp', got {staleness!r} with mode {mode!r}")
        return 0 if mode == "sync" else inf
    require("staleness", staleness, integer(at_least=0))
    return staleness or 0


def check_num_servers(num_servers: int) -> None:
    """Raise ValueError unless `num_servers` is an integer of 1 or more."""
    require("num_servers", num_servers, integer(at_least=1))


def servers_and_workers(num_servers: int, group: ProcessGroup | None) -> tuple[list[int], list[int]]:
    """Return the global ranks of the servers, the first `num_servers` of `group`, and of the workers, the others.

    Raises ValueError if no rank is left to work.
    """
    check_num_servers(num_servers)
    ranks = group_ranks(group)
    if num_servers >= len(ranks):
        raise ValueError(f"num_servers must be less than the group's {len(ranks)} ranks, got {num_servers}")
    return ranks[:num_servers], ranks[num_servers:]


def require_role(rank: int, num_servers: int, own: list[int], name: str) -> None:
    """Raise ValueError unless this rank is one of `own`, the ranks of its role."""
    if rank not in own:
        raise ValueError(
            f"num_servers={num_servers} makes the group's first {num_servers} ranks servers and the others workers: "
            f"rank {rank} cannot be a {name}"
        )


def trained_parameters(parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return those of `parameters` that require gradients, tied ones once.

    Raises ValueError if there are none, or if they are on several devices.
    """
    given = list(parameters)
    if odd := [type(p).__name__ for p in given if not isinstance(p, Tensor)]:
        raise ValueError(f"parameters must be tensors, got {odd[0]}")
    trained = list({id(p): p for p in given if p.requires_grad}.values())
    if not trained:
        raise ValueError(f"parameters must have one that requires a gradient, got {len(given)} without")
    if len(devices := {str(p.device) for p in trained}) > 1:
        raise ValueError(f"parameters must be on one device, got {', '.join(sorted(devices))}")
    return trained


def check_push(samples: int, pulled: bool) -> None:
    """Raise ValueError unless `samples` is an integer of 0 or more, RuntimeError unless the worker has pulled."""
    require("samples", samples, integer(at_least=0))
    if not pulled:
        raise RuntimeError("push without a pull: each step is one pull, a backward pass and one push")
