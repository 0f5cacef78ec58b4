"""A small exercise outside the lab: exactly what an author of a new exercise has to write."""

from __future__ import annotations

from pathlib import Path

import nbformat
from event_clock import HANG_SECONDS, SAYS_IT_HANGS, takes
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from autograder.mutants.edits import edited, parsed

NAME = "phase1_data_parallel/pass_it_on"
PHASE, NOTEBOOK = "phase1_data_parallel", "101_pass_it_on"

SOLUTION = '''"""Each rank hands its tensor to its right neighbour."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["pass_it_on"]


def pass_it_on(tensor: Tensor) -> Tensor:
    """Send `tensor` to the right neighbour; return what came from the left one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    ### BEGIN SOLUTION
    received = torch.empty_like(tensor)
    sending = dist.isend(tensor, (rank + 1) % size)
    dist.recv(received, (rank - 1) % size)
    sending.wait()
    ### END SOLUTION
    return received
'''

SLOW_SOLUTION = SOLUTION.replace("    ### BEGIN", f"    if rank == 0: {takes(HANG_SECONDS / 3)}\n    ### BEGIN")
"""Correct, after more than a quarter of the time-out of a call by `EventClock`."""

HANGS = SOLUTION.replace("    ### BEGIN", f"    {SAYS_IT_HANGS}\n    while True: pass\n    ### BEGIN")

VISIBLE_CHECKS = '''"""Visible checks of pass_it_on."""

import torch

from labkit.checks import check, expect

HINTS = {1: ["Who sends first?", "isend does not wait."]}


@check(points=3, title="the left neighbour's tensor arrives", look_at="the rank that is received from")
def arrives(submission, ranks):
    run = ranks(3).call(submission.pass_it_on, [torch.full((2,), float(rank)) for rank in range(3)])
    expect(run.values).equals([torch.full((2,), float((rank - 1) % 3)) for rank in range(3)])
'''

RUBRIC = '''"""Hidden rubric of pass_it_on."""

from labkit.checks import check, expect


@check(points=2, title="the tensor of the neighbour is returned", look_at="the rank that is received from")
def values(submission, ranks, draw):
    inputs = draw.tensors(4, draw.randrange(3, 9))
    run = ranks(4).call(submission.pass_it_on, inputs)
    expect(run.values, "returned").equals([inputs[rank - 1] for rank in range(4)])


@check(points=1, title="one message from each rank", look_at="how often a rank sends")
def messages(submission, ranks, draw):
    inputs = draw.tensors(3, 5)
    run = ranks(3).call(submission.pass_it_on, inputs)
    expect(run.values, "returned").equals([inputs[rank - 1] for rank in range(3)])
    expect([run.trace.messages_sent(rank) for rank in range(3)], "messages").equals([1, 1, 1])
'''

TWICE = """
        Each rank sends its tensor twice.

          sending.wait()
        + again = dist.isend(tensor, (rank + 1) % size)
        + dist.recv(received, (rank - 1) % size)
        + again.wait()
"""

MUTANTS = f'''"""Mutants of pass_it_on."""

from autograder.mutants import Mutant

MUTANTS = {{
    "sends_twice": Mutant(2, loses={{"messages"}}).edited("""{TWICE}"""),
}}
'''

SENDS_TWICE = edited(SOLUTION, parsed(TWICE)[1])


FAR = "phase1_data_parallel/pass_it_far"

FAR_SOLUTION = '''"""Each rank's tensor goes some steps to the right."""

from __future__ import annotations

from torch import Tensor

from labkit.exercises import pass_it_on

__all__ = ["pass_it_far"]


def pass_it_far(tensor: Tensor, steps: int) -> Tensor:
    """Return what the rank `steps` to the left had."""
    ### BEGIN SOLUTION
    for _ in range(steps):
        tensor = pass_it_on.pass_it_on(tensor)
    ### END SOLUTION
    return tensor
'''

FAR_CHECKS = '''"""Checks of pass_it_far."""

from labkit.checks import Args, check, expect


@check(points=2, title="two steps", look_at="how often it is passed on")
def two_steps(submission, ranks, draw):
    inputs = draw.tensors(3, 4)
    run = ranks(3).call(submission.pass_it_far, [Args(tensor, 2) for tensor in inputs])
    expect(run.values, "returned").equals([inputs[rank - 2] for rank in range(3)])

'''


def notebook(exercise: str, module: str, points: float) -> NotebookNode:
    """Return an exercise's notebook, reduced to the cells that matter for grading."""
    short = exercise.split("/")[1]
    plain = {"schema_version": 3, "grade": False, "solution": False, "locked": False, "task": False}
    solution = {"nbgrader": {**plain, "grade_id": short, "solution": True}}
    graded = {"nbgrader": {**plain, "grade_id": f"grade_{short}", "grade": True, "locked": True, "points": points}}
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    return new_notebook(
        metadata={"kernelspec": kernel},
        cells=[
            new_markdown_cell(f"# {short}", id="title"),
            new_code_cell("%load_ext labkit\n%cluster local --nproc-per-node 4", id="head"),
            new_code_cell(f"%%exercise {exercise}\n{module}", id="exercise", metadata=solution),
            new_code_cell(f"%check {short}", id="check"),
            new_code_cell(f'grade("{short}")', id="grade", metadata=graded),
        ],
    )


def enter(tree: Path, number: int, name: str, builds_on: str, points: int) -> None:
    """Add an exercise to the catalogue of a course tree."""
    path = tree / "labkit" / "catalogue.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(
            f'\n[[exercise]]\nnumber = {number}\nname = "{name}"\ntitle = "{name.split("/")[1]}"\n'
            f"builds_on = [{builds_on}]\nminutes = 5\npoints = {points}\n"
        )


def add_third_to(tree: Path) -> None:
    """Write the files of the exercise that builds on the other one, without a notebook."""
    enter(tree, 102, FAR, '"pass_it_on"', points=2)
    files = {
        f"solutions/{FAR}.py": FAR_SOLUTION,
        f"labkit/course/{FAR}/checks.py": FAR_CHECKS,
        f"autograder/course/{FAR}/rubric.py": FAR_CHECKS,
    }
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def add_to(tree: Path) -> None:
    """Write the exercise's files into a course tree; its notebook has an empty exercise cell, for `labkit sync`."""
    files = {
        f"solutions/{NAME}.py": SOLUTION,
        f"labkit/course/{NAME}/checks.py": VISIBLE_CHECKS,
        f"autograder/course/{NAME}/rubric.py": RUBRIC,
        f"autograder/course/{NAME}/mutants.py": MUTANTS,
    }
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    enter(tree, 101, NAME, "", points=3)
    path = tree / "notebooks" / PHASE / f"{NOTEBOOK}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook(NAME, "", points=3), path)
