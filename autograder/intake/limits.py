"""How much of a submission is looked at, and the two ways in which it can end otherwise than in a notebook."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What is beyond is left out and noted; it never stops the rest from being graded."""

    notebook_bytes: int = 50_000_000
    total_bytes: int = 100_000_000
    """Of all files of a submission together."""
    files: int = 2_000
    """Files and folders of a submission together."""
    depth: int = 8
    """Folders inside each other."""
    cells: int = 2_000
    source: int = 200_000
    """Characters of one cell; ten times as many of all together."""
    json_values: int = 2_000_000
    """Texts, lists and objects of one notebook, about; numbers are free. To walk past them takes half a second."""


class IntakeFailed(RuntimeError):
    """Something on our side, such as a missing release or a full disk: try again; it says nothing about the work."""


class NotYet(IntakeFailed):
    """Files went or changed while they were read, or we may not read them. In the exchange their author did that."""


class NotTaken(Exception):
    """A file or folder of a submission is not looked at; the message says why, in words for its author."""
