"""Checks as learners start them: the graded cell and the shell."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from checks.course import SOLUTION
from IPython.core.formatters import DisplayFormatter
from nbformat.v4 import new_output
from nbgrader.utils import get_partial_grade

from labkit import catalogue
from labkit.checks import check_exercise, command, grade
from labkit.checks.ranks import KINDS
from labkit.clusters import Cluster
from labkit.clusters.forkserver.client import ForkServer
from labkit.clusters.local import local
from labkit.progress import recorded

pytestmark = pytest.mark.usefixtures("course")


def test_grade_gives_points_and_prints_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    catalogue.find("largest").save(SOLUTION.replace("MAX", "MIN"))
    assert grade("largest") == 1.0
    out, err = capfd.readouterr()
    assert "FAIL 0/2   the largest of all" in out
    assert "your module, on virtual ranks" in out
    # nbgrader gives 0 for a graded cell that writes there
    assert err == ""


def test_the_graded_cell_shows_the_report_and_nbgrader_reads_the_points_from_it(course: Path) -> None:
    points = grade("largest")
    formatted, _ = DisplayFormatter().format(points)
    assert "to do" in formatted["text/html"] and "TODO 1 in largest is not written yet" in formatted["text/html"]
    output = new_output("execute_result", formatted, execution_count=1)
    assert get_partial_grade(output, max_points=3) == 0.0
    catalogue.find("largest").save(SOLUTION.replace("MAX", "MIN"))
    formatted, _ = DisplayFormatter().format(grade("largest"))
    output = new_output("execute_result", formatted, execution_count=1)
    assert get_partial_grade(output, max_points=3) == 1.0


def test_a_check_that_cannot_read_the_solution_either_is_an_error_of_the_lab(
    course: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = course / "labkit/course/phase1_small/largest/checks.py"
    path.write_text(path.read_text().replace("    expect(len(", "    run.values[0].item().x\n    expect(len("))
    catalogue.find("largest").save(SOLUTION.replace("MAX", "MIN"))
    assert grade("largest") == 0.0
    out, _ = capfd.readouterr()
    assert "FAIL 0/2   the largest of all" in out
    assert "lab error  one collective" in out and "the lab failed; this costs no points (RuntimeError)" in out


@pytest.fixture
def no_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Processes of ranks cannot be started here."""
    forkserver = ForkServer(command_prefix=["sh", "-c", "echo no room >&2; exit 1", "--"])

    def make(*, nnodes: int, nproc_per_node: int, **_: Any) -> Cluster:
        return local(nproc_per_node=nnodes * nproc_per_node, forkserver=forkserver)

    monkeypatch.setitem(KINDS, "local", make)
    yield
    forkserver.close()


@pytest.mark.usefixtures("no_room")
def test_ranks_that_cannot_be_started_are_the_lab_s_failure_and_cost_nothing(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    largest = catalogue.find("largest")
    largest.save(SOLUTION)
    assert command.main("largest") == 0
    before = recorded(largest).checked
    capfd.readouterr()
    assert command.main("largest", cluster="local") == command.main("all", cluster="local") == 2
    out, err = capfd.readouterr()
    why = "the lab failed; this costs no points (the process that starts the ranks died: no room)"
    assert out.count(why) == 2 and out.count("lab error  ") == 6 and "as above" in out
    assert "0 of 0 points (your module, on local ranks); 7 more are not counted: the lab failed; this" in out
    assert "Traceback" not in out + err
    assert before is not None and recorded(largest).checked == before
    # the graded cell, and %check
    monkeypatch.setitem(KINDS, "virtual", KINDS["local"])
    largest.save(SOLUTION.replace("MAX", "MIN"))
    assert grade("largest") == 0.0
    out, err = capfd.readouterr()
    assert "lab error  the largest of all" in out and err == "", "nbgrader gives 0 for a graded cell that writes there"


def test_checks_before_the_lab_failed_keep_their_results(
    course: Path, no_room: None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = course / "labkit/course/phase1_small/largest/checks.py"
    starts_ranks = "from labkit.checks.ranks import KINDS\n    from labkit.clusters import Job\n    "
    starts_ranks += "KINDS['local'](nnodes=1, nproc_per_node=1).run(Job(source='1'))\n"
    path.write_text(path.read_text().replace("    expect(len(", f"    {starts_ranks}    expect(len("))
    catalogue.find("largest").save(SOLUTION)
    assert command.main("largest") == 1, "one check was judged"
    out = capsys.readouterr().out
    assert "ok   2/2   the largest of all" in out and "lab error  one collective" in out
    assert "the ranks died: no room)" in out


def test_the_same_checks_on_real_processes() -> None:
    report = check_exercise(catalogue.find("largest"), SOLUTION, cluster="local")
    assert report.passed, report.text()


def test_the_shell(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    right = tmp_path / "right.py"
    right.write_text(SOLUTION)
    assert command.main("largest", file=right) == 0
    assert "largest: 3 of 3 points (your file, on virtual ranks)" in capsys.readouterr().out
    assert command.main("largest") == 1
    assert "you have not saved a module yet" in capsys.readouterr().out
    catalogue.find("largest").save(SOLUTION)
    assert command.main("largest") == 0
    way_on = "every check passes\nthis is the last exercise of the course\n"
    assert f"(your module, on virtual ranks)\n{way_on}" in capsys.readouterr().out


def test_the_shell_checks_what_is_begun_of_a_phase(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main("phase1_small") == 1
    assert capsys.readouterr().out.startswith("largest: not started: run its notebook, or copy templates/phase1_small/")
    catalogue.find("largest").save(SOLUTION)
    assert command.main("phase1_small") == 0
    assert command.main("all") == 0
    assert capsys.readouterr().out.endswith("\n\nlargest: 3 of 3 points (your module, on virtual ranks)\n")


def test_the_shell_with_nothing_to_check(capsys: pytest.CaptureFixture[str], course: Path) -> None:
    assert command.main("largset") == 2
    assert "did you mean largest?" in capsys.readouterr().err
    assert command.main("largest", cluster="slurn") == 2
    assert "unknown cluster 'slurn'" in capsys.readouterr().err
    (course / "labkit/course/phase1_small/largest/checks.py").unlink()
    assert command.main("largest") == 2
    assert "has no checks" in capsys.readouterr().err
