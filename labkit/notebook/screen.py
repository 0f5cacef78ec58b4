"""Where something is shown while it runs. It is gone when the cell ends: a stored notebook keeps the result alone."""

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


class View(Protocol):
    """A place that shows something, anew each time, until a text takes its place."""

    def show(self, shown: Any) -> None: ...

    def finish(self, text: str) -> None: ...


class Watch:
    """Shows `current(seconds)` five times a second while the `with` block runs; then `last()` takes its place.

    view: where; it must know what to do with what `current` gives. None: `text_view(shell)`, for texts.
    current: what to show after so many seconds; nothing is shown while it is empty or None.
    last: what stays, printed to stdout, also when the block raises.
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
        shown: Any = None
        while not self._ended.wait(_TICK_SECONDS):
            current = self._current(time.monotonic() - began)
            if current and current != shown:
                self._view.show(current)
                shown = current


def text_view(shell: InteractiveShell) -> View:
    """Shows texts where somebody watches, if anybody does."""
    if in_notebook(shell):
        return TextDisplay() if is_watched(shell) else Nobody()
    return Terminal() if sys.stdout.isatty() else Nobody()


def in_notebook(shell: InteractiveShell) -> bool:
    """Does a Jupyter kernel run the cell?"""
    return hasattr(shell, "get_parent")


def is_watched(shell: InteractiveShell) -> bool:
    """Is there somebody at the notebook?

    nbclient, nbval and nbgrader cannot be asked for input: nobody is there, and nbval would keep what is shown and
    taken away again.
    """
    parent: Any = getattr(shell, "get_parent", dict)()
    return bool(parent.get("content", {}).get("allow_stdin"))


class Nobody:
    """Nobody watches: the last text is all that is wanted."""

    def show(self, shown: Any) -> None:
        pass

    def finish(self, text: str) -> None:
        sys.stdout.write(text)


class TextDisplay:
    """A text in the output of the running cell, updated."""

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
            # with a text to follow, the output is exchanged at once and the page does not jump
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
