"""The monitor's log: a folder with a file of JSON lines for each rank, which others read while it is written.

`rank-00003.jsonl` has an object in each line, with a field `kind`:

    {"kind": "run", "format": 1, "rank": 3, "world_size": 8, "time": ...}    first, and again after each restart
    {"kind": "step", "time": ..., "rank": 3, "step": 17, "loss": 2.1, ...}   the fields of `StepRecord`
    {"kind": "evaluation", "time": ..., "step": 40, "loss": 1.9, "top1": 0.4}          first rank's file
    {"kind": "alarm", "time": ..., "cause": "slow compute", "rank": 5, "step": 40, "detail": "..."}   first rank's file

`operations` of a step has, for each operation, the seconds of all its calls and a histogram of them, with the bounds
`OPERATION_BOUNDS`: {"all_reduce": {"seconds": 0.012, "calls": [0, 0, 3, ...]}}. What was not measured is null.

A number that is NaN or infinite is written as the text "nan", "inf" or "-inf", since JSON has none of them. A line is
written at once, but a reader may see its beginning before its end: ignore a last line without a line feed.
"""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.course.phase4_production.monitoring.given.records import OPERATION_BOUNDS, Alarm, Evaluation, StepRecord
from labkit.course.training_run.json_line_file import JsonLineFile

FORMAT = 1


class JsonLines:
    """Sink that writes this rank's file in `folder`, which is made if it is missing; appends to one that is there.

    A full disk loses lines, with a warning that names the file, and ends no training.
    """

    def __init__(self, folder: str | Path, rank: int, world_size: int) -> None:
        self._file = JsonLineFile(file_of(Path(folder), rank))
        self._write({"kind": "run", "format": FORMAT, "rank": rank, "world_size": world_size, "time": time.time()})

    def step(self, record: StepRecord) -> None:
        fields = record._asdict()
        if record.operations is not None:
            fields["operations"] = {name: _histogram(seconds) for name, seconds in record.operations.items()}
        self._write({"kind": "step", **fields})

    def evaluation(self, evaluation: Evaluation) -> None:
        self._write({"kind": "evaluation", "time": evaluation.time, "step": evaluation.step, **evaluation.figures})

    def alarm(self, alarm: Alarm) -> None:
        self._write({"kind": "alarm", "time": time.time(), **alarm._asdict()})

    def close(self) -> None:
        self._file.close()

    def _write(self, fields: Mapping[str, Any]) -> None:
        finite = {name: repr(x) if isinstance(x, float) and not math.isfinite(x) else x for name, x in fields.items()}
        self._file.write(finite)


def _histogram(seconds: Sequence[float]) -> dict[str, Any]:
    calls = [0] * (len(OPERATION_BOUNDS) + 1)
    for value in seconds:
        calls[bisect_left(OPERATION_BOUNDS, value)] += 1
    return {"seconds": sum(seconds), "calls": calls}


def file_of(folder: Path, rank: int) -> Path:
    """Return the path of a rank's file."""
    return folder / f"rank-{rank:05d}.jsonl"


class LineReader:
    """Reads the whole lines that were added to a file since the last time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = 0

    def new_lines(self, limit: int = 1 << 22) -> Iterator[dict[str, Any]]:
        """Yield the objects of new lines, of about `limit` bytes at most; skip what is no JSON object."""
        with self.path.open("rb") as file:
            if self.path.stat().st_size < self._offset:  # written anew
                self._offset = 0
            file.seek(self._offset)
            data = file.read(limit)
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if isinstance(entry, dict):
                yield {name: float(x) if x in ("nan", "inf", "-inf") else x for name, x in entry.items()}


def read_folder(folder: str | Path) -> list[dict[str, Any]]:
    """Return the objects of all files in `folder`, rank by rank."""
    paths = sorted(Path(folder).glob("rank-*.jsonl"))
    return [entry for path in paths for entry in LineReader(path).new_lines(path.stat().st_size)]
