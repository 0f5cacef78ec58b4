"""The trace of real ranks: every operation of an unmodified program, with bytes, peer, line, start and end."""

from __future__ import annotations

import pytest

from labkit import Job, Run, local
from labkit.trace import Kind

HEAD = """\
import torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
"""


def run(source: str, ranks: int = 2, **options: object) -> Run:
    job = Job(source=HEAD + source, filename="Cell In[3]", **options)  # type: ignore[arg-type]
    return local(nproc_per_node=ranks).run(job).raise_if_failed()


def test_unmodified_ddp_program() -> None:
    source = """
from torch.nn.parallel import DistributedDataParallel
torch.manual_seed(rank)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Linear(50, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2):
    optimizer.zero_grad()
    loss = model(torch.randn(8, 100)).square().mean()
    loss.backward()
    optimizer.step()
[p.sum().item() for p in model.parameters()]
"""
    result = run(source, 3)
    assert result.values[0] == result.values[1] == result.values[2]
    gradients = 4 * (100 * 50 + 50 + 50 * 10 + 10)
    for rank in range(3):
        events = result.trace.collectives(rank)
        reductions = [e for e in events if e.operation == "all_reduce"]
        assert [e.line for e in reductions] == ["Cell In[3], line 12"] * len(reductions)
        assert sum(e.nbytes for e in reductions) == 2 * gradients
        assert any(e.operation == "broadcast" and e.line == "Cell In[3], line 7" for e in events)
        assert [e.sequence for e in events] == list(range(len(events)))
        assert all(0 < e.start <= e.end < result.wall_seconds for e in events)
    assert result.trace.clock == "measured"


RINGS = {
    "isend": """
    request = dist.isend(x, (rank + 1) % n)
    dist.recv(y, (rank - 1) % n)
    request.wait()
""",
    "batch": """
    ops = [dist.P2POp(dist.isend, x, (rank + 1) % n), dist.P2POp(dist.irecv, y, (rank - 1) % n)]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
""",
    "alternating": """
    if rank % 2 == 0:
        dist.send(x, (rank + 1) % n)
        dist.recv(y, (rank - 1) % n)
    else:
        dist.recv(y, (rank - 1) % n)
        dist.send(x, (rank + 1) % n)
""",
}


@pytest.mark.parametrize("way", RINGS)
def test_messages_of_a_ring(way: str) -> None:
    source = "x, y = torch.full((100,), float(rank)), torch.empty(100)\nfor round in range(3):" + RINGS[way]
    source += "y[0].item()"
    result = run(source, 4)
    assert result.values == [3.0, 0.0, 1.0, 2.0]
    for rank in range(4):
        assert result.trace.bytes_sent(rank) == 3 * 400
        assert result.trace.messages_sent(rank) == 3
        assert result.trace.sends_to(rank) == {(rank + 1) % 4}
        assert {e.peer for e in result.trace.of(rank, Kind.RECEIVE)} == {(rank - 1) % 4}
        assert result.trace.collectives(rank) == []
        messages = [e for e in result.trace.of(rank) if e.kind is not Kind.COMPUTE]
        assert all(e.line.startswith("Cell In[3], line ") and e.start <= e.end for e in messages)
    names = {e.operation for e in result.trace.of(0) if e.kind is not Kind.COMPUTE}
    assert names == {"isend": {"isend", "recv"}, "batch": {"isend", "irecv"}, "alternating": {"send", "recv"}}[way]


def test_receive_from_anybody_learns_who_it_was_and_tags_are_kept_apart() -> None:
    source = """
if rank == 0:
    requests = [dist.isend(torch.tensor([float(tag)]), 1, tag=tag) for tag in (1, 2)]
    got = [request.wait() for request in requests]
elif rank == 1:
    a, b, c = torch.empty(1), torch.empty(1), torch.empty(1)
    dist.recv(b, 0, tag=2)
    dist.recv(a, 0, tag=1)
    got = [a.item(), b.item(), dist.recv(c), c.item()]
else:
    dist.send(torch.tensor([3.0]), 1)
    got = []
got
"""
    result = run(source, 3)
    assert result.values[1] == [1.0, 2.0, 2, 3.0]
    assert [e.peer for e in result.trace.of(1, Kind.RECEIVE)] == [0, 0, 2]


def test_sub_groups_have_global_peers_and_their_members_are_known() -> None:
    source = """
groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
group = groups[rank % 2]
x = torch.ones(5)
dist.all_reduce(x, group=group)
if rank == 0:
    dist.send(x, 2, group=group)
if rank == 2:
    dist.recv(x, 0, group=group)
(x[0].item(), dist.get_backend(group), dist.get_process_group_ranks(group))
"""
    result = run(source, 4)
    assert result.values == [(2.0, "gloo", [r % 2, r % 2 + 2]) for r in range(4)]
    (send,) = result.trace.of(0, Kind.SEND)
    (collective,) = result.trace.collectives(3)
    assert (send.peer, result.trace.groups[send.group]) == (2, (0, 2))
    assert (collective.nbytes, result.trace.groups[collective.group]) == (20, (1, 3))


