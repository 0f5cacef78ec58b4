"""`time` on virtual ranks: sleeping and measuring use virtual time, and polling loops end."""

from __future__ import annotations

import hashlib
import json

import pytest

from labkit import Job, virtual

HEAD = """\
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
"""
WAYS = ["threads", "processes"]


@pytest.mark.parametrize("ranks", WAYS)
def test_sleeping_takes_virtual_time_and_others_run(ranks: str) -> None:
    source = "time.sleep(100.0 * rank); dist.barrier(); time.perf_counter()"
    run = virtual(nproc_per_node=3, ranks=ranks).run(Job(source=HEAD + source)).raise_if_failed()  # type: ignore[arg-type]
    assert all(200 < value < 200.01 for value in run.values) and run.wall_seconds < 60


@pytest.mark.parametrize("ranks", WAYS)
def test_what_is_measured_around_a_collective_is_its_modelled_time(ranks: str) -> None:
    source = """
x = torch.ones(1 << 20); dist.barrier()
marks = [time.perf_counter(), time.monotonic(), time.time()]
dist.all_reduce(x)
seconds = [clock() - mark for clock, mark in zip((time.perf_counter, time.monotonic, time.time), marks)]
nanoseconds = time.perf_counter_ns() - time.monotonic_ns()
seconds, nanoseconds
"""
    run = virtual(nproc_per_node=4, ranks=ranks).run(Job(source=HEAD + source)).raise_if_failed()  # type: ignore[arg-type]
    (event,) = [e for e in run.trace.events if e.rank == 0 and e.operation == "all_reduce"]
    for seconds, nanoseconds in run.values:
        # each reading costs a tenth of a microsecond; time.time() itself has a quarter of one in a float
        assert seconds == pytest.approx([event.end - event.start] * 3, abs=2e-6) and -150 < nanoseconds < 0


@pytest.mark.parametrize("ranks", WAYS)
def test_loops_that_poll_the_clock_or_a_handle_end(ranks: str) -> None:
    source = """
end = time.time() + 5.0
while time.time() < end: pass
x = torch.ones(4)
work = dist.irecv(x, (rank - 1) % n)
dist.isend(torch.ones(4) * rank, (rank + 1) % n)
polls = 0
while not work.is_completed():
    polls += 1
    if time.monotonic() > 100: raise TimeoutError
polls > 0, x.tolist()[0], round(time.perf_counter(), 1)
"""
    run = virtual(nproc_per_node=3, ranks=ranks).run(Job(source=HEAD + source)).raise_if_failed()  # type: ignore[arg-type]
    assert run.values == [(True, float((r - 1) % 3), 5.0) for r in range(3)]


def test_the_same_program_reads_the_same_clock_every_time_and_on_both_kinds_of_ranks() -> None:
    source = (
        HEAD
        + """
began = time.time()
for step in range(3):
    until = time.time() + 1e-5 * (rank + 1)
    while time.time() < until: pass
    time.sleep(1e-4 / (rank + 1)); dist.barrier()
time.time() - began, time.perf_counter()
"""
    )
    seen = []
    for ranks in ("threads", "threads", "processes"):
        run = virtual(nproc_per_node=3, ranks=ranks).run(Job(source=source)).raise_if_failed()  # type: ignore[arg-type]
        seen.append((run.values, hashlib.sha256(json.dumps(run.trace.to_json()["events"]).encode()).hexdigest()))
    assert seen[0] == seen[1] == seen[2]


def test_threads_have_their_ranks_clock_and_other_parts_of_the_standard_library_the_real_one() -> None:
    source = (
        HEAD
        + """
import asyncio, datetime, subprocess, threading, timeit
began = time.perf_counter()
def work():
    time.sleep(20)
thread = threading.Thread(target=work); thread.start(); thread.join()
asyncio.run(asyncio.sleep(0.01)); subprocess.run(["true"], timeout=20); threading.Event().wait(5)
since = datetime.datetime.now().timestamp() - (time.time() - time.perf_counter())  # the run began, by the real clock
25 <= time.perf_counter() - began < 25.001, 0 <= since < 3600, timeit.timeit("pass", number=9) < 1e-3
"""
    )
    run = virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed()
    assert run.values == [(True, True, True)] * 2


def test_a_negative_sleep_is_refused_as_ever() -> None:
    run = virtual(nproc_per_node=1).run(Job(source="import time\ntime.sleep(-1)"))
    error = run.ranks[0].error
    assert error is not None and (error.type, error.message) == ("ValueError", "sleep length must be non-negative")
