"""Messages to a live rank and its answers: plain data and tensors in frames, so that nothing is executed on arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from labkit.transport import frames, wire


@dataclass(frozen=True)
class Cell:
    """Run `source` in the rank's `__main__`, after setting `values` there; the answer holds the result."""

    source: str
    filename: str
    first_line: int
    ranks: tuple[int, ...]
    """Ranks that run it."""
    modules: dict[str, str]
    """Exercise modules that have changed since the last cell, by name."""
    values: dict[str, Any] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    """Names whose values to send back."""
    trace: bool = True
    has_default_group: bool = False
    """Whether every rank has the default process group: `init_process_group()` then keeps it."""
    group_count: int = 0
    """Maximum number of process groups created by any rank so far; torch uses it as the name of the next one."""
    dead: tuple[int, ...] = ()


@dataclass(frozen=True)
class GroupRepair:
    """After a failed cell: connect the process groups again, so that none holds unfinished operations."""

    generation: int
    groups: tuple[str, ...]
    """Groups that all of their members have; every one is connected again."""
    without_default: bool
    """Whether the default group cannot be repaired: it is then destroyed, and with it all others."""


@dataclass(frozen=True)
class Report:
    """Report the rank's status."""


Message = Cell | GroupRepair | Report
_KINDS: dict[str, type[Cell] | type[GroupRepair] | type[Report]] = {
    kind.__name__: kind for kind in (Cell, GroupRepair, Report)
}


def encode(message: Message) -> bytes:
    """One frame."""
    content = {each.name: getattr(message, each.name) for each in fields(message)}
    return frames.encode({"kind": type(message).__name__}, wire.dumps(content))


def decode(header: Mapping[str, Any], payload: bytes) -> Message:
    """The inverse of `encode`."""
    return _KINDS[header["kind"]](**wire.loads(payload))


@dataclass(frozen=True)
class Answer:
    """A rank's status, sent after each message."""

    began: float
    """Time at which it began to process the message, in seconds since the ranks were started."""
    pid: int
    groups: dict[str, tuple[int, ...]]
    """Members of each of its process groups that can be repaired."""
    default: str
    """Name of its default process group, empty if it has none."""
    group_count: int
    pulled: dict[str, Any] = field(default_factory=dict)
    """Requested values by name; names that do not exist are missing."""
    ended: str = ""
    """How the rank has died, if its process lives on: `ended with exit code 3`."""
    clock: int = 0
    """Number of the rank's clock, which the ranks of a node share."""
    clock_began: float = 0.0
    """Time of 0 on that clock, by the machine's own clock."""
    memory: int = 0
    """Bytes of its own memory, and its share of shared memory; 0 if not requested."""

    def with_value(self, value: Any) -> tuple[Any, dict[str, Any]]:
        """The answer as part of the value of a `RankResult`."""
        return value, {each.name: getattr(self, each.name) for each in fields(self)}


def answer_of(value: Any) -> tuple[Any, Answer | None]:
    """The rank's own value and its answer; the latter is None if it could not travel, and `value` has the reason."""
    match value:
        case (own, {"began": float(), "pid": int(), "groups": dict(), "pulled": dict()} as rest):
            try:
                return own, Answer(**rest)
            except TypeError:
                return own, None
    return value, None
