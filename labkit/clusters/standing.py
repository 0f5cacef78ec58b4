"""Where a real rank stands while it runs: at which line, and in which operations. Plain data."""

from __future__ import annotations

from dataclasses import dataclass

Frame = tuple[str, int, str, str]
"""(file, line, function, text of the line), as in `RankError.frames`."""


@dataclass(frozen=True)
class UnderWay:
    """An operation that a rank has begun and that has not ended."""

    kind: str
    """`collective`, `send`, `receive` or `other`: waiting for ranks to appear, for a key of the store."""
    name: str
    """`all_reduce`, `isend`, `init_process_group`."""
    group: str = ""
    """Name of the process group; empty when it has none."""
    ranks: tuple[int, ...] = ()
    """Members of the group, as global ranks; empty when not known."""
    sequence: int = -1
    """A collective's number within its group, from 0; -1 for others."""
    peer: int = -1
    """Global rank at the other end of a message; -1 for anybody, and for others."""
    tag: int = 0
    nbytes: int = 0
    line: str = ""
    """Where it was called: `Cell In[3], line 5`."""
    seconds: float = 0.0
    """How long ago it began."""
    waited_for: bool = False
    """The rank stands still until it ends, or some thread of it does."""
    spins: bool = False
    """Waiting for it takes the whole of a core, as waiting for a GPU does."""

    @property
    def place(self) -> str:
        """`all_reduce #2 at Cell In[3], line 5`."""
        number = f" #{self.sequence + 1}" if self.sequence >= 0 else ""
        return f"{self.name}{number}" + (f" at {self.line}" if self.line else "")


@dataclass(frozen=True)
class Standing:
    """Where one rank stands."""

    rank: int
    frames: tuple[Frame, ...] = ()
    """The learner's frames of its main thread, outermost first."""
    in_torch: bool = False
    """The innermost frame of all is torch's: it may wait for an operation without having said so."""
    under_way: tuple[UnderWay, ...] | None = ()
    """The oldest first; None when the rank does not say, as virtual ones do not."""
    exit: int | None = None
    """Its exit code when it has ended."""
    apart: bool = False
    """A rank that stays, and that the cell does not run on."""

    @property
    def waits_in(self) -> UnderWay | None:
        """The operation that it cannot go on without; None when it is busy with something else."""
        if self.exit is not None or self.under_way is None:
            return None
        waited_for = next((operation for operation in self.under_way if operation.waited_for), None)
        if waited_for is not None or not self.in_torch:
            return waited_for
        return next((operation for operation in self.under_way if operation.kind in ("collective", "other")), None)

    @property
    def line(self) -> str:
        """`Cell In[3], line 5`, or an empty string when no line of the learner's is known."""
        if self.frames:
            return f"{self.frames[-1][0]}, line {self.frames[-1][1]}"
        return self.waits_in.line if self.waits_in else ""
