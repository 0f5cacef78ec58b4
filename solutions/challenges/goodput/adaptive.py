"""Save as often as the crashes so far advise; change nodes only if it pays, and trust none that has crashed twice.

The interval is Young's (1974), sqrt(2 * save * time between crashes). A node is taken in if the time that it saves
until the end is more than `WORTH`, and a slow one is left out if it is likely to cost that much.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

NODES, STEPS, SAVE_SECONDS = 32, 20_000, 30.0
WORTH = 900.0
"""Seconds that a change of nodes must save: a save, a restart, and a margin, since the node may crash again."""
SLOW_STEPS = 2_500
"""Steps for which a slow node is expected to stay slow."""
EXPECTED = 4_000.0
"""Seconds between crashes that are assumed before the first one."""


class Policy:
    """Decides what the job does next."""

    def __init__(self) -> None:
        self.crashes: Counter[int] = Counter()

    def decide(self, state: dict[str, Any]) -> tuple[str, int]:
        if state["crashed"] >= 0:
            self.crashes[state["crashed"]] += 1
        since = state["steps"] - state["saved"]
        change = self.change(state)
        if change:
            return ("save", 0) if since else change
        between = (state["seconds"] + EXPECTED) / (self.crashes.total() + 1)
        step = NODES / len(state["nodes"]) * max(state["slowdown"].values(), default=1.0)
        interval = max(10, round(1.4 * math.sqrt(2 * SAVE_SECONDS * between) / step))
        return ("save", 0) if since >= interval else ("train", min(100, interval - since))

    def change(self, state: dict[str, Any]) -> tuple[str, int] | None:
        """Return the change of nodes that pays, if there is one."""
        count, left, slow = len(state["nodes"]), STEPS - state["steps"], state["slowdown"]
        slowest = max(slow.values(), default=1.0)
        trusted = [node for node in state["ready"] if self.crashes[node] < 2]
        if trusted and (NODES / count - NODES / (count + 1)) * left * slowest > WORTH:
            return "include", trusted[0]
        if slow and count > 1:
            worst = max(slow, key=lambda node: slow[node])
            others = max((factor for node, factor in slow.items() if node != worst), default=1.0)
            if (NODES / count * slowest - NODES / (count - 1) * others) * min(left, SLOW_STEPS) > WORTH:
                return "exclude", int(worst)
        return None
