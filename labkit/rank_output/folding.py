"""Arrange the lines of several ranks in a meaningful order and merge equal ones: `[0-3] ready`."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable
from itertools import zip_longest
from typing import NamedTuple

from labkit.clusters.rank_lists import ranges

_BURST_SECONDS = 0.25
_START_SECONDS = 1.0
_TIMES = re.compile(r" \[\d+:\d+[^\]]*\]")
"""The part of tqdm bars to ignore in comparisons: `[00:02<00:00, 45.2it/s]`."""


class OutputLine(NamedTuple):
    """A complete line that one rank printed."""

    time: float
    rank: int
    stream: str
    text: str
    is_bar: bool = False

    @property
    def same(self) -> tuple[str, str]:
        """Key that is equal for lines shown as one."""
        return self.stream, _TIMES.sub("", self.text) if self.is_bar else self.text


class FoldedLine(NamedTuple):
    """A line printed by several ranks."""

    ranks: list[int]
    stream: str
    text: str


def fold(lines: Iterable[OutputLine]) -> list[FoldedLine]:
    """Merge equal lines of several ranks at the position of the first; each rank's own lines keep their order."""
    shown: list[FoldedLine] = []
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    reached: dict[int, int] = {}
    for line in lines:
        same = places[line.same]
        # the earliest equal line after this rank's last one
        index = bisect_right(same, reached.get(line.rank, -1))
        if index < len(same):
            place = same[index]
            shown[place].ranks.append(line.rank)
        else:
            place = len(shown)
            shown.append(FoldedLine([line.rank], line.stream, line.text))
            same.append(place)
        reached[line.rank] = place
    return shown


def label(ranks: list[int], stream: str, nproc_per_node: int | None) -> str:
    """`[0-3]`; with several nodes, `[1:4-7]`; for standard error, `[0 stderr]`. Ranks are global.

    nproc_per_node: ranks per node; None if there is only one node.
    """
    node = ""
    if nproc_per_node is not None:
        nodes = {rank // nproc_per_node for rank in ranks}
        if len(nodes) == 1:
            node = f"{nodes.pop()}:"
    return f"[{node}{ranges(ranks)}{' stderr' * (stream == 'stderr')}]"


def settle(lines: Iterable[OutputLine]) -> list[OutputLine]:
    """Order the lines of concurrent processes so that the order is the same in each run.

    Within a quarter of a second, the order of arrival is chance: take one line of each rank in turn, from rank 0.
    So is which rank of a job starts first: a rank that prints its first line up to a second late is still in time, and
    its quarter of a second begins then.
    """
    settled: list[OutputLine] = []
    burst: dict[int, list[OutputLine]] = defaultdict(list)
    began = 0.0
    for line in lines:
        if burst:
            first = burst[line.rank][0].time if line.rank in burst else line.time
            own = first if not settled and first <= began + _START_SECONDS else began
            if line.time > own + _BURST_SECONDS:
                settled += _in_turn(burst)
                burst.clear()
        if not burst:
            began = line.time
        burst[line.rank].append(line)
    return settled + _in_turn(burst)


def _in_turn(burst: dict[int, list[OutputLine]]) -> list[OutputLine]:
    rounds = zip_longest(*(burst[rank] for rank in sorted(burst)))
    return [line for round in rounds for line in round if line is not None]


def align(lines: Iterable[OutputLine]) -> list[OutputLine]:
    """Order the lines of ranks that run one at a time by time, with equal lines next to each other.

    Time passes when a rank prints again after others did. Until then each rank has had one turn at the same time: put
    a rank's lines next to equal ones of earlier ranks, and the lines between those in between.
    """
    aligned: list[OutputLine] = []
    turns: dict[int, list[OutputLine]] = {}
    current = -1
    for line in lines:
        if line.rank != current and line.rank in turns:
            aligned += _side_by_side(turns.values())
            turns = {}
        turns.setdefault(line.rank, []).append(line)
        current = line.rank
    return aligned + _side_by_side(turns.values())


def _side_by_side(turns: Iterable[list[OutputLine]]) -> list[OutputLine]:
    places: list[list[OutputLine]] = []
    known: set[tuple[str, str]] = set()
    for turn in turns:
        reached = 0
        between: list[list[OutputLine]] = []
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


def _find(places: list[list[OutputLine]], same: tuple[str, str], start: int) -> int | None:
    return next((i for i in range(start, len(places)) if places[i][0].same == same), None)
