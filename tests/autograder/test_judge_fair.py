"""Circumstances beyond a submission's control cost it no marks: earlier exercises, chance, the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import second_exercise
import torch
from event_clock import HANG_SECONDS, SAYS_IT_HANGS, ByEvents
from nbformat import NotebookNode

from autograder.grading import builds_on, judge_notebook
from autograder.judge import Judge
from autograder.sandbox import Sandbox, Usage
from autograder.submission_sandbox import SubmissionSandbox
from labkit import catalogue
from labkit.checks import Budget, CannotJudge, CheckFailed, CheckResult, Patience, Ranks, Submission, check_exercise
from labkit.clusters import RankResult, Run
from labkit.clusters.forkserver.client import ForkServer

sandboxed = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

RIGHT, FAR = second_exercise.SOLUTION, second_exercise.FAR
WRONG = RIGHT.replace("return received", "return tensor")
USES = second_exercise.FAR_SOLUTION


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    second_exercise.add_to(tmp_path)
    second_exercise.add_third_to(tmp_path)
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    monkeypatch.setenv("LABKIT_WORKSPACE", str(tmp_path / "workspace"))
    return tmp_path


def far_notebook(module: str) -> NotebookNode:
    return second_exercise.notebook(FAR, module, points=2)


@sandboxed
def test_a_module_of_ones_own_is_used_where_it_works_and_the_solution_where_not(tree: Path) -> None:
    assert builds_on(far_notebook(USES)) == {second_exercise.NAME}
    # the output shows whose module was used: this one is correct, but not the solution
    told = RIGHT.replace("return received", "print('mine')\n    return received")
    seen = USES.replace("return tensor", "return tensor if hasattr(pass_it_on, 'MINE') else tensor + 1")
    for own, module, marks, note in (
        (told + "\nMINE = True\n", seen, 2.0, "this builds on your own pass_it_on."),
        (WRONG, USES, 2.0, "this builds on the solution of pass_it_on: your own fails its visible checks."),
        (None, seen, 0.0, "this builds on the solution of pass_it_on: you have not written your own."),
    ):
        earlier = {} if own is None else {second_exercise.NAME: own}
        verdict = judge_notebook(far_notebook(module), Sandbox(), earlier=earlier)
        assert verdict.reports["grade_pass_it_far"].earned == marks, verdict.reports["grade_pass_it_far"].text()
        assert any(note in said for said in verdict.notes), verdict.notes


def test_the_learners_own_checks_use_the_same_stand_ins(tree: Path) -> None:
    catalogue.find(FAR).save(USES)
    catalogue.find(second_exercise.NAME).save(WRONG)
    report = check_exercise(catalogue.find(FAR))
    assert report.passed and ": your own fails its visible checks" in report.title
    catalogue.find(second_exercise.NAME).save(RIGHT)
    assert "this builds on your own pass_it_on" in check_exercise(catalogue.find(FAR)).title


@sandboxed
def test_what_fails_by_chance_is_run_again_and_said(tree: Path) -> None:
    # the first call in a sandbox succeeds, every other one hangs; isolated ranks would see no trace of earlier ones
    chance = f"    while __import__('os').path.exists('/tmp/been'): {SAYS_IT_HANGS}\n"
    module = RIGHT.replace("    ### BEGIN", chance + "    ### BEGIN")
    module = module.replace("    return", "    if rank == 0: open('/tmp/been', 'w')\n    return")
    with Judge(Sandbox(apart=False, runner=ByEvents), timeout=HANG_SECONDS) as judge:
        report = judge.judge(catalogue.find(second_exercise.NAME), module)
    first, second = report.results
    assert (first.earned, first.retried) == (2.0, "")
    assert second.retried == "failed at first, then passed twice: it counts" and second.earned == 1.0
    assert "it counts" in report.text()


@sandboxed
def test_what_hangs_is_given_up_after_two_calls_and_names_the_line(tree: Path) -> None:
    rubric = tree / "autograder" / "course" / second_exercise.NAME / "rubric.py"
    more = "\n\n@check(points=1, title='{0}')\ndef {0}(submission, ranks):\n    ranks(2).call(submission.pass_it_on, "
    more += "lambda rank: __import__('torch').ones(2))\n"
    rubric.write_text(rubric.read_text() + more.format("third") + more.format("fourth"))
    hangs = f"    if rank == 1: {SAYS_IT_HANGS}\n    while rank == 1: pass\n"
    module = RIGHT.replace("    ### BEGIN", f"{hangs}    ### BEGIN")
    with Judge(Sandbox(runner=ByEvents), timeout=HANG_SECONDS) as judge:
        report = judge.judge(catalogue.find(second_exercise.NAME), module)
    assert report.earned == 0
    first, second, third, fourth = report.results
    line = module.splitlines().index("    while rank == 1: pass") + 1
    assert first.stopped.startswith("timeout at") and f"line {line}" in first.stopped
    assert first.retried == second.retried == "failed in a fresh sandbox, too"
    assert second.run is not None and second.run.stopped == f"timeout after {HANG_SECONDS / 4:g} s"
    # not run at first, and then with several times the time that the solution needs
    for result in (third, fourth):
        assert result.retried == "run later, in a fresh sandbox" and result.run is not None
        assert result.run.stopped.startswith("timeout after")


@sandboxed
def test_a_hang_in_the_first_checks_costs_no_mark_of_the_others(tree: Path) -> None:
    module = RIGHT.replace("    ### BEGIN", f"    while tensor.numel() > 5: {SAYS_IT_HANGS}\n    ### BEGIN")
    rubric = tree / "autograder" / "course" / second_exercise.NAME / "rubric.py"
    check = "\n\n@check(points=1, title='{0}')\ndef {0}(submission, ranks):\n    ranks(2).call(submission.pass_it_on, "
    check += "lambda rank: __import__('torch').ones({1}))\n"
    hidden = rubric.read_text().partition("@check")
    rubric.write_text(hidden[0] + check.format("large", 6) + check.format("larger", 7) + "".join(hidden[1:]))
    rubric.write_text(rubric.read_text().replace("draw.randrange(3, 9)", "3"))
    with Judge(Sandbox(runner=ByEvents), timeout=HANG_SECONDS) as judge:
        report = judge.judge(catalogue.find(second_exercise.NAME), module)
    assert [result.passed for result in report.results] == [False, False, True, True], report.text()
    assert [result.retried for result in report.results[2:]] == ["run later, in a fresh sandbox"] * 2


@sandboxed
def test_where_the_solution_is_too_slow_there_is_no_mark_until_it_is_not(tree: Path) -> None:
    exercise = catalogue.find(second_exercise.NAME)
    solution = tree / "solutions" / f"{second_exercise.NAME}.py"
    solution.write_text(second_exercise.SLOW_SOLUTION)
    too_slow = pytest.raises(CannotJudge, match="this machine is too slow at the moment")
    with too_slow, Judge(Sandbox(runner=ByEvents), timeout=HANG_SECONDS) as judge:
        judge.judge(exercise, second_exercise.HANGS)
    solution.write_text(RIGHT)
    with Judge(Sandbox(runner=ByEvents), timeout=HANG_SECONDS) as judge:
        assert judge.judge(exercise, second_exercise.HANGS).earned == 0


OUT_OF_FILES = """

