"""A thread rank isolates what a process isolates."""

from __future__ import annotations

from pathlib import Path

import pytest

from labkit import Job, local, virtual

HEAD = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
"""


def values(source: str, ranks: int = 2, modules: dict[str, str] | None = None) -> list[object]:
    return virtual(nproc_per_node=ranks).run(Job(source=HEAD + source, modules=modules or {})).raise_if_failed().values


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The learner's folder, with modules next to the notebook; ranks begin there."""
    (tmp_path / "counting.py").write_text(
        "import functools\nimport torch.distributed as dist\n"
        "calls = 0\nprint('imported')\n"
        "def count():\n    global calls\n    calls += 1\n    return calls\n"
        "@functools.cache\ndef first_rank():\n    return dist.get_rank()\n"
        "class Registry:\n    entries = []\n"
    )
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "__init__.py").write_text("from . import inner\nfrom .inner import state\n")
    (tmp_path / "tools" / "inner.py").write_text(
        "import counting\nimport torch.distributed as dist\nfrom dataclasses import dataclass\n"
        # a module that communicates during import must not block the others
        "dist.barrier()\n"
        "state = []\n"
        "@dataclass\nclass Point:\n    x: 'int' = 0\n"
    )
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "leaf.py").write_text("seen = []\n")
    (tmp_path / "broken.py").write_text("import os\nif os.environ['RANK'] == '1': {}.missing\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_globals_caches_and_class_state_of_a_helper_module_belong_to_one_rank(folder: Path) -> None:
    source = HEAD + (
        "import counting\nfrom counting import count\n"
        "for _ in range(rank + 1):\n    count(); dist.barrier() if False else None\n"
        "dist.barrier()\ncounting.Registry.entries.append(rank)\ncounting.mine = rank\ndist.barrier()\n"
        "counting.calls, counting.first_rank(), counting.Registry.entries, counting.mine"
    )
    run = virtual(nproc_per_node=3).run(Job(source=source)).raise_if_failed()
    assert run.values == [(r + 1, r, [r], r) for r in range(3)]
    # its code ran on every rank, once, when the rank imported it
    assert [rank.output for rank in run.ranks] == ["imported\n"] * 3


def test_packages_submodules_and_modules_that_communicate_on_import(folder: Path) -> None:
    source = (
        "import tools.inner, parts.leaf, importlib, sys\nfrom parts import leaf\n"
        "tools.inner.state.append(rank); leaf.seen.append(rank); dist.barrier()\n"
        "same = importlib.import_module('tools.inner') is tools.inner and tools.inner.counting is not None\n"
        "tools.state, parts.leaf.seen, same, sys.modules['parts.leaf'].seen, tools.inner.__name__, tools.__package__"
    )
    assert values(source) == [([r], [r], True, [r], "tools.inner", "tools") for r in range(2)]


def test_classes_of_cells_and_helpers_are_pickled(folder: Path) -> None:
    source = """
import copy, io, pickle, sys
from dataclasses import dataclass
from tools.inner import Point
@dataclass
class Shard:
    rank: "int"
    made = []
Shard.made.append(rank)
dist.barrier()
buffer = io.BytesIO(); torch.save({"mine": Shard(rank), "point": Point(rank)}, buffer); buffer.seek(0)
loaded = torch.load(buffer, weights_only=False)
everyone = [None] * n; dist.all_gather_object(everyone, Shard(rank))
import __main__
(loaded["mine"].rank, type(loaded["mine"]) is Shard, type(loaded["point"]) is Point, [s.rank for s in everyone],
 copy.deepcopy(Shard(7)).rank, Shard.made, sys.modules["__main__"].rank, __main__.rank)
"""
    assert values(source) == [(r, True, True, [0, 1], 7, [r], r, r) for r in range(2)]


def test_an_import_that_fails_on_one_rank_fails_there_alone(folder: Path) -> None:
    run = virtual(nproc_per_node=2).run(Job(source="import broken\nbroken.os.environ['RANK']"))
    assert run.ranks[0].value == "0" and run.ranks[0].error is None
    error = run.ranks[1].error
    assert error is not None and error.type == "AttributeError" and error.where.endswith("broken.py, line 2")
    missing = virtual(nproc_per_node=2).run(Job(source="import parts.nothing"))
    assert missing.ranks[1].error is not None and "No module named 'parts.nothing'" in missing.ranks[1].error.message


def test_exercise_modules_belong_to_one_rank_and_import_each_other() -> None:
    modules = {
        "phase1_small/one": "import functools\nstate = []\nclass Box:\n    size = 0\n",
        "phase1_small/two": "from labkit.exercises import one\ndef put(x):\n    one.state.append(x)\n    return one\n",
    }
    source = (
        "import pickle, threading, sys\nfrom labkit.exercises import one, two\n"
        "two.put(rank); one.Box.size += rank; dist.barrier()\n"
        "seen = []\n"
        "def work():\n    from labkit.exercises import one\n    seen.append(one.state)\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
        "two.put(0) is one, one.state, one.Box.size, seen, type(pickle.loads(pickle.dumps(one.Box()))) is one.Box"
    )
    assert values(source, modules=modules) == [(True, [r, 0], r, [[r, 0]], True) for r in range(2)]


def test_a_class_shipped_with_a_function_belongs_to_one_rank() -> None:
    class Counter:
        seen: list[int] = []  # noqa: RUF012

    def work() -> list[int]:
        import torch.distributed as dist

        dist.init_process_group()
        Counter.seen.append(dist.get_rank())
        dist.barrier()
        return Counter.seen

    assert virtual(nproc_per_node=3).run(Job.calling(work)).raise_if_failed().values == [[0], [1], [2]]


def test_a_rank_replaces_print_for_itself() -> None:
    source = HEAD + (
        "import builtins\nif rank != 0:\n    builtins.print = lambda *_: None\n"
        "dist.barrier()\nprint('from', rank)\n__builtins__ is builtins"
    )
    run = virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed()
    assert [rank.output for rank in run.ranks] == ["from 0\n", ""] and run.values == [True, True]


def test_folder_and_environment_of_threads_and_subprocesses_are_the_ranks(folder: Path) -> None:
    source = (
        "import subprocess, threading\nos.mkdir(f'r{rank}'); os.chdir(f'r{rank}'); os.environ['MINE'] = str(rank)\n"
        "dist.barrier()\nseen = []\n"
        "def work():\n    seen.append(os.environ['MINE'] + os.path.basename(os.getcwd())); print('thread')\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
        "child = subprocess.run(['sh', '-c', 'echo $MINE $RANK; pwd'], capture_output=True, text=True).stdout.split()\n"
        "child[2] = os.path.basename(child[2])\n"
        "seen, child, os.path.basename(os.getcwd())"
    )
    run = virtual(nproc_per_node=2).run(Job(source=HEAD + source)).raise_if_failed()
    assert run.values == [([f"{r}r{r}"], [f"{r}", f"{r}", f"r{r}"], f"r{r}") for r in range(2)]
    assert [rank.output for rank in run.ranks] == ["thread\n"] * 2


def test_leaving_ends_one_rank_and_runs_nothing_more_of_it() -> None:
    source = HEAD + (
        "try:\n    if rank == 1: os._exit(3)\nfinally:\n    print('finally')\ndist.recv(torch.zeros(1), 1)"
    )
    run = virtual(nproc_per_node=2).run(Job(source=source))
    assert run.ranks[1].exit == 3 and run.ranks[1].output == ""
    assert run.ranks[0].error is not None and run.ranks[0].error.type == "PeerFailed"
    assert "rank 1 ended with exit code 3" in run.diagnosis()


def test_a_rank_that_kills_itself_is_the_only_one_to_die() -> None:
    source = "import os, signal\nif os.environ['RANK'] == '1': os.kill(os.getpid(), signal.SIGKILL)\n'alive'"
    for cluster in (virtual(nproc_per_node=3), local(nproc_per_node=3)):
        run = cluster.run(Job(source=source))
        assert [rank.value for rank in run.ranks] == ["alive", None, "alive"]
        assert run.ranks[1].exit == -9 and "rank 1 was killed by SIGKILL" in run.diagnosis()


def test_signal_handlers_and_exit_functions_belong_to_one_rank() -> None:
    source = HEAD + (
        "import atexit, signal\nseen = []\n"
        "signal.signal(signal.SIGTERM, lambda number, frame: seen.append((rank, number)))\n"
        "atexit.register(print, 'bye', rank)\natexit.register(print, 'first')\ndist.barrier()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\nsignal.raise_signal(signal.SIGTERM)\nseen"
    )
    run = virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed()
    assert run.values == [[(r, 15)] * 2 for r in range(2)]
    assert [rank.output for rank in run.ranks] == [f"first\nbye {r}\n" for r in range(2)]


def test_what_a_thread_rank_cannot_do_says_so() -> None:
    source = """
import os, signal, threading
said = []
def work():
    for action in (lambda: os._exit(1), lambda: os.kill(os.getpid(), signal.SIGKILL)):
        try: action()
        except RuntimeError as error: said.append(str(error))
thread = threading.Thread(target=work); thread.start(); thread.join()
try: signal.alarm(1)
except NotImplementedError as error: said.append(str(error))
try: input()
except EOFError: said.append("no input")
said
"""
    for said in values(source):
        assert isinstance(said, list)
        assert "would end all ranks" in said[0] and "would end all ranks" in said[1]
        assert "signal.alarm is not possible" in said[2] and said[3] == "no input"


def test_a_process_that_a_rank_forks_is_outside_the_cluster() -> None:
    source = """
import time, multiprocessing
def work(queue):
    time.sleep(0.01)
    try: dist.barrier()
    except RuntimeError as error: queue.put((rank, str(error)))
    print("child of", rank)
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=work, args=(queue,)); process.start()
said = queue.get(); process.join()
child = os.fork()
if child == 0: os._exit(rank + 5)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
said[0], "not in one that it forked" in said[1], process.exitcode, code
"""
    run = virtual(nproc_per_node=2).run(Job(source=HEAD + source)).raise_if_failed()
    assert run.values == [(r, True, 0, r + 5) for r in range(2)]
    assert [rank.output for rank in run.ranks] == [f"child of {r}\n" for r in range(2)]


def test_a_loader_with_worker_processes() -> None:
    source = """
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self): return 6
    def __getitem__(self, i): return torch.tensor([i * i, rank])
sampler = torch.utils.data.DistributedSampler(Squares(), n, rank, shuffle=False)
torch.stack([b for batch in DataLoader(Squares(), 2, sampler=sampler, num_workers=2) for b in batch]).tolist()
"""
    assert values(source) == [[[i * i, r] for i in range(r, 6, 2)] for r in range(2)]
