"""Modules of the exercises that an exercise builds on: the learner's own where they work, else the solution."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from labkit.catalogue import Exercise
from labkit.checks.ranks import Submission
from labkit.checks.rubric import NoRubric


@dataclass
class StandIns:
    """Modules for the exercises that an exercise builds on."""

    modules: dict[str, str] = field(default_factory=dict)
    """Text of each module by full name, earlier exercises first."""
    notes: list[str] = field(default_factory=list)
    """Sentences that say whose modules they are and why; modules of the same origin share one."""


def stand_ins(exercise: Exercise, own: Mapping[str, str], passes: Callable[[Submission], bool]) -> StandIns:
    """Return modules for all exercises that `exercise` builds on, directly or not.

    own: the learner's modules, by full name. passes: whether a module passes its visible checks.
    An exercise without a solution in this course gets its template if the learner has no working module.
    """
    chosen = StandIns()
    origins: dict[tuple[str, str], list[str]] = {}
    for earlier in exercise.builds_on:
        mine = own.get(earlier.name)
        before = {needed.name: chosen.modules[needed.name] for needed in earlier.builds_on}
        if mine is None or not mine.strip():
            why = "you have not written your own"
        elif _passes(Submission(earlier, mine, before), passes):
            chosen.modules[earlier.name] = mine
            origins.setdefault(("your own {}", ""), []).append(earlier.short_name)
            continue
        else:
            why = "your own fails its visible checks"
        chosen.modules[earlier.name], whose = earlier.source("solution", "template")
        origins.setdefault((f"the {whose} of {{}}", f": {why}"), []).append(earlier.short_name)
    for (source_text, why), names in origins.items():
        *others, last = names
        listed = f"{', '.join(others)} and {last}" if others else last
        chosen.notes.append(f"this builds on {source_text.format(listed)}{why}.")
    return chosen


def _passes(submission: Submission, passes: Callable[[Submission], bool]) -> bool:
    try:
        return submission.is_the_solution or passes(submission)
    except NoRubric:  # without checks, accept it
        return True
