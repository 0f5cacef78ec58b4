"""Reusable rank pool: rank processes for one call after the other, since a short call costs mostly process creation.

Modules, process groups, clocks and random numbers are new for every call. Changes that code has made to Python or torch
themselves are not undone, and it may remember its earlier arguments. So no process is reused after a failed call, a
check that fails on reused ranks must be repeated on fresh ones before it counts, and two checks of which neither may
help the other need fresh ranks each.
"""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from labkit.clusters.cluster import OnOutput
from labkit.clusters.forkserver import reports
from labkit.clusters.forkserver.client import ForkServer, ForkServerDied
from labkit.clusters.forkserver.collector import Collector
from labkit.clusters.forkserver.time_limit import TimeLimit
from labkit.clusters.job import Job
from labkit.clusters.run import Run
from labkit.clusters.virtual.hosts import rank_calls
from labkit.clusters.virtual.hosts.entries import REMOTE
from labkit.trace import Trace
from labkit.transport import frames


class RankPool:
    """The rank processes of one sandbox, as many as the largest call so far needed. Call `close` at the end."""

    def __init__(self, forkserver: ForkServer) -> None:
        self._forkserver = forkserver
        self._batches: list[_RankBatch] = []
        self.clock = forkserver.clock
        self.calls = 0
        """Number of calls on the present processes."""

    def run(
        self,
        job: Job,
        *,
        options: Mapping[str, Any],
        environments: Sequence[Mapping[str, str]],
        sockets: Sequence[socket.socket],
        on_output: OnOutput | None = None,
    ) -> Run:
        """Like `ForkServer.run` with one process for each rank; `job.timeout` is the limit.

        Raises `ForkServerDied`, also if a process has ended since the last call.
        """
        size = len(environments)
        done = False
        try:
            self._grow(size, job)
            batches = [batch for batch in self._batches if batch.first < size]
            for batch in batches:
                # no code has run on fresh processes yet: if one ends now, it is reported as the end of a rank
                with contextlib.suppress(*(() if self.calls else (BrokenPipeError, ConnectionResetError))):
                    batch.begin(job, options, environments, sockets, on_output)
            for handed_over in sockets:
                handed_over.close()
            began = time.monotonic()
            stopped = _listen(batches, size, TimeLimit(self._forkserver.clock, job.timeout, self._forkserver.patience))
            run = _merged([batch.outcome(time.monotonic() - began, stopped) for batch in batches], size)
            self.calls += 1
            done = run.ok
            return run
        except OSError as error:
            raise ForkServerDied(f"a rank that was kept has ended: {error}") from None
        finally:
            if not done:
                self.close()

    def close(self) -> None:
        """End the processes; the next call starts fresh ones."""
        batches, self._batches, self.calls = self._batches, [], 0
        for batch in batches:
            batch.close()

    def _grow(self, size: int, job: Job) -> None:
        there = sum(batch.size for batch in self._batches)
        if size > there:
            self._batches.append(_RankBatch(self._forkserver, job, there, size - there))


class _RankBatch:
    """Processes started at the same time: those of the ranks `first` to `first + size - 1`."""

    def __init__(self, forkserver: ForkServer, job: Job, first: int, size: int) -> None:
        self.first, self.size = first, size
        self.ended = False
        ranks = [[first + index] for index in range(size)]
        self._collector = Collector(ranks, None, None, forkserver.max_bytes)
        pairs = [socket.socketpair() for _ in range(size)]
        self._orders = [ours for ours, _ in pairs]
        for order in self._orders:
            order.settimeout(forkserver.patience)  # code that has run there may have stopped reading it
        request = forkserver.prepare(
            REMOTE,
            # between two calls nothing counts as a hang, and in a call the time limit applies
            replace(job, arguments=(), timeout=None, hang_timeout=None),
            options={"kept": True},
            ranks=ranks,
            environments=[{}] * size,
            sockets=size,
        )
        try:
            self.session = forkserver.open(request, [theirs for _, theirs in pairs])
        except BaseException:
            for end in (end for pair in pairs for end in pair):
                end.close()
            raise

    def begin(
        self,
        job: Job,
        options: Mapping[str, Any],
        environments: Sequence[Mapping[str, str]],
        sockets: Sequence[socket.socket],
        on_output: OnOutput | None,
    ) -> None:
        """Send the call to each rank that takes part. Raises OSError if one has ended."""
        self._collector.start_over(on_output, job.timeout, len(environments))
        for rank, order in enumerate(self._orders[: len(environments) - self.first], start=self.first):
            rank_calls.send(order, rank_calls.Call(job, rank, options, environments[rank]), sockets[rank])

    def hear(self, seconds: float | None = 0.0) -> None:
        """Process the data that has arrived or arrives within `seconds`. Raises `FrameError` and `ReportError`."""
        data = self.session.receive(seconds)
        if data:
            self._collector.feed(data)
        elif data is not None:
            self.ended = True

    def is_done(self, size: int) -> bool:
        """Whether every rank below `size` has answered or ended."""
        exits = self._collector.exits.items()
        # for a stopped process the reason follows
        by_themselves = {self.first + process for process, status in exits if status is not None}
        unreadable = {self.first + process for process in self._collector.malformed}
        over = self._collector.results.keys() | by_themselves | unreadable
        return self.ended or over.issuperset(range(self.first, min(self.first + self.size, size)))

    def outcome(self, seconds: float, stopped: str) -> Run:
        """The run of this call."""
        if not self.ended and not stopped:
            try:
                self.session.send({"kind": "limit", "seconds": None})
            except OSError:  # its processes have ended, with or without an answer
                while not self.ended:
                    self.hear(None)
        if self.ended or stopped:
            return self._collector.run(seconds, stopped)
        # the processes live on, so nothing is known of their end
        return replace(self._collector.run(seconds, "not"), stopped="", statuses=())

    def close(self) -> None:
        for order in self._orders:
            order.close()
        self.session.close()


def _listen(batches: Sequence[_RankBatch], size: int, limit: TimeLimit) -> str:
    """Process data until all have answered or ended. Returns the reason for giving up, or an empty string."""
    for batch in batches:
        batch.hear()  # the session may hold data that has already arrived
    while open_ones := [batch for batch in batches if not batch.is_done(size)]:
        ready = select.select([batch.session.connection for batch in open_ones], [], [], limit.wait)[0]
        if reason := limit.look([batch.session for batch in batches]):
            return reason
        try:
            for batch in open_ones:
                if batch.session.connection in ready:
                    batch.hear()
        except (frames.FrameError, reports.ReportError) as error:
            return f"the process that watches over the ranks sent something malformed: {error}"
    return ""


def _merged(runs: Sequence[Run], size: int) -> Run:
    return replace(
        runs[0],
        ranks=[result for run in runs for result in run.ranks if result.rank < size],
        trace=Trace.merged([run.trace for run in runs]),
        stopped=next((run.stopped for run in runs if run.stopped), ""),
        statuses=[status for run in runs for status in run.statuses if status.rank < size],
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
    )
