"""A course with one small exercise in a temporary tree, for tests of code that runs rubrics."""

from __future__ import annotations

from pathlib import Path

SOLUTION = '''"""Everybody learns the largest."""

import torch.distributed as dist

__all__ = ["largest"]

def largest(tensor):
    # TODO 1. Which operation?
    ### BEGIN SOLUTION
    dist.all_reduce(tensor, dist.ReduceOp.MAX)
    ### END SOLUTION
    return tensor
'''

RUBRIC = """
import torch
from labkit.checks import NotMeasurable, check, expect

HINTS = {1: ["think", "`all_reduce(tensor, MAX)`"]}


@check(points=2, todo=1, title="the largest of all", look_at="the operation")
def values(submission, ranks, draw):
    n = draw.choice([2, 3])
    inputs = draw.tensors(n, 4)
    run = ranks(n).call(submission.largest, inputs)
    expect(run.values, "largest", chunks=n).equals([torch.stack(inputs).amax(0)] * n)


@check(points=1, todo=1, title="one collective")
def collectives(ranks, submission):
    run = ranks(2).call(submission.largest, lambda rank: torch.ones(3))
    expect(len(run.trace.collectives(0)), "collectives").equals(1)


@check(points=4, todo=1, title="time")
def time(submission):
    raise NotMeasurable("no clock here")
"""


CATALOGUE = """
[[exercise]]
number = 1
name = "phase1_small/largest"
title = "The largest"
builds_on = []
minutes = 5
points = 7
"""


def write(root: Path) -> None:
    """Make the course in the folder `root`."""
    left_open = SOLUTION.replace("dist.all_reduce(tensor, dist.ReduceOp.MAX)", "raise NotImplementedError()")
    files = {
        "labkit/catalogue.toml": CATALOGUE,
        "solutions/phase1_small/largest.py": SOLUTION,
        "templates/phase1_small/largest.py": left_open,
        "labkit/course/phase1_small/largest/checks.py": RUBRIC,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
