"""Asserts that judging leaves no process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from autograder.sandbox import Sandbox
from labkit.clusters import forkserver


@contextmanager
def no_process_left() -> Iterator[None]:
    """Within the context sandboxes may be opened; afterwards every process that came meanwhile must end."""
    # the sandboxes' forkserver keeps running
    Sandbox().open().close()
    # local runs of earlier tests may still have spares forked for the next one, at any time
    forkserver.shared().close()
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    left = [child for child in psutil.Process().children(recursive=True) if child.pid not in before]
    assert psutil.wait_procs(left, timeout=300)[1] == []
