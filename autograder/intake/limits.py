"""Limits on what is read of a submission, and the exceptions that intake raises instead of returning a notebook."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Limits of one submission. Parts beyond a limit are left out and noted; the rest is graded all the same."""

    notebook_bytes: int = 50_000_000
    total_bytes: int = 100_000_000
    """Size of all files of a submission together."""
    files: int = 2_000
    """Number of files and folders of a submission together."""
    depth: int = 8
    """Nesting depth of folders."""
    cells: int = 2_000
    source: int = 200_000
    """Characters of one cell; ten times as many for all cells together."""
    json_values: int = 2_000_000
    """Approximate number of texts, lists and objects in one notebook; numbers are free. Skipping them takes 0.5 s."""


class IntakeFailed(RuntimeError):
    """An infrastructure error, such as a missing release or a full disk: try again; the submission is not at fault."""


class FilesChanged(IntakeFailed):
    """Files vanished, changed while being read, or are unreadable. In the exchange, their author caused that."""


class EntryRefused(Exception):
    """A file or folder of a submission is skipped; the message explains it to its author."""
