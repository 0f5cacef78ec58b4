"""Trim runs for a report: a rubric has many checks, and their full runs would all be in memory at once."""

from __future__ import annotations

from dataclasses import replace

from labkit.clusters import RankError, RankResult, Run
from labkit.trace import Trace

MOST_EVENTS = 20_000
"""Most events of a trace that is kept; a picture of more is illegible."""
MOST_OUTPUT_CHARACTERS = 100_000
"""Characters kept of each rank's output, the last ones."""
_MOST_FRAMES = 10
_MOST_CHARACTERS = 10_000


def kept(run: Run) -> Run:
    """Return `run` without values and arguments, with output and trace limited to a readable size."""
    trace = run.trace if len(run.trace.events) <= MOST_EVENTS else Trace(run.trace.world_size)
    return replace(run, ranks=[_rank(result) for result in run.ranks], trace=trace)


def _rank(result: RankResult) -> RankResult:
    error = None if result.error is None else _error(result.error)
    return replace(result, value=None, arguments=(), output=result.output[-MOST_OUTPUT_CHARACTERS:], error=error)


def _error(error: RankError) -> RankError:
    cut = slice(_MOST_CHARACTERS)
    return replace(
        error,
        message=error.message[cut],
        traceback=error.traceback[-_MOST_CHARACTERS:],
        frames=tuple(
            (file[cut], line, name[cut], text[cut]) for file, line, name, text in error.frames[-_MOST_FRAMES:]
        ),
        locals=tuple((name[cut], shown[cut]) for name, shown in error.locals),
    )
