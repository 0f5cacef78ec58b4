"""Programs whose ranks start threads. Each gives the same trace, bit for bit, whenever and wherever it runs."""

from __future__ import annotations

from typing import Any

from waiting import BROKEN_SECONDS

from labkit import Job, Run, virtual

HEAD = """\
import os, queue, threading, time
from concurrent.futures import ThreadPoolExecutor, TimeoutError
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


def ran(kind: str, source: str, ranks: int = 2) -> Run:
    """The run of `source`, after `HEAD`, on that many ranks of this kind."""
    return virtual(nproc_per_node=ranks, **KINDS[kind]).run(Job(source=HEAD + source, timeout=BROKEN_SECONDS))


def seen(run: Run) -> str:
    """All that a run shows: values, output, notes, and its trace with all bits of its times."""
    trace = run.raise_if_failed().trace
    memory = [(sample.rank, sample.time, sample.category.value, sample.nbytes) for sample in trace.memory]
    return repr((run.values, [rank.output for rank in run.ranks], run.notes, [*map(tuple, trace.events)], memory))


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
TWO_GROUPS = """
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
QUEUE = """
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
POOL = """
total = torch.zeros(1)
with ThreadPoolExecutor(2) as pool:
    for batch in pool.map(lambda number: torch.full((1,), float(number)), range(5)):
        total += batch
        dist.all_reduce(total)
total.item()
"""
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
received.item(), round(time.monotonic(), 3)
"""
LEFT_BEHIND = """
def tick():
    while True:
        time.sleep(0.1)

for leaves in (lambda: dist.recv(torch.ones(1), left, tag=9), queue.Queue().get, tick):
    threading.Thread(target=leaves, daemon=True).start()
last = threading.Thread(target=lambda: (time.sleep(1), dist.all_reduce(total)))
total = torch.ones(1)
last.start()
"""
PIPELINE = """
batches, losses, done = queue.Queue(maxsize=2), queue.PriorityQueue(), threading.Event()
lock, counts = threading.Lock(), []

def load():
    for number in range(6):
        time.sleep(0.01 * (number % 3))
        batches.put(torch.full((100,), float(number)))
    batches.put(None)

def reduce():
    while (batch := batches.get()) is not None:
        dist.all_reduce(batch)
        with lock:
            losses.put((-batch.sum().item(), len(counts)))
            counts.append(time.monotonic())
    done.set()

def watch():
    while not done.wait(0.005):
        with lock:
            torch.ones(1000).sum()

threads = [threading.Thread(target=target) for target in (load, reduce, watch)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
[losses.get() for _ in counts], counts
"""
PROGRAMS = {
    "a ring with a thread for each message": (RING, 3),
    "two groups in two threads": (TWO_GROUPS, 3),
    "a thread that fills a queue": (QUEUE, 2),
    "a pool": (POOL, 2),
    "a time limit": (SEND_AFTER_A_TIME_OUT, 2),
    "threads that are left behind": (LEFT_BEHIND, 2),
    "loading, reducing and watching": (PIPELINE, 2),
}
