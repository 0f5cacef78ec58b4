"""TODOs, hints for them, and what is shown after full marks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from checks.course import SOLUTION

from labkit import catalogue
from labkit.catalogue import Exercise
from labkit.checks import check_exercise
from labkit.checks.guidance import full_marks, hints, todos
from labkit.checks.guidance.reference import reference, rows, unified_text
from labkit.progress import FailedCheck, record_check

NUMBERED = """def first(x):
    # TODO 1. Think.
    raise NotImplementedError()


class Pair:
    def forward(self, x):
        # TODO 2. Think.
        raise NotImplementedError()

    def both(self, x):
        # TODO 3. Half of it.
        x += 1

        # TODO 4. The other half.
        raise NotImplementedError()


__all__ = ["largest"]
"""
CALL = "dist.all_reduce(tensor, dist.ReduceOp.MAX)"


@pytest.fixture
def largest(course: Path) -> Exercise:
    return catalogue.find("largest")


@pytest.fixture
def numbered(course: Path) -> Exercise:
    """An exercise whose template has four TODOs, two of them in one function."""
    (course / "templates/phase1_small/largest.py").write_text(NUMBERED)
    return catalogue.find("largest")


def test_a_gap_is_named_by_its_todo_and_its_function(numbered: Exercise) -> None:
    assert [todo.text for todo in todos.unwritten(numbered, NUMBERED)] == [
        "TODO 1 in first",
        "TODO 2 in Pair.forward",
        "TODO 4 in Pair.both",
    ]


def test_a_line_belongs_to_its_todo_even_if_the_comment_is_gone(numbered: Exercise) -> None:
    assert todos.todo_at(numbered, NUMBERED, 13).number == 3
    bare = re.sub(r" *# TODO.*\n", "", NUMBERED)
    line = bare.splitlines().index("    def forward(self, x):") + 2
    assert todos.todo_at(numbered, bare, line).text == "TODO 2 in Pair.forward"
    assert todos.todo_at(numbered, "x = (\n", 1).number == 0


def test_a_check_names_the_todo_that_is_not_written(largest: Exercise) -> None:
    largest.save(largest.source("template")[0])
    first, *_ = check_exercise(largest).results
    assert first.text().splitlines() == [
        "TODO 0/2   the largest of all",
        "           to write  TODO 1 in largest is not written yet: phase1_small/largest.py, line 10",
    ]
    assert first.todo == 1


def test_hints_come_one_at_a_time_and_are_remembered(largest: Exercise, capsys: pytest.CaptureFixture[str]) -> None:
    assert hints.main("largest") == 0
    assert capsys.readouterr().out == "TODO 1, hint 1 of 2 (`largest` is not written yet)\nthink\n"
    second = hints.next_hint(largest, 1)
    assert second.markdown() == "**TODO 1, hint 2 of 2**\n\n`all_reduce(tensor, MAX)`"
    assert hints.next_hint(largest, 1) == second
    assert [hint.body for hint in hints.earlier_hints(largest)] == ["think", "`all_reduce(tensor, MAX)`"]
    hints.forget(largest)
    assert hints.main("largest", earlier=True) == 2
    assert "no hints for largest yet" in capsys.readouterr().err


def test_a_hint_is_for_the_first_todo_that_is_open_or_whose_check_failed(numbered: Exercise, course: Path) -> None:
    visible = course / "labkit/course/phase1_small/largest/checks.py"
    bodies = {number: [f"about {number}"] for number in range(1, 5)}
    visible.write_text(re.sub(r"HINTS = .*", f"HINTS = {bodies}", visible.read_text()))
    numbered.save(NUMBERED.replace("raise NotImplementedError()", "return x", 1))
    hint = hints.next_hint(numbered)
    assert (hint.todo, hint.body, hint.why) == (2, "about 2", "`Pair.forward` is not written yet")
    # all is written, and the check, which belongs to TODO 1, fails
    numbered.save(SOLUTION.replace("MAX", "MIN"))
    with pytest.raises(hints.NoHint, match="run its checks first"):
        hints.next_hint(numbered)
    check_exercise(numbered)
    hint = hints.next_hint(numbered)
    assert (hint.todo, hint.why) == (1, "the check “the largest of all” failed")
    # of an earlier session, or of the shell
    record_check(numbered, 0, 2, [FailedCheck(2, "another")])
    assert hints.next_hint(numbered).why == "the check “another” failed"
    numbered.save(SOLUTION)
    check_exercise(numbered)
    with pytest.raises(hints.NoHint, match="passes its checks"):
        hints.next_hint(numbered)
    with pytest.raises(hints.NoHint, match="no hints for TODO 7; its TODOs with hints: 1, 2, 3, 4"):
        hints.next_hint(numbered, 7)


def test_the_banner_leads_to_the_next_notebook_and_shows_the_reference(largest: Exercise, course: Path) -> None:
    path = course / "labkit/catalogue.toml"
    entry = path.read_text().replace("number = 1", "number = 2").replace("phase1_small/largest", "phase2_big/<b>")
    path.write_text(path.read_text() + entry)
    largest.save("# %%exercise largest\n" + SOLUTION.replace(CALL, "# <mine>\n    " + CALL))
    banner = full_marks.banner(largest)
    assert 'href="../phase2_big/02_&lt;b&gt;.ipynb"' in banner.html and "# &lt;mine&gt;" in banner.html
    assert "next: 02 The largest (../phase2_big/02_<b>.ipynb)" in banner.text
    assert "%solution largest --diff" in banner.text
    (course / "solutions/phase1_small/largest.py").unlink()
    banner = full_marks.banner(largest)
    assert "solution" not in banner.text and "<table" not in banner.html


def test_the_reference_beside_a_module_shows_where_they_differ(largest: Exercise) -> None:
    released = reference(largest)
    assert released is not None and "SOLUTION" not in released
    assert rows(released, released) == []
    own = "# %%exercise largest\n" + released.replace(CALL, "tensor.abs_()\n    tensor.neg_()")
    (part,) = rows(own, released)
    changed = [row for row in part if row.differs]
    assert [(row.own.strip(), row.reference.strip()) for row in changed] == [
        ("tensor.abs_()", CALL),
        ("tensor.neg_()", ""),
    ]
    assert own.splitlines()[changed[0].own_line - 1] == changed[0].own
    assert f"-     tensor.abs_()\n-     tensor.neg_()\n+     {CALL}\n" in unified_text(own, released)
