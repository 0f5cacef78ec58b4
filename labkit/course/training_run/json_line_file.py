"""A file of JSON lines that a training appends to, and that never ends the training."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def warn_of_lost_log(path: str | Path, error: OSError) -> None:
    """Print that a log could not be written, and why."""
    # not `warnings`: a filter may turn those into errors
    text = f"{path}: {error.strerror or error}: the log loses lines until it can be written; training goes on"
    with contextlib.suppress(OSError):  # the console may be on the full disk, too
        print(text, file=sys.stderr, flush=True)


class JsonLineFile:
    """Appends to `path`, whose folder is made. Raises OSError if it cannot be opened, not if it cannot be written.

    Each line is written at once. A line that does not fit on the disk is left out, with one warning that names the
    path; lines are written again when there is space.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("ab", buffering=0)
        self._is_torn, self._is_losing = False, False

    def write(self, fields: Mapping[str, Any]) -> None:
        """Write an object as a line. NaN and infinity are not JSON: write them as texts."""
        line = json.dumps(fields, allow_nan=False).encode() + b"\n"
        if self._is_torn:  # end the beginning of a line that a full disk has left: readers skip it
            line = b"\n" + line
        try:
            written = self._file.write(line)
            if written == len(line):
                self._is_torn, self._is_losing = False, False
                return
            self._is_torn = self._is_torn or written > 0
            self._file.write(line[written:])  # raises, and says why
            self._is_torn, self._is_losing = False, False
        except OSError as error:
            if not self._is_losing:
                warn_of_lost_log(self.path, error)
            self._is_losing = True

    def close(self) -> None:
        """Close the file."""
        try:
            self._file.close()
        except OSError as error:  # network file systems report some errors only here
            warn_of_lost_log(self.path, error)


def size_of(path: str | Path) -> int:
    """Return the size of a file in bytes, 0 if there is none."""
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return 0
