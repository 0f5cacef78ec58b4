"""A rubric on submissions that are correct, wrong, or hang."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from checks.course import SOLUTION
from waiting import BROKEN_SECONDS

from labkit import catalogue
from labkit.checks import NoRubric, Ranks, Report, Submission, check, load_rubric, run_checks, visible_rubric
from labkit.checks.attribution import is_of_the_lab_on_a_rank
from labkit.checks.keeping import MOST_OUTPUT_CHARACTERS
from labkit.clusters.rank_result import RankError

pytestmark = pytest.mark.usefixtures("course")


def judged(source: str, seed: int | None = None, timeout: float = BROKEN_SECONDS) -> Report:
    exercise = catalogue.find("largest")
    return run_checks(visible_rubric(exercise), Submission(exercise, source), Ranks("virtual", timeout), seed=seed)


def test_right() -> None:
    report = judged(SOLUTION)
    assert (report.earned, report.points, report.passed) == (3, 3, True)
    assert [r.skipped for r in report.results] == ["", "", "no clock here"]


def test_wrong_in_one_respect_keeps_the_rest() -> None:
    report = judged(SOLUTION.replace("MAX", "MIN"))
    assert [r.earned for r in report.results] == [0, 1, 0]
    failed = report.results[0]
    assert failed.look_at == "the operation"
    assert failed.picture is not None
    assert failed.run is not None and failed.run.ok
    # a report holds many runs: no values
    assert failed.run.values == [None] * len(failed.run.ranks)


def test_the_seed_draws_the_same_again() -> None:
    wrong = SOLUTION.replace("MAX", "MIN")
    first = judged(wrong)
    assert judged(wrong, first.seed).results[0].expected == first.results[0].expected
    assert len({judged(wrong, seed).results[0].expected for seed in range(1, 6)}) > 1


def test_an_exception_is_told_with_its_line_and_once() -> None:
    report = judged(SOLUTION.replace("dist.all_reduce(tensor, dist.ReduceOp.MAX)", "tensor.no_such_method()"))
    first, again, _ = report.results
    assert "AttributeError" in first.seen and "phase1_small/largest.py, line 10" in first.seen
    assert again.seen == "AttributeError at largest.py, line 10, as above"


def test_the_name_of_an_exception_carries_nothing_out() -> None:
    source = SOLUTION.replace(
        "dist.all_reduce(tensor, dist.ReduceOp.MAX)", "raise type(f'Seen{tensor.sum()}', (Exception,), {})"
    )
    hidden = judged(source).without_details()
    assert hidden.results[0].seen == "an exception at phase1_small/largest.py, line 10"
    assert "Seen" not in hidden.text()


def test_a_module_that_does_not_parse() -> None:
    report = judged(SOLUTION + "\nif:\n")
    assert report.earned == 0
    assert "SyntaxError" in report.results[0].seen


def test_one_run_of_those_that_passed_is_kept_for_its_picture() -> None:
    talks = "dist.send(tensor, 1) if dist.get_rank() == 0 else dist.recv(tensor, 0) if dist.get_rank() == 1 else None"
    report = judged(SOLUTION.replace("    return tensor", f"    {talks}\n    return tensor"))
    kept = [result.run for result in report.results if result.passed and result.run]
    assert len(kept) == 1 and kept[0].trace.messages_sent(0) == 1


def test_what_a_report_keeps_of_a_run_is_bounded() -> None:
    much = "    for _ in range(12_000):\n        dist.all_reduce(tensor)\n    print('x' * 1_000_000, 'the end')\n"
    report = judged(SOLUTION.replace("    return tensor", f"{much}    raise ValueError('y' * 1_000_000)"))
    run = report.results[0].run
    assert run is not None and len(run.trace.events) == 0 and run.trace.world_size == len(run.ranks)
    for rank in run.ranks:
        assert len(rank.output) == MOST_OUTPUT_CHARACTERS and rank.output.endswith("the end\n")
        assert rank.error is not None and len(rank.error.message) < 100_000


def test_code_that_hangs_costs_time_once() -> None:
    report = judged(SOLUTION.replace("    return tensor", "    while True:\n        pass"), timeout=2.0)
    assert report.earned == 0
    assert "timeout after 2 s" in report.results[0].seen
    # the second check waits a quarter of that
    assert report.results[1].run is not None and report.results[1].run.stopped == "timeout after 0.5 s"


def test_who_is_wrong_already_in_an_easier_check_is_sent_there(course: Path) -> None:
    path = course / "labkit/course/phase1_small/largest/checks.py"
    pairs = """
@check(points=1, todo=1, title="the largest of two", look_at="the pair")
def pairs(submission, ranks):
    run = ranks(2).call(submission.largest, lambda rank: torch.full((2,), float(rank)))
    expect(run.values, "largest", easier=["values"]).equals([torch.ones(2)] * 2)
