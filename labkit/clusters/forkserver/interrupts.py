"""Safe Ctrl-C: `KeyboardInterrupt` may come between any two steps, even between creating an object and assigning it.

    with held():                 # from here on an interrupt waits
        connection = ...
        try:
            with let_through():  # but not here
                wait for something
        finally:
            connection.close()   # nor does a second one break this off

Only the main thread is ever interrupted; in other threads these do nothing.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class _Interrupts:
    """Handling of SIGINT while it is held."""

    def __init__(self) -> None:
        self.depth = 0
        self.allowed = False
        self.pending = False
        self.handler: Callable[[int, FrameType | None], Any] = signal.default_int_handler
        """The program's handler, which raises `KeyboardInterrupt` unless the learner has set another."""

    def handle(self, number: int, frame: FrameType | None) -> None:
        if self.allowed:
            # the next interrupt must not break off the cleanup after this one
            self.allowed = False
            self.handler(number, frame)
            self.allowed = True
        else:
            self.pending = True

    def allow(self) -> None:
        self.allowed = True
        if self.pending:
            self.pending = False
            self.handle(signal.SIGINT, None)


_interrupts = _Interrupts()


@contextmanager
def held() -> Iterator[None]:
    """Delay interrupts until this ends, or until the next `let_through`. May be nested."""
    state = _interrupts
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if state.depth == 0:
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):
            yield
            return
        state.handler, state.pending = handler, False
        signal.signal(signal.SIGINT, state.handle)
    was_allowed, state.allowed = state.allowed, False
    state.depth += 1
    try:
        yield
    finally:
        state.depth -= 1
        if state.depth == 0:
            signal.signal(signal.SIGINT, state.handler)
            was_allowed = state.pending
        if was_allowed:
            state.allow()
        if state.depth == 0:
            state.allowed = False


@contextmanager
def let_through() -> Iterator[None]:
    """Within `held`: raise interrupts here, including one that has been waiting. The next one waits again."""
    state = _interrupts
    if threading.current_thread() is not threading.main_thread() or state.depth == 0:
        yield
        return
    try:
        state.allow()
        yield
    finally:
        state.allowed = False
