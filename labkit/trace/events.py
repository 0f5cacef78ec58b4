"""One thing that one rank did, from its start to its end."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """What a rank was busy with."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"
    COLLECTIVE = "collective"


class Event(NamedTuple):
    """One operation of one rank.

    Times are seconds since the job began: virtual seconds on the virtual cluster, wall-clock seconds elsewhere
    (`Trace.clock` says which).
    """

    rank: int
    """Global rank."""
    kind: Kind
    operation: str
    """The field's name for it: `send`, `isend`, `recv`, `irecv`, `all_reduce`, `reduce_scatter_tensor`, ..."""
    start: float
    """When the rank issued it."""
    end: float
    """When it was complete: for a send, its data has left; for a receive, its data is there."""
    nbytes: int = 0
    """Bytes of this rank's tensor: what a send sends, what a receive receives, a collective's input."""
    peer: int | None = None
    """Global rank at the other end of a send or receive."""
    group: str = ""
    """Name of the process group; `Trace.groups` gives its members."""
    sequence: int = -1
    """Send and receive of one message share it; a collective's number within its group, from 0; of computing, how many
    operators it was (virtual clusters only, else -1)."""
    line: str = ""
    """Where it was issued: `Cell In[3], line 5`."""
