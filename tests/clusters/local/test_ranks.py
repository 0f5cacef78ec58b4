"""A local rank sees what a process under torchrun sees, and its end is reported accurately."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from announcing import When
from clocks import MOMENT, SLOWLY, LateClock

from labkit import InvalidJob, Job, Run, local
from labkit.clusters.forkserver.client import shared

HEAD = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
"""


def run(source: str, ranks: int = 2, **options: object) -> Run:
    return local(nproc_per_node=ranks).run(Job(source=source, filename="Cell In[3]", **options))  # type: ignore[arg-type]


def values(source: str, ranks: int = 2) -> list[object]:
    return run(HEAD + source, ranks).raise_if_failed().values


def test_environment_is_torchruns() -> None:
    names = ["RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"]
    names += ["OMP_NUM_THREADS", "MASTER_ADDR"]
    source = f"import os, sys\n[[os.environ[name] for name in {names}], sys.argv]"
    environment = {"OMP_NUM_THREADS": "2"}
    results = local(nproc_per_node=2, nnodes=2).run(Job(source=source, filename="Cell In[1]", environment=environment))
    assert results.values == [
        [["0", "0", "0", "4", "2", "2", "2", "127.0.0.1"], ["Cell In[1]"]],
        [["1", "1", "0", "4", "2", "2", "2", "127.0.0.1"], ["Cell In[1]"]],
        [["2", "0", "1", "4", "2", "2", "2", "127.0.0.1"], ["Cell In[1]"]],
        [["3", "1", "1", "4", "2", "2", "2", "127.0.0.1"], ["Cell In[1]"]],
    ]


def test_threads_are_as_many_as_asked_for() -> None:
    assert run("import torch\ntorch.get_num_threads()", 1).values == [1]
    assert run("import torch\ntorch.get_num_threads()", 1, environment={"OMP_NUM_THREADS": "2"}).values == [2]


def test_folder_environment_and_modules_are_the_kernels_of_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("0")  # the forkserver is running before anything changes
    (tmp_path / "mine.py").write_text("answer = 42")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("COLOUR", "blue")
    source = "import os, mine\n(mine.answer, os.getcwd(), os.environ['COLOUR'])"
    assert run(source, 1).values == [(42, str(tmp_path), "blue")]
    monkeypatch.delenv("COLOUR")
    assert run("import os\nos.environ.get('COLOUR')", 1).values == [None]


def test_values_tensors_and_what_cannot_travel_come_back() -> None:
    tensor, number, nothing, function = run(HEAD + "[torch.full((2, 3), rank), rank, None, len]").values[1]
    assert torch.equal(tensor, torch.full((2, 3), 1))
    assert (number, nothing) == (1, None)
    assert repr(function) == "<builtin_function_or_method stayed on its rank: <built-in function len>>"


def test_function_of_this_program_runs_on_every_rank() -> None:
    offset = 10

    def rank_plus(extra: int) -> int:
        return int(os.environ["RANK"]) + offset + extra

    assert local(nproc_per_node=3).run(Job.calling(rank_plus, 100)).values == [110, 111, 112]


def test_call_of_an_exercise_finds_the_process_group_and_gives_its_arguments_back() -> None:
    module = "import torch.distributed as dist\ndef double(x):\n    dist.all_reduce(x)\n    return x"
    job = Job(
        call=("ring_allreduce", "double"),
        modules={"phase3_multi_node/ring_allreduce": module},
        arguments=tuple(((torch.full((2,), float(rank + 1)),), {}) for rank in range(2)),
    )
    result = local(nproc_per_node=2).run(job).raise_if_failed().ranks[1]
    assert torch.equal(result.value, torch.full((2,), 3.0))
    assert torch.equal(result.arguments[0], result.value)
    assert result.returned_argument == 0


