"""An entry's run in the sandbox, on instances of a seed that only the classroom knows."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autograder.challenge import judged
from autograder.classroom.challenges.leaderboard import Judgement
from autograder.sandbox import Sandbox
from labkit.challenges.challenge import Outcome

_MODULE = "entry"
"""Name of every entry's module: faults and traces show it, not the author's."""
_LONGEST_FAULT = 2_000


def judge(challenge: str, source: str, seed: int) -> Judgement:
    """Run an entry. If it fails, its author sees the fault of the published instances: those are no secret.

    Raises `CannotJudge` if there is no sandbox.
    """
    outcomes = judged(challenge, source, _MODULE, seed, Sandbox())
    failed = _failed(outcomes)
    if failed is None:
        return Judgement(outcomes)
    published = _failed(judged(challenge, source, _MODULE, None, Sandbox()))
    if published is None:
        fault = (
            f"it failed on the course's {failed.instance!r}, not on the published one: "
            "`labkit challenge` with other values of --seed draws instances of the same family"
        )
    else:
        fault = f"{published.instance}: {published.fault[:_LONGEST_FAULT]}"
    return Judgement((), fault, f"{failed.instance}: {failed.fault[:_LONGEST_FAULT]}")


def _failed(outcomes: Sequence[Outcome]) -> Outcome | None:
    return next((outcome for outcome in outcomes if outcome.fault or not math.isfinite(outcome.value)), None)
