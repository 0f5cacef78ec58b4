"""Temporary displays while something runs. They vanish when the cell ends: a stored notebook keeps only the result."""

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

_QUIET_SECONDS = 0.2
"""Seconds in which nothing is shown: what ends within them needs no display."""
_LOOK_SECONDS = 0.03
"""Seconds between checks for the first thing to show, which people wait for."""
_TICK_SECONDS = 0.2
"""Seconds between later updates."""


class View(Protocol):
    """A display whose content is replaced by each `show`, and by the final text."""

    def show(self, shown: Any) -> None: ...

    def finish(self, text: str) -> None: ...


class Watch:
    """Shows `current(seconds)` while the `with` block runs; then `last()` replaces it.

    The first thing to show appears as soon as there is one, but not before a fifth of a second; updates, five times a
    second.

    view: the display; it must accept what `current` returns. None: `text_view(shell)`, for texts.
    current: what to show after that many seconds; nothing is shown while it is empty or None.
    last: the text that stays, printed to stdout, even if the block raises.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        current: Callable[[float], Any],
        last: Callable[[], str] = lambda: "",
        view: View | None = None,
    ) -> None:
        self._view = view or text_view(shell)
        self._current = current
        self._last = last
        self._ended = threading.Event()
        # the kernel assigns output to a cell by context variables, which a new thread lacks
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
        shown: Any = None
        pause = _QUIET_SECONDS
        while not self._ended.wait(pause):
            current = self._current(time.monotonic() - began)
            pause = _TICK_SECONDS if shown or current else _LOOK_SECONDS
            if current and current != shown:
                self._view.show(current)
                shown = current


def text_view(shell: InteractiveShell) -> View:
    """A display for texts, if somebody watches."""
    if in_notebook(shell):
        return TextDisplay() if is_watched(shell) else HiddenView()
    return Terminal() if sys.stdout.isatty() else HiddenView()


def in_notebook(shell: InteractiveShell) -> bool:
    """Whether a Jupyter kernel runs the cell."""
    return hasattr(shell, "get_parent")


def is_watched(shell: InteractiveShell) -> bool:
    """Whether a person watches the notebook.

    nbclient, nbval and nbgrader do not allow stdin, so nobody watches; nbval would keep even removed displays.
    """
    parent: Any = getattr(shell, "get_parent", dict)()
    return bool(parent.get("content", {}).get("allow_stdin"))


class HiddenView:
    """Nobody watches: only the last text is written."""

    def show(self, shown: Any) -> None:
        pass

    def finish(self, text: str) -> None:
        sys.stdout.write(text)


class TextDisplay:
    """An updated text in the output of the running cell."""

    def __init__(self) -> None:
        self._id: str | None = None

    def show(self, shown: Any) -> None:
        bundle = {"text/plain": str(shown)}
        if self._id is None:
            self._id = uuid.uuid4().hex
            display(bundle, raw=True, display_id=self._id)
        else:
            update_display(bundle, raw=True, display_id=self._id)

    def finish(self, text: str) -> None:
        if self._id is not None:
            # if a text follows, replace the output in one step, so that the page does not jump
            clear_output(wait=bool(text))
        sys.stdout.write(text)


class Terminal:
    """The last line of a terminal."""

    def show(self, shown: Any) -> None:
        line = str(shown).rstrip("\n").rsplit("\n", 1)[-1]
        sys.stdout.write(f"\r\x1b[K{line[:100]}")
        sys.stdout.flush()

    def finish(self, text: str) -> None:
        sys.stdout.write(f"\r\x1b[K{text}")
        sys.stdout.flush()
