"""Side streams: their collectives run in parallel with the rank's work, as far as events allow."""

import pytest

from labkit import Job, virtual
from labkit.hardware import Link
from labkit.trace import Kind
from labkit.trace.busy import busy

LINK = Link("test", gb_per_s=10.0, latency_seconds=1e-6, source="test")
HEAD = """
import time, torch, torch.distributed as dist
dist.init_process_group("gloo")
x, y = torch.ones(4_000_000), torch.ones(512, 512)
side = torch.cpu.Stream()
def work():
    for _ in range(40):
        y @ y
def timed(act):
    dist.barrier()
    began = time.perf_counter()
    act()
    return time.perf_counter() - began
def communicate():
    dist.all_reduce(x)
def both_at_once():
    side.wait_stream(torch.cpu.current_stream())
    with torch.cpu.stream(side):
        dist.all_reduce(x)
    work()
    torch.cpu.current_stream().wait_stream(side)
"""


def values(source, ranks="threads", n=2):
    cluster = virtual(nproc_per_node=n, intra_node=LINK, gpu="a100-80gb", ranks=ranks)
    return cluster.run(Job(source=HEAD + source)).raise_if_failed().values[0]


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_a_collective_on_a_side_stream_takes_the_longer_of_both_times(ranks):
    computing, communicating, both = values("timed(work), timed(communicate), timed(both_at_once)", ranks)
    assert both == pytest.approx(max(computing, communicating), rel=0.02)
    assert min(computing, communicating) > 0.2 * max(computing, communicating)


def test_the_sum_is_there_and_an_event_is_waited_for_not_the_whole_stream():
    source = """
def two():
    side.wait_stream(torch.cpu.current_stream())
    with torch.cpu.stream(side):
        dist.all_reduce(x)
        first = side.record_event()
        dist.all_reduce(x)
    torch.cpu.current_stream().wait_event(first)
timed(communicate), timed(two), x[0].item(), side.query()
"""
    one, until_first, value, done = values(source)
    assert until_first == pytest.approx(one, rel=0.02)
    assert value == 8.0 and not done


def test_a_collective_begins_when_its_stream_has_waited_for_what_it_needs():
    source = """
def prefetched():
    ready = torch.cpu.Event()
    ready.record()
    work()
    side.wait_event(ready)  # asked for after the work, but it needs nothing of it
    with torch.cpu.stream(side):
        dist.all_reduce(x)
    torch.cpu.current_stream().wait_stream(side)
def needed():
    work()
    side.wait_stream(torch.cpu.current_stream())
    with torch.cpu.stream(side):
        dist.all_reduce(x)
    torch.cpu.current_stream().wait_stream(side)
timed(work), timed(communicate), timed(prefetched), timed(needed)
"""
    computing, communicating, prefetched, needed = values(source)
    assert prefetched == pytest.approx(max(computing, communicating), rel=0.02)
    assert needed == pytest.approx(computing + communicating, rel=0.02)


FSDP = """
import torch, torch.distributed as dist
from labkit.models import GPT, GPTConfig
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
config = GPTConfig(4, 4, {width}, vocab=1000, context=256)
torch.manual_seed(0)
mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
model = GPT(config)
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
tokens = torch.randint(config.vocab, (1, config.context))
loss = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
loss.backward()
"""


def test_fsdp_hides_communication_behind_computing():
    run = virtual("dgx-a100", fake=True).run(Job(source=FSDP.format(width=2048))).raise_if_failed()
    for rank in busy(run.trace):
        assert rank.hidden > 0.3 * (rank.hidden + rank.exposed)
        assert rank.compute + rank.exposed < run.trace.seconds * 1.02


def test_fsdps_trace_is_the_same_with_ranks_in_processes():
    job = Job(source=FSDP.format(width=64))
    threads, processes = (
        virtual(nproc_per_node=2, ranks=r).run(job).raise_if_failed() for r in ("threads", "processes")
    )
    assert threads.trace.of(kind=Kind.COLLECTIVE) == processes.trace.of(kind=Kind.COLLECTIVE)
    assert threads.trace.events == processes.trace.events
