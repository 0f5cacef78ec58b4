"""GPU activity on the host's clock: from recorded CUDA events, and on a real GPU where there is one."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
import torch

from labkit import Job, local
from labkit.clusters.local.gpu_times import GpuTimes
from labkit.trace import Kind
from labkit.trace.busy import busy

HOST = 1000.0
"""Host clock at the GPU clock's zero."""


@dataclass(frozen=True)
class Recorded:
    """A CUDA event reached at `seconds` on the GPU's clock; CUDA gives times between two as 32-bit milliseconds."""

    seconds: float
    reached: bool = True

    def query(self) -> bool:
        return self.reached

    def elapsed_time(self, end_event: Recorded) -> float:
        (told,) = struct.unpack("f", struct.pack("f", 1e3 * (end_event.seconds - self.seconds)))
        return float(told)


def nothing() -> None:
    pass


def times() -> GpuTimes:
    return GpuTimes(Recorded(0.0), HOST, most=100_000)


def test_operations_and_what_is_computed_between_them() -> None:
    gpu = times()
    # an all_reduce that the program waits for, from 10 to 14 ms, then compute, then one from 20 to 21 ms
    for row, (start, end, asked) in enumerate([(0.010, 0.014, 0.001), (0.020, 0.021, 0.002)]):
        gpu.computing_ends(Recorded(start))
        gpu.operation(row, Recorded(start), Recorded(end), HOST + asked, nothing, None)
        gpu.computing_begins(Recorded(end), HOST + asked)
    gpu.computing_ends(Recorded(0.030))
    assert gpu.poll() == 0
    expected = [(-1, 0, 10), (0, 10, 14), (-1, 14, 20), (1, 20, 21), (-1, 21, 30)]
    assert _milliseconds(gpu) == expected


def test_a_gpu_that_waits_for_its_host_is_not_computing() -> None:
    gpu = times()
    gpu.computing_ends(Recorded(0.001))
    # the stream was free at 2 ms, but the program continued at 8 ms
    gpu.computing_begins(Recorded(0.002), HOST + 0.008)
    gpu.computing_ends(Recorded(0.010))
    # and here it put nothing on the stream at all
    gpu.computing_begins(Recorded(0.010), HOST + 0.012)
    gpu.computing_ends(Recorded(0.011))
    gpu.poll()
    assert _milliseconds(gpu) == [(-1, 0, 1), (-1, 8, 10)]


def test_what_is_not_over_is_kept_and_told_later() -> None:
    gpu, told = times(), []
    gpu.operation(0, Recorded(0.001), Recorded(0.002, reached=False), HOST, lambda: told.append(0), None)
    gpu.operation(1, Recorded(0.003), Recorded(0.004), HOST, lambda: told.append(1), None)
    assert (gpu.poll(), gpu.pending, told) == (1, 1, [1])
    assert _milliseconds(gpu) == [(1, 3, 4)]


def test_a_clock_that_runs_fast_is_set_right_by_the_last_moment_that_is_known_on_both() -> None:
    gpu = times()
    gpu.operation(0, Recorded(50.0), Recorded(50.5), HOST, nothing, None)
    gpu.poll()
    gpu.anchor(Recorded(100.0), HOST + 200.0)
    assert gpu.spans() == [(0, pytest.approx(HOST + 100.0), pytest.approx(HOST + 101.0))]


def test_after_an_hour_microseconds_are_still_told_apart() -> None:
    gpu = times()
    for row in range(3600):
        gpu.operation(row, Recorded(float(row)), Recorded(row + 20e-6), HOST, nothing, None)
        gpu.poll()
    row, start, end = gpu.spans()[-1]
    assert (row, start) == (3599, pytest.approx(HOST + 3599, abs=1e-3))
    assert end - start == pytest.approx(20e-6, abs=1e-6)


def _milliseconds(gpu: GpuTimes) -> list[tuple[int, float, float]]:
    """Return what is known, in order, in milliseconds from the beginning."""
    spans = sorted(gpu.spans(), key=lambda span: span[1:])
    return [(row, round(1e3 * (start - HOST), 3), round(1e3 * (end - HOST), 3)) for row, start, end in spans]


needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

HEAD = """\
import os, time, torch, torch.distributed as dist
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
dist.init_process_group("nccl")
x = torch.randn(8192, 8192, device="cuda")
small = torch.ones(1 << 22, device="cuda")

def work(times):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(times):
        x @ x
    end.record()
    return start, end

work(3), dist.all_reduce(small)
torch.cuda.synchronize()
"""


@needs_a_gpu
def test_on_a_real_gpu_computing_lasts_as_long_as_the_gpu_computes() -> None:
    source = """
dist.all_reduce(small)
marks = work(20)
posted = time.monotonic()
dist.all_reduce(small)
returned = time.monotonic() - posted
torch.cuda.synchronize()
marks[0].elapsed_time(marks[1]) / 1e3, returned
"""
    run = local(1).run(Job(source=HEAD + source, filename="Cell In[3]")).raise_if_failed()
    seconds, returned = run.values[0]
    *_, before, after = run.trace.of(0, Kind.COLLECTIVE)
    between = [e for e in run.trace.of(0, Kind.COMPUTE) if before.end <= e.start and e.end <= after.start + 1e-4]
    assert sum(e.end - e.start for e in between) == pytest.approx(seconds, rel=0.1)
    assert returned < seconds / 2, "nothing waits for the GPU"
    assert (before.line, after.line) == ("Cell In[3], line 18", "Cell In[3], line 21")
    assert run.trace.clock == "measured"


@needs_a_gpu
def test_on_a_real_gpu_an_asynchronous_operation_runs_beside_computing() -> None:
    source = """
works = []
for _ in range(5):
    works.append(dist.all_reduce(small, async_op=True))
    work(10)
for w in works:
    w.wait()
torch.cuda.synchronize()
"""
    run = local(1).run(Job(source=HEAD + source, filename="Cell In[3]")).raise_if_failed()
    (time,) = busy(run.trace)
    assert time.hidden > 0
    # what it waits for finished long ago; the first operation of all sets NCCL up, with nothing beside it
    first = next(iter(run.trace.of(0, Kind.COLLECTIVE)))
    assert time.exposed - (first.end - first.start) < 0.2 * time.compute


@needs_a_gpu
@pytest.mark.parametrize("program", ["ddp", "fsdp", "messages"])
def test_on_a_real_gpu_libraries_run_as_without_recording(program: str) -> None:
    programs = {
        "ddp": """
from torch.nn.parallel import DistributedDataParallel
model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda(),
                                bucket_cap_mb=2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    optimizer.zero_grad()
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
    optimizer.step()
""",
        "fsdp": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
for layer in model:
    fully_shard(layer, mesh=init_device_mesh("cuda", (dist.get_world_size(),)))
fully_shard(model, mesh=init_device_mesh("cuda", (dist.get_world_size(),)))
for step in range(5):
    model(torch.randn(64, 512, device="cuda")).square().mean().backward()
""",
        "messages": """
n, y = dist.get_world_size(), torch.empty_like(small)
right, left = (dist.get_rank() + 1) % n, (dist.get_rank() - 1) % n
if n > 1:
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, small, right), dist.P2POp(dist.irecv, y, left)]):
        work.wait()
    assert y.equal(small)
dist.all_gather_object([None] * n, "an object")
dist.barrier()
""",
    }
    ranks = min(2, torch.cuda.device_count())
    run = local(ranks).run(Job(source=HEAD + programs[program], filename="Cell In[3]")).raise_if_failed()
    wanted = {
        "ddp": {"all_reduce"},
        # alone, a rank has nothing to gather, and nobody to send to
        "fsdp": {"all_gather", "reduce_scatter"} if ranks > 1 else set(),
        "messages": {"isend", "irecv", "barrier"} if ranks > 1 else {"barrier"},
    }
    assert wanted[program] <= {e.operation for e in run.trace.events}
    assert all(0 <= e.start <= e.end <= run.wall_seconds for e in run.trace.events)
    assert run.notes == ()
