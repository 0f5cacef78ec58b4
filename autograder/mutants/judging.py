"""Stated and judged marks of wrong solutions, and the page that lists them, autograder/course/README.md."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autograder.judge import Judge, hidden_rubric
from autograder.mutants import Mutants, Variants
from autograder.sandbox import Sandbox
from labkit.catalogue import Origin, all_exercises
from labkit.checks import NoRubric, Rubric

LOST_SHARE, KEPT_SHARE = 6, 18
"""Sampling of mutants for each check in `./lab test --all`: one in so many that lose it, and that keep it."""

HEAD = """# What wrong solutions earn

Every rubric here is tested by solutions that are wrong, or that only seem right: its mutants. Each must lose the points
that it does not deserve, and keep the others; the solution, and every right one that is written differently, gets all.
`labkit judge-mutants` judges them all by all checks and writes this page. `./lab test --all` judges each mutant
by a sixth of the checks that it loses, at least by one, and by an eighteenth of those that it keeps. `./lab test`
judges, for each check, the mutant that loses it and little else.
"""


@dataclass(frozen=True)
class Row:
    """One solution and its marks."""

    name: str
    says: str
    """First line of its text: what it does."""
    marks: float
    loses: frozenset[str]
    """Names of the checks that it loses."""


def stated(rubric: Rubric) -> list[Row]:
    """Return the stated rows: the solution and its variants lose nothing, the template everything."""
    every = frozenset(check.name for check in rubric.checks)
    variants, mutants = Variants(rubric.exercise), Mutants(rubric.exercise)
    right = [("the solution", ""), *((name, _cell(variants.says(name))) for name in variants)]
    rows = [Row(name, says, rubric.points, frozenset()) for name, says in right]
    wrong = [
        Row(name, _cell(mutants.says(name)), mutant.marks, frozenset(mutant.loses)) for name, mutant in mutants.items()
    ]
    return [*rows, *sorted(wrong, key=lambda row: -row.marks), Row("the template", "", 0, every)]


def telling_checks(rubric: Rubric, mutant: str) -> list[str]:
    """Return the checks that the tests judge a mutant by: at least one that it loses, and some that it keeps.

    Each check is judged by a sixth of the mutants that lose it and an eighteenth of those that keep it, at least
    by one of each, and not always by the same. `main` judges by all checks.
    """
    mutants = Mutants(rubric.exercise)
    loses = mutants[mutant].loses
    telling = set()
    for number, check in enumerate(rubric.checks):
        lost = check.name in loses
        alike = [name for name in sorted(mutants) if (check.name in mutants[name].loses) == lost]
        share = LOST_SHARE if lost else KEPT_SHARE
        if alike.index(mutant) % share == number % min(share, len(alike)):
            telling.add(check.name)
    if not loses & telling:
        telling.add(min(loses))
    return [check.name for check in rubric.checks if check.name in telling]


def closest_mutants(rubric: Rubric) -> dict[str, list[str]]:
    """Return for each check the mutant that loses it and little else, as lists of checks by mutant.

    `./lab test` judges these on every change; `./lab test --all` judges `telling_checks` of all mutants.
    """
    mutants = Mutants(rubric.exercise)
    checks_of: dict[str, list[str]] = {}
    for check in rubric.checks:
        losing = [name for name in sorted(mutants) if check.name in mutants[name].loses]
        checks_of.setdefault(min(losing, key=lambda name: len(mutants[name].loses)), []).append(check.name)
    return checks_of


def judged(rubric: Rubric, row: Row) -> Row:
    """Return the row with the marks from a run."""
    exercise = rubric.exercise
    variants, mutants = Variants(exercise), Mutants(exercise)
    origins: dict[str, Origin] = {"the solution": "solution", "the template": "template"}
    if row.name in origins:
        text, _ = exercise.source(origins[row.name])
    else:
        text = (variants if row.name in variants else mutants).text(row.name)
    with Judge(Sandbox()) as judge:
        others = {earlier.name: earlier.source("solution")[0] for earlier in exercise.builds_on}
        report = judge.judge(exercise, text, others)
    pairs = zip(rubric.checks, report.results, strict=True)
    lost = frozenset(check.name for check, result in pairs if not result.passed)
    return Row(row.name, row.says, report.earned, lost)


def section(rubric: Rubric) -> str:
    """Return the table of one exercise, in Markdown."""
    titles = {check.name: check.title for check in rubric.checks}
    lines = [f"## {rubric.exercise.name}: {rubric.points:g} points", "", "| | | marks | loses |", "|---|---|---|---|"]
    for row in stated(rubric):
        kept = [title for name, title in titles.items() if name not in row.loses]
        lost = [title for name, title in titles.items() if name in row.loses]
        if not kept:
            loses = "everything"
        elif len(kept) < len(lost):
            loses = f"everything but: {'; '.join(kept)}"
        else:
            loses = "; ".join(lost)
        name = row.name if row.name.startswith("the ") else f"`{row.name}`"
        lines.append(
            "|".join(f" {cell} " if cell else " " for cell in (name, row.says, f"{row.marks:g}", loses)).join("||")
        )
    return "\n".join(lines) + "\n"


def page(folder: Path) -> str:
    """Return autograder/course/README.md of a course folder, with all of its exercises."""
    return "\n".join([HEAD, *(section(rubric) for rubric in rubrics() if rubric.exercise.root == folder)])


def rubrics() -> Iterator[Rubric]:
    """Yield the hidden rubrics of all exercises that have one."""
    for exercise in all_exercises():
        try:
            yield hidden_rubric(exercise)
        except NoRubric:
            continue


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
