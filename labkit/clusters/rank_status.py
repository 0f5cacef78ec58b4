"""Status of a real rank while it runs: its line, and its operations. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

Frame = tuple[str, int, str, str]
"""(file, line, function, text of the line), as in `RankError.frames`."""


@dataclass(frozen=True)
class PendingOperation:
    """An operation that a rank has begun and not yet ended."""

    kind: str
    """`collective`, `send`, `receive`, or `other`: waiting for ranks to appear, for a key of the store."""
    name: str
    """`all_reduce`, `isend`, `init_process_group`."""
    group: str = ""
    """Name of the process group; empty if there is none."""
    ranks: tuple[int, ...] = ()
    """Members of the group, as global ranks; empty if unknown."""
    sequence: int = -1
    """Sequence number of a collective within its group, from 0; -1 for other operations."""
    peer: int = -1
    """Global rank at the other end of a message; -1 for any rank, and for other operations."""
    tag: int = 0
    nbytes: int = 0
    line: str = ""
    """Call site: `Cell In[3], line 5`."""
    seconds: float = 0.0
    """Seconds since it began."""
    waited_for: bool = False
    """Whether the rank, or some thread of it, is blocked until it ends."""
    spins: bool = False
    """Whether waiting for it takes a whole core, as waiting for a GPU does."""

    @property
    def place(self) -> str:
        """`all_reduce #2 at Cell In[3], line 5`."""
        number = f" #{self.sequence + 1}" if self.sequence >= 0 else ""
        return f"{self.name}{number}" + (f" at {self.line}" if self.line else "")


@dataclass(frozen=True)
class RankStatus:
    """Status of one rank."""

    rank: int
    frames: tuple[Frame, ...] = ()
    """The learner's frames of its main thread, outermost first."""
    in_torch: bool = False
    """Whether the innermost frame is torch's: the rank may wait for an operation that it has not reported."""
    under_way: tuple[PendingOperation, ...] | None = ()
    """Operations under way, oldest first; None if the rank does not report them, as virtual ranks do not."""
    exit: int | None = None
    """Its exit code, once it has ended."""
    apart: bool = False
    """Whether this is a live rank that the cell does not run on."""

    @property
    def waits_in(self) -> PendingOperation | None:
        """The operation that blocks the rank; None if it is busy with something else."""
        if self.exit is not None or self.under_way is None:
            return None
        waited_for = next((operation for operation in self.under_way if operation.waited_for), None)
        if waited_for is not None or not self.in_torch:
            return waited_for
        return next((operation for operation in self.under_way if operation.kind in ("collective", "other")), None)

    @property
    def line(self) -> str:
        """`Cell In[3], line 5`, or an empty string if no line of the learner's is known."""
        if self.frames:
            return f"{self.frames[-1][0]}, line {self.frames[-1][1]}"
        return self.waits_in.line if self.waits_in else ""
