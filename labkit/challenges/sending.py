"""Sending an entry to a course on a hub: one folder in nbgrader's exchange, where the course's grading queue finds it.

The grader reads these folders with the same names and limits, and trusts nothing in them.
"""

from __future__ import annotations

import os
import secrets
import unicodedata
from datetime import UTC, datetime
from pathlib import Path

from labkit.command_line.commands import CommandError, require_file
from labkit.progress.home import CLASSROOM_PAGE

EXCHANGE = "LABKIT_EXCHANGE"
"""Environment variable of a learner's server on a hub: the course's folder in the exchange."""
ASSIGNMENT = "challenge-"
"""Start of an entry's assignment in the exchange; the challenge's name follows."""
ENTRY, NAME, COMPLETE = "entry.py", "name.txt", "submission_secret.txt"
"""Files of the folder. nbgrader, too, writes the last one last: a folder without it is not complete yet."""
MOST_BYTES = 100_000
"""Size limit of an entry."""
_LONGEST_NAME = 30


def checked_name(text: str) -> str:
    """Return a name for the standings in its normal form. Raises ValueError: too long, or characters that mislead."""
    name = " ".join(unicodedata.normalize("NFKC", text).split())
    if not name or len(name) > _LONGEST_NAME:
        raise ValueError(f"a name in the standings has 1 to {_LONGEST_NAME} characters, got {len(name)}")
    # no marks, and no characters that reorder a line or cannot be seen
    if not name[0].isalnum() or not all(letter.isalnum() or letter in " -_." for letter in name):
        raise ValueError(
            "a name in the standings has letters, digits, spaces, '-', '_' and '.', and begins with a letter or digit"
        )
    return name


def send(challenge: str, file: Path, name: str) -> str:
    """Send a file under a name of the learner's choice; return what to print. Raises `CommandError`.

    The folder appears whole or not at all.
    """
    exchange = os.environ.get(EXCHANGE)
    if not exchange:
        raise CommandError("--send works on the server of a course's hub; here, leave it out to score the file")
    require_file(file)
    try:
        name = checked_name(name)
    except ValueError as problem:
        raise CommandError(f"{problem}: choose another one after --send") from None
    source = file.read_bytes()
    if len(source) > MOST_BYTES:
        raise CommandError(f"{file} has {len(source):,} bytes; an entry has at most {MOST_BYTES:,}")
    try:
        source.decode()
    except UnicodeDecodeError:
        raise CommandError(f"{file} is not a text file") from None
    inbound, now = Path(exchange) / "inbound", datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S.%f UTC")
    folder = f"{os.environ['USER']}+{ASSIGNMENT}{challenge}+{now}+{secrets.token_hex(8)}"
    making = inbound / f".{folder}"
    try:
        making.mkdir()
        (making / ENTRY).write_bytes(source)
        (making / NAME).write_text(name, encoding="utf-8")
        (making / COMPLETE).write_text(secrets.token_hex(32))
        # readable as nbgrader's submissions are, whatever the umask: the hub may be another user than root
        for path in (making, *making.iterdir()):
            path.chmod(0o755 if path is making else 0o644)
        making.rename(inbound / folder)
    except OSError as problem:
        raise CommandError(f"the entry could not be sent: {problem}; {file} is unchanged, try again") from None
    page = os.environ.get(CLASSROOM_PAGE, "the course's page")
    return f"sent: {file} to {challenge}, as {name!r}; {page} on the hub shows the result"
