"""Output for instructors: what is missing, what to do next, who set the marks. Nothing is judged here."""

from __future__ import annotations

import io
import signal
from pathlib import Path

import nbformat
import pytest
import second_exercise
from rich.console import Console

from autograder.batch.run import ERROR, GRADED, NotebookSummary, why_nothing
from autograder.batch.show import Show
from autograder.course_folder import Course
from autograder.judge import BrokenRubric, hidden_rubric
from autograder.verdict import Verdict
from autograder.verdicts.store import GradingTask
from labkit import catalogue
from labkit.checks import CheckResult, Report
from labkit.cli import main

NAME = second_exercise.NAME
PHASE, NOTEBOOK = second_exercise.PHASE, second_exercise.NOTEBOOK
ADA = GradingTask("ada", PHASE, NOTEBOOK)


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tree"
    second_exercise.add_to(folder)
    nbformat.write(
        second_exercise.notebook(NAME, second_exercise.SOLUTION, points=3),
        folder / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb",
    )
    monkeypatch.setenv("LABKIT_ROOT", str(folder))
    return folder


def said(tree: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Return exit code and text of `labkit autograde --status`, which answers like a run, but sooner."""
    course = [] if "--course" in arguments else ["--course", str(tree)]
    code = main(["autograde", *arguments, *course, "--status"])
    shown = capsys.readouterr()
    return code, " ".join((shown.out + shown.err).split())


def test_ctrl_c_means_afterwards_what_it_meant_before(tree: Path) -> None:
    assert main(["autograde", PHASE, "--course", str(tree)]) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_not_there_is_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nowhere = tree / "nowhere"
    code, text = said(tree, capsys, PHASE, "--course", str(nowhere))
    assert code == 2 and text.startswith(f"labkit: there is no folder {nowhere}: name the one that holds release/")
    assert not nowhere.exists(), "a mistyped folder is not made"
    assert main(["grades", "--course", str(nowhere)]) == 2 and not nowhere.exists()
    capsys.readouterr()

    mistyped = PHASE.replace("_", "", 1)
    code, text = said(tree, capsys, mistyped)
    assert (code, text) == (2, f"labkit: there is no assignment '{mistyped}'; did you mean {PHASE}?")
    code, text = said(tree, capsys, "../x")
    assert (code, text) == (2, f"labkit: there is no assignment '../x'; there are: {PHASE}")
    code, text = said(tree, capsys, PHASE)
    command = f"nbgrader generate_assignment {PHASE} --course-dir={tree}"
    assert (code, text) == (2, f"labkit: {PHASE} is not released; `{command}` does it, in the lab's folder autograder/")

    Course(tree).release(PHASE)
    code, text = said(tree, capsys, PHASE)
    assert code == 0 and "Nothing to grade" in text and f"`nbgrader collect {PHASE}`" in text


def test_a_rubric_that_python_cannot_read_is_named(tree: Path) -> None:
    """Learners' modules have the same name as the rubric; only the folder differs."""
    rubric = tree / "autograder" / "course" / NAME / "rubric.py"
    rubric.write_text("def broken(:\n")
    with pytest.raises(BrokenRubric) as caught:
        hidden_rubric(catalogue.find(NAME))
    assert str(rubric) in str(caught.value) and "SyntaxError" in str(caught.value) and "line 1" in str(caught.value)


def shown(*lines: NotebookSummary) -> str:
    file = io.StringIO()
    Show(Console(file=file, width=300)).end(PHASE, lines)
    return file.getvalue()


def test_the_table_says_whose_marks_these_are() -> None:
    text = shown(NotebookSummary(ADA, GRADED, 1.0, 3.0, by_hand=2.5))
    assert "2.5" in text and "set by hand, the judge says 1" in text and "look again" not in text
    assert "judged anew since then, look again" in shown(
        NotebookSummary(ADA, GRADED, 1.0, 3.0, by_hand=2.5, look_again=True)
    )


def test_the_table_says_why_there_are_no_points() -> None:
    stopped = CheckResult("sum", 2, 0, seen="hidden inputs", stopped="SyntaxError at x.py, line 3")
    verdict = Verdict({"grade": Report(NAME, [stopped], seed=1)}, ("A note.",))
    assert why_nothing(verdict) == "SyntaxError at x.py, line 3"
    assert (
        why_nothing(Verdict({"grade": Report(NAME, [CheckResult("sum", 2, 0)], seed=0)}, ("Odd.", "Empty.")))
        == "Empty."
    )
    text = shown(NotebookSummary(ADA, GRADED, 0.0, 3.0, why="SyntaxError at x.py, line 3\x1b[2J"))
    assert "graded: SyntaxError at x.py, line 3\\x1b[2J" in text


def test_the_table_says_when_a_time_of_submission_is_not_its_own() -> None:
    problem = "`timestamp.txt` has no valid time: the time of its receipt counts."
    assert f"graded; {problem}" in shown(NotebookSummary(ADA, GRADED, 3.0, 3.0, time_problem=problem))
    assert f"graded: no cells; {problem}" in shown(
        NotebookSummary(ADA, GRADED, 0.0, 3.0, why="no cells", time_problem=problem)
    )


def test_the_bar_names_whom_it_waits_for_when_its_guess_was_wrong() -> None:
    file, now = io.StringIO(), [0.0]
    show = Show(Console(file=file, width=200, force_terminal=True), clock=lambda: now[0])
    grace, eve = (GradingTask(name, PHASE, NOTEBOOK) for name in ("grace\x1b[2J", "eve"))
    with show:
        assert show.left() == ""
        show.start([ADA, grace, eve])
        assert show.left() == ""
        now[0] = 10.0
        show.line(NotebookSummary(ADA, GRADED, 1.0, 3.0))
        assert show.left() == "left: 0:00:20"
        now[0] = 25.0
        assert show.left() == "left: 0:00:05"
        now[0] = 31.0
        assert show.left() == "waiting for grace\\x1b[2J, eve"
        show.line(NotebookSummary(grace, GRADED, 1.0, 3.0))
        show.line(NotebookSummary(eve, GRADED, 1.0, 3.0))
        assert show.left() == ""
    assert "getting ready" in file.getvalue() and "3/3" in file.getvalue()


def test_the_bar_says_at_once_that_it_stops() -> None:
    file = io.StringIO()
    with Show(Console(file=file, width=200, force_terminal=True)) as show:
        show.start([ADA])
        show.stopping()
    assert "stopping" in file.getvalue()


def test_what_to_do_next() -> None:
    assert f"Next: `nbgrader generate_feedback {PHASE} --force`" in shown(NotebookSummary(ADA, GRADED, 1.0, 3.0))
    assert f"`labkit autograde {PHASE} --retry`" in shown(NotebookSummary(ADA, ERROR, reason="the disk is full"))
