"""The small exercise of the class: values, traffic, order, time and in-place work are judged, in five runs."""

from __future__ import annotations

from pathlib import Path

import nbformat
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.submissions import with_module

NAME = "phase1_data_parallel/pass_around"
PHASE, NOTEBOOK = "phase1_data_parallel", "01_pass_around"
POINTS = 6.0

SOLUTION = '''"""The sum over all ranks: each passes on to its right neighbour what came from the left."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["pass_around"]


def pass_around(tensor: Tensor) -> Tensor:
    """Add up `tensor` over all ranks, in place, and return it.

    N-1 rounds; in each a rank sends one whole tensor, to its right neighbour and to nobody else.
    """
    rank, size = dist.get_rank(), dist.get_world_size()
    ### BEGIN SOLUTION
    outgoing = tensor.clone()
    for _ in range(size - 1):
        incoming = torch.empty_like(outgoing)
        sending = dist.isend(outgoing, (rank + 1) % size)
        dist.recv(incoming, (rank - 1) % size)
        sending.wait()
        tensor += incoming
        outgoing = incoming
    ### END SOLUTION
    return tensor
'''

VISIBLE_CHECKS = '''"""Visible checks of pass_around."""

import torch

from labkit.checks import check, expect


@check(points=6, title="every rank has the sum", look_at="what is passed on in each round")
def sums(submission, ranks):
    run = ranks(3).call(submission.pass_around, [torch.full((2,), float(rank)) for rank in range(3)])
    expect(run.values).equals([torch.full((2,), 3.0)] * 3)
'''

RUBRIC = '''"""Hidden rubric of pass_around."""

from labkit.checks import Alteration, check, expect
from labkit.hardware import LINKS

LINK = "ethernet-10g"
FORBIDDEN = {"torch.distributed.all_reduce", "*.allgather"}


def passed_around(submission, ranks, draw, inputs, **hardware):
    """A run in which all ranks end with the sum, and the message of one, altered on its way, has come to all others."""
    size, altered = len(inputs), draw.randrange(len(inputs))
    run = ranks(size, alteration=Alteration(altered), **hardware).call(submission.pass_around, inputs)
    wanted = [sum(inputs[1:], inputs[0].clone()) + int(rank != altered) for rank in range(size)]
    expect(run.values, "returned").equals(wanted)
    called = sorted({event.operation for event in run.trace.collectives()})
    expect(called, "library collectives called").equals([])
    return run


@check(points=2, title="every rank has the sum", look_at="what is passed on in each round")
def values(submission, ranks, draw):
    for size in draw.sample([3, 4], 2):
        passed_around(submission, ranks, draw, draw.tensors(size, draw.randrange(3, 50)))


@check(points=1, title="works in place", look_at="the object that is returned")
def in_place(submission, ranks, draw):
    run = passed_around(submission, ranks, draw, draw.tensors(3, draw.randrange(3, 50)))
    expect([result.returned_argument for result in run.ranks], "argument that is returned").equals([0, 0, 0])
    expect([result.arguments[0] for result in run.ranks], "what was given").equals(run.values)


@check(points=2, title="one tensor to the right neighbour in each round", look_at="the peer and the size of each send")
def traffic(submission, ranks, draw):
    numel = draw.randrange(3, 50)
    run = passed_around(submission, ranks, draw, draw.tensors(4, numel))
    expect([run.trace.messages_sent(rank) for rank in range(4)], "messages").equals([3] * 4)
    expect([run.trace.bytes_sent(rank) for rank in range(4)], "bytes").equals([3 * 4 * numel] * 4)
    expect([run.trace.sends_to(rank) for rank in range(4)], "neighbours").equals([{1}, {2}, {3}, {0}])


@check(points=1, title="all links are busy at once", look_at="who waits while another one sends")
def time(submission, ranks, draw):
    inputs = draw.tensors(4, draw.randrange(20_000, 30_000))
    run = passed_around(submission, ranks, draw, inputs, inter_node=LINK)
    expect(run.trace.seconds, "seconds on the virtual clock").at_most(
        2.5 * 3 * LINKS[LINK].seconds(4 * inputs[0].numel())
    )
'''


def notebook(module: str) -> NotebookNode:
    """Return the exercise's notebook, with `module` in its cell."""
    plain = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
    solution = {"nbgrader": {**plain, "grade_id": "pass_around", "solution": True}}
    graded = {"nbgrader": {**plain, "grade_id": "grade_pass_around", "grade": True, "locked": True, "points": POINTS}}
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    return new_notebook(
        metadata={"kernelspec": kernel},
        cells=[
            new_markdown_cell("# pass_around", id="title"),
            new_code_cell("%load_ext labkit\n%cluster virtual --nnodes 4", id="head"),
            new_code_cell(f"%%exercise {NAME}\n{module}", id="exercise", metadata=solution),
            new_code_cell("%check pass_around", id="check"),
            new_code_cell('grade("pass_around")', id="grade", metadata=graded),
        ],
    )


def write(folder: Path, released: NotebookNode, module: str) -> Path:
    """Put the notebook with `module` in its exercise cell into a submission's folder; return its path."""
    path = folder / f"{NOTEBOOK}.ipynb"
    nbformat.write(with_module(released, NAME, module), path)
    return path


CATALOGUE = f"""
[[exercise]]
number = 1
name = "{NAME}"
title = "pass_around"
builds_on = []
minutes = 5
points = {POINTS:g}
"""


def add_to(tree: Path) -> None:
    """Write all files of the exercise into a course tree."""
    files = {
        "labkit/catalogue.toml": CATALOGUE,
        f"solutions/{NAME}.py": SOLUTION,
        f"labkit/course/{NAME}/checks.py": VISIBLE_CHECKS,
        f"autograder/course/{NAME}/rubric.py": RUBRIC,
    }
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    path = tree / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook(SOLUTION), path)
