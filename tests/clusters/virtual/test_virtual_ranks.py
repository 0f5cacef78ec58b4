"""A virtual rank sees what a separate process would see, and its messages carry the right numbers."""

from __future__ import annotations

import hashlib
import json
from typing import Literal

import pytest
import torch
from waiting import BROKEN_SECONDS

from labkit import InvalidJob, Job, virtual

HEAD = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, n = dist.get_rank(), dist.get_world_size()
"""


def values(source: str, ranks: int = 4, **options: object) -> list[object]:
    return virtual(nproc_per_node=ranks, **options).run(Job(source=HEAD + source)).raise_if_failed().values  # type: ignore[arg-type]


def test_environment_is_torchruns_and_each_ranks_own() -> None:
    source = (
        "os.environ['MINE'] = str(rank)\ndist.barrier()\n"
        + "[os.environ[k] for k in ('RANK', 'LOCAL_RANK', 'GROUP_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE', 'MINE')]"
    )
    assert values(source, 2, nnodes=2) == [
        ["0", "0", "0", "4", "2", "0"],
        ["1", "1", "0", "4", "2", "1"],
        ["2", "0", "1", "4", "2", "2"],
        ["3", "1", "1", "4", "2", "3"],
    ]


def test_output_belongs_to_the_rank_that_printed() -> None:
    seen: list[tuple[int, str, str]] = []
    source = HEAD + "import sys\nprint('I am', rank)\nprint('bad', file=sys.stderr)"
    run = virtual(nproc_per_node=3).run(Job(source=source), on_output=lambda *part: seen.append(part))
    assert [rank.output for rank in run.ranks] == [f"I am {r}\nbad\n" for r in range(3)]
    assert {(r, s) for r, s, _ in seen} == {(r, s) for r in range(3) for s in ("stdout", "stderr")}


def test_random_numbers_are_each_ranks_own() -> None:
    drawn = values("torch.manual_seed(rank)\na = torch.rand(1).item()\ndist.barrier()\n(a, torch.rand(1).item())", 3)
    for rank, pair in enumerate(drawn):
        generator = torch.Generator().manual_seed(rank)
        assert pair == tuple(torch.rand(1, generator=generator).item() for _ in range(2))


def test_gradients_stay_switched_off_on_the_rank_that_switched_them_off() -> None:
    assert values(
        "with torch.set_grad_enabled(rank == 0):\n    dist.barrier()\n    seen = torch.is_grad_enabled()\nseen", 2
    ) == [True, False]


COMPILES = """
@torch.compile(backend="eager", fullgraph=True)
def doubled(x):
    return x * 2

model = torch.nn.Linear(2, 2)
compiled = [torch.compile(model, backend=backend) for backend in ("eager", "aot_eager")]
alike = all(torch.equal(one(torch.ones(2)), model(torch.ones(2))) for one in compiled)
(doubled(torch.ones(2)).tolist(), alike, sorted(compiled[0].state_dict()))
"""


@pytest.mark.parametrize("ranks", ["threads", "processes"])
def test_compiled_code_runs_without_a_compiler(ranks: Literal["threads", "processes"]) -> None:
    run = virtual(nproc_per_node=2, ranks=ranks).run(Job(source=HEAD + COMPILES))
    assert run.raise_if_failed().values == [([2.0, 2.0], True, ["_orig_mod.bias", "_orig_mod.weight"])] * 2


COLLECTIVES = """
t = torch.arange(n * 2, dtype=torch.int64) + 100 * rank
out = {}
x = t.clone(); dist.all_reduce(x); out["all_reduce"] = x.tolist()
x = t.clone(); dist.all_reduce(x, dist.ReduceOp.MAX); out["max"] = x.tolist()
x = t.clone(); dist.broadcast(x, n - 1); out["broadcast"] = x.tolist()
x = t.clone(); dist.reduce(x, 0); out["reduce"] = x.tolist() if rank == 0 else None
xs = [torch.empty_like(t) for _ in range(n)]; dist.all_gather(xs, t); out["all_gather"] = torch.stack(xs).tolist()
x = torch.empty(n * len(t), dtype=t.dtype); dist.all_gather_single(x, t); out["all_gather_single"] = x.tolist()
xs = [torch.empty_like(t) for _ in range(n)] if rank == 0 else None
dist.gather(t, xs, 0); out["gather"] = xs and torch.stack(xs).tolist()
x = torch.empty_like(t)
dist.scatter(x, [t + k for k in range(n)] if rank == 0 else None, 0); out["scatter"] = x.tolist()
x = torch.empty(2, dtype=t.dtype); dist.reduce_scatter(x, list(t.chunk(n))); out["reduce_scatter"] = x.tolist()
x = torch.empty(2, dtype=t.dtype); dist.reduce_scatter_single(x, t); out["reduce_scatter_single"] = x.tolist()
x = torch.empty_like(t); dist.all_to_all_single(x, t); out["all_to_all_single"] = x.tolist()
xs = [None] * n; dist.all_gather_object(xs, {"rank": rank}); out["object"] = xs
handle = dist.all_reduce(t, async_op=True); handle.wait(); out["async"] = t.tolist()
out
"""


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_collectives_equal_gloos(ranks: int) -> None:
    from labkit import local

    real = local(nproc_per_node=ranks).run(Job(source=HEAD + COLLECTIVES)).raise_if_failed()
    assert values(COLLECTIVES, ranks) == real.values


PROGRAM = (
    HEAD
    + """
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Linear(16, 4)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses = []
for step in range(3):
    torch.manual_seed(100 * step + rank)
    loss = model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
