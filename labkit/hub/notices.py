"""Notices of what the hub ended in this learner's server. The hub writes the file; the server's sandbox shows it."""

from __future__ import annotations

import json
import os
from pathlib import Path

FILE = "LABKIT_HUB_NOTICES"
"""Environment variable: the file, JSON with a list `notices` of `time` (Unix) and `text`. Unset outside of a hub."""


def since(moment: float) -> list[str]:
    """Return the texts of notices that are not older than this Unix time, the oldest first."""
    try:
        content = json.loads(Path(os.environ[FILE]).read_text())
    except (KeyError, OSError):
        return []
    return [str(notice["text"]) for notice in content["notices"] if notice["time"] >= moment]
