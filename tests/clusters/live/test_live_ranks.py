"""Live ranks: the state left by one cell is there in the next, whatever went wrong in between."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
import torch
from announcing import When
from clocks import MOMENT, LateClock, ManualClock
from waiting import wait_until

from labkit import Job, local
from labkit.clusters import InvalidJob, RankResult, Run
from labkit.clusters.forkserver.client import ForkServer
from labkit.clusters.live import Interrupted, LiveRanks
from labkit.clusters.live.conversation import ANSWER_SECONDS, GRACE_SECONDS

SETUP = """
import os, signal, sys, threading, time
import torch
import torch.distributed as dist
from announcing import announce_waits
dist.init_process_group()
rank = dist.get_rank()
x = torch.ones(4)
dist.all_reduce(x)
"""
TOGETHER = "y = torch.ones(2)\ndist.all_reduce(y)\ny.tolist()"


@pytest.fixture
def live(forkserver: ForkServer, clock: ManualClock) -> Iterator[LiveRanks]:
    ranks = LiveRanks(local(nproc_per_node=3, forkserver=forkserver), Job(source=""), clock=clock)
    run_on(ranks, SETUP).raise_if_failed()
    yield ranks
    ranks.close()


def run_on(
    live: LiveRanks, source: str, ranks: list[int] | None = None, when: When | None = None, **options: Any
) -> Run:
    on_output, on_state = (None, None) if when is None else (when.on_output, when.on_state)
    run, _ = live.run(Job(source=source, filename="Cell In[7]", **options), ranks, on_output, on_state)
    return run


def pids(live: LiveRanks) -> list[int]:
    return [state.pid for state in live.states()]


def interrupted(live: LiveRanks, source: str, waiting: int = 3, when: When | None = None) -> Run:
    """Run a cell; this thread gets a KeyboardInterrupt when so many ranks have printed that they wait."""
    # from a thread other than the main one, as a front end's Stop button does it
    thread = threading.Thread(target=os.kill, args=(os.getpid(), 2))
    begun = When(thread.start, waiting)
    with pytest.raises(Interrupted) as caught:
        live.run(
            Job(source=source, filename="Cell In[7]"),
            on_output=begun.on_output,
            on_state=None if when is None else when.on_state,
        )
    return caught.value.run


@pytest.fixture
def grace_over(clock: ManualClock) -> When:
    """Lets the time pass that the others have, when one rank has failed and two wait."""
    return When(lambda: clock.advance(GRACE_SECONDS), waiting=2, ended=1)


def errors(run: Run) -> dict[int, str]:
    return {result.rank: result.error.type for result in run.ranks if result.error is not None}


def test_names_groups_and_processes_stay(live: LiveRanks) -> None:
    before = pids(live)
    assert run_on(live, "x += rank").ok
    run = run_on(live, "dist.all_reduce(x)\nx.tolist()")
    assert run.values == [[12.0] * 4] * 3
    # a cell that makes the process group, as one under torchrun does, keeps the existing one
    assert run_on(live, "dist.init_process_group()\n" + TOGETHER).values == [[3.0, 3.0]] * 3
    assert pids(live) == before


def test_a_run_holds_what_its_own_cell_printed_and_did(live: LiveRanks) -> None:
    run_on(live, "dist.barrier()\nprint('earlier')")
    run = run_on(live, f"print('now', rank)\ntime.sleep(0.2)\n{TOGETHER}")
    assert [result.output for result in run.ranks] == ["now 0\n", "now 1\n", "now 2\n"]
    calls = run.trace.collectives()
    assert [call.operation for call in calls] == ["all_reduce"] * 3 and {call.sequence for call in calls} == {0}
    assert all(call.line == "Cell In[7], line 4" for call in calls)
    assert run.trace.without_start_up().events == run.trace.events, "the process group was made before the cell"
    assert all(0.2 <= call.start <= call.end <= run.wall_seconds for call in calls), "seconds since the cell began"


def test_a_subset_runs_and_the_others_keep_what_they_have(live: LiveRanks) -> None:
    run = run_on(live, "x = 'changed'\nrank", [0, 2])
    assert run.values == [0, 2] and [result.rank for result in run.ranks] == [0, 2]
    assert run_on(live, "str(x)[:7]").values == ["changed", "tensor(", "changed"]
    with pytest.raises(InvalidJob, match="there is no rank 3, 7: ranks are 0 to 2"):
        run_on(live, "rank", [0, 3, 7])


def test_process_groups_need_all_ranks_and_say_so(live: LiveRanks) -> None:
    run_on(live, "dist.destroy_process_group()")
    error = run_on(live, "dist.init_process_group()", [0, 2]).ranks[0].error
    assert error is not None
    assert "needs all 3 ranks, and this cell runs on ranks 0, 2 alone: leave out --ranks" in error.message
    assert run_on(live, f"dist.init_process_group()\n{TOGETHER}").ok
    # on one rank the group is gone: the others join it again
    run_on(live, "dist.destroy_process_group()", [1])
    assert run_on(live, f"dist.init_process_group()\n{TOGETHER}").values == [[3.0, 3.0]] * 3


def test_an_error_brings_back_the_ranks_that_wait_for_its_rank(live: LiveRanks, grace_over: When) -> None:
    before = pids(live)
    run_on(
        live, "pair = dist.new_group([0, 1])\nmodel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))"
    )
    source = "z = rank; announce_waits()\nif rank == 1:\n    raise ValueError('no')\ndist.all_reduce(x)"
    run = run_on(live, source, when=grace_over)
    assert errors(run) == {0: "KeyboardInterrupt", 1: "ValueError", 2: "KeyboardInterrupt"}
    assert run.diagnosis().splitlines()[0] == "ValueError on rank 1 at Cell In[7], line 3: no"
    assert run.diagnosis().splitlines()[-1] == "ranks 0, 2 stopped because of it"
    assert run.ranks[0].error is not None and run.ranks[0].error.where == "Cell In[7], line 4"
    # all ranks live, with their definitions, and the groups work: the default one, one of two, the one that DDP holds
    assert run_on(live, f"z\n{TOGETHER}").values == [[3.0, 3.0]] * 3
    assert (
        run_on(live, "model(torch.ones(5, 2)).sum().backward()\nmodel.module.weight.grad.tolist()").values
        == [[[5.0, 5.0]]] * 3
    )
    assert run_on(live, "p = torch.ones(1)\ndist.all_reduce(p, group=pair)\np.item()", [0, 1]).values == [2.0, 2.0]
    assert run_on(live, "late = dist.new_group([0, 2])\ndist.barrier()").ok
    assert pids(live) == before


def test_a_cell_without_some_members_of_its_group_says_so(live: LiveRanks, silence: LateClock) -> None:
    source = "announce_waits(); dist.recv(x, src=2)"
    said = run_on(live, source, [0, 1], When(silence.start, 2), hang_timeout=MOMENT).diagnosis()
    assert "try: the cell ran only on ranks 0-1, but the group includes rank 2: leave out --ranks" in said


@pytest.mark.parametrize("before", ["", "loss = model(torch.ones(5, 2)).sum()\n"])
def test_ddp_goes_on_after_a_failure_in_its_first_pass(live: LiveRanks, before: str, grace_over: When) -> None:
    run_on(
        live,
        "net = torch.nn.Sequential(torch.nn.Linear(2, 600), torch.nn.Linear(600, 600), torch.nn.Linear(600, 1))\n"
        "model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=1)\n"
        "step = lambda: model(torch.ones(5, 2)).sum().backward()",
    )
    run = run_on(live, f"{before}announce_waits()\nassert rank != 1\nstep()", when=grace_over)
    assert errors(run)[1] == "AssertionError"
    # ranks had come to agree on buckets, and the one that failed had not
    for _ in range(2):
        run = run_on(live, "net.zero_grad()\nstep()\nnet[2].bias.grad.item()")
        assert run.ok and run.values == [5.0] * 3, run.diagnosis()


def test_ranks_that_wait_for_one_that_never_joins_are_brought_back(live: LiveRanks, grace_over: When) -> None:
    run_on(live, "dist.destroy_process_group()")
    run = run_on(live, "announce_waits()\nif rank == 2:\n    1 / 0\ndist.init_process_group()", when=grace_over)
    assert errors(run) == {0: "KeyboardInterrupt", 1: "KeyboardInterrupt", 2: "ZeroDivisionError"}
    assert run_on(live, f"dist.init_process_group()\n{TOGETHER}").values == [[3.0, 3.0]] * 3


def test_a_time_out_interrupts_and_keeps_all(live: LiveRanks, clock: ManualClock) -> None:
    source = "announce_waits()\nif rank == 0:\n    print('waits'); time.sleep(600)\ndist.barrier()"
    run = run_on(live, source, when=When(lambda: clock.advance(60.0), 3), timeout=60.0)
    assert run.stopped == "timeout after 60 s"
    assert [result.error and result.error.where for result in run.ranks] == [
        "Cell In[7], line 3", "Cell In[7], line 4", "Cell In[7], line 4",
    ]  # fmt: skip
    assert run_on(live, TOGETHER).ok


def test_a_hang_is_explained_and_ended(live: LiveRanks, silence: LateClock) -> None:
    supervisor = psutil.Process(pids(live)[0]).ppid()
    for _ in range(4):  # no hang is reported between cells, however long that is
        silence.advance(1000.0)
        wait_until(lambda: os.kill(supervisor, signal.SIGCHLD) or silence.seen)
    source = "announce_waits()\nif rank != 1:\n    dist.all_reduce(x)\nelse:\n    print('waits'); time.sleep(600)"
    run = run_on(live, source, when=When(silence.start, 3), hang_timeout=MOMENT)
    assert run.stopped == "hang: no output and no progress for 0.0002 s"
    report = run.diagnosis()
    assert "[0, 2]  Cell In[7], line 3: dist.all_reduce(x)" in report and "rank 1 is missing" in report
    assert errors(run) == dict.fromkeys(range(3), "Hang")
    silence.stop()
    assert run_on(live, TOGETHER).values == [[3.0, 3.0]] * 3
    # ranks that a cell leaves out are missing in its collectives
    run = run_on(live, TOGETHER, [0, 1], When(silence.start, 2), hang_timeout=MOMENT)
    assert run.stopped.startswith("hang") and "rank 2 does not take part" in run.diagnosis()
    silence.stop()
    assert run_on(live, TOGETHER).values == [[3.0, 3.0]] * 3


def test_the_learners_interrupt_reaches_python_and_collectives(live: LiveRanks) -> None:
    before = pids(live)
    source = "announce_waits()\nif rank == 0:\n    print('waits'); time.sleep(600)\ndist.barrier()"
    run = interrupted(live, source)
    assert errors(run) == dict.fromkeys(range(3), "KeyboardInterrupt")
    assert run_on(live, TOGETHER).ok and pids(live) == before
    # a cell may clean up
    run = interrupted(live, "try:\n    print('waits'); time.sleep(600)\nfinally:\n    time.sleep(0.3); saved = True")
    assert run_on(live, "saved").values == [True] * 3


def test_a_rank_that_does_not_answer_an_interrupt_is_killed_and_named(live: LiveRanks, clock: ManualClock) -> None:
    source = "if rank == 1:\n    signal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('waits'); time.sleep(600)"
    run = interrupted(live, source, when=When(lambda: clock.advance(ANSWER_SECONDS), 0, ended=2))
    assert errors(run) == {0: "KeyboardInterrupt", 1: "Killed", 2: "KeyboardInterrupt"}
    assert run.ranks[1].error is not None and run.ranks[1].error.where == "Cell In[7], line 3"
    (note,) = run.notes
    assert "rank 1 did not answer an interrupt within 2 s and was killed in Cell In[7]" in note
    assert "%ranks restart starts all ranks afresh, and %%ranks --ranks 0,2 still reaches the others" in note
    assert run_on(live, "rank", [0, 2]).values == [0, 2]
    with pytest.raises(InvalidJob, match="rank 1 did not answer"):
        run_on(live, "rank")


def test_a_death_is_told_and_the_others_live(live: LiveRanks, grace_over: When) -> None:
    run = run_on(live, "if rank == 2:\n    os._exit(5)\nprint('waits'); dist.barrier()", when=grace_over)
    assert run.first_failure is not None and run.first_failure.rank == 2
    assert "rank 2 ended with exit code 5 in Cell In[7], and what it held is gone" in run.notes[0]
    assert run_on(live, "x.tolist()", [0, 1]).values == [[3.0] * 4] * 2
    error = run_on(live, "dist.destroy_process_group()\ndist.init_process_group()", [0, 1]).ranks[0].error
    assert error is not None and "rank 2 has died; %ranks restart starts all afresh" in error.message
    assert [state.alive for state in live.states()] == [True, True, False]
    assert live.states()[2].ended == "ended with exit code 5 in Cell In[7]"


def test_a_death_between_cells_is_told_before_the_next(live: LiveRanks) -> None:
    os.kill(pids(live)[1], 11)
    wait_until(lambda: len(live.alive) < 3)
    with pytest.raises(InvalidJob, match="rank 1 was killed by SIGSEGV, and what it held is gone"):
        run_on(live, "rank")


def test_sys_exit_ends_the_cell_alone(live: LiveRanks) -> None:
    run = run_on(live, "sys.exit(4 * (rank == 1))")
    assert [result.exit for result in run.ranks] == [0, 4, 0]
    assert run_on(live, "rank").values == [0, 1, 2]


def test_a_forked_child_that_comes_to_the_cells_end_is_no_second_rank(live: LiveRanks) -> None:
    run = run_on(live, "child = os.fork()\nif child:\n    os.waitpid(child, 0)\nchild > 0")
    assert run.values == [True] * 3
    assert run_on(live, TOGETHER).values == [[3.0, 3.0]] * 3


def test_values_go_to_the_ranks_and_come_back_by_name(live: LiveRanks) -> None:
    live.push({"batch": torch.arange(3), "options": {"lr": 0.5, "sizes": (1, 2)}})
    assert run_on(live, "(batch + rank).sum().item(), options['sizes']").values == [
        (3, (1, 2)),
        (6, (1, 2)),
        (9, (1, 2)),
    ]
    _, pulled = live.run(Job(source="c = rank + k"), push={"k": 10}, pull=["c"])
    assert pulled == {"c": {0: 10, 1: 11, 2: 12}}
    assert live.pull(["c"], [0, 2]) == {"c": {0: 10, 2: 12}}
    run_on(live, "only = 1", [1])
    with pytest.raises(InvalidJob, match="only is not defined on ranks 0, 2"):
        live.pull(["only"])
    with pytest.raises(InvalidJob, match="f cannot be pushed: it is a function, and only tensors and plain data"):
        live.push({"ok": 1, "f": errors})
    with pytest.raises(InvalidJob, match="d cannot be pushed: it is a dict that holds a RankResult"):
        live.push({"d": {"a": [RankResult(0)]}})


def test_what_a_thread_prints_between_cells_is_kept(live: LiveRanks) -> None:
    run_on(live, "threading.Timer(0.3, lambda: print('later', rank, flush=True)).start()")
    printed: list[tuple[int, str, str]] = []
    wait_until(lambda: printed.extend(live.printed_meanwhile()) or len(printed) == 3, lambda: printed)
    assert sorted(printed) == [(rank, "stdout", f"later {rank}\n") for rank in range(3)]
    assert run_on(live, "rank").ranks[0].output == ""


def test_output_of_c_code_and_floods_belong_to_their_cell(live: LiveRanks) -> None:
    run = run_on(live, "import ctypes\nctypes.CDLL(None).printf(b'from C\\n')\nfor i in range(20000): print(i)")
    assert all("from C\n" in result.output and "19999\n" in result.output for result in run.ranks)


def test_edited_exercises_reach_the_ranks_before_the_next_cell(live: LiveRanks) -> None:
    name = "phase3_multi_node/ring_allreduce"
    first = {name: "def f():\n    return 1\n"}
    use = "from labkit.exercises import ring_allreduce\nf = ring_allreduce.f\nf()"
    assert run_on(live, use, modules=first).values == [1] * 3
    second = {name: "def f():\n    return 2\n"}
    run = run_on(live, "f(), ring_allreduce.f()", modules=second)
    assert run.values == [(2, 2)] * 3
    assert list(run.notes) == ["ring_allreduce has changed since the last cell: it was loaded again"]
    assert not run_on(live, "f()", modules=second).notes
    run = run_on(live, "f()", modules={name: "def f():\n    return 3\n1 / 0\n"})
    assert run.ranks[0].error is not None and run.ranks[0].error.where == f"{name}.py, line 3"


def test_nothing_is_left_when_they_are_closed_or_their_client_dies(forkserver: ForkServer) -> None:
    ranks = LiveRanks(local(nproc_per_node=2, forkserver=forkserver), Job(source=""))
    run = run_on(ranks, "import os, subprocess\nsubprocess.Popen(['sleep', '600']).pid, os.getpid()")
    processes = [psutil.Process(pid) for pair in run.values for pid in pair]
    ranks.close()
    wait_until(lambda: not any(process.is_running() for process in processes))
    assert ranks.alive == []
