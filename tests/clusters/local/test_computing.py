"""What counts as compute on real ranks: CPU use between operations, and no sleep or wait of any kind."""

from __future__ import annotations

import itertools

import pytest

from labkit import Job, Run, local
from labkit.trace import Event, Kind
from labkit.trace.busy import busy

HEAD = """\
import threading, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
x, big = torch.ones(1000), torch.randn(256, 256)

def work(seconds):
    began = time.thread_time()
    while time.thread_time() < began + seconds:
        big @ big

dist.barrier()
"""


def run(source: str, ranks: int = 2) -> Run:
    return local(ranks).run(Job(source=HEAD + source, filename="Cell In[3]")).raise_if_failed()


def computing(run: Run, rank: int) -> list[Event]:
    """After the first barrier: compute beyond the Python between operations."""
    began = run.trace.collectives(rank)[0].end
    return [e for e in run.trace.of(rank, Kind.COMPUTE) if e.start >= began and e.end - e.start > 0.02]


def seconds(events: list[Event]) -> float:
    return sum(e.end - e.start for e in events)


def test_between_two_operations_it_is_one_event() -> None:
    result = run("work(0.1)\nwork(0.1)\ndist.all_reduce(x)\nwork(0.1)")
    for rank in range(2):
        first, second = computing(result, rank)
        (reduction,) = [e for e in result.trace.collectives(rank) if e.operation == "all_reduce"]
        assert first.end <= reduction.start <= reduction.end <= second.start
        assert first.end - first.start >= 0.2 and second.end - second.start >= 0.1
        assert first[1:3] + first[5:] == (Kind.COMPUTE, "compute", 0, None, "", -1, "")


@pytest.mark.parametrize("sleep", ["time.sleep(1)", "threading.Event().wait(1)"])
def test_to_sleep_is_not_to_compute(sleep: str) -> None:
    source = f"""
began = time.monotonic()
work(0.1)
{sleep}
work(0.1)
took = time.monotonic() - began
dist.all_reduce(x)
took
"""
    result = run(source)
    for rank in range(2):
        # ranks that have to share a core take longer, but not by sleeping
        assert 0.2 <= seconds(computing(result, rank)) < result.values[rank] - 0.9


def test_time_sleep_divides_computing_where_it_stands() -> None:
    result = run("work(0.1)\ntime.sleep(0.5)\nwork(0.1)\ndist.all_reduce(x)", 1)
    first, second = computing(result, 0)
    assert second.start - first.end >= 0.5


def test_to_wait_for_a_late_rank_is_not_to_compute_and_beside_an_operation_there_is_computing() -> None:
    source = """
if rank == 1:
    dist.recv(x, 0)
    time.sleep(0.5)
reduction = dist.all_reduce(x, async_op=True)
work(0.1)
if rank == 0:
    dist.send(x, 1)
reduction.wait()
work(0.1)
"""
    result = run(source)
    (reduction,) = [e for e in result.trace.collectives(0) if e.operation == "all_reduce"]
    beside, after = computing(result, 0)
    assert reduction.start <= beside.start and beside.end + 0.4 <= reduction.end <= after.start
    assert busy(result.trace)[0].idle > 0.4


def test_what_ddp_waits_for_at_the_end_of_a_backward_pass_is_not_computing() -> None:
    source = """
from torch.nn.parallel import DistributedDataParallel
layers = [torch.nn.Linear(512, 512) for _ in range(6)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=1)
model(torch.randn(256, 512)).square().mean().backward()
dist.barrier()
y = model(torch.randn(256, 512)).square().mean()
if rank == 1:
    dist.recv(x, 0)
    time.sleep(0.5)
else:
    layers[0].weight.register_hook(lambda gradient: dist.send(x, 1))  # the last that a backward pass comes to
y.backward()
"""
    result = run(source)
    barrier = [e for e in result.trace.collectives(0) if e.operation == "barrier"][-1]
    reductions = [e for e in result.trace.collectives(0) if e.operation == "all_reduce" and e.start > barrier.end]
    assert len(reductions) > 2
    spans = [e for e in result.trace.of(0, Kind.COMPUTE) if e.start >= barrier.end]
    # the rank computes under the first buckets, then idles until the late one has joined
    assert any(reductions[0].start <= span.start and span.end <= reductions[0].end for span in spans)
    assert any(earlier.end + 0.4 < later.start for earlier, later in itertools.pairwise(spans))
    assert busy(result.trace)[0].idle > 0.4
