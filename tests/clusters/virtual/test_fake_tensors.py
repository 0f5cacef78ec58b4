"""Fake tensors: the same times, traffic and memory as real ones, at any size; an error where values are needed."""

from __future__ import annotations

from textwrap import dedent

import pytest
from waiting import BROKEN_SECONDS

from labkit import InvalidJob, Job, Run, virtual
from labkit.models import GPTConfig
from labkit.trace import Category, Kind, Trace

HEAD = """
import torch, torch.nn as nn, torch.distributed as dist
from labkit.models import GPT, GPTConfig
dist.init_process_group()
rank, world_size = dist.get_rank(), dist.get_world_size()
"""
FSDP = """
from torch.distributed.fsdp import fully_shard
mesh = dist.device_mesh.init_device_mesh("cpu", (world_size,))
with torch.device("meta"):
    model = GPT(config)
for block in model.blocks:
    fully_shard(block, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to_empty(device="cpu")
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(config.vocab, (1, config.context))
logits = model(tokens)
nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
optimizer.step()
optimizer.zero_grad()
"""
DDP = """
model = nn.parallel.DistributedDataParallel(GPT(config), bucket_cap_mb=0.1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
tokens = torch.randint(config.vocab, (2, config.context))
for _ in range(2):
    logits = model(tokens)
    nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten()).backward()
    optimizer.step()
    optimizer.zero_grad()
"""
RING = """
chunks = [torch.ones(1000) for _ in range(world_size)]
for step in range(world_size - 1):
    work = dist.isend(chunks[(rank - step) % world_size], (rank + 1) % world_size)
    received = torch.empty(1000)
    dist.recv(received, (rank - 1) % world_size)
    work.wait()
    chunks[(rank - step - 1) % world_size] += received
gathered = [torch.empty(3) for _ in range(world_size)]
dist.all_gather(gathered, torch.ones(3))
dist.reduce_scatter_tensor(torch.empty(3), torch.ones(3 * world_size))
dist.all_to_all_single(torch.empty(world_size), torch.ones(world_size))
"""

TENSOR_PARALLEL = """
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = dist.device_mesh.init_device_mesh("cpu", (world_size,))
model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.LayerNorm(64), nn.Linear(64, 4))
parallelize_module(model, mesh, {
    "0": ColwiseParallel(), "2": RowwiseParallel(),
    "4": ColwiseParallel(input_layouts=Shard(0), output_layouts=Replicate()),
})
optimizer = torch.optim.AdamW(model.parameters(), fused=False)
for step in range(2):
    model(torch.randn(4 + 4 * step, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def run(source: str, ranks: int, fake: bool = True, config: str = "GPTConfig(2, 2, 64, 512, 64)") -> Run:
    job = Job(source=f"{HEAD}\nconfig = {config}\n{source}", filename="Cell In[1]")
    return virtual(nproc_per_node=ranks, fake=fake).run(job)


def what_happened(trace: Trace) -> list[tuple[object, ...]]:
    return [(e.rank, e.kind, e.operation, e.nbytes, e.peer, e.sequence) for e in trace.events]


@pytest.mark.parametrize(
    "source", [RING, FSDP, TENSOR_PARALLEL], ids=["messages and collectives", "FSDP2", "tensor parallelism"]
)
def test_fake_tensors_take_the_time_traffic_and_memory_of_real_ones(source: str) -> None:
    real, fake = (run(source, 4, fake=f).raise_if_failed().trace for f in (False, True))
    assert what_happened(fake) == what_happened(real)
    assert fake.events == real.events
    assert [fake.peak_by_category(rank) for rank in range(4)] == [real.peak_by_category(rank) for rank in range(4)]


def test_ddp_forms_the_buckets_that_it_forms_on_real_tensors() -> None:
    real, fake = (
        [e.nbytes for e in run(DDP, 2, fake=f).raise_if_failed().trace.collectives(0) if e.operation == "all_reduce"]
        for f in (False, True)
    )
    buckets = fake[len(fake) // 2 :]
    assert fake == 2 * buckets and len(buckets) > 1
    assert sum(buckets) == 4 * GPTConfig(2, 2, 64, 512, 64).parameters
    # real DDP has ordered its buckets by the second pass
    assert real[-len(buckets) :] == buckets


def test_results_have_the_form_of_real_ones_also_when_seen_before() -> None:
    source = """
        x = torch.zeros(6, 4)
        def form(t):
            return tuple(t.shape), t.stride(), t.storage_offset(), str(t.dtype)
        def forms():
            flat = torch.arange(24.0)
            turned = torch.zeros(6, 4)
            turned.t_()
            wide = torch.zeros(2, 3, 4)
            out = torch.empty(3)
            torch.cat([flat[:2], flat[2:3]], out=out)
            tail = flat[10:]
            parts = *x.split(2), *x.unbind(1), *torch.std_mean(x, 0), x[1:].view(-1)[3:], x.int().view(torch.float32)
            made = [torch.empty(3), torch.ones(2, dtype=torch.int64) / 2, torch.arange(0, 1, 0.25), torch.tensor(3.5)]
            moved = wide.transpose(0, 2).squeeze_(), x.contiguous(), x.t().contiguous(), x.t().to(torch.float16)
            views = flat.as_strided((2, 2), (1, 3), 5), tail.as_strided((2, 2), (1, 3), 5), tail.as_strided((3,), (2,))
            masked = nn.functional.layer_norm(x, (4,)), torch.zeros(0, 3).sum(0), x.add_(1).mul_(0.5).clamp_(0, 1)
            as_bytes = x.view(torch.uint8), x[2:].view(torch.uint8), torch.view_as_real(flat.to(torch.complex64)[3:])
            back = [as_bytes[0][start:].view(torch.float32) for start in (1, 4)]
            given = torch.div(x[1:3], 2, out=x[4:]), torch.add(x[1:3], 2, out=torch.empty(2, 4))
            return [form(t) for t in (turned, out, *parts, *made, *moved, *views, *masked, *as_bytes, *back, *given)]
        first, again = forms(), forms()
        torch.set_default_dtype(torch.float64)
        other = forms()
        torch.set_default_dtype(torch.float32)
        [first, again, other, forms()]
    """
    real, fake = (run(dedent(source), 2, fake=f).raise_if_failed() for f in (False, True))
    assert fake.values[0] == fake.values[1] == real.values[0]


UNEVEN = """
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
dist.init_process_group()
mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
by_row, by_column = torch.nn.Linear(6, 5), torch.nn.Linear(8, 5, bias=False)  # 5 rows: 2, 2, 1 and none
fully_shard(by_row, mesh=mesh)
fully_shard(by_column, mesh=mesh, shard_placement_fn=lambda parameter: Shard(1))
for _ in range(2):
    by_row(torch.ones(3, 6)).sum().backward()
    by_column(torch.ones(3, 8)).sum().backward()
