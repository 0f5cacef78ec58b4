"""Entries as learners send them (`labkit challenge --send`): read from the exchange as data, never trusted."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from autograder.classroom.challenges.look_alikes import look_alike
from autograder.intake.folder import FolderEntry, opened, read
from autograder.intake.limits import EntryRefused
from labkit import catalogue
from labkit.challenges.challenge import BOUND
from labkit.challenges.sending import ASSIGNMENT, ENTRY, MOST_BYTES, NAME, WITHDRAWAL, checked_name
from labkit.text_files import UnreadableText, decoded

_MOST_NAME_BYTES = 1_000


@dataclass(frozen=True)
class Entry:
    """The text of an entry, and the name in the standings that its author asks for."""

    name: str
    source: str


def assignment_of(challenge: str) -> str:
    """Return the assignment of a challenge's entries in the exchange."""
    return f"{ASSIGNMENT}{challenge}"


def withdrawal_of(challenge: str) -> str:
    """Return the assignment of withdrawals from a challenge in the exchange."""
    return f"{WITHDRAWAL}{challenge}"


def challenge_of(assignment: str) -> str | None:
    """Return the challenge of an entry's or a withdrawal's assignment; None if it is an ordinary one."""
    start = next((start for start in (ASSIGNMENT, WITHDRAWAL) if assignment.startswith(start)), None)
    return None if start is None else assignment.removeprefix(start)


def is_withdrawal(assignment: str) -> bool:
    """Return whether an assignment in the exchange is that of withdrawals."""
    return assignment.startswith(WITHDRAWAL)


def course_entries(challenge: str) -> dict[str, Path]:
    """Return the course's own entries by name."""
    folder = catalogue.root() / "solutions" / "challenges" / challenge
    return {path.stem: path for path in sorted(folder.glob("*.py"))}


def received(folder: Path, people: Collection[str], taken: Collection[str]) -> Entry:
    """Read an entry.

    people: user names, which nobody may use in the standings. taken: names of others in the standings.
    Raises `EntryRefused`, whose message is for its author; IntakeFailed if it cannot be read just now.
    """
    with opened(folder) as handle:
        try:
            name = checked_name(_text(handle, NAME, _MOST_NAME_BYTES))
        except ValueError as problem:
            raise EntryRefused(str(problem)) from None
        source = _text(handle, ENTRY, MOST_BYTES)
    if look_alike(name, (BOUND, *people, *taken)):
        raise EntryRefused(
            f"the name {name!r} cannot be used: somebody else has it or one that looks like it, or it is a user's name"
        )
    return Entry(name, source)


def _text(folder: int, name: str, limit: int) -> str:
    try:
        status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        raise EntryRefused(f"it has no {name}") from None
    try:
        return decoded(read(folder, FolderEntry(name, status), limit))
    except UnreadableText as problem:
        raise EntryRefused(f"{name}: {problem}") from None
    except EntryRefused as problem:
        raise EntryRefused(f"{name} was not read: {problem}") from None
