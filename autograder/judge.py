"""The judge: runs an exercise's hidden rubric here, on ranks that live in a sandbox.

The learner's module goes in as text. What comes out are messages, which the scheduler in this process routes one by one
and so counts itself, and results in the wire format; none of it is unpickled, imported or believed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from autograder.sandbox import Enclosure, Sandbox
from labkit.checks import CheckResult, Ranks, Report, Rubric, Submission, load_rubric, run_checks
from labkit.clusters import Cluster
from labkit.clusters.virtual import virtual
from labkit.exercises import Exercise, root

TIMEOUT = 20.0
"""Seconds of wall-clock time for one call on ranks; a submission that hung once gets a quarter from then on."""


class BrokenRubric(RuntimeError):
    """A rubric cannot be used as it stands. Nobody's marks: the grading of the submission fails."""


def hidden_rubric(exercise: Exercise) -> Rubric:
    """The rubric that grades `exercise`, of the course tree, else of the installed package. Raises `NoRubric`."""
    in_course = root() / "autograder" / "rubrics" / exercise.filename
    installed = Path(__file__).parent / "rubrics" / exercise.filename
    return load_rubric(exercise, in_course if in_course.is_file() else installed)


class Judge:
    """Judges the modules of one submission, in a sandbox of its own: use it in a `with` statement."""

    def __init__(self, sandbox: Sandbox, timeout: float = TIMEOUT) -> None:
        self._sandbox = sandbox
        self._timeout = timeout
        self._enclosure: Enclosure | None = None

    def __enter__(self) -> Judge:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the sandbox and all that is in it."""
        if self._enclosure is not None:
            self._enclosure.close()
            self._enclosure = None

    def judge(self, exercise: Exercise, source: str) -> Report:
        """Marks for the module text `source`. Raises `BrokenRubric` when it is the rubric that fails."""
        rubric = hidden_rubric(exercise)
        report = self._run(rubric, source)
        skipped = [f"{result.title!r}: {result.skipped}" for result in report.results if result.skipped]
        if skipped:
            raise BrokenRubric(f"{rubric.path}: cannot be judged on virtual ranks: {'; '.join(skipped)}")
        if any(result.fault for result in report.results):
            # a check met what it did not foresee: the submission's doing, provided that the solution passes
            self._try_solution(rubric)
        return report

    def _run(self, rubric: Rubric, source: str) -> Report:
        return run_checks(rubric, Submission(rubric.exercise, source), Ranks(self._cluster, self._timeout))

    def _cluster(self, *, nnodes: int, nproc_per_node: int, **hardware: Any) -> Cluster:
        if self._enclosure is None:
            self._enclosure = self._sandbox.open()
        warm = self._enclosure.warm
        return virtual(nnodes=nnodes, nproc_per_node=nproc_per_node, ranks="processes", warm=warm, **hardware)

    def _try_solution(self, rubric: Rubric) -> None:
        solution = rubric.exercise.source("solution")[0]
        with Judge(self._sandbox, self._timeout) as other:
            report = other._run(rubric, solution)
        if not report.passed:
            faults = "\n".join(result.fault or result.text() for result in report.results if not result.passed)
            raise BrokenRubric(f"{rubric.path}: the solution does not get full marks\n{faults}")


def nothing_earned(rubric: Rubric) -> Report:
    """A report for what need not be run: no module, or the untouched template."""
    results = [CheckResult(check.title, check.points, earned=0.0) for check in rubric.checks]
    return Report(rubric.exercise.name, results, seed=0)
