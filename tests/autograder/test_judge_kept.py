"""Ranks are reused for the calls of one check: leftovers of one check earn nothing in another."""

from __future__ import annotations

from pathlib import Path

import pytest
import second_exercise

from autograder.judge import Judge
from autograder.sandbox import Sandbox
from labkit import catalogue

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

COUNTS = second_exercise.SOLUTION.replace(
    "    return received",
    "    import sys\n    sys.calls = getattr(sys, 'calls', 0) + 1\n    return torch.full((1,), sys.calls)",
)
"""Returns how often this process was called."""

RUBRIC = '''"""Checks that say how often the ranks' processes had been called."""

import torch

from labkit.checks import check, expect


def calls(submission, ranks, *inputs):
    for tensor in inputs:
        run = ranks(2).call(submission.pass_it_on, [tensor] * 2)
    return run.values[0].item()


@check(points=1, title="the first", look_at="-")
def first(submission, ranks, draw):
    expect(calls(submission, ranks, torch.arange(3.0))).equals(1)


@check(points=1, title="of a check before", look_at="-")
def second(submission, ranks, draw):
    expect(calls(submission, ranks, torch.arange(4.0))).equals(2)


@check(points=1, title="of this check, with other tensors", look_at="-")
def other(submission, ranks, draw):
    expect(calls(submission, ranks, torch.arange(3.0), torch.arange(4.0))).equals(2)


@check(points=1, title="of this check, with the same numbers", look_at="-")
def same(submission, ranks, draw):
    expect(calls(submission, ranks, torch.arange(4.0), torch.arange(4).reshape(2, 2))).equals(2)


@check(points=1, title="on fresh ranks, though there was another call", look_at="-")
def fresh(submission, ranks, draw):
    expect(calls(submission, ranks, torch.arange(3.0), torch.arange(4.0))).equals(1)

'''


def test_state_helps_in_no_other_check_and_harms_in_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second_exercise.add_to(tmp_path)
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    exercise = catalogue.find(second_exercise.NAME)
    (tmp_path / "autograder" / "course" / exercise.name / "rubric.py").write_text(RUBRIC)
    with Judge(Sandbox()) as judge:
        report = judge.judge(exercise, COUNTS)
    assert [result.earned for result in report.results] == [1, 0, 1, 0, 1], report.text()
