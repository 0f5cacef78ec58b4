"""Process groups on virtual ranks: groups within groups, DDP's log of its group, groups of a program's own; no RPC."""

from __future__ import annotations

from pathlib import Path

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, local, virtual

NESTED = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
outer, _ = dist.new_subgroups_by_enumeration([[0, 2, 4, 6], [7, 5, 3, 1]])
inner, all_inner = dist.new_subgroups(group_size=1, group=outer)
sums = []
for group in (inner, outer):
    total = torch.tensor(float(2 ** dist.get_rank()))
    dist.all_reduce(total, group=group)
    sums.append(total.item())
members = [group is not dist.GroupMember.NON_GROUP_MEMBER for group in all_inner]
[dist.get_process_group_ranks(inner), members, sums]
"""
LOGGED = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
parallel(torch.ones(3)).sum().backward()
data = parallel._get_ddp_logging_data()
said = [data["backend_name"], data["rank"], data["world_size"], data["bucket_sizes"], data["cuda_visible_devices"]]
[*said, data["master_addr"] == os.environ["MASTER_ADDR"], data["master_port"] == os.environ["MASTER_PORT"]]
"""


FAKE = """
import torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
dist.init_process_group("gloo")
size = dist.get_world_size()
mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("stages", "data"), backend_override={"stages": "fake"})
total = torch.ones(1)
dist.all_reduce(total, group=mesh["data"].get_group())
dist.all_gather([torch.empty(1)], total, group=mesh["stages"].get_group())
[dist.get_backend(mesh[name].get_group()) for name in ("stages", "data")], total.item()
"""
OWN = (Path(__file__).parent / "programs/own_groups.py").read_text()


@pytest.mark.parametrize(
    ("source", "ranks"),
    [(NESTED, 8), (LOGGED, 2), (FAKE, 2), (OWN, 3)],
    ids=["groups within groups", "DDP's log", "a fake group of one", "groups of its own"],
)
def test_is_as_on_local_ranks(source: str, ranks: int) -> None:
    job = Job(source=source)
    real = local(nproc_per_node=ranks).run(job).raise_if_failed().values
    assert virtual(nproc_per_node=ranks).run(job).raise_if_failed().values == real
    assert virtual(nproc_per_node=ranks, ranks="processes").run(job).raise_if_failed().values == real


def test_ranks_that_forget_each_others_groups_are_told() -> None:
    source = "import torch.distributed as dist\ndist.init_process_group()\ndist.new_group([dist.get_rank()])"
    run = virtual(nproc_per_node=2).run(Job(source=source))
    assert "every rank must call new_group for every group" in run.diagnosis()


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_rpc_is_refused_with_the_reason(kind: str) -> None:
    source = "import os, torch.distributed.rpc as rpc\nrpc.init_rpc('w' + os.environ['RANK'])"
    run = virtual(nproc_per_node=2, ranks=kind).run(Job(source=source, timeout=BROKEN_SECONDS))
    assert (
        "RuntimeError on every rank at <cell>, line 2: virtual ranks have no torch.distributed.rpc" in run.diagnosis()
    )
