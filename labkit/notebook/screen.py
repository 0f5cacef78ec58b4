"""What is seen while something runs. It is gone when the cell ends: a stored notebook keeps the result alone."""

from __future__ import annotations

import contextvars
import sys
import threading
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

from IPython.display import clear_output, display, update_display

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell

_TICK_SECONDS = 0.2
_QUIET_SECONDS = 2.0
"""Work shorter than this needs no sign of life."""
_MOST_LINES = 40


class View(Protocol):
    """A place that shows a text, anew each time, until the last one takes its place."""

    def show(self, text: str) -> None: ...

    def finish(self, text: str) -> None: ...


class Watch:
    """Shows `current(seconds)` five times a second while the `with` block runs; then `last()` takes its place.

    current: what to show after so many seconds; nothing is shown while it is empty.
    last: what stays, printed to stdout, also when the block raises.
    """

    def __init__(
        self, shell: InteractiveShell, current: Callable[[float], str], last: Callable[[], str] = lambda: ""
    ) -> None:
        self._view = _view(shell)
        self._current = current
        self._last = last
        self._ended = threading.Event()
        # a new thread knows nothing of the cell, by which the kernel tells whose output this is
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=lambda: context.run(self._tick), name="labkit output", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()
        self._view.finish(self._last())

    def _tick(self) -> None:
        began = time.monotonic()
        shown = ""
        while not self._ended.wait(_TICK_SECONDS):
            text = self._current(time.monotonic() - began)
            if text and text != shown:
                self._view.show(text)
                shown = text


def status(world_size: int | None, seconds: float) -> str:
    """`4 ranks running, 12 s`; empty in the first seconds."""
    if seconds < _QUIET_SECONDS:
        return ""
    return f"{ranks_in_words(world_size)} running, {int(seconds)} s"


def ranks_in_words(world_size: int | None) -> str:
    """`4 ranks`; without a number when it is not known."""
    return "ranks" if world_size is None else f"{world_size} rank{'s' * (world_size > 1)}"


def tail(text: str) -> str:
    """The last lines of a long text."""
    lines = text.splitlines()
    if len(lines) <= _MOST_LINES:
        return text
    return "\n".join([f"... {len(lines) - _MOST_LINES} lines above", *lines[-_MOST_LINES:], ""])


class _Nobody:
    """Nobody watches: the last text is all that is wanted."""

    def show(self, text: str) -> None:
        pass

    def finish(self, text: str) -> None:
        sys.stdout.write(text)


class _Notebook:
    """A display of the running cell, updated."""

    def __init__(self) -> None:
        self._id: str | None = None

    def show(self, text: str) -> None:
        bundle = {"text/plain": text}
        if self._id is None:
            self._id = uuid.uuid4().hex
            display(bundle, raw=True, display_id=self._id)
        else:
            update_display(bundle, raw=True, display_id=self._id)

    def finish(self, text: str) -> None:
        if self._id is not None:
            # with a text to follow, the output is exchanged at once and the page does not jump
            clear_output(wait=bool(text))
        sys.stdout.write(text)


class _Terminal:
    """The last line of a terminal."""

    def show(self, text: str) -> None:
        line = text.rstrip("\n").rsplit("\n", 1)[-1]
        sys.stdout.write(f"\r\x1b[K{line[:100]}")
        sys.stdout.flush()

    def finish(self, text: str) -> None:
        sys.stdout.write(f"\r\x1b[K{text}")
        sys.stdout.flush()


def _view(shell: InteractiveShell) -> View:
    """Where somebody watches, if anybody does."""
    parent: Any = getattr(shell, "get_parent", None)
    if parent is None:
        return _Terminal() if sys.stdout.isatty() else _Nobody()
    # nbclient, nbval and nbgrader cannot be asked for input: nobody is there, and nbval would keep what is shown and
    # taken away again
    return _Notebook() if parent().get("content", {}).get("allow_stdin") else _Nobody()