@check(points=1, title="opens files")
def opens_files(submission, ranks):
    here = Path(__file__).with_suffix(".tries")
    tries = len(here.read_text()) if here.exists() else 0
    here.write_text("x" * (tries + 1))
    if tries in FAILS:
        raise OSError(24, "Too many open files")
    run = ranks(2).call(submission.pass_it_on, [__import__("torch").ones(1)] * 2)
    if "twice" in run.ranks[0].output:
        raise MemoryError
"""


@sandboxed
def test_an_error_of_the_machine_where_it_is_judged_is_nobodys_marks(tree: Path) -> None:
    exercise = catalogue.find(second_exercise.NAME)
    rubric = tree / "autograder" / "course" / second_exercise.NAME / "rubric.py"
    text = f"from pathlib import Path\n{rubric.read_text()}{OUT_OF_FILES}"

    def judged(fails: str, module: str) -> CheckResult:
        rubric.with_suffix(".tries").unlink(missing_ok=True)
        rubric.write_text(text.replace("FAILS", fails))
        with Judge(Sandbox()) as judge:
            return judge.judge(exercise, module).results[-1]

    once = judged("[0]", RIGHT)
    assert (once.earned, once.retried) == (1.0, "failed at first, then passed twice: it counts")
    with pytest.raises(CannotJudge, match="the solution fails the check 'opens files', too"):
        judged("range(99)", RIGHT)
    # for this submission only, every time: its own fault
    theirs = judged("[]", RIGHT.replace("    ### BEGIN", "    print('twice')\n    ### BEGIN"))
    assert (theirs.earned, theirs.retried) == (0.0, "failed in a fresh sandbox, too")
    assert theirs.counts and "the check could run with the solution, and not with this module" in theirs.seen


LAB_BREAKS = """

