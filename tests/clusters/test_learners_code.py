"""An error points at the learner's own line, even if it was raised in library code."""

from __future__ import annotations

import sysconfig

import pytest
import torch

from labkit import Job, catalogue, virtual
from labkit.clusters.program import is_learners

HEAD = """\
import dataclasses, attrs, numpy, torch

@dataclasses.dataclass(frozen=True)
class Message:
    samples: int = 0

@attrs.define
class Point:
    x: int = attrs.field(validator=attrs.validators.instance_of(int))

message = Message()
product = torch.fx.symbolic_trace(lambda x: x @ x)
"""


@pytest.mark.parametrize(
    ("statement", "error"),
    [
        ("message.samples += 1", "FrozenInstanceError"),
        ("Point('x')", "TypeError"),
        ("exec('1 / 0')", "ZeroDivisionError"),
        ("eval('1 / 0')", "ZeroDivisionError"),
        ("numpy.random.randint(5, 0)", "ValueError"),
        ("product(torch.ones(2, 3))", "RuntimeError"),
        ("numpy.concatenate([[[1]], [1]])", "ValueError"),
        ("sorted([1, 2], key=lambda x: x / 0)", "ZeroDivisionError"),
        ("import importlib; importlib.import_module('no_such_module')", "ModuleNotFoundError"),
    ],
)
def test_an_error_points_at_the_learners_line(statement: str, error: str) -> None:
    source = HEAD + statement
    run = virtual(nproc_per_node=1).run(Job(source=source, filename="Cell In[3]"))
    (rank,) = run.ranks
    assert rank.error is not None
    line = len(source.splitlines())
    assert (rank.error.type, rank.error.where) == (error, f"Cell In[3], line {line}")
    assert rank.error.frames[-1][3] == statement


def test_what_to_do_about_a_frozen_object_is_said() -> None:
    run = virtual(nproc_per_node=1).run(Job(source=f"{HEAD}message.samples += 1", filename="Cell In[3]"))
    assert "dataclasses.replace(old, name=value)" in run.diagnosis()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("torch.distributed.allreduce", "has no attribute 'allreduce'; did you mean 'all_reduce'?"),
        ("mesage", "name 'mesage' is not defined; did you mean 'message'?"),
        ("torch.nothing_like_that", "has no attribute 'nothing_like_that'"),
        ("prnt(message)", "name 'prnt' is not defined; did you mean 'print'?"),
    ],
)
def test_a_misspelt_name_comes_with_the_one_that_was_meant(statement: str, message: str) -> None:
    (rank,) = virtual(nproc_per_node=1).run(Job(source=HEAD + statement, filename="Cell In[3]")).ranks
    assert rank.error is not None and rank.error.message.endswith(message)


def test_a_none_that_an_error_is_about_is_shown_and_no_other() -> None:
    source = "result = [].sort()\nresult + 1", "other = None\n1 / 0"
    runs = [virtual(nproc_per_node=1).run(Job(source=text, filename="Cell In[3]")) for text in source]
    errors = [run.ranks[0].error for run in runs]
    assert [error.locals for error in errors if error] == [(("result", "None"),), ()]


@pytest.mark.parametrize(
    "filename",
    ["Cell In[3]", "/tmp/ipykernel_12/345.py", "<ipython-input-1-abc>", "phase1_data_parallel/trainer.py",
     "/home/ada/lab/labkit_notes.py", f"{sysconfig.get_path('stdlib')}2/notes.py"],
)  # fmt: skip
def test_cells_and_files_of_their_own_are_the_learners(filename: str) -> None:
    assert is_learners(filename)


@pytest.mark.parametrize(
    "filename",
    ["<string>", "<stdin>", "<frozen importlib._bootstrap>", "<attrs generated init Point>", "<eval_with_key>.0",
     "<__array_function__ internals>", "numpy/random/mtrand.pyx", "/tmp/torchinductor_ada/ab/cabc.py",
     "/usr/lib/python3/dist-packages/numpy/core.py", "/home/ada/.local/lib/python3.11/site-packages/einops/einops.py",
     f"{sysconfig.get_path('stdlib')}/queue.py", f"{torch.__path__[0]}/_tensor.py"],
)  # fmt: skip
def test_generated_code_and_packages_are_not(filename: str) -> None:
    assert not is_learners(filename)


def test_a_gap_in_a_module_that_a_cell_uses_says_where_to_write_it() -> None:
    exercise = catalogue.find("ring_allreduce")
    cell = "import torch, torch.distributed as dist\nfrom labkit.exercises import ring_allreduce\n"
    cell += "dist.init_process_group('gloo')\nring_allreduce.ring_all_reduce(torch.ones(4))"
    job = Job(source=cell, modules={exercise.name: exercise.source("template")[0]})
    run = virtual(nproc_per_node=2).run(job)
    (hint,) = run.what_to_try()
    assert hint.startswith(
        "try: write it in the notebook of ring_allreduce, or put there what %solution ring_allreduce"
    )
