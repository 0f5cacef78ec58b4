"""Result of one exercise in one submission: its marks, and the checks that it lost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class JudgedExercise:
    """One exercise as judged. Titles are those of the rubric; of the submission it has names of files at most."""

    exercise: str
    key: str
    """Key of the verdict: the same one means that the learner has changed nothing."""
    earned: float
    points: float
    lost: tuple[str, ...] = ()
    """Titles of the checks without full points, in the rubric's order."""
    following: tuple[str, ...] = ()
    """Checks of `lost` that the failure of an easier check before them explains."""
    written: bool = True
    """Whether the learner has written anything that a check could judge."""
    why: str = ""
    """Why there was nothing to judge; empty if there was something."""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> JudgedExercise:
        """The inverse of `dataclasses.asdict`."""
        return cls(**{**data, "lost": tuple(data["lost"]), "following": tuple(data["following"])})


def judged_exercises(course: Path, learner: str, assignment: str) -> list[JudgedExercise]:
    """Return the results in the verdicts of a submission that was judged last; none if there are no verdicts."""
    return read_verdicts(course / "verdicts" / learner / assignment).exercises


@dataclass(frozen=True)
class Verdicts:
    """Results that the grader has stored for one learner's assignment."""

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
            notes = data["verdict"]["notes"]
            exercises += [_judged(data["key"], report, notes) for report in data["verdict"]["reports"].values()]
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # the grader, too, treats a damaged verdict as missing
    return Verdicts(exercises, frozenset(failed))


def _judged(key: str, report: Mapping[str, Any], notes: Sequence[str]) -> JudgedExercise:
    judged = [result for result in report["results"] if not result.get("skipped")]
    lost = [result for result in judged if result["earned"] < result["points"]]
    # an unchanged cell is not run: nothing is observed
    gaps = {
        result["title"]
        for result in lost
        if result.get("unwritten") or not (result.get("seen") or result.get("stopped"))
    }
    written = any(result["earned"] for result in judged) or any(
        result["title"] not in gaps and result.get("cause") not in gaps for result in lost
    )
    return JudgedExercise(
        exercise=report["exercise"],
        key=key,
        earned=sum(result["earned"] for result in judged),
        points=sum(result["points"] for result in judged),
        lost=tuple(result["title"] for result in lost),
        following=tuple(result["title"] for result in lost if result.get("cause")),
        written=written,
        why=notes[-1] if notes and not written else "",
    )