pair = [dist.new_group([r, r + 1]) for r in range(0, n, 2)][rank // 2]
x = torch.full((3,), float(rank)); dist.all_reduce(x, group=pair)
if rank % 2: dist.send(x, rank - 1)
else: dist.recv(x)
y = x.clone(); work = dist.irecv(x, (rank - 1) % n); dist.isend(y, (rank + 1) % n).wait()
while not work.is_completed(): pass
losses, x.tolist()
"""
)


def digest(run: object) -> str:
    return hashlib.sha256(json.dumps(run.trace.to_json()).encode()).hexdigest()  # type: ignore[attr-defined]


def test_the_same_program_gives_the_same_trace_every_time_also_with_ranks_in_processes() -> None:
    cluster = virtual(nnodes=2, nproc_per_node=2)
    runs = [cluster.run(Job(source=PROGRAM)).raise_if_failed() for _ in range(5)]
    assert len({digest(run) for run in runs}) == 1
    apart = virtual(nnodes=2, nproc_per_node=2, ranks="processes").run(Job(source=PROGRAM)).raise_if_failed()
    assert apart.values == runs[0].values
    assert apart.trace.to_json() == runs[0].trace.to_json()


def test_process_ranks_share_nothing_and_get_the_same_diagnosis() -> None:
    source = HEAD + "x = torch.ones(2)\ndist.send(x, (rank + 1) % n)"
    threads, processes = (
        virtual(nproc_per_node=3, ranks=how).run(Job(source=source)) for how in ("threads", "processes")
    )  # type: ignore[arg-type]
    assert processes.diagnosis() == threads.diagnosis()
    assert "cycle: 0 → 1 → 2 → 0" in processes.diagnosis()


def test_what_a_collective_cannot_do_is_told_to_every_rank() -> None:
    source = HEAD + "dist.all_reduce(torch.ones(2), dist.ReduceOp.BAND)"
    for how in ("threads", "processes"):
        run = virtual(nproc_per_node=2, ranks=how).run(Job(source=source))
        assert "RuntimeError on every rank" in run.diagnosis()
        assert "Cannot use ReduceOp.BAND with non-integral dtype: all_reduce got float32" in run.diagnosis()


def test_a_rank_that_breaks_the_protocol_ends_alone() -> None:
    source = (
        HEAD
        + """
if rank == 1:
    group = dist.distributed_c10d._get_default_group()
    group.endpoint._ask("post", 99, ("send", "no such group", 99), None)
x = torch.ones(1)
dist.all_reduce(x)
"""
    )
    run = virtual(nproc_per_node=3, ranks="processes").run(Job(source=source))
    assert [rank.error.type for rank in run.ranks if rank.error] == ["PeerFailed", "ProtocolError", "PeerFailed"]
    assert "the scheduler ended this rank: unknown group" in run.ranks[1].error.message  # type: ignore[union-attr]


def test_a_process_rank_that_vanishes_is_noticed_at_once() -> None:
    source = HEAD + "if rank == 1:\n    os._exit(0)\ndist.barrier()"
    run = virtual(nproc_per_node=3, ranks="processes").run(Job(source=source, timeout=BROKEN_SECONDS))
    assert run.stopped == ""
    assert run.ranks[0].error is not None and run.ranks[0].error.type == "PeerFailed"


def test_fsdp_trains_as_on_real_ranks() -> None:
    from labkit import local

    source = """\
import torch, torch.distributed as dist
from torch.distributed.fsdp import fully_shard
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
for layer in (*model, model):
    fully_shard(layer, mesh=torch.distributed.device_mesh.init_device_mesh("cpu", (2,)))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
losses = []
for step in range(3):
    torch.manual_seed(step * 10 + dist.get_rank())
    loss = model(torch.randn(4, 8)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    losses.append(loss.item())
losses
"""
    modelled = virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed()
    real = local(nproc_per_node=2).run(Job(source=source)).raise_if_failed()
    assert torch.allclose(torch.tensor(real.values), torch.tensor(modelled.values))


def test_ddp_trains_as_on_real_ranks() -> None:
    from labkit import local

    real = local(nproc_per_node=4).run(Job(source=PROGRAM.split("pair =")[0] + "losses")).raise_if_failed()
    modelled = virtual(nproc_per_node=4).run(Job(source=PROGRAM.split("pair =")[0] + "losses")).raise_if_failed()
    assert torch.allclose(torch.tensor(real.values), torch.tensor(modelled.values))


def test_other_ways_to_meet() -> None:
    source = "import os, torch.distributed as dist\nrank = int(os.environ['RANK'])\n"
    source += "dist.init_process_group('gloo', 'tcp://localhost:1', rank=rank, world_size=2)\ndist.get_rank()"
    assert virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed().values == [0, 1]


def test_1024_ranks() -> None:
    assert values("x = torch.ones(1)\ndist.all_reduce(x)\nx.item()", 1024) == [1024.0] * 1024


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nproc_per_node": 0}, "nproc_per_node must be a whole number from 1 up, got 0"),
        ({"nnodes": 200, "nproc_per_node": 8}, "1600 ranks, at most 1024"),
        ({"gpu": "a100"}, "unknown gpu 'a100'; did you mean a100-"),
        ({"inter_node": "carrier-pigeon"}, "unknown inter_node 'carrier-pigeon'"),
        ({"preset": "dgx-a10"}, "unknown preset 'dgx-a10'; did you mean dgx-a100"),
    ],
)
def test_bad_options_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidJob, match=message):
        virtual(**options)  # type: ignore[arg-type]


def test_a_run_finds_torch_imported() -> None:
    """DTensor and checkpoints, imported anew by each run, took 0.4 s; what the forkserver has imported is frozen."""
    source = """
import gc, types
import torch.distributed as dist
dist.init_process_group()
dist.barrier()
sorted(o.__name__ for o in gc.get_objects() if isinstance(o, types.ModuleType) and o.__name__.startswith("torch"))
"""
    for _ in range(2):
        assert virtual(nproc_per_node=2).run(Job(source=source)).raise_if_failed().values == [[], []]


def test_a_rank_that_crashes_is_named_and_the_others_are_said_to_have_stopped() -> None:
    cluster = virtual(nproc_per_node=3)
    source = "import ctypes, os, torch.distributed as dist\ndist.init_process_group()\nif dist.get_rank() == 1:\n"
    source += "    ctypes.string_at(0)\ndist.barrier()"
    assert cluster.run(Job(source=source, filename="Cell In[3]", timeout=BROKEN_SECONDS)).diagnosis() == (
        "SIGSEGV on rank 1 at Cell In[3], line 4: the process crashed: code below Python failed here\n"
        "    ctypes.string_at(0)\n"
        "ranks 0, 2 stopped because of it"
    )
    assert cluster.run(Job(source="import os\nos.environ['RANK']", timeout=BROKEN_SECONDS)).values == ["0", "1", "2"]
