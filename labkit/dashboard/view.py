"""The dashboard's view of a monitor's log: columns of bounded length, whatever the number of steps and ranks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import median
from typing import Any

from labkit.course.phase4_production.monitoring.given.json_lines import LineReader
from labkit.course.phase4_production.monitoring.given.records import OPERATION_BOUNDS

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
_GPU_FIELDS = ("gpu_percent", "gpu_memory_bytes", "gpu_celsius")
"""Fields that are null where they are not measured."""


class _Bin:
    """Sums of a rank's steps within one bin of steps, and the number of values in each."""

    __slots__ = ("counts", "sums")

    def __init__(self) -> None:
        self.sums = [0.0] * (len(_FIELDS) + len(_GPU_FIELDS))
        self.counts = [0] * len(self.sums)

    def add(self, values: Iterable[float | None]) -> None:
        """Add the values of a step, None for what was not measured."""
        for place, value in enumerate(values):
            if value is not None:
                self.sums[place] += value
                self.counts[place] += 1

    def join(self, other: _Bin) -> None:
        """Add the steps of another bin."""
        self.sums = [own + others for own, others in zip(self.sums, other.sums, strict=True)]
        self.counts = [own + others for own, others in zip(self.counts, other.counts, strict=True)]

    def means(self) -> list[float | None]:
        return [total / count if count else None for total, count in zip(self.sums, self.counts, strict=True)]


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
        self._gpus: dict[int, dict[str, Any]] = {}
        """Last figures of each rank's GPU."""
        self._operations: dict[str, dict[str, Any]] = {}
        self._evaluation: dict[str, Any] | None = None

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
        per second are sums. own_over_median: for each rank, its compute and input over the ranks' median, less 1. gpus:
        last figures of each rank whose GPU is measured. operations: seconds and histogram of all calls so far, of all
        ranks. evaluation: the last one, or None.
        """
        ranks = sorted(self._bins)
        bins = range(self._last_step // self.width + 1) if self._last_step >= 0 else range(0)
        means = {rank: [_means(self._bins[rank].get(place)) for place in bins] for rank in ranks}
        percent = len(_FIELDS)
        columns: dict[str, list[float | None]] = {}
        for number, field in enumerate((*_FIELDS, *_GPU_FIELDS)):
            combine = sum if field == "samples_per_second" else median
            columns[field] = [_combined(combine, means, place, number) for place in bins]
        return {
            "folder": str(self.folder),
            "ranks": ranks,
            "world_size": max(self._world_size, len(ranks)),
            "last_step": self._last_step,
            "last_time": _plain(self._last_time),
            "width": self.width,
            "steps": [place * self.width for place in bins],
            **columns,
            "largest_memory_bytes": [_combined(max, means, place, 5) for place in bins],
            "lowest_gpu_percent": [_combined(min, means, place, percent) for place in bins],
            "gpus": [{"rank": rank, **self._gpus[rank]} for rank in sorted(self._gpus)],
            "operations": self._operations,
            "operation_bounds": OPERATION_BOUNDS,
            "evaluation": self._evaluation,
            "own_over_median": _over_median([means[rank] for rank in ranks]),
            "alarms": self._alarms[-MOST_ALARMS:][::-1],
            "number_of_alarms": len(self._alarms),
        }

    def _take(self, line: dict[str, Any]) -> None:
        kind = line.get("kind")
        try:
            if kind == "step":
                gpu = {field: line.get(field) for field in _GPU_FIELDS}
                figures: list[float | None] = [float(line[field]) for field in _FIELDS]
                figures += [None if value is None else float(value) for value in gpu.values()]
                self._add(int(line["rank"]), int(line["step"]), figures)
                self._last_time = float(line["time"])
                if any(value is not None for value in gpu.values()):
                    self._gpus[int(line["rank"])] = gpu
                for name, calls in (line.get("operations") or {}).items():
                    self._add_calls(str(name), float(calls["seconds"]), [int(number) for number in calls["calls"]])
            elif kind == "run":
                self._world_size = max(self._world_size, int(line["world_size"]))
            elif kind == "evaluation":
                tested = {name: value for name, value in line.items() if name not in ("kind", "time", "step")}
                self._evaluation = {
                    "step": int(line["step"]),
                    "figures": {name: _plain(float(value)) for name, value in tested.items()},
                }
            elif kind == "alarm":
                fields = {name: str(line[name]) for name in ("cause", "detail")}
                self._alarms.append({**fields, "rank": int(line["rank"]), "step": int(line["step"])})
        except (KeyError, TypeError, ValueError):
            return  # a line of another format

    def _add_calls(self, operation: str, seconds: float, calls: list[int]) -> None:
        if len(calls) != len(OPERATION_BOUNDS) + 1:
            raise ValueError("a histogram of other bounds")
        known = self._operations.setdefault(operation, {"seconds": 0.0, "calls": [0] * len(calls)})
        known["seconds"] += seconds
        known["calls"] = [own + more for own, more in zip(known["calls"], calls, strict=True)]

    def _add(self, rank: int, step: int, values: list[float | None]) -> None:
        if rank < 0 or step < 0:
            return
        self._last_step = max(self._last_step, step)
        while self._last_step // self.width >= MOST_BINS:
            self.width *= 2
            for rank_bins in self._bins.values():
                joined: dict[int, _Bin] = {}
                for place, own in rank_bins.items():
                    joined.setdefault(place // 2, _Bin()).join(own)
                rank_bins.clear()
                rank_bins.update(joined)
        self._bins.setdefault(rank, {}).setdefault(step // self.width, _Bin()).add(values)


def _means(own: _Bin | None) -> list[float | None] | None:
    return None if own is None else own.means()


def _combined(
    combine: Callable[[list[float]], float], means: dict[int, list[list[float | None] | None]], place: int, number: int
) -> float | None:
    """Return one figure of a bin, of all ranks that have it."""
    rows = [row[place] for row in means.values()]
    values = [value for row in rows if row is not None and (value := row[number]) is not None]
    return _plain(combine(values)) if values else None


def _plain(value: float) -> float | None:
    """Return None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None


def _over_median(rows: list[list[list[float | None] | None]]) -> list[list[float | None]]:
    """Return for each rank and bin its own time, compute and input, over the ranks' median, less 1."""
    own = [[None if sums is None else (sums[2] or 0.0) + (sums[4] or 0.0) for sums in row] for row in rows]
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
