"""What virtual ranks compute once for all of them, or in fewer steps than torch: the results are torch's own."""

from __future__ import annotations

import pytest
from waiting import BROKEN_SECONDS

from labkit import Job, virtual

HEAD = """
import torch, torch.distributed as dist
from torch import nn
dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
"""


def output(source: str, ranks: int = 2, fake: bool = True) -> list[str]:
    run = (
        virtual(nproc_per_node=ranks, fake=fake)
        .run(Job(source=f"{HEAD}{source}", timeout=BROKEN_SECONDS))
        .raise_if_failed()
    )
    return [rank.output.strip() for rank in run.ranks]


RULE = """
from torch.utils._python_dispatch import TorchDispatchMode

class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))

library = torch.library.Library(f"labtest{rank}", "DEF")
library.define("negative(Tensor x) -> Tensor")
library.impl("negative", lambda x: -x, "CompositeExplicitAutograd")
negative = getattr(torch.ops, f"labtest{rank}").negative.default
with Mode():
    negative(torch.ones(2))
called = []
rule = lambda mode, function, types, args, kwargs: called.append(1) or args[0]
torch.library.register_torch_dispatch(f"labtest{rank}::negative", Mode, rule, lib=library)
with Mode():
    negative(torch.ones(2))
print(called)
"""


@pytest.mark.parametrize("fake", [False, True])
def test_an_operator_s_rule_for_a_mode_is_found_also_if_it_comes_after_the_first_call(fake: bool) -> None:
    assert output(RULE, fake=fake) == ["[1]", "[1]"]


STRIDES = """
from torch.distributed.fsdp import fully_shard
model = nn.Module()
model.parameter = nn.Parameter(torch.empty(5, 3, 2))
model.empty = nn.Parameter(torch.empty(0, 4))
model.scalar = nn.Parameter(torch.empty(1))
fully_shard(model)
print([(tuple(p.to_local().shape), p.to_local().stride(), p.stride()) for p in model.parameters()])
"""


def test_uneven_and_empty_shards_of_fake_parameters_are_those_of_real_ones() -> None:
    fake, real = (output(STRIDES, 3, fake) for fake in (True, False))
    assert fake == real
    assert len({*fake}) == 3, "each rank has shards of other sizes"


DECISIONS = """
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
mesh = dist.device_mesh.init_device_mesh("cpu", (world_size,))
table = torch.arange(28.0).view(7, 4)
shapes, told = [], []
def look(tensor):
    told.append((str(tensor.placements), tuple(tensor.shape), tuple(tensor.to_local().shape)))
    if {values}:
        told.append(tensor.full_tensor().tolist())
for kind in (Shard(0), Shard(1), Replicate()):
    x = distribute_tensor(table, mesh, [kind])
    look(x.view(7, 4, 1))            # sizes that replace an argument: other ones on each rank
    look(x.unsqueeze(1).expand(7, 3, 4))
    look(x @ distribute_tensor(table.t().contiguous(), mesh, [Shard(0)]))
    weight = distribute_tensor(torch.ones(5, 4), mesh, [Shard(1)])
    bias = distribute_tensor(torch.ones(5), mesh, [Replicate()])
    look(nn.functional.linear(x, weight, bias))
    look(nn.functional.softmax(x, 0))
    look(x.new_zeros(7, 4))
part = DTensor.from_local(torch.full((3, 3), float(rank)), mesh, [Partial()])
look(part + part)
look(part.relu())
look(part.view(9))
# a rank outside of a mesh asks first, weighs no costs, and decides for itself alone
inner = dist.device_mesh.DeviceMesh("cpu", list(range(1, world_size)))
rows = 4 * world_size - 4
x, y = (
    DTensor.from_local(
        torch.ones(number, 2) if rank else torch.empty(0), inner, [kind], shape=(rows, 2), stride=(2, 1)
    )
    for number, kind in ((4, Shard(0)), (rows, Replicate()))
)
if rank:
    dist.barrier()
    look(x + y)
    look(nn.functional.softmax(x, 0))
else:
    x + y
    nn.functional.softmax(x, 0)
    dist.barrier()
print(told)
"""


def test_decisions_that_ranks_share_are_those_that_each_makes_for_itself() -> None:
    shared, alone = (
        virtual(nproc_per_node=3, account=account).run(
            Job(source=HEAD + DECISIONS.format(values=True), timeout=BROKEN_SECONDS)
        )
        for account in (True, False)
    )
    told = [[rank.output for rank in run.raise_if_failed().ranks] for run in (shared, alone)]
    assert told[0] == told[1]
    assert len({*told[0]}) == 3, "each rank has shards of other sizes"
    fake = virtual(nproc_per_node=3, fake=True).run(
        Job(source=HEAD + DECISIONS.format(values=False), timeout=BROKEN_SECONDS)
    )
    real = virtual(nproc_per_node=3).run(Job(source=HEAD + DECISIONS.format(values=False), timeout=BROKEN_SECONDS))
    assert [rank.output for rank in fake.raise_if_failed().ranks] == [rank.output for rank in real.ranks]


