"""The dashboard's view of a monitor's log: columns of bounded length, whatever the number of steps and ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from labkit.course.phase4_production.monitoring.given.json_lines import LineReader

MOST_BINS = 120
"""Maximum number of columns of the page's pictures."""
MOST_ALARMS = 50
REFRESH_SECONDS = 0.3
"""Reading time of a page's or a notebook's refresh, so that both stay responsive."""
_PIECE_NBYTES = 1 << 16
_FIELDS = (
    "samples_per_second",
    "step_seconds",
    "compute_seconds",
    "communication_seconds",
    "input_seconds",
    "memory_bytes",
    "loss",
)


class _Bin:
    """Sums of a rank's steps within one bin of steps."""

    __slots__ = ("count", "sums")

    def __init__(self) -> None:
        self.count = 0
        self.sums = [0.0] * len(_FIELDS)

    def add(self, values: Iterable[float], count: int = 1) -> None:
        self.count += count
        self.sums = [total + value for total, value in zip(self.sums, values, strict=True)]


class DashboardView:
    """Reads the log in `folder` again and again; `refresh` returns what the page draws.

    Steps are collected in bins of `width` steps, a power of two, that grows so that there are at most `MOST_BINS`. So
    memory and page stay small: 64 ranks have 64 rows of 120 numbers. A step that a restarted job takes again counts
    twice in its bin.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.width = 1
        self._readers: dict[Path, LineReader] = {}
        self._bins: dict[int, dict[int, _Bin]] = {}
        self._world_size = 0
        self._last_step = -1
        self._last_time = math.nan
        self._alarms: list[dict[str, Any]] = []

    def refresh(self, seconds: float = math.inf) -> dict[str, Any]:
        """Read what is new, and return the page's data: plain numbers, texts and lists.

        seconds: after so long reading stops, and `data["reading"]` is true: a long log appears step by step.
        """
        until = time.monotonic() + seconds
        for path in sorted(self.folder.glob("rank-*.jsonl")):
            self._readers.setdefault(path, LineReader(path))
        unread = list(self._readers.values())
        while unread and time.monotonic() < until:  # a piece of each rank's file in turn
            unread = [reader for reader in unread if self._read(reader)]
        return {**self.data(), "reading": bool(unread)}

    def _read(self, reader: LineReader) -> bool:
        """Read a piece of a file; return whether there was something new."""
        lines = list(reader.new_lines(_PIECE_NBYTES))
        for line in lines:
            self._take(line)
        return bool(lines)

    def data(self) -> dict[str, Any]:
        """Return the page's data, of the lines read so far.

        steps: first step of each bin. Each other list has a number for each bin, or None: medians of the ranks; samples
        per second are sums. own_over_median: for each rank, its compute and input over the ranks' median, less 1.
        """
        ranks = sorted(self._bins)
        bins = range(self._last_step // self.width + 1) if self._last_step >= 0 else range(0)
        means = {rank: [_means(self._bins[rank].get(place)) for place in bins] for rank in ranks}
        columns: dict[str, list[float | None]] = {}
        for number, field in enumerate(_FIELDS):
            rows = [[row[number] for rank in ranks if (row := means[rank][place]) is not None] for place in bins]
            combine = sum if field == "samples_per_second" else median
            columns[field] = [_plain(combine(row)) if row else None for row in rows]
        most = [[row[5] for rank in ranks if (row := means[rank][place]) is not None] for place in bins]
        return {
            "folder": str(self.folder),
            "ranks": ranks,
            "world_size": max(self._world_size, len(ranks)),
            "last_step": self._last_step,
            "last_time": _plain(self._last_time),
            "width": self.width,
            "steps": [place * self.width for place in bins],
            **columns,
            "largest_memory_bytes": [_plain(max(row)) if row else None for row in most],
            "own_over_median": _over_median([means[rank] for rank in ranks]),
            "alarms": self._alarms[-MOST_ALARMS:][::-1],
            "number_of_alarms": len(self._alarms),
        }

    def _take(self, line: dict[str, Any]) -> None:
        kind = line.get("kind")
        try:
            if kind == "step":
                self._add(int(line["rank"]), int(line["step"]), [float(line[field]) for field in _FIELDS])
                self._last_time = float(line["time"])
            elif kind == "run":
                self._world_size = max(self._world_size, int(line["world_size"]))
            elif kind == "alarm":
                fields = {name: str(line[name]) for name in ("cause", "detail")}
                self._alarms.append({**fields, "rank": int(line["rank"]), "step": int(line["step"])})
        except (KeyError, TypeError, ValueError):
            return  # a line of another format

    def _add(self, rank: int, step: int, values: list[float]) -> None:
        if rank < 0 or step < 0:
            return
        self._last_step = max(self._last_step, step)
        while self._last_step // self.width >= MOST_BINS:
            self.width *= 2
            for rank_bins in self._bins.values():
                joined: dict[int, _Bin] = {}
                for place, own in rank_bins.items():
                    joined.setdefault(place // 2, _Bin()).add(own.sums, own.count)
                rank_bins.clear()
                rank_bins.update(joined)
        self._bins.setdefault(rank, {}).setdefault(step // self.width, _Bin()).add(values)


def _means(own: _Bin | None) -> list[float] | None:
    return None if own is None else [total / own.count for total in own.sums]


def _plain(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def _over_median(rows: list[list[list[float] | None]]) -> list[list[float | None]]:
    """Return for each rank and bin its own time, compute and input, over the ranks' median, less 1."""
    own = [[None if sums is None else sums[2] + sums[4] for sums in row] for row in rows]
    usual = [
        median(there) if (there := [x for x in column if x is not None]) else 0.0 for column in zip(*own, strict=True)
    ]
    return [
        [
            None if x is None or not middle > 0 else round(x / middle - 1, 4)
            for x, middle in zip(row, usual, strict=True)
        ]
        for row in own
    ]
