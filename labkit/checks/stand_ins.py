"""Modules of the exercises that an exercise builds on: the learner's own where they work, else the solution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from labkit.checks.ranks import Submission
from labkit.checks.rubric import NoRubric
from labkit.exercises import Exercise


@dataclass
class Standing:
    """What an exercise gets for those that it builds on."""

    modules: dict[str, str] = field(default_factory=dict)
    """Text by full name, earlier ones first."""
    notes: list[str] = field(default_factory=list)
    """For each, whose it is and why, in words."""


def stand_ins(exercise: Exercise, own: Mapping[str, str], passes: Callable[[Submission], bool]) -> Standing:
    """For all that `exercise` builds on, directly or not.

    own: the learner's modules, by full name. passes: does this one pass its visible checks?
    An exercise without a solution in this course has its template there, where there is nothing of the learner's.
    """
    standing = Standing()
    for earlier in exercise.builds_on:
        mine = own.get(earlier.name)
        before = {needed.name: standing.modules[needed.name] for needed in earlier.builds_on}
        if mine is None or not mine.strip():
            why = "there is none of your own"
        elif _passes(Submission(earlier, mine, before), passes):
            standing.modules[earlier.name] = mine
            standing.notes.append(f"{earlier.short_name}, on which this builds, is your own.")
            continue
        else:
            why = "your own does not pass its visible checks"
        standing.modules[earlier.name], whose = earlier.source("solution", "template")
        standing.notes.append(f"{earlier.short_name}, on which this builds, is the {whose}: {why}.")
    return standing


def _passes(submission: Submission, passes: Callable[[Submission], bool]) -> bool:
    try:
        return passes(submission)
    except NoRubric:  # nothing speaks against it
        return True
