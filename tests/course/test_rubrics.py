"""Every exercise: the marks of its template, variants and mutants, and what its solution gets from visible checks.

tests/autograder/test_whole_course.py has the marks of the solutions, through nbgrader.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from judged_here import skip_unless_judged

from autograder.judge import Judge
from autograder.mutants import Mutants, Variants, judging
from autograder.sandbox import Sandbox
from labkit.catalogue import Exercise
from labkit.checks import Ranks, Report, Submission, run_checks, visible_rubric

ENOUGH_MUTANTS = 6


HIDDEN = {rubric.exercise.short_name: rubric for rubric in judging.rubrics()}
MUTANTS = {name: Mutants(rubric.exercise) for name, rubric in HIDDEN.items()}
VARIANTS = {name: Variants(rubric.exercise) for name, rubric in HIDDEN.items()}

sandboxed = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")
each = pytest.mark.parametrize("name", HIDDEN)


def checked(name: str, source: str, cluster: str = "virtual") -> Report:
    """Run the visible checks, with the solutions of earlier exercises."""
    exercise = HIDDEN[name].exercise
    return run_checks(visible_rubric(exercise), Submission(exercise, source, earlier(exercise)), Ranks(cluster))


def graded(name: str, source: str, checks: Sequence[str] = (), once: bool = False) -> Report:
    """Run the hidden rubric or some of its checks as for submissions: in a sandbox, with processes as ranks."""
    exercise, sandbox = HIDDEN[name].exercise, Sandbox()
    skip_unless_judged(HIDDEN[name], sandbox, checks)
    with Judge(sandbox) as judge:
        return judge.judge(exercise, source, earlier(exercise), checks, once)


def earlier(exercise: Exercise) -> dict[str, str]:
    return {one.name: solution(one) for one in exercise.builds_on}


def solution(exercise: Exercise) -> str:
    return exercise.source("solution")[0]


def written_up_to(todo: int, source: str) -> str:
    """The solution with the gaps of all later TODOs open."""
    number, parts = 0, []
    for part in re.split(r"(?m)^(?= *# TODO \d| *### BEGIN SOLUTION)", source):
        if found := re.match(r" *# TODO (\d+)", part):
            number = int(found[1])
        gap = r"( *)### BEGIN SOLUTION\n.*### END SOLUTION\n"
        parts.append(re.sub(gap, r"\1raise NotImplementedError()\n", part, flags=re.DOTALL) if number > todo else part)
    return "".join(parts)


@each
def test_the_solution_passes_the_visible_checks_on_real_processes(name: str) -> None:
    report = checked(name, solution(HIDDEN[name].exercise), "local")
    assert report.passed, report.text()


@each
def test_a_visible_check_passes_once_its_todos_are_written(name: str) -> None:
    rubric = visible_rubric(HIDDEN[name].exercise)
    exercise = rubric.exercise
    for todo in sorted({check.todo for check in rubric.checks})[:-1]:  # all are written in the notebook's %check
        part = replace(rubric, checks=[check for check in rubric.checks if check.todo == todo])
        submission = Submission(exercise, written_up_to(todo, solution(exercise)), earlier(exercise))
        report = run_checks(part, submission, Ranks())
        assert all(result.passed for result in report.results), report.text()


@sandboxed
@each
def test_the_template_gets_nothing(name: str) -> None:
    template = HIDDEN[name].exercise.source("template")[0]
    # the grader gives an unchanged template nothing without running it
    visible, hidden = checked(name, template), graded(name, template, once=True)
    assert visible.earned == hidden.earned == 0, visible.text() + hidden.text()
    for result in visible.results:
        assert result.todo and result.to_write.startswith(f"TODO {result.todo} in "), visible.text()


@sandboxed
@pytest.mark.parametrize(
    ("name", "variant"), [pytest.param(name, one, id=f"{name}-{one}") for name in VARIANTS for one in VARIANTS[name]]
)
def test_other_right_solutions_get_full_marks(name: str, variant: str) -> None:
    rubric, visible = HIDDEN[name], visible_rubric(HIDDEN[name].exercise)
    text = VARIANTS[name].text(variant)
    # half of the checks; `labkit judge-mutants` takes all hidden ones
    half = list(VARIANTS[name]).index(variant) % 2
    part = replace(visible, checks=visible.checks[half::2])
    report = run_checks(part, Submission(rubric.exercise, text, earlier(rubric.exercise)), Ranks())
    assert report.passed, report.text()
    checks = [check.name for check in rubric.checks][half::2]
    for once in (True, False):  # the judge repeats what may fail by chance
        report = graded(name, text, checks, once)
        if report.passed:
            return
    pytest.fail(report.text())


@sandboxed
@pytest.mark.parametrize(
    ("name", "mutant"),
    [
        pytest.param(name, one, id=f"{name}-{one}")
        for name, rubric in HIDDEN.items()
        for one in judging.closest_mutants(rubric)
    ],
)
def test_each_check_fails_a_mutant_that_loses_little_else(name: str, mutant: str) -> None:
    checks = judging.closest_mutants(HIDDEN[name])[mutant]
    for once in (True, False):  # the judge repeats what may fail by chance
        report = graded(name, MUTANTS[name].text(mutant), checks, once)
        if not any(result.passed for result in report.results):
            return
    pytest.fail(report.text())


@sandboxed
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "mutant"), [pytest.param(name, one, id=f"{name}-{one}") for name in MUTANTS for one in MUTANTS[name]]
)
def test_a_mutant_loses_what_it_should_and_keeps_the_rest(name: str, mutant: str) -> None:
    rubric = HIDDEN[name]
    checks = judging.telling_checks(rubric, mutant)
    for once in (True, False):  # the judge repeats what may fail by chance
        report = graded(name, MUTANTS[name].text(mutant), checks, once)
        judged = {check: result for check, result in zip(checks, report.results, strict=True) if not result.skipped}
        lost = {check for check, result in judged.items() if not result.passed}
        if lost == MUTANTS[name][mutant].loses & judged.keys():
            return
    pytest.fail(report.text())


@each
def test_each_check_is_seen_to_fail_some_mutant_and_to_pass_others(name: str) -> None:
    rubric = HIDDEN[name]
    assert {check for checks in judging.closest_mutants(rubric).values() for check in checks} == {
        check.name for check in rubric.checks
    }
    judged_by = {mutant: judging.telling_checks(rubric, mutant) for mutant in MUTANTS[name]}
    for check in rubric.checks:
        fails = {
            check.name in MUTANTS[name][mutant].loses for mutant, checks in judged_by.items() if check.name in checks
        }
        assert fails == {True, False}, check.name


@each
def test_every_mutant_is_named_and_there(name: str) -> None:
    """Each edit fits; each whole module is listed."""
    rubric, mutants = HIDDEN[name], MUTANTS[name]
    whole = sorted(mutant for mutant in mutants if not mutants[mutant].change)
    assert whole == sorted(path.stem for path in mutants.folder.glob("*.py"))
    assert len(mutants) >= ENOUGH_MUTANTS
    names = {check.name for check in rubric.checks}
    for mutant, stated in mutants.items():
        compile(mutants.text(mutant), mutant, "exec")
        assert mutants.text(mutant) != mutants.base(mutant) and mutants.says(mutant), mutant
        assert stated.loses and stated.loses <= names, mutant
        assert stated.marks == sum(c.points for c in rubric.checks if c.name not in stated.loses), mutant


@each
def test_every_variant_is_described_and_differs_from_its_base(name: str) -> None:
    variants = VARIANTS[name]
    assert variants and not set(variants) & set(MUTANTS[name])
    for variant in variants:
        compile(variants.text(variant), variant, "exec")
        assert variants.text(variant) != variants.base(variant) and variants.says(variant), variant


@each
def test_both_rubrics_are_on_one_scale(name: str) -> None:
    """Plain nbgrader, without the judge, records the marks of the visible checks."""
    visible = visible_rubric(HIDDEN[name].exercise)
    assert visible.points == HIDDEN[name].points


@each
def test_the_table_of_what_mutants_earn_is_up_to_date(name: str) -> None:
    """It shows what the rubric states, which the tests above compare with a run of each."""
    section = judging.section(HIDDEN[name])
    page = HIDDEN[name].exercise.root / "autograder/course/README.md"
    assert section in page.read_text(), "labkit judge-mutants"
