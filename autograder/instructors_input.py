"""Due dates and lists that instructors give to nbgrader, on its command line, in the formgrader and as files.

nbgrader misreads offsets of times, and lists that Windows' editors wrote. Here they are read as those of the lab, or
refused with what to write.
"""

from __future__ import annotations

import io
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from nbgrader import coursedir, utils
from nbgrader.apps import api, dbapp, nbgraderapp, zipcollectapp
from nbgrader.exchange.default import collect
from nbgrader.server_extensions.formgrader.apihandlers import AssignmentHandler
from tornado.web import HTTPError

from autograder.gradebook_lock import LOCKED, GradebookLocked
from autograder.times import InvalidTime, utc_time
from labkit.text_files import UnreadableText, read_text


def parse_utc(time: datetime | str | None) -> datetime | None:
    """Replaces nbgrader's function: return a time in UTC, without a time zone. Raises `InvalidTime`."""
    if isinstance(time, str):
        return utc_time(time)
    return time.astimezone(UTC).replace(tzinfo=None) if time is not None and time.tzinfo else time


def _opened(path: str, mode: str = "r") -> io.StringIO:
    """Replaces `open` where nbgrader imports lists of learners and assignments."""
    return io.StringIO(read_text(Path(path)), newline="")


_start, _put = nbgraderapp.NbGraderApp.start, AssignmentHandler.put


def _start_readably(app: nbgraderapp.NbGraderApp) -> None:
    """Run a command of nbgrader; what an instructor can set right is one message, without a traceback."""
    try:
        _start(app)
    except GradebookLocked as problem:
        print(f"nbgrader: {problem}", file=sys.stderr)
        sys.exit(LOCKED)
    except (InvalidTime, UnreadableText) as problem:
        print(f"nbgrader: {problem}", file=sys.stderr)
        sys.exit(1)


def _put_readably(handler: AssignmentHandler, assignment_id: str) -> Any:
    """Take an assignment's due date from the formgrader, or answer with what to write."""
    try:
        return _put(handler, assignment_id)
    except InvalidTime as problem:
        raise HTTPError(400, f"{problem}; as a time zone +01:00, UTC or Europe/Berlin") from None


def install() -> None:
    """Make nbgrader, in this process, read times and lists as the lab does."""
    for module in (utils, coursedir, api, zipcollectapp, collect):
        module.parse_utc = parse_utc
    dbapp.open = _opened
    nbgraderapp.NbGraderApp.start = _start_readably
    AssignmentHandler.put = _put_readably