VIEWS = """
x = torch.ones(4, 6)
x.add_(1)
weight = nn.Parameter(torch.ones(4, 6)[1:])
told = []
for _ in range(2):  # the second time the results are known
    for base in (x, x[2:], x.t(), weight):
        for view in (base.detach(), base.view_as(base), torch.ops.aten.alias(base), base[1:]):
            offset, before = view.storage_offset() - base.storage_offset(), base._version
            with torch.no_grad():
                view.add_(1)
            form = tuple(view.shape), view.stride(), offset, view.is_leaf, view.requires_grad
            told.append((*form, base._version - before))
print(told)
"""


def test_known_views_of_fake_tensors_are_those_of_real_ones() -> None:
    fake, real = (output(VIEWS, 2, fake) for fake in (True, False))
    assert fake == real


STEPS = """
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2))
told = []
for kinds in [(Shard(0), Shard(0)), (Shard(0), Shard(1)), (Replicate(), Shard(1)), (Shard(1), Shard(0))]:
    x = distribute_tensor(torch.ones(5, 7), mesh, kinds)
    for target in [(Replicate(), Replicate()), (Shard(1), Shard(1)), (Shard(0), Replicate()), (Replicate(), Shard(0))]:
        told.append(tuple(x.redistribute(mesh, target).to_local().shape))
print(told)
"""


def test_redistributions_of_fake_tensors_take_the_steps_of_real_ones_at_each_place() -> None:
    runs = [
        virtual(nproc_per_node=4, fake=fake).run(Job(source=HEAD + STEPS, timeout=BROKEN_SECONDS)).raise_if_failed()
        for fake in (True, False)
    ]
    fake, real = ([rank.output.splitlines()[-1] for rank in run.ranks] for run in runs)  # before it, DTensor's advice
    assert fake == real
    assert len({*fake}) == 4, "each rank has shards of other sizes"
    assert runs[0].trace.events == runs[1].trace.events


PARTS = """
import copy
mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2, 1), mesh_dim_names=("data", "tensor", "one"))
told = []
def look(part):
    groups = [dist.get_process_group_ranks(group) for group in part.get_all_groups()]
    told.append((str(part), part.mesh.tolist(), part.get_coordinate(), part.get_local_rank(0), groups))
for _ in range(2):  # the second time the part is known
    for names in ("data", "tensor", ("data", "one")):
        part = mesh[names]
        look(part)
        look(copy.copy(part))
        told.append((part == mesh[names], hash(part) == hash(mesh[names]), part is mesh[names], hasattr(part, "mark")))
        part.mark = True
    look(mesh["data", "tensor"]["tensor"])
    look(mesh["data", "tensor"]._flatten("both"))
    told.append((mesh["data", "tensor", "one"] is mesh, sorted(vars(copy.copy(mesh)))))
    try:
        mesh["tensor", "data"]
    except KeyError as error:
        told.append(str(error))
print(told)
"""


def test_known_parts_of_a_mesh_are_those_that_torch_makes() -> None:
    fake, real = (output(PARTS, 4, fake) for fake in (True, False))
    assert fake == real
    assert len({*fake}) == 4, "each rank has a place of its own"


SHARDED_TWICE = """
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
told = []
for _ in range(2):  # the second time all specifications are known
    model = nn.Sequential(nn.Linear(6, 8), nn.Linear(8, 5))
    parallelize_module(model, mesh["tensor"], {"0": ColwiseParallel(), "1": RowwiseParallel()})
    fully_shard(model, mesh=mesh["data"])
    model(torch.ones(3, 6)).sum().backward()
    for parameter in model.parameters():
        for tensor in (parameter, parameter.grad, parameter.detach()):
            told.append((str(tensor.placements), tuple(tensor.shape), tensor.stride(), tuple(tensor.to_local().shape)))
print(told)
"""


def test_parameters_that_are_sharded_twice_are_those_of_real_ranks() -> None:
    # the last line, after DTensor's advice
    fake, real = ([text.splitlines()[-1] for text in output(SHARDED_TWICE, 4, fake)] for fake in (True, False))
    assert fake == real
    assert "StridedShard" in fake[0]
