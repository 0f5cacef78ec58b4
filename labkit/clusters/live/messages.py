"""What a live rank is asked and what it answers: plain data and tensors in frames, nothing that runs on arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from labkit.clusters import wire
from labkit.clusters.warm import frames


@dataclass(frozen=True)
class Cell:
    """Run `source` in the rank's `__main__`, after putting `values` there; its answer says what became of it."""

    source: str
    filename: str
    first_line: int
    ranks: tuple[int, ...]
    """The ranks that run it."""
    modules: dict[str, str]
    """Exercise modules that have changed since the last cell, by name."""
    values: dict[str, Any] = field(default_factory=dict)
    wanted: tuple[str, ...] = ()
    """Names whose values are to be sent back."""
    trace: bool = True
    standing: bool = False
    """Every rank has the default process group: `init_process_group()` keeps it."""
    group_count: int = 0
    """How many process groups have been made by any rank; torch gives the next one this number for a name."""
    dead: tuple[int, ...] = ()


@dataclass(frozen=True)
class Mend:
    """Something went wrong in a cell: connect the process groups anew, that none holds what was left half done."""

    generation: int
    groups: tuple[str, ...]
    """Those that all of their members have; every one is connected again."""
    without_default: bool
    """The default group cannot be mended: leave it, and with it all others."""


@dataclass(frozen=True)
class Report:
    """Say how you are."""


Message = Cell | Mend | Report
_KINDS: dict[str, type[Cell] | type[Mend] | type[Report]] = {kind.__name__: kind for kind in (Cell, Mend, Report)}


def encode(message: Message) -> bytes:
    """One frame."""
    content = {each.name: getattr(message, each.name) for each in fields(message)}
    return frames.encode({"kind": type(message).__name__}, wire.dumps(content))


def decode(header: Mapping[str, Any], payload: bytes) -> Message:
    """The inverse of `encode`."""
    return _KINDS[header["kind"]](**wire.loads(payload))


@dataclass(frozen=True)
class Answer:
    """What a rank says after each message: how it stands."""

    began: float
    """Seconds since the ranks were started: when it took up what it was asked."""
    pid: int
    groups: dict[str, tuple[int, ...]]
    """Members of each of its process groups that can be mended."""
    default: str
    """Name of its default process group, empty when it has none."""
    group_count: int
    pulled: dict[str, Any] = field(default_factory=dict)
    """The values that were wanted, by name; those that it does not have are not there."""
    ended: str = ""
    """How it has died, where that leaves its process alive: `ended with exit code 3`."""
    clock: int = 0
    """Ranks with the same number here have one clock: those of a node."""
    clock_began: float = 0.0
    """When that showed 0, as the machine's own clock has it."""
    memory: int = 0
    """Bytes of memory that are its own, and its share of what it has in common with others; 0 where not asked for."""

    def with_value(self, value: Any) -> tuple[Any, dict[str, Any]]:
        """As the value of a `RankResult`."""
        return value, {each.name: getattr(self, each.name) for each in fields(self)}


def answer_of(value: Any) -> tuple[Any, Answer | None]:
    """The rank's own value and its standing; None when it could not travel, and `value` says why."""
    match value:
        case (own, {"began": float(), "pid": int(), "groups": dict(), "pulled": dict()} as rest):
            try:
                return own, Answer(**rest)
            except TypeError:
                return own, None
    return value, None