parameters = [*by_row.parameters(), *by_column.parameters()]
[(tuple(p.shape), tuple(p.to_local().shape), p.to_local().stride()) for p in parameters]
"""


def test_fsdp_shards_fake_parameters_as_it_shards_real_ones() -> None:
    fake, real = (
        virtual(nproc_per_node=4, fake=fake).run(Job(source=UNEVEN, timeout=BROKEN_SECONDS)).raise_if_failed()
        for fake in (True, False)
    )
    assert fake.values == real.values
    assert [values[0][1] for values in fake.values] == [(2, 6), (2, 6), (1, 6), (0, 6)]
    assert what_happened(fake.trace) == what_happened(real.trace), "no shard is padded twice"


def test_a_distributed_tensor_is_copied_with_its_mesh() -> None:
    source = """
        import copy
        from torch.distributed.tensor import Shard, distribute_tensor
        mesh = dist.device_mesh.init_device_mesh("cpu", (2,), mesh_dim_names=("data",))
        copied = copy.deepcopy(distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)]))
        (copied + 1).full_tensor().shape, copied.device_mesh == mesh, copied.device_mesh["data"].size()
    """
    fake, real = (run(dedent(source), 2, fake=fake).raise_if_failed().values for fake in (True, False))
    assert fake == real == [((4, 4), True, 2)] * 2


def test_what_one_rank_has_computed_no_rank_computes_again() -> None:
    source = """
        from torch._subclasses.fake_tensor import FakeTensorMode
        computed = []
        if rank == 0:
            original, torch.computed = FakeTensorMode.dispatch, []  # shared by all ranks, as torch is
            def dispatch(self, function, *rest):
                torch.computed.append(str(function))
                return original(self, function, *rest)
            FakeTensorMode.dispatch = dispatch
        dist.barrier()
        def step(factor):
            model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16))
            optimizer = torch.optim.AdamW(model.parameters(), lr=factor)
            model(torch.randn(4, 8)).mul(factor).sum().backward()
            optimizer.step()
            torch.div(torch.randn(4, 8).view(torch.uint8).view(torch.float32), 2, out=torch.empty(4, 8))
        for turn in range(2):
            if turn == rank:
                torch.computed.clear()
                step(0.1 + rank)
                computed = list(torch.computed)
            dist.barrier()
        computed
    """
    first, second = run(dedent(source), 2).raise_if_failed().values
    assert len(first) > 20 and second == []


def test_a_module_is_cast_after_it_has_been_used() -> None:
    source = """
        model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64))
        x = torch.empty(4, 64)
        model(x).sum().backward()
        model = model.to(torch.bfloat16)
        called = []
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(lambda p: called.append(p))
        model(x.bfloat16()).sum().backward()
        [(p.dtype, p.grad.dtype, sum(p is one for one in called)) for p in model.parameters()]
    """
    result = virtual(nproc_per_node=1, fake=True).run(Job(source=HEAD + dedent(source))).raise_if_failed()
    assert set(map(str, result.values[0])) == {"(torch.bfloat16, torch.bfloat16, 1)"}


def test_a_large_model_runs_on_many_ranks() -> None:
    config = GPTConfig(layers=4, heads=40, width=5120)
    result = run(FSDP, 8, config="GPTConfig(layers=4, heads=40, width=5120)").raise_if_failed()
    shard = 4 * config.parameters / 8
    for rank in (0, 7):
        # parameters, gradients, two moments; and during the step three temporaries of the largest shard, the head's
        at_least = 4 * shard + 3 * 4 * config.vocab * config.width / 8
        assert result.trace.peak_memory(rank) >= 0.98 * at_least
    # forward and backward of 1,024 tokens: 6 operations per parameter and token, with the head, without embeddings
    flops = 6 * 1024 * (config.parameters - (config.vocab + config.context) * config.width)
    computed = sum(e.end - e.start for e in result.trace.of(0, Kind.COMPUTE))
    assert computed > flops / (19.5e12 * 0.82)


LAYOUT = """
# 2 copies of the model x 2 stages of a pipeline x 2 shards of each layer
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
mesh = dist.device_mesh.init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("data", "pipeline", "tensor"))
stage = mesh["pipeline"].get_local_rank()
model = GPT(config)
blocks = model.blocks[:2] if stage == 0 else model.blocks[2:]
for block in blocks:
    parallelize_module(block, mesh["tensor"], {
        "attention.qkv": ColwiseParallel(), "attention.out": RowwiseParallel(),
        "mlp.up": ColwiseParallel(), "mlp.down": RowwiseParallel(),
    })