@check(points=1, title="breaks", look_at="on which side of its yield")
def breaks(submission, ranks):
    ranks(2).call(submission.pass_it_on, [__import__("torch").ones(1)] * 2)
    no_such_name
"""


@sandboxed
@pytest.mark.parametrize("module", [RIGHT, second_exercise.SENDS_TWICE], ids=["right", "wrong"])
def test_an_error_of_the_lab_gives_no_marks_and_is_named_for_the_instructor(tree: Path, module: str) -> None:
    rubric = tree / "autograder" / "course" / second_exercise.NAME / "rubric.py"
    rubric.write_text(rubric.read_text() + LAB_BREAKS)
    said = "'breaks': the lab failed; this costs no points \\(NameError\\); no marks are given until it works"
    with pytest.raises(CannotJudge, match=said), Judge(Sandbox()) as judge:
        judge.judge(catalogue.find(second_exercise.NAME), module)


def test_a_budget_bounds_all_calls_together() -> None:
    budget = Budget(10.0)
    patience = Patience(20.0, budget)
    assert patience.seconds == 10.0
    patience.note(Run([RankResult(0)]), 4.0)
    assert Patience(20.0, budget).seconds == 6.0
    patience.note(Run([RankResult(0)], stopped="timeout after 6 s"), 6.0)
    with pytest.raises(CheckFailed, match="not run: earlier calls have used up the time"):
        patience.seconds  # noqa: B018


class OtherSandbox(Sandbox):
    """Opens sandboxes without isolation, which end as instructed."""

    def __init__(self, command: tuple[str, ...] = (), ended: str = "") -> None:
        super().__init__()
        self.command, self.why, self.opened = command, ended, 0

    def open(self) -> Any:
        self.opened += 1
        return OtherInstance(ForkServer(self.command), self.why if self.opened > 1 else "")


class OtherInstance:
    def __init__(self, forkserver: ForkServer, why: str) -> None:
        self.forkserver, self._why = forkserver, why

    @property
    def ended(self) -> str:
        return self._why if self.forkserver.server.process is not None else ""

    def usage(self) -> Usage:
        return Usage()

    def seconds(self) -> float:
        return 0.0

    def close(self) -> None:
        self.forkserver.close()


def test_a_sandbox_that_breaks_is_nobodys_marks(tree: Path) -> None:
    with pytest.raises(CannotJudge, match="no rank could be started"), Judge(OtherSandbox(("false",))) as judge:
        judge.judge(catalogue.find(second_exercise.NAME), RIGHT)


def test_why_a_sandbox_was_ended_is_what_the_check_has_seen(tree: Path) -> None:
    why = "memory: 4.3 GB of all processes together, 4 GB allowed"
    sandbox = OtherSandbox(ended=why)
    sandbox.opened = 1
    submission_sandbox = SubmissionSandbox(sandbox)
    ranks = Ranks(submission_sandbox.virtual)
    submission = Submission(catalogue.find(second_exercise.NAME), RIGHT)
    run = ranks(2).attempt(submission.pass_it_on, [torch.ones(2), torch.ones(2)])
    assert run.stopped == why and why in run.diagnosis()
    submission_sandbox.close()
