"""A site's time limit for processes that nobody uses, whose memory others need."""

from __future__ import annotations

import os

VARIABLE = "LABKIT_IDLE_RANKS_MINUTES"
"""Environment variable: minutes without a cell after which live ranks, and the process that ranks are forked from, end;
missing or 0: never. With it, that process starts when a cell needs it, and imports ahead what all need."""


def allowed() -> float:
    """Return the site's minutes; 0: no limit."""
    return float(os.environ.get(VARIABLE) or 0)
