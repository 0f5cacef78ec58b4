"""The live display of one run: its lines, progress bars and state."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path

from labkit.clusters import State
from labkit.notebook.output.lanes import Lanes
from labkit.notebook.output.logs import Logs
from labkit.notebook.output.progress import Progress, in_words, only
from labkit.rank_output.folding import label

_MOST_LINES = 120
_LONGEST = 400
_QUIET_SECONDS = 1.0
"""Seconds before a run that prints nothing is displayed."""


@dataclass(frozen=True)
class RunSnapshot:
    """The display's content at one moment. Lines are (label, text, rank or -1 for several)."""

    lines: list[tuple[str, str, int]]
    above: bool
    """Whether there are earlier lines."""
    bars: list[tuple[str, str, int]]
    state: str
    """`4 ranks running, 12 s`."""
    phase: str
    about: str
    """The cluster's report: a place in a queue, where each rank hangs."""
    share: float | None
    """Progress from 0 to 1, from the ranks' progress bars or the number of ended ranks; None if unknown."""
    logs: str
    """Folder of the ranks' output, as a user would type it; empty if it cannot be written."""

    def __str__(self) -> str:
        """The content as text for a terminal."""
        rows = [f"{label} {text}" for label, text, _ in (*self.lines, *self.bars)]
        share = "" if self.share is None else f", {self.share:.0%}"
        return "\n".join([*rows, *self.about.splitlines(), f"{self.state}{share}"])


class RunDisplay:
    """Collects a run's output and state while it runs.

    world_size: None if not known yet.
    nnodes: with several nodes, lines name theirs.
    limit: seconds after which the run will be stopped.
    """

    def __init__(
        self, world_size: int | None, nnodes: int, in_order: bool, limit: float | None, logs_folder: Path
    ) -> None:
        nproc_per_node = world_size // nnodes if world_size and nnodes > 1 else None
        self.world_size = world_size
        self.lanes = Lanes(in_order, nproc_per_node)
        self.logs = Logs(logs_folder)
        self._limit = limit
        self._progress = Progress()
        self._state = State("starting")

    def on_output(self, rank: int, stream: str, text: str) -> None:
        """See `OnOutput`."""
        if self._state.phase == "starting":
            self._state = dataclasses.replace(self._state, phase="running")
        self.lanes.feed(rank, stream, text)
        self.logs.write(rank, text)

    def on_state(self, state: State) -> None:
        """See `OnState`."""
        self._state = state

    def now(self, seconds: float) -> RunSnapshot | None:
        """The content after that many seconds; None while there is nothing to show."""
        lines, open_rows, state = self.lanes.recent(_MOST_LINES), self.lanes.open_rows(), self._state
        if not (lines or open_rows or state.text or seconds >= _QUIET_SECONDS):
            return None
        nodes = self.lanes.nproc_per_node
        self._progress.update(open_rows)
        folder = self.logs.reserve()
        return RunSnapshot(
            lines=[(label(line.ranks, line.stream, nodes), _shortened(line.text), only(line.ranks)) for line in lines],
            above=len(lines) == _MOST_LINES,
            bars=[(label, _shortened(text), rank) for label, text, rank in self._progress.bars(open_rows, nodes)],
            state=in_words(state, self.world_size, seconds, self._limit),
            phase=state.phase,
            about=state.text,
            share=self._share(),
            logs=shown_path(folder) if folder else "",
        )

    def _share(self) -> float | None:
        if self._progress.least is None and self._state.ended and self.world_size:
            return self._state.ended / self.world_size
        return self._progress.least


def shown_path(path: Path) -> str:
    """A path as a user would type it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
