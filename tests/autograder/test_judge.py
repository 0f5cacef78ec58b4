"""Modules that crash, hang, fork, pry or lie get the marks that they deserve, and leave nothing behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import second_exercise
from event_clock import HANG_SECONDS, SAYS_IT_HANGS, ByEvents

from autograder.feedback import for_learner
from autograder.judge import BrokenRubric, Judge
from autograder.sandbox import Sandbox
from labkit import catalogue
from labkit.checks import Report

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

RIGHT = second_exercise.SOLUTION


def instead(body: str) -> str:
    """Return the module with `body` in place of the solution."""
    begin, end = RIGHT.index("    received ="), RIGHT.index("    ### END")
    return RIGHT[:begin] + "".join(f"    {line}\n" for line in body.splitlines()) + RIGHT[end:]


NOISY = instead("""import sys, warnings
warnings.warn("slow")
print("debug", file=sys.stderr)
received = torch.empty_like(tensor)
sending = dist.isend(tensor, (rank + 1) % size)
dist.recv(received, (rank - 1) % size)
sending.wait()""")
LIAR = instead("""class Equal(torch.Tensor):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
received = tensor.as_subclass(Equal)""")

MODULES = {
    "noisy": (NOISY, 3.0, ""),
    "does_not_parse": (RIGHT.replace("return received", "return received)"), 0.0, "SyntaxError"),
    "raises": (instead("raise RuntimeError(str(tensor))"), 0.0, "RuntimeError"),
    "exits": (RIGHT + "\n\nimport os\nos._exit(0)\n", 0.0, ""),
    "leaves": (instead("raise SystemExit(0)"), 0.0, "returned"),
    "hangs": (instead(f"{SAYS_IT_HANGS}\nwhile True: pass"), 0.0, "timeout"),
    "hangs_through_signals": (
        instead(f"import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n{SAYS_IT_HANGS}\nwhile True: pass"),
        0.0,
        "timeout",
    ),
    "kills_all_it_can": (instead(f"import os, signal\n{SAYS_IT_HANGS}\nos.kill(-1, signal.SIGKILL)"), 0.0, ""),
    "forks_without_end": (instead(f"import os\n{SAYS_IT_HANGS}\nwhile True: os.fork()"), 0.0, ""),
    "leaves_a_daemon": (
        instead(
            f"import os, time\nif os.fork() == 0:\n    os.setsid()\n    {SAYS_IT_HANGS}\n    time.sleep(1000)\n"
            "os._exit(0)"
        ),
        0.0,
        "timeout",
    ),
    "takes_all_memory": (instead("received = torch.ones(1 << 34)"), 0.0, "RuntimeError"),
    "lies": (LIAR, 0.0, "neither a plain tensor"),
    "does_nothing": (instead("received = tensor"), 0.0, ""),
    "nothing_defined": ("x = 1\n", 0.0, "AttributeError"),
}


@pytest.fixture
def exercise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> catalogue.Exercise:
    second_exercise.add_to(tmp_path)
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    return catalogue.find(second_exercise.NAME)


def judged(exercise: catalogue.Exercise, source: str) -> Report:
    with Judge(Sandbox(processes=100, runner=ByEvents), timeout=HANG_SECONDS) as judge:
        return judge.judge(exercise, source)


@pytest.mark.parametrize("name", MODULES)
def test_a_module_gets_what_it_deserves(name: str, exercise: catalogue.Exercise) -> None:
    source, marks, reason = MODULES[name]
    report = judged(exercise, source)
    assert (report.earned, report.points) == (marks, 3.0), report.text()
    assert reason in for_learner(report).text()


def test_a_module_finds_neither_rubric_nor_solution(exercise: catalogue.Exercise) -> None:
    wanted = [str(catalogue.root() / "autograder" / "course"), str(exercise.paths["solution"])]
    spy = instead(
        f"import os\nif not any(map(os.path.exists, {wanted})): raise KeyError('nothing to see')\nreceived = 0"
    )
    report = judged(exercise, spy)
    assert all(result.stopped.startswith("KeyError") for result in report.results), report.text()


def test_feedback_tells_no_text_of_exceptions_and_no_seed(exercise: catalogue.Exercise) -> None:
    report = judged(exercise, instead("print('seen', tensor)\nraise RuntimeError(f'inputs are {tensor}')"))
    assert "inputs are" in report.text()
    shown = for_learner(report)
    for text in (shown.text().replace(shown.closing(), ""), shown._repr_html_()):
        assert "inputs are" not in text and "seen tensor" not in text
        assert f"RuntimeError at {second_exercise.NAME}.py, line " in text
    assert str(report.seed) not in shown.text()


def test_a_rubric_that_is_broken_gives_no_marks(exercise: catalogue.Exercise) -> None:
    path = catalogue.root() / "autograder" / "course" / exercise.name / "rubric.py"
    path.write_text(
        path.read_text().replace("def messages(submission, ranks, draw):", "def messages(draw):\n    1 / 0")
    )
    with pytest.raises(BrokenRubric, match="ZeroDivisionError"), Judge(Sandbox()) as judge:
        judge.judge(exercise, RIGHT)
