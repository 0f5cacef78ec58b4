"""Combine the ranks' output for readers: one lane per rank, equal lines of several ranks merged."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from labkit.rank_output.folding import FoldedLine, OutputLine, align, fold, label, settle
from labkit.rank_output.rows import SPECIAL, Row, Rows, cut

MOST_LINES_AT_FIRST, MOST_LINES_AT_LAST = 300, 60
"""Lines shown at the beginning and the end of longer output."""
LAST_OF_EACH_RANK = 2
"""Number of each rank's last lines that are always shown, whatever other ranks print after them."""
_KEPT_AT_FIRST = 20_000
"""First lines kept of all ranks, before equal ones are folded."""
_KEPT_AT_LAST = 8_000
"""Last lines kept of all ranks together; but at least a hundred of each."""
_SETTLED_SECONDS = 0.4
"""Seconds after which an unchanged incomplete row is shown."""


class _Chunk(NamedTuple):
    """Complete lines that one rank printed at once, each with its newline."""

    number: int
    time: float
    rank: int
    stream: str
    text: str
    size: int
    """Number of lines."""
    is_bar: bool


class Lanes:
    """Collects the ranks' output in pieces and keeps the first lines, and the last lines of every rank.

    One thread may feed while another reads.
    """

    def __init__(self, in_order: bool, nproc_per_node: int | None = None) -> None:
        """in_order: ranks run one at a time, as virtual ones do, so that the order of arrival is meaningful.

        nproc_per_node: with several nodes, for labels that name the node.
        """
        self._in_order = in_order
        self.nproc_per_node = nproc_per_node
        self._first: deque[_Chunk] = deque()
        self._first_count = 0
        self._last: dict[int, deque[_Chunk]] = {}
        self._last_counts: dict[int, int] = {}
        self._rows: dict[tuple[int, str], Rows] = {}
        self._count = 0
        self._chunks = 0
        self._text: str | None = ""
        self._lock = threading.Lock()

    def feed(self, rank: int, stream: str, text: str) -> None:
        """Add `text`, which may begin or end within a line."""
        with self._lock:
            rows = self._rows.get((rank, stream))
            if rows is None:
                rows = self._rows[rank, stream] = Rows(
                    lambda row: self._keep(rank, stream, f"{row.text}\n", 1, row.is_bar),
                    lambda: self._take_back(rank, stream),
                )
            if rows.is_plain and not SPECIAL.search(text):
                whole, newline, rest = (rows.open_text + text).rpartition("\n")
                if newline:
                    self._keep(rank, stream, whole + newline, whole.count("\n") + 1, is_bar=False)
                if rest or newline:
                    rows.set_open(rest)
            else:
                rows.write(text)

    def close(self) -> str:
        """End the input; incomplete rows become lines. Returns `text()`."""
        with self._lock:
            for _, rows in sorted(self._rows.items()):
                rows.close()
        return self.text()

    def open_rows(self) -> dict[int, list[tuple[str, Row]]]:
        """Rows that each rank is writing, as (stream, row): progress bars, and lines that stay incomplete."""
        now = time.monotonic()
        by_rank: dict[int, list[tuple[str, Row]]] = {}
        with self._lock:
            for (rank, stream), rows in sorted(self._rows.items()):
                for row in rows.open_rows():
                    if row.is_bar or now - row.changed > _SETTLED_SECONDS:
                        shown = Row(cut(row.text.rstrip()), row.is_bar, row.changed)
                        by_rank.setdefault(rank, []).append((stream, shown))
        return by_rank

    @property
    def count(self) -> int:
        """Number of lines so far, before equal ones are folded."""
        return self._count

    def recent(self, most: int) -> list[FoldedLine]:
        """The last lines, folded; at most `most`."""
        with self._lock:
            wanted = most * max(1, min(len(self._rows), 64))
            chunks = sorted(chunk for chunks in self._last.values() for chunk in chunks)
            held = sum(chunk.size for chunk in chunks)
            for chunk in reversed(self._first):
                if held >= wanted:
                    break
                chunks.insert(0, chunk)
                held += chunk.size
        lines = list(_lines(chunks))
        return fold(self._arranged(lines[-wanted:]))[-most:]

    def text(self) -> str:
        """All lines, folded, with a note on omitted lines."""
        with self._lock:
            if self._text is None:
                self._text = "".join(f"{line}\n" for line in self._shown())
            return self._text

    def _shown(self) -> list[str]:
        first = fold(self._arranged(_lines(self._first)))
        last = fold(self._arranged(_lines(sorted(chunk for chunks in self._last.values() for chunk in chunks))))
        left_out = self._count - self._first_count - sum(self._last_counts.values())
        if len(first) + len(last) > MOST_LINES_AT_FIRST + MOST_LINES_AT_LAST:
            shown = [*first, *last]
            first, rest = shown[:MOST_LINES_AT_FIRST], shown[MOST_LINES_AT_FIRST:]
            last = _ends(rest)
            left_out += len(rest) - len(last)
        note = [f"... {left_out:,} more lines; `%runs` lists the files with the full output"] if left_out else []
        return [*map(self._labelled, first), *note, *map(self._labelled, last)]

    def _labelled(self, line: FoldedLine) -> str:
        return f"{label(line.ranks, line.stream, self.nproc_per_node)} {line.text}"

    def _keep(self, rank: int, stream: str, text: str, count: int, is_bar: bool) -> None:
        self._text = None
        self._count += count
        self._chunks += 1
        chunk = _Chunk(self._chunks, time.monotonic(), rank, stream, text, count, is_bar)
        if (room := _KEPT_AT_FIRST - self._first_count) > 0:
            head, chunk = _split(chunk, room)
            self._first.append(head)
            self._first_count += head.size
        if chunk.size:
            kept = self._last.setdefault(rank, deque())
            most = max(100, _KEPT_AT_LAST // len(self._last))
            if chunk.size > most:
                chunk = chunk._replace(text="\n".join(chunk.text.rsplit("\n", most + 1)[1:]), size=most)
            kept.append(chunk)
            self._last_counts[rank] = self._last_counts.get(rank, 0) + chunk.size
            while self._last_counts[rank] - kept[0].size >= most:
                self._last_counts[rank] -= kept.popleft().size

    def _take_back(self, rank: int, stream: str) -> str | None:
        """Remove and return the last line of this stream; None if it is no longer kept."""
        for kept in (self._last.get(rank, deque()), self._first):
            for index in range(len(kept) - 1, -1, -1):
                chunk = kept[index]
                if (chunk.rank, chunk.stream) != (rank, stream):
                    continue
                head, _, line = chunk.text[:-1].rpartition("\n")
                if chunk.size > 1:
                    kept[index] = chunk._replace(text=f"{head}\n", size=chunk.size - 1)
                else:
                    del kept[index]
                if kept is self._first:
                    self._first_count -= 1
                else:
                    self._last_counts[rank] -= 1
                self._count -= 1
                self._text = None
                return line
        return None

    def _arranged(self, lines: Iterable[OutputLine]) -> list[OutputLine]:
        return align(lines) if self._in_order else settle(lines)


def _ends(lines: list[FoldedLine]) -> list[FoldedLine]:
    """The last lines, and of the earlier ones the last of each rank."""
    chosen = set(range(max(0, len(lines) - MOST_LINES_AT_LAST), len(lines)))
    seen: dict[int, int] = {}
    for index in range(len(lines) - 1, -1, -1):
        for rank in lines[index].ranks:
            seen[rank] = seen.get(rank, 0) + 1
            if seen[rank] <= LAST_OF_EACH_RANK:
                chosen.add(index)
    return [lines[index] for index in sorted(chosen)]


def _split(chunk: _Chunk, count: int) -> tuple[_Chunk, _Chunk]:
    """Split into the first `count` lines and the rest."""
    if chunk.size <= count:
        return chunk, chunk._replace(text="", size=0)
    lines = chunk.text.split("\n", count)
    head = "\n".join(lines[:count]) + "\n"
    return chunk._replace(text=head, size=count), chunk._replace(text=lines[count], size=chunk.size - count)


def _lines(chunks: Iterable[_Chunk]) -> Iterator[OutputLine]:
    for chunk in chunks:
        for text in chunk.text[:-1].split("\n"):
            # bars usually go to stderr, but are not errors
            stream = "stdout" if chunk.is_bar else chunk.stream
            yield OutputLine(chunk.time, chunk.rank, stream, cut(text), chunk.is_bar)
