"""One learner's attempts at an exercise: they show who is stuck, and which wrong answers are common."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autograder.classroom.overview.judged import JudgedExercise


@dataclass(frozen=True)
class Attempt:
    """One exercise in one judged submission."""

    at: str
    """Time of judging or collecting: UTC, ISO 8601."""
    judged: JudgedExercise


@dataclass(frozen=True)
class StuckLearner:
    """A learner who loses the same check in one attempt after the other."""

    learner: str
    exercise: str
    check: str
    since: str
    """Time of the first of these attempts: UTC, ISO 8601."""
    attempts: int


@dataclass(frozen=True)
class WrongAnswer:
    """Learners whose last attempts at an exercise lose the same checks."""

    exercise: str
    lost: tuple[str, ...]
    learners: tuple[str, ...]
    """Names, the one with the latest attempt first."""


Attempts = Mapping[tuple[str, str], Sequence[Attempt]]
"""Attempts, oldest first, by learner and exercise."""


def changed_attempts(attempts: Iterable[Attempt]) -> list[Attempt]:
    """Return the attempts at which something was written, without those that repeat the one before.

    A submission has all exercises of a phase, also those on which the learner has not worked since the last one.
    """
    changed: list[Attempt] = []
    for attempt in attempts:
        if attempt.judged.written and (not changed or changed[-1].judged.key != attempt.judged.key):
            changed.append(attempt)
    return changed


def stuck_learners(attempts: Attempts) -> list[StuckLearner]:
    """Return the learners who lost the same check in at least their last two attempts, the most attempts first.

    A check that fails only because an easier one does is left out.
    """
    stuck = []
    for (learner, exercise), own in attempts.items():
        for check in own[-1].judged.lost if own else ():
            if check in own[-1].judged.following:
                continue
            run: list[Attempt] = []
            for attempt in reversed(own):
                if check not in attempt.judged.lost:
                    break
                run.append(attempt)
            if len(run) > 1:
                stuck.append(StuckLearner(learner, exercise, check, run[-1].at, len(run)))
    return sorted(stuck, key=lambda entry: (-entry.attempts, entry.since, entry.learner))


def wrong_answers(attempts: Attempts) -> list[WrongAnswer]:
    """Group last attempts by the checks that they lose; the exercises in the given order, the largest group first."""
    groups: dict[str, dict[tuple[str, ...], list[tuple[str, str]]]] = defaultdict(lambda: defaultdict(list))
    for (learner, exercise), own in attempts.items():
        if own and own[-1].judged.lost:
            groups[exercise][own[-1].judged.lost].append((own[-1].at, learner))
    return [
        WrongAnswer(exercise, lost, tuple(name for _, name in sorted(learners, reverse=True)))
        for exercise, by_checks in groups.items()
        for lost, learners in sorted(by_checks.items(), key=lambda item: (-len(item[1]), item[0]))
    ]
