"""Threads that a rank starts communicate as that rank: on threads, on processes, and in judged calls."""

from __future__ import annotations

from typing import Any

import pytest

from labkit import Job, Run, catalogue, virtual
from labkit.checks import Args, Ranks, Submission, group_of, work

HEAD = """\
import queue, threading, time
from concurrent.futures import ThreadPoolExecutor
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
right, left = (rank + 1) % n, (rank - 1) % n
"""
KINDS: dict[str, dict[str, Any]] = {
    "threads": {},
    "processes": {"ranks": "processes"},
    "judged": {"ranks": "processes", "trusting": False, "account": False},
}

pytestmark = pytest.mark.parametrize("kind", KINDS)


def ran(kind: str, source: str, ranks: int = 2) -> Run:
    return virtual(nproc_per_node=ranks, **KINDS[kind]).run(Job(source=HEAD + source, timeout=300))


RING = """
tensor = torch.full((5,), float(rank))
for _ in range(n):
    arriving = torch.empty(5)
    sender = threading.Thread(target=dist.send, args=(tensor, right))
    sender.start()
    dist.recv(arriving, left)
    sender.join()
    tensor = arriving
tensor.tolist()
"""


def test_one_thread_sends_while_another_receives(kind: str) -> None:
    runs = [ran(kind, RING, ranks=3).raise_if_failed() for _ in range(2)]
    assert [run.values for run in runs] == [[[float(rank)] * 5 for rank in range(3)]] * 2
    assert runs[0].trace.seconds == pytest.approx(runs[1].trace.seconds, rel=1e-3)


def test_two_groups_are_used_in_two_threads(kind: str) -> None:
    source = """
one, two = torch.ones(3), torch.full((3,), 2.0)
reducers = [
    threading.Thread(target=dist.all_reduce, args=(tensor,), kwargs={"group": dist.new_group(range(n))})
    for tensor in (one, two)
]
for reducer in reducers if rank else reversed(reducers):
    reducer.start()
for reducer in reducers:
    reducer.join()
one.tolist(), two.tolist()
"""
    assert ran(kind, source, ranks=3).raise_if_failed().values == [([3.0] * 3, [6.0] * 3)] * 3


def test_time_goes_on_while_the_main_thread_waits_for_a_queue(kind: str) -> None:
    source = """
results = queue.Queue()

def exchange():
    for number in range(4):
        arriving = torch.empty(1)
        receiving = dist.irecv(arriving, left)
        dist.send(torch.tensor([10.0 * number + rank]), right)
        receiving.wait()
        time.sleep(0.5)
        results.put(arriving.item())
    results.put(None)

began = time.time()
threading.Thread(target=exchange).start()
list(iter(results.get, None)), time.time() - began >= 2
"""
    for rank, value in enumerate(ran(kind, source).raise_if_failed().values):
        assert value == ([10.0 * number + 1 - rank for number in range(4)], True)


def test_a_pool_that_does_not_communicate_is_no_hindrance(kind: str) -> None:
    source = """
total = torch.zeros(1)
with ThreadPoolExecutor(2) as pool:
    for batch in pool.map(lambda number: torch.full((1,), float(number)), range(5)):
        total += batch
        dist.all_reduce(total)
total.item()
"""
    assert ran(kind, source).raise_if_failed().values == [52.0] * 2


def test_a_deadlock_names_what_each_thread_waits_for(kind: str) -> None:
    source = """
threading.Thread(target=dist.recv, args=(torch.ones(1), left), daemon=True).start()
dist.recv(torch.ones(2), right, tag=3)
"""
    run = ran(kind, source)
    for rank in run.ranks:
        assert rank.error is not None and rank.error.type == "DeadlockError"
        for waiting in range(2):
            assert f"rank {waiting} waits in recv(from rank {1 - waiting}, float32[1])" in rank.error.message
            assert f"rank {waiting} waits in recv(from rank {1 - waiting}, float32[2], tag 3)" in rank.error.message


SEND_AFTER_A_TIME_OUT = """
def wait_then_send():
    try:
        queue.Queue().get(timeout=0.2)
    except queue.Empty:
        dist.send(torch.ones(1), left)

received = torch.zeros(1)
if rank:
    sender = threading.Thread(target=wait_then_send)
    sender.start()
    dist.recv(received, left)
    sender.join()
else:
    dist.recv(received, right)
    dist.send(received + 1, right)
received.item()
"""


def test_a_wait_that_times_out_on_the_machines_clock_is_no_deadlock(kind: str) -> None:
    assert ran(kind, SEND_AFTER_A_TIME_OUT).raise_if_failed().values == [1.0, 2.0]


def test_a_thread_that_calls_just_before_the_rank_sleeps_is_heard(kind: str) -> None:
    source = """
from labkit.clusters.virtual.isolation import current
threads, has_called = current.endpoint().share(), threading.Event()
sleep, call_back = threads._sleep_for_any, threads._call_back

def sleep_after_the_call(*waits):
    if rank == 1:
        has_called.wait(5)  # on a slow machine it may have sent before, without a call
    return sleep(*waits)

def call():
    call_back()
    has_called.set()

threads._sleep_for_any, threads._call_back = sleep_after_the_call, call
"""
    assert ran(kind, source + SEND_AFTER_A_TIME_OUT).raise_if_failed().values == [1.0, 2.0]


def test_threads_that_are_left_behind_end_with_the_rank(kind: str) -> None:
    source = """
def tick():
    while True:
        time.sleep(0.1)

for leaves in (lambda: dist.recv(torch.ones(1), left, tag=9), queue.Queue().get, tick):
    threading.Thread(target=leaves, daemon=True).start()
last = threading.Thread(target=lambda: (time.sleep(1), dist.all_reduce(total)))
total = torch.ones(1)
last.start()
"""
    run = ran(kind, source).raise_if_failed()
    assert [rank.output for rank in run.ranks] == ["", ""]
    assert {event.operation for event in run.trace.collectives()} == {"all_reduce"}
    assert all(event.start >= 1 for event in run.trace.collectives())


def test_a_thread_waits_for_a_lock_of_one_that_works(kind: str) -> None:
    """At the rank's end, too: the lock may come free, even if the one that has it is a daemon."""
    source = """
lock, has_begun = threading.Lock(), threading.Event()

def work():
    with lock:
        has_begun.set()
        for _ in range(20):
            sum(range(1_000_000))

def reduce():
    with lock:
        dist.all_reduce(torch.ones(1))

threading.Thread(target=work, daemon=True).start()
has_begun.wait()
threading.Thread(target=reduce).start()
"""
    run = ran(kind, source).raise_if_failed()
    assert [event.operation for event in run.trace.collectives()] == ["all_reduce"] * 2


def exchanged(busy: Any, group: Any) -> float:
    """On a rank: a thread reduces a number, while the first thread works."""
    import threading

    import torch
    import torch.distributed as dist

    found = torch.zeros(1)

    def add() -> None:
        for _ in range(20):
            part = torch.ones(1)
            dist.all_reduce(part, group=group)
            found.add_(part)

    thread = threading.Thread(target=add)
    thread.start()
    for _ in range(30):
        busy()
    thread.join()
    return float(found)


def test_a_thread_communicates_while_another_one_works(kind: str) -> None:
    """`work` that a call is given is made before there are threads: it must wait for the rank's turn all the same."""
    submission = Submission(catalogue.find("process_group"), "")
    run = Ranks(lambda **options: virtual(**options, **KINDS[kind]))(2).call(
        submission.used_by(exchanged), [Args(work("busy", 0.01), group_of([0, 1]))] * 2
    )
    assert run.values == [40.0, 40.0]