def test_every_collective_is_recorded_and_right() -> None:
    source = """
t = torch.arange(n, dtype=torch.float32) + rank
out = {}
x = t.clone(); dist.all_reduce(x, async_op=True).wait(); out["all_reduce"] = x
x = t.clone(); dist.broadcast(x, 1); out["broadcast"] = x
x = t.clone(); dist.reduce(x, 0); out["reduce"] = x if rank == 0 else None
xs = [torch.empty(n) for _ in range(n)]; dist.all_gather(xs, t); out["all_gather"] = xs
x = torch.empty(n * n); dist.all_gather_into_tensor(x, t); out["into"] = x
x = torch.empty(1); dist.reduce_scatter_tensor(x, t); out["scattered"] = x
x = torch.empty(1); dist.reduce_scatter(x, list(t.chunk(n))); out["reduce_scatter"] = x
x = torch.empty(n); dist.all_to_all_single(x, t); out["all_to_all"] = x
xs = [torch.empty(n) for _ in range(n)] if rank == 0 else None; dist.gather(t, xs); out["gather"] = xs
x = torch.empty(n); dist.scatter(x, [t] * n if rank == 1 else None, src=1); out["scatter"] = x
dist.barrier()
objects = ["first"] if rank == 0 else [None]; dist.broadcast_object_list(objects); out["object"] = objects
out
"""
    result = run(source, 3)
    total = [3.0, 6.0, 9.0]
    out = result.values[1]
    assert out["all_reduce"].tolist() == total
    assert out["broadcast"].tolist() == [1.0, 2.0, 3.0]
    assert result.values[0]["reduce"].tolist() == total
    assert [x.tolist() for x in out["all_gather"]] == [[0.0, 1.0, 2.0], [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]
    assert out["into"].tolist() == [0.0, 1.0, 2.0, 1.0, 2.0, 3.0, 2.0, 3.0, 4.0]
    assert out["scattered"].tolist() == out["reduce_scatter"].tolist() == [6.0]
    assert out["all_to_all"].tolist() == [1.0, 2.0, 3.0]
    assert [x.tolist() for x in result.values[0]["gather"]] == [x.tolist() for x in out["all_gather"]]
    assert out["scatter"].tolist() == [1.0, 2.0, 3.0]
    assert out["object"] == ["first"]
    assert [(e.operation, e.nbytes) for e in result.trace.collectives(1)][:11] == [
        ("all_reduce", 12),
        ("broadcast", 12),
        ("reduce", 12),
        ("all_gather", 12),
        ("all_gather", 12),
        ("reduce_scatter", 12),
        ("reduce_scatter", 12),
        ("all_to_all", 12),
        ("gather", 12),
        ("scatter", 36),
        ("barrier", 0),
    ]


def test_fully_sharded_data_parallel_is_recorded_too() -> None:
    source = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
model = torch.nn.Linear(8, 8, bias=False)
fully_shard(model, mesh=init_device_mesh("cpu", (n,)))
model(torch.ones(2, 8)).sum().backward()
"""
    counts = run(source).trace.collective_counts(0)
    assert counts["all_gather"] >= 1 and counts["reduce_scatter"] == 1


def test_start_up_ends_with_the_process_group() -> None:
    source = """
import time, torch, torch.distributed as dist
torch.ones(300, 300) @ torch.ones(300, 300)
end = time.process_time() + 0.1
while time.process_time() < end: pass
dist.init_process_group("gloo")
dist.new_group([0, 1])
dist.barrier()
dist.all_reduce(torch.ones(1))"""
    trace = local(nproc_per_node=2).run(Job(source=source)).raise_if_failed().trace
    assert trace.ranks_per_machine == 2 and trace.machines == 1
    for rank in range(2):
        assert [(m.backend, trace.groups[m.group]) for m in trace.memberships_of(rank)] == [("gloo", (0, 1))] * 2
        before = trace.memberships_of(rank)[0].joined
        assert any(e.start < before and e.end - e.start > 0.05 for e in trace.of(rank, Kind.COMPUTE))
        assert all(event.start >= before for event in trace.without_start_up().of(rank))
    assert trace.without_start_up().collectives() == trace.collectives()
    assert [event.operation for event in trace.since_barrier().collectives()] == ["all_reduce"] * 2


def test_no_trace_when_none_is_asked_for() -> None:
    assert run("dist.all_reduce(torch.ones(1))", trace=False).trace.events == ()
