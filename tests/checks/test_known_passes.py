"""A module that has passed its checks is not checked again in a later session, for exercises that build on it."""

from __future__ import annotations

from pathlib import Path

import pytest
from checks.course import CATALOGUE, SOLUTION

from labkit import catalogue
from labkit.checks import check_exercise, session
from labkit.checks.report import Report
from labkit.progress import recorded

OWN = SOLUTION + "# written by a learner\n"
LATER = """
[[exercise]]
number = 2
name = "phase1_small/later"
title = "Later"
builds_on = ["largest"]
minutes = 5
points = 1
"""

CHECKS = """
from labkit.checks import check

@check(points=1, todo=1, title="nothing")
def nothing(submission):
    pass
"""


@pytest.fixture
def checked(course: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the exercises whose checks ran."""
    (course / "labkit/catalogue.toml").write_text(CATALOGUE + LATER)
    checks = course / "labkit/course/phase1_small/later/checks.py"
    checks.parent.mkdir()
    checks.write_text(CHECKS)
    for folder in ("solutions", "templates"):
        (course / folder / "phase1_small/later.py").write_text('__all__ = ["later"]\ndef later(): ...\n')
    names: list[str] = []
    run = session.run_checks

    def counted(rubric: object, submission: object, *given: object, **options: object) -> Report:
        names.append(submission.exercise.short_name)  # type: ignore[attr-defined]
        return run(rubric, submission, *given, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(session, "run_checks", counted)
    return names


def in_a_new_session() -> str:
    """Check the later exercise; returns whose modules it builds on."""
    session._passed.cache_clear()
    catalogue.find("later").save("def later(): ...\n")
    return check_exercise(catalogue.find("later")).title


def test_a_module_that_passed_is_not_checked_again(checked: list[str]) -> None:
    catalogue.find("largest").save(OWN)
    assert "your own largest" in in_a_new_session() and checked == ["largest", "later"]
    assert "your own largest" in in_a_new_session() and checked == ["largest", "later", "later"]


def test_the_solution_is_not_checked(checked: list[str], course: Path) -> None:
    catalogue.find("largest").save("\n" + SOLUTION)
    assert "your own largest" in in_a_new_session() and checked == ["later"]
    assert not recorded("largest").passes
    catalogue.find("largest").paths["solution"].unlink()
    assert "your own largest" in in_a_new_session() and checked == ["later", "largest", "later"]


def test_what_its_own_check_found_is_known_too(checked: list[str]) -> None:
    catalogue.find("largest").save(OWN)
    check_exercise(catalogue.find("largest"))
    assert "your own largest" in in_a_new_session() and checked == ["largest", "later"]


def test_a_module_saved_by_a_cell_is_known_as_the_same_module_in_a_file(checked: list[str]) -> None:
    catalogue.find("largest").save(OWN)
    in_a_new_session()
    catalogue.find("largest").save("\n" + OWN)  # line 1 is the cell's magic
    assert "your own largest" in in_a_new_session() and checked == ["largest", "later", "later"]


def test_the_graded_cell_shows_the_report_of_a_module_that_has_just_passed(checked: list[str]) -> None:
    catalogue.find("largest").save(OWN)
    passed = check_exercise(catalogue.find("largest"))
    assert session.grade("largest") == passed.earned and checked == ["largest"]
    catalogue.find("largest").save(OWN.replace("MAX", "MIN"))
    assert session.grade("largest") < passed.earned and checked == ["largest", "largest"]
    catalogue.find("largest").save(OWN)
    assert session.grade("largest") == passed.earned and checked == ["largest", "largest"]


def test_a_change_of_the_module_or_of_its_checks_is_checked(checked: list[str], course: Path) -> None:
    catalogue.find("largest").save(OWN)
    in_a_new_session()
    catalogue.find("largest").save(OWN.replace("MAX", "MIN"))
    assert "your own fails its visible checks" in in_a_new_session()
    catalogue.find("largest").save(OWN)
    checked.clear()
    assert "your own largest" in in_a_new_session() and checked == ["later"]
    checks = course / "labkit/course/phase1_small/largest/checks.py"
    checks.write_text(checks.read_text().replace("equals(1)", "equals(2)"))
    assert "your own fails its visible checks" in in_a_new_session()


def test_what_fails_is_not_known_to_pass(checked: list[str]) -> None:
    catalogue.find("largest").save(OWN.replace("MAX", "MIN"))
    check_exercise(catalogue.find("largest"))
    in_a_new_session()
    assert checked == ["largest", "largest", "later"] and not recorded("largest").passes


def test_a_workspace_that_cannot_be_written_costs_time_only(
    checked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("labkit.checks.known_passes.save_pass", full)
    catalogue.find("largest").save(OWN)
    for _ in range(2):
        assert "your own largest" in in_a_new_session()
    assert checked == ["largest", "later"] * 2
