"""Learners' modules that import given parts by their path of the last release run, with a warning."""

from __future__ import annotations

import subprocess
import sys

import pytest

from labkit import Job, virtual

PROGRAM = """
import sys, warnings
warnings.simplefilter("error" if "error" in sys.argv else "default")
{statement}
print({shown})
"""


def ran(statement: str, shown: str, *words: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(statement=statement, shown=shown)
    return subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True)


@pytest.mark.parametrize(
    ("statement", "shown", "module"),
    [
        ("from labkit.parallel import context_parallel as given", "given.__name__", "context_parallel.given"),
        ("from labkit.parallel.ddp.bucket import Bucket", "Bucket.__module__", "ddp.given.bucket"),
        ("from labkit.parallel.tensor import parts", "parts.__name__", "tensor_parallel.given.parts"),
        ("import labkit.parallel.pipeline.messages as m", "m.__name__", "pipeline_parallel.given.messages"),
        (
            "from labkit.parallel.collective_arguments import group_ranks as f",
            "f.__module__",
            "course.collective_arguments",
        ),
    ],
)
def test_an_old_path_is_the_new_module_with_a_warning(statement: str, shown: str, module: str) -> None:
    done = ran(statement, shown)
    assert done.returncode == 0, done.stderr
    new = done.stdout.strip()
    assert new.startswith("labkit.course.") and new.endswith(f".{module}")
    assert (
        f"FutureWarning: labkit.parallel.{statement.split()[1].removeprefix('labkit.parallel').lstrip('.')}"
        in done.stderr
    )
    assert f"has moved: import {new.partition('.given.')[0]}" in done.stderr
    assert "<string>:4: FutureWarning" in done.stderr, "the line that imports"


def test_on_virtual_ranks_the_warning_names_the_cells_line() -> None:
    cell = "\nfrom labkit.parallel import zero as given\n"
    run = virtual(nproc_per_node=2).run(Job(source=cell, filename="Cell In[1]")).raise_if_failed()
    moved = "labkit.parallel.zero has moved: import labkit.course.phase3_multi_node.zero.given"
    assert f"Cell In[1]:2: FutureWarning: {moved}" in "".join(rank.output for rank in run.ranks)


def test_it_is_one_module_under_both_names() -> None:
    both = (
        "import labkit.parallel.zero.units as old; from labkit.course.phase3_multi_node.zero.given import units as new"
    )
    assert ran(both, "old is new").stdout == "True\n"


def test_what_never_was_there_is_still_not_there() -> None:
    assert (
        "ModuleNotFoundError: No module named 'labkit.parallel.ring'" in ran("import labkit.parallel.ring", "1").stderr
    )


def test_the_lab_itself_uses_no_old_path() -> None:
    everything = (
        "import pkgutil, labkit.course\n"
        "for module in pkgutil.walk_packages(labkit.course.__path__, 'labkit.course.'): __import__(module.name)"
    )
    assert ran(everything, "'parallel' in labkit.__dict__", "error").stdout == "False\n"
