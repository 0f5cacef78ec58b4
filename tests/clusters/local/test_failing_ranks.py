"""However a rank dies, it is named first, with all known details; consequences are folded."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from clocks import ManualClock
from forkservers import forkserver_that_reads_clocks

from labkit import Job, Run, local
from labkit.clusters import RankError, RankResult
from labkit.clusters.forkserver.client import ForkServer
from labkit.hub import notices
from labkit.notebook.failures import render

HEAD = """\
import os, sys, ctypes, threading, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
x = torch.ones(4)
dist.all_reduce(x)
"""


Runs = Callable[[str], Run]


@pytest.fixture(scope="module")
def run() -> Iterator[Runs]:
    """Runs a source on four ranks. No time passes for their supervisor: each may be as slow to fail as it likes."""
    with forkserver_that_reads_clocks() as server:
        server.supervisor_clock = ManualClock()
        cluster = local(nproc_per_node=4, forkserver=server)
        yield lambda source: cluster.run(Job(source=HEAD + source, filename="Cell In[3]"))


@pytest.mark.parametrize(
    ("statement", "first"),
    [
        ("raise ValueError('no')", "ValueError on rank 2 at Cell In[3], line 7: no"),
        ("os.kill(os.getpid(), 9)", "rank 2 was killed by SIGKILL: this came from outside of the program, as from the "
         "kernel when memory runs out; the last that it began was all_reduce #1 at Cell In[3], line 5"),
        ("os._exit(7)", "rank 2 ended with exit code 7: it left no exception behind, as os._exit does; the last that "
         "it began was all_reduce #1 at Cell In[3], line 5"),
        ("sys.exit('bad config')", "rank 2 ended with exit code 1 at Cell In[3], line 7: bad config"),
        ("threading.Thread(target=lambda: ctypes.string_at(0)).start()",
         "SIGSEGV on rank 2 at Cell In[3], line 7: the process crashed: code below Python failed here"),
        ("raise MemoryError", "MemoryError on rank 2 at Cell In[3], line 7"),
        # gloo itself ends the process
        ("dist.send(x, 7)",
         "IndexError on rank 2 at Cell In[3], line 7: cannot send to rank 7 of a group that has ranks 0 to 3"),
        ("x.requires_grad_().register_hook(lambda g: 1 / 0); x.sum().backward()",
         "ZeroDivisionError on rank 2 at Cell In[3], line 7: division by zero"),
    ],
)  # fmt: skip
def test_the_rank_that_died_comes_first(run: Runs, statement: str, first: str) -> None:
    found = run(f"if rank == 2:\n    {statement}\nfor _ in range(3):\n    dist.all_reduce(x)")
    lines = found.diagnosis().splitlines()
    assert lines[0] == first
    assert lines[-1] == "ranks 0-1, 3 stopped because of it"


def test_a_rank_that_the_hub_has_ended_is_shown_with_the_hub_s_reason(tmp_path: Path) -> None:
    written = [{"time": 0.0, "text": "An earlier one."}, {"time": 4e9, "text": "Too much memory."}]
    (tmp_path / "notices.json").write_text(json.dumps({"notices": written, "disk_bytes": None}))
    environment = {**os.environ, notices.FILE: str(tmp_path / "notices.json")}
    with closing(ForkServer(environment=environment)) as server:
        found = local(1, forkserver=server).run(Job(source="import os\nos.kill(os.getpid(), 9)"))
    assert found.diagnosis() == "rank 0 was killed by SIGKILL: Too much memory"


def test_unlike_tensors_that_end_a_process_are_told(run: Runs) -> None:
    # mostly by SIGABRT in one of them; otherwise the others lose connections
    said = run("dist.all_reduce(x.double() if rank == 1 else x)").diagnosis()
    assert re.search(r"all_reduce #2 .*with .*B on rank", said)
    assert "must pass tensors of the same shape and dtype" in said


def test_what_is_raised_while_a_lost_connection_is_handled_is_a_consequence(run: Runs) -> None:
    found = run(
        "if rank == 2:\n    os.kill(os.getpid(), 9)\ntry:\n    dist.all_reduce(x)\n"
        "except RuntimeError as error:\n    raise ValueError('training failed') from error"
    )
    assert found.diagnosis().startswith("rank 2 was killed by SIGKILL")
    assert found.diagnosis().endswith("ranks 0-1, 3 stopped because of it")


def test_a_rank_that_ended_while_others_needed_it_is_the_cause(run: Runs) -> None:
    found = run("if rank != 2:\n    dist.barrier()")
    lines = found.diagnosis().splitlines()
    assert lines[0] == "ranks 0-1, 3 lost the connection to rank 2, which had ended"
    assert lines[-2:] == [
        "barrier #2 of the group 0-3: ranks 0-1, 3 wait in it at line 7, rank 2 is missing: it has ended",
        "try: every rank of a group must make all of its calls; rank 2 ended without making this one",
    ]
    assert "gloo" not in "\n".join(render(found))


def test_unequal_tensors_are_told_rank_by_rank(run: Runs) -> None:
    text = run("dist.all_reduce(torch.ones(rank + 4))").diagnosis()
    assert "16 B on rank 0, 20 B on rank 1, 24 B on rank 2, 28 B on rank 3" in text
    assert "try: all ranks of a group must pass tensors of the same shape and dtype" in text


def test_a_cell_that_does_not_parse_names_its_line(run: Runs) -> None:
    assert run("x = 1\ny = = 2").diagnosis().startswith("SyntaxError on every rank at Cell In[3], line 7")


def test_an_error_in_a_data_worker_has_the_line_of_the_dataset(run: Runs) -> None:
    found = run(
        "from torch.utils.data import DataLoader, Dataset\nclass Data(Dataset):\n    def __len__(self):\n"
        "        return 4\n    def __getitem__(self, i):\n        return 1 / (i - 2)\n"
        "list(DataLoader(Data(), num_workers=1))"
    )
    lines = found.diagnosis().splitlines()
    assert lines[:2] == [
        "ZeroDivisionError on every rank at Cell In[3], line 11: division by zero (in DataLoader worker process 0)",
        "    return 1 / (i - 2)",
    ]


@pytest.mark.parametrize(
    ("statement", "advice"),
    [
        ("input()", "ranks have no stdin"),
        ("breakpoint()", "ranks have no stdin"),
        ("y", "ranks do not see the notebook's variables"),
        ("dist.destroy_process_group(); dist.barrier()", "call dist.init_process_group() first"),
        ("dist.new_group(backend='glooo')", "use gloo for CPUs"),
        ("torch.empty(1 << 46)", "each rank holds its own data"),
    ],
)
def test_common_mistakes_come_with_what_to_try(run: Runs, statement: str, advice: str) -> None:
    found = run(statement)
    assert f"try: {advice}" in found.diagnosis()
    assert any(advice in line for line in render(found))


@pytest.mark.parametrize(
    ("file", "advice"),
    [
        ("Cell In[3]", "ranks do not see the notebook's variables"),
        ("phase3_multi_node/ring_allreduce.py", "define or import it in phase3_multi_node/ring_allreduce.py, which"),
        ("/tmp/ipykernel_1/2.py", ""),
    ],
)
def test_an_undefined_name_is_looked_for_where_it_is_used(file: str, advice: str) -> None:
    error = RankError("NameError", "name 'y' is not defined", ((file, 7, "f", "y"),))
    said = Run([RankResult(0, error=error, exit=1)]).what_to_try()
    assert len(said) == bool(advice) and all(line.startswith(f"try: {advice}") for line in said)
