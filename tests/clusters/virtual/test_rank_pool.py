"""Reusable rank processes that run one call after the other behave like fresh ones."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from labkit.clusters import Job, Run
from labkit.clusters.forkserver.client import ForkServer, ForkServerDied
from labkit.clusters.virtual import RankPool, virtual

WORK = """import os, torch, torch.distributed as dist
dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
mine = torch.rand(3) + rank
pair = dist.new_group(sorted({0, size - 1}))
dist.all_reduce(mine)
if rank in (0, size - 1):
    dist.broadcast(mine, 0, group=pair)
(os.getpid(), os.environ["WORLD_SIZE"], mine)"""


IN_A_THREAD = """import os, threading, torch, torch.distributed as dist
dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
got = torch.zeros(1)
sender = threading.Thread(target=dist.send, args=(torch.ones(1), (rank + 1) % size))
sender.start()
dist.recv(got, (rank - 1) % size)
sender.join()
os.getpid()"""


DEADLOCK = """import torch, torch.distributed as dist
dist.init_process_group()
dist.recv(torch.ones(1), 1 - dist.get_rank())"""


@pytest.fixture(scope="module")
def forkserver() -> Iterator[ForkServer]:
    forkserver = ForkServer()
    yield forkserver
    forkserver.close()


@pytest.fixture
def pool(forkserver: ForkServer) -> Iterator[RankPool]:
    pool = RankPool(forkserver)
    yield pool
    pool.close()


def run(source: str, size: int, forkserver: ForkServer, pool: RankPool | None, timeout: float = 60.0) -> Run:
    cluster = virtual(nnodes=size, nproc_per_node=1, ranks="processes", forkserver=forkserver, pool=pool)
    return cluster.run(Job(source=source, timeout=timeout))


def test_calls_of_any_size_are_as_on_fresh_processes(forkserver: ForkServer, pool: RankPool) -> None:
    pids: dict[int, int] = {}
    for size in (3, 2, 5, 5, 1, 4):
        here, fresh = run(WORK, size, forkserver, pool), run(WORK, size, forkserver, None)
        assert here.trace == fresh.trace
        for rank, (value, expected) in enumerate(zip(here.values, fresh.values, strict=True)):
            assert value[1] == expected[1] == str(size) and value[2].equal(expected[2])
            assert pids.setdefault(rank, value[0]) == value[0] != expected[0]
    assert pool.calls == 6


def test_a_rank_that_had_threads_stays_though_it_has_not_left_its_group(forkserver: ForkServer, pool: RankPool) -> None:
    first, *others = [run(IN_A_THREAD, 3, forkserver, pool).raise_if_failed().values for _ in range(5)]
    assert others == [first] * 4


def test_modules_and_names_of_an_earlier_call_are_gone(forkserver: ForkServer, pool: RankPool) -> None:
    assert run("left = 1\nleft", 2, forkserver, pool).values == [1, 1]
    assert run("'left' in globals()", 2, forkserver, pool).values == [False, False]


def test_what_is_printed_belongs_to_its_call(forkserver: ForkServer, pool: RankPool) -> None:
    for number in range(3):
        found = run(f"print('call', {number})", 2, forkserver, pool)
        assert [result.output for result in found.ranks] == [f"call {number}\n"] * 2


@pytest.mark.parametrize(
    ("failing", "told"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import os\nos._exit(3)", "Exit"),
        ("import os\nos.kill(os.getpid(), 9)", "SIGKILL"),
        ("while True: pass", "Timeout"),
        (DEADLOCK, "DeadlockError"),
    ],
)
def test_nothing_is_kept_after_a_call_that_failed(
    failing: str, told: str, forkserver: ForkServer, pool: RankPool
) -> None:
    before = run("import os\nos.getpid()", 2, forkserver, pool).values
    failed = run(failing, 2, forkserver, pool, timeout=2.0 if told == "Timeout" else 60.0)
    assert not failed.ok and failed.first_failure is not None and failed.first_failure.error is not None
    assert failed.first_failure.error.type == told
    assert pool.calls == 0
    after = run("import os\nos.getpid()", 2, forkserver, pool)
    assert after.ok and not set(before) & set(after.values)


def test_a_process_that_ended_between_two_calls_is_told(forkserver: ForkServer, pool: RankPool) -> None:
    pids = run("import os\nos.getpid()", 2, forkserver, pool).values
    os.kill(pids[1], signal.SIGKILL)
    try:
        found = run("1", 2, forkserver, pool)
    except ForkServerDied:
        pass
    else:  # it had not ended yet when it was sent the call
        assert not found.ok
    assert run("1", 2, forkserver, pool).values == [1, 1]
