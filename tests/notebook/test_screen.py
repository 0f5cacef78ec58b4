"""Temporary displays of running cells."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from waiting import BROKEN_SECONDS

from labkit.notebook import screen
from labkit.notebook.screen import Watch


class SeenView:
    """Remembers what it shows. seen: set when it shows something."""

    def __init__(self) -> None:
        self.shown: list[Any] = []
        self.seen = threading.Event()

    def show(self, shown: Any) -> None:
        self.shown.append(shown)
        self.seen.set()

    def finish(self, text: str) -> None:
        self.shown.append(text)


def test_the_first_thing_to_show_does_not_wait_for_the_pace_of_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "_TICK_SECONDS", 3600.0)
    answers = iter(["", "", "first", "second"])
    view = SeenView()
    with Watch(InteractiveShell.instance(), lambda seconds: next(answers), lambda: "last", view):
        assert view.seen.wait(BROKEN_SECONDS)
    assert view.shown == ["first", "last"]


def test_what_ends_at_once_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(screen, "_QUIET_SECONDS", 3600.0)
    view = SeenView()
    with Watch(InteractiveShell.instance(), lambda seconds: "current", lambda: "last", view):
        pass
    assert view.shown == ["last"]
