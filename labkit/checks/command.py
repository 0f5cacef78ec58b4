"""`labkit check NAME`: the visible checks on the command line, for those who work in an editor."""

from __future__ import annotations

import sys
from pathlib import Path

from labkit.catalogue import Exercise, MissingModule, UnknownExercise, find, several
from labkit.checks.check_result import CheckResult
from labkit.checks.guidance import full_marks
from labkit.checks.report import Report
from labkit.checks.rubric import Check, NoRubric
from labkit.checks.session import check_exercise
from labkit.text_files import read_text


def main(name: str, file: str | Path | None = None, cluster: str = "virtual", seed: int | None = None) -> int:
    """Check one exercise, or those of a phase or of the course ("all"), and print results as they arrive.

    file: the module to check, instead of the one in the workspace. Of several exercises, only those that the learner
    has started are checked. Returns the exit status: 0 when every check passed, 1 when one failed or was not judged, or
    an exercise is not started, 2 when nothing could be checked: stderr has the reason, or the report if the lab failed.
    """
    exercises = several(name)
    try:
        if exercises:
            if file is not None:
                raise ValueError(f"--file needs a single exercise, but {name} has {len(exercises)}")
            return _check_several(exercises, cluster, seed)
        source = None if file is None else read_text(Path(file))
        return _status([_check(find(name), source, cluster, seed)])
    except (UnknownExercise, MissingModule, NoRubric, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _check_several(exercises: list[Exercise], cluster: str, seed: int | None) -> int:
    reports = {}
    for exercise in exercises:
        if exercise.paths["yours"].is_file():
            reports[exercise] = _check(exercise, None, cluster, seed)
            print()
    for exercise in exercises:
        if exercise in reports:
            print(reports[exercise].summary)
        else:
            print(f"{exercise.short_name}: not started: run its notebook, or copy templates/{exercise.filename}")
    return _status(list(reports.values())) if len(reports) == len(exercises) else 1


def _status(reports: list[Report]) -> int:
    if all(report.passed for report in reports):
        return 0
    return 1 if any(report.points for report in reports) else 2


def _check(exercise: Exercise, source: str | None, cluster: str, seed: int | None) -> Report:
    print(exercise.name)

    def progress(check: Check, result: CheckResult | None) -> None:
        if result is not None:
            print(result.text(), flush=True)
        elif sys.stdout.isatty():
            # the result overwrites this line, so it must not be longer than the title
            print(f"...        {check.title}", end="\r", flush=True)

    report = check_exercise(exercise, source, cluster=cluster, seed=seed, progress=progress)
    print(report.closing())
    if report.passed and source is None:
        print(full_marks.banner(exercise).text)
    return report
