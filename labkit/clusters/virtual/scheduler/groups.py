"""Process groups: their members, and which ranks have joined and left them when."""

from __future__ import annotations

from labkit.clusters.virtual.scheduler.errors import MismatchError
from labkit.trace import Membership


class Groups:
    """The process groups of a run, by name."""

    def __init__(self) -> None:
        self.members: dict[str, tuple[int, ...]] = {}
        """Global ranks of each group's members, in the order of their ranks in the group."""
        self._memberships: dict[tuple[int, str], Membership] = {}
        """By rank and group, in the order of joining."""

    def join(self, rank: int, name: str, members: tuple[int, ...], backend: str, time: float) -> None:
        """Record that a rank has created a group. Raises MismatchError if others mean another group by its name."""
        known = self.members.setdefault(name, members)
        if known != members:
            raise MismatchError(
                f"process group number {name} has ranks {list(members)} on rank {rank} but {list(known)} on others: "
                "every rank must call new_group for every group, also for those it is not in, in the same order"
            )
        # a second entry would hide the first
        self._memberships.setdefault((rank, name), Membership(rank, name, backend, time, None))

    def leave(self, rank: int, name: str, time: float) -> None:
        """Record that a rank has destroyed a group."""
        if self.has(rank, name):
            self._memberships[rank, name] = self._memberships[rank, name]._replace(left=time)

    def has(self, rank: int, name: str) -> bool:
        """Whether the rank has joined this group and not left it."""
        membership = self._memberships.get((rank, name))
        return membership is not None and membership.left is None

    def memberships(self) -> tuple[Membership, ...]:
        """All memberships so far, in the order of joining."""
        return tuple(self._memberships.values())
