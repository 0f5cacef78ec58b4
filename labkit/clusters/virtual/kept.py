"""Rank processes that stay for one call after the other: most of what a short call costs is to make its processes.

Modules, process groups, clocks and random numbers are new for every call. What code has done to Python or torch
themselves is not, and it may remember what it was given. So nothing is kept after a call that failed, a check that
fails on ranks that were kept must be tried on fresh ones before anybody believes it, and two checks of which neither
may help the other need fresh ranks each.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import socket
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from labkit.clusters.cluster import OnOutput
from labkit.clusters.job import Job
from labkit.clusters.run import Run
from labkit.clusters.warm import Collector, WarmProcess, WarmProcessDied, frames, reports
from labkit.clusters.warm.time_limit import TimeLimit
from labkit.trace import Trace

ENTRY = "labkit.clusters.virtual.remote:main"
_LENGTH = struct.Struct("<Q")


class KeptRanks:
    """The rank processes of one sandbox, as many as were ever asked for at once. To be closed."""

    def __init__(self, warm: WarmProcess) -> None:
        self._warm = warm
        self._crews: list[_Crew] = []
        self.clock = warm.clock
        self.calls = 0
        """On the processes that stand."""

    def run(
        self,
        job: Job,
        *,
        options: Mapping[str, Any],
        environments: Sequence[Mapping[str, str]],
        sockets: Sequence[socket.socket],
        on_output: OnOutput | None = None,
    ) -> Run:
        """As `WarmProcess.run` with one process for each rank, `job.timeout` being the limit.

        Raises `WarmProcessDied`, also when a process has ended since the last call.
        """
        size = len(environments)
        done = False
        try:
            self._grow(size, job)
            crews = [crew for crew in self._crews if crew.first < size]
            for crew in crews:
                # on fresh processes nobody's code has run before: what ends them now is told as the end of a rank
                with contextlib.suppress(*(() if self.calls else (BrokenPipeError, ConnectionResetError))):
                    crew.begin(job, options, environments, sockets, on_output)
            for handed_over in sockets:
                handed_over.close()
            began = time.monotonic()
            stopped = _listen(crews, size, TimeLimit(self._warm.clock, job.timeout, self._warm.patience))
            run = _merged([crew.outcome(time.monotonic() - began, stopped) for crew in crews], size)
            self.calls += 1
            done = run.ok
            return run
        except OSError as error:
            raise WarmProcessDied(f"a rank that was kept has ended: {error}") from None
        finally:
            if not done:
                self.close()

    def close(self) -> None:
        """End the processes; the next call begins with fresh ones."""
        crews, self._crews, self.calls = self._crews, [], 0
        for crew in crews:
            crew.close()

    def _grow(self, size: int, job: Job) -> None:
        there = sum(crew.size for crew in self._crews)
        if size > there:
            self._crews.append(_Crew(self._warm, job, there, size - there))


class _Crew:
    """Processes that were started at the same time: those of the ranks `first` to `first + size - 1`."""

    def __init__(self, warm: WarmProcess, job: Job, first: int, size: int) -> None:
        self.first, self.size = first, size
        self.ended = False
        ranks = [[first + index] for index in range(size)]
        self._collector = Collector(ranks, None, None, warm.max_bytes)
        pairs = [socket.socketpair() for _ in range(size)]
        self._orders = [ours for ours, _ in pairs]
        for order in self._orders:
            order.settimeout(warm.patience)  # code that has run there may have it read no more
        asked = warm.prepare(
            ENTRY,
            # between two calls nobody hangs, and in a call the time limit counts
            replace(job, arguments=(), timeout=None, hang_timeout=None),
            options={"kept": True},
            ranks=ranks,
            environments=[{}] * size,
            sockets=size,
        )
        try:
            self.session = warm.open(asked, [theirs for _, theirs in pairs])
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
        """Send each rank that takes part its call. Raises OSError when one has ended."""
        self._collector.start_over(on_output, job.timeout, len(environments))
        for rank, order in enumerate(self._orders[: len(environments) - self.first], start=self.first):
            data = pickle.dumps((job, rank, options, environments[rank]), protocol=pickle.HIGHEST_PROTOCOL)
            socket.send_fds(order, [_LENGTH.pack(len(data))], [sockets[rank].fileno()])
            order.sendall(data)

    def hear(self, seconds: float | None = 0.0) -> None:
        """Take in what has come, or comes within that time. Raises `FrameError` and `ReportError`."""
        data = self.session.receive(seconds)
        if data:
            self._collector.feed(data)
        elif data is not None:
            self.ended = True

    def is_done(self, size: int) -> bool:
        """Has every rank below `size` answered or ended?"""
        exits = self._collector.exits.items()
        # after one that was stopped comes why
        by_themselves = {self.first + process for process, status in exits if status is not None}
        unreadable = {self.first + process for process in self._collector.malformed}
        over = self._collector.results.keys() | by_themselves | unreadable
        return self.ended or over.issuperset(range(self.first, min(self.first + self.size, size)))

    def outcome(self, seconds: float, stopped: str) -> Run:
        """What came of the call."""
        if not self.ended and not stopped:
            try:
                self.session.send({"kind": "limit", "seconds": None})
            except OSError:  # its processes have ended, each with its answer or without
                while not self.ended:
                    self.hear(None)
        if self.ended or stopped:
            return self._collector.run(seconds, stopped)
        # it goes on, so it says nothing of how it has ended
        return replace(self._collector.run(seconds, "not"), stopped="", standings=())

    def close(self) -> None:
        for order in self._orders:
            order.close()
        self.session.close()


def _listen(crews: Sequence[_Crew], size: int, limit: TimeLimit) -> str:
    """Until all have answered or ended. Returns why it was given up, or an empty string."""
    for crew in crews:
        crew.hear()  # the session may hold something that has come in already
    while open_ones := [crew for crew in crews if not crew.is_done(size)]:
        ready = select.select([crew.session.connection for crew in open_ones], [], [], limit.wait)[0]
        if reason := limit.look([crew.session for crew in crews]):
            return reason
        try:
            for crew in open_ones:
                if crew.session.connection in ready:
                    crew.hear()
        except (frames.FrameError, reports.ReportError) as error:
            return f"the process that watches over the ranks sent something malformed: {error}"
    return ""


def _merged(runs: Sequence[Run], size: int) -> Run:
    return replace(
        runs[0],
        ranks=[result for run in runs for result in run.ranks if result.rank < size],
        trace=Trace.merged([run.trace for run in runs]),
        stopped=next((run.stopped for run in runs if run.stopped), ""),
        standings=[standing for run in runs for standing in run.standings if standing.rank < size],
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
    )


def orders(control: socket.socket) -> Iterator[tuple[Job, int, Mapping[str, Any], Mapping[str, str], socket.socket]]:
    """On a rank: one call after the other, with the line to its scheduler. From who asks, who is trusted."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(control, _LENGTH.size, 1, socket.MSG_WAITALL)
        if not head:
            return
        (left,) = _LENGTH.unpack(head)
        parts = []
        while left:
            part = control.recv(left)
            if not part:
                return
            parts.append(part)
            left -= len(part)
        yield (*pickle.loads(b"".join(parts)), socket.socket(fileno=descriptors[0]))
