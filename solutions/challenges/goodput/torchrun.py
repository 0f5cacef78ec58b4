"""Save every 300 steps, and restart with each node as soon as it is back, as torchrun does with --nnodes MIN:MAX."""

from __future__ import annotations

from typing import Any


class Policy:
    """Decides what the job does next."""

    def decide(self, state: dict[str, Any]) -> tuple[str, int]:
        if state["ready"]:
            return "include", state["ready"][0]
        since = state["steps"] - state["saved"]
        return ("save", 0) if since >= 300 else ("train", 300 - since)
