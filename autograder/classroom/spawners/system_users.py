"""Requirements where learners are users of a system: a sandbox for the judge, and an exchange that all share."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterable, Iterator
from pathlib import Path

from autograder.sandbox import Sandbox, SandboxUnavailable


def missing(exchange: Path) -> Iterator[str]:
    """Yield one sentence for each thing that is missing. exchange: its root."""
    try:
        Sandbox().check()
    except SandboxUnavailable as problem:
        yield f"submissions are judged in a sandbox: {problem}"
    if not exchange.is_dir() or not os.access(exchange, os.W_OK | os.X_OK):
        yield f"nbgrader's exchange cannot be in {exchange}: make that folder, where all learners reach it"


def known(people: Iterable[str]) -> list[str]:
    """Return those of these people who are users of this system."""
    return [name for name in people if _exists(name)]


def unknown(people: Iterable[str]) -> Iterator[str]:
    """Yield one sentence if some of these people are no users of this system."""
    if names := [name for name in people if not _exists(name)]:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        yield (
            f"no user of this system is called {shown} (`getent passwd NAME` shows one): make an account, or correct "
            "the name in learners.txt or [course]"
        )


def _exists(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True
