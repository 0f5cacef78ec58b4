"""The result of one rank: its value, or why it failed, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from labkit.clusters import error_hints

_BARE = ("SIG", "Exit")
"""Type prefixes of failures that left no exception."""


@dataclass(frozen=True)
class RankError:
    """Why a rank failed, as plain data: the exception itself stays in its process."""

    type: str
    """Name of the exception's class: `ValueError`, `DeadlockError`."""
    message: str
    frames: tuple[tuple[str, int, str, str], ...] = ()
    """The learner's frames, outermost first: (file, line, function, text of the line). Others are omitted."""
    traceback: str = ""
    """The full traceback."""
    time: float = 0.0
    """Seconds since the job began (virtual or wall-clock); the first failure is the cause."""
    consequence: bool = False
    """True when it failed because another rank did: a closed connection, an aborted collective."""
    locals: tuple[tuple[str, str], ...] = ()
    """Variables of the learner's innermost frame as (name, shape and dtype of a tensor, else a short repr)."""

    @property
    def is_mere_end(self) -> bool:
        """Whether only an exit code or a signal is known, and no exception."""
        return self.type == "SystemExit" or (not self.frames and self.type.startswith(_BARE))

    @property
    def says_nothing(self) -> bool:
        """Whether the message only repeats the type of the error."""
        return self.message == self.type or (self.type == "SystemExit" and self.message.startswith("exit code"))

    @property
    def is_gap(self) -> bool:
        """Whether a part of a template was called that is not written yet."""
        return (self.type, self.message) == ("NotImplementedError", error_hints.NOT_WRITTEN)

    @property
    def file(self) -> str:
        """Name of the file of that line: `Cell In[3]`; empty if unknown."""
        return self.frames[-1][0] if self.frames else ""

    @property
    def where(self) -> str:
        """`Cell In[3], line 5`, or an empty string when no line of the learner's code is known."""
        return f"{self.frames[-1][0]}, line {self.frames[-1][1]}" if self.frames else ""


@dataclass(frozen=True)
class RankResult:
    """Result of one rank."""

    rank: int
    value: Any = None
    """Value of the cell's last expression, or the function's return value. `Opaque` if it cannot be transferred."""
    arguments: tuple[Any, ...] = ()
    """Positional arguments after a `Job.call` (in-place changes are visible here)."""
    returned_argument: int | None = None
    """Index of the argument of a `Job.call` that the returned object *is*."""
    output: str = ""
    """Everything the rank printed, stdout and stderr, in order."""
    error: RankError | None = None
    exit: int | None = 0
    """Exit code as torchrun sees it: 0, 1, or minus the signal's number; None when the rank was stopped by the lab."""
