"""One operation of one rank, from its start to its end."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Kind(StrEnum):
    """Kind of operation."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"
    COLLECTIVE = "collective"


class Event(NamedTuple):
    """One operation of one rank.

    Times are seconds since the job began: virtual seconds on the virtual cluster, wall-clock seconds elsewhere (see
    `Trace.clock`).
    """

    rank: int
    """Global rank."""
    kind: Kind
    operation: str
    """Name in torch.distributed: `send`, `isend`, `recv`, `irecv`, `all_reduce`, `reduce_scatter_tensor`, ..."""
    start: float
    """Time at which the rank issued it."""
    end: float
    """Time at which it was complete: for a send, its data has left; for a receive, its data has arrived."""
    nbytes: int = 0
    """Bytes of this rank's tensor: the sent data, the received data, a collective's input."""
    peer: int | None = None
    """Global rank at the other end of a send or receive."""
    group: str = ""
    """Name of the process group; `Trace.groups` gives its members."""
    sequence: int = -1
    """Number shared by send and receive of one message; sequence number of a collective within its group, from 0; for
    computing, the number of operators (virtual clusters only, else -1).
    """
    line: str = ""
    """Call site: `Cell In[3], line 5`."""
