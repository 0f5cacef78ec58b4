"""Where the ranks of a host report: their output, their results, notes."""

from __future__ import annotations

from collections import Counter
from typing import Any

from labkit.clusters.rank_result import RankResult
from labkit.clusters.virtual.isolation.current import is_forked
from labkit.trace import Trace


class Outlet:
    """Passes everything on to the process's reporter, or to those who record it from `record` on.

    What the ranks print when they run a second time is left out as far as they printed it the first time.
    """

    def __init__(self, reporter: Any) -> None:
        """`reporter` can also forward results, as that of a process does."""
        self._reporter = self._of_process = reporter
        self._printed: Counter[tuple[int, str]] = Counter()
        """Characters, by rank and stream."""
        self._repeated: Counter[tuple[int, str]] = Counter()
        """Characters that are still to be printed a second time."""

    def record(self, records: Any) -> None:
        """Call these methods `output`, `result`, `note` and `hosts` from now on, in a process that runs ranks ahead."""
        self._reporter = records

    def repeat(self) -> None:
        """Record that the ranks run again."""
        self._repeated = self._printed.copy()

    def output(self, rank: int, stream: str, text: str) -> None:
        if is_forked():  # not ahead of anything
            self._of_process.output(rank, stream, text)
            return
        left_out = min(self._repeated[rank, stream], len(text))
        self._repeated[rank, stream] -= left_out
        self._printed[rank, stream] += len(text) - left_out
        if len(text) > left_out:
            self._reporter.output(rank, stream, text[left_out:])

    def result(self, result: RankResult) -> None:
        self._reporter.result(result)

    def forward_result(self, frame: bytes, exit_code: int | None) -> None:
        self._reporter.forward_result(frame, exit_code)

    def trace(self, trace: Trace) -> None:
        self._reporter.trace(trace)

    def note(self, text: str) -> None:
        self._reporter.note(text)

    def hosts(self, rank: int) -> None:
        self._reporter.hosts(rank)

    def hosted_by(self, rank: int, thread: int) -> None:
        self._reporter.hosted_by(rank, thread)
