"""Which ranks others can still reach: some have ended, some have failed, some have timed out in a group."""

from __future__ import annotations

from collections.abc import Sequence

from labkit.clusters.rank_lists import named_ranks
from labkit.clusters.virtual.scheduler.errors import PeerFailed
from labkit.clusters.virtual.scheduler.requests import Receive, Request


class Reach:
    """The ranks that cannot be reached, and the error of a request that needs one of them."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.ended: dict[int, bool] = {}
        """Ranks whose program has ended, and whether it failed."""
        self.apart: set[int] = set()
        """Live ranks that do not run the current cell; they count as ended."""
        self.lost: set[int] = set()
        """Failed ranks, as far as others can know by now."""
        self.closed: dict[str, set[int]] = {}
        """Ranks that have timed out in each group. As with gloo, nobody can reach them there any more."""

    def lost_peer(self, request: Request, peers: Sequence[int]) -> PeerFailed | None:
        """The error of a request that failed ranks make impossible; None if it is still possible.

        peers: the ranks that could complete it.
        """
        lost = [peer for peer in peers if peer in self.lost]
        if not lost or (_from_anybody(request) and len(lost) < len(peers)):
            return None
        return PeerFailed(f"waited in {request} for {named_ranks(lost)}, which failed")

    def closed_group(self, request: Request, peers: Sequence[int]) -> RuntimeError | None:
        """The error of a request in a group that ranks have left after a time-out, in gloo's words; None if none has.

        peers: as in `lost_peer`.
        """
        closed = self.closed.get(request.group)
        if not closed:
            return None
        if request.rank in closed:
            return RuntimeError(
                f"Application timeout caused pair closure: rank {request.rank} has timed out in this group, so "
                f"{request} cannot be done in it"
            )
        gone = [rank for rank in peers if rank in closed]
        if not gone or (_from_anybody(request) and len(gone) < len(peers)):
            return None
        return RuntimeError(f"Connection closed by peer: {named_ranks(gone)} timed out in the group of {request}")

    def how_they_are_gone(self, peers: Sequence[int]) -> str:
        """Why those of the peers that have ended cannot help: a clause for an error's text, or nothing."""
        gone = [peer for peer in peers if peer in self.ended]
        if gone and self.apart.issuperset(peers):
            return f"but this cell does not run on {named_ranks(gone)}: leave out --ranks"
        if gone and len(gone) == len(peers):
            return f"but {named_ranks(gone)} ended without it"
        return ""


def _from_anybody(request: Request) -> bool:
    return isinstance(request, Receive) and request.wanted is None