mine = nn.ModuleList([model.token_embedding, model.position_embedding, *blocks] if stage == 0 else
                     [*blocks, model.norm, model.head])
del model.blocks
optimizer = torch.optim.AdamW(mine.parameters())
peer = mesh["pipeline"].get_group()
other = dist.get_global_rank(peer, 1 - stage)
shape = (1, config.context, config.width)
for microbatch in range(2):
    tokens = torch.randint(config.vocab, (1, config.context))
    x = model.embed(tokens) if stage == 0 else torch.empty(shape, requires_grad=True)
    if stage == 1:
        dist.recv(x.data, other)
    y = x
    for block in blocks:
        y = block(y)
    if stage == 0:
        dist.send(y.detach(), other)
        gradient = torch.empty(shape)
        dist.recv(gradient, other)
        y.backward(gradient)
    else:
        nn.functional.cross_entropy(model.head(model.norm(y)).flatten(0, 1), tokens.flatten()).backward()
        dist.send(x.grad, other)
for p in mine.parameters():
    dist.all_reduce(p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad, group=mesh["data"].get_group())
optimizer.step()
"""


def test_a_tensor_pipeline_data_layout_runs_and_counts_the_local_work() -> None:
    config = "GPTConfig(layers=4, heads=16, width=2048, vocab=1000)"
    trace = run(LAYOUT, 8, config=config).raise_if_failed().trace
    # each layer's matrices are split in two; besides its two layers a rank of the last stage holds the head, and the
    # embeddings that came with the model
    block = 4 * 12 * 2048**2 / 2
    last = {s.category: s.nbytes for s in trace.memory if s.rank == 7}
    assert last[Category.PARAMETER] == pytest.approx(2 * block + 4 * (2 * 1000 + 1024) * 2048, rel=0.02)
    # per microbatch and layer: forward and backward of half of the layer's products, and of the whole attention's half
    products = 2 * 2 * 3 * (2 * 1024 * 12 * 2048**2 / 2) / (19.5e12 * 0.82)
    computed = sum(e.end - e.start for e in trace.of(2, Kind.COMPUTE))
    assert 1.0 < computed / products < 1.5
    assert [e.nbytes for e in trace.of(0, Kind.SEND)] == [4 * 1024 * 2048] * 2


@pytest.mark.parametrize(
    ("line", "said"),
    [("x.sum().item()", "`.item()`"), ("if x.sum() > 3: pass", "`.item()`"), ("x.nonzero()", "`nonzero`")],
)
def test_what_needs_values_says_so_at_its_line(line: str, said: str) -> None:
    error = run(dedent(f"x = torch.ones(10)\n{line}\n"), 2).ranks[0].error
    assert error is not None
    assert said in error.message and "fake=True" in error.message
    assert error.where == "Cell In[1], line 9"


def test_fake_tensors_need_ranks_of_one_process() -> None:
    with pytest.raises(InvalidJob, match="threads"):
        virtual(fake=True, ranks="processes")


def test_objects_travel_as_they_are() -> None:
    source = """
