"""Real ranks record what virtual ranks record: the same operations of the same program, in the same order."""

from __future__ import annotations

from itertools import groupby
from typing import Any

import pytest

from labkit import Job, local, virtual
from labkit.trace import Event, Kind, Trace
from labkit.trace.messages import message_numbers

RANKS = 4
HEAD = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
right, left = (rank + 1) % n, (rank - 1) % n
torch.manual_seed(rank)
"""
PROGRAMS = {
    "ring": """
x, y = torch.ones(300), torch.empty(300)
for step in range(3):
    sending, receiving = dist.isend(x, right), dist.irecv(y, left)
    sending.wait()
    receiving.wait()
""",
    "batch": """
x, y = torch.ones(300), torch.empty(300)
ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, y, left)]
for work in dist.batch_isend_irecv(ops):
    work.wait()
""",
    "tags and anybody": """
x, y = torch.ones(5), torch.empty(5)
if rank == 0:
    first = dist.isend(x, 1, tag=1)
    second = dist.isend(x, 1, tag=2)
    first.wait(), second.wait()
elif rank == 1:
    dist.recv(y, 0, tag=2)
    dist.recv(y, 0, tag=1)
    dist.recv(y)
    dist.send_object_list(["an object"], 2)
elif rank == 2:
    dist.send(x, 1)
    dist.recv_object_list([None], 1)
""",
    "collectives": """
whole = torch.empty(n * n)
row, rows, part = lambda: torch.ones(n), lambda: [torch.empty(n) for _ in range(n)], lambda: torch.empty(1)
for async_op in (False, True):
    works = [
        dist.all_reduce(row(), async_op=async_op),
        dist.all_reduce(row(), dist.ReduceOp.MAX, async_op=async_op),
        dist.broadcast(row(), 1, async_op=async_op),
        dist.reduce(row(), 0, async_op=async_op),
        dist.all_gather(rows(), row(), async_op=async_op),
        dist.all_gather_into_tensor(whole, row(), async_op=async_op),
        dist.reduce_scatter(part(), list(row().chunk(n)), async_op=async_op),
        dist.reduce_scatter_tensor(part(), row(), async_op=async_op),
        dist.all_to_all_single(torch.empty(n), row(), async_op=async_op),
        dist.gather(row(), rows() if rank == 0 else None, async_op=async_op),
        dist.scatter(torch.empty(n), [row()] * n if rank == 1 else None, src=1, async_op=async_op),
        dist.barrier(async_op=async_op),
    ]
    [work.wait() for work in works if work]
if torch.__version__ >= "2.13":  # gloo's has no lists before
    dist.all_to_all(list(torch.empty(n).chunk(n)), list(torch.ones(n).chunk(n)))
dist.monitored_barrier()
""",
    "objects": """
dist.all_gather_object([None] * n, {"rank": rank})
dist.broadcast_object_list([rank])
dist.gather_object(rank, [None] * n if rank == 0 else None)
dist.scatter_object_list([None], list("abcd") if rank == 0 else None)
""",
    "coalesced": """
from torch.distributed.distributed_c10d import _coalescing_manager
with _coalescing_manager():
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(4))
with _coalescing_manager(async_ops=True) as works:
    dist.all_gather_into_tensor(torch.empty(n), torch.ones(1))
works.wait()
dist.all_reduce_coalesced([torch.ones(2), torch.ones(3)])
dist.all_gather_coalesced([[torch.empty(2)] for _ in range(n)], [torch.ones(2)])
""",
    "functional": """
import torch.distributed._functional_collectives as functional
import torch.distributed.nn.functional as differentiable
x = functional.all_reduce(torch.ones(6), "sum", list(range(n))) + 1
y = functional.all_gather_tensor(torch.ones(2, 3), 0, dist.group.WORLD) + 1
z = functional.reduce_scatter_tensor(torch.ones(n, 2), "sum", 0, dist.group.WORLD) + 1
w = functional.all_to_all_single(torch.ones(n), None, None, dist.group.WORLD) + 1
v = torch.ones(5, requires_grad=True)
differentiable.all_reduce(v).sum().backward()
""",
    "ddp": """
from torch.nn.parallel import DistributedDataParallel
layers = [torch.nn.Linear(256, 256) for _ in range(4)]
model = DistributedDataParallel(torch.nn.Sequential(*layers), bucket_cap_mb=0.5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(3):
    optimizer.zero_grad()
    model(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
""",
    "fsdp": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
mesh = init_device_mesh("cpu", (n,))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
""",
    "tensor parallel": """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
parallelize_module(model, init_device_mesh("cpu", (n,)), {"0": ColwiseParallel(), "2": RowwiseParallel()})
model(torch.ones(4, 16, requires_grad=True)).sum().backward()
""",
    "pipeline": """
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
stage = PipelineStage(torch.nn.Linear(32, 32), rank, n, torch.device("cpu"))
schedule = ScheduleGPipe(stage, 2, loss_fn=torch.nn.functional.mse_loss)
x = torch.ones(8, 32)
schedule.step(*([x] if rank == 0 else []), **({"target": x} if rank == n - 1 else {}))
""",
    "subgroups": """
groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
group, other = groups[rank % 2], (rank + 2) % n
dist.all_reduce(torch.ones(5), group=group)
if rank < 2:
    dist.send(torch.ones(5), other, group=group)
else:
    dist.recv(torch.empty(5), other, group=group)
dist.barrier(group=group)
""",
    "a second init": """
dist.all_reduce(torch.ones(2))
dist.destroy_process_group()
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(2))
dist.all_reduce(torch.ones(3), group=dist.new_group([0, 1, 2, 3]))
""",
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_real_ranks_record_what_virtual_ranks_do(program: str) -> None:
    # where it sees a GPU, torch makes a mesh's groups anew, for both kinds of tensors
    hidden = {"CUDA_VISIBLE_DEVICES": ""}
    job = Job(source=HEAD + PROGRAMS[program], filename="Cell In[3]", environment=hidden)
    modelled = virtual(nproc_per_node=RANKS).run(job).raise_if_failed().trace
    measured = local(nproc_per_node=RANKS).run(job).raise_if_failed().trace
    assert measured.groups == modelled.groups
    for rank in range(RANKS):
        found = _operations(measured, rank)
        for expected in _at_one_time(_operations(modelled, rank)):
            part, found = found[: len(expected)], found[len(expected) :]
            assert sorted(map(_what, part)) == sorted(map(_what, expected))
        assert not found
    assert _pairs(measured) == _pairs(modelled)


def _operations(trace: Trace, rank: int) -> list[Event]:
    return [event for event in trace.of(rank) if event.kind is not Kind.COMPUTE]


def _at_one_time(events: list[Event]) -> list[list[Event]]:
    """Group events by time: without compute, virtual time stands still, and operations of one moment are unordered."""
    return [list(part) for _, part in groupby(events, key=lambda event: event.start)]


def _what(event: Event) -> tuple[Any, ...]:
    peer = -1 if event.peer is None else event.peer
    sequence = event.sequence if event.kind is Kind.COLLECTIVE else -1
    return event.kind, event.operation, event.nbytes, peer, event.group, sequence, event.line


def _pairs(trace: Trace) -> list[Any]:
    """Match sends with receives: each by its rank and its index among equal events there."""
    names: dict[int, Any] = {}
    counts: dict[Any, int] = {}
    for number, event in enumerate(trace.events):
        what = event.rank, _what(event)
        counts[what] = counts.get(what, -1) + 1
        names[number] = what, counts[what]
    return sorted((names[sent], names[received]) for sent, received in message_numbers(trace))
