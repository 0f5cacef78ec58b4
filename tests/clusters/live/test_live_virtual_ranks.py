"""Live virtual ranks behave like real ones: the same cells, the same state, and a clock that keeps running."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from announcing import When
from clocks import ManualClock

from labkit import Job, virtual
from labkit.clusters import InvalidJob, Run
from labkit.clusters.forkserver.client import ForkServer
from labkit.clusters.live import Interrupted, LiveRanks
from labkit.clusters.virtual.scheduler.faults import kill

SETUP = """
import os, time
import torch
import torch.distributed as dist
dist.init_process_group()
rank = dist.get_rank()
x = torch.ones(4)
dist.all_reduce(x)
"""
TOGETHER = "y = torch.ones(2)\ndist.all_reduce(y)\ny.tolist()"


@pytest.fixture
def live(forkserver: ForkServer, clock: ManualClock) -> Iterator[LiveRanks]:
    ranks = LiveRanks(virtual(nproc_per_node=3, forkserver=forkserver), Job(source=""), clock=clock)
    run_on(ranks, SETUP).raise_if_failed()
    yield ranks
    ranks.close()


def run_on(live: LiveRanks, source: str, ranks: list[int] | None = None, **options: Any) -> Run:
    run, _ = live.run(Job(source=source, filename="Cell In[7]", **options), ranks)
    return run


def errors(run: Run) -> dict[int, str]:
    return {result.rank: result.error.type for result in run.ranks if result.error is not None}


def test_ranks_start_after_their_forkserver_was_lost(forkserver: ForkServer, clock: ManualClock) -> None:
    forkserver.server.close()
    ranks = LiveRanks(virtual(nproc_per_node=2, forkserver=forkserver), Job(source=""), clock=clock)
    try:
        assert run_on(ranks, "1").values == [1, 1]
    finally:
        ranks.close()


def test_names_groups_and_the_clock_stay(live: LiveRanks) -> None:
    run = run_on(live, "x += rank\nbefore = time.monotonic()\ntime.sleep(0.5 * rank)")
    assert run.ok
    run = run_on(live, "dist.init_process_group()\ndist.all_reduce(x)\nx.tolist(), time.monotonic() - before")
    assert [value[0] for value in run.values] == [[12.0] * 4] * 3
    # a cell begins on all ranks at one time: those that slept less have waited
    elapsed = [value[1] for value in run.values]
    assert max(elapsed) == pytest.approx(min(elapsed)) and 1.0 < elapsed[0] < 1.1


def test_a_trace_is_of_its_own_cell(live: LiveRanks) -> None:
    run_on(live, "time.sleep(5)\ndist.barrier()")
    run = run_on(live, f"print('now', rank)\n{TOGETHER}")
    assert [result.output for result in run.ranks] == ["now 0\n", "now 1\n", "now 2\n"]
    assert [call.operation for call in run.trace.collectives()] == ["all_reduce"] * 3
    assert run.trace.clock == "modelled" and all(0 <= event.start <= event.end < 1 for event in run.trace.events)
    again = run_on(live, f"print('now', rank)\n{TOGETHER}")
    took = [[event.end - event.start for event in each.trace.collectives()] for each in (run, again)]
    assert took[0] == pytest.approx(took[1])


def test_an_error_leaves_all_ranks_and_groups_well(live: LiveRanks) -> None:
    run_on(
        live, "pair = dist.new_group([0, 1])\nmodel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))"
    )
    run = run_on(
        live, "z = rank\nif rank == 1:\n    raise ValueError('no')\ndist.isend(x, (rank + 1) % 3)\ndist.all_reduce(x)"
    )
    assert errors(run)[1] == "ValueError"
    assert run.diagnosis().splitlines()[-1] == "ranks 0, 2 stopped because of it"
    assert run_on(live, f"z\n{TOGETHER}").values == [[3.0, 3.0]] * 3
    assert run_on(live, "model(torch.ones(5, 2)).sum().backward()\nmodel.module.weight.grad.tolist()").ok
    assert run_on(live, "p = torch.ones(1)\ndist.all_reduce(p, group=pair)\np.item()", [0, 1]).values == [2.0, 2.0]


def test_ranks_that_wait_for_one_that_never_joins_are_told_and_meet_again(live: LiveRanks) -> None:
    run_on(live, "dist.destroy_process_group()")
    assert errors(run_on(live, "if rank == 2:\n    1 / 0\ndist.init_process_group()"))[2] == "ZeroDivisionError"
    assert run_on(live, f"dist.init_process_group()\n{TOGETHER}").values == [[3.0, 3.0]] * 3


def test_a_subset_that_waits_for_the_others_is_a_deadlock_at_once(live: LiveRanks) -> None:
    run = run_on(live, TOGETHER, [0, 2])
    assert errors(run) == {0: "DeadlockError", 2: "DeadlockError"}
    assert run_on(live, TOGETHER).values == [[3.0, 3.0]] * 3


WAIT_FOR_A_THREAD = """
import os, queue
threading.Thread(target=os.read, args=(os.pipe()[0], 1), daemon=True).start()
queue.Queue().get()
"""


def test_a_daemon_goes_on_in_the_next_cell(live: LiveRanks) -> None:
    tick = "def tick():\n    for _ in range(3):\n        time.sleep(1)\n        ticks.append(rank)"
    begin = "ticks, thread = [], threading.Thread(target=tick, daemon=True)\nthread.start()"
    assert run_on(live, f"import threading, time\n{tick}\n{begin}\nlen(ticks)").values == [0, 0, 0]
    assert run_on(live, "thread.join()\nlen(ticks)").values == [3, 3, 3]


@pytest.mark.parametrize(
    "body",
    [
        "while True: pass",
        "while True: x = x * 1.0",
        "while True: time.sleep(1)",
        f"import threading{WAIT_FOR_A_THREAD}",
    ],
)
def test_the_learners_interrupt_ends_the_cell(live: LiveRanks, body: str) -> None:
    # ranks of one process run one at a time: the first does not leave its loop
    begun = When(threading.Thread(target=os.kill, args=(os.getpid(), 2)).start, 1)
    job = Job(source=f"print('waits')\nif rank == 1:\n    dist.barrier()\n{body}", filename="Cell In[7]")
    with pytest.raises(Interrupted) as caught:
        live.run(job, on_output=begun.on_output)
    assert caught.value.run.ranks[0].error is not None
    assert set(errors(caught.value.run)) == {0, 1, 2} and live.alive == [0, 1, 2]
    assert run_on(live, TOGETHER).values == [[3.0, 3.0]] * 3


def test_a_death_concerns_one_rank(live: LiveRanks, forkserver: ForkServer) -> None:
    run = run_on(live, "if rank == 2:\n    os._exit(5)\ndist.barrier()")
    assert run.first_failure is not None and run.first_failure.rank == 2
    assert "rank 2 ended with exit code 5 in Cell In[7], and what it held is gone" in run.notes[0]
    assert live.alive == [0, 1] and run_on(live, "rank", [0, 1]).values == [0, 1]
    with pytest.raises(InvalidJob, match="rank 2 ended with exit code 5"):
        run_on(live, "rank")
    struck = LiveRanks(virtual(nproc_per_node=2, faults=[kill(1, at=1.0)], forkserver=forkserver), Job(source=""))
    run = run_on(struck, "import time\nfor _ in range(9): time.sleep(1)")
    assert "rank 1 was killed by SIGKILL in Cell In[7]" in run.notes[0] and run.ranks[0].exit == 0
    struck.close()


def test_values_and_edited_exercises_reach_them(live: LiveRanks) -> None:
    name = "phase3_multi_node/ring_allreduce"
    live.push({"k": 10})
    assert live.run(Job(source="c = rank + k"), pull=["c"])[1] == {"c": {0: 10, 1: 11, 2: 12}}
    use = "from labkit.exercises import ring_allreduce\nring_allreduce.f()"
    assert run_on(live, use, modules={name: "def f():\n    return 1\n"}).values == [1] * 3
    # even those that the first cell with it left out
    second = {name: "def f():\n    return 2\n"}
    assert run_on(live, "ring_allreduce.f()", [1], modules=second).values == [2]
    assert run_on(live, "ring_allreduce.f()", modules=second).values == [2] * 3


def test_a_cell_without_some_members_of_its_group_says_so(live: LiveRanks) -> None:
    said = run_on(live, "dist.barrier()", [0, 1]).diagnosis()
    assert "but this cell does not run on rank 2: leave out --ranks" in said


@pytest.mark.parametrize("before", ["", "loss = model(torch.ones(5, 2)).sum()\n"])
def test_ddp_goes_on_after_a_failure_in_its_first_pass(live: LiveRanks, before: str) -> None:
    run_on(
        live,
        "net = torch.nn.Sequential(torch.nn.Linear(2, 600), torch.nn.Linear(600, 600), torch.nn.Linear(600, 1))\n"
        "model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1)\n"
        "step = lambda: model(torch.ones(5, 2)).sum().backward()",
    )
    assert errors(run_on(live, f"{before}assert rank != 1\nstep()"))[1] == "AssertionError"
    # ranks had come to agree on buckets, and the one that failed had not
    for _ in range(2):
        run = run_on(live, "net.zero_grad()\nstep()\nnet[2].bias.grad.item()")
        assert run.ok and run.values == [5.0] * 3, run.diagnosis()
