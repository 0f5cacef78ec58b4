"""`labkit verdict ASSIGNMENT STUDENT`: all that the judge found, for the instructor, who reads what pages keep back."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autograder.desk.store import FOLDER, Verdicts, Work
from autograder.feedback.code import visible
from labkit import exercises


def main(assignment: str, student: str, course: Path | None) -> int:
    """Print the kept verdicts on one learner's notebooks; 0, or 2 when there are none."""
    folder = course or Path(os.environ.get("LABKIT_COURSE") or exercises.root() / "course")
    try:
        works = _kept(folder, assignment, student)
    except ValueError as problem:
        print(f"labkit: {visible(str(problem))}", file=sys.stderr)
        return 2
    if not works:
        learner = visible(student)
        print(
            f"labkit: no verdict on {learner} in {assignment} is kept in {folder / FOLDER}: "
            f"run `labkit autograde {assignment} --student {learner}`",
            file=sys.stderr,
        )
        return 2
    print("\n\n".join(_shown(work, Verdicts(folder)) for work in works))
    return 0


def _kept(folder: Path, assignment: str, student: str) -> list[Work]:
    """The learner's notebooks on which anything is kept."""
    if any(name in ("", ".", "..") or "/" in name for name in (assignment, student)):
        raise ValueError(f"not the names of an assignment and a learner: {assignment!r}, {student!r}")
    files = (folder / FOLDER / student / assignment).glob("[!.]*.json")
    names = {file.name.removesuffix(".json").removesuffix(".error") for file in files}
    return [Work(student, assignment, name) for name in sorted(names)]


def _shown(work: Work, verdicts: Verdicts) -> str:
    lines = [f"{work.student}, {work.notebook}"]
    if failure := verdicts.failure(work):
        lines.append(f"The grader failed at {failure.at}, {failure.attempts} times: no mark.\n{failure.reason}")
    if kept := verdicts.latest(work):
        lines += kept.verdict.notes
        for report in kept.verdict.reports.values():
            lines.append(report.text())
            lines += [f"{result.title}\n{result.fault}" for result in report.results if result.fault]
    # what submissions said is in it
    return visible("\n".join(lines))