"""
    path.write_text(path.read_text() + pairs)
    first, *_, last = judged(SOLUTION.replace("MAX", "MIN")).results
    assert first.look_at == "the operation" and (first.cause, last.cause) == ("", "the largest of all")
    assert last.look_at == "“the largest of all” first: it fails, too, and this needs it"
    *_, last = judged(SOLUTION.replace("return tensor", "return tensor if tensor.numel() > 2 else tensor + 1")).results
    assert (last.look_at, last.cause, last.earned) == ("the pair", "", 0)


def test_a_value_that_the_check_cannot_read_costs_its_points(course: Path) -> None:
    path = course / "labkit/course/phase1_small/largest/checks.py"
    path.write_text(
        path.read_text().replace("expect(len(run.trace", "run.values[0].item().x\n    expect(len(run.trace")
    )
    report = judged(SOLUTION)
    assert [r.earned for r in report.results] == [2, 0, 0]
    assert "RuntimeError" in report.results[1].fault
    assert "Traceback" not in report.text()


def with_line(course: Path, line: str, before: str = "    expect(len(run.trace") -> None:
    """Put a line into the check `one collective`."""
    path = course / "labkit/course/phase1_small/largest/checks.py"
    path.write_text(path.read_text().replace(before, f"    {line}\n{before}"))


@pytest.mark.parametrize(
    "line",
    [
        pytest.param("raise OSError(28, 'No space left on device')", id="the machine"),
        pytest.param("expekt(run)", id="a name that does not exist"),
        pytest.param("import labkit.no_such_module", id="a module that does not exist"),
        pytest.param("ranks(2).call(submission.largest, [torch.ones(1)])", id="ranks that cannot be run so"),
    ],
)
def test_an_error_of_the_lab_costs_no_points_and_blames_nothing_of_the_module(course: Path, line: str) -> None:
    with_line(course, line)
    report = judged(SOLUTION)
    failed = report.results[1]
    assert "the lab failed; this costs no points" in failed.seen and failed.fault
    assert failed.look_at == "run it again; if the lab fails again, show this to your instructor"
    assert (report.earned, report.points, report.all_points, report.passed) == (2, 2, 7, False)
    shown = report.text()
    assert "lab error  one collective" in shown and "FAIL" not in shown and "Traceback" not in shown
    assert "2 of 2 points; 1 more are not counted: the lab failed; this costs no points" in shown
    assert "lab error" in report._repr_html_() and "failed</b>" not in report._repr_html_()


def test_a_rank_that_fails_in_the_lab_is_an_error_of_the_lab_and_in_a_given_function_it_is_not(course: Path) -> None:
    lab = RankError("KeyError", "3", traceback='  File "/lab/labkit/clusters/run.py", line 7, in run\n    x[3]\n')
    assert is_of_the_lab_on_a_rank(lab)
    line = ("phase1_small/largest.py", 10, "largest", "check(3)")
    assert not is_of_the_lab_on_a_rank(replace(lab, frames=(line,))), "their line passed nonsense on"
    given = lab.traceback.replace("clusters/run.py", "course/phase1_small/largest/given.py")
    assert not is_of_the_lab_on_a_rank(replace(lab, traceback=given))
    by_check = '  File "<checks>/scenarios.py", line 2, in f\n    f(None)\n'
    assert not is_of_the_lab_on_a_rank(replace(lab, traceback=by_check + lab.traceback))
    assert not is_of_the_lab_on_a_rank(replace(lab, type="DeadlockError"))


@pytest.mark.parametrize(
    "source",
    [
        "x = 1\n",
        "largest = 3\n",
        "def largest(): pass\n",
        "def largest(tensor:\n",
        "raise SystemExit(2)\n",
        "def largest(tensor): return lambda: 0\n",
        "def largest(tensor): yield tensor\n",
        "def largest(tensor): return open('/dev/null')\n",
        "import torch.distributed as dist\ndist.init_process_group = None\ndef largest(tensor): return tensor\n",
        "class Own(Exception):\n    def __str__(self): raise ValueError\ndef largest(tensor): raise Own\n",
    ],
)
def test_a_module_that_cannot_be_called_or_read_is_not_the_lab_s_fault(source: str) -> None:
    report = judged(source)
    assert report.earned == 0 and not [result.fault for result in report.results if result.of_the_lab]


def test_only_public_names_can_be_called() -> None:
    submission = Submission(catalogue.find("largest"), SOLUTION)
    with pytest.raises(AttributeError, match="no public name 'dist'"):
        submission.dist  # noqa: B018


def test_nothing_of_the_submission_is_run_here(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    judged(f"import os\nopen({str(mark)!r}, 'w').write(str(os.getpid()))\n" + SOLUTION)
    import os

    assert mark.read_text() != str(os.getpid())


def test_a_check_says_what_it_cannot_be_given() -> None:
    with pytest.raises(ValueError, match="check judge has unknown parameters cluster; known: submission, ranks, draw"):

        @check(points=1, title="x")
        def judge(cluster: object) -> None: ...


def test_a_rubric_that_is_missing_or_empty(tmp_path: Path) -> None:
    exercise = catalogue.find("largest")
    with pytest.raises(NoRubric, match="is missing"):
        load_rubric(exercise, tmp_path / "none.py")
    (tmp_path / "empty.py").write_text("")
    with pytest.raises(NoRubric, match="defines none with @check"):
        load_rubric(exercise, tmp_path / "empty.py")


def test_bad_requests_for_ranks() -> None:
    with pytest.raises(ValueError, match="unknown cluster 'slurn'"):
        Ranks("slurn")
    with pytest.raises(ValueError, match="world_size must be a multiple of nproc_per_node=4, got 6"):
        Ranks()(6, nproc_per_node=4)
