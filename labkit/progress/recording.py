"""Record what a learner has done: it is saved, and the course home follows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from labkit.catalogue import Exercise
from labkit.progress.home import write_home
from labkit.progress.place import save_place
from labkit.progress.store import Answer, FailedCheck, recorded, save_answer, save_check


def record_check(exercise: Exercise | str, earned: float, points: float, failed: Sequence[FailedCheck] = ()) -> None:
    """Record the result of the visible checks. Raises OSError when the workspace cannot be written."""
    save_check(exercise, earned, points, failed)
    write_home()


def record_answer(exercise: Exercise | str, question_id: str, tries: int, right: bool) -> None:
    """Record the answer to a question. An answer that was right stays as it is.

    tries: number of tries, with this one. Raises OSError when the workspace cannot be written.
    """
    save_answer(exercise, question_id, tries, right)
    write_home()


def record_place(exercise: Exercise, cell: str, heading: str) -> None:
    """Record the last place: a cell, by its id, of the exercise's notebook, below that heading.

    Raises OSError when the workspace cannot be written.
    """
    save_place(exercise.notebook_name, cell, heading)
    write_home()


def answers(exercise: Exercise | str) -> Mapping[str, Answer]:
    """Return the recorded answers to an exercise's questions, by the question's id. Raises `UnknownExercise`."""
    return recorded(exercise).answers
