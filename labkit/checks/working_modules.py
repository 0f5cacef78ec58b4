"""Modules for commands that run exercises: the learner's own where they are known to pass, else the solutions."""

from __future__ import annotations

from labkit.catalogue import Exercise
from labkit.checks.known_passes import is_known_to_pass
from labkit.checks.ranks import Submission
from labkit.checks.stand_ins import StandIns, stand_ins


def working_modules(exercise: Exercise, purpose: str = "measures") -> StandIns:
    """Return the modules of an exercise and of those that it builds on, with notes that say whose they are.

    A module is known to pass if its visible checks passed before, in a notebook or by `labkit check`: none run here.
    purpose: a verb for the note on the exercise itself.
    An exercise without a solution in this course gets its template.
    """
    needed = (*exercise.builds_on, exercise)
    own = {each.name: each.paths["yours"].read_text() for each in needed if each.paths["yours"].is_file()}
    modules = stand_ins(exercise, own, is_known_to_pass)
    mine = own.get(exercise.name, "")
    submission = Submission(exercise, mine, modules.modules)
    if mine.strip() and (submission.is_the_solution or is_known_to_pass(submission)):
        whose, text = "your own", mine
    else:
        text, kind = exercise.source("solution", "template")
        whose = f"the {kind} of"
    modules.notes.append(f"it {purpose} with {whose} {exercise.short_name}.")
    modules.modules[exercise.name] = text
    return modules
