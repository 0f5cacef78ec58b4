"""Sending an entry to a course on a hub, and withdrawing it: a folder in nbgrader's exchange.

The course's grading queue finds it there. The grader reads these folders with the same names and limits, and trusts
nothing in them.
"""

from __future__ import annotations

import os
import secrets
import unicodedata
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from labkit.command_line.commands import CommandError, require_file
from labkit.progress.home import CLASSROOM_PAGE
from labkit.text_files import UnreadableText, decoded

EXCHANGE = "LABKIT_EXCHANGE"
"""Environment variable of a learner's server on a hub: the course's folder in the exchange."""
ASSIGNMENT = "challenge-"
"""Start of an entry's assignment in the exchange; the challenge's name follows."""
WITHDRAWAL = "withdraw-challenge-"
"""Start of the assignment by which a learner withdraws all entries sent so far; the challenge's name follows."""
ENTRY, NAME, COMPLETE = "entry.py", "name.txt", "submission_secret.txt"
"""Files of the folder. nbgrader, too, writes the last one last: a folder without it is not complete yet."""
MOST_BYTES = 100_000
"""Size limit of an entry."""
_LONGEST_NAME = 30
_UNSEEN = set("\u115f\u1160\u3164\uffa0")
"""Letters by their category that have no shape: fillers of Hangul."""


def checked_name(text: str) -> str:
    """Return a name for the standings in its normal form. Raises ValueError: too long, or characters that mislead."""
    name = " ".join(unicodedata.normalize("NFKC", text).split())
    if not name or len(name) > _LONGEST_NAME:
        raise ValueError(f"a name in the standings has 1 to {_LONGEST_NAME} characters, got {len(name)}")
    # no marks, and no characters that reorder a line or cannot be seen
    if not name[0].isalnum() or not all(letter.isalnum() or letter in " -_." for letter in name) or _UNSEEN & set(name):
        raise ValueError(
            "a name in the standings has letters, digits, spaces, '-', '_' and '.', and begins with a letter or digit"
        )
    return name


def send(challenge: str, file: Path, name: str) -> str:
    """Send a file under a name of the learner's choice; return what to print. Raises `CommandError`."""
    inbound = _inbound("--send works on the server of a course's hub; here, leave it out to score the file")
    require_file(file)
    try:
        name = checked_name(name)
    except ValueError as problem:
        raise CommandError(f"{problem}: choose another one after --send") from None
    source = file.read_bytes()
    if len(source) > MOST_BYTES:
        raise CommandError(f"{file} has {len(source):,} bytes; an entry has at most {MOST_BYTES:,}")
    try:
        decoded(source)
    except UnreadableText as problem:
        raise CommandError(f"{file}: {problem}") from None
    try:
        _deliver(inbound, f"{ASSIGNMENT}{challenge}", {ENTRY: source, NAME: name.encode()})
    except OSError as problem:
        raise CommandError(f"the entry could not be sent: {problem}; {file} is unchanged, try again") from None
    return f"sent: {file} to {challenge}, as {name!r}; {_page()} on the hub shows the result"


def withdraw(challenge: str) -> str:
    """Withdraw the learner's entries from the standings; return what to print. Raises `CommandError`."""
    inbound = _inbound("--withdraw works on the server of a course's hub, where entries are sent")
    try:
        _deliver(inbound, f"{WITHDRAWAL}{challenge}", {})
    except OSError as problem:
        raise CommandError(f"the withdrawal could not be sent: {problem}; try again") from None
    return f"sent: your entries to {challenge} so far are withdrawn; {_page()} on the hub shows the standings"


def _inbound(elsewhere: str) -> Path:
    """Return the learner's folder of the exchange. Raises `CommandError` with the text `elsewhere` without a hub."""
    exchange = os.environ.get(EXCHANGE)
    if not exchange:
        raise CommandError(elsewhere)
    return Path(exchange) / "inbound"


def _page() -> str:
    return os.environ.get(CLASSROOM_PAGE, "the course's page")


def _deliver(inbound: Path, assignment: str, files: Mapping[str, bytes]) -> None:
    """Make a folder with these files in the exchange. It appears whole or not at all. Raises OSError."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC")
    folder = f"{os.environ['USER']}+{assignment}+{now}+{secrets.token_hex(8)}"
    making = inbound / f".{folder}"
    making.mkdir()
    for name, content in {**files, COMPLETE: secrets.token_hex(32).encode()}.items():
        (making / name).write_bytes(content)
    # readable as nbgrader's submissions are, whatever the umask: the hub may be another user than root
    for path in (making, *making.iterdir()):
        path.chmod(0o755 if path is making else 0o644)
    making.rename(inbound / folder)
