"""Result of one exercise in one submission: its marks, and the checks that it lost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class JudgedExercise:
    """One exercise as judged. Titles are those of the rubric; it has no text of the submission."""

    exercise: str
    key: str
    """Key of the verdict: the same one means that the learner has changed nothing."""
    earned: float
    points: float
    lost: tuple[str, ...] = ()
    """Titles of the checks without full points, in the rubric's order."""
    following: tuple[str, ...] = ()
    """Those of `lost` that an easier check explains, which failed before."""
    written: bool = True
    """Whether the learner has written anything that a check could judge."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JudgedExercise:
        """The inverse of `dataclasses.asdict`."""
        return cls(**{**data, "lost": tuple(data["lost"]), "following": tuple(data["following"])})


def judged_exercises(course: Path, learner: str, assignment: str) -> list[JudgedExercise]:
    """Return the results in the verdicts of a submission that was judged last; none if there are no verdicts."""
    return read_verdicts(course / "verdicts" / learner / assignment).exercises


@dataclass(frozen=True)
class Verdicts:
    """What the grader has stored on one learner's assignment."""

    exercises: list[JudgedExercise]
    failed: frozenset[str]
    """Notebooks on which the grader itself has failed."""


def read_verdicts(folder: Path) -> Verdicts:
    """Read `verdicts/LEARNER/ASSIGNMENT` of the course, as autograder/verdicts/store.py writes it.

    It is read as plain data: the classes of verdicts would import torch.
    """
    exercises, failed = [], set()
    for path in sorted(folder.glob("[!.]*.json")):
        if path.name.endswith(".error.json"):
            failed.add(path.name.removesuffix(".error.json"))
            continue
        try:
            data = json.loads(path.read_bytes())
            exercises += [_judged(data["key"], report) for report in data["verdict"]["reports"].values()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # damaged: to the grader it is as good as missing
    return Verdicts(exercises, frozenset(failed))


def _judged(key: str, report: Mapping[str, Any]) -> JudgedExercise:
    judged = [one for one in report["results"] if not one.get("skipped")]
    lost = [one for one in judged if one["earned"] < one["points"]]
    # an unchanged cell is not run: nothing is observed
    gaps = {one["title"] for one in lost if one.get("unwritten") or not (one.get("seen") or one.get("stopped"))}
    return JudgedExercise(
        exercise=report["exercise"],
        key=key,
        earned=sum(one["earned"] for one in judged),
        points=sum(one["points"] for one in judged),
        lost=tuple(one["title"] for one in lost),
        following=tuple(one["title"] for one in lost if one.get("cause")),
        written=any(one["earned"] for one in judged)
        or any(one["title"] not in gaps and one.get("cause") not in gaps for one in lost),
    )
