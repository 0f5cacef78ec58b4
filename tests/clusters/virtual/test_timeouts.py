"""Time-outs on the virtual clock, with gloo's errors; a deadlock without one is named at once."""

from __future__ import annotations

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, virtual
from labkit.hardware import Link

SLOW = Link("slow", gb_per_s=0.001, latency_seconds=1e-5, source="four seconds for a million floats")

SOURCE = """
import time
from datetime import timedelta
import torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
short = dist.new_group(timeout=timedelta(seconds=2))
x = torch.ones(1)
heard = []


def attempt(call):
    began = time.time()
    try:
        call()
        heard.append(("done", round(time.time() - began, 1)))
    except RuntimeError as error:
        heard.append((str(error), round(time.time() - began, 1)))


BODY
heard
"""


def run(body: str) -> list[list[tuple[str, float]]]:
    """What each of three ranks hears: the same whether they are threads or processes."""
    job = Job(source=SOURCE.replace("BODY", body), timeout=BROKEN_SECONDS)
    threads, processes = [
        virtual(nnodes=3, nproc_per_node=1, inter_node=SLOW, ranks=kind).run(job).raise_if_failed().values
        for kind in ("threads", "processes")
    ]
    assert threads == processes
    return [list(map(tuple, heard)) for heard in threads]


def test_a_collective_ends_at_the_limit_of_its_group_and_all_go_on_in_another() -> None:
    first, second, late = run("""
if rank == 2:
    time.sleep(4)
attempt(lambda: dist.all_reduce(x, group=short))
attempt(lambda: dist.all_reduce(x, group=short))
dist.all_reduce(x)
""")
    for heard in (first, second):
        assert " Timed out waiting 2000ms for recv operation to complete: all_reduce" in heard[0][0]
        assert heard[0][1] == 2 and heard[1][0].startswith("Application timeout caused pair closure")
    assert all(text.startswith("Connection closed by peer: rank") and seconds == 0 for text, seconds in late)


def test_wait_with_a_limit_leaves_a_collective_under_way() -> None:
    first, *_ = run("""
if rank == 0:
    work = dist.all_reduce(x, async_op=True)
    attempt(lambda: work.wait(timedelta(seconds=1)))
    attempt(lambda: work.wait(timedelta(seconds=1)))
    attempt(work.wait)
else:
    time.sleep(4)
    dist.all_reduce(x)
""")
    assert [text.startswith("Operation timed out!") for text, _ in first] == [True, True, False]
    assert [seconds for _, seconds in first] == [1, 1, 2]


def test_a_message_ends_at_the_limit_of_its_group() -> None:
    first, *_ = run("if rank == 0:\n    attempt(lambda: dist.recv(x, 1, group=short))")
    ((text, seconds),) = first
    assert " Timed out waiting 2000ms for recv operation to complete: recv(from rank 1" in text and seconds == 2


def test_a_message_under_way_ends_at_its_limit_and_is_no_deadlock() -> None:
    first, second, _ = run("""
large = torch.ones(1_000_000)
if rank == 0:
    work = dist.irecv(large, 1)
    attempt(lambda: work.wait(timedelta(seconds=1)))
    attempt(lambda: dist.recv(x, 1, group=short))
elif rank == 1:
    time.sleep(0.5)
    attempt(lambda: dist.send(large, 0))
    attempt(lambda: dist.send(x, 0, group=short))
""")
    assert " Timed out waiting 1000ms" in first[0][0] and "while the message was under way" in first[0][0]
    assert " Timed out waiting 2000ms" in first[1][0] and "can go on" not in first[1][0]
    assert [seconds for _, seconds in first] == [1, 2] and second[0] == ("done", 4.0)
    assert second[1][0].startswith("Connection closed by peer: rank 0 timed out in the group")


@pytest.mark.parametrize("everyone", [True, False])
def test_a_monitored_barrier_names_the_first_rank_or_all(everyone: bool) -> None:
    first, *_ = run(f"""
if rank == 0:
    attempt(lambda: dist.monitored_barrier(timeout=timedelta(seconds=1), wait_all_ranks={everyone}))
""")
    named = "Ranks 1, 2" if everyone else "Rank 1"
    assert first[0][0].startswith(f"[Rank 0]: {named} failed to pass monitoredBarrier in 1000 ms") and first[0][1] == 1


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_torchs_default_is_a_deadlock_at_once(kind: str) -> None:
    job = Job(source=SOURCE.replace("BODY", "if rank == 0:\n    dist.recv(x, 1)"), timeout=BROKEN_SECONDS)
    error = virtual(nproc_per_node=3, ranks=kind).run(job).ranks[0].error
    assert error is not None and error.type == "DeadlockError" and error.time < 1


def test_a_group_that_the_program_makes_has_its_own_limit() -> None:
    first, *_ = run("""
store = dist.TCPStore("localhost", 12345, is_master=rank == 0, wait_for_workers=False)
group = dist.ProcessGroupGloo(store, rank, 3, timedelta(seconds=3))
if rank == 0:
    attempt(lambda: group.allreduce(x).wait())
    attempt(lambda: group.recv([x], 1, 0).wait())
""")
    assert [seconds for _, seconds in first] == [3, 0]
    assert " Timed out waiting 3000ms for recv operation to complete: all_reduce" in first[0][0]
    assert first[1][0].startswith("Application timeout caused pair closure")
