"""`labkit verdict ASSIGNMENT STUDENT`: everything the judge found, including what feedback pages omit."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autograder.feedback.code import visible
from autograder.verdicts.store import FOLDER, GradingTask, VerdictStore
from labkit import catalogue


def main(assignment: str, student: str, course: Path | None) -> int:
    """Print the stored verdicts on one learner's notebooks; return 0, or 2 when there are none."""
    folder = course or Path(os.environ.get("LABKIT_COURSE") or catalogue.root() / "course")
    try:
        works = _kept(folder, assignment, student)
    except ValueError as problem:
        print(f"labkit: {visible(str(problem))}", file=sys.stderr)
        return 2
    if not works:
        learner = visible(student)
        print(
            f"labkit: no verdict on {learner} in {assignment} is stored in {folder / FOLDER}: "
            f"run `labkit autograde {assignment} --student {learner}`",
            file=sys.stderr,
        )
        return 2
    print("\n\n".join(_shown(work, VerdictStore(folder)) for work in works))
    return 0


def _kept(folder: Path, assignment: str, student: str) -> list[GradingTask]:
    """Return the learner's notebooks with a stored verdict or failure."""
    if any(name in ("", ".", "..") or "/" in name for name in (assignment, student)):
        raise ValueError(f"not valid names of an assignment and a learner: {assignment!r}, {student!r}")
    files = (folder / FOLDER / student / assignment).glob("[!.]*.json")
    names = {file.name.removesuffix(".json").removesuffix(".error") for file in files}
    return [GradingTask(student, assignment, name) for name in sorted(names)]


def _shown(work: GradingTask, verdicts: VerdictStore) -> str:
    lines = [f"{work.student}, {work.notebook}"]
    if failure := verdicts.failure(work):
        lines.append(f"The grader failed at {failure.at}, {failure.attempts} times: no mark.\n{failure.reason}")
    if stored := verdicts.latest(work):
        lines += stored.verdict.notes
        for report in stored.verdict.reports.values():
            lines.append(report.text())
            lines += [f"{result.title}\n{result.fault}" for result in report.results if result.fault]
    # it contains text from submissions
    return visible("\n".join(lines))
