"""The course as one learner has gone through it: points so far, and where to continue."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from labkit.catalogue import Exercise, all_exercises, exercises_in, find, root, roots
from labkit.progress.place import Place, last_place
from labkit.progress.store import Record, recorded
from labkit.text_files import read_text

State = Literal["complete", "begun", "not begun"]


@dataclass(frozen=True)
class ExerciseProgress:
    """One exercise, and what the learner has done of it."""

    exercise: Exercise
    record: Record
    saved_at: float
    """Time when the learner last saved the module: seconds since 1970; 0 if never."""
    place: Place | None = None
    """The learner's last place, if it is in this exercise's notebook."""

    @property
    def label(self) -> str:
        """`04 · A data-parallel trainer`."""
        return self.exercise.label

    @property
    def earned(self) -> float:
        """Best result so far, at most the exercise's points."""
        return 0.0 if self.record.checked is None else min(self.record.checked.best, self.points)

    @property
    def points(self) -> float:
        return self.exercise.entry.points

    @property
    def right_answers(self) -> int:
        """Number of questions answered right."""
        return sum(answer.right for answer in self.record.answers.values())

    @property
    def state(self) -> State:
        if self.record.checked is not None and self.earned >= self.points:
            return "complete"
        return "begun" if self.touched else "not begun"

    @property
    def touched(self) -> float:
        """Time when the learner last checked it, answered a question or saved the module, as `saved_at`."""
        checked = self.record.checked
        times = [_seconds(answer.at) for answer in self.record.answers.values()]
        return max([*times, _seconds(checked.last_at) if checked is not None else 0.0, self.saved_at])

    @property
    def continued_at(self) -> float:
        """Time when the learner last worked on it, or was in its notebook while it was not complete, as `saved_at`."""
        if self.place is None or self.state == "complete":
            return self.touched
        return max(self.touched, _seconds(self.place.at))

    @property
    def builds_on(self) -> tuple[Exercise, ...]:
        """The exercises whose modules its own imports directly."""
        return tuple(find(name) for name in self.exercise.entry.builds_on)

    @property
    def points_text(self) -> str:
        """`17 of 25`, and the last result where it is lower."""
        text = f"{self.earned:g} of {self.points:g}"
        checked = self.record.checked
        return f"{text} (last {checked.last:g})" if checked is not None and checked.last < self.earned else text


@dataclass(frozen=True)
class CourseProgress:
    """All exercises, in the course's order."""

    exercises: Sequence[ExerciseProgress]

    @property
    def phases(self) -> dict[str, list[ExerciseProgress]]:
        """Exercises by the title of their phase."""
        by_title: dict[str, list[ExerciseProgress]] = {}
        for progress in self.exercises:
            by_title.setdefault(phase_title(progress.exercise.phase), []).append(progress)
        return by_title

    @property
    def next(self) -> ExerciseProgress | None:
        """Where to continue: the exercise worked on last, or the next one that is not complete; None at the end."""
        last = max(range(len(self.exercises)), key=lambda at: self.exercises[at].continued_at, default=0)
        order = [*self.exercises[last:], *self.exercises[:last]]
        return next((progress for progress in order if progress.state != "complete"), None)

    @property
    def summary(self) -> str:
        """`45 of 244 points, 2 of 10 exercises complete`."""
        earned = math.fsum(progress.earned for progress in self.exercises)
        points = math.fsum(progress.points for progress in self.exercises)
        complete = sum(progress.state == "complete" for progress in self.exercises)
        return f"{earned:g} of {points:g} points, {complete} of {len(self.exercises)} exercises complete"


def course_progress() -> CourseProgress:
    """Read the catalogue and the saved results."""
    place = last_place()
    return CourseProgress(
        [
            ExerciseProgress(
                exercise,
                recorded(exercise),
                _saved_at(exercise),
                place if place is not None and place.notebook == exercise.notebook_name else None,
            )
            for exercise in all_exercises()
        ]
    )


def untouched_course() -> CourseProgress:
    """Return the course as it is before a learner begins, with the lab's own exercises."""
    return CourseProgress([ExerciseProgress(exercise, Record(None, {}), 0.0) for exercise in exercises_in(root())])


def phase_title(phase: str) -> str:
    """The title of a phase's guidelines, `Phase 1: one node, many ranks`; without them, from the folder's name."""
    for folder in roots():
        guidelines = folder / "templates" / phase / "README.md"
        if guidelines.is_file():
            return read_text(guidelines).partition("\n")[0].removeprefix("# ")
    number, _, rest = phase.removeprefix("phase").partition("_")
    return f"Phase {number}: {rest.replace('_', ' ')}"


def _saved_at(exercise: Exercise) -> float:
    module = exercise.paths["yours"]
    return module.stat().st_mtime if module.is_file() else 0.0


def _seconds(at: str) -> float:
    try:
        return datetime.fromisoformat(at).timestamp()
    except ValueError:
        return 0.0