def test_a_tensor_that_is_given_twice_has_its_numbers_in_both_places() -> None:
    ones, twos = torch.ones(2), torch.full((2,), 2.0)
    job = Job(
        call=("checks/texts", "texts"),
        arguments=((([ones, twos, ones, twos],), {}),),
        modules={"checks/texts": "def texts(tensors):\n    return [t.tolist() for t in tensors]"},
    )
    (values,) = local(nproc_per_node=1).run(job).raise_if_failed().values
    assert values == [[1.0, 1.0], [2.0, 2.0]] * 2


def test_state_is_fresh_and_random_numbers_are_each_ranks_own() -> None:
    source = "import numpy, random, torch\ntorch.lab_mark = getattr(torch, 'lab_mark', 0) + 1\n"
    source += "(torch.lab_mark, random.random(), float(numpy.random.rand()), torch.rand(1).item())"
    first, second = run(source).values, run(source).values
    assert [value[0] for value in [*first, *second]] == [1] * 4
    assert len({value[1] for value in [*first, *second]}) == 4
    assert len({value[2] for value in [*first, *second]}) == 4
    assert len({value[3] for value in [*first, *second]}) == 4


def test_a_group_may_be_destroyed_and_made_again() -> None:
    source = """
for round in range(3):
    x = torch.ones(1)
    dist.all_reduce(x)
    dist.destroy_process_group()
    dist.init_process_group()
(x.item(), dist.get_backend())
"""
    assert values(source, 3) == [(3.0, "gloo")] * 3


def test_a_group_that_is_not_destroyed_gives_no_warning() -> None:
    # the barrier: a send that begins when the other rank has ended fails
    program = "x = torch.ones(1)\ndist.all_reduce(x)\nrequest = dist.isend(x, 1 - rank)\ndist.barrier()"
    result = run(HEAD + program, 2)
    assert result.ok
    assert [r.output for r in result.ranks] == ["", ""]


def test_objects_of_a_class_that_the_cell_defines_travel_between_ranks() -> None:
    source = """
from dataclasses import dataclass
@dataclass
class Note:
    text: str
notes = [None] * n
dist.all_gather_object(notes, Note(f"from {rank}"))
[note.text for note in notes]
"""
    assert values(source) == [["from 0", "from 1"]] * 2


def test_data_loader_workers_and_threads_end_with_the_rank() -> None:
    source = """
import atexit, threading, time
atexit.register(lambda: print("at exit", flush=True))
def late():
    time.sleep(0.2)
    print("late")
threading.Thread(target=late).start()
from torch.utils.data import DataLoader
[int(batch) for batch in DataLoader(range(3), num_workers=2)]
"""
    result = run(source, 1)
    assert result.values == [[0, 1, 2]]
    assert result.ranks[0].output == "late\nat exit\n"


def test_the_rank_that_failed_first_is_named_with_its_line_and_variables() -> None:
    source = "\n\n" + HEAD + "if rank == 2:\n    scale = 3\n    raise ValueError('too large')\n"
    source += "dist.all_reduce(torch.ones(1))"
    result = run(source, 4)
    assert result.diagnosis() == (
        "ValueError on rank 2 at Cell In[3], line 8: too large\n"
        "    raise ValueError('too large')\n"
        "    rank = 2, n = 4, scale = 3\n"
        "ranks 0-1, 3 stopped because of it"
    )
    assert [r.exit for r in result.ranks] == [1, 1, 1, 1]
    error = result.ranks[2].error
    assert error is not None and error.frames == (("Cell In[3]", 8, "<module>", "raise ValueError('too large')"),)


def test_ranks_that_do_not_notice_a_failure_are_stopped_and_their_line_is_known() -> None:
    source = "import os, time\nif os.environ['RANK'] == '1':\n    os._exit(7)\ntime.sleep(600)"
    result = run(source, 3)
    assert result.diagnosis().splitlines() == [
        "rank 1 ended with exit code 7: it left no exception behind, as os._exit does",
        "ranks 0, 2 stopped because of it",
    ]
    assert [r.exit for r in result.ranks] == [None, 7, None]
    stopped = result.ranks[0].error
    assert stopped is not None and stopped.where == "Cell In[3], line 4"


