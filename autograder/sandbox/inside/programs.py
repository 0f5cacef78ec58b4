"""Functions that the grader requests of the sandboxes' forkserver.

The grader, which names these functions, starts the forkserver before it imports torch itself: what they need is
imported in them.
"""

from __future__ import annotations

from typing import Any


def make(fields: dict[str, Any], own: list[int]) -> None:
    """Make a sandbox in its own namespaces, of the `Order` with these fields.

    own: the socket that it serves, and the one on which it reports progress to the grader.
    """
    from autograder.sandbox.inside import sandbox_process

    sandbox_process.make(fields, own)


def prepare_virtual() -> None:
    """Prepare what sandboxes for virtual ranks share."""
    from labkit.clusters.virtual.hosts.entries import REMOTE

    assert REMOTE.prepare is not None
    REMOTE.prepare()
