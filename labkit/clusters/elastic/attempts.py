"""Reports of one node's ranks, by attempt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from labkit.clusters.cluster import OnOutput
from labkit.clusters.forkserver import reports
from labkit.clusters.forkserver.collector import Collector, OutputTail
from labkit.clusters.rank_result import RankError, RankResult
from labkit.trace import Trace
from labkit.transport import frames

TOLD_TO_END = 128 + 15
"""Exit code of an agent that was sent SIGTERM, as in shells."""
_LAST_WORDS = 2_000


@dataclass(frozen=True)
class Attempt:
    """One start of one node's ranks. `number` increases, and is the same on all nodes that took part."""

    number: int
    restarts: int
    """Value of `TORCHELASTIC_RESTART_COUNT`: nodes that join or leave do not count."""
    world_size: int
    nnodes: int
    results: tuple[RankResult, ...]
    traces: tuple[Trace, ...]


class AttemptsCollector(Collector):
    """Processes a node's frames. Output of a rank is kept over all attempts, all else separately for each attempt.

    on_attempt: called when an attempt has begun, and with None when one is about to end and another to begin.
    """

    def __init__(
        self,
        nproc_per_node: int,
        timeout: float | None,
        on_output: OnOutput | None,
        max_bytes: int,
        output: dict[int, OutputTail],
        on_attempt: Callable[[Attempt | None], None],
    ) -> None:
        """output: output of each rank so far, shared by the collectors of all nodes."""
        super().__init__([[]] * (nproc_per_node + 1), timeout, on_output, max_bytes)
        self._agent = nproc_per_node
        self._output = output
        self._on_attempt = on_attempt
        self._past: list[Attempt] = []
        self._current: Attempt | None = None
        self.last_words = ""
        """Last output of the agent: useful if it has failed by itself."""
        self.agent_status: int | None = None
        self.restarting = False
        """Whether ranks have ended, or are about to, and will be restarted."""

    @property
    def notes(self) -> list[str]:
        """Notes of its processes."""
        return list(self._notes)

    @property
    def stopped(self) -> str:
        """Reason why the node itself stopped its ranks: `timeout`, ..."""
        return self._reason

    @property
    def attempt(self) -> int:
        """Number of the current attempt; 0 before the first."""
        return self._current.number if self._current else 0

    def ended_ranks(self, attempt: int) -> int:
        """Number of ranks of this attempt that have ended; 0 if it is not the current one."""
        return len(self._exits) if attempt and self.attempt == attempt else 0

    def all_well(self, attempt: int) -> bool:
        """Whether all ranks of this attempt have ended without failure."""
        exits = list(self._exits.values())
        return self.ended_ranks(attempt) == self._agent and exits == [0] * self._agent

    def hangs(self, reason: str) -> None:
        """Record the reason for stopping it, a hang."""
        self._hang = reason

    def attempts(self, seconds: float) -> list[Attempt]:
        """All attempts until now; `seconds` since the beginning, for the errors of ranks that are still running."""
        return [*self._past, *([self._as_it_stands(seconds)] if self._current else [])]

    def _as_it_stands(self, seconds: float) -> Attempt:
        assert self._current is not None
        results = tuple(
            self._rank_result(process, rank, seconds) for process, hosted in enumerate(self._ranks) for rank in hosted
        )
        return replace(self._current, results=results, traces=tuple(self._traces))

    def _take(self, header: dict[str, Any], payload: bytes) -> None:
        kind = header.get("kind")
        if kind == "attempt":
            self._begin(header)
        elif kind == "restarting":
            self.restarting = True
            self._on_attempt(None)
        elif header.get("process") == self._agent and kind in ("stdout", "stderr"):
            self.last_words = (self.last_words + payload.decode(errors="replace"))[-_LAST_WORDS:]
        elif header.get("process") == self._agent and kind == "exit":
            self.agent_status = header.get("status")
        else:
            super()._take(header, payload)

    def _begin(self, header: dict[str, Any]) -> None:
        names = ("attempt", "restarts", "first_rank", "world_size", "nnodes")
        number, restarts, first_rank, world_size, nnodes = (reports.integer(header.get(name), name) for name in names)
        if self._current is not None:
            self._past.append(self._as_it_stands(0.0))
        self._current = Attempt(number, restarts, world_size, nnodes, (), ())
        self._world_size = world_size
        self._ranks = [[first_rank + process] for process in range(self._agent)] + [[]]
        self._reports = [frames.Decoder(self._max_bytes) for _ in self._ranks]
        for kept in (self._text, self._results, self._malformed, self._threads, self._places, self._exits, self._over):
            kept.clear()
        self._traces = []
        self.restarting = self.quiet = False
        for hosted in self._ranks:
            for rank in hosted:
                self._output.setdefault(rank, OutputTail())
        self._on_attempt(self._current)


@dataclass(frozen=True)
class NodeLoss:
    """A node that left before the job was over."""

    node: str
    """Its name, for people: `node 1`."""
    seconds: float
    """Seconds since the start of the job."""
    how: str
    """How it left: `was lost`, `was told to end (SIGTERM)`."""

    def with_its_rank(self, result: RankResult) -> RankResult:
        """The result of a rank of this node, with the loss of the node; unchanged if the rank had reported before."""
        if result.error is not None or result.exit is not None:
            return result
        message = f"{self.node} {self.how}, and this rank with it"
        return replace(result, error=RankError("NodeLost", message, time=self.seconds))