@pytest.mark.parametrize(
    ("statement", "code"),
    [("raise SystemExit", 0), ("exit(3)", 3), ("raise SystemExit('bad')", 1), ("os._exit(5)", 5), ("os.abort()", -6)],
)
def test_exit_codes_are_torchruns(statement: str, code: int) -> None:
    source = "import os\nfrom sys import exit\n" + statement
    assert run(source, 1).ranks[0].exit == code


def test_an_exit_with_a_message_shows_it() -> None:
    assert run("raise SystemExit('no data')", 1).ranks[0].output == "no data\n"


def test_a_crash_names_its_line() -> None:
    source = HEAD + "if rank == 1:\n    import ctypes\n    ctypes.string_at(0)\ndist.barrier()"
    assert run(source, 3).diagnosis() == (
        "SIGSEGV on rank 1 at Cell In[3], line 6: the process crashed: code below Python failed here\n"
        "    ctypes.string_at(0)\n"
        "ranks 0, 2 stopped because of it"
    )


def test_a_hang_names_each_ranks_line(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = LateClock(SLOWLY)
    monkeypatch.setattr(shared(), "clock", clock)
    source = HEAD + "from announcing import announce_waits\nannounce_waits()\nif rank == 0:\n    dist.barrier()\n"
    source += "else:\n    print('waits')\n    while True:\n        pass"
    job = Job(source=source, filename="Cell In[3]", timeout=MOMENT)
    result = local(nproc_per_node=2).run(job, When(clock.start, 2).on_output)
    assert result.stopped == "timeout after 0.0002 s"
    first, second = (r.error for r in result.ranks)
    assert first is not None and first.where == "Cell In[3], line 7"
    assert second is not None and second.where in ("Cell In[3], line 9", "Cell In[3], line 10", "Cell In[3], line 11")
    lines = result.diagnosis().splitlines()
    assert lines[:2] == [
        "stopped: timeout after 0.0002 s",
        "[0]  Cell In[3], line 7: dist.barrier()  waits in barrier #1 of the group 0-1",
    ]
    assert lines[2].startswith("[1]  Cell In[3], line ")


def test_nccl_without_gpus_says_that_gloo_is_used() -> None:
    if torch.cuda.device_count() >= 2:
        pytest.skip("needs a machine with fewer than two GPUs")
    result = run(HEAD.replace("gloo", "nccl") + "x = torch.ones(1)\ndist.all_reduce(x)\n(dist.get_backend(), x.item())")
    assert result.values == [("gloo", 2.0)] * 2
    share = "1 GPU: gloo is used, not nccl; ranks share GPUs: cuda:{LOCAL_RANK % 1}"
    none = "0 GPUs: gloo is used, not nccl"
    assert result.notes == (f"2 ranks, {share if torch.cuda.device_count() else none}",)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nproc_per_node": 0}, "nproc_per_node must be a whole number of at least 1, got 0"),
        ({"nnodes": -1}, "nnodes must be a whole number of at least 1, got -1"),
        ({"nproc_per_node": 2.5}, "nproc_per_node must be a whole number of at least 1, got 2.5"),
        ({"nproc_per_node": 1000}, "1000 processes on this machine, at most 128 are possible"),
        ({"backend": "mpi"}, "backend must be one of gloo, nccl, got 'mpi'"),
        ({"timeout": 0}, "timeout must be more than 0 seconds, got 0"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        local(**options)  # type: ignore[arg-type]


def test_a_cell_may_start_processes_in_every_way_that_python_has() -> None:
    source = """\
import math, multiprocessing, torch
from torch.utils.data import DataLoader, TensorDataset
roots = []
for way in ("fork", "spawn", "forkserver"):
    with multiprocessing.get_context(way).Pool(1) as pool:
        roots += pool.map(math.sqrt, [4.0])
data = DataLoader(TensorDataset(torch.ones(8)), batch_size=2, num_workers=1)
roots, len(list(data))
"""
    assert local(nproc_per_node=1).run(Job(source=source)).raise_if_failed().values == [([2.0] * 3, 4)]
