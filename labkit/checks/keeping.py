"""What a report keeps of a run: a rubric has many checks, and what their runs hold would be there all at once."""

from __future__ import annotations

from dataclasses import replace

from labkit.clusters import RankError, RankResult, Run
from labkit.trace import Trace

MOST_EVENTS = 20_000
"""Of a trace; in a picture of more nothing can be seen."""
MOST_OUTPUT_CHARACTERS = 100_000
"""The last ones, of each rank."""
_MOST_FRAMES = 10
_MOST_CHARACTERS = 10_000


def kept(run: Run) -> Run:
    """`run` without values and arguments, and with no more of output and trace than somebody can look at."""
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