import torch, torch.distributed as dist
dist.init_process_group()
objects = [{"from": dist.get_rank()}]
dist.broadcast_object_list(objects, src=1)
gathered = [None] * 2
dist.all_gather_object(gathered, "rank %d" % dist.get_rank())
(objects, gathered)
"""
    run = virtual(nproc_per_node=2, fake=True).run(Job(source=source)).raise_if_failed()
    assert run.values == [([{"from": 1}], ["rank 0", "rank 1"])] * 2


def test_values_computed_from_numbers_are_known_and_travel() -> None:
    source = """
        shape = torch.tensor([4 + rank, 8])
        if rank == 0:
            dist.send(shape, 1)
            got = [0, 0]
        else:
            arrived = torch.empty(2, dtype=torch.int64)
            dist.irecv(arrived, 0).wait() if rank == 1 else None
            got = arrived.tolist() if rank == 1 else [0, 0]
        counts = torch.arange(world_size) * 0 + torch.tensor([rank + 1] * world_size)
        theirs = torch.empty_like(counts)
        dist.all_to_all_single(theirs, counts)
        total, sizes = torch.tensor(float(rank)), [torch.empty(2, dtype=torch.int64) for _ in range(world_size)]
        dist.all_reduce(total)
        dist.all_gather(sizes, shape)
        told = shape.clone()
        dist.broadcast(told, 2)
        rows = torch.empty(sum(theirs.tolist()), 3)
        dist.all_to_all_single(rows, torch.empty(world_size * (rank + 1), 3), theirs.tolist(), counts.tolist())
        handle = dist.all_reduce(counts, async_op=True)
        handle.wait()
        [got, theirs.tolist(), total.item(), [size.tolist() for size in sizes], told.tolist(), counts.sum().item(),
         tuple(rows.shape)]
    """
    real, fake = (run(dedent(source), 3, fake=f).raise_if_failed() for f in (False, True))
    assert fake.values == real.values
    assert what_happened(fake.trace) == what_happened(real.trace)


def test_a_module_is_copied_into_memory_of_its_own_without_gradients() -> None:
    source = """
        import copy
        import labkit
        model = nn.Sequential(nn.Linear(300, 300), nn.LayerNorm(300), nn.BatchNorm1d(300))
        model[1].bias.requires_grad_(False)
        model[1].weight = model[0].bias
        model(torch.ones(4, 300)).sum().backward()
        copies = [copy.deepcopy(model) for _ in range(9)]
        kinds = [(isinstance(p, nn.Parameter), p.requires_grad, p.grad is None) for p in copies[0].parameters()]
        [kinds, copies[0][1].weight is copies[0][0].bias, copies[0][0].bias is not model[0].bias,
         labkit.max_memory_allocated()]
    """
    real, fake = (run(dedent(source), 1, fake=f).raise_if_failed() for f in (False, True))
    (*kinds, nbytes), (*as_real, expected) = fake.values[0], real.values[0]
    assert kinds == as_real
    assert nbytes == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    "forgotten",
    [
        "dist.all_reduce(torch.ones(()) if rank == 0 else known)",
        "dist.send(torch.ones(()), 1) if rank == 0 else dist.recv(known, 0)",
        "known.add_(torch.ones(()))",
    ],
)
def test_a_value_that_became_unknown_is_not_used(forgotten: str) -> None:
    source = f"known = torch.tensor(1.0)\n{forgotten}\nif rank: known.item()"
    failed = run(source, 2)
    assert "`.item()` (or `float()`, `int()`, `if` on a tensor) needs values" in str(failed.ranks[1].error)
