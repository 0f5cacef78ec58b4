"""What servers need whose learners are users of a system: a sandbox for the judge, and an exchange that all share."""

from __future__ import annotations

import os
from collections.abc import Iterator
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
