"""How a class gets on, exercise by exercise: how long each takes, and where learners stop."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from autograder.classroom.overview.attempts import Attempt, Attempts

STOPPED_AFTER = timedelta(days=7)
"""Time without an attempt at anything after which a learner counts as stopped."""
FEWEST = 5
"""Fewest learners whose figures others are shown: fewer could be recognized."""


@dataclass(frozen=True)
class Pace:
    """One exercise in a class. An attempt is a judged submission in which it was changed."""

    exercise: str
    tried: int
    """Number of learners with an attempt."""
    complete: int
    """Number of learners who have lost no check in an attempt."""
    attempts: float
    """Median number of attempts up to the first such one; 0 if there is none."""
    days: float
    """Median days from the first attempt to that one; 0 if there is none."""
    stopped: tuple[str, ...]
    """Learners whose last attempt at anything was here, not complete, longer than `STOPPED_AFTER` ago."""

    @property
    def is_shown_to_learners(self) -> bool:
        return self.complete >= FEWEST


def paces(attempts: Attempts, now: datetime) -> dict[str, Pace]:
    """Return the pace of each exercise that somebody has tried, by its name. now: with a time zone."""
    by_exercise: dict[str, dict[str, Sequence[Attempt]]] = defaultdict(dict)
    last: dict[str, tuple[datetime, str]] = {}
    for (learner, exercise), own in attempts.items():
        if own:
            by_exercise[exercise][learner] = own
            if (at := _time(own[-1])) is not None:
                last[learner] = max(last.get(learner, (at, exercise)), (at, exercise))
    stopped: dict[str, list[str]] = defaultdict(list)
    for learner, (at, exercise) in last.items():
        if now - at > STOPPED_AFTER and _first_complete(by_exercise[exercise][learner]) is None:
            stopped[exercise].append(learner)
    return {exercise: _pace(exercise, own, sorted(stopped[exercise])) for exercise, own in by_exercise.items()}


def _pace(exercise: str, by_learner: dict[str, Sequence[Attempt]], stopped: Sequence[str]) -> Pace:
    firsts = {learner: _first_complete(own) for learner, own in by_learner.items()}
    complete = {learner: number for learner, number in firsts.items() if number is not None}
    days = []
    for learner, number in complete.items():
        begin, end = (_time(by_learner[learner][at]) for at in (0, number))
        if begin is not None and end is not None:
            days.append((end - begin) / timedelta(days=1))
    return Pace(
        exercise,
        len(by_learner),
        len(complete),
        statistics.median(number + 1 for number in complete.values()) if complete else 0,
        statistics.median(days) if days else 0,
        tuple(stopped),
    )


def _first_complete(own: Sequence[Attempt]) -> int | None:
    """Place of the first attempt that lost no check; None if there is none."""
    return next((number for number, attempt in enumerate(own) if not attempt.judged.lost), None)


def _time(attempt: Attempt) -> datetime | None:
    """Time of an attempt; None if it is not known."""
    return datetime.fromisoformat(attempt.at) if attempt.at else None
