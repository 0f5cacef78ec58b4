"""What ranks print, put together for people: one lane per rank, equal lines of several ranks as one, `[0-3] ready`."""

from __future__ import annotations

import re
import threading
import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Iterable
from itertools import zip_longest
from typing import NamedTuple

from labkit.clusters.run import ranges

LONGEST_LINE = 1_000
"""Characters of a line that are shown."""
MOST_LINES_AT_FIRST, MOST_LINES_AT_LAST = 300, 60
"""Lines of the output that are shown when it has more than both together."""
_KEPT_AT_FIRST, _KEPT_AT_LAST = 20_000, 2_000
"""Lines of all ranks, before equal ones are folded."""
_BURST_SECONDS = 0.25
_CURSOR = re.compile(r"\x1b\[[0-9;?]*[A-HJKSTfhl]")
"""Escape sequences that move the cursor; those that colour text stay."""


class Line(NamedTuple):
    """A whole line that one rank printed."""

    time: float
    rank: int
    stream: str
    text: str


class Lanes:
    """Takes in what ranks print, in pieces, and keeps their lines: the first and the last ones if there are too many.

    One thread may feed while another one reads.
    """

    def __init__(self, in_order: bool) -> None:
        """in_order: ranks run one at a time, as virtual ones do, so that the order of arrival means something."""
        self._in_order = in_order
        self._first: list[Line] = []
        self._last: deque[Line] = deque(maxlen=_KEPT_AT_LAST)
        self._open: dict[tuple[int, str], str] = {}
        self._count = 0
        self._text: str | None = ""
        self._lock = threading.Lock()

    def feed(self, rank: int, stream: str, text: str) -> None:
        """Take in `text`, which may begin or end within a line. A carriage return begins the line anew."""
        *whole, rest = text.split("\n")
        with self._lock:
            for piece in whole:
                line = _overwritten(self._open.pop((rank, stream), "") + piece).rstrip("\r")
                self._keep(Line(time.monotonic(), rank, stream, _cut(line)))
            if rest:
                # cut here too: a rank may print for ever and never end a line
                self._open[rank, stream] = _cut(_overwritten(self._open.get((rank, stream), "") + rest))

    def close(self) -> str:
        """Nothing more comes, so what has no end of line is a line too. Returns `text()`."""
        for rank, stream in sorted(self._open):
            self.feed(rank, stream, "\n")
        return self.text()

    def unfinished(self) -> str:
        """The line that the lowest rank is just printing, such as a progress bar; empty when there is none."""
        with self._lock:
            rank, stream = min(self._open, default=(0, ""))
            text = self._open.get((rank, stream), "").rstrip("\r")
        return f"[{rank}] {text}" if text else ""

    def text(self) -> str:
        """All lines, folded; says what was left out."""
        with self._lock:
            if self._text is None:
                self._text = "".join(f"{line}\n" for line in self._shown())
            return self._text

    def _shown(self) -> list[str]:
        first, last = fold(self._arranged(self._first)), fold(self._arranged(self._last))
        left_out = self._count - len(self._first) - len(self._last)
        if too_many := max(0, len(first) + len(last) - MOST_LINES_AT_FIRST - MOST_LINES_AT_LAST):
            shown = [*first, *last]
            first, last = shown[:MOST_LINES_AT_FIRST], shown[-MOST_LINES_AT_LAST:]
        if not left_out + too_many:
            return [*first, *last]
        note = (
            f"... {left_out + too_many:,} more lines; with `%%torchrun -o run`, run.ranks[0].output has all of rank 0's"
        )
        return [*first, note, *last]

    def _keep(self, line: Line) -> None:
        self._count += 1
        self._text = None
        if len(self._first) < _KEPT_AT_FIRST:
            self._first.append(line)
        else:
            self._last.append(line)

    def _arranged(self, lines: Iterable[Line]) -> list[Line]:
        return align(lines) if self._in_order else settle(lines)


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
            same = (line.stream, line.text)
            here = _find(places, same, reached) if same in known else None
            if here is None:
                between.append([line])
                continue
            places[here:here] = between
            reached = here + len(between) + 1
            places[reached - 1].append(line)
            between = []
        places += between
        known.update((line.stream, line.text) for line in turn)
    return [line for place in places for line in place]


def _find(places: list[list[Line]], same: tuple[str, str], start: int) -> int | None:
    return next((i for i in range(start, len(places)) if (places[i][0].stream, places[i][0].text) == same), None)


def fold(lines: Iterable[Line]) -> list[str]:
    """Equal lines of several ranks as one, where the first of them stood; each rank's own lines keep their order."""
    shown: list[tuple[list[int], Line]] = []
    places: dict[tuple[str, str], list[int]] = defaultdict(list)
    reached: dict[int, int] = {}
    for line in lines:
        same = places[line.stream, line.text]
        # the earliest equal line that stands after this rank's last one
        index = bisect_right(same, reached.get(line.rank, -1))
        if index < len(same):
            place = same[index]
            shown[place][0].append(line.rank)
        else:
            place = len(shown)
            shown.append(([line.rank], line))
            same.append(place)
        reached[line.rank] = place
    return [f"[{ranges(ranks)}{' stderr' * (line.stream == 'stderr')}] {line.text}" for ranks, line in shown]


def _in_turn(burst: dict[int, list[Line]]) -> list[Line]:
    rounds = zip_longest(*(burst[rank] for rank in sorted(burst)))
    return [line for round in rounds for line in round if line is not None]


def _overwritten(text: str) -> str:
    """What is seen of a line in which carriage returns went back to its start."""
    text = _CURSOR.sub("", text)
    body = text.rstrip("\r")
    return body.rsplit("\r", 1)[-1] + text[len(body) :][:1]


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_LINE else text[:LONGEST_LINE] + "…"
