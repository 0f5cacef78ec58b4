"""A feedback page that has come back to a learner: the marks on it are those that the learner knows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_HEAD_BYTES = 4096
_TITLE = re.compile(r"<title>([^<>]+): (-?[\d.]+) of ([\d.]+) points</title>")
"""Title as feedback/page.html.j2 writes it. The gradebook may already have marks that are not returned."""


@dataclass(frozen=True)
class ReturnedPage:
    """One page in the exchange."""

    path: Path
    notebook: str
    """Name of the notebook, without `.ipynb`."""
    score: float
    points: float
    returned: float
    """Time of its return, in seconds since 1970."""


def returned_page(path: Path) -> ReturnedPage | None:
    """Read a page; None if it is gone, or has no marks in its title."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES).decode(errors="replace")
        returned = path.stat().st_mtime
    except OSError:
        return None
    match = _TITLE.search(head)
    return ReturnedPage(path, match[1], float(match[2]), float(match[3]), returned) if match else None
