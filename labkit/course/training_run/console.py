"""Lines that a training prints while it runs, on the first rank: to standard error, and as JSON lines to a file.

Standard output has only the result. On a terminal a progress bar is below the lines.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from typing import Any

from labkit.course.training_run.json_line_file import JsonLineFile


class Console:
    """Prints on the first rank; on others it does nothing. log_file: also appends each line there, as JSON.

    An object has `time` (seconds since the epoch), `event`, the line as `text`, and the event's own fields. Raises
    OSError if the file cannot be opened. A console that cannot be written ends no training.
    """

    def __init__(self, is_first: bool, log_file: str | None = None) -> None:
        self.is_first = is_first
        self._file = JsonLineFile(log_file) if is_first and log_file is not None else None
        self._bar: Any = None

    def line(self, event: str, text: str, **fields: Any) -> None:
        """Print a line, and log it with its fields, plain data. Numbers that are not finite become texts."""
        if not self.is_first:
            return
        with contextlib.suppress(OSError):
            if self._bar is not None:
                self._bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                print(text, file=sys.stderr, flush=True)
        if self._file is not None:
            finite = {name: _finite(value) for name, value in fields.items()}
            self._file.write({"time": time.time(), "event": event, "text": text, **finite})

    def progress(self, text: str, done: int, total: int) -> None:
        """Show on a terminal that so many steps of `text` are done."""
        if not self.is_first or not sys.stderr.isatty():
            return
        if self._bar is None:
            from rich.console import Console as RichConsole  # in the function: few runs have a terminal
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

            columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
            self._bar = Progress(*columns, console=RichConsole(stderr=True), transient=True)
            self._bar.add_task(text, total=total)
            self._bar.start()
        (task,) = self._bar.tasks
        if task.description != text:
            self._bar.reset(task.id, total=total, description=text)
        self._bar.update(task.id, completed=done)

    def close(self) -> None:
        """Remove the bar, and close the file."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        if self._file is not None:
            self._file.close()


def _finite(value: Any) -> Any:
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


def duration(seconds: float) -> str:
    """Return a time as `0:05`, `12:30` or `3:00:10`."""
    if not math.isfinite(seconds):
        return "unknown"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def ranks_text(ranks: int) -> str:
    """Return `1 rank` or `4 ranks`."""
    return f"{ranks} rank{'s' * (ranks != 1)}"
