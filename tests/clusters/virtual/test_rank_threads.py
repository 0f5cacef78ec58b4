"""Threads that a rank starts communicate as that rank: on threads, on processes, and in judged calls."""

from __future__ import annotations

from typing import Any

import pytest
from thread_programs import (
    KINDS,
    LEFT_BEHIND,
    POOL,
    PROGRAMS,
    QUEUE,
    RING,
    SEND_AFTER_A_TIME_OUT,
    TWO_GROUPS,
    ran,
    seen,
)

from labkit import catalogue, virtual
from labkit.checks import Args, Ranks, Submission, group_of, work

pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_run_has_the_same_trace(kind: str, name: str) -> None:
    assert seen(ran(kind, *PROGRAMS[name])) == seen(ran(kind, *PROGRAMS[name]))


def test_one_thread_sends_while_another_receives(kind: str) -> None:
    assert ran(kind, RING, ranks=3).raise_if_failed().values == [[float(rank)] * 5 for rank in range(3)]


def test_two_groups_are_used_in_two_threads(kind: str) -> None:
    assert ran(kind, TWO_GROUPS, ranks=3).raise_if_failed().values == [([3.0] * 3, [6.0] * 3)] * 3


def test_time_goes_on_while_the_main_thread_waits_for_a_queue(kind: str) -> None:
    for rank, value in enumerate(ran(kind, QUEUE).raise_if_failed().values):
        assert value == ([10.0 * number + 1 - rank for number in range(4)], True)


def test_a_pool_that_does_not_communicate_is_no_hindrance(kind: str) -> None:
    assert ran(kind, POOL).raise_if_failed().values == [52.0] * 2


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


def test_a_time_limit_is_on_the_virtual_clock(kind: str) -> None:
    assert ran(kind, SEND_AFTER_A_TIME_OUT).raise_if_failed().values == [(1.0, 0.2), (2.0, 0.2)]


def test_a_thread_that_calls_just_before_the_rank_sleeps_is_heard(kind: str) -> None:
    """It returns from a wait that nobody sees when the others have just agreed to sleep."""
    source = """
import _thread
from labkit.clusters.virtual.isolation import current
threads = current.endpoint().share()
sleep, call_back = threads._sleep_for_any, threads._call_back
reads, writes = os.pipe()
called = _thread.allocate_lock()
called.acquire()

def sleep_after_the_call(waits, restless):
    global writes
    if restless and writes is not None:
        os.close(writes)
        writes = None
        called.acquire()
    return sleep(waits, restless)

def call():
    call_back()
    if called.locked():
        called.release()

threads._sleep_for_any, threads._call_back = sleep_after_the_call, call

def read_then_send():
    os.read(reads, 1)
    dist.send(torch.ones(1), right)

received = torch.zeros(1)
sender = threading.Thread(target=read_then_send)
sender.start()
dist.recv(received, left)
sender.join()
received.item()
"""
    assert ran(kind, source).raise_if_failed().values == [1.0, 1.0]


def test_threads_that_are_left_behind_end_with_the_rank(kind: str) -> None:
    run = ran(kind, LEFT_BEHIND).raise_if_failed()
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


def test_a_deadlock_of_a_lock_and_a_message_names_both_lines(kind: str) -> None:
    source = """
lock = threading.Lock()

def send():
    with lock:
        dist.send(torch.ones(1), right)

with lock:
    sender = threading.Thread(target=send, name="sender")
    sender.start()
    dist.recv(torch.ones(1), left)
"""
    for rank in ran(kind, source).ranks:
        assert rank.error is not None and rank.error.type == "DeadlockError"
        for waiting in range(2):
            receive = f"recv(from rank {1 - waiting}, float32[1]) at <cell>, line 17"
            assert f"rank {waiting} waits in {receive}" in rank.error.message
            assert f"rank {waiting} waits in Lock.acquire() in thread sender at <cell>, line 11" in rank.error.message


@pytest.mark.parametrize(
    ("waits", "name"),
    [
        ("lock = threading.Lock()\nlock.acquire()\nlock.acquire()", "Lock.acquire"),
        ("queue.Queue().get()", "Queue.get"),
        ("queue.SimpleQueue().get()", "SimpleQueue.get"),
        ("threading.Event().wait()", "Event.wait"),
        ("threading.Barrier(2).wait()", "Barrier.wait"),
        ("threading.Semaphore(0).acquire()", "Semaphore.acquire"),
        ("thread = threading.Thread(target=queue.Queue().get)\nthread.start()\nthread.join()", "Thread.join"),
    ],
)
def test_a_wait_that_nobody_can_end_is_a_deadlock(kind: str, waits: str, name: str) -> None:
    run = ran(kind, f"if rank == 0:\n    {waits.replace(chr(10), chr(10) + '    ')}")
    error = run.ranks[0].error
    assert error is not None and error.type == "DeadlockError"
    line = 8 + waits.count("\n")
    assert f"rank 0 waits in {name}() at <cell>, line {line}" in error.message
    assert run.ranks[1].error is None


