"""`labkit check NAME`: the visible checks at the shell, for those who work in an editor."""

from __future__ import annotations

import sys
from pathlib import Path

from labkit.checks.report import CheckResult
from labkit.checks.rubric import Check, NoRubric
from labkit.checks.session import check_exercise
from labkit.exercises import Exercise, MissingModule, UnknownExercise, catalogue, find


def main(name: str, file: str | Path | None = None, cluster: str = "virtual", seed: int | None = None) -> int:
    """Check one exercise, or all of a phase, and print what was found as it comes.

    file: the module to check, instead of the one under work. Returns the exit code: 0 when every check passed, 1 when
    one failed, 2 when nothing could be checked (the message goes to stderr).
    """
    try:
        exercises = _named(name)
        if file is not None and len(exercises) > 1:
            raise ValueError(f"--file goes with one exercise, and {name} has {len(exercises)}")
        source = None if file is None else Path(file).read_text()
        codes = [_check(exercise, source, cluster, seed) for exercise in exercises]
    except (UnknownExercise, MissingModule, NoRubric, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    return max(codes)


def _named(name: str) -> list[Exercise]:
    of_phase = [exercise for exercise in catalogue() if exercise.phase == name.rstrip("/")]
    return of_phase or [find(name)]


def _check(exercise: Exercise, source: str | None, cluster: str, seed: int | None) -> int:
    print(exercise.name)

    def progress(check: Check, result: CheckResult | None) -> None:
        if result is not None:
            print(result.text(), flush=True)
        elif sys.stdout.isatty():
            # overwritten by the result: nothing longer than its title is left on the line
            print(f"...        {check.title}", end="\r", flush=True)

    report = check_exercise(exercise, source, cluster=cluster, seed=seed, progress=progress)
    print(report.closing())
    return 0 if report.passed else 1
