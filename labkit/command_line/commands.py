"""Shared parts of all `labkit` commands, wherever they are defined.

A package adds commands with an entry point of the group `labkit.commands`: a function that takes the sub-parsers of
`labkit` and adds its own, each with `set_defaults(run=...)`, a function of the options that returns an exit status.
It runs whenever `labkit` does, so it must not import anything heavy.
"""

from __future__ import annotations

from pathlib import Path

ENTRY_POINTS = "labkit.commands"


class CommandError(Exception):
    """The command cannot be carried out; the message says in one line why, and what to try."""


class LabFailed(CommandError):
    """The lab or its machine has failed, whatever the command was given; the message says in its first line how."""

    def in_words(self) -> str:
        """Return what is shown to who asked for it."""
        return f"the lab failed, nothing of yours: {self}; run it again"


def require_file(path: Path) -> None:
    """Raise `CommandError` unless `path` is a file."""
    if not path.is_file():
        raise CommandError(f"{path} is not a file" if path.exists() else f"there is no file {path}")
