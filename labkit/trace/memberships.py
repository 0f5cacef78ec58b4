"""Memberships of ranks in process groups: from when to when, and with which backend."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Membership(NamedTuple):
    """One rank's time in one process group."""

    rank: int
    """Global rank."""
    group: str
    """Name of the process group; `Trace.groups` gives its members."""
    backend: str
    """The backend that the rank requested: `gloo`, `nccl`, `cpu:gloo,cuda:nccl`; on real ranks the one in use."""
    joined: float
    """Seconds since the job began, on the trace's clock."""
    left: float | None
    """Time at which the rank destroyed the group; None: never, or not recorded, as on real ranks."""


def memberships_from(rows: Iterable[Sequence[object]]) -> tuple[Membership, ...]:
    """Memberships from rows of plain values, in the order of the fields. Raises ValueError on invalid values."""
    memberships = []
    for row in rows:
        match row:
            case [int() as rank, str() as group, str() as backend, float() as joined, (float() | None) as left]:
                memberships.append(Membership(rank, group, backend, joined, left))
            case _:
                raise ValueError("a trace with values of the wrong form")
    return tuple(memberships)