def test_primitives_are_served_in_order_and_in_virtual_time(kind: str) -> None:
    source = """
log, lock, rlock, condition = [], threading.Lock(), threading.RLock(), threading.Condition()
semaphore, barrier, event = threading.BoundedSemaphore(2), threading.Barrier(3), threading.Event()
queues = queue.Queue(), queue.LifoQueue(), queue.PriorityQueue(), queue.SimpleQueue()

def say(*what):
    log.append((round(time.monotonic(), 4), *what))

def work(number):
    barrier.wait()
    with lock:
        say("lock", number)
        time.sleep(1)
    with rlock, rlock:
        say("rlock", number)
    with semaphore:
        say("semaphore", number)
        time.sleep(1)
    with condition:
        say("condition", number, condition.wait(0.5 + number))
    say("event", number, event.wait(timeout=100))

threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
time.sleep(10)
event.set()
for thread in threads:
    thread.join()
threading.Timer(5, say, ["timer"]).start()
for one in queues:
    one.put(2)
    one.put(1)
    log.append([one.get(), one.get()])
    try:
        one.get(timeout=0.25)
    except queue.Empty:
        say("empty")
time.sleep(10)
log
"""
    first, second = ran(kind, source).raise_if_failed().values
    assert first == second
    assert first == [
        *[(0.0, "lock", 2), (1.0, "rlock", 2), (1.0, "semaphore", 2), (1.0, "lock", 0)],
        *[(2.0, "rlock", 0), (2.0, "semaphore", 0), (2.0, "lock", 1), (3.0, "rlock", 1), (3.0, "semaphore", 1)],
        *[(3.5, "condition", 0, False), (4.5, "condition", 2, False), (5.5, "condition", 1, False)],
        *[(10.0, "event", 0, True), (10.0, "event", 2, True), (10.0, "event", 1, True)],
        *[[2, 1], (10.25, "empty"), [1, 2], (10.5, "empty"), [1, 2], (10.75, "empty"), [2, 1], (11.0, "empty")],
        (15.0, "timer"),
    ]


def test_futures_wait_in_virtual_time(kind: str) -> None:
    source = """
from concurrent import futures
told = torch.futures.Future()
threading.Thread(target=lambda: (time.sleep(1), told.set_result(3))).start()
found = [told.wait(), round(time.monotonic(), 3)]
with ThreadPoolExecutor(2) as pool:
    sleeps = [pool.submit(time.sleep, seconds) for seconds in (4, 2, 1)]
    found.append([sleeps.index(one) for one in futures.as_completed(sleeps)])
    found.append(round(time.monotonic(), 3))
    late = pool.submit(time.sleep, 3)
    try:
        late.result(timeout=1)
    except TimeoutError:
        found.append(round(time.monotonic(), 3))
found, round(time.monotonic(), 3)
"""
    expected = [3, 1.0, [1, 2, 0], 5.0, 6.0], 8.0
    assert ran(kind, source).raise_if_failed().values == [expected] * 2


def test_a_thread_that_polls_lets_others_run(kind: str) -> None:
    source = """
done, ready = threading.Event(), queue.Queue()

def reduce():
    dist.all_reduce(torch.ones(1))
    time.sleep(2)
    ready.put(1)
    time.sleep(2)
    done.set()
    time.sleep(2)

thread = threading.Thread(target=reduce)
thread.start()
while ready.empty():
    pass
found = [round(time.monotonic(), 1)]
while not done.is_set():
    pass
found.append(round(time.monotonic(), 1))
while thread.is_alive():
    pass
found.append(round(time.monotonic(), 1))
found
"""
    run = ran(kind, source).raise_if_failed()
    assert run.values == [[2.0, 4.0, 6.0]] * 2
    assert run.notes == (), "nothing had to be guessed"


def test_workers_of_pools_that_are_left_open_end_with_the_process(kind: str) -> None:
    source = """
pool = ThreadPoolExecutor(2)
pool.submit(time.sleep, 1).result()
threading.Thread(target=queue.Queue().get).start()
"""
    run = ran(kind, source).raise_if_failed()
    assert [rank.output for rank in run.ranks] == ["", ""]


UNSEEN = """
reads, writes = os.pipe()

def read_then_send():
    os.read(reads, 1)
    dist.send(torch.ones(1), right)

received = torch.zeros(1)
sender = threading.Thread(target=read_then_send, name="reader")
writer = threading.Thread(target=lambda: (time.sleep(1), os.write(writes, b"x")))
for thread in (sender, writer):
    thread.start()
dist.recv(received, left)
sender.join()
received.item()
"""


def test_a_wait_that_cannot_be_seen_is_named_in_the_run(kind: str) -> None:
    run = ran(kind, UNSEEN).raise_if_failed()
    assert run.values == [1.0, 1.0]
    for rank in range(2):
        [note] = [note for note in run.notes if note.startswith(f"rank {rank}: ")]
        assert "reader in read_then_send at <cell>, line 11" in note


def test_a_wait_for_another_process_is_named_in_the_run(kind: str) -> None:
    source = """
from torch.utils.data import DataLoader
thread = threading.Thread(target=dist.all_reduce, args=(torch.ones(1),))
thread.start()
total = sum(batch.sum().item() for batch in DataLoader(list(range(20)), batch_size=4, num_workers=1))
thread.join()
total
"""
    run = ran(kind, source).raise_if_failed()
    assert run.values == [190, 190]
    assert sum("a wait for another process" in note for note in run.notes) == 2


def test_a_thread_that_spins_on_a_variable_is_named_in_the_run(kind: str) -> None:
    source = """
done = False

def reduce():
    global done
    dist.all_reduce(torch.ones(1))
    done = True

threading.Thread(target=reduce).start()
while rank == 0 and not done:
    pass
"""
    [note] = ran(kind, source).raise_if_failed().notes
    assert note.startswith("rank 0: ") and "a long computation" in note
