"""Lines of several ranks, put in an order that means something, equal ones as one: `[0-3] ready`."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import zip_longest
from typing import NamedTuple

from labkit.clusters.run import ranges

_BURST_SECONDS = 0.25
_TIMES = re.compile(r" \[\d+:\d+[^\]]*\]")
"""What differs in equal bars of tqdm: `[00:02<00:00, 45.2it/s]`."""


class Line(NamedTuple):
    """A whole line that one rank printed."""

    time: float
    rank: int
    stream: str
    text: str
    is_bar: bool = False

    @property
    def same(self) -> tuple[str, str]:
        """Equal for lines that are shown as one."""
        return self.stream, _TIMES.sub("", self.text) if self.is_bar else self.text


class Folded(NamedTuple):
    """A line that these ranks printed."""

    ranks: list[int]
    stream: str
    text: str


def fold(lines: Iterable[Line]) -> list[Folded]:
    """Equal lines of several ranks as one, where the first of them stood; each rank's own lines keep their order."""
    shown: list[Folded] = []
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    reached: dict[int, int] = {}
    for line in lines:
        same = places[line.same]
        # the earliest equal line that stands after this rank's last one
        index = bisect_right(same, reached.get(line.rank, -1))
        if index < len(same):
            place = same[index]
            shown[place].ranks.append(line.rank)
        else:
            place = len(shown)
            shown.append(Folded([line.rank], line.stream, line.text))
            same.append(place)
        reached[line.rank] = place
    return shown


def label(ranks: list[int], stream: str, nproc_per_node: int | None) -> str:
    """`[0-3]`; of a node among several, `[1:4-7]`; of standard error, `[0 stderr]`. Ranks count over all nodes.

    nproc_per_node: ranks of each node; None when there is one node only.
    """
    node = ""
    if nproc_per_node is not None:
        nodes = {rank // nproc_per_node for rank in ranks}
        if len(nodes) == 1:
            node = f"{nodes.pop()}:"
    return f"[{node}{ranges(ranks)}{' stderr' * (stream == 'stderr')}]"


def settle(lines: Iterable[Line]) -> list[Line]:
    """The lines of processes that run side by side, in an order that does not change from run to run.

    Within a quarter of a second it is chance who comes first: there, take one line of each rank in turn, from rank 0.
    """
    settled: list[Line] = []
    burst: dict[int, list[Line]] = defaultdict(list)
    ends = 0.0
    for line in lines:
        if burst and line.time > ends:
            settled += _in_turn(burst)
            burst.clear()
        if not burst:
            ends = line.time + _BURST_SECONDS
        burst[line.rank].append(line)
    return settled + _in_turn(burst)


def _in_turn(burst: dict[int, list[Line]]) -> list[Line]:
    rounds = zip_longest(*(burst[rank] for rank in sorted(burst)))
    return [line for round in rounds for line in round if line is not None]


def align(lines: Iterable[Line]) -> list[Line]:
    """The lines of ranks that run one at a time, in the order of their time, equal ones brought together.

    When a rank prints again after others did, time has passed. While each rank has had one turn, none has: there, a
    rank's lines are put beside the equal ones of the ranks before it, and those between them between.
    """
    aligned: list[Line] = []
    turns: dict[int, list[Line]] = {}
    current = -1
    for line in lines:
        if line.rank != current and line.rank in turns:
            aligned += _side_by_side(turns.values())
            turns = {}
        turns.setdefault(line.rank, []).append(line)
        current = line.rank
    return aligned + _side_by_side(turns.values())


def _side_by_side(turns: Iterable[list[Line]]) -> list[Line]:
    places: list[list[Line]] = []
    known: set[tuple[str, str]] = set()
    for turn in turns:
        reached = 0
        between: list[list[Line]] = []
        for line in turn:
            here = _find(places, line.same, reached) if line.same in known else None
            if here is None:
                between.append([line])
                continue
            places[here:here] = between
            reached = here + len(between) + 1
            places[reached - 1].append(line)
            between = []
        places += between
        known.update(line.same for line in turn)
    return [line for place in places for line in place]


def _find(places: list[list[Line]], same: tuple[str, str], start: int) -> int | None:
    return next((i for i in range(start, len(places)) if places[i][0].same == same), None)
