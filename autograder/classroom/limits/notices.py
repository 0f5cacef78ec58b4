"""Notices of a hub to a learner: one file for each, written by the hub and shown read-only in the learner's sandbox."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from labkit.linux.files import replace_text

FILE = "notices.json"
_MOST = 20
"""Number of notices that are kept."""


@dataclass
class Notice:
    """One notice."""

    time: float
    """Unix time."""
    text: str


@dataclass
class Notices:
    """All notices to one learner since the hub was started."""

    notices: list[Notice] = field(default_factory=list)
    """Notices, the newest last."""
    disk_bytes: int | None = None
    """Bytes of disk that the learner's files use; None as long as it is not known."""


def read(folder: Path) -> Notices:
    """Return what is written in a learner's folder of notices."""
    try:
        stored = json.loads((folder / FILE).read_text())
    except FileNotFoundError:
        return Notices()
    return Notices([Notice(**notice) for notice in stored["notices"]], stored["disk_bytes"])


class NoticeWriter:
    """Writes notices of one learner. Thread-safe within one process."""

    _lock = threading.Lock()

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def notify(self, text: str) -> None:
        """Add a notice."""
        with self._lock:
            kept = read(self._folder)
            kept.notices = [*kept.notices, Notice(time.time(), text)][-_MOST:]
            self._write(kept)

    def set_disk(self, used_bytes: int) -> None:
        """Replace the bytes of disk that the learner's files use."""
        with self._lock:
            kept = read(self._folder)
            if kept.disk_bytes != used_bytes:
                kept.disk_bytes = used_bytes
                self._write(kept)

    def _write(self, kept: Notices) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        replace_text(self._folder / FILE, json.dumps(asdict(kept)))
